//! A hostile front end: it gets what any caller gets, and the supervisor keeps working.
//!
//! One run of this program for each caller checks them all (`single`), against one supervisor.

mod blocks;

use std::io::BufRead;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use config::HostContext;
use model::job::{
    GrantId, JobMode, Limits, ListChanges, ProfileName, SessionId, StartDirectory, Within,
    Workspace,
};
use model::outcome::{Failure, Outcome};
use model::profile::Profile;
use model::shells::ShellKind;
use model::wire::{self, Carried, Event, FRAME_BYTES, JobInput, Request, Start};
use supervisor::{Caps, IdRange, Spec};
use sys::memory;
use sys::socket::{self, Received};

use super::single;
use crate::link;
use crate::support::{Caller, Check as Verdict, For, patience};
use blocks::block;

struct Front {
    link: OwnedFd,
    profile: Profile,
    call: u64,
}

type Check = Result<(), String>;
type Claim = (&'static str, fn(&mut Front) -> Check);

/// Has this program check these claims.
pub const FLAG: &str = "--frames";

const CLAIMS: [Claim; 12] = [
    ("bytes_that_are_no_frame_are_dropped", garbage),
    ("descriptors_must_be_those_of_the_frame", blocks::descriptors),
    ("a_block_must_be_a_sealed_memfd", blocks::unsealed),
    ("a_block_is_checked_value_by_value", blocks::forged_block),
    ("a_block_in_the_frame_is_checked_as_well", blocks::in_the_frame),
    ("only_what_was_loaded_can_be_named", unloaded),
    ("a_session_is_one_shell_with_a_program_of_the_supervisors", sessions),
    ("a_session_ends_after_the_last_one_shot_call_in_it", one_shot),
    ("limits_only_clamp_down", limits),
    ("a_number_in_use_is_not_taken_twice", reused),
    ("cancels_of_nothing_change_nothing", cancels),
    ("a_front_end_that_never_reads_fills_its_own_queue", never_reads),
];

/// Checks all claims against one supervisor, which serves a good call after each.
pub fn main() -> ! {
    let mut front = Front::start().expect("a supervisor");
    single::judge(&CLAIMS, |claim| claim(&mut front).and_then(|()| front.good_call()))
}

/// Returns the names of the claims: they hold for each caller.
pub fn names() -> Vec<(String, For)> {
    CLAIMS.iter().map(|(name, _)| ((*name).to_owned(), For::Both)).collect()
}

pub fn check(caller: &Caller, name: &str) -> Verdict {
    single::verdict(FLAG, caller, name)
}

/// Reads a stream to its end. That of a session does not block, and may be open a moment longer than the call.
fn whole(stream: OwnedFd) -> std::io::Result<String> {
    nix::fcntl::fcntl(&stream, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()))?;
    std::io::read_to_string(std::fs::File::from(stream))
}

/// Waits for the first line of a stream.
fn first_line(stream: OwnedFd) -> std::io::Result<String> {
    nix::fcntl::fcntl(&stream, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()))?;
    let mut line = String::new();
    std::io::BufReader::new(std::fs::File::from(stream)).read_line(&mut line)?;
    Ok(line)
}

impl Front {
    fn start() -> Result<Self, Box<dyn std::error::Error>> {
        let surroundings = HostContext {
            cofferdam_config: None,
            xdg_config_home: None,
            home: None,
            system: "/nonexistent".into(),
            ..HostContext::of_this_process()
        };
        let loaded = config::load(None, &surroundings)?;
        let name = ProfileName::new("bash").ok_or("a name")?;
        let profile = loaded.profiles.get(&name).ok_or("a profile")?.clone();
        let started = supervisor::start(Spec {
            profiles: vec![profile.clone()],
            granted: Vec::new(),
            private_cells: supervisor::PrivateCells::Bare,
            sockets: Vec::new(),
            caps: Caps {
                cells: 6,
                memory: 6 << 30,
                tmpfs: 6 << 30,
                processes: 1024,
                warm: 1,
                networks: 32,
                sessions: 2,
                session_idle: patience(),
            },
            ids: IdRange { first: 2_100_000_000, count: 64 },
            own_ids: supervisor::OwnIds::Unwanted,
            tier: model::receipt::Tier::Full,
            scope: supervisor::ScopeWish::Never,
            record: None,
            first: None,
            listening: None,
        })?;
        std::mem::forget(started.held);
        let mut front = Self { link: started.link, profile, call: 0 };
        match front.event()? {
            (Event::Ready(_), _) => Ok(front),
            (other, _) => Err(format!("{other:?}").into()),
        }
    }

    fn event(&mut self) -> Result<(Event, Received), String> {
        link::event(&self.link, patience())
    }

    fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Check {
        let frame = wire::encode(request).map_err(|error| error.to_string())?;
        socket::send(&self.link, &frame, fds).map_err(|errno| errno.to_string())
    }

    /// Makes a correct frame that starts a call.
    fn frame(&mut self) -> Start {
        self.call += 1;
        Start {
            call: self.call,
            profile: self.profile.name.clone(),
            workspace: Workspace::Fresh,
            only: None,
            session_profile: None,
            session: None,
            changes: ListChanges::No,
            limits: self.profile.limits,
            stdin: JobInput::Empty,
            script: None,
            block: Carried::Sealed,
        }
    }

    /// Makes a correct frame of a command in a session.
    fn session(&mut self, session: u64) -> Start {
        let within = Within {
            session: SessionId(session),
            directory: StartDirectory::Stay,
            mode: JobMode::Foreground,
            shell: ShellKind::Bash,
        };
        Start { session: Some(within), script: Some(Carried::Sealed), ..self.frame() }
    }

    /// Waits for the end of `call`. Returns its outcome and output.
    fn end_of(&mut self, call: u64) -> Result<(Outcome, String), String> {
        let mut output = None;
        loop {
            let (event, received) = self.event()?;
            match event {
                Event::Started { call: started, .. } if started == call => {
                    output = received.fds.into_iter().flatten().next();
                }
                Event::Ended { call: ended, ended: end } if ended == call => {
                    let text = output.map(whole).transpose().map_err(|error| error.to_string())?;
                    return Ok((end.outcome, text.unwrap_or_default()));
                }
                Event::Started { .. }
                | Event::Ended { .. }
                | Event::Forgotten { .. }
                | Event::Room { .. }
                | Event::Input { .. }
                | Event::Connection { .. }
                | Event::Logged { .. } => {}
                Event::Ready(_) | Event::Unable(_) => return Err(format!("{event:?}")),
            }
        }
    }

    fn run(&mut self, start: Start, script: &str) -> Result<(Outcome, String), String> {
        let call = start.call;
        let block = block(&["bash", "-c", script])?;
        self.send(&Request::Start(start), &[block.as_fd()])?;
        self.end_of(call)
    }

    /// Checks that a caller is served after the attack: the control of every claim.
    fn good_call(&mut self) -> Check {
        let start = self.frame();
        expect(self.run(start, "echo alive")?, (Outcome::Exited { code: 0 }, "alive\n".to_owned()))
    }

    /// Sends a start with these descriptors; it must be refused for this reason.
    fn refused(&mut self, start: Start, fds: &[BorrowedFd<'_>], reason: &str) -> Check {
        let call = start.call;
        self.send(&Request::Start(start), fds)?;
        let refusal = Outcome::Failed(Failure::Refused { why: reason.to_owned() });
        expect(self.end_of(call)?, (refusal, String::new()))
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(seen: T, wanted: T) -> Check {
    if seen == wanted { Ok(()) } else { Err(format!("{seen:?} where {wanted:?} belongs")) }
}

fn garbage(front: &mut Front) -> Check {
    let frames: [Vec<u8>; 4] = [
        vec![0xff; FRAME_BYTES],
        vec![0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        vec![0; 3],
        // Longer than any frame: cut off, and so dropped whole.
        vec![1; FRAME_BYTES + 4096],
    ];
    for frame in frames {
        socket::send(&front.link, &frame, &[]).map_err(|errno| errno.to_string())?;
    }
    Ok(())
}

fn unloaded(front: &mut Front) -> Check {
    let fd = block(&["true"])?;
    let unknown = ProfileName::new("other").ok_or("a name")?;
    let start = Start { profile: unknown, ..front.frame() };
    front.refused(start, &[fd.as_fd()], "no profile `other` with that workspace")?;
    let start = Start { workspace: Workspace::Granted(GrantId(0)), ..front.frame() };
    front.refused(start, &[fd.as_fd()], "no profile `bash` with that workspace")
}

/// A command of a session: whatever its block says, it is the supervisor's bash that takes it.
fn command(front: &mut Front, session: u64, text: &str) -> Result<(Outcome, String), String> {
    let start = front.session(session);
    let call = start.call;
    let block = block(&["/bin/sh", "-c", "echo chosen by the front end"])?;
    let script = memory::sealed(c"script", text.as_bytes()).map_err(|error| error.to_string())?;
    front.send(&Request::Start(start), &[block.as_fd(), script.as_fd()])?;
    front.end_of(call)
}

fn sessions(front: &mut Front) -> Check {
    let fine = |text: &str| (Outcome::Exited { code: 0 }, text.to_owned());
    expect(command(front, 1, "x=1; echo $0")?, fine("bash\n"))?;
    expect(command(front, 1, "echo $x")?, fine("1\n"))?;
    expect(command(front, 2, "echo ${x-none}")?, fine("none\n"))?;
    let start = Start { script: None, ..front.session(1) };
    front.refused(start, &[block(&["true"])?.as_fd()], "a session takes a script")?;
    // Two may be at once: the third is refused, and has a place when another has gone.
    let busy = Outcome::Failed(Failure::Busy { what: "sessions".to_owned() });
    expect(command(front, 3, "echo never")?, (busy, String::new()))?;
    front.send(&Request::Forget { session: SessionId(2) }, &[])?;
    front.send(&Request::Restart { session: SessionId(77) }, &[])?;
    match front.event()? {
        (Event::Forgotten { session: SessionId(2) }, _) => {}
        (other, _) => return Err(format!("{other:?}")),
    }
    expect(command(front, 3, "echo ${x-none}")?, fine("none\n"))?;
    front.send(&Request::Restart { session: SessionId(1) }, &[])?;
    expect(command(front, 1, "echo ${x-gone}")?, fine("gone\n"))?;
    two_at_once(front)
}

/// Builds the frame of a call outside of the session's shell.
fn one_shot_frame(front: &mut Front, session: u64) -> Start {
    Start { workspace: Workspace::Session(SessionId(session)), ..front.frame() }
}

fn forgotten(front: &mut Front, session: u64) -> Check {
    loop {
        match front.event()? {
            (Event::Forgotten { session: SessionId(gone) }, _) if gone == session => return Ok(()),
            (Event::Started { .. } | Event::Ended { .. } | Event::Forgotten { .. }, _) => {}
            (other, _) => return Err(format!("{other:?}")),
        }
    }
}

fn one_shot(front: &mut Front) -> Check {
    let fine = |text: &str| (Outcome::Exited { code: 0 }, text.to_owned());
    for session in [1, 3] {
        front.send(&Request::Forget { session: SessionId(session) }, &[])?;
        forgotten(front, session)?;
    }
    let start = one_shot_frame(front, 4);
    expect(front.run(start, "echo of 4 > f; cat f")?, fine("of 4\n"))?;
    let start = one_shot_frame(front, 5);
    expect(front.run(start, "ls")?, fine(""))?;
    // In a session or not, no call can name a profile that was not loaded.
    let fd = block(&["true"])?;
    let of_five = Workspace::Session(SessionId(5));
    let both = Start { workspace: of_five, ..front.session(5) };
    let script = memory::sealed(c"script", b"true").map_err(|error| error.to_string())?;
    front.refused(both, &[fd.as_fd(), script.as_fd()], "a job is in a session or beside it")?;
    let unknown = ProfileName::new("other").ok_or("a name")?;
    let start = Start { profile: unknown, ..one_shot_frame(front, 5) };
    let reason = "the session has another profile, or no workspace of its own";
    front.refused(start, &[fd.as_fd()], reason)?;
    // A one-shot cell in a closing session ends with it, and no further job follows there.
    let slow = one_shot_frame(front, 4);
    let late = one_shot_frame(front, 4);
    let call = slow.call;
    let fd = block(&["bash", "-c", "trap '' TERM; echo deaf; sleep 1000"])?;
    front.send(&Request::Start(slow), &[fd.as_fd()])?;
    let output = match front.event()? {
        (Event::Started { call: started, .. }, received) if started == call => received,
        (other, _) => return Err(format!("{other:?}")),
    };
    // Once it ignores TERM: a session that could end at once would be made again by the next job in it.
    let output = output.fds.into_iter().flatten().next().ok_or("no output")?;
    expect(first_line(output).map_err(|error| error.to_string())?, "deaf\n".to_owned())?;
    front.send(&Request::Forget { session: SessionId(4) }, &[])?;
    front.refused(late, &[fd.as_fd()], "the session has ended")?;
    expect(front.end_of(call)?.0, Outcome::Cancelled)?;
    forgotten(front, 4)?;
    // The number is free again, and nothing of what was there is.
    let start = one_shot_frame(front, 4);
    expect(front.run(start, "ls")?, fine(""))
}

/// The second of two commands in one session is refused while the first runs.
fn two_at_once(front: &mut Front) -> Check {
    let first = front.session(1);
    let second = front.session(1);
    let call = first.call;
    let block = block(&["true"])?;
    let script = |text: &str| memory::sealed(c"script", text.as_bytes());
    let slow = script("sleep 0.3; echo slow").map_err(|error| error.to_string())?;
    front.send(&Request::Start(first), &[block.as_fd(), slow.as_fd()])?;
    let refused =
        front.refused(second, &[block.as_fd(), slow.as_fd()], "the session runs another command");
    refused?;
    // The streams came with a frame that `refused` has read already: only the end is left.
    let (outcome, _) = front.end_of(call)?;
    expect(outcome, Outcome::Exited { code: 0 })
}

fn limits(front: &mut Front) -> Check {
    let own = front.profile.limits;
    let most = Limits {
        wall: Duration::MAX,
        cpu: Duration::MAX,
        processors: Some(u32::MAX),
        memory: u64::MAX,
        processes: u32::MAX,
        open_files: u32::MAX,
        file_size: u64::MAX,
        workspace_bytes: u64::MAX,
        tmp_bytes: u64::MAX,
        shm_bytes: u64::MAX,
        inodes: u32::MAX,
        output: None,
    };
    let start = Start { limits: most, ..front.frame() };
    let seen = front.run(start, "ulimit -Hu; ulimit -Hn; ulimit -Hc; ulimit -Hf")?;
    let blocks = own.file_size / 1024;
    let wanted = format!("{}\n{}\n0\n{blocks}\n", own.processes + 1, own.open_files);
    expect(seen, (Outcome::Exited { code: 0 }, wanted))
}

fn reused(front: &mut Front) -> Check {
    let start = front.frame();
    let first = block(&["bash", "-c", "sleep 0.2; echo first"])?;
    let second = block(&["true"])?;
    let call = start.call;
    front.send(&Request::Start(start.clone()), &[first.as_fd()])?;
    front.send(&Request::Start(start), &[second.as_fd()])?;
    expect(front.end_of(call)?, (Outcome::Exited { code: 0 }, "first\n".to_owned()))
}

fn cancels(front: &mut Front) -> Check {
    let start = front.frame();
    let call = start.call;
    let fd = block(&["bash", "-c", "sleep 0.2; echo whole"])?;
    front.send(&Request::Start(start), &[fd.as_fd()])?;
    for other in (0..2_000).filter(|other| *other != call) {
        front.send(&Request::Cancel { call: other + 1_000_000 }, &[])?;
        front.send(&Request::OutputLimit { call: other + 1_000_000 }, &[])?;
    }
    expect(front.end_of(call)?, (Outcome::Exited { code: 0 }, "whole\n".to_owned()))
}

fn never_reads(front: &mut Front) -> Check {
    // Each is refused, with a frame that is never read: sooner or later no more is taken.
    let start = front.frame();
    let frame = wire::encode(&Request::Start(start)).map_err(|error| error.to_string())?;
    let mut taken = 0;
    let mut full = 0;
    while full < 100 && taken < 200_000 {
        match socket::send_now(&front.link, &frame, &[]) {
            Ok(()) => (taken, full) = (taken + 1, 0),
            Err(_) => {
                full += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    if taken >= 200_000 {
        return Err("it takes without end".to_owned());
    }
    // All that was taken is answered once it is read.
    for _ in 0..taken {
        front.event()?;
    }
    Ok(())
}
