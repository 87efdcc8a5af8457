//! Calls through the supervisor itself, without a protocol: what the pool is judged by.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::HostContext;
use config::policy::{Grant, Policy};
use model::call::{Argv, Asked, Call, Env, Stdin};
use model::job::{Access, GrantId, Limits, ProfileName, Workspace};
use model::outcome::Outcome;
use model::profile::Profile;
use service::capture::stream::{Follower, Stream};
use service::capture::tap::Source;
use service::capture::{Captured, KEPT_BYTES, Meter};
use service::link::Link;
use supervisor::{Caps, Granted, IdRange, Spec};
use tokio::runtime::Runtime;

use crate::Result;
use crate::clients::Until;

/// A supervisor and the link to it.
pub struct Direct {
    runtime: Runtime,
    link: Link,
    profiles: Vec<Profile>,
}

/// Starts one, before this process has a thread. `shown` is read-only at `/workspace` of jobs that
/// name it.
pub fn start(warm: u16, shown: PathBuf) -> Result<Direct> {
    let none = HostContext {
        cofferdam_config: None,
        xdg_config_home: None,
        home: None,
        system: PathBuf::from("/nonexistent"),
        euid: 0,
        cores: 2,
    };
    let loaded = config::load(None, &none)?;
    let named = |name: &str| ProfileName::new(name).and_then(|name| loaded.profiles.get(&name));
    // No processor limit for the long cases, and room for a hundred calls at once.
    let profiles: Vec<Profile> =
        ["bash", "bc"].iter().filter_map(|name| named(name)).cloned().collect();
    let directories =
        vec![Granted::now(shown.canonicalize()?, "/workspace".into(), Access::ReadOnly)?];
    let caps = Caps {
        cells: 140,
        memory: 1 << 40,
        tmpfs: 1 << 40,
        processes: 20_000,
        warm,
        networks: 32,
        sessions: 0,
        session_idle: std::time::Duration::ZERO,
    };
    let ids = IdRange { first: 2_000_000_000, count: 1024 };
    let spec = Spec {
        profiles: profiles.clone(),
        granted: vec![directories],
        private_cells: supervisor::PrivateCells::Bare,
        sockets: Vec::new(),
        caps,
        ids,
        own_ids: supervisor::OwnIds::Unwanted,
        tier: model::receipt::Tier::Full,
        scope: supervisor::ScopeWish::Never,
        record: None,
        first: None,
        listening: None,
    };
    let started = supervisor::start(spec)?;
    // It may leave SIGCHLD ignored, and the peers, which wait for children, would inherit that.
    sys::signals::usual_signals()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let link = runtime.block_on(async { Link::attach(started.link) })?;
    runtime.block_on(link.ready())?;
    // Under root it holds a block of ids, for as long as this process lives.
    std::mem::forget(started.held);
    Ok(Direct { runtime, link, profiles })
}

/// A job for the supervisor, made again for each call.
#[derive(Clone)]
pub struct Job {
    pub profile: &'static str,
    pub words: Vec<String>,
    pub stdin: &'static str,
    pub workspace: Workspace,
}

impl Job {
    pub fn bash(words: &[&str]) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Self { profile: "bash", words, stdin: "", workspace: Workspace::Fresh }
    }

    pub fn bc(program: &'static str) -> Self {
        let words = ["bc", "-l", "-q"].map(str::to_owned).to_vec();
        Self { profile: "bc", words, stdin: program, workspace: Workspace::Fresh }
    }

    pub fn in_workspace(self) -> Self {
        Self { workspace: Workspace::Granted(GrantId(0)), ..self }
    }

    fn grant(&self, profiles: &[Profile]) -> Result<Grant> {
        let profile = profiles.iter().find(|profile| profile.name.as_str() == self.profile);
        let profile = profile.ok_or("no such profile")?;
        let call = Call {
            tool: "bash".into(),
            argv: Argv::new(self.words.clone())?,
            script: None,
            stdin: Stdin::text("stdin", self.stdin.to_owned())?,
            env: Env::new(BTreeMap::new())?,
            cwd: None,
            asked: Asked::default(),
            profile: None,
            only: None,
            correlation: None,
        };
        // The output limit is the front end's to hold; here everything is read.
        let unlimited = Limits { output: None, ..profile.limits };
        Ok(Policy::operator(
            call,
            &Profile { limits: unlimited, ..profile.clone() },
            self.workspace,
        ))
    }
}

/// One call that is over.
pub struct Done {
    pub took: Duration,
    pub stdout: Captured,
}

/// A call of one of many clients.
pub struct Sample {
    /// Since the first call of all.
    pub ended: Duration,
    pub took: Duration,
}

async fn call(link: &Link, grant: Grant) -> Result<Done> {
    let started = Instant::now();
    let running = link.start(grant, None, None).await?;
    let meter = Arc::new(Meter::new(None));
    let stdout = Stream::new(running.stdout, KEPT_BYTES, Source::Stdout, &meter);
    let stderr = Stream::new(running.stderr, KEPT_BYTES, Source::Stderr, &meter);
    let listener = Arc::new(Nobody);
    let streams =
        async { tokio::join!(stdout.to_the_end(&listener), stderr.to_the_end(&listener)) };
    let (_, ended) = tokio::join!(streams, running.ended);
    let took = started.elapsed();
    let stdout = stdout.into_captured();
    let stderr = stderr.into_captured();
    let ended = ended?;
    if ended.outcome == (Outcome::Exited { code: 0 }) {
        return Ok(Done { took, stdout });
    }
    Err(format!("{:?}: {}", ended.outcome, String::from_utf8_lossy(stderr.head())).into())
}

/// Reads everything and passes it to no listener.
struct Nobody;

impl Follower for Nobody {
    fn received(&self, _: Source, _: &[u8]) {}

    fn over(&self) {}
}

impl Direct {
    /// One call, from the job to the end of its output and of itself.
    pub fn call(&self, job: &Job) -> Result<Done> {
        let grant = job.grant(&self.profiles)?;
        self.runtime.block_on(call(&self.link, grant))
    }

    /// Returns the number of calls that `clients` make one after the other in `time`, by tenths
    /// of the time, so that a slowdown shows.
    pub fn sustained(&self, job: &Job, clients: usize, time: Duration) -> Result<Vec<u32>> {
        let mut tenths = vec![0_u32; 10];
        for Sample { ended, .. } in self.by_clients(job, clients, Until::Over(time))? {
            let tenth = (ended.as_micros() * 10 / time.as_micros().max(1)).min(9);
            let place = usize::try_from(tenth).ok();
            if let Some(count) = place.and_then(|tenth| tenths.get_mut(tenth)) {
                *count += 1;
            }
        }
        Ok(tenths)
    }

    /// Makes calls by so many clients at once.
    pub fn by_clients(&self, job: &Job, clients: usize, until: Until) -> Result<Vec<Sample>> {
        let grant = job.grant(&self.profiles)?;
        let (sender, mut samples) = tokio::sync::mpsc::unbounded_channel();
        let started = Instant::now();
        self.runtime.block_on(async {
            for _ in 0..clients {
                let link = self.link.clone();
                let grant = grant.clone();
                let sender = sender.clone();
                tokio::spawn(async move {
                    loop {
                        let done =
                            call(&link, grant.clone()).await.map_err(|error| error.to_string());
                        let failed = done.is_err();
                        let sample =
                            done.map(|done| Sample { ended: started.elapsed(), took: done.took });
                        if sender.send(sample).is_err() || failed || !until.again(started) {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let mut all = Vec::new();
            while let Some(sample) = samples.recv().await {
                all.push(sample?);
            }
            Ok(all)
        })
    }

    /// Runs `many` calls at once and does `meanwhile` while all of them are under way.
    pub fn at_once<T>(&self, job: &Job, many: usize, meanwhile: impl FnOnce() -> T) -> Result<T> {
        let grant = job.grant(&self.profiles)?;
        self.runtime.block_on(async {
            let mut running = Vec::new();
            for _ in 0..many {
                running.push(self.link.start(grant.clone(), None, None).await?);
            }
            let seen = meanwhile();
            // Dropped, each is taken back.
            drop(running);
            Ok(seen)
        })
    }
}
