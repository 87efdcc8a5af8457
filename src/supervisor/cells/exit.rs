//! The outcome of a call by the end of its program, for calls of their own and for those of a session.

use std::time::Duration;

use nix::errno::Errno;

use super::cell::Cell;
use cell::report::{OverLimit, PayloadEnd, raw};
use model::job::Limits;
use model::outcome::{Failure, LimitKind, Outcome};

/// An init that has reported its end and is still there after this is killed.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// How a program ended that nobody stopped.
pub(crate) fn of_program(end: &PayloadEnd, limits: &Limits, cell: &Cell) -> Outcome {
    match end.over_limit {
        Some(OverLimit::Memory) => return Outcome::Limit(LimitKind::Memory),
        Some(OverLimit::HostMemory) => return Outcome::Limit(LimitKind::HostMemory),
        Some(OverLimit::OpenFiles) => return Outcome::Limit(LimitKind::OpenFiles),
        None if cell.ran_out_of_memory() => return Outcome::Limit(LimitKind::Memory),
        None => {}
    }
    let used = Duration::from_micros(end.counts.user_us + end.counts.system_us);
    // The limit is set in whole seconds. The kernel compares it with what it sampled, a whole
    // tick for whoever runs at the tick, and tells use as it ran: on a busy machine the two
    // were seen a tenth apart. Half of it tells a limit from a signal of the program's own.
    let cpu = Duration::from_secs(limits.cpu.as_secs().max(1)) / 2;
    let Some(signal) = end.status.checked_sub(256) else {
        return Outcome::Exited { code: u8::try_from(end.status).unwrap_or(u8::MAX) };
    };
    match i32::from(signal) {
        // Sent by the kernel at the limit, or by the program to itself before it.
        libc::SIGXCPU if used >= cpu => Outcome::Limit(LimitKind::Cpu),
        libc::SIGXFSZ => Outcome::Limit(LimitKind::FileSize),
        libc::SIGKILL if used >= cpu => Outcome::Limit(LimitKind::Cpu),
        _ => Outcome::Signaled { signal: u8::try_from(signal).unwrap_or(u8::MAX) },
    }
}

/// Why a program could not be executed.
pub(crate) fn exec_failure(program: &str, errno: i32) -> Failure {
    let program = shortened(program);
    if errno == raw(Errno::ENOENT) {
        Failure::NotFound { program }
    } else {
        Failure::NotExecutable { program, errno }
    }
}

/// A program's name as a frame can carry it: argv may hold more than a frame does.
pub(crate) fn shortened(name: &str) -> String {
    const MOST: usize = 255;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
        None => name.to_owned(),
    }
}
