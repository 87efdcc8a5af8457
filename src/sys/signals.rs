//! Signal dispositions of this process and of the programs that it executes (signal(7)).

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::{Result, check};

/// Resets SIGCHLD to its default and unblocks all signals, so that children can be waited for. Both
/// settings are inherited across exec, so the program that started this one may have changed them.
pub fn usual_signals() -> Result<()> {
    // SAFETY: SIG_DFL is not a function of this program; otherwise the call takes numbers only.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_ERR {
        return Err(Errno::last());
    }
    nix::sys::signal::SigSet::empty().thread_set_mask()
}

/// Makes the kernel reap children of this process, which does not wait for any (wait(2)).
pub fn forget_children() -> Result<()> {
    // SAFETY: SIG_IGN is not a function of this program; otherwise the call takes numbers only.
    let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(Errno::last()) } else { Ok(()) }
}

/// Resets every signal to its default: exec keeps ignored signals, so every child would ignore what
/// the program that started this one ignored (signal(7)). Two stay ignored, SIGPIPE by the Rust
/// runtime and SIGXFSZ: a process that starts programs then gets EPIPE and EFBIG from a write.
///
/// # Errors
/// The errno of rt_sigaction(2).
pub fn default_signals() -> Result<()> {
    const BYTES: usize = 8;
    // By system call, as the C library does not change the two signals that it reserves (nptl(7)).
    let others = [libc::SIGKILL, libc::SIGSTOP, libc::SIGPIPE, libc::SIGXFSZ];
    for number in (1..=64).filter(|number| !others.contains(number)) {
        // Handler SIG_DFL, no flags, no restorer, and an empty mask: all zeroes.
        let action = [0_usize; 4];
        // SAFETY: `action` has the size of the kernel's structure, outlives the call and names no
        // function; the null pointer means that the old action is not wanted.
        check(unsafe {
            let old = std::ptr::null_mut::<libc::c_void>();
            libc::syscall(libc::SYS_rt_sigaction, number, action.as_ptr(), old, BYTES)
        })?;
    }
    ignore_file_size_signal()
}

/// Completes [`default_signals`] before exec, so that a program gets the signals as from a shell:
/// SIGPIPE and SIGXFSZ kill it, and no signal is blocked.
pub fn program_signals() -> Result<()> {
    for number in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: SIG_DFL is not a function of this program; otherwise the call takes numbers only.
        if unsafe { libc::signal(number, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(Errno::last());
        }
    }
    // SAFETY: sigset_t is plain integers, for which all zeroes is the empty set.
    let empty: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `empty` outlives the call; the null pointer means that the old mask is not wanted.
    Errno::result(unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut())
    })
    .map(drop)
}

/// Ignores SIGXFSZ, so that a write past RLIMIT_FSIZE fails with EFBIG instead of killing the
/// process.
pub fn ignore_file_size_signal() -> Result<()> {
    // SAFETY: SIG_IGN is not a function of this program; otherwise the call takes numbers only.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(Errno::last()) } else { Ok(()) }
}

/// Ignores SIGHUP until it has a handler. A signal that comes while it is blocked waits for the handler all the same.
pub fn ignore_hangup() -> Result<()> {
    // SAFETY: SIG_IGN is not a function of this program; otherwise the call takes numbers only.
    let before = unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(Errno::last()) } else { Ok(()) }
}

/// Has the kernel send SIGKILL to this process at an event of `fd` (O_ASYNC of fcntl(2)). At the read end of a pipe to
/// which nothing is written, that is the close of its last write end. A process that is stopped, or that waits for
/// a file, ends too. Clears the other status flags of `fd`.
///
/// # Errors
/// EINVAL for a file without such events.
pub fn kill_at_event(fd: impl AsFd) -> Result<()> {
    /// From the kernel's header: libc does not define the second one for each target.
    const F_SETOWN: libc::c_int = 8;
    const F_SETSIG: libc::c_int = 10;
    let number = fd.as_fd().as_raw_fd();
    let own = nix::unistd::getpid().as_raw();
    // SAFETY: takes numbers only.
    Errno::result(unsafe { libc::fcntl(number, F_SETOWN, own) })?;
    // SAFETY: takes numbers only.
    Errno::result(unsafe { libc::fcntl(number, F_SETSIG, libc::SIGKILL) })?;
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_ASYNC)).map(drop)
}
