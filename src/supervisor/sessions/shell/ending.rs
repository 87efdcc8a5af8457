//! The end of a shell, and of the call that ran in it.

use std::time::{Duration, Instant};

use super::current::CurrentCall;
use super::{Shell, ShellEvent};
use crate::cells::cell_life::CellEnd;
use crate::cells::dying::{self, TurnBudget};
use crate::sessions::cpu_time::CpuTime;
use crate::sessions::mailbox::Mailbox;
use cell::Shared;
use model::outcome::{Ended, Outcome, ShellAfter, Timings, Usage};
use model::wire::CallId;
use sys::process::Used;

impl Shell {
    /// Returns the usage of one call: the difference to all before it.
    pub(super) fn usage(&mut self, total: CpuTime, largest: u64, wall: Duration) -> Usage {
        let used = total.since(std::mem::replace(&mut self.used, total));
        let (peak_memory, peak_source) = self.life.cell.peak_memory(largest);
        Usage { wall, user: used.user, system: used.system, peak_memory, peak_source }
    }

    /// Reaps the cell's init if it has ended.
    pub(crate) fn collect(&mut self, mailbox: &mut Mailbox) -> ShellEvent {
        let Some(used) = self.life.cell.collect() else { return ShellEvent::None };
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
        if !self.life.is_dead(shared, now, budget) {
            return Vec::new();
        }
        let mut ends = self.last_ends(mailbox, Used::default());
        if self.life.lists_kept_changes() {
            for (_, ended) in ends.iter_mut().filter(|(_, ended)| ended.files_changed.is_some()) {
                ended.files_changed = dying::incomplete(ended.files_changed.take());
            }
        }
        ends
    }

    /// Returns the ends of the running calls: as reported, else as the supervisor knows them.
    fn last_ends(&mut self, mailbox: &mut Mailbox, used: Used) -> Vec<(CallId, Box<Ended>)> {
        self.life.death_check.end();
        if self.current.is_none() && self.jobs.is_empty() {
            return Vec::new();
        }
        let last = self.life.end(used);
        let mut ends = self.jobs.end_all(&last.outcome, mailbox);
        ends.extend(self.last_end(last, mailbox));
        ends
    }

    /// Returns the end of the call in the shell, if one runs.
    fn last_end(&mut self, cell: CellEnd, mailbox: &mut Mailbox) -> Option<(CallId, Box<Ended>)> {
        let CellEnd { exec_failure, outcome, counts, denials, .. } = cell;
        let current = self.current.take()?;
        let CurrentCall { call, pending, reported, stopped, started, timings, force, .. } = current;
        mailbox.clear_up(pending);
        let reported = reported.map(|reported| Outcome::Exited { code: reported.status });
        let failed = exec_failure.map(Outcome::Failed);
        let outcome = failed.or(stopped).or(reported).unwrap_or(outcome);
        let wall = started.elapsed();
        let usage = self.usage(CpuTime::counted(&counts), counts.max_rss, wall);
        let timings = Timings { run: wall, ..timings };
        let shell = ShellAfter::Ended;
        let ended = Ended {
            usage,
            denials,
            timings,
            shell,
            force,
            files_changed: self.life.files_changed(),
            network: self.life.unreached(),
            full: counts.full,
            ..Ended::new(outcome)
        };
        Some((call, Box::new(ended)))
    }
}
