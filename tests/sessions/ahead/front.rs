//! A front end that speaks to the supervisor itself, and a profile whose one program is bash.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use config::document::Document;
use config::profile::Profiles;
use model::call::{Argv, Cwd, Env};
use model::job::{ListChanges, ProfileName, Workspace};
use model::outcome::{Ended, Outcome};
use model::profile::Profile;
use model::receipt::Receipt;
use model::wire::{self, Block, Carried, Event, JobInput, Request, Start, StdinKind};
use supervisor::{Caps, IdRange, Spec};
use sys::memory;
use sys::socket::{self, Received};

use crate::host::is_below;
use crate::link;
use crate::support::patience;

/// By what the waiting programs of this test are found.
pub const MARK: &str = "waits-for-its-input";
/// Longest input that these send in a frame.
const HERE_BYTES: usize = 16 << 10;
const PROFILE: &str = r#"
schema = 1
name = "waiting"
extends = "base"
description = "one shell that starts nothing"
exec = { program = "/usr/bin/bash", why = "it can say what it has" }
ahead = { argv = ["bash", "-s", "waits-for-its-input"], env = { GIVEN = "ahead" }, why = "what is tested" }
proc = { view = "own", why = "it can say what it has" }
path = [{ host = "/usr/bin/bash", program = true, why = "the program" }]
[limits]
timeout = "60s"
cpu = "2s"
memory = "128M"
processes = 4
open_files = 64
file_size = "80M"
tmp = "64M"
shm = "1M"
"#;

pub type Check = Result<(), String>;

/// The front end's side of one supervisor.
pub struct Front {
    link: OwnedFd,
    pub profile: Profile,
    call: u64,
}

/// A job: its frame, and the descriptors sent with it.
#[derive(Clone)]
pub struct Job {
    pub start: Start,
    pub argv: Vec<&'static str>,
    pub env: Vec<(&'static str, &'static str)>,
    pub cwd: &'static str,
    pub input: Vec<u8>,
}

/// How a job ended.
pub struct Done {
    pub receipt: Option<Receipt>,
    pub ended: Ended,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// Returns outcome and output, as a caller gets them.
    pub fn report(&self) -> (&Outcome, &str, &str) {
        (&self.ended.outcome, &self.stdout, &self.stderr)
    }
}

pub fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub fn expect<T: PartialEq<U> + std::fmt::Debug, U: std::fmt::Debug>(seen: T, wanted: U) -> Check {
    if seen == wanted { Ok(()) } else { Err(format!("{seen:?} where {wanted:?} belongs")) }
}

impl Front {
    pub fn start() -> Result<Self, String> {
        let given = [Document::new("waiting.toml", PROFILE)];
        let profiles = Profiles::parse(&config::profile::shipped(), &given).map_err(words)?;
        let name = ProfileName::new("waiting").ok_or("a name")?;
        let profile = profiles.get(&name).ok_or("a profile")?.clone();
        let caps = Caps {
            cells: 8,
            memory: 6 << 30,
            tmpfs: 6 << 30,
            processes: 1024,
            warm: 3,
            networks: 32,
            sessions: 0,
            session_idle: patience(),
        };
        let spec = Spec {
            profiles: vec![profile.clone()],
            granted: Vec::new(),
            private_cells: supervisor::PrivateCells::Bare,
            sockets: Vec::new(),
            caps,
            ids: IdRange { first: 2_100_100_000, count: 64 },
            own_ids: supervisor::OwnIds::Unwanted,
            tier: model::receipt::Tier::Full,
            scope: supervisor::ScopeWish::Never,
            record: None,
            first: None,
            listening: None,
        };
        let started = supervisor::start(spec).map_err(words)?;
        std::mem::forget(started.held);
        let mut front = Self { link: started.link, profile, call: 0 };
        match front.event()? {
            (Event::Ready(ready), _) if ready.unusable.is_empty() => Ok(front),
            (other, _) => Err(format!("{other:?}")),
        }
    }

    fn event(&mut self) -> Result<(Event, Received), String> {
        link::event(&self.link, patience())
    }

    /// Makes a job that differs from the program executed ahead only in its input.
    pub fn job(&mut self, input: &str) -> Job {
        self.call += 1;
        let start = Start {
            call: self.call,
            profile: self.profile.name.clone(),
            workspace: Workspace::Fresh,
            only: None,
            session_profile: None,
            session: None,
            changes: ListChanges::No,
            limits: self.profile.limits,
            stdin: JobInput::Bytes(Carried::Sealed),
            script: None,
            block: Carried::Sealed,
        };
        let argv = vec!["bash", "-s", MARK];
        Job { start, argv, env: vec![("GIVEN", "ahead")], cwd: "/tmp", input: input.into() }
    }

    /// Makes the same job with one more, unused argument: it gets a cell without a program.
    pub fn other_job(&mut self, input: &str) -> Job {
        let job = self.job(input);
        Job { argv: vec!["bash", "-s", MARK, "other"], ..job }
    }

    /// Runs a job to its end.
    pub fn run(&mut self, job: &Job) -> Result<Done, String> {
        let call = job.start.call;
        let variables =
            job.env.iter().map(|(name, value)| (String::from(*name), String::from(*value)));
        let block = Block {
            argv: Argv::new(job.argv.iter().map(|word| String::from(*word)).collect())
                .map_err(words)?,
            env: Env::new(variables.collect::<BTreeMap<_, _>>()).map_err(words)?,
            cwd: Cwd::new("cwd", job.cwd).map_err(words)?,
        };
        let block = postcard::to_stdvec(&block).map_err(words)?;
        let sealed = |bytes: &[u8]| memory::sealed(c"test", bytes).map_err(words);
        let block = sealed(&block)?;
        let script = sealed(b":")?;
        let input = sealed(&job.input)?;
        let mut fds: Vec<BorrowedFd<'_>> = vec![block.as_fd()];
        fds.extend(job.start.script.is_some().then(|| script.as_fd()));
        let mut start = job.start.clone();
        if let JobInput::Bytes(carried) = &mut start.stdin {
            // By turns in the two ways that it may come.
            match call.is_multiple_of(2) && job.input.len() < HERE_BYTES {
                true => *carried = Carried::Inline(job.input.clone()),
                false => fds.push(input.as_fd()),
            }
        }
        let frame = wire::encode(&Request::Start(start)).map_err(words)?;
        socket::send(&self.link, &frame, &fds).map_err(words)?;
        self.end_of(call, &job.input)
    }

    fn end_of(&mut self, call: u64, input: &[u8]) -> Result<Done, String> {
        let mut streams = Vec::new();
        let mut output = None;
        loop {
            let (event, received) = self.event()?;
            match event {
                Event::Started { call: started, receipt, stdin, .. } if started == call => {
                    streams = received.fds.into_iter().flatten().collect();
                    output = Some(receipt);
                    if stdin == StdinKind::Pipe {
                        let pipe = streams.remove(0);
                        std::fs::File::from(pipe).write_all(input).map_err(words)?;
                    }
                }
                Event::Ended { call: over, ended } if over == call => {
                    let mut texts = streams
                        .into_iter()
                        .map(|stream| std::io::read_to_string(std::fs::File::from(stream)));
                    let mut text = || texts.next().transpose().map_err(words);
                    let stdout = text()?.unwrap_or_default();
                    let stderr = text()?.unwrap_or_default();
                    return Ok(Done { receipt: output, ended, stdout, stderr });
                }
                Event::Connection { .. } | Event::Logged { .. } => {}
                Event::Started { .. }
                | Event::Ended { .. }
                | Event::Forgotten { .. }
                | Event::Room { .. }
                | Event::Input { .. }
                | Event::Ready(_)
                | Event::Unable(_) => return Err(format!("{event:?}")),
            }
        }
    }

    /// Returns the processes of this supervisor that are [`MARK`]'s: the programs that wait, where no job runs.
    pub fn waiting(&self) -> Vec<i32> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let ours = |pid: &i32| {
            let is_below = u32::try_from(*pid).is_ok_and(|pid| is_below(pid, std::process::id()));
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            is_below && words == format!("bash\0-s\0{MARK}\0").as_bytes()
        };
        pids.filter(ours).collect()
    }

    /// Waits until two programs wait, and for so long.
    pub fn settled(&self, age: Duration) -> Check {
        let end = Instant::now() + patience();
        while self.waiting().len() < 2 {
            if Instant::now() > end {
                return Err(format!("{} programs wait", self.waiting().len()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(age);
        Ok(())
    }
}
