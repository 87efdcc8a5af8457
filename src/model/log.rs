//! Log lines of a process that has no streams: kept until the link can take them to the front end.
//!
//! A line is never waited for. If nobody reads standard error, or lines come faster than they are
//! taken, some are left out, and how many is told.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Bytes that a pipe with room takes at once (pipe(7)).
const PIPE_BUF: usize = 4096;
/// Lines that are kept, and of each so many bytes.
const LINES: usize = 32;
const LINE_BYTES: usize = 1024;
/// How many lines a supervisor tells at once, and how long it takes until it may tell one more.
const BURST: u32 = 64;
const REFILL: Duration = Duration::from_secs(5);

/// In a supervisor, what it has to say; elsewhere nothing is kept.
static KEPT: Mutex<Option<Kept>> = Mutex::new(None);
/// Lines that standard error did not take.
static UNWRITTEN: Mutex<u32> = Mutex::new(0);

#[derive(Debug)]
struct Kept {
    lines: Vec<String>,
    left_out: u32,
    /// How many more may be kept now, and since when that was counted.
    budget: (u32, Instant),
}

fn locked<T>(of: &'static Mutex<T>) -> MutexGuard<'static, T> {
    // No code panics while it holds one of them; if one did, what it holds is still whole.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps lines from here on: this process is a supervisor.
pub fn keep() {
    let budget = (BURST, Instant::now());
    *locked(&KEPT) = Some(Kept { lines: Vec::new(), left_out: 0, budget });
}

/// Takes what was logged since the last time.
pub fn take() -> Vec<String> {
    let mut kept = locked(&KEPT);
    let Some(kept) = kept.as_mut() else { return Vec::new() };
    let mut lines = std::mem::take(&mut kept.lines);
    if !lines.is_empty() && kept.left_out > 0 {
        lines.push(left_out(std::mem::take(&mut kept.left_out)));
    }
    lines
}

fn left_out(count: u32) -> String {
    format!("[{count} log lines are left out here]\n")
}

impl Kept {
    fn add(&mut self, line: &[u8]) {
        let (left, since) = &mut self.budget;
        let passed = since.elapsed().as_secs() / REFILL.as_secs();
        if passed > 0 {
            *left = left.saturating_add(u32::try_from(passed).unwrap_or(BURST)).min(BURST);
            *since = Instant::now();
        }
        if *left == 0 || self.lines.len() >= LINES {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        *left -= 1;
        let line = line.get(..LINE_BYTES).unwrap_or(line);
        self.lines.push(String::from_utf8_lossy(line).into_owned());
    }
}

/// The destination of log lines: standard error, or in a supervisor what [`take`] takes.
#[derive(Debug, Clone, Copy)]
pub struct Output;

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match locked(&KEPT).as_mut() {
            Some(kept) => kept.add(line),
            None => to_standard_error(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line where that takes no wait: a client that reads none of them must not hold up every call.
/// Of a longer line than a pipe is sure to take at once, the rest is left out.
///
/// # Errors
/// The errno of write(2).
pub fn to_standard_error(line: &[u8]) -> io::Result<()> {
    let mut unwritten = locked(&UNWRITTEN);
    let stderr = io::stderr();
    let mut waits = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    // A pipe has room for PIPE_BUF bytes then (pipe(7)).
    let ready = poll(&mut waits, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
    if !ready {
        *unwritten = unwritten.saturating_add(1);
        return Ok(());
    }
    let mut text = Vec::new();
    if *unwritten > 0 {
        text.extend_from_slice(left_out(std::mem::take(&mut *unwritten)).as_bytes());
    }
    text.extend_from_slice(line);
    if text.len() > PIPE_BUF {
        text.truncate(PIPE_BUF - 1);
        text.push(b'\n');
    }
    stderr.lock().write_all(&text)
}
