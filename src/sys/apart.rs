//! Starts a program apart from this process: it runs with another user's ids, or reads what cells wrote.
//!
//! Once a program with another user's ids has been executed, that user may trace it. What it shares
//! with this process is then in that user's hands: a terminal takes typed text (TIOCSTI), an open
//! file can be read, and a session keyring gives its keys.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid, setsid};

use super::check;
use super::process::{cloexec_from, set_death_signal, set_no_new_privs};

/// Makes a command start in a new session, without a terminal, without new privileges, with a new
/// session keyring, and without open files apart from the three streams and `kept`. It is killed when
/// the calling thread ends.
///
/// `kept` must stay open until the command is started. The steps come after the change of ids, before
/// which no other user may trace the child, and before the program is executed.
pub fn start_apart(command: &mut Command, kept: BorrowedFd<'_>) {
    let parent = getpid();
    let kept = kept.as_raw_fd();
    let steps = move || {
        setsid()?;
        set_no_new_privs()?;
        leave_keyring()?;
        set_death_signal(Signal::SIGKILL)?;
        // The parent may have ended before.
        if getppid() != parent {
            return Err(Errno::ESRCH.into());
        }
        cloexec_from(3)?;
        // SAFETY: clears a flag of a descriptor; takes numbers only.
        Errno::result(unsafe { libc::fcntl(kept, libc::F_SETFD, 0) })?;
        Ok(())
    };
    // SAFETY: the steps are system calls with numbers: they allocate nothing and take no lock.
    unsafe { command.pre_exec(steps) };
}

/// Joins a new session keyring (keyctl(2), KEYCTL_JOIN_SESSION_KEYRING). A filter that refuses the call
/// here, as in containers, refuses the program every use of a keyring too.
fn leave_keyring() -> Result<(), Errno> {
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for a keyring without a name.
    let joined = unsafe {
        libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    };
    match check(joined) {
        Ok(_) | Err(Errno::ENOSYS | Errno::EPERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}
