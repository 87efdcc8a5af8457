//! The report of `doctor`, from probes and real cells.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::doctor::{Finding, LayerCheck, LayerState, PROFILE, Report};
use super::error::CliError;
use super::launch;
use super::own_ids::OwnIdFacts;
use super::probe::{self, Hints};
use super::surroundings::Surroundings;
use super::toolchains::FoundToolchains;
use super::{grant_trial, http_probe, kernel_probe, memory_hold, reach, start, wiring};
use config::server::ScopeRule;
use link::Link;
use model::accounts;
use model::call::{Argv, Asked, Call, Env, Stdin};
use model::job::{Access, JobMode, Place, ProfileName, SessionId, Within, Workspace};
use model::outcome::{Ended, Failure, Outcome, errno_text, in_words};
use model::receipt::{Measured, Receipt};
use model::shells::ShellKind;
use model::wire::Ready;
use policy::Grant;
use profile::Profiles;
use service::shell::BashArgs;
use supervisor::{Granted, ScopeWish, protect};

/// Arguments and input with which each default profile is tried.
const TRIALS: [(&str, &[&str], &str); 2] =
    [("bash", &["bash", "-c", "true"], ""), ("bc", &["bc", "-l", "-q"], "1+1\n")];
/// Program with which a profile of the operator's is tried. There is none of this name: the cell is built and measured, and
/// nothing of the operator's runs.
const NO_PROGRAM: &str = "/cofferdam-has-no-such-program";

/// Layers whose absence is a reason not to serve.
const SUPERVISOR: &str = "supervisor";
const SESSION: &str = "session";
const SHELL: &str = "profile bash";

/// One trial that is ready to run.
struct Trial {
    /// Name of its layer.
    layer: String,
    grant: Grant,
    kind: TrialKind,
}

/// Part of a cell that a trial is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrialKind {
    Program,
    /// The cell alone: there is no program in it.
    Cell,
    /// A command in the shell of a session.
    Session,
}

/// Probes every layer by using it.
///
/// # Errors
/// A broken configuration, or a machine on which not even the probing works.
pub fn report(config_directory: Option<&Path>) -> Result<Report, CliError> {
    let settings = wiring::load(config_directory)?;
    let found = probe::namespaces(launch::id_range(&settings.loaded.config))
        .map_err(|errno| CliError::new(format!("namespaces cannot be probed: {errno}")))?;
    let hints = Hints::read(&found);
    let mut layers = host_layers(&settings, &found, &hints);
    // A policy need not use the default profiles; they are tried all the same.
    let names = TRIALS.iter().filter_map(|(profile, ..)| ProfileName::new(profile));
    let own = own_profiles(&settings.loaded.profiles);
    let names: Vec<ProfileName> = names.chain(own.iter().cloned()).collect();
    let settings = wiring::with_profiles(settings, &names);
    // After the confinement of this process no program can be started.
    let grant = grant_trial::layer(config_directory);
    // A server asks for a scope in the same way, and has sessions.
    let settings = settings.with_a_session();
    let settings = settings.scoped(ScopeWish::Needed);
    let rule = settings.loaded.config.scope.value;
    let trials = TRIALS.iter().filter_map(|trial| prepare(&settings, *trial));
    let own = own.iter().filter(|own| !TRIALS.iter().any(|(name, ..)| own.as_str() == *name));
    let own = own.filter_map(|name| prepare(&settings, (name.as_str(), &[NO_PROGRAM], "")));
    let trials = trials.chain(own).chain(prepare_session(&settings)).collect();
    // A server has them too; a command that makes one call takes no time for it.
    let settings = settings.with_own_ids();
    let own =
        OwnIdFacts::now(u16::try_from(settings.loaded.config.cells.value).unwrap_or(u16::MAX));
    let cells = match launch::unrecorded(settings) {
        Ok(socket) => try_cells(socket, trials, &own, rule, hints.surroundings)?,
        // Its reason is in the layers above where a probe has found it.
        Err(error) => {
            let remedy = error.hint.as_deref().map(in_report);
            let layers = vec![LayerCheck { remedy, ..broken(SUPERVISOR, error.message) }];
            CellTrials { layers, was_measured: false }
        }
    };
    let CellTrials { layers: cells, was_measured } = cells;
    layers.extend(hints.surroundings.name().map(|name| ok("surroundings", name)));
    layers.extend(cells);
    // Where no cell of a shell is to be had, its trial says why.
    let has_shell = layers.iter().any(|layer| layer.name == SHELL && layer.state == LayerState::Ok);
    layers.extend(Some(grant).filter(|_| has_shell));
    let of_cells = |layer: &&LayerCheck| {
        layer.name.starts_with(PROFILE)
            || [SUPERVISOR, SESSION, grant_trial::NAME].contains(&layer.name.as_str())
    };
    let can_run = layers.iter().filter(of_cells).all(|layer| layer.state != LayerState::Missing);
    Ok(Report {
        tier: if was_measured { "namespaces+landlock+seccomp" } else { "none" }.to_owned(),
        verdict: if can_run { Finding::CanRun } else { Finding::CannotRun },
        layers,
    })
}

/// Probes what the kernel and this process give to every cell.
fn host_layers(
    settings: &wiring::Settings,
    found: &probe::Namespaces,
    hints: &Hints,
) -> Vec<LayerCheck> {
    let mut layers = probe::namespace_layers(found, hints);
    layers.push(probe::landlock_layer());
    layers.extend(kernel_probe::listener_layer(hints.surroundings));
    layers.extend(http_probe::layer(hints.surroundings));
    layers.push(kernel_probe::network_layer(hints.surroundings));
    layers.push(probe::groups_layer());
    layers.extend(probe::open_files_layer());
    layers.push(probe::core_dumps_layer());
    layers.extend(settings.sockets_layer());
    layers.push(reach::layer(&settings.profiles));
    layers.extend(directory_layer());
    let config = &settings.loaded.config;
    layers.push(FoundToolchains::layer(&config.toolchains.value, config.cache.value));
    layers
}

/// Returns the profiles that the operator has written, or written anew.
fn own_profiles(profiles: &Profiles) -> Vec<ProfileName> {
    let shipped = Profiles::compiled_in();
    let file = |profiles: &Profiles, name: &ProfileName| {
        profiles.account(name).map(|account| account.files.clone())
    };
    let is_own = |name: &&ProfileName| file(profiles, name) != file(&shipped, name);
    profiles.names().filter(is_own).cloned().collect()
}

/// Results of the trials of cells.
struct CellTrials {
    layers: Vec<LayerCheck>,
    /// True if a cell was built and measured.
    was_measured: bool,
}

/// Describes names in the current directory that would not be fully guarded if it were granted.
fn directory_layer() -> Option<LayerCheck> {
    let host = std::env::current_dir().ok()?.canonicalize().ok()?;
    let home = accounts::home().and_then(|home| home.canonicalize().ok());
    if host == Path::new("/") || home.as_deref() == Some(host.as_path()) {
        // This directory is never granted.
        return None;
    }
    let access = Access::ReadWrite;
    let granted = Granted::now(host.clone(), host.clone(), access).ok()?;
    let found = protect::scan(&[granted]).ok()?;
    let notes: Vec<String> = found.iter().flat_map(|found| found.notes(&host)).collect();
    (!notes.is_empty()).then(|| LayerCheck {
        name: "this directory".to_owned(),
        state: LayerState::Weak,
        how: format!("not guarded in full, where it is granted for writing: {}", notes.join("; ")),
        remedy: Some(
            "put in place of each link what it leads to, grant a smaller directory, or grant it \
             read-only"
                .to_owned(),
        ),
    })
}

fn prepare(
    settings: &wiring::Settings,
    (profile, words, input): (&str, &[&str], &str),
) -> Option<Trial> {
    let call = Call {
        tool: "doctor".into(),
        argv: Argv::new(words.iter().map(|word| (*word).to_owned()).collect()).ok()?,
        script: None,
        stdin: Stdin::text("stdin", input.to_owned()).ok()?,
        env: Env::default(),
        cwd: None,
        asked: Asked::default(),
        profile: None,
        only: None,
        correlation: None,
    };
    let name = ProfileName::new(profile)?;
    let grant = wiring::operator_grant(settings, &name, call, Workspace::Fresh).ok()?;
    let kind = if words == [NO_PROGRAM] { TrialKind::Cell } else { TrialKind::Program };
    Some(Trial { layer: format!("{PROFILE}{profile}"), grant, kind })
}

/// Prepares a command in a session of the default shell.
fn prepare_session(settings: &wiring::Settings) -> Option<Trial> {
    let arguments = BashArgs { command: "true".to_owned(), ..BashArgs::default() };
    let call = service::shell::bash(arguments).ok()?;
    let name = ProfileName::new("bash")?;
    let grant = wiring::operator_grant(settings, &name, call, Workspace::Fresh).ok()?;
    Some(Trial { layer: SESSION.to_owned(), grant, kind: TrialKind::Session })
}

fn try_cells(
    socket: OwnedFd,
    trials: Vec<Trial>,
    own: &OwnIdFacts,
    rule: ScopeRule,
    surroundings: Surroundings,
) -> Result<CellTrials, CliError> {
    start::conducted(socket, async |socket| {
        let link = Link::attach(socket).map_err(|error| {
            CliError::new(format!("no link to the supervisor: {}", in_words(&error)))
        })?;
        let mut layers = Vec::new();
        let mut seen = None;
        for trial in trials {
            // Where no cell of a shell is to be had, its trial says why.
            let is_shell =
                |layer: &LayerCheck| layer.name == SHELL && layer.state == LayerState::Ok;
            if trial.kind == TrialKind::Session && !layers.iter().any(is_shell) {
                continue;
            }
            let (layer, receipt) = try_cell(&link, trial).await;
            layers.push(layer);
            seen = seen.or(receipt);
        }
        layers.extend(seen.iter().flat_map(measured));
        let counts = seen.iter().map(|seen| own.layer(seen.measured.host_uid));
        layers.extend(counts);
        let ready = link.greeted();
        let memory =
            |ready: &Ready| memory_hold::layer(ready.memory, &ready.scope, rule, surroundings);
        let was_measured = seen.is_some();
        layers.extend(seen.and(ready.as_ref().map(memory)));
        Ok(CellTrials { layers, was_measured })
    })
}

async fn try_cell(link: &Link, trial: Trial) -> (LayerCheck, Option<Receipt>) {
    let Trial { layer: name, grant, kind } = trial;
    let within = Within {
        session: SessionId(1),
        place: Place::Stay,
        mode: JobMode::Foreground,
        shell: ShellKind::Bash,
    };
    let started = match kind {
        TrialKind::Session => link.start_within(grant, within).await,
        TrialKind::Program | TrialKind::Cell => link.start(grant).await,
    };
    let running = match started {
        Ok(running) => running,
        Err(failure) => return (refused(&name, &failure), None),
    };
    let receipt = running.receipt.clone();
    let link::Running { stdin, stdout, stderr, ended, .. } = running;
    // Both programs print a line at most, so nothing is read and the pipes close unread.
    drop((stdin, stdout, stderr));
    let ended = ended.await.unwrap_or_else(|_| Ended::failed(Failure::Supervisor));
    let layer = match ended.outcome {
        Outcome::Exited { code: 0 } if kind == TrialKind::Session => {
            ok(&name, "a command ran in the shell of one")
        }
        Outcome::Exited { .. } | Outcome::Signaled { .. } if kind == TrialKind::Session => {
            broken(&name, format!("its command did not end as it should: {:?}", ended.outcome))
        }
        // Without a reader bc ends by SIGPIPE: it has run all the same.
        Outcome::Exited { .. } | Outcome::Signaled { .. } => {
            let built = ended.timings.built.as_secs_f64() * 1000.0;
            ok(&name, format!("a cell of it ran; it was built and measured in {built:.1} ms"))
        }
        Outcome::Failed(Failure::NotFound { .. } | Failure::NotExecutable { .. })
            if kind == TrialKind::Cell =>
        {
            let built = ended.timings.built.as_secs_f64() * 1000.0;
            ok(&name, format!("a cell of it was built and measured in {built:.1} ms"))
        }
        Outcome::Failed(failure) => refused(&name, &failure),
        other @ (Outcome::Timeout | Outcome::Limit(_) | Outcome::Cancelled) => {
            broken(&name, format!("its trial did not end as it should: {other:?}"))
        }
    };
    (layer, Some(receipt))
}

fn ok(name: &str, how: impl Into<String>) -> LayerCheck {
    LayerCheck { name: name.to_owned(), state: LayerState::Ok, how: how.into(), remedy: None }
}

fn broken(name: &str, how: impl Into<String>) -> LayerCheck {
    LayerCheck { name: name.to_owned(), state: LayerState::Missing, how: how.into(), remedy: None }
}

/// Adapts an error's text to the report that it names as the place of the remedy.
fn in_report(text: &str) -> String {
    text.replace("`cofferdam doctor` has the remedy", "the lines above have the remedy")
}

fn refused(name: &str, failure: &Failure) -> LayerCheck {
    let remedy = match failure {
        Failure::NotFound { program } => {
            Some(format!("install {program} (Debian: apt-get install {program})"))
        }
        Failure::Setup { errno, .. } => {
            Some(format!("see the lines above ({})", errno_text(*errno)))
        }
        Failure::NotExecutable { .. }
        | Failure::Cwd { .. }
        | Failure::Unmeasured { .. }
        | Failure::Busy { .. }
        | Failure::Supervisor
        | Failure::Lost
        | Failure::Network { .. }
        | Failure::Refused { .. } => failure.hint().map(str::to_owned),
    };
    LayerCheck {
        name: name.to_owned(),
        state: LayerState::Missing,
        how: in_report(&failure.to_string()),
        remedy,
    }
}

/// Derives the other layers from the receipt of a real cell.
fn measured(receipt: &Receipt) -> Vec<LayerCheck> {
    let Receipt { measured, probed, .. } = receipt;
    vec![
        ok("capabilities", "measured: all five sets of a payload were empty"),
        ok("no_new_privs", "measured: set"),
        ok(
            "system call filter",
            format!(
                "measured: {} filters; probed: a namespace met {}, a packet socket {}",
                measured.seccomp_filters, probed.new_namespace, probed.packet_socket
            ),
        ),
        ok("Landlock in a cell", format!("probed: the canary met {}", probed.landlock_path)),
        ok("host uid", format!("measured: cells run as host uid {}", measured.host_uid)),
        ok("mounts of a cell", format!("measured: {} checked one by one", measured.mounts)),
        clocks(measured),
    ]
}

/// Reports which monotonic and boot clocks cells read.
fn clocks(measured: &Measured) -> LayerCheck {
    if measured.namespaces.iter().any(|name| name == "time") {
        return ok(
            "clocks of a cell",
            "measured: a time namespace, clocks begin with the supervisor",
        );
    }
    LayerCheck {
        name: "clocks of a cell".to_owned(),
        state: LayerState::Weak,
        how: "this kernel makes no time namespace: cells can tell how long the host runs"
            .to_owned(),
        remedy: Some("a kernel with CONFIG_TIME_NS (5.6 or later)".to_owned()),
    }
}
