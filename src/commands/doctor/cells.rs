//! Trials in real cells: each default profile, the operator's profiles, and a session.

use std::os::fd::OwnedFd;

use super::layer::{LayerCheck, LayerState, PROFILE, ProbeResult, missing, ok};
use crate::commands::error::CliError;
use crate::commands::settings::Settings;
use crate::commands::start;
use config::policy::{Grant, Policy};
use config::profile::Profiles;
use model::call::{Argv, Asked, Call, Env, Stdin};
use model::job::{JobMode, ProfileName, SessionId, StartDirectory, Within, Workspace};
use model::outcome::{Ended, Failure, Outcome, errno_text};
use model::receipt::Receipt;
use model::shells::ShellKind;
use model::wire::Ready;
use service::link::Link;
use service::shell::ScriptArgs;

/// Profiles that are tried always, with the arguments and the input of the program that runs in them.
const DEFAULTS: [(&str, &[&str], &str); 2] =
    [("bash", &["bash", "-c", "true"], ""), ("bc", &["bc", "-l", "-q"], "1+1\n")];
/// Program for the operator's profiles. It does not exist: the cell is built and measured, and no program of theirs runs.
const NO_PROGRAM: &str = "/cofferdam-has-no-such-program";

/// Name of the layer of a command in a session.
pub(super) const SESSION: &str = "session";
/// Trial of the profile that sessions and `run` use.
const SHELL: &str = "profile bash";

/// A trial that is ready to run.
pub(super) struct Trial {
    /// Name of its layer.
    layer: String,
    grant: Grant,
    kind: TrialKind,
}

/// Part of a cell that a trial is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrialKind {
    /// A program, which runs.
    Program,
    /// The cell alone.
    Cell,
    /// A command in the shell of a session.
    Session,
}

/// Results of all trials.
pub(super) struct CellTrials {
    pub layers: Vec<LayerCheck>,
    /// Receipt of the first cell that was built and measured.
    pub receipt: Option<Receipt>,
    /// Greeting of the supervisor, if it has come.
    pub ready: Option<Ready>,
}

/// Returns the names of the profiles to try: the default ones, then those that the operator has written or changed.
pub(super) fn profiles(profiles: &Profiles) -> Vec<ProfileName> {
    let shipped = Profiles::compiled_in();
    let files = |profiles: &Profiles, name: &ProfileName| {
        profiles.account(name).map(|account| account.files.clone())
    };
    let is_changed = |name: &&ProfileName| files(profiles, name) != files(&shipped, name);
    let defaults = DEFAULTS.iter().filter_map(|(name, ..)| ProfileName::new(name));
    let changed = profiles.names().filter(is_changed).filter(|name| !is_default(name)).cloned();
    defaults.chain(changed).collect()
}

fn is_default(name: &ProfileName) -> bool {
    DEFAULTS.iter().any(|(default, ..)| name.as_str() == *default)
}

/// Prepares a trial of each profile that there is, and of a session.
pub(super) fn prepare(settings: &Settings, profiles: &[ProfileName]) -> Vec<Trial> {
    let trial = |name: &ProfileName| {
        let default = DEFAULTS.iter().find(|(default, ..)| name.as_str() == *default);
        match default {
            Some((_, argv, input)) => prepare_profile(settings, name, argv, input),
            None => prepare_profile(settings, name, &[NO_PROGRAM], ""),
        }
    };
    profiles.iter().filter_map(trial).chain(prepare_session(settings)).collect()
}

fn prepare_profile(
    settings: &Settings,
    name: &ProfileName,
    argv: &[&str],
    input: &str,
) -> Option<Trial> {
    let call = Call {
        tool: "doctor".into(),
        argv: Argv::new(argv.iter().map(|word| (*word).to_owned()).collect()).ok()?,
        script: None,
        stdin: Stdin::text("stdin", input.to_owned()).ok()?,
        env: Env::default(),
        cwd: None,
        asked: Asked::default(),
        profile: None,
        only: None,
        correlation: None,
    };
    let grant = Policy::operator(call, settings.profile(name).ok()?, Workspace::Fresh);
    let kind = if argv == [NO_PROGRAM] { TrialKind::Cell } else { TrialKind::Program };
    Some(Trial { layer: format!("{PROFILE}{}", name.as_str()), grant, kind })
}

/// Prepares a command in a session of the default shell.
fn prepare_session(settings: &Settings) -> Option<Trial> {
    let arguments = ScriptArgs { command: "true".to_owned(), ..ScriptArgs::default() };
    let call = service::shell::script("bash", arguments).ok()?;
    let name = ProfileName::new("bash")?;
    let grant = Policy::operator(call, settings.profile(&name).ok()?, Workspace::Fresh);
    Some(Trial { layer: SESSION.to_owned(), grant, kind: TrialKind::Session })
}

/// Returns true if the trial of the shell's profile was passed. If it was not, it says why no session can be tried.
pub(super) fn has_shell(layers: &[LayerCheck]) -> bool {
    layers.iter().any(|layer| layer.name == SHELL && layer.state == LayerState::Ok)
}

/// Runs the trials one after another.
///
/// # Errors
/// No link to the supervisor.
pub(super) fn run(socket: OwnedFd, trials: Vec<Trial>) -> Result<CellTrials, CliError> {
    start::conducted(socket, async |link| {
        let mut layers = Vec::new();
        let mut first = None;
        for Trial { layer, grant, kind } in trials {
            if kind == TrialKind::Session && !has_shell(&layers) {
                continue;
            }
            let (result, receipt) = run_one(&link, grant, kind).await;
            layers.push(result.named(layer));
            first = first.or(receipt);
        }
        Ok(CellTrials { layers, receipt: first, ready: link.greeted() })
    })
}

async fn run_one(link: &Link, grant: Grant, kind: TrialKind) -> (ProbeResult, Option<Receipt>) {
    let within = Within {
        session: SessionId(1),
        directory: StartDirectory::Stay,
        mode: JobMode::Foreground,
        shell: ShellKind::Bash,
    };
    let started = match kind {
        TrialKind::Session => link.start(grant, Some(within), None).await,
        TrialKind::Program | TrialKind::Cell => link.start(grant, None, None).await,
    };
    let running = match started {
        Ok(running) => running,
        Err(failure) => return (refused(&failure), None),
    };
    let receipt = running.receipt.clone();
    let service::link::Running { stdin, stdout, stderr, ended, .. } = running;
    // The programs print a line at most: the pipes can close unread.
    drop((stdin, stdout, stderr));
    let ended = ended.await.unwrap_or_else(|_| Ended::failed(Failure::Supervisor));
    (judge(kind, ended), Some(receipt))
}

/// Judges the end of a trial.
fn judge(kind: TrialKind, ended: Ended) -> ProbeResult {
    let built = ended.timings.built.as_secs_f64() * 1000.0;
    match ended.outcome {
        Outcome::Exited { code: 0 } if kind == TrialKind::Session => {
            ok("a command ran in the shell of one")
        }
        Outcome::Exited { .. } | Outcome::Signaled { .. } if kind == TrialKind::Session => {
            let outcome = ended.outcome;
            missing(format!("its command did not end as it should: {outcome:?}"))
        }
        // Without a reader, bc ends by SIGPIPE: it ran.
        Outcome::Exited { .. } | Outcome::Signaled { .. } => {
            ok(format!("a cell of it ran; it was built and measured in {built:.1} ms"))
        }
        Outcome::Failed(Failure::NotFound { .. } | Failure::NotExecutable { .. })
            if kind == TrialKind::Cell =>
        {
            ok(format!("a cell of it was built and measured in {built:.1} ms"))
        }
        Outcome::Failed(failure) => refused(&failure),
        other @ (Outcome::Timeout | Outcome::Limit(_) | Outcome::Cancelled) => {
            missing(format!("its trial did not end as it should: {other:?}"))
        }
    }
}

fn refused(failure: &Failure) -> ProbeResult {
    let remedy = if let Failure::NotFound { program } = failure {
        Some(format!("install {program} (Debian: apt-get install {program})"))
    } else if let Failure::Setup { errno, .. } = failure {
        Some(format!("see the lines above ({})", errno_text(*errno)))
    } else {
        failure.hint().map(str::to_owned)
    };
    ProbeResult { remedy, ..missing(for_report(&failure.to_string())) }
}

/// Adapts the text of an error that names `doctor`, in whose report it will be.
pub(super) fn for_report(text: &str) -> String {
    text.replace("`cofferdam doctor` has the remedy", "the lines above have the remedy")
}
