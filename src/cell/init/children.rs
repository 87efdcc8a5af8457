//! The processes whose parent is init: reaps them, ends the remaining ones, and adds up the resources
//! that they used.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::timeout_until;
use sys::Result;
use sys::process::{self, Reaped, Used};

#[derive(Debug)]
pub(super) struct Children {
    /// Readable after a child has ended.
    pub signals: SignalFd,
    /// True if more children may have ended than one turn reaps.
    pub has_unreaped: bool,
    /// Sum over all reaped processes.
    pub used: Used,
}

impl Children {
    /// Blocks SIGCHLD, and receives it through a descriptor.
    pub(super) fn new() -> Result<Self> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { signals, has_unreaped: false, used: Used::default() })
    }

    /// Reads the signals of all children that have ended so far, so that they can be reaped.
    pub(super) fn clear_signals(&mut self) -> Result<()> {
        while self.signals.read_signal()?.is_some() {}
        self.has_unreaped = true;
        Ok(())
    }

    /// Reaps a child, and adds its usage. Returns `None` if no other child has ended.
    pub(super) fn reap(&mut self) -> Result<Option<Reaped>> {
        match process::reap() {
            Ok(Some(reaped)) => {
                self.add(&reaped);
                Ok(Some(reaped))
            }
            Ok(None) | Err(Errno::ECHILD) => {
                self.has_unreaped = false;
                Ok(None)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Kills all other processes of the cell, and reaps those that end within `max_wait`.
    pub(super) fn end_within(&mut self, max_wait: Duration) -> Result<()> {
        match kill(Pid::from_raw(-1), Signal::SIGKILL) {
            Ok(()) => {}
            // No process was left.
            Err(Errno::ESRCH) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        let until = Instant::now() + max_wait;
        loop {
            while self.signals.read_signal()?.is_some() {}
            loop {
                match process::reap() {
                    Ok(Some(reaped)) => self.add(&reaped),
                    Ok(None) => break,
                    Err(Errno::ECHILD) => return Ok(()),
                    Err(errno) => return Err(errno),
                }
            }
            if until <= Instant::now() {
                return Ok(());
            }
            let mut events = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            match poll(&mut events, timeout_until(until)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn add(&mut self, reaped: &Reaped) {
        self.used.user_us += reaped.used.user_us;
        self.used.system_us += reaped.used.system_us;
        self.used.max_rss = self.used.max_rss.max(reaped.used.max_rss);
    }
}
