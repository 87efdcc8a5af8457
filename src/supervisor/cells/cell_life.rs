//! The life of a cell that has a program, from the hand-over to its end: what the payload and init report, the
//! limits that end it, and what is known of it afterwards. One-shot calls and shells of sessions share it.

use std::net::SocketAddr;
use std::time::Instant;

use nix::errno::Errno;

use super::cell::{Cell, CellSocket};
use super::dying::{DeathCheck, TurnBudget};
use super::exit::{self, LINGER};
use cell::Shared;
use cell::report::{
    self, Appended, FromInit, InitCounters, PayloadEnd, REPORT_BYTES, UnreachedHost,
};
use model::egress::{Denied, HostPattern, Protocol, Tally, grant, never};
use model::job::{Limits, ListChanges, Workspace};
use model::outcome::{DeniedCall, Failure, FilesChanged, LimitKind, Outcome, PeakSource};
use model::wire::Block;
use sys::process::Used;
use sys::socket::{self, PacketWait};

/// Port of the grant for a name: a question has no port.
const HTTPS: u16 = 443;
/// Reason for which a host is not reached from a cell that has only its loopback.
const NO_NETWORK: &str = "the cell has no network";

/// A cell with a program.
#[derive(Debug)]
pub(crate) struct CellLife {
    pub cell: Cell,
    pub limits: Limits,
    /// The program that the payload was given.
    block: Block,
    changes: ListChanges,
    pub workspace: Workspace,
    /// True once the cell was killed, or init has reported the program's end.
    is_ending: bool,
    /// When the time of the program, or of its end, is over.
    pub deadline: Option<Instant>,
    /// Schedule of checks whether callers can be answered before the cell is reaped.
    pub death_check: DeathCheck,
    /// Why the program could not start.
    exec_failure: Option<Failure>,
    /// The end as init reported it, with what was known of the cell then.
    end: Option<CellEnd>,
    /// The last list of changes from init.
    changed: Option<FilesChanged>,
    /// The last list of hosts that were not reached, from init.
    unreached: Vec<UnreachedHost>,
}

/// A limit that a cell has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassedLimit {
    /// Its programs make no progress for lack of memory.
    Memory,
    /// Its deadline.
    Time,
}

/// How a cell ended.
#[derive(Debug)]
pub(crate) struct CellEnd {
    /// Why the program could not start.
    pub exec_failure: Option<Failure>,
    pub outcome: Outcome,
    pub counts: InitCounters,
    /// Peak memory in bytes, and how it was counted.
    pub peak: (u64, PeakSource),
    pub denials: Vec<DeniedCall>,
}

impl CellLife {
    /// Begins with the hand-over of a program.
    pub(crate) fn new(
        cell: Cell,
        block: Block,
        limits: Limits,
        changes: ListChanges,
        workspace: Workspace,
    ) -> Self {
        Self {
            cell,
            limits,
            block,
            changes,
            workspace,
            is_ending: false,
            deadline: None,
            death_check: DeathCheck::default(),
            exec_failure: None,
            end: None,
            changed: None,
            unreached: Vec::new(),
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Returns whether the workspace outlives the cell.
    pub(crate) fn keeps_workspace(&self) -> bool {
        self.workspace != Workspace::Fresh
    }

    /// Returns whether changes are listed in a workspace that outlives the cell.
    pub(crate) fn lists_kept_changes(&self) -> bool {
        self.keeps_workspace() && self.changes == ListChanges::Yes
    }

    /// Returns the soonest instant at which something is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let crawl = self.cell.crawl.at().filter(|_| !self.is_ending);
        [self.deadline, self.death_check.at(), crawl].into_iter().flatten().min()
    }

    /// Returns the limit that the cell has passed, if any.
    pub(crate) fn passed_limit(&mut self, now: Instant) -> Option<PassedLimit> {
        if !self.is_ending && self.cell.crawls(now) {
            return Some(PassedLimit::Memory);
        }
        let is_due = self.deadline.is_some_and(|deadline| deadline <= now);
        is_due.then_some(PassedLimit::Time)
    }

    /// Kills the cell, and again at its next deadline if it is still there then.
    pub(crate) fn kill(&mut self, now: Instant) {
        self.is_ending = true;
        self.deadline = Some(now + LINGER);
        self.cell.kill();
    }

    /// Returns true if a check is due and shows that no process of the cell can run any more.
    pub(crate) fn is_dead(&mut self, shared: &Shared, now: Instant, budget: TurnBudget) -> bool {
        self.death_check.is_over(&self.cell, shared, now, budget)
    }

    /// Reads a message of the payload. Returns true if its socket is closed: the program was executed, or has ended.
    pub(crate) fn read_job(&mut self) -> bool {
        match self.read_exec_failure() {
            Ok(()) => false,
            Err(errno) if is_passing(errno) => false,
            Err(_) => {
                self.cell.stop_listening(CellSocket::Job);
                true
            }
        }
    }

    /// Reads a message that the payload may have sent about its exec.
    fn read_exec_failure(&mut self) -> Result<(), Errno> {
        let Block { argv, cwd, .. } = &self.block;
        let failure = exit::read_failure(&self.cell, argv.program(), cwd)?;
        self.exec_failure = failure.or(self.exec_failure.take());
        Ok(())
    }

    /// Reads a message of init into `buffer`, which fits the longest report. Returns it with the rest of its
    /// packet.
    pub(crate) fn receive<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Option<(FromInit, &'b [u8])> {
        if !self.read_packet(buffer) {
            return None;
        }
        let message = self.take_message(buffer)?;
        if let (FromInit::Ended(_), _) = message {
            // Without a message the program was executed.
            self.read_exec_failure().unwrap_or_default();
            let now = Instant::now();
            self.is_ending = true;
            self.deadline = Some(now + LINGER);
            self.death_check.begin(now);
            self.cell.stop_listening(CellSocket::Control);
        }
        Some(message)
    }

    /// Reads a packet of init. Returns false if there is none.
    fn read_packet(&mut self, buffer: &mut Vec<u8>) -> bool {
        match socket::receive_into(&self.cell.control, buffer, PacketWait::No) {
            Ok(received) if received.bytes > 0 => true,
            Err(errno) if is_passing(errno) => false,
            // The pidfd reports the end.
            Ok(_) | Err(_) => {
                self.cell.stop_listening(CellSocket::Control);
                false
            }
        }
    }

    /// Takes what a message of init says about the cell as a whole, and returns it.
    fn take_message<'b>(&mut self, packet: &'b [u8]) -> Option<(FromInit, &'b [u8])> {
        let (message, rest) = postcard::take_from_bytes::<FromInit>(packet).ok()?;
        match message {
            FromInit::Failed { step, errno } => {
                self.exec_failure = Some(Failure::Setup { step: step.name().to_owned(), errno });
            }
            FromInit::Ended(end) => self.take_end(end, rest),
            FromInit::Counted(counts) => {
                let Appended { unreached, changed, .. } = report::appended(rest, counts.denied);
                self.unreached = unreached;
                self.changed = changed;
            }
            // A running cell sends neither of the first two: its end will show what is wrong.
            FromInit::Sealed
            | FromInit::Network
            | FromInit::Shown { .. }
            | FromInit::Confirmed { .. }
            | FromInit::Input { .. }
            | FromInit::JobEnded(_) => {}
        }
        Some((message, rest))
    }

    /// Takes the end of the program as init reported it. What processes do that it left behind no longer counts.
    fn take_end(&mut self, end: PayloadEnd, rest: &[u8]) {
        let Appended { denials, unreached, changed } = report::appended(rest, end.counts.denied);
        self.unreached = unreached;
        let outcome = exit::program_outcome(&end, &self.limits, &self.cell);
        let peak = self.cell.peak_memory(end.counts.max_rss);
        self.end = Some(CellEnd { exec_failure: None, outcome, counts: end.counts, peak, denials });
        self.changed = changed.or(self.changed.take());
    }

    /// Takes the changes in the workspace since the last list, as init reported them. If they were not reported, a
    /// workspace that ended with its cell had no changes.
    pub(crate) fn files_changed(&mut self) -> Option<FilesChanged> {
        let reported = self.changed.take();
        match (self.changes, self.keeps_workspace()) {
            (ListChanges::No, _) => None,
            (ListChanges::Yes, false) => reported,
            (ListChanges::Yes, true) => Some(reported.unwrap_or(FilesChanged::unknown())),
        }
        .filter(|changed| !changed.is_nothing())
    }

    /// Takes the hosts that were not reached since the last list, as denials of a network. Empty in a cell with egress,
    /// where the gateway counts them. A host is text of the cell: one that no rule can have is
    /// left out.
    pub(crate) fn unreached(&mut self) -> Option<Tally> {
        let hosts = std::mem::take(&mut self.unreached).into_iter();
        let denied = hosts.filter_map(|UnreachedHost { to, count }| {
            let grant = match to.parse::<SocketAddr>() {
                Ok(to) if never::never(to.ip()).is_some() => return None,
                Ok(to) => grant(&to.ip().to_string(), Protocol::Tcp, Some(to.port())),
                Err(_) => {
                    grant(to.parse::<HostPattern>().ok()?.exact()?, Protocol::Tcp, Some(HTTPS))
                }
            };
            let why = NO_NETWORK.to_owned();
            Some(Denied { to, why, count: count.into(), grant: Some(grant) })
        });
        let denied: Vec<Denied> = denied.collect();
        (!denied.is_empty()).then(|| Tally { denied, ..Tally::default() })
    }

    /// Returns how the cell ended: as init reported it, else as the supervisor knows it. `used` is the kernel's account
    /// of init, which includes all children that init has waited for, even if it was killed.
    pub(crate) fn end(&mut self, used: Used) -> CellEnd {
        self.read_last_reports();
        let exec_failure = self.exec_failure.take();
        if let Some(end) = self.end.take() {
            return CellEnd { exec_failure, ..end };
        }
        let outcome = match self.cell.ran_out_of_memory() {
            true => Outcome::Limit(LimitKind::Memory),
            false => Outcome::Failed(Failure::Lost),
        };
        let Used { user_us, system_us, max_rss } = used;
        let counts = InitCounters { user_us, system_us, max_rss, ..InitCounters::default() };
        let peak = self.cell.peak_memory(max_rss);
        CellEnd { exec_failure, outcome, counts, peak, denials: Vec::new() }
    }

    /// Reads the reports that were sent before the cell ended and may be unread, as both events came in the same
    /// poll.
    fn read_last_reports(&mut self) {
        if self.end.is_some() {
            return;
        }
        self.read_exec_failure().unwrap_or_default();
        let mut buffer = Vec::with_capacity(REPORT_BYTES);
        while self.end.is_none() && self.read_packet(&mut buffer) {
            self.take_message(&buffer);
        }
    }
}

/// Returns true if a packet that could not be read may be there in the next turn.
fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::EAGAIN | Errno::EINTR | Errno::ENOMEM | Errno::ENOBUFS)
}
