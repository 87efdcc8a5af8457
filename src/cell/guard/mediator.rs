//! Mediated calls in one init: the gate, made before the first call or with it.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::Guard;
use super::gate::{Gate, Served};
use sys::notify::{self, Notification};
use sys::{Result, interrupt};

/// What answers the mediated calls of a cell.
#[derive(Debug)]
pub struct Mediator<'a> {
    guard: Option<&'a Guard>,
    /// A procfs that is mounted nowhere, until the gate has it.
    procfs: Option<OwnedFd>,
    gate: Option<Box<Gate<'a>>>,
}

impl<'a> Mediator<'a> {
    /// Prepares to answer; where there is a directory of the host, all is made now.
    ///
    /// # Errors
    /// The gate cannot be made.
    pub fn new(guard: Option<&'a Guard>, procfs: Option<OwnedFd>) -> Result<Self> {
        let mut mediator = Self { guard, procfs, gate: None };
        if let (Some(guard), true) = (guard, mediator.procfs.is_some())
            && guard.has_directory()
        {
            interrupt::prepare()?;
            mediator.make(guard)?;
        }
        // Without a procfs the payload's probe shows it.
        Ok(mediator)
    }

    /// Lets answers come in step with their callers. Kernels before 6.6 have it not: then they take longer.
    pub fn meet(&self, listener: impl AsFd) {
        if self.gate.is_some() {
            notify::wake_in_step(listener);
        }
    }

    /// Serves a call and answers it, unless it is none of the guard's.
    ///
    /// # Errors
    /// The listener does not take the answer.
    pub fn serve(&mut self, listener: impl AsFd, call: Notification) -> Result<Served> {
        let Some(guard) = self.guard.filter(|guard| guard.watched(call).is_some()) else {
            return Ok(Served::NotMine);
        };
        if self.gate.is_none() {
            // What keeps the gate from being made refuses the call, and ends nothing.
            if let Err(errno) = self.make(guard) {
                notify::refuse(listener, call, errno)?;
                return Ok(Served::Answered);
            }
            self.meet(&listener);
        }
        match &mut self.gate {
            Some(gate) => gate.serve(listener, call),
            None => Ok(Served::NotMine),
        }
    }

    /// Tries again what waits for the other end of a FIFO.
    pub fn retry(&mut self, listener: impl AsFd) -> Result<()> {
        self.gate.as_mut().map_or(Ok(()), |gate| gate.retry(listener))
    }

    /// Returns whether a caller waits for somebody else.
    pub fn has_waiting(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| !gate.waiting.is_empty())
    }

    fn make(&mut self, guard: &'a Guard) -> Result<()> {
        let proc = match self.procfs.take() {
            Some(proc) => proc,
            // A cell with a directory of the host has one of its own, which is mounted nowhere.
            None if guard.has_directory() => return Err(Errno::EPERM),
            None => {
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                open(c"/proc", flags, Mode::empty())?
            }
        };
        self.gate = Some(Gate::new(guard, proc)?);
        Ok(())
    }
}
