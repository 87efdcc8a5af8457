//! Derives the outcome of a call from the end of its program, for one-shot calls and for sessions.
//! A program that could not be executed has reported that before.

use std::time::Duration;

use nix::errno::Errno;

use super::cell::Cell;
use cell::report::{self, FromPayload, OverLimit, PayloadEnd, raw};
use model::call::Cwd;
use model::job::Limits;
use model::outcome::{Failure, LimitKind, Outcome};
use sys::socket::{self, PacketWait};

/// Time after its report until an init that has not exited is killed.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// Returns how a program ended that was not stopped from outside.
pub(crate) fn program_outcome(end: &PayloadEnd, limits: &Limits, cell: &Cell) -> Outcome {
    match end.over_limit {
        Some(OverLimit::Memory) => return Outcome::Limit(LimitKind::Memory),
        Some(OverLimit::HostMemory) => return Outcome::Limit(LimitKind::HostMemory),
        Some(OverLimit::OpenFiles) => return Outcome::Limit(LimitKind::OpenFiles),
        None if cell.ran_out_of_memory() => return Outcome::Limit(LimitKind::Memory),
        None => {}
    }
    let used = Duration::from_micros(end.counts.user_us + end.counts.system_us);
    // The limit is set in whole seconds. The kernel enforces it on sampled ticks, charging a whole
    // tick to the running process, while the reported usage is exact; on a busy machine the two
    // differed by 10 %. Treat at least 50 % of the limit as having reached it; below that the
    // program sent the signal itself.
    let cpu = Duration::from_secs(limits.cpu.as_secs().max(1)) / 2;
    let Some(signal) = end.status.checked_sub(256) else {
        return Outcome::Exited { code: u8::try_from(end.status).unwrap_or(u8::MAX) };
    };
    match i32::from(signal) {
        // Sent by the kernel at the limit, or earlier by the program itself.
        libc::SIGXCPU if used >= cpu => Outcome::Limit(LimitKind::Cpu),
        libc::SIGXFSZ => Outcome::Limit(LimitKind::FileSize),
        libc::SIGKILL if used >= cpu => Outcome::Limit(LimitKind::Cpu),
        _ => Outcome::Signaled { signal: u8::try_from(signal).unwrap_or(u8::MAX) },
    }
}

/// Reads a message of the payload, and returns why it cannot execute `program`, if it says so.
///
/// # Errors
/// EAGAIN: there is no message. Others: the socket is closed, at the exec or at the payload's end;
/// init's report shows which.
pub(crate) fn read_failure(
    cell: &Cell,
    program: &str,
    cwd: &Cwd,
) -> Result<Option<Failure>, Errno> {
    let mut buffer = [0; 512];
    let received = socket::receive(&cell.job, &mut buffer, PacketWait::No)?;
    if received.bytes == 0 {
        return Err(Errno::EPIPE);
    }
    let bytes = buffer.get(..received.bytes).unwrap_or_default();
    Ok(match report::decode::<FromPayload>(bytes) {
        Ok(FromPayload::Exec { errno }) => Some(exec_failure(program, errno)),
        Ok(FromPayload::Cwd { errno }) => {
            Some(Failure::Cwd { path: cwd.as_str().to_owned(), errno })
        }
        Ok(FromPayload::Failed { step, errno }) => {
            Some(Failure::Setup { step: step.name().to_owned(), errno })
        }
        // Other messages cannot come from the payload, and the program does not have this socket.
        Ok(FromPayload::Ready(_)) | Err(_) => None,
    })
}

/// Returns the failure of a program that could not be executed.
fn exec_failure(program: &str, errno: i32) -> Failure {
    let program = shortened(program);
    if errno == raw(Errno::ENOENT) {
        Failure::NotFound { program }
    } else {
        Failure::NotExecutable { program, errno }
    }
}

/// Shortens a program's name so that it fits in a frame: argv may be longer.
pub(crate) fn shortened(name: &str) -> String {
    const MAX_CHARS: usize = 255;
    match name.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
        None => name.to_owned(),
    }
}
