//! Log lines of a process without streams: kept until the link can take them to the front end.
//!
//! Logging never blocks. If standard error is not read, or lines come too fast, some are left out,
//! and their number is reported.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Size up to which a write to a pipe with room does not block (pipe(7)).
const PIPE_BUF: usize = 4096;
/// Maximum number of kept lines.
const MAX_LINES: usize = 32;
/// Maximum size of a kept line in bytes.
const MAX_LINE_BYTES: usize = 1024;
/// Number of lines that a supervisor may log at once.
const BURST: u32 = 64;
/// Time after which it may log one more.
const REFILL: Duration = Duration::from_secs(5);

/// Lines of a supervisor; elsewhere no lines are kept.
static KEPT: Mutex<Option<KeptLines>> = Mutex::new(None);
/// Number of lines that standard error did not take.
static UNWRITTEN: Mutex<u32> = Mutex::new(0);

#[derive(Debug)]
struct KeptLines {
    lines: Vec<String>,
    left_out: u32,
    /// Number of lines that may still be kept, and the time of that count.
    budget: (u32, Instant),
}

fn locked<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    // The locks are not held across code that may panic; if they were, the values would still be valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps lines from now on, as this process is a supervisor.
pub fn keep() {
    let budget = (BURST, Instant::now());
    *locked(&KEPT) = Some(KeptLines { lines: Vec::new(), left_out: 0, budget });
}

/// Takes the lines that were logged since the last call.
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

impl KeptLines {
    fn add(&mut self, line: &[u8]) {
        let (left, since) = &mut self.budget;
        let passed = since.elapsed().as_secs() / REFILL.as_secs();
        if passed > 0 {
            *left = left.saturating_add(u32::try_from(passed).unwrap_or(BURST)).min(BURST);
            *since = Instant::now();
        }
        if *left == 0 || self.lines.len() >= MAX_LINES {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        *left -= 1;
        let line = line.get(..MAX_LINE_BYTES).unwrap_or(line);
        self.lines.push(String::from_utf8_lossy(line).into_owned());
    }
}

/// The destination of log lines: standard error, or in a supervisor the lines for [`take`].
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

/// Writes a line if that does not block: a client that does not read must not delay every call. A
/// line longer than a pipe takes without blocking is cut off.
///
/// # Errors
/// The errno of write(2).
pub fn to_standard_error(line: &[u8]) -> io::Result<()> {
    let mut unwritten = locked(&UNWRITTEN);
    let stderr = io::stderr();
    let mut waits = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    // A pipe that is ready has room for PIPE_BUF bytes (pipe(7)).
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
