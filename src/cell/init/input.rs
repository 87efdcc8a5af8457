//! Detects a program that waits for input: a process of the cell that is blocked in a read of the
//! command's input, as procfs shows it. A read, a select and an epoll instance count; poll(2) does not,
//! as its descriptors are in the memory of the program.
//!
//! No process is traced or stopped. `/proc/PID/syscall` shows the call in which a process sleeps.
//! Init may read it, as every process of the cell is its descendant and has no more rights. On a
//! kernel that forbids it (a ptrace_scope of 2 or 3) the answer is "no", so that waiting is not
//! reported early. Only reads of the file that the supervisor made as the input of this call count,
//! not those of another pipe or socket.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::poll::PollTimeout;
use nix::sys::stat::{FileStat, fstatat};

use super::timeout_until;
use crate::mounts::MAILBOX;
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
        is_waited_for(&self.proc, &[self.input])
    }
}

/// Returns whether a process waits for a terminal that it does not have: without one, an editor reads
/// from its standard error, which is an output of the call, and never gets anything.
pub(super) fn waits_for_terminal(call: u64) -> Waits {
    let file = |stream: &str| {
        let path = format!("{MAILBOX}/{stream}.{call}");
        let file = fstatat(AT_FDCWD, path.as_str(), AtFlags::empty()).ok()?;
        Some(InputFile { device: file.st_dev, inode: file.st_ino })
    };
    let outputs: Vec<InputFile> = ["out", "err"].into_iter().filter_map(file).collect();
    match open_proc() {
        Ok(proc) if is_waited_for(&proc, &outputs) => Waits::Yes,
        Ok(_) | Err(_) => Waits::No,
    }
}

/// Returns true if a process of the cell waits for one of these files.
fn is_waited_for(proc: &OwnedFd, files: &[InputFile]) -> bool {
    let processes: Vec<u32> = numbers(proc, ".").unwrap_or_default();
    processes.iter().any(|pid| {
        let tasks = numbers(proc, &format!("{pid}/task")).unwrap_or_default();
        tasks.iter().any(|task| task_waits(proc, *pid, *task, files))
    })
}

fn task_waits(proc: &OwnedFd, pid: u32, task: u32, files: &[InputFile]) -> bool {
    let mut buffer = [0; 256];
    let path = format!("{pid}/task/{task}/syscall");
    // The process has ended meanwhile, or the kernel forbids reading this file.
    let Ok(text) = read_start(proc, &path, &mut buffer) else { return false };
    let is_one = |descriptor: u64| {
        stat_of(proc, pid, descriptor).is_some_and(|file| {
            files.contains(&InputFile { device: file.st_dev, inode: file.st_ino })
        })
    };
    match std::str::from_utf8(text).ok().and_then(SleepingCall::parse) {
        Some(SleepingCall::Reads(descriptor)) => is_one(descriptor),
        Some(SleepingCall::Polls(epoll)) => {
            let members = read_epoll(proc, pid, epoll).unwrap_or_default();
            // A program that has sockets waits for other events too.
            let is_socket = |member: &EpollMember| {
                stat_of(proc, pid, member.descriptor)
                    .is_some_and(|file| file.st_mode & libc::S_IFMT == libc::S_IFSOCK)
            };
            members.iter().any(|member| member.is_read && is_one(member.descriptor))
                && !members.iter().any(is_socket)
        }
        None => false,
    }
}

/// Returns the attributes of a file that a process has open.
fn stat_of(proc: &OwnedFd, pid: u32, descriptor: u64) -> Option<FileStat> {
    let path = format!("{pid}/fd/{descriptor}");
    fstatat(proc.as_fd(), path.as_str(), AtFlags::empty()).ok()
}

/// A descriptor that an epoll instance watches.
#[derive(Debug, PartialEq, Eq)]
struct EpollMember {
    descriptor: u64,
    /// True if it is watched for input.
    is_read: bool,
}

/// Returns the members of an epoll instance; `None` if there are more than a program with a prompt
/// has.
fn read_epoll(proc: &OwnedFd, pid: u32, epoll: u64) -> Option<Vec<EpollMember>> {
    let mut buffer = [0; 2048];
    let path = format!("{pid}/fdinfo/{epoll}");
    let text = read_start(proc, &path, &mut buffer).ok()?;
    (text.len() < 2048).then(|| epoll_members(std::str::from_utf8(text).unwrap_or_default()))
}

/// Parses the `tfd:` lines of an epoll instance in fdinfo (proc(5)).
fn epoll_members(text: &str) -> Vec<EpollMember> {
    const EPOLLIN: u64 = 1;
    let member = |line: &str| {
        let mut words = line.strip_prefix("tfd:")?.split_ascii_whitespace();
        let descriptor = words.next()?.parse().ok()?;
        let events = words.nth(1)?;
        let events = u64::from_str_radix(events, 16).ok()?;
        Some(EpollMember { descriptor, is_read: events & EPOLLIN != 0 })
    };
    text.lines().filter_map(member).collect()
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

/// A call in which a task sleeps that can be a wait for input.
#[derive(Debug, PartialEq, Eq)]
enum SleepingCall {
    /// A read of this descriptor, or a select of it alone.
    Reads(u64),
    /// A wait of a second or more for the events of this epoll instance.
    Polls(u64),
}

impl SleepingCall {
    /// Parses a line of `/proc/PID/syscall` (proc(5)). Returns `None` for other calls, for `running`,
    /// and for -1, which means no call.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let number: i64 = words.next()?.parse().ok()?;
        let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let first = argument()?;
        let second = argument()?;
        argument()?;
        let fourth = argument()?;
        // A pselect6(2) for reading on descriptors below 1 waits for descriptor 0 alone, as readline
        // does.
        let selects = number == libc::SYS_pselect6 || is_select(number);
        match number {
            libc::SYS_read | libc::SYS_readv => Some(Self::Reads(first)),
            _ if selects && first == 1 && second != 0 => Some(Self::Reads(0)),
            libc::SYS_epoll_pwait if is_long(fourth) => Some(Self::Polls(first)),
            _ if is_epoll_wait(number) && is_long(fourth) => Some(Self::Polls(first)),
            // A pointer to the time limit.
            libc::SYS_epoll_pwait2 if fourth == 0 => Some(Self::Polls(first)),
            _ => None,
        }
    }
}

/// Minimum milliseconds of a wait for events that counts: a program that draws meanwhile waits for
/// less.
const LONG_WAIT: u64 = 1000;

/// Returns true for a time limit of epoll_wait(2) that is long or -1, which means no limit. The kernel
/// reads an int, the low half of the register.
fn is_long(limit: u64) -> bool {
    (limit & 0xffff_ffff) >= LONG_WAIT
}

#[cfg(target_arch = "x86_64")]
fn is_select(number: i64) -> bool {
    number == libc::SYS_select
}

#[cfg(not(target_arch = "x86_64"))]
fn is_select(_number: i64) -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
fn is_epoll_wait(number: i64) -> bool {
    number == libc::SYS_epoll_wait
}

#[cfg(not(target_arch = "x86_64"))]
fn is_epoll_wait(_number: i64) -> bool {
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn only_reads_selects_of_the_first_descriptor_and_long_epolls_are_waits_for_input() {
        use SleepingCall::{Polls, Reads};
        let cases = [
            ("0 0x0 0x7ffd2 0x1 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(Reads(0))),
            ("0 0x1f 0x7ffd2 0x1 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(Reads(31))),
            ("19 0x3 0x7ffd2 0x1 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(Reads(3))),
            ("270 0x1 0x7ffd2 0x0 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(Reads(0))),
            ("270 0x0 0x0 0x0 0x0 0x7ffd2 0x0 0x7ffd1 0x7f1\n", None),
            ("23 0x5 0x7ffd2 0x0 0x0 0x0 0x0 0x7ffd1 0x7f1\n", None),
            ("230 0x0 0x0 0x7ffd2 0x0 0x0 0x0 0x7ffd1 0x7f1\n", None),
            ("232 0xa 0x7ffd2 0x400 0xffffffffffffffff 0x0 0x0 0x7ffd1 0x7f1\n", Some(Polls(10))),
            ("232 0xa 0x7ffd2 0x400 0xffffffff 0x0 0x0 0x7ffd1 0x7f1\n", Some(Polls(10))),
            ("232 0xa 0x7ffd2 0x400 0x3e8 0x0 0x0 0x7ffd1 0x7f1\n", Some(Polls(10))),
            ("232 0xa 0x7ffd2 0x400 0x3e7 0x0 0x0 0x7ffd1 0x7f1\n", None),
            ("281 0xa 0x7ffd2 0x400 0xffffffff 0x0 0x0 0x7ffd1 0x7f1\n", Some(Polls(10))),
            ("441 0xa 0x7ffd2 0x400 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(Polls(10))),
            ("441 0xa 0x7ffd2 0x400 0x7ffd3 0x0 0x0 0x7ffd1 0x7f1\n", None),
            ("running\n", None),
            ("-1 0x7ffd1 0x7f1\n", None),
            ("", None),
        ];
        for (line, expected) in cases {
            assert_eq!(SleepingCall::parse(line), expected, "{line}");
        }
    }

    #[test]
    fn members_of_an_epoll_instance_are_read_with_their_events() {
        let text = "pos:\t0\nflags:\t02000002\nmnt_id:\t16\nino:\t1035\n\
                    tfd:       12 events:       19 data:                c  pos:0 ino:40b sdev:10\n\
                    tfd:        0 events: 8000001d data:                0  pos:0 ino:3 sdev:19\n\
                    tfd:        1 events:        4 data:                1  pos:0 ino:3 sdev:19\n";
        let expected = [(12, true), (0, true), (1, false)];
        let expected = expected.map(|(descriptor, is_read)| EpollMember { descriptor, is_read });
        assert_eq!(epoll_members(text), expected);
    }
}
