//! An end to system calls that wait: a timer's signal interrupts them (setitimer(2), signal(7)).
//!
//! For calls that take no timeout and whose O_NONBLOCK somebody else can take away at any moment.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::Result;

/// Does nothing: that it is there makes the kernel interrupt what waits, without starting it again.
extern "C" fn nothing(_: libc::c_int) {}

/// Makes SIGALRM of this process an interruption, and blocks it until [`within`] waits for it.
/// Whoever else sends it changes nothing then.
pub fn prepare() -> Result<()> {
    SigSet::from(Signal::SIGALRM).thread_block()?;
    let handler = SigHandler::Handler(nothing);
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler touches nothing, so it may run wherever the process is.
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
