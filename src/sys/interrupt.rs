//! An end to system calls that wait: a timer's signal interrupts them (setitimer(2), signal(7)).
//!
//! For calls that take no timeout and whose O_NONBLOCK somebody else can take away at any moment.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::Result;

/// Ends the process if the signal is not the timer's: who may send it could have it come again and again,
/// so that nothing else is done. Otherwise nothing: that this is there makes the kernel interrupt what
/// waits, without starting it again.
extern "C" fn ticked(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel gives a pointer to what it has written on this stack.
    let code = unsafe { (*info).si_code };
    if code != libc::SI_KERNEL {
        // SAFETY: takes a number only, and may be called in a handler (signal-safety(7)).
        unsafe { libc::_exit(1) }
    }
}

/// Makes SIGALRM of this process an interruption, and blocks it until [`within`] waits for it. Whoever
/// else sends it ends the process: of a cell, its own init. Where Landlock holds signals, nobody can.
pub fn prepare() -> Result<()> {
    SigSet::from(Signal::SIGALRM).thread_block()?;
    let handler = SigHandler::SigAction(ticked);
    let action = SigAction::new(handler, SaFlags::SA_SIGINFO, SigSet::empty());
    // SAFETY: the handler touches nothing of the process, so it may run wherever that is.
    unsafe { sigaction(Signal::SIGALRM, &action) }.map(drop)
}

/// Makes a call, after [`prepare`]; whatever it waits for longer than `most` is interrupted, again and
/// again, so that it answers EINTR. A call that does not wait answers as ever.
pub fn within<T>(most: Duration, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let alarm = SigSet::from(Signal::SIGALRM);
    tick(most)?;
    alarm.thread_unblock()?;
    let result = call();
    alarm.thread_block()?;
    tick(Duration::ZERO)?;
    result
}

/// Sends SIGALRM to this process every `period`; none at zero.
fn tick(period: Duration) -> Result<()> {
    let period = libc::timeval {
        tv_sec: period.as_secs().try_into().map_err(|_| Errno::EINVAL)?,
        tv_usec: period.subsec_micros().into(),
    };
    let timer = libc::itimerval { it_interval: period, it_value: period };
    // SAFETY: `timer` outlives the call, and the old one is not asked for.
    Errno::result(unsafe {
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut())
    })
    .map(drop)
}
