//! Programs that are executed before their job arrives: the `ahead` of a profile, in an idle cell.
//!
//! argv, env, cwd and limits come from the profile, never from a frame. A job that differs only in
//! its input gets such a cell: the input is written to the pipe that the program reads, and its
//! time limit starts then. Like every cell, it serves one job.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::write;

use super::attachments::Attachments;
use super::cell::Cell;
use super::handover::{self, Program};
use super::queued_job::{PrestartFit, QueuedJob};
use super::streams::{FarEnds, Prestarted, Streams, pipe};
use cell::report::First;
use cell::{Design, Ground};
use model::job::{Limits, ListChanges, Workspace};
use model::profile::Ahead;
use model::wire::{Block, Start};

/// Maximum bytes of input for such a job: a pipe's capacity.
const MAX_INPUT_BYTES: usize = 64 << 10;

/// Decides whether a cell with the running program can serve the job: only if the job differs from
/// the program in nothing but its input.
pub(crate) fn fits(
    design: &Design,
    job: (&Start, &Block),
    attachments: &Attachments,
    limits: &Limits,
) -> PrestartFit {
    let (start, block) = job;
    let Some(ahead) = ahead_of(design) else { return PrestartFit::No };
    let configured = Limits { wall: limits.wall, output: limits.output, ..design.profile.limits };
    let plain = (start.session, start.workspace) == (None, Workspace::Fresh)
        && start.changes == ListChanges::No
        && attachments.script.is_none();
    // Without input there is no write that would fail if the program has ended meanwhile.
    let is_short = |length| (1..=MAX_INPUT_BYTES).contains(&length);
    let short = attachments.stdin.as_ref().is_some_and(|bytes| bytes.length().is_ok_and(is_short));
    if plain && short && *limits == configured && *block == block_of(ahead) {
        PrestartFit::Yes
    } else {
        PrestartFit::No
    }
}

/// Returns the program to execute in advance in cells of this design; `None` in the tier without
/// namespaces.
fn ahead_of(design: &Design) -> Option<&Ahead> {
    match &design.ground {
        Ground::Root(_) => design.profile.ahead.as_ref(),
        Ground::Bare(_) => None,
    }
}

fn block_of(ahead: &Ahead) -> Block {
    Block { argv: ahead.argv.clone(), env: ahead.env.clone(), cwd: ahead.cwd() }
}

/// Makes the payload of an idle cell execute the program of its profile. Nothing waits for the
/// exec: input written earlier stays in the pipe. If the pipe is smaller than the longest input,
/// the cell is left unchanged.
///
/// # Errors
/// The errno of making pipes or of sending.
pub(crate) fn execute(cell: &mut Cell, design: &Design) -> Result<(), Errno> {
    let Some(ahead) = ahead_of(design) else { return Ok(()) };
    let (stdin, input) = pipe()?;
    // The kernel gives smaller pipes to a user with many of them (pipe(7), pipe-user-pages-soft).
    let room = usize::try_from(fcntl(&input, FcntlArg::F_GETPIPE_SZ)?).unwrap_or(0);
    if room < MAX_INPUT_BYTES {
        return Ok(());
    }
    // This process must never block.
    fcntl(&input, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let Streams { stdout: (stdout, out), stderr: (stderr, err), .. } =
        handover::streams(cell, design)?;
    let block = block_of(ahead);
    let limits = &design.profile.limits;
    let program =
        Program { block: &block, limits, first: First::Nothing, script: None, terminal: false };
    handover::send(cell, design, &program, [stdin.as_fd(), out.as_fd(), err.as_fd()])?;
    cell.prestarted = Some(Prestarted { input, stdout, stderr, execed: false });
    Ok(())
}

/// Writes the input to the program and closes the pipe. Starts init's memory watch, if it has one.
///
/// # Errors
/// EPIPE: the program has ended meanwhile. Otherwise the errno of reading the input.
pub(crate) fn feed(
    cell: &Cell,
    design: &Design,
    ready: &QueuedJob,
    program: Prestarted,
) -> Result<FarEnds, Errno> {
    if ready.fits == PrestartFit::No {
        return Err(Errno::EINVAL);
    }
    cell.limit(&design.profile.limits, &ready.limits)?;
    let Prestarted { input, stdout, stderr, .. } = program;
    if let Some(bytes) = &ready.attachments.stdin {
        let text = bytes.read(MAX_INPUT_BYTES)?;
        if write(&input, &text)? < text.len() {
            return Err(Errno::EIO);
        }
    }
    Ok(FarEnds { stdin: None, stdout, stderr })
}
