//! A program that is executed before its job is there: `ahead` of a profile, in a cell that waits.
//!
//! All of it is the profile's word and nothing is a frame's: arguments, variables, directory, limits. A
//! job that is the same but for its input gets such a cell. Its input goes into the pipe that the program
//! reads, and its time begins then. Like any other, the cell serves one job.

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

/// Most bytes of input that such a job may have: what a pipe takes at once.
const INPUT_BYTES: usize = 64 << 10;

/// Returns whether a cell in which the program is executed may serve the job: it may where the job
/// differs from what was executed in its input alone.
pub(crate) fn fits(
    design: &Design,
    (start, block): (&Start, &Block),
    attachments: &Attachments,
    limits: &Limits,
) -> PrestartFit {
    let Some(ahead) = of(design) else { return PrestartFit::No };
    let own = Limits { wall: limits.wall, output: limits.output, ..design.profile.limits };
    let plain = (start.session, start.workspace) == (None, Workspace::Fresh)
        && start.changes == ListChanges::No
        && attachments.script.is_none();
    // Without a byte to write, nothing would tell that the program has ended meanwhile.
    let is_short = |length| (1..=INPUT_BYTES).contains(&length);
    let short = attachments.stdin.as_ref().is_some_and(|bytes| bytes.length().is_ok_and(is_short));
    if plain && short && *limits == own && *block == block_of(ahead) {
        PrestartFit::Yes
    } else {
        PrestartFit::No
    }
}

/// Returns the program that is executed ahead in cells of this design: only where a cell has namespaces of its own.
fn of(design: &Design) -> Option<&Ahead> {
    match &design.ground {
        Ground::Root(_) => design.profile.ahead.as_ref(),
        Ground::Bare(_) => None,
    }
}

fn block_of(ahead: &Ahead) -> Block {
    Block { argv: ahead.argv.clone(), env: ahead.env.clone(), cwd: ahead.cwd() }
}

/// Has the payload of an idle cell become the program of its profile. Nothing waits for it: what it is
/// given before it reads stays in the pipe. A pipe too short for the longest input leaves the cell as it is.
///
/// # Errors
/// What making pipes or sending said.
pub(crate) fn execute(cell: &mut Cell, design: &Design) -> Result<(), Errno> {
    let Some(ahead) = of(design) else { return Ok(()) };
    let (stdin, input) = pipe()?;
    // A user who has many pipes gets short ones (pipe(7), pipe-user-pages-soft).
    let room = usize::try_from(fcntl(&input, FcntlArg::F_GETPIPE_SZ)?).unwrap_or(0);
    if room < INPUT_BYTES {
        return Ok(());
    }
    // This process waits for nobody.
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

/// Gives the program its input, with the end behind it. If init watches the cell's memory, it does from here on.
///
/// # Errors
/// EPIPE where the program has ended meanwhile; what reading the input said.
pub(crate) fn feed(
    cell: &Cell,
    design: &Design,
    ready: &QueuedJob,
    executed: Prestarted,
) -> Result<FarEnds, Errno> {
    if ready.fits == PrestartFit::No {
        return Err(Errno::EINVAL);
    }
    cell.limit(&design.profile.limits, &ready.limits)?;
    let Prestarted { input, stdout, stderr, .. } = executed;
    if let Some(bytes) = &ready.attachments.stdin {
        let text = bytes.read(INPUT_BYTES)?;
        if write(&input, &text)? < text.len() {
            return Err(Errno::EIO);
        }
    }
    Ok(FarEnds { stdin: None, stdout, stderr })
}
