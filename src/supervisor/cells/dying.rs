//! Answers callers early if a killed cell takes long to end: as soon as every process has a pending
//! SIGKILL.
//!
//! A process with 65,000 mappings needs tens of milliseconds to unmap them, and a cell only ends
//! with its last process. Processes with a pending SIGKILL execute no more instructions of their
//! program. A system call that has begun may still write, so that the reply marks its list of files
//! as incomplete.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cell::Cell;
use cell::Shared;
use cell::dying::{has_kill, is_dying};
use cell::proc_files::{Fields, numbers};
use model::outcome::FilesChanged;
use sys::Result;

/// How long a killed cell may take before its caller is answered without waiting for the end.
/// Together with the grace period, an answer comes within two seconds after the limit.
pub(crate) const MAX_WAIT: Duration = Duration::from_millis(400);
/// Time until the next check if not all processes were dying.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Time that all checks of one turn of the loop may take together. The number of processes is up to
/// the cells, each takes about 15 us, and all other cells wait meanwhile. The next turn continues.
const BUDGET: Duration = Duration::from_millis(5);

/// The deadline for checks in one turn of the loop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnBudget(Option<Instant>);

impl TurnBudget {
    /// Starts the budget of a turn.
    pub(crate) fn begin() -> Self {
        Self(Instant::now().checked_add(BUDGET))
    }

    fn is_used_up(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}

/// Schedule for checking whether the caller of a dying cell can be answered.
#[derive(Debug, Default)]
pub(crate) struct DeathCheck {
    at: Option<Instant>,
    /// True if the previous check found every process dying. A second one is needed because a
    /// process list is not a snapshot: a process forked while it is read appears in the next list.
    found_dying: bool,
    /// A check that was not finished in its turn.
    unfinished: Option<Look>,
}

impl DeathCheck {
    /// Starts with the first kill, or with init's report.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.at.get_or_insert(now + MAX_WAIT);
    }

    /// Stops, as the caller was answered.
    pub(crate) fn end(&mut self) {
        self.at = None;
        self.unfinished = None;
    }

    pub(crate) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Returns true if a check is due and shows that no process of the cell can run any more.
    pub(crate) fn is_over(
        &mut self,
        cell: &Cell,
        shared: &Shared,
        now: Instant,
        budget: TurnBudget,
    ) -> bool {
        if self.at.is_none_or(|at| at > now) || budget.is_used_up() {
            return false;
        }
        let result = cell.init_in(shared).and_then(|init| {
            let look =
                self.unfinished.take().map_or_else(|| Look::begin(&shared.proc, init), Ok)?;
            look.take(&shared.proc, || budget.is_used_up())
        });
        let killed = match result {
            Ok(Progress::Unfinished(look)) => {
                // Still due, so that the next turn continues at once.
                self.unfinished = Some(look);
                return false;
            }
            Ok(Progress::Done(killed)) => killed,
            // A process that cannot be read counts as alive.
            Err(_) => false,
        };
        let is_over = killed && self.found_dying;
        self.found_dying = killed;
        self.at = (!is_over).then(|| now + RETRY_INTERVAL);
        is_over
    }
}

/// Marks a list of changes as incomplete, because processes may still finish a system call.
pub(crate) fn incomplete(changed: Option<FilesChanged>) -> Option<FilesChanged> {
    Some(FilesChanged { is_whole: false, ..changed.unwrap_or(FilesChanged::none()) })
}

/// Checks whether `init` and all its descendants are dying. Orphans of a cell are children of its
/// init.
///
/// A check may take several turns: a process with a pending SIGKILL cannot fork, and one without is
/// found alive.
#[derive(Debug)]
struct Look {
    init: i32,
    /// Processes that are not yet read.
    listed: Vec<i32>,
    parents: BTreeMap<i32, i32>,
    /// Processes without a SIGKILL pending for all their threads.
    alive: Vec<i32>,
}

/// Progress of a check.
#[derive(Debug)]
enum Progress {
    /// Finished: whether all are dying.
    Done(bool),
    Unfinished(Look),
}

impl Look {
    fn begin(proc: &OwnedFd, init: i32) -> Result<Self> {
        let listed = numbers::<i32>(proc, ".")?;
        Ok(Self { init, listed, parents: BTreeMap::new(), alive: Vec::new() })
    }

    /// Continues until the end, or until `enough` returns true.
    fn take(mut self, proc: &OwnedFd, enough: impl Fn() -> bool) -> Result<Progress> {
        while let Some(pid) = self.listed.pop() {
            let status = match Fields::read(proc.as_fd(), &format!("{pid}/status")) {
                Ok(status) => status,
                // Ended meanwhile.
                Err(Errno::ENOENT | Errno::ESRCH) => continue,
                Err(errno) => return Err(errno),
            };
            self.parents.insert(pid, status.get("PPid").parse().map_err(|_| Errno::EPROTO)?);
            // A signal to the whole process stays pending until it is reaped.
            if !has_kill(status.get("ShdPnd"))? {
                self.alive.push(pid);
            }
            if enough() {
                return Ok(Progress::Unfinished(self));
            }
        }
        while let Some(pid) = self.alive.pop() {
            if descends(&self.parents, pid, self.init) && !is_dying(proc, &pid.to_string())? {
                return Ok(Progress::Done(false));
            }
            if enough() {
                return Ok(Progress::Unfinished(self));
            }
        }
        Ok(Progress::Done(true))
    }
}

/// Returns true if `pid` is `init` or a descendant of it.
fn descends(parents: &BTreeMap<i32, i32>, pid: i32, init: i32) -> bool {
    let mut at = pid;
    // No chain is longer than the number of processes.
    for _ in 0..=parents.len() {
        if at == init {
            return true;
        }
        match parents.get(&at) {
            Some(parent) => at = *parent,
            None => return false,
        }
    }
    // The list is not a snapshot: a cycle is treated as part of the cell, to be safe.
    true
}

#[cfg(test)]
mod tests {
    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn a_process_belongs_to_a_cell_through_its_parents() {
        let parents = BTreeMap::from([(1, 0), (7, 1), (8, 7), (9, 8), (20, 1), (30, 99)]);
        let mine: Vec<i32> =
            parents.keys().copied().filter(|pid| descends(&parents, *pid, 7)).collect();
        assert_eq!(mine, [7, 8, 9]);
    }

    #[test]
    fn a_process_that_runs_is_not_dying() {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let proc = nix::fcntl::open("/proc", flags, Mode::empty()).expect("/proc");
        let this_process = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(is_dying(&proc, &this_process.to_string()), Ok(false));
        let look = Look::begin(&proc, this_process).and_then(|look| look.take(&proc, || false));
        assert!(matches!(look, Ok(Progress::Done(false))), "{look:?}");
        // The same check with one process per turn.
        let mut turns = 0;
        let mut look = Look::begin(&proc, this_process).expect("a list");
        loop {
            turns += 1;
            match look.take(&proc, || true).expect("a look") {
                Progress::Unfinished(rest) => look = rest,
                Progress::Done(killed) => break assert!(!killed && turns > 1),
            }
        }
    }
}
