//! Dispositions of signals in this process and in the programs of its children (signal(7)).

use nix::errno::Errno;

use super::{Result, check};

/// Sets SIGCHLD to its default and blocks no signal, so that children can be waited for. Both are inherited
/// across exec (signal(7)), so the parent of this program may have left them otherwise.
pub fn usual_signals() -> Result<()> {
    // SAFETY: SIG_DFL is no function of ours; the call takes numbers only otherwise.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_ERR {
        return Err(Errno::last());
    }
    nix::sys::signal::SigSet::empty().thread_set_mask()
}

/// Has the kernel reap children of this process, which never waits for one (wait(2)).
pub fn forget_children() -> Result<()> {
    // SAFETY: SIG_IGN is no function of ours; the call takes numbers only otherwise.
    let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(Errno::last()) } else { Ok(()) }
}

/// Sets every signal to its default: a signal that the parent of this program ignored would be ignored in every
/// child, as exec keeps it (signal(7)). Two stay ignored, SIGPIPE by the Rust runtime and SIGXFSZ: a process that
/// starts programs gets EPIPE and EFBIG from a write instead.
///
/// # Errors
/// The errno of rt_sigaction(2).
pub fn default_signals() -> Result<()> {
    const BYTES: usize = 8;
    // Not by the C library, which changes none of its own two (nptl(7)).
    let others = [libc::SIGKILL, libc::SIGSTOP, libc::SIGPIPE, libc::SIGXFSZ];
    for number in (1..=64).filter(|number| !others.contains(number)) {
        // Handler, flags, restorer and mask: SIG_DFL is 0, and there is no flag and no signal in it.
        let action = [0_usize; 4];
        // SAFETY: `action` is as long as the kernel's structure, outlives the call and names no function of
        // ours; the old one is not asked for.
        check(unsafe {
            let old = std::ptr::null_mut::<libc::c_void>();
            libc::syscall(libc::SYS_rt_sigaction, number, action.as_ptr(), old, BYTES)
        })?;
    }
    ignore_file_size_signal()
}

/// Completes [`default_signals`] before exec, so that a program finds signals as from a shell: SIGPIPE and
/// SIGXFSZ end it, and none is blocked.
pub fn program_signals() -> Result<()> {
    for number in [libc::SIGPIPE, libc::SIGXFSZ] {
        // SAFETY: SIG_DFL is no function of ours; the call takes numbers only otherwise.
        if unsafe { libc::signal(number, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(Errno::last());
        }
    }
    // SAFETY: sigset_t is plain integers, for which all zeroes is the empty set.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `none` outlives the call; the old mask is not asked for.
    Errno::result(unsafe {
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    })
    .map(drop)
}

/// Ignores SIGXFSZ: a write past RLIMIT_FSIZE then gives EFBIG instead of ending the process.
pub fn ignore_file_size_signal() -> Result<()> {
    // SAFETY: SIG_IGN is no function of ours; the call takes numbers only otherwise.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(Errno::last()) } else { Ok(()) }
}
