//! seccomp user notification: receiving a refused call and answering it (seccomp_unotify(2)).

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use super::Result;

/// A call that waits for an answer.
#[derive(Debug, Clone, Copy)]
pub struct Notification {
    id: u64,
    pub number: u32,
    /// The caller's thread, as the listener's pid namespace numbers it.
    pub pid: i32,
    /// As they were in the registers; what they point to may change at any time.
    pub arguments: [u64; 6],
}

// _IOWR('!', 0, struct seccomp_notif) and _IOWR('!', 1, struct seccomp_notif_resp).
const RECEIVE: libc::c_ulong = 0xc050_2100;
const RESPOND: libc::c_ulong = 0xc018_2101;

/// Takes the next notification. `Ok(None)`: the caller is gone already.
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

/// Answers a notification with an error. A caller that is gone already needs none.
pub fn refuse(listener: impl AsFd, notification: Notification, errno: Errno) -> Result<()> {
    respond(listener, notification, -(errno as i32), 0)
}

/// Tells the caller that its call succeeded and returned 0.
pub fn succeed(listener: impl AsFd, notification: Notification) -> Result<()> {
    respond(listener, notification, 0, 0)
}

/// Lets a call go on as if nobody had been asked. Never to allow something by what its arguments
/// point to, which may be something else by now (seccomp_unotify(2)): only for a call that the
/// filter itself has found to be allowed.
pub fn proceed(listener: impl AsFd, notification: Notification) -> Result<()> {
    const CONTINUE: u32 = 1;
    respond(listener, notification, 0, CONTINUE)
}

fn respond(listener: impl AsFd, notification: Notification, error: i32, flags: u32) -> Result<()> {
    let mut response = libc::seccomp_notif_resp { id: notification.id, val: 0, error, flags };
    // SAFETY: RESPOND takes a pointer to a seccomp_notif_resp, which outlives the call.
    let result = unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), RESPOND, &raw mut response) };
    match Errno::result(result) {
        Ok(_) | Err(Errno::ENOENT | Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
