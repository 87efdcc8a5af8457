//! The end of a shell, and of the call that ran in it.

use std::time::{Duration, Instant};

use super::{Current, Shell, ShellEvent};
use crate::cells::dying::{self, TurnBudget};
use crate::cells::exit;
use crate::sessions::cpu_time::CpuTime;
use crate::sessions::mailbox::Mailbox;
use cell::Shared;
use cell::report::{self, FromInit, InitCounters, REPORT_BYTES};
use model::job::ListChanges;
use model::outcome::{
    DeniedCall, Ended, Failure, FilesChanged, LimitKind, Outcome, ShellAfter, Timings, Usage,
};
use model::wire::CallId;
use sys::process::Used;
use sys::socket::{self, PacketWait};

/// The end of a shell's cell that was not requested.
struct CellEnd {
    outcome: Outcome,
    counts: InitCounters,
    denials: Vec<DeniedCall>,
}

impl Shell {
    /// Returns the usage of one call: the difference to all before it.
    pub(super) fn usage(&mut self, total: CpuTime, largest: u64, wall: Duration) -> Usage {
        let used = total.since(std::mem::replace(&mut self.used, total));
        let (peak_memory, peak_source) = self.cell.peak_memory(largest);
        Usage { wall, user: used.user, system: used.system, peak_memory, peak_source }
    }

    /// Takes the changes in the workspace since the command before.
    pub(super) fn files_changed(&mut self) -> Option<FilesChanged> {
        let reported = match self.changes {
            ListChanges::No => None,
            ListChanges::Yes => Some(self.changed.take().unwrap_or(FilesChanged::unknown())),
        };
        reported.filter(|changed| !changed.is_nothing())
    }

    /// Reaps the cell's init if it has ended.
    pub(crate) fn collect(&mut self, mailbox: &mut Mailbox) -> ShellEvent {
        let Some(used) = self.cell.collect() else { return ShellEvent::None };
        ShellEvent::Gone(self.last_ends(mailbox, used))
    }

    /// Returns the ends of the running calls if the cell is slow to end but none of its processes can run any more.
    pub(crate) fn answer_dying(
        &mut self,
        mailbox: &mut Mailbox,
        shared: &Shared,
        now: Instant,
        budget: TurnBudget,
    ) -> Vec<(CallId, Box<Ended>)> {
        if !self.look.is_over(&self.cell, shared, now, budget) {
            return Vec::new();
        }
        let mut ends = self.last_ends(mailbox, Used::default());
        if self.changes == ListChanges::Yes {
            for (_, ended) in ends.iter_mut().filter(|(_, ended)| ended.files_changed.is_some()) {
                ended.files_changed = dying::incomplete(ended.files_changed.take());
            }
        }
        ends
    }

    /// Returns the ends of the running calls: as reported, else as the supervisor knows them.
    fn last_ends(&mut self, mailbox: &mut Mailbox, used: Used) -> Vec<(CallId, Box<Ended>)> {
        self.look.end();
        self.late_words();
        if self.current.is_none() && self.jobs.is_empty() {
            return Vec::new();
        }
        let last = self.of_cell(used);
        let mut ends = self.last_jobs(&last.outcome, mailbox);
        ends.extend(self.last_end(last, mailbox));
        ends
    }

    /// Returns the end of the call in the shell, if one runs.
    fn last_end(&mut self, cell: CellEnd, mailbox: &mut Mailbox) -> Option<(CallId, Box<Ended>)> {
        let CellEnd { outcome, counts, denials } = cell;
        let current = self.current.take()?;
        let Current { call, pending, reported, stopped, started, timings, force, .. } = current;
        mailbox.clear_up(pending);
        let reported = reported.map(|reported| Outcome::Exited { code: reported.status });
        let failed = self.exec.take().map(Outcome::Failed);
        let outcome = failed.or(stopped).or(reported).unwrap_or(outcome);
        let wall = started.elapsed();
        let usage = self.usage(CpuTime::of(&counts), counts.max_rss, wall);
        let timings = Timings { run: wall, ..timings };
        let shell = ShellAfter::Ended;
        let files_changed = self.files_changed();
        let ended =
            Ended { usage, denials, timings, shell, force, files_changed, ..Ended::new(outcome) };
        Some((call, Box::new(ended)))
    }

    /// Reads the reports that were sent before the cell ended and may be unread, as both events came in the same poll.
    fn late_words(&mut self) {
        // Without a message the shell was executed.
        self.read_exec_failure().unwrap_or_default();
        let mut buffer = [0; REPORT_BYTES];
        while self.end.is_none() {
            let received = socket::receive(&self.cell.control, &mut buffer, PacketWait::No);
            let Some(received) = received.ok().filter(|received| received.bytes > 0) else {
                return;
            };
            let bytes = buffer.get(..received.bytes).unwrap_or_default();
            match postcard::take_from_bytes(bytes) {
                Ok((FromInit::Ended(end), rest)) => self.take_end(end, rest),
                Ok((FromInit::Counted(counts), rest)) => {
                    self.changed = report::appended(rest, counts.denied).1;
                }
                Ok((
                    FromInit::Failed { .. }
                    | FromInit::Sealed
                    | FromInit::Network
                    | FromInit::Shown { .. }
                    | FromInit::Confirmed { .. }
                    | FromInit::JobEnded(_)
                    | FromInit::Input { .. },
                    _,
                ))
                | Err(_) => {}
            }
        }
    }

    /// Returns how the cell ended.
    fn of_cell(&mut self, used: Used) -> CellEnd {
        let (end, denials) = match self.end.take() {
            Some((end, denials)) => (Some(end), denials),
            None => (None, Vec::new()),
        };
        let outcome = if let Some(end) = &end {
            exit::of_program(end, &self.limits, &self.cell)
        } else if self.cell.ran_out_of_memory() {
            Outcome::Limit(LimitKind::Memory)
        } else {
            Outcome::Failed(Failure::Lost)
        };
        let counts = end.map_or_else(
            || InitCounters {
                user_us: used.user_us,
                system_us: used.system_us,
                max_rss: used.max_rss,
                denied: 0,
            },
            |end| end.counts,
        );
        CellEnd { outcome, counts, denials }
    }
}
