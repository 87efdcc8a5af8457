//! Tests of two clients of one executor, over a link whose other end is in the test.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use config::policy::Policy;
use config::profile::Profiles;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};

use config::document::Document;

use super::*;
use crate::Caller;
use crate::capture::lines::Wanted;
use crate::cli::state::ToolHealth;
use crate::patience::soon;
use crate::request::{Precision, SessionCommand, Shown, Wait};
use crate::session::{DEFAULT, Restart, Retention};
use crate::shell::{self, ScriptArgs};
use config::{Config, Origin};
use model::call::Cwd;
use model::job::SessionId;
use model::wire::{self, FRAME_BYTES, Request, Start};

use crate::host_programs::HostPrograms;

type Failed = Box<dyn std::error::Error>;

/// Makes an executor of the shipped configuration, and the supervisor's end of its link.
fn executor() -> Result<(Arc<Executor>, OwnedFd), Failed> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (own, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    let profiles = Profiles::compiled_in();
    let policy = Policy::parse(&config::policy::shipped(), &profiles)?;
    let on = Document::new("c.toml", "schema = 1\n[tools]\non = [\"cli_jq\", \"cli_file\"]\n");
    let config = Config::parse(Some(&on), 1)?;
    let origin = Origin::Embedded;
    let setup = Setup {
        loaded: Loaded { config, policy, profiles, origin },
        workspace: Workspace::Fresh,
        granted: None,
        command_timeout: None,
        host_programs: HostPrograms::default(),
        missing: BTreeSet::from(["cli_jq".to_owned()]),
        workers: 4,
        read_only: None,
        readable: Vec::new(),
        workspace_path: None,
        layer: None,
    };
    Ok((Arc::new(Executor::new(setup, Link::attach(own)?, Audit::off())), other))
}

#[tokio::test]
async fn the_operator_switches_tools_resets_breakers_and_sees_a_missing_program()
-> Result<(), Failed> {
    let (executor, _supervisor) = executor()?;
    let scope = executor.scope(Principal::local());
    let health = |tool: &str| executor.tool_figures().get(tool).map(|figures| figures.health);
    assert_eq!(health("cli_jq"), Some(ToolHealth::Unhealthy), "before any call");
    assert_eq!(health("cli_file"), Some(ToolHealth::Healthy));
    let state = executor.shared.tools.get("cli_file").ok_or("it is on")?;
    let local = Principal::local();
    for _ in 0..5 {
        state.breaker(&local).pass().map_err(|_| "it is closed")?.failed();
    }
    assert_eq!(health("cli_file"), Some(ToolHealth::Degraded));
    assert_eq!(executor.reset_breakers(Some("cli_file")), Ok(1));
    assert_eq!(health("cli_file"), Some(ToolHealth::Healthy));
    assert_eq!(executor.reset_breakers(None), Ok(0), "none is open any more");
    let unknown = NoControl::Unknown("cli_fil".to_owned());
    assert_eq!(executor.reset_breakers(Some("cli_fil")), Err(unknown.clone()));
    let none = NoControl::NoBreaker("bash".to_owned());
    assert_eq!(executor.reset_breakers(Some("bash")), Err(none));

    // A tool is withheld from every client at once, with those that go by its rule, and comes back.
    assert!(scope.withheld("cli_file").is_none() && scope.withheld("bash_jobs").is_none());
    assert_eq!(executor.switch("cli_file", ToolSwitch::Off), Ok(true));
    assert_eq!(executor.switch("cli_file", ToolSwitch::Off), Ok(false), "it is off");
    assert_eq!(executor.switch("bash", ToolSwitch::Off), Ok(true));
    for tool in ["cli_file", "bash", "bash_jobs"] {
        let refused = scope.withheld(tool).map(|refused| (refused.kind, refused.message));
        assert_eq!(refused, Some((RefusedKind::Denied, format!("`{tool}` is switched off"))));
    }
    assert!(!scope.lists("bash") && scope.lists("calculate"));
    assert_eq!(executor.switch("cli_file", ToolSwitch::On), Ok(true));
    assert!(scope.withheld("cli_file").is_none());
    // A tool that the configuration leaves out is never switched on.
    assert_eq!(executor.switch("cli_fil", ToolSwitch::On), Err(unknown));
    let configured = NoControl::Configured("bash_exec".to_owned());
    assert_eq!(executor.switch("bash_exec", ToolSwitch::On), Err(configured));
    Ok(())
}

#[tokio::test]
async fn a_forgotten_client_leaves_nothing_but_failures_and_others_keep_all() -> Result<(), Failed>
{
    let (executor, _supervisor) = executor()?;
    let [stays, leaves] = ["stays", "leaves"].map(Principal::named);
    let state = executor.shared.tools.get("cli_file").ok_or("it is on")?;
    for client in [&stays, &leaves] {
        drop(executor.scope(client.clone()));
        for _ in 0..5 {
            state.breaker(client).pass().map_err(|_| "it is closed")?.failed();
        }
    }
    let caches = || -> Vec<Principal> {
        let caches = executor.shared.caches.lock().unwrap_or_else(PoisonError::into_inner);
        caches.keys().cloned().collect()
    };
    assert_eq!(caches(), [leaves.clone(), stays.clone()]);
    executor.forget(&leaves);
    assert_eq!(caches(), std::slice::from_ref(&stays));
    for client in [&stays, &leaves] {
        assert!(state.breaker(client).pass().is_err(), "it is open");
    }
    Ok(())
}

#[tokio::test]
async fn two_clients_share_the_queue_and_nothing_that_one_has_set() -> Result<(), Failed> {
    let (executor, _supervisor) = executor()?;
    let one = executor.scope(Principal::local());
    let other = executor.scope(Principal::local());
    let ours = one.state();
    let theirs = other.state();
    let places = Precision::new(50).ok_or("out of range")?;
    let tmp = Cwd::new("cwd", "/tmp")?;
    ours.precision.set(places);
    ours.working_dir.set(tmp.clone());
    ours.macros.save("build", vec!["make".to_owned()])?;
    assert_eq!((ours.precision.get(), ours.working_dir.get()), (places, tmp));
    assert_eq!(theirs.precision.get(), Precision::DEFAULT);
    assert_eq!(theirs.working_dir.get(), other.exec_options().working_dir);
    assert_eq!(theirs.macros.get("build"), None);
    assert!(!Arc::ptr_eq(&ours.history, &theirs.history));

    let turn = one.workbench.shared.queue.place(&Principal::local())?;
    assert_eq!((one.pending(), other.pending()), (1, 1));
    drop(turn);
    assert_eq!((one.pending(), other.pending()), (0, 0));
    Ok(())
}

/// Returns the next frame that has come to the supervisor.
async fn next(supervisor: &OwnedFd) -> Result<Request, Failed> {
    let mut buffer = vec![0; FRAME_BYTES];
    let until = Instant::now() + soon(30);
    loop {
        match recv(supervisor.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(bytes) => return Ok(wire::decode(buffer.get(..bytes).ok_or("a long frame")?)?),
            Err(Errno::EAGAIN) if Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Begins a client's session `default`, and returns the session's number. The call is dropped
/// before the supervisor has answered.
async fn begin(client: &Scope, supervisor: &OwnedFd) -> Result<SessionId, Failed> {
    let args = ScriptArgs { command: "true".to_owned(), ..ScriptArgs::default() };
    let command = SessionCommand {
        session: DEFAULT.to_owned(),
        call: shell::script("bash", args)?,
        shell: None,
        restart: Restart::No,
        wait: Wait::Foreground,
        kept: Retention::Spooled,
    };
    let shown = Shown { characters: 100, lines: Wanted::default() };
    let started = tokio::select! {
        answer = client.bash(command, shown, Caller::default()) => {
            return Err(format!("answered without a supervisor: {answer:?}").into());
        }
        frame = next(supervisor) => frame?,
    };
    let Request::Start(Start { call, session: Some(within), .. }) = started else {
        return Err(format!("not a start: {started:?}").into());
    };
    assert_eq!(next(supervisor).await?, Request::Cancel { call });
    Ok(within.session)
}

#[tokio::test]
async fn the_sessions_of_a_dropped_client_end_and_no_others() -> Result<(), Failed> {
    let (executor, supervisor) = executor()?;
    let (one, other, idle) = (
        executor.scope(Principal::named("one")),
        executor.scope(Principal::named("other")),
        executor.scope(Principal::local()),
    );
    let ours = begin(&one, &supervisor).await?;
    let theirs = begin(&other, &supervisor).await?;
    drop((idle, one));
    assert_eq!(next(&supervisor).await?, Request::Forget { session: ours });
    // A marker: nothing else was sent before it.
    executor.shared.link.restart(theirs);
    assert_eq!(next(&supervisor).await?, Request::Restart { session: theirs });
    drop(other);
    assert_eq!(next(&supervisor).await?, Request::Forget { session: theirs });
    Ok(())
}

#[tokio::test]
async fn a_supervisor_that_does_not_read_keeps_no_dropped_client_waiting() -> Result<(), Failed> {
    let (executor, supervisor) = executor()?;
    let client = executor.scope(Principal::local());
    let session = begin(&client, &supervisor).await?;
    // More than the socket holds.
    let orders = 5000;
    (0..orders).for_each(|_| executor.shared.link.restart(session));
    // Synchronous: if it waited for room, this test would not end.
    drop(client);
    for _ in 0..orders {
        assert_eq!(next(&supervisor).await?, Request::Restart { session });
    }
    assert_eq!(next(&supervisor).await?, Request::Forget { session });
    Ok(())
}
