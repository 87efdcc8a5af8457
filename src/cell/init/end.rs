//! Ends a cell: kills the remaining processes, and adds up the resources that all processes used.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Init;
use sys::Result;
use sys::process::{self, Reaped};

/// Maximum time that init waits for killed processes in order to add up their usage.
const MAX_WAIT: Duration = Duration::from_millis(200);

/// The same for a cell without a pid namespace, where no other process would reap them.
const MAX_DOMAIN_WAIT: Duration = Duration::from_secs(60);

impl Init<'_> {
    /// Ends the remaining processes in the tier where the kernel does not end them with init.
    pub(super) fn end_domain(&mut self) -> Result<()> {
        match self.domain {
            None => Ok(()),
            Some(_) => self.end_within(MAX_DOMAIN_WAIT),
        }
    }

    /// Kills the processes that the payload left behind, and adds up their usage. Waits no longer
    /// than [`MAX_WAIT`]: a process in a slow system call ends late, and the client waits.
    pub(super) fn end_others(&mut self) -> Result<()> {
        self.end_within(MAX_WAIT)
    }

    fn end_within(&mut self, max_wait: Duration) -> Result<()> {
        match kill(Pid::from_raw(-1), Signal::SIGKILL) {
            Ok(()) => {}
            // No process was left.
            Err(Errno::ESRCH) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        let until = Instant::now() + max_wait;
        loop {
            while self.children.read_signal()?.is_some() {}
            loop {
                match process::reap() {
                    Ok(Some(reaped)) => self.add(&reaped),
                    Ok(None) => break,
                    Err(Errno::ECHILD) => return Ok(()),
                    Err(errno) => return Err(errno),
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let timeout =
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO);
            let mut events = [PollFd::new(self.children.as_fd(), PollFlags::POLLIN)];
            ignore_interrupt(poll(&mut events, timeout))?;
        }
    }

    pub(super) fn add(&mut self, reaped: &Reaped) {
        self.user_us += reaped.used.user_us;
        self.system_us += reaped.used.system_us;
        self.max_rss = self.max_rss.max(reaped.used.max_rss);
    }
}

fn ignore_interrupt(result: Result<libc::c_int>) -> Result<()> {
    match result {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
