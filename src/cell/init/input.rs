//! Detects a program that waits for input: a process of the cell that is blocked reading the command's own
//! input, as procfs shows it.
//!
//! Nothing is traced or stopped. `/proc/PID/syscall` shows the call in which a process sleeps; init may read
//! it, as every process of the cell is its descendant and has no more rights. On a kernel that forbids it (a
//! ptrace_scope of 2 or 3) the answer is "no", and the only effect is that waiting is not reported early. A
//! process that reads another pipe or socket does not count: only the file that the supervisor made as the
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

/// Between two looks: at first, and at most. A look takes tens of microseconds for a few processes.
const SHORTEST: Duration = Duration::from_millis(15);
const LONGEST: Duration = Duration::from_millis(250);

/// An input that somebody asks for, until one waits for it.
#[derive(Debug)]
pub(super) struct Asked {
    number: u32,
    input: InputFile,
    proc: OwnedFd,
    pause: Duration,
    next: Instant,
}

impl Asked {
    /// Returns how long poll(2) may wait before the next look.
    pub(super) fn timeout(&self) -> PollTimeout {
        let wait = self.next.saturating_duration_since(Instant::now());
        // Rounded up: a timeout of 0 would spin until the instant has come.
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
        // Gone meanwhile, or not to be read here.
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
    pub(super) fn asked(&mut self, number: u32, input: InputFile) -> Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let proc = match openat(AT_FDCWD, "/proc", flags, Mode::empty()) {
            Ok(proc) => proc,
            Err(_) => return self.tell(FromInit::Input { number, waits: Waits::No }),
        };
        let next = Instant::now() + SHORTEST;
        let asked = Asked { number, input, proc, pause: SHORTEST, next };
        match asked.waits() {
            true => self.tell(FromInit::Input { number, waits: Waits::Yes }),
            false => {
                self.drop_input(Some(input));
                self.inputs.push(asked);
                self.tell(FromInit::Input { number, waits: Waits::No })
            }
        }
    }

    /// Drops the request about an input.
    pub(super) fn drop_input(&mut self, input: Option<InputFile>) {
        self.inputs.retain(|asked| Some(asked.input) != input);
    }

    pub(super) fn look_at_inputs(&mut self, now: Instant) -> Result<()> {
        let mut waiting = Vec::new();
        for asked in self.inputs.iter_mut().filter(|asked| asked.next <= now) {
            if asked.waits() {
                waiting.push((asked.number, asked.input));
            } else {
                asked.pause = (asked.pause * 5 / 4).min(LONGEST);
                asked.next = Instant::now() + asked.pause;
            }
        }
        for (number, input) in waiting {
            self.drop_input(Some(input));
            self.tell(FromInit::Input { number, waits: Waits::Yes })?;
        }
        Ok(())
    }
}

/// Entries of a directory of procfs that are numbers.
pub(super) fn numbers(proc: &OwnedFd, path: &str) -> Vec<u32> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let Ok(list) = Dir::openat(proc, path, flags, Mode::empty()) else { return Vec::new() };
    // By value: a borrowed list is rewound at its end (lseek), which the filter refuses.
    let names = list.into_iter().filter_map(std::result::Result::ok);
    names.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok()).collect()
}

/// Returns the descriptor that a sleeping task reads, or waits for alone, by its line in `syscall` (proc(5)):
/// the number of the call and its arguments. `running`, and -1 for no call, are none.
fn descriptor(line: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (first, second) = (argument()?, argument()?);
    // select(2) of descriptors below 1, for reading, is a wait for descriptor 0 alone: readline's.
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
