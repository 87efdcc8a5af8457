//! The end of a shell, and of the call that ran in it.

use std::time::{Duration, Instant};

use super::{Current, Shell, ShellEvent};
use crate::cells::dying;
use crate::cells::exit;
use crate::sessions::cpu_time::CpuTime;
use crate::sessions::mailbox::Mailbox;
use cell::Shared;
use cell::report::{self, FromInit, InitCounters, REPORT_BYTES};
use model::job::ListChanges;
use model::outcome::{
    DeniedCall, Ended, Failure, FilesChanged, LimitKind, Outcome, PeakSource, ShellAfter, Timings,
    Usage,
};
use model::wire::CallId;
use sys::process::Used;
use sys::socket::{self, PacketWait};

impl Shell {
    /// Returns the usage of one call: the difference to all before it.
    pub(super) fn usage(&mut self, total: CpuTime, largest: u64, wall: Duration) -> Usage {
        let used = total.since(std::mem::replace(&mut self.used, total));
        let peak = self.cell.peak_memory();
        Usage {
            wall,
            user: used.user,
            system: used.system,
            peak_memory: peak.unwrap_or(largest),
            peak_source: match peak {
                Some(_) => PeakSource::Cgroup,
                None => PeakSource::LargestProcess,
            },
        }
    }

    /// Takes the changes in the workspace since the command before.
    pub(super) fn files_changed(&mut self) -> Option<FilesChanged> {
        let reported = match self.changes {
            ListChanges::No => None,
            ListChanges::Yes => Some(self.changed.take().unwrap_or(FilesChanged::unknown())),
        };
        reported.filter(|changed| !changed.is_nothing())
    }

    /// The cell's init may have ended.
    pub(crate) fn collect(&mut self, mailbox: &mut Mailbox) -> ShellEvent {
        // ECHILD cannot be: the child is ours and collected once. The cell is gone either way.
        let used = match self.cell.collect() {
            Ok(None) => return ShellEvent::None,
            Ok(Some(used)) => used,
            Err(_) => Used::default(),
        };
        ShellEvent::Gone(self.last_end(mailbox, used))
    }

    /// The end of the call that runs, where the cell takes its time and nothing of it can run any more.
    pub(crate) fn answer_dying(
        &mut self,
        mailbox: &mut Mailbox,
        shared: &Shared,
        now: Instant,
    ) -> Option<(CallId, Box<Ended>)> {
        if !self.look.is_over(&self.cell, shared, now) {
            return None;
        }
        let (call, mut ended) = self.last_end(mailbox, Used::default())?;
        if self.changes == ListChanges::Yes {
            ended.files_changed = dying::incomplete(ended.files_changed);
        }
        Some((call, ended))
    }

    /// The end of the call that runs, if any, as it was reported or else as it is known here.
    fn last_end(&mut self, mailbox: &mut Mailbox, used: Used) -> Option<(CallId, Box<Ended>)> {
        self.look.end();
        self.late_words();
        let current = self.current.take()?;
        let Current { call, pending, reported, stopped, started, timings, force, .. } = current;
        mailbox.clear_up(pending);
        let reported = reported.map(|reported| Outcome::Exited { code: reported.status });
        let (outcome, counts, denials) = self.as_reported(stopped.or(reported), used);
        let wall = started.elapsed();
        let usage = self.usage(CpuTime::of(&counts), counts.max_rss, wall);
        let timings = Timings { run: wall, ..timings };
        let shell = ShellAfter::Ended;
        let files_changed = self.files_changed();
        let ended =
            Ended { usage, denials, timings, shell, force, files_changed, ..Ended::of(outcome) };
        Some((call, Box::new(ended)))
    }

    /// Reads the reports from before the end that may be unread: it came in the same round of events.
    fn late_words(&mut self) {
        self.last_words().unwrap_or_default();
        let mut buffer = [0; REPORT_BYTES];
        while self.end.is_none() {
            let received = socket::receive(&self.cell.control, &mut buffer, PacketWait::No);
            let Some(received) = received.ok().filter(|received| received.bytes > 0) else {
                return;
            };
            let bytes = buffer.get(..received.bytes).unwrap_or_default();
            match postcard::take_from_bytes(bytes) {
                Ok((FromInit::Ended(end), denied)) => {
                    self.end = Some((end, report::denials(denied, end.counts.denied)));
                }
                Ok((FromInit::Changed, changed)) => self.changed = report::changed(changed),
                Ok((
                    FromInit::Failed { .. }
                    | FromInit::Sealed
                    | FromInit::Counted(_)
                    | FromInit::Input { .. },
                    _,
                ))
                | Err(_) => {}
            }
        }
    }

    /// How the call ended that ended with its shell.
    fn as_reported(
        &mut self,
        stopped: Option<Outcome>,
        used: Used,
    ) -> (Outcome, InitCounters, Vec<DeniedCall>) {
        let (end, denials) = match self.end.take() {
            Some((end, denials)) => (Some(end), denials),
            None => (None, Vec::new()),
        };
        let outcome = if let Some(failure) = self.exec.take() {
            Outcome::Failed(failure)
        } else if let Some(stopped) = stopped {
            stopped
        } else if let Some(end) = &end {
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
        (outcome, counts, denials)
    }
}
