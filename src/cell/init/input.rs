//! Detects a program that waits for input: a process of the cell that is blocked in a read of the
//! command's input, as procfs shows it.
//!
//! No process is traced or stopped. `/proc/PID/syscall` shows the call in which a process sleeps.
//! Init may read it, as every process of the cell is its descendant and has no more rights. On a
//! kernel that forbids it (a ptrace_scope of 2 or 3) the answer is "no", so that waiting is not
//! reported early. Only reads of the file that the supervisor made as the input of this call count,
//! not those of another pipe or socket.
//! input of this call does.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::dir::Dir;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::poll::PollTimeout;
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::read;

use super::Init;
use crate::report::{FromInit, InputFile};
use model::outcome::Waits;
use sys::Result;

/// Minimum and maximum time between two checks. A check takes tens of microseconds if there are few
/// processes.
const MIN_PAUSE: Duration = Duration::from_millis(15);
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// A request of the supervisor to report once a process waits for an input.
#[derive(Debug)]
pub(super) struct InputQuery {
    number: u32,
    input: InputFile,
    proc: OwnedFd,
    pause: Duration,
    next: Instant,
}

impl InputQuery {
    /// Returns how long poll(2) may wait before the next check.
    pub(super) fn timeout(&self) -> PollTimeout {
        let wait = self.next.saturating_duration_since(Instant::now());
        // Rounded up: a timeout of 0 would spin until the time of the check.
        PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    }

    /// Returns true if a process of the cell waits for the input.
    fn waits(&self) -> bool {
        let processes = numbers(&self.proc, ".");
        processes.iter().any(|pid| {
            let tasks = numbers(&self.proc, &format!("{pid}/task"));
            tasks.iter().any(|task| self.task_waits(*pid, *task))
        })
    }

    fn task_waits(&self, pid: u32, task: u32) -> bool {
        let mut buffer = [0; 256];
        let path = format!("{pid}/task/{task}/syscall");
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let length = openat(&self.proc, path.as_str(), flags, Mode::empty())
            .and_then(|fd| read(&fd, &mut buffer));
        // The process has ended meanwhile, or the kernel forbids reading this file.
        let Ok(length) = length else { return false };
        let text = std::str::from_utf8(buffer.get(..length).unwrap_or_default());
        let Some(descriptor) = text.ok().and_then(descriptor) else { return false };
        let path = format!("{pid}/fd/{descriptor}");
        fstatat(self.proc.as_fd(), path.as_str(), AtFlags::empty())
            .is_ok_and(|file| (file.st_dev, file.st_ino) == (self.input.device, self.input.inode))
    }
}

impl Init<'_> {
    /// Answers a request about an input at once, and again when a process waits for it.
    pub(super) fn query_input(&mut self, number: u32, input: InputFile) -> Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let proc = match openat(AT_FDCWD, "/proc", flags, Mode::empty()) {
            Ok(proc) => proc,
            Err(_) => return self.send(FromInit::Input { number, waits: Waits::No }),
        };
        let next = Instant::now() + MIN_PAUSE;
        let query = InputQuery { number, input, proc, pause: MIN_PAUSE, next };
        match query.waits() {
            true => self.send(FromInit::Input { number, waits: Waits::Yes }),
            false => {
                self.drop_input(Some(input));
                self.inputs.push(query);
                self.send(FromInit::Input { number, waits: Waits::No })
            }
        }
    }

    /// Drops the request about an input.
    pub(super) fn drop_input(&mut self, input: Option<InputFile>) {
        self.inputs.retain(|query| Some(query.input) != input);
    }

    pub(super) fn look_at_inputs(&mut self, now: Instant) -> Result<()> {
        let mut waiting = Vec::new();
        for query in self.inputs.iter_mut().filter(|query| query.next <= now) {
            if query.waits() {
                waiting.push((query.number, query.input));
            } else {
                query.pause = (query.pause * 5 / 4).min(MAX_PAUSE);
                query.next = Instant::now() + query.pause;
            }
        }
        for (number, input) in waiting {
            self.drop_input(Some(input));
            self.send(FromInit::Input { number, waits: Waits::Yes })?;
        }
        Ok(())
    }
}

/// Returns the numeric entries of a procfs directory; an empty list if it cannot be read.
pub(super) fn numbers(proc: &OwnedFd, path: &str) -> Vec<u32> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(list) = Dir::openat(proc, path, flags, Mode::empty()) else { return Vec::new() };
    // By value: nix rewinds a borrowed list at its end (lseek(2)), which the filter refuses.
    let names = list.into_iter().filter_map(std::result::Result::ok);
    names.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok()).collect()
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
