//! The call that runs in a session's shell, and the looks of init at the shell for its end.

use std::time::{Duration, Instant};

use super::input_query::InputQuery;
use crate::cells::cell::Cell;
use crate::cells::streams::FarEnds;
use crate::sessions::loops::{self, STARTED};
use crate::sessions::mailbox::PendingCall;
use cell::report::{InitCounters, ShellLook, Ticks, ToInit};
use model::outcome::{DeniedCall, Force, Outcome, Timings};
use model::wire::{CallId, StdinKind};

/// The call that runs.
#[derive(Debug)]
pub(super) struct CurrentCall {
    pub call: CallId,
    pub pending: PendingCall,
    /// Bytes of the report of a background call that is not complete yet.
    report: Vec<u8>,
    /// Bytes of its report that were read: each rings for a look at the shell.
    pub rings: usize,
    /// Its end, once the shell shows it.
    pub reported: Option<ShownEnd>,
    looking: Looking,
    /// Counters at its end, while init confirms that it has sent an interrupt.
    pub counted: Option<(InitCounters, Vec<DeniedCall>)>,
    /// Time until its end was shown; the scan of init after that is not the command's time.
    pub took: Option<Duration>,
    /// Why the supervisor ends it; it outweighs what the shell says.
    pub stopped: Option<Outcome>,
    /// True if the shell was sent an INT for it.
    pub is_interrupted: bool,
    pub input_query: InputQuery,
    pub force: Force,
    /// When it began, in the unit of its processes' start times.
    pub began: Ticks,
    pub started: Instant,
    pub timings: Timings,
    /// Present until a background call runs in its copy of the shell.
    pub leaving: Option<Leaving>,
}

/// A background call before its process is known.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Number of the call in its shell.
    pub turn: u64,
    pub ends: FarEnds,
    pub stdin: StdinKind,
}

/// The end of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShownEnd {
    pub status: u8,
    /// The shell's directory, as the kernel has it.
    pub cwd: String,
}

/// The look of init at the shell while a call runs. Init has at most one order to look, so that rings cannot fill
/// its socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Looking {
    #[default]
    No,
    /// Init has been sent the order.
    Sent,
    /// Something rang since then: init looks once more.
    Again,
}

impl CurrentCall {
    /// Begins with a call that was delivered to the shell.
    pub(super) fn new(
        call: CallId,
        pending: PendingCall,
        began: Ticks,
        started: Instant,
        timings: Timings,
        leaving: Option<Leaving>,
    ) -> Self {
        Self {
            call,
            pending,
            report: Vec::new(),
            rings: 0,
            reported: None,
            looking: Looking::default(),
            counted: None,
            took: None,
            stopped: None,
            is_interrupted: false,
            input_query: InputQuery::default(),
            force: Force::None,
            began,
            started,
            timings,
            leaving,
        }
    }

    /// Asks init to look at the shell for this call.
    pub(super) fn look_at_shell(&mut self, cell: &Cell) {
        if self.looking != Looking::No {
            self.looking = Looking::Again;
            return;
        }
        self.looking = Looking::Sent;
        let pending = &self.pending;
        let look =
            ShellLook { number: pending.number, marks: pending.marks, input: pending.input_file };
        // If init is gone, its pidfd reports that.
        if let Err(errno) = cell.send(&ToInit::LookAtShell(look)) {
            tracing::debug!(%errno, "a session's cell could not be asked");
        }
    }

    /// Notes that init has looked. Returns whether it is to look once more if the call still runs.
    pub(super) fn looked(&mut self) -> bool {
        std::mem::take(&mut self.looking) == Looking::Again
    }

    /// Returns the number of the process in which a background call runs, if its report is complete.
    pub(super) fn copy_started(&mut self, read: &[u8]) -> Option<u32> {
        self.leaving.as_ref()?;
        self.report.extend_from_slice(read);
        // After bytes that another process may have written.
        let begins = self.report.iter().rposition(|byte| char::from(*byte) == STARTED)?;
        let started = loops::started(self.report.get(begins..)?);
        if self.report.ends_with(&[0]) {
            self.report.clear();
        }
        started
    }
}
