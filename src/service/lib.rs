//! Tools that an agent can call, and the one path by which each call runs: decided by policy,
//! queued, started in a cell, captured, reported.

#![deny(unreachable_pub)]

pub mod apart;
pub mod audit;
pub mod calculate;
pub mod capture;
pub mod cli;
pub mod client;
mod client_terms;
pub mod denied;
pub mod executor;
pub mod fair;
pub mod files;
pub mod history;
pub mod host_programs;
pub mod inspect;
pub mod layer;
pub mod link;
pub mod macros;
pub mod met_limits;
#[cfg(test)]
#[path = "../../tests/support/patience.rs"]
mod patience;
pub mod projects;
mod queue;
pub mod refused;
pub mod report;
pub mod request;
pub mod rules;
pub mod session;
pub mod shell;
mod watch;
mod workbench;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use audit::Unrecorded;
use capture::tap::Tap;
use capture::{Captured, Produced};
use config::policy::{Denial, Grant};
use model::call::{Call, Correlation};
use model::job::Limits;
use model::outcome::{Ended, Failure};
use model::receipt::Receipt;

pub use executor::{Executor, Scope, Setup};
use report::Clamped;

/// The waiting side of a call: its means to cancel the call, and to count and read output
/// meanwhile.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// Tripped when the client cancels the call, or the server ends.
    pub cancel: CancellationToken,
    /// Counter of output bytes, updated as they arrive.
    pub produced: Produced,
    /// Receiver of a one-shot cell's output as it is printed.
    pub tap: Tap,
    /// Standard input that a script of a project is given while it runs.
    pub feed: Feed,
    /// Name that the client gave its request, for a call without a name.
    pub correlation: Option<Correlation>,
}

impl Caller {
    /// Gives a call the name of its request, unless it has one.
    fn named(&self, call: Call) -> Call {
        match call.correlation {
            Some(_) => call,
            None => Call { correlation: self.correlation.clone(), ..call },
        }
    }
}

/// Input of a running program, taken once by the call that runs it. Clones are the same input.
#[derive(Debug, Clone, Default)]
pub struct Feed(Arc<Mutex<Option<mpsc::Receiver<Vec<u8>>>>>);

impl Feed {
    /// Makes an input of what comes out of `pieces`; it ends with them.
    pub fn new(pieces: mpsc::Receiver<Vec<u8>>) -> Self {
        Self(Arc::new(Mutex::new(Some(pieces))))
    }

    fn take(&self) -> Option<mpsc::Receiver<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Reason why a call was not run at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Denied(#[from] Denial),
    /// The audit log cannot be written, and the operator allows no unrecorded call.
    #[error(transparent)]
    Unrecorded(#[from] Unrecorded),
    /// The server runs and queues as many calls as it may.
    #[error("the queue is full: {running} calls run and {waiting} wait")]
    QueueFull { running: usize, waiting: usize },
    /// The named session cannot take a command.
    #[error(transparent)]
    Session(#[from] session::SessionError),
    /// The named job does not exist.
    #[error(transparent)]
    Job(#[from] session::NoJob),
}

impl Refusal {
    /// Returns true if the call can be made again once another has ended.
    fn is_full_queue(&self) -> bool {
        matches!(self, Self::QueueFull { .. })
    }

    /// Returns the way out, if there is one. That of a denial is in the [`Denial`].
    fn hint(&self) -> Option<String> {
        match self {
            Self::Denied(_) => None,
            Self::Unrecorded(_) => Some(Unrecorded::HINT.to_owned()),
            Self::QueueFull { .. } => Some("call again when one has ended".to_owned()),
            Self::Session(error) => error.hint(),
            Self::Job(error) => Some(error.hint()),
        }
    }

    /// Returns the message and the hint as one text, for the audit log and the result of a declared command.
    fn in_full(&self) -> String {
        match self.hint() {
            Some(hint) => format!("{self}\nhint: {hint}"),
            None => self.to_string(),
        }
    }
}

/// What became of one call, with its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its end, as the supervisor reported it.
    pub ended: Ended,
    /// Absent if no cell was made: the start failed, or the call was cancelled while it waited.
    pub receipt: Option<Receipt>,
    pub stdout: Captured,
    pub stderr: Captured,
    /// Directory in which the program started.
    pub cwd: String,
    /// Limits in force, wall time among them.
    pub limits: Limits,
    /// `Yes` if the call had asked for more time than it got.
    pub clamped: Clamped,
    /// Time from the grant to the end of the output, waiting included.
    pub took: Duration,
}

impl Report {
    /// Makes the report of a granted call of which nothing has run yet.
    fn of(grant: &Grant) -> Self {
        Self {
            ended: Ended::failed(Failure::Supervisor),
            receipt: None,
            stdout: Captured::of(b""),
            stderr: Captured::of(b""),
            cwd: grant.job().cwd.as_str().to_owned(),
            limits: grant.job().limits,
            clamped: if grant.clamped() { Clamped::Yes } else { Clamped::No },
            took: Duration::ZERO,
        }
    }
}
