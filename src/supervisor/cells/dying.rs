//! Cells that are slow to die: their callers are answered once every process has been sent SIGKILL.
//!
//! A process with 65,000 mappings takes tens of milliseconds to take them down, and the end of a cell is the
//! end of all its processes. None of them runs an instruction of its own any more when SIGKILL is
//! pending; what a system call that has begun still writes is why the reply says that its list of
//! files is incomplete.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cell::Cell;
use cell::Shared;
use cell::dying::{has_kill, is_dying, numbers};
use cell::measure::Fields;
use model::outcome::FilesChanged;
use sys::Result;

/// How long a cell that was killed may take before its caller is answered without its end. With the
/// grace before it, an answer comes within two seconds of its limit.
pub(crate) const PATIENCE: Duration = Duration::from_millis(400);
/// The time between two looks at a cell that was not all killed at the first.
const AGAIN: Duration = Duration::from_millis(50);
/// The time that all looks of one turn of the loop may take together. Cells decide how many processes there are, each
/// costs some 15 us, and every other cell waits meanwhile; the next turn continues.
const BUDGET: Duration = Duration::from_millis(5);

/// The end of the time for looks in a turn of the loop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnBudget(Option<Instant>);

impl TurnBudget {
    /// Makes the budget of a turn that begins now.
    pub(crate) fn begin() -> Self {
        Self(Instant::now().checked_add(BUDGET))
    }

    fn is_used_up(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }
}

/// When to look whether the caller of a cell on its way out can be answered.
#[derive(Debug, Default)]
pub(crate) struct DeathCheck {
    at: Option<Instant>,
    /// True if the look before found every process dying. A list of processes is not of one moment: one
    /// that is made while it is read is in the next.
    once: bool,
    /// A look that did not come to its end in its turn.
    under_way: Option<Look>,
}

impl DeathCheck {
    /// Begins with the first kill, or with the report of init.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.at.get_or_insert(now + PATIENCE);
    }

    /// Ends: the caller has its answer.
    pub(crate) fn end(&mut self) {
        self.at = None;
        self.under_way = None;
    }

    pub(crate) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Returns whether it is time, and no process of the cell can run any more.
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
        let looked = cell.init_in(shared).and_then(|init| {
            let look = self.under_way.take().map_or_else(|| Look::begin(&shared.proc, init), Ok)?;
            look.take(&shared.proc, || budget.is_used_up())
        });
        let killed = match looked {
            Ok(Progress::Unfinished(look)) => {
                // Due since before: the next turn comes at once.
                self.under_way = Some(look);
                return false;
            }
            Ok(Progress::Done(killed)) => killed,
            // A process that cannot be seen counts as alive.
            Err(_) => false,
        };
        let is_over = killed && self.once;
        self.once = killed;
        self.at = (!is_over).then(|| now + AGAIN);
        is_over
    }
}

/// Marks a list of changes as incomplete, for a report while processes may still end a system call there.
pub(crate) fn incomplete(changed: Option<FilesChanged>) -> Option<FilesChanged> {
    Some(FilesChanged { is_whole: false, ..changed.unwrap_or(FilesChanged::none()) })
}

/// A look whether `init` and every process that descends from it is dying. Orphans of a cell are its init's.
///
/// It may take several turns: a process that was sent SIGKILL makes no other, and one that was not is found alive.
#[derive(Debug)]
struct Look {
    init: i32,
    /// Processes to be read yet.
    listed: Vec<i32>,
    parents: BTreeMap<i32, i32>,
    /// Processes without a SIGKILL that is pending for all their threads.
    alive: Vec<i32>,
}

/// How far a look came.
#[derive(Debug)]
enum Progress {
    /// Whether all are dying.
    Done(bool),
    Unfinished(Look),
}

impl Look {
    fn begin(proc: &OwnedFd, init: i32) -> Result<Self> {
        let listed = numbers(proc, ".")?;
        Ok(Self { init, listed, parents: BTreeMap::new(), alive: Vec::new() })
    }

    /// Looks on, until the end or until `enough`.
    fn take(mut self, proc: &OwnedFd, enough: impl Fn() -> bool) -> Result<Progress> {
        while let Some(pid) = self.listed.pop() {
            let status = match Fields::read(proc.as_fd(), &format!("{pid}/status")) {
                Ok(status) => status,
                // Gone meanwhile.
                Err(Errno::ENOENT | Errno::ESRCH) => continue,
                Err(errno) => return Err(errno),
            };
            self.parents.insert(pid, status.get("PPid").parse().map_err(|_| Errno::EPROTO)?);
            // A signal to the whole process stays pending until it is collected.
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

/// Returns whether `pid` is `init` or a descendant of it.
fn descends(parents: &BTreeMap<i32, i32>, pid: i32, init: i32) -> bool {
    let mut at = pid;
    // No chain is longer than there are processes.
    for _ in 0..=parents.len() {
        if at == init {
            return true;
        }
        match parents.get(&at) {
            Some(parent) => at = *parent,
            None => return false,
        }
    }
    // The list is not of one moment: a circle is taken for one of the cell.
    true
}

#[cfg(test)]
mod tests {
    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn a_process_is_of_a_cell_by_its_parents() {
        let parents = BTreeMap::from([(1, 0), (7, 1), (8, 7), (9, 8), (20, 1), (30, 99)]);
        let mine: Vec<i32> =
            parents.keys().copied().filter(|pid| descends(&parents, *pid, 7)).collect();
        assert_eq!(mine, [7, 8, 9]);
    }

    #[test]
    fn a_process_that_runs_is_not_dying() {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let proc = nix::fcntl::open("/proc", flags, Mode::empty()).expect("/proc");
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(is_dying(&proc, &own.to_string()), Ok(false));
        let look = Look::begin(&proc, own).and_then(|look| look.take(&proc, || false));
        assert!(matches!(look, Ok(Progress::Done(false))), "{look:?}");
        // The same, one process a turn.
        let mut turns = 0;
        let mut look = Look::begin(&proc, own).expect("a list");
        loop {
            turns += 1;
            match look.take(&proc, || true).expect("a look") {
                Progress::Unfinished(rest) => look = rest,
                Progress::Done(killed) => break assert!(!killed && turns > 1),
            }
        }
    }
}
