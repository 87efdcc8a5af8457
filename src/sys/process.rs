//! Processes: clone3, pidfds, prctl and waiting.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::Resource;
use nix::sys::signal::Signal;
use rustix::process::{PidfdFlags, PidfdGetfdFlags};

use super::{Result, check, errno};

/// The side of [`clone3`] on which a process is.
#[derive(Debug)]
pub enum Side {
    Parent(Child),
    Child,
}

/// A child process: its pid in this process's pid namespace, and its pidfd.
#[derive(Debug)]
pub struct Child {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

/// Clones this process as fork(2) does, with `namespaces` (CLONE_NEW* flags) and a pidfd, straight into
/// the control group (version 2) that `cgroup` is open on, if one is given.
///
/// The caller must be single-threaded: the child has this thread only, and a lock held by another
/// thread would stay locked in it for ever.
pub fn clone3(namespaces: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> Result<Side> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut pidfd: libc::c_int = -1;
    let into = if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 };
    let mut arguments = libc::clone_args {
        flags: namespaces as u64 | libc::CLONE_PIDFD as u64 | into,
        pidfd: std::ptr::from_mut(&mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    // SAFETY: `arguments` is a complete clone_args of the size passed, `pidfd` outlives the call,
    // and without CLONE_VM the child runs on a copy of this memory, as after fork(2).
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            std::ptr::from_mut(&mut arguments),
            size_of::<libc::clone_args>(),
        )
    })?;
    if pid == 0 {
        return Ok(Side::Child);
    }
    // SAFETY: the kernel stored a new descriptor there that has no other owner (CLONE_PIDFD).
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Side::Parent(Child { pid: pid as i32, pidfd }))
}

/// Opens a pidfd of a process (pidfd_open(2)).
///
/// # Errors
/// ESRCH if there is no such process.
pub fn open_pidfd(pid: i32) -> Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or(Errno::EINVAL)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(errno)
}

/// Returns true if two processes share their address space (kcmp(2), KCMP_VM).
///
/// # Errors
/// ESRCH if either has ended, EPERM if this process may not inspect them, ENOSYS if the kernel
/// lacks the call.
pub fn have_one_memory(one: i32, other: i32) -> Result<bool> {
    /// From the kernel's header; libc does not define it.
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: takes numbers only.
    let order = check(unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) })?;
    Ok(order == 0)
}

/// Returns true if two threads share their descriptor table (kcmp(2), KCMP_FILES).
///
/// # Errors
/// Same as [`have_one_memory`].
pub fn have_one_table(one: i32, other: i32) -> Result<bool> {
    /// From the kernel's header; libc does not define it.
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: takes numbers only.
    let order = check(unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0, 0) })?;
    Ok(order == 0)
}

/// Takes a copy of another process's descriptor, closed at exec (pidfd_getfd(2)).
///
/// # Errors
/// EBADF if the process has no such descriptor, EPERM if this process may not inspect it.
pub fn take_descriptor(pidfd: impl AsFd, number: u32) -> Result<OwnedFd> {
    let number = i32::try_from(number).map_err(|_| Errno::EBADF)?;
    rustix::process::pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()).map_err(errno)
}

/// Returns a soft limit of another process (prlimit(2)); `RLIM_INFINITY` is the greatest u64.
///
/// # Errors
/// EPERM if the process has other ids, ESRCH if it has ended.
pub fn limit_of(pid: i32, resource: Resource) -> Result<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let which = resource as libc::__rlimit_resource_t;
    let unchanged = std::ptr::null();
    // SAFETY: `limit` is a writable rlimit64 that outlives the call; the null pointer sets no new
    // limit.
    let result = unsafe { libc::prlimit64(pid, which, unchanged, &raw mut limit) };
    Errno::result(result).map(|_| limit.rlim_cur)
}

/// Sends a signal to one thread of a process (tgkill(2)).
pub fn signal_thread(process: i32, thread: i32, signal: Signal) -> Result<()> {
    let number = signal as libc::c_int;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_tgkill, process, thread, number) }).map(drop)
}

/// Sends a signal to a process (pidfd_send_signal(2)).
pub fn signal(pidfd: impl AsFd, signal: Signal) -> Result<()> {
    let signal = rustix::process::Signal::from_named_raw(signal as i32).ok_or(Errno::EINVAL)?;
    rustix::process::pidfd_send_signal(pidfd, signal).map_err(errno)
}

/// Ends this process without destructors, buffers or atexit handlers (_exit(2)).
pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process; no memory of it is used afterwards.
    unsafe { libc::_exit(code) }
}

/// Sets the signal that this process gets when its parent thread ends (PR_SET_PDEATHSIG). A change
/// of ids resets it, so set it after the last one.
pub fn set_death_signal(signal: Signal) -> Result<()> {
    prctl::set_pdeathsig(signal)
}

/// Permission of other processes of this uid to inspect this one (PR_SET_DUMPABLE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dumpable {
    No,
    Yes,
}

/// Sets PR_SET_DUMPABLE. A change of ids resets it.
pub fn set_dumpable(dumpable: Dumpable) -> Result<()> {
    prctl::set_dumpable(dumpable == Dumpable::Yes)
}

/// Sets PR_SET_NO_NEW_PRIVS; it cannot be unset.
pub fn set_no_new_privs() -> Result<()> {
    prctl::set_no_new_privs()
}

/// Locks SECBIT_NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE on, so that no uid brings
/// capabilities back (capabilities(7), "The securebits flags").
///
/// KEEP_CAPS is left alone: without capabilities there is nothing to keep, and ping(8) fails if it
/// cannot set that bit.
pub fn lock_securebits() -> Result<()> {
    const NOROOT: libc::c_ulong = 0b11;
    const NO_SETUID_FIXUP: libc::c_ulong = 0b11 << 2;
    const NO_AMBIENT_RAISE: libc::c_ulong = 0b11 << 6;
    let bits = NOROOT | NO_SETUID_FIXUP | NO_AMBIENT_RAISE;
    let zero: libc::c_ulong = 0;
    // SAFETY: takes no pointers; unused arguments must be zero (prctl(2)) and are.
    let set = unsafe { libc::prctl(libc::PR_SET_SECUREBITS, bits, zero, zero, zero) };
    Errno::result(set).map(drop)
}

/// Returns true if a change of ids takes capabilities away: SECBIT_NO_SETUID_FIXUP is off.
pub fn ids_limit_capabilities() -> Result<bool> {
    const NO_SETUID_FIXUP: libc::c_int = 1 << 2;
    let zero: libc::c_ulong = 0;
    // SAFETY: takes no pointers; unused arguments must be zero (prctl(2)) and are.
    let bits = unsafe { libc::prctl(libc::PR_GET_SECUREBITS, zero, zero, zero, zero) };
    Errno::result(bits).map(|bits| bits & NO_SETUID_FIXUP == 0)
}

/// A child that was reaped: its wait status, and what it and its waited-for children used.
#[derive(Debug, Clone, Copy)]
pub struct Reaped {
    pub pid: i32,
    pub end: End,
    pub used: Used,
}

/// How a process ended (wait(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exited(u8),
    Signaled(u8),
}

/// Reaps any ended child, without waiting (wait4(2)). Returns `Ok(None)` if no child has ended.
pub fn reap() -> Result<Option<Reaped>> {
    let mut status: libc::c_int = 0;
    // SAFETY: rusage is plain integers, for which all zeroes is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals that outlive the call.
    let pid = Errno::result(unsafe {
        libc::wait4(-1, &raw mut status, libc::WNOHANG | libc::__WALL, &raw mut usage)
    })?;
    if pid == 0 {
        return Ok(None);
    }
    let end = if libc::WIFSIGNALED(status) {
        End::Signaled(libc::WTERMSIG(status) as u8)
    } else {
        End::Exited(libc::WEXITSTATUS(status) as u8)
    };
    Ok(Some(Reaped { pid, end, used: usage.into() }))
}

/// Resource usage of an ended process and of the children it had waited for (getrusage(2)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    pub user_us: u64,
    pub system_us: u64,
    /// Largest resident set of one process, in bytes.
    pub max_rss: u64,
}

impl From<libc::rusage> for Used {
    fn from(usage: libc::rusage) -> Self {
        let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        Self {
            user_us: micros(usage.ru_utime),
            system_us: micros(usage.ru_stime),
            max_rss: usage.ru_maxrss as u64 * 1024,
        }
    }
}

/// Reaps the child of a pidfd if it has ended (waitid(2), P_PIDFD). Returns `Ok(None)` if it has
/// not ended yet.
pub fn collect(pidfd: impl AsFd) -> Result<Option<Collected>> {
    wait_for(pidfd, libc::WEXITED | libc::WNOHANG)
}

/// A child that ended, with its resource usage.
#[derive(Debug, Clone, Copy)]
pub struct Collected {
    pub used: Used,
    /// Code with which it exited. `None`: a signal ended it.
    pub code: Option<i32>,
    /// True if it exited with code 0.
    pub is_success: bool,
}

/// Waits until the child of a pidfd has ended, and reaps it: for a child that has just been killed.
pub fn wait(pidfd: impl AsFd) -> Result<()> {
    loop {
        match wait_for(&pidfd, libc::WEXITED) {
            Err(Errno::EINTR) => {}
            result => return result.map(drop),
        }
    }
}

/// Calls waitid(2) directly, as the C library's function does not return the resource usage.
fn wait_for(pidfd: impl AsFd, options: libc::c_int) -> Result<Option<Collected>> {
    // SAFETY: siginfo_t is plain bytes, for which all zeroes is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: rusage is plain integers, for which all zeroes is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals that outlive the call; the descriptor is borrowed.
    check(unsafe {
        libc::syscall(
            libc::SYS_waitid,
            libc::P_PIDFD,
            pidfd.as_fd().as_raw_fd(),
            &raw mut info,
            options,
            &raw mut usage,
        )
    })?;
    // SAFETY: waitid succeeded, so the pid field of this union is in use, or zero.
    let ended = unsafe { info.si_pid() } != 0;
    // SAFETY: same as above, for the status field.
    let status = unsafe { info.si_status() };
    let code = (info.si_code == libc::CLD_EXITED).then_some(status);
    Ok(ended.then(|| Collected { used: usage.into(), code, is_success: code == Some(0) }))
}

/// Addresses of this process's arguments and environment, from `/proc/self/stat`.
#[derive(Debug, Clone, Copy)]
pub struct ArgumentPages {
    start: usize,
    end: usize,
}

impl ArgumentPages {
    /// Reads fields 48 to 51 of `/proc/self/stat` (proc_pid_stat(5)).
    pub fn locate() -> std::io::Result<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let malformed = || std::io::Error::other("/proc/self/stat has an unknown shape");
        // The name in field 2 may hold spaces and brackets: count from the last bracket.
        let rest = stat.rsplit_once(") ").ok_or_else(malformed)?.1;
        let field = |number: usize| -> std::io::Result<usize> {
            rest.split_ascii_whitespace()
                .nth(number - 3)
                .and_then(|word| word.parse().ok())
                .ok_or_else(malformed)
        };
        let start = field(48)?;
        let environment_end = field(51)?;
        Ok(Self { start, end: environment_end.max(start) })
    }

    /// Overwrites arguments and environment with `title` and zeroes, and empties the environment of
    /// this process.
    ///
    /// Otherwise they would stay readable in `/proc/<pid>/environ` of every process that is cloned
    /// from this one and does not exec.
    pub fn clear(self, title: &str) {
        // SAFETY: single-threaded by contract of the caller, so no other thread reads `environ`.
        unsafe { libc::clearenv() };
        let length = self.end - self.start;
        if length == 0 {
            return;
        }
        // SAFETY: the kernel placed argv and environ in this writable part of the stack at exec,
        // and after clearenv the process refers to it only by saved argv pointers, which are only
        // read as bytes.
        let pages = unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, length) };
        pages.fill(0);
        // The last byte stays zero: without a zero the kernel would read past the end.
        for (to, from) in pages.iter_mut().take(length - 1).zip(title.bytes()) {
            *to = from;
        }
    }
}

impl ArgumentPages {
    /// Does the same, but leaves these variables in the environment of this process.
    pub fn clear_but(self, title: &str, kept: &[&'static str]) {
        let read = |name: &&'static str| Some((*name, std::env::var_os(name)?));
        let values: Vec<_> = kept.iter().filter_map(read).collect();
        self.clear(title);
        for (name, value) in values {
            // SAFETY: single-threaded by contract of the caller, as for `clear`.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Returns true while the other end of `link` is open. Unlike getppid(2), it works across pid namespaces.
pub fn is_open(link: impl AsFd) -> Result<bool> {
    let events = libc::POLLRDHUP;
    let mut poll = libc::pollfd { fd: link.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: one pollfd, which outlives the call; the timeout is zero.
    Errno::result(unsafe { libc::poll(&raw mut poll, 1, 0) })?;
    let gone = libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR | libc::POLLNVAL;
    Ok(poll.revents & gone == 0)
}

/// Closes every descriptor from `first` to `last`, both included (close_range(2)).
pub fn close_range(first: u32, last: u32) -> Result<()> {
    // SAFETY: takes numbers only. The caller has just been cloned and never drops the owned
    // descriptors that it inherited as a copy.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Makes every descriptor from `first` on close at exec (close_range(2), CLOSE_RANGE_CLOEXEC).
pub fn cloexec_from(first: u32) -> Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: sets a flag on descriptors; takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) })
        .map(drop)
}

/// Returns the Landlock ABI of this kernel (landlock_create_ruleset(2) with
/// LANDLOCK_CREATE_RULESET_VERSION); 0 if Landlock is missing or disabled.
pub fn landlock_abi() -> u32 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the kernel demands a null attribute of size 0.
    let version = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0,
            VERSION,
        )
    });
    version.map_or(0, |version| version as u32)
}

/// Moves `fd` to the number `to` with CLOEXEC, closing the descriptor that had this number
/// (dup3(2)).
pub fn duplicate_to(fd: OwnedFd, to: i32) -> Result<OwnedFd> {
    // SAFETY: takes numbers only; the number `to` has no owner in the process at this point.
    let raw = Errno::result(unsafe { libc::dup3(fd.as_raw_fd(), to, libc::O_CLOEXEC) })?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Moves a descriptor that this program was started with to another number, with CLOEXEC (F_DUPFD_CLOEXEC of
/// fcntl(2)). EBADF if no descriptor has this number.
pub fn take_inherited(number: u32) -> Result<OwnedFd> {
    let from = i32::try_from(number).map_err(|_| Errno::EBADF)?;
    // SAFETY: takes numbers only.
    let raw = Errno::result(unsafe { libc::fcntl(from, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: the kernel has just made this descriptor for us.
    let taken = unsafe { OwnedFd::from_raw_fd(raw) };
    close_range(number, number)?;
    Ok(taken)
}

/// Puts a copy of `fd` at the number `to` that stays open at exec (dup2(2), F_SETFD). The copy has
/// no owner in this process: the next program inherits it.
pub fn duplicate_inheritable(fd: impl AsFd, to: i32) -> Result<()> {
    let from = fd.as_fd().as_raw_fd();
    if from == to {
        // SAFETY: takes numbers only; dup2 onto itself would leave CLOEXEC set.
        return Errno::result(unsafe { libc::fcntl(from, libc::F_SETFD, 0) }).map(drop);
    }
    // SAFETY: takes numbers only; the process is about to exec and does not use `to` again.
    Errno::result(unsafe { libc::dup2(from, to) }).map(drop)
}

/// Raises this process's nice value by `by`, for good (nice(2)).
pub fn give_way(by: i32) -> Result<()> {
    rustix::process::nice(by).map(drop).map_err(errno)
}
