//! The processes of one command of a session, told apart from its shell and from what commands before it
//! left in the background.
//!
//! A process is the command's if it began when the command did or later, and its parent is the shell, init (its
//! own parent has ended) or a process of the command. Processes that an older background process starts
//! meanwhile are not.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, read};

use super::input::numbers;
use super::{Init, sent};
use crate::report::Ticks;
use model::job::JobSignal;
use sys::Result;

/// Rounds of killing: a process that forks meanwhile may have been missed. Processes that survive all rounds
/// end with the cell.
const ROUNDS: usize = 50;

/// Fields of a process's `stat` (proc(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub pid: u32,
    pub parent: u32,
    /// Process group, named by its leader.
    pub group: u32,
    /// Session, named by its leader.
    pub session: u32,
    pub began: Ticks,
}

impl Init<'_> {
    /// Sends INT to the shell and to the command's processes in its group. At once where nothing else is in the group: a
    /// shell that gets it while a child of its own ends well goes on (bash(1), SIGNALS), as would one that had a
    /// successor by the time its own turn came.
    pub(super) fn interrupt(&self, since: Ticks) -> Result<()> {
        let shell = self.shell();
        let in_group = |all: &[Process]| -> BTreeSet<u32> {
            let others = all.iter().filter(|one| one.group == shell && one.pid != shell);
            others.map(|one| one.pid).collect()
        };
        let mine = |all: &[Process]| -> BTreeSet<u32> {
            of_job(all, shell, since).intersection(&in_group(all)).copied().collect()
        };
        let all = processes(&procfs()?);
        // The payload leads a group of its own number: it began a session.
        let is_alone = in_group(&all).is_subset(&mine(&all));
        let payload = self.payload.as_raw();
        let to = Pid::from_raw(if is_alone { -payload } else { payload });
        sent(kill(to, Signal::SIGINT))?;
        // A stopped process receives the signal once it continues.
        sent(kill(to, Signal::SIGCONT))?;
        if is_alone { Ok(()) } else { signal_all(JobSignal::Interrupt, mine).map(drop) }
    }

    /// Sends a signal to the command's processes. The shell is sent INT before: when they are gone, it
    /// leaves the rest of the command undone.
    pub(super) fn signal_job(&self, signal: JobSignal, since: Ticks) -> Result<()> {
        sent(kill(self.payload, Signal::SIGINT))?;
        sent(kill(self.payload, Signal::SIGCONT))?;
        let shell = self.shell();
        signal_all(signal, |all| of_job(all, shell, since)).map(drop)
    }
}

/// Sends a signal to the processes that `which` chooses of all, and returns them; KILL until none is left.
pub(super) fn signal_all(
    signal: JobSignal,
    which: impl Fn(&[Process]) -> BTreeSet<u32>,
) -> Result<BTreeSet<u32>> {
    let (signal, rounds) = match signal {
        JobSignal::Interrupt => (Signal::SIGINT, 1),
        JobSignal::Terminate => (Signal::SIGTERM, 1),
        JobSignal::Kill => (Signal::SIGKILL, ROUNDS),
    };
    let proc = procfs()?;
    let mut before = BTreeSet::new();
    for _ in 0..rounds {
        let mine = which(&processes(&proc));
        // Killed ones stay until they are reaped, which comes after this.
        if mine.is_subset(&before) {
            break;
        }
        for pid in mine.iter().filter_map(|pid| i32::try_from(*pid).ok()) {
            sent(kill(Pid::from_raw(pid), signal))?;
            if signal != Signal::SIGKILL {
                // A stopped process receives the signal once it continues.
                sent(kill(Pid::from_raw(pid), Signal::SIGCONT))?;
            }
        }
        before = mine;
    }
    Ok(before)
}

/// Returns true if `which` chooses no process that still runs.
pub(super) fn none_left(which: impl Fn(&[Process]) -> BTreeSet<u32>) -> bool {
    procfs().is_ok_and(|proc| which(&processes(&proc)).is_empty())
}

/// Returns true if there is a process of this number.
pub(super) fn runs(pid: u32) -> bool {
    procfs().is_ok_and(|proc| stat(&proc, pid).is_some())
}

fn procfs() -> Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    openat(AT_FDCWD, "/proc", flags, Mode::empty())
}

/// Returns the processes of `all` that belong to a command that began at `since`.
fn of_job(all: &[Process], shell: u32, since: Ticks) -> BTreeSet<u32> {
    let roots = [1, shell];
    // A job beside the shell leads a group of its own: what it leaves behind is not the command's.
    let is_beside = |process: &Process| {
        let leads = |leader: &&Process| leader.pid == process.group && leader.began < since;
        process.group != shell && all.iter().any(|leader| leads(&leader))
    };
    let mut mine = BTreeSet::new();
    loop {
        let more = all.iter().filter(|process| {
            !roots.contains(&process.pid)
                && process.began >= since
                && !is_beside(process)
                && (roots.contains(&process.parent) || mine.contains(&process.parent))
        });
        let more: BTreeSet<u32> = more.map(|process| process.pid).collect();
        if more == mine {
            return mine;
        }
        mine = more;
    }
}

fn processes(proc: &OwnedFd) -> Vec<Process> {
    numbers(proc, ".").into_iter().filter_map(|pid| stat(proc, pid)).collect()
}

fn stat(proc: &OwnedFd, pid: u32) -> Option<Process> {
    let mut buffer = [0; 1024];
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let file = openat(proc, format!("{pid}/stat").as_str(), flags, Mode::empty()).ok()?;
    let length = read(&file, &mut buffer).ok()?;
    parsed(pid, &String::from_utf8_lossy(buffer.get(..length)?))
}

/// Parses the line of a process. Its name stands in brackets, and may have brackets and spaces in it.
fn parsed(pid: u32, line: &str) -> Option<Process> {
    let (_, fields) = line.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    let began = fields.nth(15)?.parse().ok()?;
    Some(Process { pid, parent, group, session, began })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_and_start_are_read_behind_any_name() {
        let line = "7 (a) b) (c) S 2 7 8 0 -1 4194304 109 0 0 0 0 0 0 0 20 0 1 0 77123 2830336 129";
        let process = Process { pid: 7, parent: 2, group: 7, session: 8, began: 77_123 };
        assert_eq!(parsed(7, line), Some(process));
        assert_eq!(parsed(7, "7 (a) S 2"), None);
    }

    #[test]
    fn the_shell_init_and_what_was_there_before_with_its_children_are_not_of_the_command() {
        let process = |pid, parent, began| Process { pid, parent, group: 2, session: 2, began };
        let beside = |pid, parent, began| Process { group: 8, ..process(pid, parent, began) };
        let all = [
            process(1, 0, 1),
            process(2, 1, 2),
            // In the background since an earlier command, and what it has started since.
            process(3, 2, 50),
            process(4, 3, 120),
            // The command's, one with a parent that has ended, and one listed before its parent.
            process(5, 6, 110),
            process(6, 2, 100),
            process(7, 1, 130),
            // A job beside the shell, and what it left behind meanwhile.
            beside(8, 1, 60),
            beside(9, 1, 120),
        ];
        assert_eq!(of_job(&all, 2, 100), BTreeSet::from([5, 6, 7]));
    }
}
