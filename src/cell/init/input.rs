//! Detects a program that waits for input: a process of the cell that is blocked in a read of the
//! command's input, as procfs shows it.
//!
//! No process is traced or stopped. `/proc/PID/syscall` shows the call in which a process sleeps.
//! Init may read it, as every process of the cell is its descendant and has no more rights. On a
//! kernel that forbids it (a ptrace_scope of 2 or 3) the answer is "no", so that waiting is not
//! reported early. Only reads of the file that the supervisor made as the input of this call count,
//! not those of another pipe or socket.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::AtFlags;
use nix::poll::PollTimeout;
use nix::sys::stat::fstatat;

use super::timeout_until;
use crate::proc_files::{numbers, open_proc, read_start};
use crate::report::InputFile;
use model::outcome::Waits;

/// Minimum and maximum time between two checks. A check takes tens of microseconds if there are few
/// processes.
const MIN_PAUSE: Duration = Duration::from_millis(15);
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// A request of the supervisor to report once a process waits for an input.
#[derive(Debug)]
struct InputQuery {
    number: u32,
    input: InputFile,
    proc: OwnedFd,
    pause: Duration,
    next: Instant,
}

impl InputQuery {
    /// Returns true if a process of the cell waits for the input.
    fn waits(&self) -> bool {
        let processes: Vec<u32> = numbers(&self.proc, ".").unwrap_or_default();
        processes.iter().any(|pid| {
            let tasks = numbers(&self.proc, &format!("{pid}/task")).unwrap_or_default();
            tasks.iter().any(|task| self.task_waits(*pid, *task))
        })
    }

    fn task_waits(&self, pid: u32, task: u32) -> bool {
        let mut buffer = [0; 256];
        let path = format!("{pid}/task/{task}/syscall");
        // The process has ended meanwhile, or the kernel forbids reading this file.
        let Ok(text) = read_start(&self.proc, &path, &mut buffer) else { return false };
        let text = std::str::from_utf8(text);
        let Some(descriptor) = text.ok().and_then(descriptor) else { return false };
        let path = format!("{pid}/fd/{descriptor}");
        fstatat(self.proc.as_fd(), path.as_str(), AtFlags::empty())
            .is_ok_and(|file| (file.st_dev, file.st_ino) == (self.input.device, self.input.inode))
    }
}

/// The requests about inputs that no process has waited for yet.
#[derive(Debug, Default)]
pub(super) struct InputQueries(Vec<InputQuery>);

impl InputQueries {
    /// Returns whether a process waits for an input now. If not, keeps the request, in place of an
    /// earlier one about the same input.
    pub(super) fn add(&mut self, number: u32, input: InputFile) -> Waits {
        let Ok(proc) = open_proc() else { return Waits::No };
        let next = Instant::now() + MIN_PAUSE;
        let query = InputQuery { number, input, proc, pause: MIN_PAUSE, next };
        if query.waits() {
            return Waits::Yes;
        }
        self.remove(Some(input));
        self.0.push(query);
        Waits::No
    }

    /// Drops the request about an input.
    pub(super) fn remove(&mut self, input: Option<InputFile>) {
        self.0.retain(|query| Some(query.input) != input);
    }

    /// Removes the requests for whose input a process waits now, and returns their numbers.
    pub(super) fn take_answered(&mut self, now: Instant) -> Vec<u32> {
        let is_answered = |query: &mut InputQuery| {
            if query.next > now {
                return false;
            }
            let waits = query.waits();
            if !waits {
                query.pause = (query.pause * 5 / 4).min(MAX_PAUSE);
                query.next = Instant::now() + query.pause;
            }
            waits
        };
        self.0.extract_if(.., is_answered).map(|query| query.number).collect()
    }

    /// Returns how long poll(2) may wait before the next check.
    pub(super) fn timeout(&self) -> PollTimeout {
        let next = self.0.iter().map(|query| query.next).min();
        next.map_or(PollTimeout::NONE, timeout_until)
    }
}

/// Parses a line of `/proc/PID/syscall` (proc(5)): returns the descriptor that a sleeping task
/// reads, or the only one that it selects. Returns `None` for other calls, for `running`, and for
/// -1, which means no call.
fn descriptor(line: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let first = argument()?;
    let second = argument()?;
    // A pselect6(2) for reading on descriptors below 1 waits for descriptor 0 alone, as readline
    // does.
    let selects = number == libc::SYS_pselect6 || is_select(number);
    match number {
        libc::SYS_read | libc::SYS_readv => Some(first),
        _ if selects && first == 1 && second != 0 => Some(0),
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
fn is_select(number: i64) -> bool {
    number == libc::SYS_select
}

#[cfg(not(target_arch = "x86_64"))]
fn is_select(_number: i64) -> bool {
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn only_reading_and_a_select_of_the_first_descriptor_are_waits_for_input() {
        let cases = [
            ("0 0x0 0x7ffd2 0x1 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(0)),
            ("0 0x1f 0x7ffd2 0x1 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(31)),
            ("19 0x3 0x7ffd2 0x1 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(3)),
            ("270 0x1 0x7ffd2 0x0 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(0)),
            ("270 0x0 0x0 0x0 0x0 0x7ffd2 0x0 0x7ffd1 0x7f1\n", None),
            ("23 0x5 0x7ffd2 0x0 0x0 0x0 0x0 0x7ffd1 0x7f1\n", None),
            ("230 0x0 0x0 0x7ffd2 0x0 0x0 0x0 0x7ffd1 0x7f1\n", None),
            ("running\n", None),
            ("-1 0x7ffd1 0x7f1\n", None),
            ("", None),
        ];
        for (line, expected) in cases {
            assert_eq!(descriptor(line), expected, "{line}");
        }
    }
}
