//! The processes of one command of a session, as opposed to its shell and to background processes
//! of earlier commands.
//!
//! A process belongs to the command if it started with the command or later, and its parent is the
//! shell, init (if its real parent has ended) or another process of the command. Processes that an
//! older background process starts meanwhile do not belong to it.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::payload::Payload;
use super::sent;
use crate::proc_files::{numbers, open_proc, read_start};
use crate::report::Ticks;
use model::job::JobSignal;
use sys::Result;

/// Maximum rounds of killing: a process may fork while the list is read, and the child is found in
/// the next round. Processes that survive all rounds end with the cell.
const MAX_KILL_ROUNDS: usize = 50;

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

impl Payload {
    /// Sends INT to the shell and to the command's processes in its group. One kill(2) for the
    /// group if it has no other member: a shell that is signalled while its child exits
    /// successfully continues with the next command (bash(1), SIGNALS), and so would one whose
    /// child is replaced before its own signal arrives.
    pub(super) fn interrupt_command(&self, since: Ticks) -> Result<()> {
        let shell = self.number();
        let in_group = |all: &[Process]| -> BTreeSet<u32> {
            let others = all.iter().filter(|one| one.group == shell && one.pid != shell);
            others.map(|one| one.pid).collect()
        };
        let command = |all: &[Process]| -> BTreeSet<u32> {
            members(all, shell, since).intersection(&in_group(all)).copied().collect()
        };
        let all = processes(&open_proc()?);
        // The payload began a session, so that it leads the group of the same number.
        let is_alone = in_group(&all).is_subset(&command(&all));
        let pid = self.pid.as_raw();
        let to = Pid::from_raw(if is_alone { -pid } else { pid });
        sent(kill(to, Signal::SIGINT))?;
        // A stopped process receives the signal once it continues.
        sent(kill(to, Signal::SIGCONT))?;
        if is_alone { Ok(()) } else { signal_all(JobSignal::Interrupt, command).map(drop) }
    }

    /// Sends a signal to the command's processes. The shell is sent INT first, so that it does not
    /// run the rest of the command when they are gone.
    pub(super) fn signal_command(&self, signal: JobSignal, since: Ticks) -> Result<()> {
        sent(kill(self.pid, Signal::SIGINT))?;
        sent(kill(self.pid, Signal::SIGCONT))?;
        let shell = self.number();
        signal_all(signal, |all| members(all, shell, since)).map(drop)
    }
}

/// Sends a signal to the processes that `select` picks, and returns them. KILL is repeated until
/// none remain.
pub(super) fn signal_all(
    signal: JobSignal,
    select: impl Fn(&[Process]) -> BTreeSet<u32>,
) -> Result<BTreeSet<u32>> {
    let (signal, rounds) = match signal {
        JobSignal::Interrupt => (Signal::SIGINT, 1),
        JobSignal::Terminate => (Signal::SIGTERM, 1),
        JobSignal::Kill => (Signal::SIGKILL, MAX_KILL_ROUNDS),
    };
    let proc = open_proc()?;
    let mut before = BTreeSet::new();
    for _ in 0..rounds {
        let selected = select(&processes(&proc));
        // Killed processes stay in the list until they are reaped, which happens after this.
        if selected.is_subset(&before) {
            break;
        }
        for pid in selected.iter().filter_map(|pid| i32::try_from(*pid).ok()) {
            sent(kill(Pid::from_raw(pid), signal))?;
            if signal != Signal::SIGKILL {
                // A stopped process receives the signal once it continues.
                sent(kill(Pid::from_raw(pid), Signal::SIGCONT))?;
            }
        }
        before = selected;
    }
    Ok(before)
}

/// Returns true if `select` picks no running process.
pub(super) fn none_remain(select: impl Fn(&[Process]) -> BTreeSet<u32>) -> bool {
    open_proc().is_ok_and(|proc| select(&processes(&proc)).is_empty())
}

/// Returns true if a process with this pid exists.
pub(super) fn runs(pid: u32) -> bool {
    open_proc().is_ok_and(|proc| stat(&proc, pid).is_some())
}

/// Returns the processes of `all` that belong to a command that began at `since`.
fn members(all: &[Process], shell: u32, since: Ticks) -> BTreeSet<u32> {
    let roots = [1, shell];
    // A background job leads its process group: the processes that it leaves behind do not belong
    // to the command.
    let is_in_background = |process: &Process| {
        let leads = |leader: &&Process| leader.pid == process.group && leader.began < since;
        process.group != shell && all.iter().any(|leader| leads(&leader))
    };
    let mut members = BTreeSet::new();
    loop {
        let more = all.iter().filter(|process| {
            !roots.contains(&process.pid)
                && process.began >= since
                && !is_in_background(process)
                && (roots.contains(&process.parent) || members.contains(&process.parent))
        });
        let more: BTreeSet<u32> = more.map(|process| process.pid).collect();
        if more == members {
            return members;
        }
        members = more;
    }
}

fn processes(proc: &OwnedFd) -> Vec<Process> {
    numbers(proc, ".").unwrap_or_default().into_iter().filter_map(|pid| stat(proc, pid)).collect()
}

fn stat(proc: &OwnedFd, pid: u32) -> Option<Process> {
    let mut buffer = [0; 1024];
    let line = read_start(proc, &format!("{pid}/stat"), &mut buffer).ok()?;
    parse_stat(pid, &String::from_utf8_lossy(line))
}

/// Parses a `stat` line. The name stands in brackets, and may contain brackets and spaces.
fn parse_stat(pid: u32, line: &str) -> Option<Process> {
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
    fn parent_and_start_are_parsed_after_any_name() {
        let line = "7 (a) b) (c) S 2 7 8 0 -1 4194304 109 0 0 0 0 0 0 0 20 0 1 0 77123 2830336 129";
        let process = Process { pid: 7, parent: 2, group: 7, session: 8, began: 77_123 };
        assert_eq!(parse_stat(7, line), Some(process));
        assert_eq!(parse_stat(7, "7 (a) S 2"), None);
    }

    #[test]
    fn shell_init_and_older_processes_with_their_children_are_not_part_of_the_command() {
        let process = |pid, parent, began| Process { pid, parent, group: 2, session: 2, began };
        let background = |pid, parent, began| Process { group: 8, ..process(pid, parent, began) };
        let all = [
            process(1, 0, 1),
            process(2, 1, 2),
            // A background process of an earlier command, and a child that it has started since.
            process(3, 2, 50),
            process(4, 3, 120),
            // The command's process, one whose parent has ended, and one listed before its parent.
            process(5, 6, 110),
            process(6, 2, 100),
            process(7, 1, 130),
            // A background job, and a process that it left behind meanwhile.
            background(8, 1, 60),
            background(9, 1, 120),
        ];
        assert_eq!(members(&all, 2, 100), BTreeSet::from([5, 6, 7]));
    }
}
