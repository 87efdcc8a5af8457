//! `cofferdam run`: one program in one fresh cell, its streams live, its exit code passed on.

pub mod arguments;
pub mod pump;

use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::commands::error::{CliError, print_out};
use crate::commands::exit::{self, Cancellation};
use crate::commands::grants::cache::WorkspaceCache;
use crate::commands::grants::host_programs;
use crate::commands::launch::{self, Launched};
use crate::commands::settings::Settings;
use crate::commands::streams::{StdinStream, StdoutStream, Streams};
use crate::commands::terminal::end_signals::EndSignals;
use crate::commands::terminal::filtered_output::FilteredOutput;
use crate::commands::terminal::{self, Conversation, OperatorTerminal};
use crate::commands::{settings, start};
use arguments::{OutputFormat, RunArguments, RunRequest, check};
use audit::{Audit, LoggedCall, Story};
use link::{ConnectionListener, Control, Link, Running};
use model::accounts;
use model::call::Asked;
use model::egress::Egress;
use model::job::Limits;
use model::outcome::{Ended, Failure, Outcome, in_words};
use model::profile::{Profile, ProfileAdditions, TerminalSize};
use model::receipt::{Receipt, Tier};
use model::units::Size;
use policy::Grant;
use pump::{Budget, Head, Stopped};
use service::denied::DenialReport;
use service::host_programs::HostPrograms;
use service::report::{Clamped, CommandReport, Cut, StreamReport, network, time_text};
use supervisor::ScopeWish;

/// Runs the command; the exit code is that of [`super::exit`].
pub fn main(typed: &RunArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let home = accounts::home();
    let request = check(typed, home.as_deref())?;
    let settings = settings::load_one(config)?.in_tier(request.tier);
    let configured = &settings.loaded.config.toolchains.value;
    let egress = egress(&settings, &request);
    let request = request.with_toolchains(typed.toolchains.as_ref(), configured, &egress)?;
    let mut cache = WorkspaceCache::prepare(
        typed.toolchains.as_ref(),
        &settings.loaded.config,
        &request.mounts,
        request.tier,
    );
    let request = request.with_cache(cache.as_ref())?;
    let terminal = terminal_for(typed)?;
    let request = match &terminal {
        Some(_) => request.at_terminal()?,
        None => request,
    };
    let told_as = request.format;
    // The profile's output limit is for replies; a run is a pipe, bounded only on request.
    let asked = request.call.asked;
    let size = terminal.as_ref().map(|terminal| terminal.size);
    let (grant, terms, launched, entry) =
        prepare(request, size, settings.with_upkeep(cache.as_mut()))?;
    let Launched { link: socket, audit, streams, http: _, tcp: _, watched: _ } = launched;
    let lowered = lowered(&asked, &grant.job().limits);
    let terms = Terms { audit, lowered, terminal, ..terms };
    start::conducted(socket, |socket| conduct(grant, terms, told_as, socket, streams, entry))
}

/// Returns the operator's terminal, if the program gets one of its own.
///
/// # Errors
/// `--tty` where there is none, or in the tier that has no mounts.
fn terminal_for(typed: &RunArguments) -> Result<Option<OperatorTerminal>, CliError> {
    let is_bare = typed.tier == Some(Tier::Bare);
    if typed.no_tty || typed.json || (is_bare && !typed.tty) {
        return Ok(None);
    }
    match OperatorTerminal::detect(typed.tty) {
        _ if is_bare => Err(CliError::new("--tty: a terminal of the cell's own takes a mount")
            .with_hint("the tier landlock+seccomp has none; leave out --tty")),
        None if typed.tty => {
            Err(CliError::new("--tty: standard input and output are not a terminal")
                .with_hint("start it in one, or under script(1)"))
        }
        found => Ok(found),
    }
}

/// Prepares, while there is one thread: configuration, the grant, the supervisor.
fn prepare(
    request: RunRequest,
    terminal: Option<TerminalSize>,
    settings: Settings,
) -> Result<(Grant, Terms, Launched, LoggedCall), CliError> {
    let settings = with_egress(settings, &request)?;
    let (settings, workspace) = settings::with_mounts(settings, &request.profile, &request.mounts)?;
    let settings = settings.with_git_identity();
    let settings = settings.with_sockets(&request.sockets)?.at_terminal(terminal);
    let held = request.call.asked.memory.is_some();
    let wish = if held { ScopeWish::Needed } else { ScopeWish::Never };
    let settings = settings.for_one_call(&request.profile, workspace).scoped(wish);
    let call = request.call.clone();
    let grant = settings::operator_grant(&settings, &request.profile, request.call, workspace)?;
    let profile = settings::profile_in_force(&settings, &request.profile)?;
    // Before the confinement, after which no path of the host can be looked at.
    let host_programs = host_programs::named(call.argv.program(), &profile);
    let terms = Terms { host_programs, ..Terms::of(&grant, call.asked.output, profile) };
    let launched = launch::recorded(settings)?;
    let audit = &launched.audit;
    let recorded = audit.granted(call.tool.clone(), audit.new_record(&call), &grant);
    let entry = recorded.map_err(|unrecorded| CliError::new(unrecorded.to_string()))?;
    Ok((grant, terms, launched, entry))
}

/// Returns the network that the profile has with the destinations of `--egress`.
fn egress(settings: &Settings, request: &RunRequest) -> Egress {
    let mut profile = settings.loaded.profiles.get(&request.profile).cloned();
    let egress = request.egress.clone();
    let additions = ProfileAdditions { egress, ..ProfileAdditions::default() };
    profile.iter_mut().for_each(|profile| profile.add(&additions));
    profile.map(|profile| profile.egress).unwrap_or_default()
}

/// Adds the destinations of `--egress` to the profile.
///
/// # Errors
/// A profile that takes no additions: it has no workspace.
fn with_egress(settings: Settings, request: &RunRequest) -> Result<Settings, CliError> {
    if request.egress.is_empty() {
        return Ok(settings);
    }
    let profile = settings.loaded.profiles.get(&request.profile);
    if profile.is_some_and(|profile| !profile.workspace) {
        let name = &request.profile;
        return Err(CliError::new(format!("--egress: profile `{name}` has no workspace"))
            .with_hint("it is for programs of a shell: give a profile of its own `[[egress]]`"));
    }
    let egress = request.egress.clone();
    Ok(settings.adding(&ProfileAdditions { egress, ..ProfileAdditions::default() }))
}

/// Runs the call on the runtime, from its start to its end.
async fn conduct(
    grant: Grant,
    terms: Terms,
    told_as: OutputFormat,
    socket: OwnedFd,
    streams: Streams,
    entry: LoggedCall,
) -> Result<u8, CliError> {
    let link = Link::attach(socket).map_err(|error| {
        CliError::new(format!("no link to the supervisor: {}", in_words(&error)))
    })?;
    if told_as == OutputFormat::Live {
        for (option, most) in &terms.lowered {
            eprintln!("cofferdam: --{option} is lowered to {most}, the most the profile allows");
        }
    }
    let heard = entry.connections();
    let heard = heard.map(|log| ConnectionListener::new(move |connection| log.closed(&connection)));
    let running = match link.start_heard(grant, None, heard).await {
        Ok(running) => running,
        Err(failure) => {
            let ended = Ended::failed(failure.clone());
            entry.ended(&story(&ended, None));
            if told_as == OutputFormat::Live {
                return Err(terms.failed(&failure));
            }
            let report = terms.report(ended, Head::default(), Head::default(), None);
            return print_json(&report, None);
        }
    };
    let (input, output) = streams.opened();
    match told_as {
        OutputFormat::Live => live(running, input, output, &terms, entry).await,
        OutputFormat::Json => collected(running, input, &terms, entry).await,
    }
}

/// Lists requests that exceed their limit.
fn lowered(asked: &Asked, limits: &Limits) -> Vec<(&'static str, String)> {
    let wall = asked.wall.filter(|wall| *wall > limits.wall);
    let memory = asked.memory.filter(|memory| *memory > limits.memory);
    let processes = asked.processes.filter(|processes| *processes > limits.processes);
    [
        wall.map(|_| ("timeout", time_text(limits.wall))),
        memory.map(|_| ("memory", Size(limits.memory).to_string())),
        processes.map(|_| ("processes", limits.processes.to_string())),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Parts of a grant that the report of the end needs.
#[derive(Debug)]
struct Terms {
    cwd: String,
    timeout: Duration,
    clamped: Clamped,
    /// Options that asked for more than their limit, with what they got.
    lowered: Vec<(&'static str, String)>,
    output: Option<u64>,
    /// Profile for the grants that are named with denials.
    profile: Profile,
    /// Log whose missing lines are reported.
    audit: Audit,
    host_programs: HostPrograms,
    /// Terminal of the operator's that the call has.
    terminal: Option<OperatorTerminal>,
}

impl Terms {
    fn of(grant: &Grant, output: Option<u64>, profile: Profile) -> Self {
        let job = grant.job();
        Self {
            cwd: job.cwd.as_str().to_owned(),
            timeout: job.limits.wall,
            clamped: if grant.clamped() { Clamped::Yes } else { Clamped::No },
            lowered: Vec::new(),
            output,
            profile,
            audit: Audit::off(),
            host_programs: HostPrograms::default(),
            terminal: None,
        }
    }

    /// Returns the error of a failure; where the host has a program that the cell has not, with its place.
    fn failed(&self, failure: &Failure) -> CliError {
        let error = CliError::from(failure.clone());
        if let Failure::NotFound { program } = failure
            && let Some(place) = self.host_programs.place(program)
        {
            return error.with_hint(place);
        }
        error
    }

    /// Returns a line for each denial, which may be why the call failed, with the grant that would allow it.
    fn denied(&self, ended: &Ended) -> Vec<String> {
        let calls =
            ended.denials.iter().map(|denied| DenialReport::of(denied, &self.profile).line());
        let network = ended.network.iter().flat_map(network::denials);
        let bare = |line: String| line.trim_start_matches('[').trim_end_matches(']').to_owned();
        calls.chain(network).map(bare).collect()
    }

    fn report(
        &self,
        ended: Ended,
        stdout: Head,
        stderr: Head,
        receipt: Option<Receipt>,
    ) -> CommandReport {
        CommandReport {
            absent_program: None,
            outcome: ended.outcome,
            stdout: stream(stdout),
            stderr: stream(stderr),
            usage: ended.usage,
            denials: ended
                .denials
                .iter()
                .map(|denied| DenialReport::of(denied, &self.profile))
                .collect(),
            cwd: self.cwd.clone(),
            timeout: self.timeout,
            clamped: self.clamped,
            receipt,
            timings: ended.timings,
            unrecorded: self.audit.trouble(),
            output_id: None,
            session: None,
            files_changed: None,
            network: ended.network,
        }
    }
}

fn stream(head: Head) -> StreamReport {
    let whole = u64::try_from(head.kept.len()).is_ok_and(|kept| kept == head.bytes);
    StreamReport {
        text: String::from_utf8_lossy(&head.kept).into_owned(),
        bytes: head.bytes,
        cut: if whole { Cut::Whole } else { Cut::HeadAndTail },
    }
}

/// Builds the audit record of an end.
fn story<'a>(ended: &'a Ended, receipt: Option<&'a Receipt>) -> Story<'a> {
    let Ended { outcome, usage, denials, timings, network, .. } = ended;
    Story { outcome, usage, timings, denials, receipt, network: network.as_ref() }
}

async fn live(
    running: Running,
    input: StdinStream,
    mut stdout: StdoutStream,
    terms: &Terms,
    entry: LoggedCall,
) -> Result<u8, CliError> {
    let receipt = running.receipt.clone();
    if let Some(notes) = receipt.unguarded() {
        eprintln!("cofferdam: not guarded in full: {notes}");
    }
    let Conversation { ended, cancellation: taken_back, is_read } = match &terms.terminal {
        Some(operators) => {
            terminal::converse(running, input, &mut stdout, terms.output, operators).await?
        }
        None => {
            let mut stdout = FilteredOutput::new(stdout, &std::io::stdout());
            let mut stderr = FilteredOutput::new(tokio::io::stderr(), &std::io::stderr());
            let (ended, taken_back) =
                follow(running, input, terms.output, &mut stdout, &mut stderr).await?;
            stdout.put_back(std::io::stdout());
            stderr.put_back(std::io::stderr());
            Conversation { ended, cancellation: taken_back, is_read: true }
        }
    };
    entry.ended(&story(&ended, Some(&receipt)));
    let code = exit::code(&ended.outcome, taken_back);
    if !is_read {
        return Ok(code);
    }
    if code != 0 {
        terms.denied(&ended).iter().for_each(|denied| eprintln!("cofferdam: {denied}"));
    }
    match &ended.outcome {
        Outcome::Exited { .. } | Outcome::Signaled { .. } | Outcome::Cancelled => Ok(code),
        Outcome::Timeout => {
            Err(CliError::new(format!("timed out after {}", time_text(terms.timeout)))
                .with_code(code))
        }
        Outcome::Limit(kind) => {
            Err(CliError::new(format!("limit reached: {}", kind.name().replace('_', " ")))
                .with_code(code))
        }
        Outcome::Failed(failure) => Err(terms.failed(failure)),
    }
}

async fn collected(
    running: Running,
    input: StdinStream,
    terms: &Terms,
    entry: LoggedCall,
) -> Result<u8, CliError> {
    let receipt = running.receipt.clone();
    let mut stdout = Head::default();
    let mut stderr = Head::default();
    let (ended, taken_back) =
        follow(running, input, terms.output, &mut stdout, &mut stderr).await?;
    entry.ended(&story(&ended, Some(&receipt)));
    print_json(&terms.report(ended, stdout, stderr, Some(receipt)), taken_back)
}

fn print_json(report: &CommandReport, taken_back: Option<Cancellation>) -> Result<u8, CliError> {
    print_out(&format!("{}\n", report.whole()))?;
    Ok(exit::code(&report.outcome, taken_back))
}

/// Carries the streams until the call has ended, and cancels it if the user does.
pub(crate) async fn follow<I, O, E>(
    running: Running,
    input: I,
    output: Option<u64>,
    stdout: &mut O,
    stderr: &mut E,
) -> Result<(Ended, Option<Cancellation>), CliError>
where
    I: AsyncRead + Send + Unpin + 'static,
    O: AsyncWrite + Unpin,
    E: AsyncWrite + Unpin,
{
    let Running { stdin, stdout: out, stderr: err, control, ended, .. } = running;
    let feeding = stdin.map(|to| tokio::spawn(pump::input(input, to)));
    let budget = Budget::new(output);
    let mut taken_back = None;
    let (sender, over) = watch::channel(false);
    let streams = async {
        tokio::join!(
            watched(out, stdout, &budget, &control, over.clone()),
            watched(err, stderr, &budget, &control, over.clone())
        )
    };
    let ended = async {
        let ended = ended.await;
        sender.send_replace(true);
        ended
    };
    let finished = async { tokio::join!(streams, ended) };
    let ((out, err), ended) = tokio::select! {
        finished = finished => finished,
        never = interrupts(&control, &mut taken_back) => match never? {},
    };
    if let Some(feeding) = feeding {
        feeding.abort();
    }
    if out.closed.or(err.closed).is_some() {
        taken_back = taken_back.or(Some(Cancellation::OutputClosed));
    }
    let ended = ended.unwrap_or_else(|_gone| Ended::failed(Failure::Supervisor));
    Ok((ended, taken_back))
}

/// Rest of one stream.
struct StreamRest<R> {
    /// Cancellation by the loss of its reader.
    closed: Option<Cancellation>,
    /// Held until the call has ended: a program that met a closed pipe would end by SIGPIPE before
    /// the limit ends it, and be reported as such.
    _held: Option<R>,
}

/// Copies one stream; if it stops early, so does the call.
async fn watched<R, W>(
    mut from: R,
    to: &mut W,
    budget: &Budget,
    control: &Control,
    over: watch::Receiver<bool>,
) -> StreamRest<R>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    match pump::output(&mut from, to, budget, over).await {
        Ok(()) => StreamRest { closed: None, _held: None },
        Err(Stopped::Budget) => {
            control.output_limit();
            StreamRest { closed: None, _held: Some(from) }
        }
        Err(Stopped::Closed(error)) => {
            tracing::debug!(%error, "nobody reads the output");
            control.cancel();
            StreamRest { closed: Some(Cancellation::OutputClosed), _held: None }
        }
        Err(Stopped::Read(error)) => {
            tracing::warn!(error = in_words(&error), "the cell's output cannot be read");
            control.cancel();
            StreamRest { closed: None, _held: None }
        }
    }
}

/// Cancels the call on a signal that ends commands; its end is then awaited as usual.
async fn interrupts(
    control: &Control,
    taken_back: &mut Option<Cancellation>,
) -> Result<std::convert::Infallible, CliError> {
    let has_terminal = std::io::stdout().is_terminal() || std::io::stderr().is_terminal();
    let mut signals = EndSignals::watch(has_terminal).map_err(|error| {
        CliError::new(format!("signals cannot be watched: {}", in_words(&error)))
    })?;
    loop {
        let why = signals.next().await;
        taken_back.get_or_insert(why);
        control.cancel();
    }
}
