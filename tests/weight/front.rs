//! A front end whose instructions callgrind(1) counts: this program, unconfined, behind a real supervisor.
//!
//! The product's own start cannot be counted: valgrind knows no raw clone3(2), and the confinement would keep its file from
//! being written. So this program starts the supervisor, becomes valgrind, and in that is a front end of it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use cofferdam::commands::streams::Streams;
use cofferdam::commands::{settings, start};
use config::policy::Principal;
use mcp::lines::Ends;
use mcp::serve::{Offer, Watch, connection};
use mcp::server::{Continuity, Server};
use model::job::Workspace;
use model::receipt::Tier;
use service::Executor;
use service::audit::Audit;
use supervisor::{Caps, IdRange, OwnIds, ScopeWish, Spec};

use crate::support::patience;

/// Has this program start a supervisor and a front end that is counted, with this configuration and file of counts.
pub const FLAG: &str = "--weighed";
/// Has this program be that front end.
pub const FRONT_FLAG: &str = "--weighed-front";

type Failed = Box<dyn std::error::Error>;

/// Starts the supervisor, and becomes the front end under valgrind, whose standard error is the link.
pub fn main(config: &str, counts: &str) -> ExitCode {
    let failed = supervised(config).and_then(|link| {
        let own = std::env::current_exe()?;
        let mut command = Command::new("valgrind");
        // Counted from `main` on: what the loader relocates grows with this unoptimised program, which `code` counts.
        command.args(["--tool=callgrind", "--toggle-collect=main", "-q", "--log-file=/dev/null"]);
        command.arg(format!("--callgrind-out-file={counts}")).arg(own).args([FRONT_FLAG, config]);
        Err::<(), Failed>(command.stderr(Stdio::from(link)).exec().into())
    });
    eprintln!("{failed:?}");
    ExitCode::FAILURE
}

fn supervised(config: &str) -> Result<OwnedFd, Failed> {
    let settings = settings::load(Some(Path::new(config))).map_err(|error| error.text())?;
    let started = supervisor::start(Spec {
        profiles: settings.loaded.profiles.iter().cloned().collect(),
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
        own_ids: OwnIds::Unwanted,
        tier: Tier::Full,
        scope: ScopeWish::Never,
        record: None,
        first: None,
        listening: None,
    })?;
    std::mem::forget(started.held);
    Ok(started.link)
}

/// Serves as `cofferdam serve` does once it is confined.
pub fn front(config: &str) -> ExitCode {
    let served = linked().and_then(|link| {
        let settings = settings::load(Some(Path::new(config))).map_err(|error| error.text())?;
        let serving = settings.for_the_front_end();
        let host_programs = settings.host_programs();
        let found = Streams::detect();
        let served = start::conducted(link, async |link| {
            let setup = serving.executor(Workspace::Fresh, host_programs);
            let executor = Arc::new(Executor::new(setup, link.clone(), Audit::off()));
            let ends = Ends::default();
            let _watch = Watch::begin(&ends, async move { link.closed().await }).expect("signals");
            let (reader, writer) = found.opened();
            let ends = Ends { quiet: reader.quiet(), ..ends };
            let scope = executor.scope(Principal::local());
            let kill = ends.kill.clone();
            let server = Server::offering(scope, kill, Offer::BuiltIn, Continuity::Connection);
            Ok(connection(server, reader, writer, ends, None).await)
        });
        Ok(served.map_err(|error| error.text())??)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Takes the link, and puts nothing in its place that a message could be written to.
fn linked() -> Result<OwnedFd, Failed> {
    let link = std::io::stderr().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stderr(File::options().write(true).open("/dev/null")?)?;
    Ok(link)
}
