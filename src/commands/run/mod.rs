//! `cofferdam run`: one program in one fresh cell, its streams live, its exit code passed on.

mod afterwards;
pub mod arguments;
pub mod pump;

use std::io::IsTerminal;
use std::path::Path;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use afterwards::Begun;
use arguments::{RunArguments, RunRequest, check};
use pump::{Budget, Head, Stopped};

use crate::commands::error::{CliError, print_out};
use crate::commands::exit::{self, Cancellation};
use crate::commands::grants::{GrantPlan, host_programs};
use crate::commands::launch::{self, Launched};
use crate::commands::streams::{StdinStream, StdoutStream, Streams};
use crate::commands::terminal::end_signals::EndSignals;
use crate::commands::terminal::filtered_output::FilteredOutput;
use crate::commands::terminal::{self, ConnectedEnd, OperatorTerminal};
use crate::commands::{settings, start};
use config::policy::{Grant, Policy};
use model::accounts;
use model::call::Asked;
use model::job::Limits;
use model::outcome::{Ended, Failure, Outcome, in_words};
use model::profile::{Exec, Profile};
use model::receipt::{Receipt, Tier};
use model::units::Size;
use service::audit::{Audit, LoggedCall};
use service::denied::DenialReport;
use service::host_programs::HostPrograms;
use service::link::{ConnectionListener, Control, Link, Running};
use service::met_limits;
use service::report::{
    Clamped, CommandReport, Cut, StreamReport, network, time_text, without_brackets,
};
use supervisor::ScopeWish;

/// Runs the command; the exit code is that of [`super::exit`].
pub fn main(typed: &RunArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let mut request = check(typed, accounts::home().as_deref())?;
    let mut report = match afterwards::begin(typed, config)? {
        Begun::Run(report) => report,
        Begun::Ended(code) => return Ok(code),
    };
    let terminal = terminal_for(typed)?;
    if terminal.is_some() {
        request = request.at_terminal(OperatorTerminal::variables())?;
    }
    let settings = settings::load_one(config)?.in_tier(typed.grants.tier);
    let RunRequest { call, profile: name, grants } = request;
    let GrantPlan { mut settings, workspace } = GrantPlan::resolve(grants, settings)?;
    report.note(&settings.granted)?;
    let size = terminal.as_ref().map(|terminal| terminal.size);
    for profile in &mut settings.profiles {
        profile.terminal = size;
        // A profile with one program has no use for them, and the lower tier has no mounts.
        let may_want = profile.exec == Exec::Any && profile.tier == Tier::Full;
        profile.makes_terminals = size.is_some() || may_want;
    }
    let profile = settings.profile(&name)?.clone();
    // One cell, which is built at once. A root directory, and for root each grant, is otherwise made for the maximum
    // number of cells.
    settings.loaded.config.cells.value = 1;
    settings.first = Some((name, workspace));
    let has_limit = call.asked.memory.is_some();
    let wish = if has_limit { ScopeWish::Needed } else { ScopeWish::Never };
    // Before the confinement, after which no path of the host can be looked at.
    let host_programs = host_programs::named(call.argv.program(), &profile);
    let grant = Policy::operator(call.clone(), &profile, workspace);
    let launched = launch::recorded(settings.scoped(wish))?;
    let Launched { link: socket, audit, streams, .. } = launched;
    let recorded = audit.granted(call.tool.clone(), audit.new_record(&call), &grant);
    let entry = recorded.map_err(|unrecorded| CliError::new(unrecorded.to_string()))?;
    let job = grant.job();
    let terms = Terms {
        format: if typed.json { OutputFormat::Json } else { OutputFormat::Live },
        cwd: job.cwd.as_str().to_owned(),
        limits: job.limits,
        clamped: if grant.clamped() { Clamped::Yes } else { Clamped::No },
        lowered: lowered(&call.asked, &job.limits),
        // The profile's output limit is for replies; a run is a pipe, bounded only on request.
        output: call.asked.output,
        profile,
        audit,
        host_programs,
        terminal,
    };
    let done = start::conducted(socket, |link| conduct(grant, terms, link, streams, entry));
    report.print();
    done
}

/// Returns the operator's terminal, if the program gets a terminal.
///
/// # Errors
/// `--tty` where there is none, or in the tier that has no mounts.
fn terminal_for(typed: &RunArguments) -> Result<Option<OperatorTerminal>, CliError> {
    let is_bare = typed.grants.tier == Some(Tier::Bare);
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

/// Runs the call on the runtime, from its start to its end.
async fn conduct(
    grant: Grant,
    terms: Terms,
    link: Link,
    streams: Streams,
    entry: LoggedCall,
) -> Result<u8, CliError> {
    if terms.format == OutputFormat::Live {
        for (option, most) in &terms.lowered {
            eprintln!("cofferdam: --{option} is lowered to {most}, the most the profile allows");
        }
    }
    let listener = entry
        .connections()
        .map(|log| ConnectionListener::new(move |connection| log.closed(&connection)));
    let running = match link.start(grant, None, listener).await {
        Ok(running) => running,
        Err(failure) => {
            let ended = Ended::failed(failure.clone());
            entry.ended(&ended, None);
            if terms.format == OutputFormat::Live {
                return Err(terms.failed(&failure));
            }
            let report = terms.report(ended, Head::default(), Head::default(), None);
            return print_json(&report, None);
        }
    };
    let (input, output) = streams.opened();
    match terms.format {
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

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputFormat {
    /// Output as it comes.
    Live,
    /// One JSON object at the end.
    Json,
}

/// Parts of a grant that the report of the end needs.
#[derive(Debug)]
struct Terms {
    format: OutputFormat,
    cwd: String,
    limits: Limits,
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

    /// Returns a line for each denial, with the grant that would allow it, and for each limit that the call met: any of
    /// them may be why it failed.
    fn reasons(&self, ended: &Ended) -> Vec<String> {
        let calls =
            ended.denials.iter().map(|denied| DenialReport::of(denied, &self.profile).line());
        let network = ended.network.iter().flat_map(network::denials);
        // The error of a limit that ended the call is printed apart. The text of standard error went to its reader.
        let is_limit = matches!(ended.outcome, Outcome::Limit(_));
        let limits = met_limits::remarks(ended, "", &self.limits);
        let limits = limits.into_iter().filter(|_| !is_limit);
        calls.chain(network).map(without_brackets).chain(limits).collect()
    }

    fn report(
        &self,
        ended: Ended,
        stdout: Head,
        stderr: Head,
        receipt: Option<Receipt>,
    ) -> CommandReport {
        let stderr = stream(stderr);
        CommandReport {
            remarks: met_limits::remarks(&ended, &stderr.text, &self.limits),
            stdout: stream(stdout),
            stderr,
            denials: ended
                .denials
                .iter()
                .map(|denied| DenialReport::of(denied, &self.profile))
                .collect(),
            cwd: self.cwd.clone(),
            timeout: self.limits.wall,
            clamped: self.clamped,
            receipt,
            unrecorded: self.audit.trouble(),
            output_id: None,
            session: None,
            ended: Ended { files_changed: None, ..ended },
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
    let ConnectedEnd { ended, cancellation: taken_back, is_read } = match &terms.terminal {
        Some(operators) => {
            terminal::connect(running, input, &mut stdout, terms.output, operators).await?
        }
        None => {
            let mut stdout = FilteredOutput::new(stdout, &std::io::stdout());
            let mut stderr = FilteredOutput::new(tokio::io::stderr(), &std::io::stderr());
            let (ended, taken_back) =
                follow(running, input, terms.output, &mut stdout, &mut stderr).await?;
            stdout.restore_terminal(std::io::stdout());
            stderr.restore_terminal(std::io::stderr());
            ConnectedEnd { ended, cancellation: taken_back, is_read: true }
        }
    };
    entry.ended(&ended, Some(&receipt));
    let code = exit::code(&ended.outcome, taken_back);
    if !is_read {
        return Ok(code);
    }
    if code != 0 {
        terms.reasons(&ended).iter().for_each(|reason| eprintln!("cofferdam: {reason}"));
    }
    match &ended.outcome {
        Outcome::Exited { .. } | Outcome::Signaled { .. } | Outcome::Cancelled => Ok(code),
        Outcome::Timeout => {
            Err(CliError::new(format!("timed out after {}", time_text(terms.limits.wall)))
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
    entry.ended(&ended, Some(&receipt));
    print_json(&terms.report(ended, stdout, stderr, Some(receipt)), taken_back)
}

fn print_json(report: &CommandReport, taken_back: Option<Cancellation>) -> Result<u8, CliError> {
    print_out(&format!("{}\n", report.whole()))?;
    Ok(exit::code(&report.ended.outcome, taken_back))
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
            tracing::debug!(%error, "the output has no reader");
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
