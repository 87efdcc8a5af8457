//! The process that becomes the program: it probes its confinement, waits for a job and execs.

use std::convert::Infallible;
use std::ffi::CStr;
use std::fs::File;
use std::iter::Take;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{Whence, chdir, linkat, lseek};

use super::landlock::open_canary;
use super::limits::PROGRAM_FD;
use super::report::{self, First, FromPayload, Probes, StringSpan, ToPayload, raw};
use super::spec::CellSpec;
use super::{c_path, limits};
use model::call::{ARGV_BYTES, ENV_BYTES, PATH_BYTES};
use model::job::Limits;
use model::profile::Exec;
use sys::exec::{self, Filled, Pointers};
use sys::sharing::Stack;
use sys::socket::{self, PacketWait, Received};
use sys::{Result, process, signals, terminal};

/// Maximum bytes of the strings of a job.
pub const STRINGS_BYTES: usize = 2 * (ARGV_BYTES + ENV_BYTES + PATH_BYTES);
/// Descriptor of the program's script.
const SCRIPT_FD: i32 = 3;

/// Buffers of a payload, allocated before the first clone; each cell gets a copy on write.
#[derive(Debug)]
pub struct Scratch {
    pub stack: Stack,
    pub room: JobRoom,
}

/// Buffers for one job.
#[derive(Debug)]
pub struct JobRoom {
    strings: Vec<u8>,
    pointers: Pointers,
    /// An encoded job that is only decoded, never run.
    sample: Vec<u8>,
}

impl Scratch {
    /// Allocates the buffers.
    ///
    /// # Errors
    /// ENOMEM: there is no memory for the stack.
    pub fn new() -> Result<Self> {
        let room = JobRoom {
            strings: vec![0; STRINGS_BYTES],
            pointers: Pointers::with_room(ARGV_BYTES / 2, ENV_BYTES / 2),
            sample: sample()?,
        };
        Ok(Self { stack: Stack::new()?, room })
    }
}

/// Encodes a job with one directory, one candidate, one argument and one variable.
fn sample() -> Result<Vec<u8>> {
    const STRINGS: &[u8] = b"/\0/\0-\0A=\0";
    let head = ToPayload {
        bytes: u32::try_from(STRINGS.len()).map_err(|_| Errno::E2BIG)?,
        place: StringSpan::Here,
        candidates: 1,
        arguments: 1,
        limits: Limits::none(),
        first: First::Nothing,
        terminal: false,
    };
    let mut packet = postcard::to_stdvec(&head).map_err(|_| Errno::EMSGSIZE)?;
    packet.extend_from_slice(STRINGS);
    Ok(packet)
}

/// Resources of the payload until it gets a job.
#[derive(Debug)]
pub struct HeldPayload {
    /// The only program of [`Exec::Only`], at `PROGRAM_FD`.
    pub program: Option<OwnedFd>,
}

/// Opens the program of [`Exec::Only`] at the only descriptor that the filter allows to execute.
pub(crate) fn hold_program(exec: &Exec) -> Result<Option<OwnedFd>> {
    let Exec::Only(path) = exec else { return Ok(None) };
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let opened = nix::fcntl::open(c_path(path)?.as_c_str(), flags, Mode::empty())?;
    let number = i32::try_from(PROGRAM_FD).map_err(|_| Errno::EBADF)?;
    process::duplicate_to(opened, number).map(Some)
}

/// Runs the probes, reports their results, waits for the job and executes it.
pub fn run(entry: &CellSpec<'_>, payload: HeldPayload, room: &mut JobRoom) -> Result<()> {
    let ready = FromPayload::Ready(probe(entry));
    signals::program_signals()?;
    rehearse(room)?;
    report::send(entry.job, &ready, &[])?;
    let received = socket::receive(entry.job, &mut room.strings, PacketWait::Yes)?;
    if received.bytes == 0 {
        return Ok(());
    }
    let Err(failed) = become_program(entry, &payload, received, room);
    report::send(entry.job, &failed, &[])
}

/// Decodes the sample job, so that the pages needed for this are mapped now, and not while a client
/// waits for a program.
fn rehearse(room: &mut JobRoom) -> Result<()> {
    let length = room.sample.len();
    room.strings.get_mut(..length).ok_or(Errno::E2BIG)?.copy_from_slice(&room.sample);
    std::hint::black_box(decode_job(room, length, &mut std::iter::empty())?);
    Ok(())
}

/// A job in the form that execve(2) and its preparation need.
#[derive(Debug)]
struct DecodedJob<'r> {
    message: ToPayload,
    directory: &'r CStr,
    candidates: Take<Strings<'r>>,
    filled: Filled<'r>,
}

/// Decodes the job in the first `received` bytes of `room`.
fn decode_job<'r>(
    room: &'r mut JobRoom,
    received: usize,
    fds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<DecodedJob<'r>> {
    let JobRoom { strings: buffer, pointers, .. } = room;
    let (message, strings) = strings(buffer, received, fds)?;
    let mut list = Strings(strings);
    let directory = list.next().ok_or(Errno::EINVAL)?;
    let count = usize::try_from(message.candidates).unwrap_or(0);
    let argc = usize::try_from(message.arguments).unwrap_or(0);
    let candidates = Strings(list.0).take(count);
    let filled = pointers.fill(argc, list.skip(count))?;
    Ok(DecodedJob { message, directory, candidates, filled })
}

/// Decodes the job in the first `received` bytes of `buffer`. Returns it with its strings, which
/// are read from a memfd if there is one.
fn strings<'b>(
    buffer: &'b mut [u8],
    received: usize,
    fds: &mut impl Iterator<Item = OwnedFd>,
) -> Result<(ToPayload, &'b [u8])> {
    let packet = buffer.get(..received).unwrap_or_default();
    let (job, rest) = postcard::take_from_bytes::<ToPayload>(packet).map_err(|_| Errno::EBADMSG)?;
    let head = received.saturating_sub(rest.len());
    let bytes = usize::try_from(job.bytes).map_err(|_| Errno::E2BIG)?;
    let strings = match job.place {
        StringSpan::Here => head..head.saturating_add(bytes),
        StringSpan::Sealed => {
            let file = File::from(fds.next().ok_or(Errno::EBADF)?);
            let target = buffer.get_mut(..bytes).ok_or(Errno::E2BIG)?;
            file.read_exact_at(target, 0).map_err(|_| Errno::EIO)?;
            0..bytes
        }
    };
    Ok((job, buffer.get(strings).ok_or(Errno::E2BIG)?))
}

/// Returns the errno of a call that must fail; 0 if it succeeded.
fn refusal<T>(result: Result<T>) -> i32 {
    result.err().map_or(0, raw)
}

/// Tries calls that the cell's layers must refuse.
fn probe(entry: &CellSpec<'_>) -> Probes {
    let canary = open_canary(&entry.design.hidden);
    let namespace = unshare(CloneFlags::CLONE_NEWUSER);
    let packet = socket::probe(libc::AF_PACKET);
    Probes {
        canary: refusal(canary),
        namespace: refusal(namespace),
        packet: refusal(packet),
        names: entry
            .design
            .mediation
            .as_ref()
            .and_then(|mediation| mediation.probe.as_deref())
            .map(names),
    }
}

/// Tries to make a guarded name, by a call that would fail without the guard too. Then tries to
/// make an existing name, which succeeds only if init can read the arguments.
fn names(guarded: &CStr) -> (i32, i32) {
    let guarded_result =
        linkat(AT_FDCWD, c"/tmp/home/.absent", AT_FDCWD, guarded, AtFlags::empty());
    // The only call for making names that every profile allows.
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    let existing_result = openat(AT_FDCWD, c"/tmp/home", flags, Mode::S_IRUSR);
    (refusal(guarded_result), refusal(existing_result))
}

/// Takes the last steps before the program starts. Returns only the error of a step that failed.
fn become_program(
    entry: &CellSpec<'_>,
    payload: &HeldPayload,
    received: Received,
    room: &mut JobRoom,
) -> std::result::Result<Infallible, FromPayload> {
    let exec = |errno| FromPayload::Exec { errno: raw(errno) };
    let Received { bytes, fds, .. } = received;
    let mut fds = fds.into_iter().flatten();
    let (Some(stdin), Some(stdout), Some(stderr)) = (fds.next(), fds.next(), fds.next()) else {
        return Err(exec(Errno::EBADF));
    };
    let job = decode_job(room, bytes, &mut fds).map_err(exec)?;
    if job.message.first == First::Something {
        await_scan(entry).map_err(exec)?;
    }
    place_streams([stdin, stdout, stderr], fds.next()).map_err(exec)?;
    limits::lowered(&job.message.limits, entry.shared.memory, entry.others).map_err(exec)?;
    if job.message.terminal {
        terminal::take_control(std::io::stdin()).map_err(exec)?;
    }
    chdir(job.directory).map_err(|errno| FromPayload::Cwd { errno: raw(errno) })?;
    Err(exec(match &payload.program {
        Some(program) => exec::execveat(program, &job.filled),
        None => try_candidates(job.candidates, &job.filled),
    }))
}

/// Waits until init has scanned the workspace.
fn await_scan(entry: &CellSpec<'_>) -> Result<()> {
    let (_, theirs) = entry.handoff;
    socket::receive(theirs, &mut [0; 8], PacketWait::Yes).map(drop)
}

/// Executes the first candidate that a shell would execute, and returns the error that a shell
/// would show (execvp(3)).
fn try_candidates<'a>(candidates: impl Iterator<Item = &'a CStr>, filled: &Filled<'_>) -> Errno {
    let mut worst = Errno::ENOENT;
    for path in candidates {
        let errno = exec::execve(path, filled);
        if errno == Errno::EACCES {
            // A later candidate may be executable.
            worst = errno;
        } else if !matches!(errno, Errno::ENOENT | Errno::ENOTDIR) {
            return errno;
        }
    }
    worst
}

/// Duplicates the streams to their numbers. All other descriptors close at exec.
fn place_streams(streams: [OwnedFd; 3], script: Option<OwnedFd>) -> Result<()> {
    process::cloexec_from(3)?;
    for (stream, number) in streams.iter().zip(0..) {
        process::duplicate_inheritable(stream, number)?;
    }
    // Before the script, because a stream may have the script's number and would close it later.
    drop(streams);
    if let Some(script) = script {
        // The front end wrote through this open file description, whose offset is shared: start at
        // 0.
        lseek(&script, 0, Whence::SeekSet)?;
        process::duplicate_inheritable(&script, SCRIPT_FD)?;
    }
    Ok(())
}

/// Iterates over consecutive NUL-terminated strings.
#[derive(Debug)]
struct Strings<'a>(&'a [u8]);

impl<'a> Iterator for Strings<'a> {
    type Item = &'a CStr;

    fn next(&mut self) -> Option<&'a CStr> {
        let string = CStr::from_bytes_until_nul(self.0).ok()?;
        self.0 = self.0.get(string.count_bytes() + 1..)?;
        Some(string)
    }
}
