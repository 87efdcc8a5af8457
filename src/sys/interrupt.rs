//! Interrupts blocking system calls by a timer's signal (setitimer(2), signal(7)).
//!
//! For calls that take no timeout, on files whose O_NONBLOCK another process can clear at any
//! moment.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::Result;

/// Exits if the signal is not the timer's: a sender could otherwise keep this process busy for
/// ever. Otherwise does nothing: with a handler installed, the kernel interrupts a blocking call
/// and does not restart it.
extern "C" fn on_alarm(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid pointer to a siginfo_t on this stack.
    let code = unsafe { (*info).si_code };
    if code != libc::SI_KERNEL {
        // SAFETY: takes a number only, and may be called in a handler (signal-safety(7)).
        unsafe { libc::_exit(1) }
    }
}

/// Makes SIGALRM interrupt calls of this process, and blocks it outside [`within`]. A SIGALRM from
/// another process ends this one: a cell can end its init that way, unless Landlock confines
/// signals.
pub fn prepare() -> Result<()> {
    SigSet::from(Signal::SIGALRM).thread_block()?;
    let handler = SigHandler::SigAction(on_alarm);
    let action = SigAction::new(handler, SaFlags::SA_SIGINFO, SigSet::empty());
    // SAFETY: the handler touches no memory of the process, so it may interrupt any code.
    unsafe { sigaction(Signal::SIGALRM, &action) }.map(drop)
}

/// Makes a call, after [`prepare`], and interrupts it every `period`, so that a call that blocks
/// fails with EINTR. A call that does not block is not affected.
pub fn within<T>(period: Duration, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let alarm = SigSet::from(Signal::SIGALRM);
    tick(period)?;
    alarm.thread_unblock()?;
    let result = call();
    alarm.thread_block()?;
    tick(Duration::ZERO)?;
    result
}

/// Has the kernel send SIGALRM to this process every `period`; zero stops it.
fn tick(period: Duration) -> Result<()> {
    let period = libc::timeval {
        tv_sec: period.as_secs().try_into().map_err(|_| Errno::EINVAL)?,
        tv_usec: period.subsec_micros().into(),
    };
    let timer = libc::itimerval { it_interval: period, it_value: period };
    // SAFETY: `timer` outlives the call, and the null pointer means that the old value is not
    // wanted.
    Errno::result(unsafe {
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut())
    })
    .map(drop)
}
