//! seccomp user notification: receives calls that wait for a decision and answers them
//! (seccomp_unotify(2)).

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use super::Result;

/// A system call that waits for an answer.
#[derive(Debug, Clone, Copy)]
pub struct Notification {
    id: u64,
    /// The thread that made the call, in the receiver's pid namespace.
    pub pid: i32,
    pub number: u32,
    /// The arguments of the call; memory that they point to may change at any time.
    pub arguments: [u64; 6],
}

// _IOWR('!', 0, struct seccomp_notif) and _IOWR('!', 1, struct seccomp_notif_resp).
const RECEIVE: libc::c_ulong = 0xc050_2100;
const RESPOND: libc::c_ulong = 0xc018_2101;
// _IOW('!', 2, __u64), _IOW('!', 3, struct seccomp_notif_addfd) and _IOW('!', 4, __u64).
const IS_VALID: libc::c_ulong = 0x4008_2102;
const ADD_FD: libc::c_ulong = 0x4018_2103;
const SET_FLAGS: libc::c_ulong = 0x4008_2104;

/// Receives the next notification. Returns `Ok(None)` if the caller has ended already.
pub fn receive(listener: impl AsFd) -> Result<Option<Notification>> {
    // SAFETY: seccomp_notif is plain integers, and the kernel demands all zeroes.
    let mut notif: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: RECEIVE takes a pointer to a zeroed seccomp_notif, which outlives the call.
    let result = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), RECEIVE, &raw mut notif) };
    match Errno::result(result) {
        Ok(_) => Ok(Some(Notification {
            id: notif.id,
            number: notif.data.nr as u32,
            pid: notif.pid as i32,
            arguments: notif.data.args,
        })),
        Err(Errno::ENOENT | Errno::EINTR | Errno::EAGAIN) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Answers a notification with an error. If the caller has ended, nothing is reported.
pub fn refuse(listener: impl AsFd, notification: Notification, errno: Errno) -> Result<()> {
    respond(listener, notification, 0, -(errno as i32), 0)
}

/// Answers a notification with the result 0.
pub fn succeed(listener: impl AsFd, notification: Notification) -> Result<()> {
    answer(listener, notification, 0)
}

/// Answers a notification with the result `value`.
pub fn answer(listener: impl AsFd, notification: Notification, value: i64) -> Result<()> {
    respond(listener, notification, value, 0, 0)
}

/// Lets the kernel execute a call. Only for calls that the filter allows anyway: a decision about
/// memory that the arguments point to would not hold, as the memory may have changed
/// (seccomp_unotify(2)).
pub fn proceed(listener: impl AsFd, notification: Notification) -> Result<()> {
    const CONTINUE: u32 = 1;
    respond(listener, notification, 0, 0, CONTINUE)
}

fn respond(
    listener: impl AsFd,
    notification: Notification,
    val: i64,
    error: i32,
    flags: u32,
) -> Result<()> {
    let mut response = libc::seccomp_notif_resp { id: notification.id, val, error, flags };
    // SAFETY: RESPOND takes a pointer to a seccomp_notif_resp, which outlives the call.
    let result = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), RESPOND, &raw mut response) };
    match Errno::result(result) {
        Ok(_) | Err(Errno::ENOENT | Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Returns true if the caller still waits. Then its pid was not reused, and memory read through it
/// belongs to the caller (SECCOMP_IOCTL_NOTIF_ID_VALID).
pub fn is_waiting(listener: impl AsFd, notification: Notification) -> bool {
    let id = notification.id;
    // SAFETY: IS_VALID takes a pointer to a u64, which outlives the call.
    let result = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), IS_VALID, &raw const id) };
    Errno::result(result).is_ok()
}

/// Installs a copy of `fd` in the caller and answers with its number, in one step
/// (SECCOMP_IOCTL_NOTIF_ADDFD with SECCOMP_ADDFD_FLAG_SEND, Linux 5.14).
///
/// # Errors
/// The errno, such as EMFILE, if the descriptor cannot be installed; the caller then still needs an
/// answer. ENOENT if the caller has ended.
pub fn answer_with(
    listener: impl AsFd,
    notification: Notification,
    fd: impl AsFd,
    cloexec: bool,
) -> Result<()> {
    install(listener, notification, fd, cloexec, libc::SECCOMP_ADDFD_FLAG_SEND as u32).map(drop)
}

/// Installs a copy of `fd` in the caller, which still needs an answer. Returns its number there
/// (SECCOMP_IOCTL_NOTIF_ADDFD, Linux 5.9).
///
/// # Errors
/// The errors of [`answer_with`].
pub fn add(
    listener: impl AsFd,
    notification: Notification,
    fd: impl AsFd,
    cloexec: bool,
) -> Result<i32> {
    install(listener, notification, fd, cloexec, 0)
}

fn install(
    listener: impl AsFd,
    notification: Notification,
    fd: impl AsFd,
    cloexec: bool,
    flags: u32,
) -> Result<i32> {
    let added = libc::seccomp_notif_addfd {
        id: notification.id,
        flags,
        srcfd: fd.as_fd().as_raw_fd() as u32,
        newfd: 0,
        newfd_flags: if cloexec { libc::O_CLOEXEC as u32 } else { 0 },
    };
    // SAFETY: ADD_FD takes a pointer to a seccomp_notif_addfd, which outlives the call.
    let result = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), ADD_FD, &raw const added) };
    Errno::result(result)
}

/// Wakes caller and receiver on the same processor, which makes answers faster
/// (SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP, Linux 6.6). Returns false on a kernel without it.
pub fn wake_in_step(listener: impl AsFd) -> bool {
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    // SAFETY: SET_FLAGS takes its flags by value.
    let result = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) };
    Errno::result(result).is_ok()
}
