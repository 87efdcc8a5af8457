//! Hands a job to a cell's payload: streams, strings and limits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use cell::payload::STRINGS_BYTES;
use cell::report::{self, First, HERE_BYTES, StringSpan, ToInit, ToPayload};
use cell::{Design, Ground, errno_of};
use model::call::Env;
use model::job::{Limits, ListChanges, Workspace};
use model::profile::Profile;
use model::wire::{Block, JobInput, Start};
use sys::memory;

use super::cell::Cell;
use super::queued_job::QueuedJob;
use super::streams::{FarEnds, Streams, null, pipe};
use crate::rootfs::terminals::{self, Terminal};

/// Sends a job to the payload of `cell`, which executes it as soon as it has read it.
///
/// # Errors
/// The errno of making pipes or memfds, or of sending.
pub(crate) fn hand_over(
    cell: &mut Cell,
    design: &Design,
    ready: &QueuedJob,
) -> Result<FarEnds, Errno> {
    let QueuedJob { start, block, attachments, limits, .. } = ready;
    let ([stdin, stdout, stderr], far) = match start.stdin {
        JobInput::Terminal => with_terminal(design)?,
        JobInput::Pipe | JobInput::Bytes(_) | JobInput::Empty => with_pipes(cell, design, ready)?,
    };
    let first = request_scan(cell, design, start)?;
    let script = attachments.script.as_ref().map(|script| script.file(c"cofferdam-script"));
    let script = script.transpose()?;
    cell.limit(&design.profile.limits, limits)?;
    let terminal = matches!(start.stdin, JobInput::Terminal);
    let program = Program { block, limits, first, script: script.as_ref(), terminal };
    send(cell, design, &program, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])?;
    Ok(far)
}

/// Makes pipes for a job: the program's ends and the front end's.
fn with_pipes(
    cell: &mut Cell,
    design: &Design,
    ready: &QueuedJob,
) -> Result<([OwnedFd; 3], FarEnds), Errno> {
    let Streams { stdout: (stdout_read, stdout), stderr: (stderr_read, stderr), empty } =
        streams(cell, design)?;
    let (stdin, stdin_write) = match (&ready.start.stdin, &ready.attachments.stdin) {
        (JobInput::Pipe, _) => pipe().map(|(read, write)| (read, Some(write)))?,
        (JobInput::Bytes(_), Some(bytes)) => (bytes.file(c"cofferdam-stdin")?, None),
        (JobInput::Bytes(_), None) => return Err(Errno::EBADF),
        (JobInput::Empty | JobInput::Terminal, _) => (empty, None),
    };
    let far = FarEnds { stdin: stdin_write, stdout: stdout_read, stderr: stderr_read };
    Ok(([stdin, stdout, stderr], far))
}

/// Opens a new terminal in the cell's devpts for a job.
fn with_terminal(design: &Design) -> Result<([OwnedFd; 3], FarEnds), Errno> {
    let copy = |fd: &OwnedFd| fd.try_clone().map_err(|error| errno_of(&error));
    let directory = design.root()?.terminals.as_ref().ok_or(Errno::ENOTTY)?;
    let size = design.profile.terminal.ok_or(Errno::ENOTTY)?;
    let Terminal { master, slave, .. } = terminals::open_in(directory, size)?;
    // Standard error is on the terminal too; its separate pipe has reached its end already.
    let (stderr, _) = pipe()?;
    let far = FarEnds { stdin: Some(copy(&master)?), stdout: master, stderr };
    Ok(([copy(&slave)?, copy(&slave)?, slave], far))
}

/// Returns the streams of the cell's first and only job.
pub(crate) fn streams(cell: &mut Cell, design: &Design) -> Result<Streams, Errno> {
    cell.streams.take().map_or_else(|| Streams::new(design), Ok)
}

/// The program that a payload executes, without its streams.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub block: &'a Block,
    pub limits: &'a Limits,
    pub first: First,
    pub script: Option<&'a OwnedFd>,
    /// True if the standard input is a terminal.
    pub terminal: bool,
}

/// Sends the payload of `cell` the program to execute.
///
/// # Errors
/// The errno of making a memfd or of sending; E2BIG: more strings than a payload has room for.
pub(crate) fn send(
    cell: &Cell,
    design: &Design,
    program: &Program<'_>,
    streams: [BorrowedFd<'_>; 3],
) -> Result<(), Errno> {
    let Program { block, limits, first, script, terminal } = *program;
    let (strings, head) = strings(cell, design, block, limits)?;
    let head = ToPayload { first, terminal, ..head };
    let (inline, sealed) = match head.place {
        StringSpan::Here => (strings.as_slice(), None),
        StringSpan::Sealed => {
            let sealed = memory::sealed(c"cofferdam-strings", &strings);
            (&[][..], Some(sealed.map_err(|error| errno_of(&error))?))
        }
    };
    let mut fds = streams.to_vec();
    fds.extend([sealed.as_ref(), script].into_iter().flatten().map(AsFd::as_fd));
    show_facts(cell, design, limits)?;
    report::send_with(&cell.job, &head, inline, &fds)
}

/// Starts the shell of a session: its streams are /dev/null, as each call brings its own.
///
/// # Errors
/// The errno of making memfds or of sending.
pub(crate) fn shell(
    cell: &Cell,
    design: &Design,
    block: &Block,
    ready: &QueuedJob,
) -> Result<(), Errno> {
    let limits = &ready.limits;
    let first = request_scan(cell, design, &ready.start)?;
    let stdin = null(design, OFlag::O_RDONLY)?;
    let output = null(design, OFlag::O_WRONLY)?;
    cell.limit(&design.profile.limits, limits)?;
    let program = Program { block, limits, first, script: None, terminal: false };
    send(cell, design, &program, [stdin.as_fd(), output.as_fd(), output.as_fd()])
}

/// Updates the memory and the uptime that the cell's /proc shows, if it has one.
fn show_facts(cell: &Cell, design: &Design, limits: &Limits) -> Result<(), Errno> {
    match &design.ground {
        Ground::Root(root) => {
            root.sizes.age(cell.slot)?;
            root.sizes.show(cell.slot, limits.memory)
        }
        Ground::Bare(_) => Ok(()),
    }
}

/// Asks init to scan the workspace if changes are to be listed. Sent before the job, because the
/// payload waits for the scan unless the workspace must be empty. A cell without a root has no
/// workspace at a path that init knows.
fn request_scan(cell: &Cell, design: &Design, start: &Start) -> Result<First, Errno> {
    let first = match (start.workspace, start.session) {
        (Workspace::Fresh, None) => First::Nothing,
        (Workspace::Fresh, Some(_)) | (Workspace::Granted(_) | Workspace::Session(_), _) => {
            First::Something
        }
    };
    match (start.changes, &design.ground) {
        (ListChanges::No, _) | (ListChanges::Yes, Ground::Bare(_)) => Ok(First::Nothing),
        (ListChanges::Yes, Ground::Root(_)) => {
            report::send(&cell.control, &ToInit::Look(first), &[]).map(|()| first)
        }
    }
}

/// Encodes directory, exec candidates, arguments and environment, each NUL-terminated.
fn strings(
    cell: &Cell,
    design: &Design,
    block: &Block,
    limits: &Limits,
) -> Result<(Vec<u8>, ToPayload), Errno> {
    let host_path = |path: &str| match &cell.private {
        Some(private) => private.host_path(path),
        None => path.to_owned(),
    };
    let mut environment = environment(cell, &design.profile, &block.env);
    if cell.private.is_some() {
        // Without a private /tmp, variables name the directory that replaces it.
        environment.retain(|variable| !variable.starts_with("HOME="));
        environment.push(format!("HOME={}", host_path("/tmp/home")));
        environment.push(format!("TMPDIR={}", host_path("/tmp")));
    }
    let directory = host_path(block.cwd.as_str());
    let path = environment
        .iter()
        .find_map(|variable| variable.strip_prefix("PATH="))
        .unwrap_or(model::profile::PATH);
    let candidates = candidates(block.argv.program(), path);
    let arguments = block.argv.words();
    let mut bytes = Vec::new();
    let all = std::iter::once(directory.as_str())
        .chain(candidates.iter().map(String::as_str))
        .chain(arguments.iter().map(String::as_str))
        .chain(environment.iter().map(String::as_str));
    for string in all {
        bytes.extend_from_slice(string.as_bytes());
        bytes.push(0);
    }
    if bytes.len() > STRINGS_BYTES {
        return Err(Errno::E2BIG);
    }
    let count = |n: usize| u32::try_from(n).map_err(|_| Errno::E2BIG);
    let head = ToPayload {
        bytes: count(bytes.len())?,
        place: if bytes.len() > HERE_BYTES { StringSpan::Sealed } else { StringSpan::Here },
        candidates: count(candidates.len())?,
        arguments: count(arguments.len())?,
        limits: *limits,
        first: First::Nothing,
        terminal: false,
    };
    Ok((bytes, head))
}

/// Returns `NAME=value` strings; later sources override earlier ones.
fn environment(cell: &Cell, profile: &Profile, caller: &Env) -> Vec<String> {
    let placeholders: Vec<_> = cell.network.placeholders(&profile.egress).collect();
    let mut all = profile.environment();
    all.extend(placeholders.iter().map(|(name, text)| (*name, text.as_str())));
    all.extend(caller.iter());
    all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// Returns the paths that execvp(3) would try. At most 64 entries of PATH are used.
const MAX_PATH_ENTRIES: usize = 64;
fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    let directories = path.split(':').take(MAX_PATH_ENTRIES);
    // An empty entry of PATH means the current directory.
    directories
        .map(|directory| {
            let directory = if directory.is_empty() { "." } else { directory };
            format!("{directory}/{program}")
        })
        .collect()
}
