//! What signals do to this process and to the programs of its children (signal(7)).

use nix::errno::Errno;

use super::{Result, check};

/// Lets children be waited for and signals arrive: SIGCHLD at its default, none blocked. Both
/// survive exec (signal(7)), so they are whatever the parent of this program left.
pub fn usual_signals() -> Result<()> {
    // SAFETY: SIG_DFL is no function of ours; the call takes numbers only otherwise.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_ERR {
        return Err(Errno::last());
    }
    nix::sys::signal::SigSet::empty().thread_set_mask()
}

/// Has children of this process collected by the kernel: nobody is going to wait for one (wait(2)).
pub fn forget_children() -> Result<()> {
    // SAFETY: SIG_IGN is no function of ours; the call takes numbers only otherwise.
    let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(Errno::last()) } else { Ok(()) }
}

/// Gives every signal its default effect: what the parent of this program left ignored would be so in every
/// child, and exec keeps it (signal(7)). But for SIGPIPE, which the Rust runtime ignores, and SIGXFSZ: to the
/// process that starts programs both are errors of a write, EPIPE and EFBIG.
///
/// # Errors
/// What rt_sigaction(2) says.
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

/// What is left to do after [`default_signals`] for a program to find signals as from a shell: SIGPIPE
/// and SIGXFSZ end it, and none is blocked.
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

/// Ignores SIGXFSZ: a write past RLIMIT_FSIZE is then an error (EFBIG) and no end of the process.
pub fn ignore_file_size_signal() -> Result<()> {
    // SAFETY: SIG_IGN is no function of ours; the call takes numbers only otherwise.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_ERR { Err(Errno::last()) } else { Ok(()) }
}
