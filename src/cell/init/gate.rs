//! Checks that the shell of a session waits for its next call before the call that it has counts as over.
//!
//! Any process of the cell can write what the shell reports at the end of a call, so the report alone proves
//! nothing. The shell itself then waits to open the gate of the next call, which `/proc/PID/syscall` and the
//! path in its memory show. Where the kernel lets init read neither (a ptrace_scope of 3), the report is believed.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::fcntl::{OFlag, openat};
use nix::poll::PollTimeout;
use nix::sys::stat::Mode;
use nix::sys::uio::pread;
use nix::unistd::{Pid, read};

use super::Init;
use super::job::procfs;
use crate::files::Then;
use crate::mounts::MAILBOX;
use crate::report::{FromInit, InputFile};
use sys::Result;

/// Looks at once, for a shell that has a few lines left to run: about a millisecond.
const LOOKS: usize = 40;
/// Between two looks after that: at first, and at most.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(50);

/// A count that is made when the shell waits at the gate of its next call.
#[derive(Debug)]
pub(super) struct AwaitedGate {
    input: Option<InputFile>,
    path: Vec<u8>,
    pause: Duration,
    at: Instant,
}

impl AwaitedGate {
    /// Returns how long poll(2) may wait before the next look.
    pub(super) fn timeout(&self) -> PollTimeout {
        let wait = self.at.saturating_duration_since(Instant::now());
        // Rounded up: a timeout of 0 would spin until the instant has come.
        PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
    }
}

impl Init<'_> {
    /// Reports the counters when the shell waits for call `next`; this replaces a request before it.
    pub(super) fn count_at_gate(&mut self, input: Option<InputFile>, next: u64) -> Result<()> {
        let path = format!("{MAILBOX}/go.{next}\0").into_bytes();
        for _ in 0..LOOKS {
            if waits_to_open(self.payload, &path) {
                return self.at_gate(input);
            }
            std::thread::yield_now();
        }
        let at = Instant::now() + SHORTEST;
        self.gate = Some(AwaitedGate { input, path, pause: SHORTEST, at });
        Ok(())
    }

    pub(super) fn look_at_gate(&mut self, now: Instant) -> Result<()> {
        let Some(mut gate) = self.gate.take_if(|gate| gate.at <= now) else { return Ok(()) };
        if waits_to_open(self.payload, &gate.path) {
            return self.at_gate(gate.input);
        }
        gate.pause = (gate.pause * 2).min(LONGEST);
        gate.at = now + gate.pause;
        self.gate = Some(gate);
        Ok(())
    }

    fn at_gate(&mut self, input: Option<InputFile>) -> Result<()> {
        self.gate = None;
        self.drop_input(input);
        self.tell(FromInit::AtGate)?;
        match &mut self.files {
            Some(files) => {
                files.begin(Then::Count);
                Ok(())
            }
            None => self.count(),
        }
    }
}

/// Returns true if a process waits to open this path, which ends with NUL, or if that cannot be seen here.
fn waits_to_open(process: Pid, path: &[u8]) -> bool {
    let Ok(proc) = procfs() else { return true };
    let Ok(line) = syscall(&proc, process) else { return true };
    let Some(address) = opened(&line) else { return false };
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let mut shown = vec![0; path.len()];
    match openat(&proc, format!("{process}/mem").as_str(), flags, Mode::empty()) {
        Ok(memory) => pread(&memory, &mut shown, address)
            .is_ok_and(|length| shown.get(..length) == Some(path)),
        Err(_) => true,
    }
}

fn syscall(proc: &OwnedFd, process: Pid) -> Result<String> {
    let mut buffer = [0; 256];
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let file = openat(proc, format!("{process}/syscall").as_str(), flags, Mode::empty())?;
    let length = read(&file, &mut buffer)?;
    Ok(String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned())
}

/// Returns the address of the path that a sleeping task opens, by its line in `syscall` (proc(5)).
fn opened(line: &str) -> Option<i64> {
    let mut words = line.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let path = match number {
        libc::SYS_openat => words.nth(1)?,
        _ if is_open(number) => words.next()?,
        _ => return None,
    };
    i64::from_str_radix(path.strip_prefix("0x")?, 16).ok()
}

#[cfg(target_arch = "x86_64")]
fn is_open(number: i64) -> bool {
    number == libc::SYS_open
}

#[cfg(not(target_arch = "x86_64"))]
fn is_open(_number: i64) -> bool {
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn only_an_open_names_a_path() {
        let cases = [
            ("257 0xffffffffffffff9c 0x7ffd2 0x0 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(0x7ffd2)),
            ("2 0x7ffd3 0x0 0x0 0x0 0x0 0x0 0x7ffd1 0x7f1\n", Some(0x7ffd3)),
            ("61 0x3 0x7ffd2 0x1 0x0 0x0 0x0 0x7ffd1 0x7f1\n", None),
            ("running\n", None),
            ("-1 0x7ffd1 0x7f1\n", None),
            ("", None),
        ];
        for (line, expected) in cases {
            assert_eq!(opened(line), expected, "{line}");
        }
    }
}
