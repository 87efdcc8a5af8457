//! Files of a template that a separate process makes while the first cell is built.
//!
//! They are many, and only cells need them: a start does not wait for them. The template's
//! filesystem is the same for all cells, so files appear in a cell that exists already. Its job
//! waits until they are complete.

use std::cell::RefCell;
use std::fmt::{Debug, Formatter};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::Signal;

use sys::process::{self, Child, Side};

/// Time after which the process is killed and jobs do without the missing files: the host's
/// filesystem may not answer.
const MAX_TIME: Duration = Duration::from_secs(2);

/// The work of the process. It holds the descriptors that it needs and closes all others.
pub type Work = Box<dyn FnOnce() -> Result<(), Errno>>;

/// The late files of a template.
pub struct LateFiles {
    state: RefCell<State>,
}

enum State {
    Due(Work),
    Begun { process: Rc<Child>, deadline: Instant },
    Complete,
}

impl LateFiles {
    pub fn new(work: Work) -> Self {
        Self { state: RefCell::new(State::Due(work)) }
    }

    /// Returns the state of a template without late files.
    pub fn none() -> Self {
        Self { state: RefCell::new(State::Complete) }
    }

    /// Starts the process for the first cell. Returns true if jobs must wait from now on.
    pub fn begin(&self, now: Instant) -> bool {
        if !matches!(*self.state.borrow(), State::Due(_)) {
            return false;
        }
        let State::Due(work) = self.state.replace(State::Complete) else { return false };
        match process::clone3(0, None) {
            Ok(Side::Child) => process::exit_now(i32::from(work().is_err())),
            Ok(Side::Parent(child)) => {
                let deadline = now + MAX_TIME;
                self.state.replace(State::Begun { process: Rc::new(child), deadline });
                true
            }
            Err(errno) => {
                tracing::warn!(%errno, "unchanged files of packages are not in /etc of cells");
                false
            }
        }
    }

    /// Returns true if no job has to wait, and reaps the process when it has ended.
    ///
    /// # Errors
    /// The errno of waitid(2) or pidfd_send_signal(2).
    pub fn are_complete(&self, now: Instant) -> Result<bool, Errno> {
        let mut state = self.state.borrow_mut();
        let State::Begun { process, deadline } = &*state else { return Ok(true) };
        match process::collect(&process.pidfd)? {
            Some(ended) if !ended.is_success => {
                tracing::warn!("some unchanged files of packages are not in /etc of cells");
            }
            Some(_) => {}
            None if now < *deadline => return Ok(false),
            None => {
                process::signal(&process.pidfd, Signal::SIGKILL)?;
                process::wait(process.pidfd.as_fd())?;
                tracing::warn!("reading /etc took too long: some files are not in cells");
            }
        }
        *state = State::Complete;
        Ok(true)
    }

    /// Returns the process while it runs, and when it is given up.
    pub fn process(&self) -> Option<(Rc<Child>, Instant)> {
        match &*self.state.borrow() {
            State::Begun { process, deadline } => Some((Rc::clone(process), *deadline)),
            State::Due(_) | State::Complete => None,
        }
    }
}

impl Debug for LateFiles {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        let state = match &*self.state.borrow() {
            State::Due(_) => "due",
            State::Begun { .. } => "begun",
            State::Complete => "complete",
        };
        formatter.debug_tuple("LateFiles").field(&state).finish()
    }
}
