//! Mediated calls in one init: the gate, made before the first call or with it.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::Mediation;
use super::handlers::{Handlers, Served};
use sys::notify::{self, Notification};
use sys::{Result, interrupt};

/// The reader of one cell's notifications, which answers mediated calls.
#[derive(Debug)]
pub struct Mediator<'a> {
    mediation: Option<&'a Mediation>,
    /// A procfs that is mounted nowhere, until the gate has it.
    procfs: Option<OwnedFd>,
    handlers: Option<Box<Handlers<'a>>>,
}

impl<'a> Mediator<'a> {
    /// Prepares to answer; where there is a directory of the host, all is made now.
    ///
    /// # Errors
    /// The gate cannot be made.
    pub fn new(mediation: Option<&'a Mediation>, procfs: Option<OwnedFd>) -> Result<Self> {
        let mut mediator = Self { mediation, procfs, handlers: None };
        if let (Some(mediation), true) = (mediation, mediator.procfs.is_some())
            && mediation.has_directory()
        {
            interrupt::prepare()?;
            mediator.make(mediation)?;
        }
        // Without a procfs the payload's probe shows it.
        Ok(mediator)
    }

    /// Lets answers come in step with their callers. Kernels before 6.6 have it not: then they take longer.
    pub fn meet(&self, listener: impl AsFd) {
        if self.handlers.is_some() {
            notify::wake_in_step(listener);
        }
    }

    /// Serves a call and answers it, unless it is none of the guard's.
    ///
    /// # Errors
    /// The listener does not take the answer.
    pub fn serve(&mut self, listener: impl AsFd, call: Notification) -> Result<Served> {
        let Some(mediation) = self.mediation.filter(|mediation| mediation.find(call).is_some())
        else {
            return Ok(Served::NotMediated);
        };
        if self.handlers.is_none() {
            // If the handlers cannot be made, the call is refused; the cell goes on.
            if let Err(errno) = self.make(mediation) {
                notify::refuse(listener, call, errno)?;
                return Ok(Served::Answered);
            }
            self.meet(&listener);
        }
        match &mut self.handlers {
            Some(handlers) => handlers.serve(listener, call),
            None => Ok(Served::NotMediated),
        }
    }

    /// Tries again what waits for the other end of a FIFO.
    pub fn retry(&mut self, listener: impl AsFd) -> Result<()> {
        self.handlers.as_mut().map_or(Ok(()), |handlers| handlers.retry(listener))
    }

    /// Returns whether a caller waits for somebody else.
    pub fn has_waiting(&self) -> bool {
        self.handlers.as_ref().is_some_and(|handlers| !handlers.pending_calls.is_empty())
    }

    fn make(&mut self, mediation: &'a Mediation) -> Result<()> {
        let proc = match self.procfs.take() {
            Some(proc) => proc,
            // A cell with a directory of the host has one of its own, which is mounted nowhere.
            None if mediation.has_directory() => return Err(Errno::EPERM),
            None => {
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                open(c"/proc", flags, Mode::empty())?
            }
        };
        self.handlers = Some(Handlers::new(mediation, proc)?);
        Ok(())
    }
}
