//! `cofferdam selftest`: the escape corpus on this machine, against cofferdam or another sandbox, or
//! against a server with a shell tool (`serve`).

mod serve;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use crate::commands::error::{CliError, print_out};
use crate::commands::format;
use crate::commands::terminal::colour::{Colour, Tone};
use model::clock;
use model::outcome::in_words;
use model::receipt::Tier;
use model::shells::ShellKind;
use selftest::baseline::{Baseline, VerdictChanges};
use selftest::conduct::{self, AttackResult};
use selftest::corpus::{self, Attack, Class, Severity};
use selftest::judge::Target;
use selftest::launch::Bench;
use selftest::mcp_client::ServerAddress;
use selftest::report::{Mark, ReportLine, RunAbout, TargetAbout};
use selftest::targets::{self, Sandbox};
use selftest::{lab, remains, report};

/// No cell can be made here: nothing was tried.
pub(super) const UNAVAILABLE: u8 = 3;
/// No verdict was possible: an error of the test itself.
pub(super) const NO_VERDICT: u8 = 2;
/// Exit code of a shell for SIGINT.
const INTERRUPTED: u8 = 130;

/// Arguments as typed.
#[derive(Debug, Clone, Default, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
    cofferdam selftest\n  \
    cofferdam selftest --only kernel,files --json\n  \
    cofferdam selftest --target bwrap-hardened\n  \
    cofferdam selftest --target 'bwrap --ro-bind / / --unshare-all {}' --sarif report.sarif\n  \
    cofferdam selftest --json --baseline before.json >now.json\n  \
    cofferdam selftest serve http://127.0.0.1:8080/mcp --here\n\n\
    Exit codes: 0 all held, or nothing worse than the baseline; 1 a breach; 2 no verdict on something; 3 no cell can be made here"
)]
pub struct SelftestArguments {
    #[command(subcommand)]
    pub command: Option<SelftestCommand>,
    #[command(flatten)]
    pub choice: ChoiceArguments,
    /// Only these attacks, by their ids
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Run against another sandbox: a name of --targets, or its command line, split at blanks.
    /// `{}` is replaced by the program and its arguments (at the end without it), `{line}` by the
    /// same as one word for a shell, {probe} by the helper's path, which it must show at the same path
    #[arg(long, value_name = "NAME|COMMAND")]
    pub target: Option<String>,
    /// List the sandboxes with a name, run nothing
    #[arg(long)]
    pub targets: bool,
    /// Isolation tier: namespaces+landlock+seccomp, or landlock+seccomp
    #[arg(long, value_name = "TIER", conflicts_with = "target")]
    pub tier: Option<Tier>,
    /// List the attacks with their sources, run nothing
    #[arg(long)]
    pub list: bool,
    #[command(flatten)]
    pub reports: ReportArguments,
    /// Run a command in the network of attacks on egress, and write to this file which hosts it reached
    #[arg(long, value_name = "FILE", hide = true, requires = "words")]
    pub within_lab: Option<PathBuf>,
    /// The command for it
    #[arg(value_name = "COMMAND", last = true, hide = true, requires = "within_lab")]
    pub words: Vec<String>,
}

/// What else is attacked.
#[derive(Debug, Clone, Subcommand)]
pub enum SelftestCommand {
    /// Attack a server of MCP with a shell tool: is it a sandbox?
    Serve(Box<serve::ServeArguments>),
}

/// The attacks to run.
#[derive(Debug, Clone, Default, Args)]
pub struct ChoiceArguments {
    /// Only attacks of this class
    #[arg(long, value_name = "CLASS", value_enum)]
    pub class: Option<Class>,
    /// Only attacks of these topics: files, processes, network, egress, kernel, resources, information
    #[arg(long, value_name = "TOPIC,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Only attacks whose success would be at least this severe
    #[arg(long, value_name = "SEVERITY", value_enum)]
    pub severity: Option<Severity>,
}

/// The reports to write.
#[derive(Debug, Clone, Default, Args)]
pub struct ReportArguments {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a JUnit report as well
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write a SARIF report as well, for code scanning
    #[arg(long, value_name = "FILE")]
    pub sarif: Option<PathBuf>,
    /// Write a table in Markdown as well
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Fail only if a verdict is worse than in this earlier report of --json
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
}

/// Runs the command; the exit code is one of those above, or the verdict's.
pub fn main(typed: &SelftestArguments) -> Result<u8, CliError> {
    if let Some(SelftestCommand::Serve(typed)) = &typed.command {
        return serve::main(typed);
    }
    if let Some(record) = &typed.within_lab {
        let failed = |error| broken(format!("the network of the test: {error}"));
        let code = lab::run(record, &typed.words).map_err(failed)?;
        return Ok(u8::try_from(code).unwrap_or(u8::MAX));
    }
    if typed.targets {
        let known = targets::known().map_err(CliError::new)?;
        let mut rows = format::Rows::default();
        known.into_iter().for_each(|known| rows.add(known.name, known.about));
        print_out(&rows.text())?;
        return Ok(0);
    }
    let probes = chosen(&typed.choice, &typed.ids)?;
    if typed.list {
        let line = |probe: &Attack| format!("{}  {} ({})\n", probe.id, probe.title, probe.source);
        print_out(&probes.iter().map(line).collect::<String>())?;
        return Ok(0);
    }
    let target = match (&typed.target, typed.tier.unwrap_or_default()) {
        (Some(target), _) => Target::Other(Box::new(
            Sandbox::named_or_typed(target)
                .map_err(|reason| CliError::new(format!("selftest: --target: {reason}")))?,
        )),
        (None, Tier::Full) => Target::Own,
        (None, Tier::Bare) => Target::Lower,
    };
    if target == Target::Own || target == Target::Lower {
        check_root()?;
    }
    let about = about(&target, typed.target.as_deref())?;
    let target = match target {
        Target::Other(sandbox) => Target::Other(Box::new(sandbox.resolved())),
        Target::Own | Target::Lower | Target::Served(_) => target,
    };
    judged(target, &probes, about, &typed.reports)
}

/// Runs the attacks and reports the verdicts. Returns the exit code.
fn judged(
    target: Target,
    probes: &[Attack],
    about: RunAbout,
    reports: &ReportArguments,
) -> Result<u8, CliError> {
    // First: a mistake in a file's name should not cost a run.
    let baseline = reports.baseline.as_deref().map(earlier).transpose()?;
    check_files(reports)?;
    let results = verdicts(target, probes)?;
    let about = RunAbout { time: clock::now(), ..about };
    write_files(reports, &results, &about)?;
    let text = if reports.json {
        report::json(&results, &about).map_err(unwritten)?
    } else {
        let colour = Colour::of_output();
        report::lines(&results).iter().map(|line| shown(line, colour)).collect()
    };
    print_out(&text)?;
    let counted = match baseline {
        None => results.iter().collect(),
        Some(baseline) => worse(&baseline, &results),
    };
    if reports.json {
        // The object is mostly written to a file, and a log shows standard error.
        let colour = Colour::of_errors();
        let failures = report::failures(counted.iter().copied(), results.len());
        failures.iter().for_each(|line| eprint!("{}", shown(line, colour)));
    }
    Ok(report::Count::of_results(counted).exit_code())
}

/// Describes the run; the time is that of its end. `typed` is the target as typed.
pub(super) fn about(target: &Target, typed: Option<&str>) -> Result<RunAbout, CliError> {
    let own = |tier: Tier, again: &str| TargetAbout {
        name: selftest::OWN.to_owned(),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        command: ["cofferdam", "run", "--tier", tier.name()].map(str::to_owned).into(),
        again: again.to_owned(),
    };
    let quoted =
        |word: &str| match word.chars().all(|one| one.is_alphanumeric() || "-_./:".contains(one)) {
            true => word.to_owned(),
            false => ShellKind::Sh.quoted(word),
        };
    let target = match target {
        Target::Own => own(Tier::Full, "selftest"),
        Target::Lower => own(Tier::Bare, "selftest --tier landlock+seccomp"),
        Target::Other(sandbox) => TargetAbout {
            name: sandbox.name.clone(),
            version: sandbox.version(),
            command: sandbox.command.clone(),
            again: format!("selftest --target {}", quoted(typed.unwrap_or(&sandbox.name))),
        },
        Target::Served(served) => TargetAbout {
            name: typed.unwrap_or_default().to_owned(),
            version: None,
            command: match &served.client.address {
                ServerAddress::Http(_) => Vec::new(),
                ServerAddress::Command(words) => words.clone(),
            },
            again: format!("selftest serve {} --id", quoted(typed.unwrap_or_default())),
        },
    };
    let kernel = nix::sys::utsname::uname().map_err(broken)?;
    Ok(RunAbout {
        cofferdam: env!("CARGO_PKG_VERSION").to_owned(),
        target,
        kernel: kernel.release().to_string_lossy().into_owned(),
        uid: nix::unistd::geteuid().as_raw(),
        time: String::new(),
    })
}

/// Checks that the reports that were asked for can be written.
fn check_files(typed: &ReportArguments) -> Result<(), CliError> {
    let files =
        [("--junit", &typed.junit), ("--sarif", &typed.sarif), ("--markdown", &typed.markdown)];
    for (option, file) in files {
        let Some(file) = file else { continue };
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
        opened.map_err(|error| {
            let message = format!("selftest: {option}: {}: {}", file.display(), in_words(&error));
            CliError::new(message).with_code(NO_VERDICT)
        })?;
    }
    Ok(())
}

/// Writes the reports that were asked for.
fn write_files(
    typed: &ReportArguments,
    results: &[AttackResult],
    about: &RunAbout,
) -> Result<(), CliError> {
    let write = |option: &str, file: &Path, text: String| {
        std::fs::write(file, text).map_err(|error| {
            let message = format!("selftest: {option}: {}: {error}", file.display());
            CliError::new(message).with_code(NO_VERDICT)
        })
    };
    if let Some(file) = &typed.junit {
        write("--junit", file, report::junit(results))?;
    }
    if let Some(file) = &typed.sarif {
        write("--sarif", file, report::sarif(results, about).map_err(unwritten)?)?;
    }
    if let Some(file) = &typed.markdown {
        write("--markdown", file, report::markdown(results, about))?;
    }
    Ok(())
}

fn unwritten(error: serde_json::Error) -> CliError {
    CliError::new(format!("selftest: {error}")).with_code(NO_VERDICT)
}

/// Reads the report that results are compared with.
fn earlier(file: &Path) -> Result<Baseline, CliError> {
    let failed = |reason: String| {
        CliError::new(format!("selftest: --baseline: {}: {reason}", file.display()))
            .with_hint("make one with: cofferdam selftest --json >FILE")
            .with_code(NO_VERDICT)
    };
    let text = std::fs::read(file).map_err(|error| failed(in_words(&error)))?;
    Baseline::parse(&text).map_err(failed)
}

/// Reports on standard error what is worse than the baseline, and returns these results.
fn worse<'r>(baseline: &Baseline, results: &'r [AttackResult]) -> Vec<&'r AttackResult> {
    let VerdictChanges { worse, new } = baseline.changes(results);
    let list = |what: &str, ids: &[&str]| {
        if !ids.is_empty() {
            eprintln!("selftest: {what}: {}", ids.join(" "));
        }
    };
    list("worse than the baseline", &worse);
    list("not held, and not in the baseline", &new);
    results.iter().filter(|one| worse.contains(&one.id.as_str())).collect()
}

/// Formats a line of the report. Observations may contain any bytes, so what a terminal acts on is escaped.
fn shown(line: &ReportLine, colour: Colour) -> String {
    let mark = line.mark.map(|mark| {
        let tone = match mark {
            Mark::Breach => Tone::Bad,
            Mark::Known | Mark::NoVerdict => Tone::Caution,
        };
        colour.paint(tone, mark.word())
    });
    format!("{}{}\n", mark.unwrap_or_default(), format::plain(&line.text))
}

/// Map of user ids of this process's user namespace, as in `/proc` (user_namespaces(7)).
#[derive(Debug)]
struct IdMap {
    uid: u32,
    text: String,
}

impl IdMap {
    fn read() -> Result<Self, CliError> {
        let text = std::fs::read_to_string("/proc/self/uid_map").map_err(broken)?;
        Ok(Self { uid: nix::unistd::geteuid().as_raw(), text })
    }

    /// Returns true for root of a user namespace that does not map all ids of the host.
    fn is_root_of_a_container(&self) -> bool {
        let fields: Vec<&str> = self.text.split_ascii_whitespace().collect();
        self.uid == 0 && fields != ["0", "0", "4294967295"]
    }
}

/// Refuses to run as root of a user namespace. Attacks detect root by rights that are missing there, and their controls
/// need these rights.
pub(super) fn check_root() -> Result<(), CliError> {
    if !IdMap::read()?.is_root_of_a_container() {
        return Ok(());
    }
    let message =
        "selftest: root of a user namespace has neither the host's rights nor an ordinary user's";
    Err(CliError::new(message)
        .with_hint(
            "run it as an ordinary user: setpriv --reuid=1000 --regid=1000 --clear-groups cofferdam selftest, or a \
             container with --user 1000:1000",
        )
        .with_code(UNAVAILABLE))
}

fn broken(error: impl std::fmt::Display) -> CliError {
    CliError::new(format!("selftest: {error}")).with_code(NO_VERDICT)
}

/// Runs the attacks.
fn verdicts(target: Target, probes: &[Attack]) -> Result<Vec<AttackResult>, CliError> {
    on_bench(target, |bench| {
        bench.memory = bench.memory_mechanism().map_err(broken)?;
        bench.pace = bench.measured_pace().map_err(broken)?;
        bench.no_lab = bench.lab_trial().map_err(broken)?;
        Ok(conduct::all(bench, probes, &progress(probes.len())))
    })
}

/// Prepares everything that runs in a sandbox share, and checks that it starts. Removes all files
/// and processes that they left before it returns, also after an interruption.
pub(super) fn on_bench<R>(
    target: Target,
    run: impl FnOnce(&mut Bench) -> Result<R, CliError>,
) -> Result<R, CliError> {
    let directory = conduct::working_directory().map_err(|error| {
        broken(error).with_hint(
            "set TMPDIR to a directory in which programs may run; a container: --tmpfs /tmp:exec",
        )
    })?;
    let program = std::env::current_exe().map_err(broken)?;
    let mut bench = conduct::bench(directory.path(), program, target).map_err(broken)?;
    starts(&bench)?;
    bench.isolation = bench.seen_isolation().map_err(broken)?;
    remains::adopt().map_err(broken)?;
    stopped_by_signals(&bench.stop).map_err(broken)?;
    let results = run(&mut bench);
    bench.await_sweepers();
    let left = remains::end_all();
    directory.close().map_err(broken)?;
    match (bench.is_stopped(), left) {
        (true, _) => Err(CliError::new("selftest: interrupted").with_code(INTERRUPTED)),
        (false, 0) => results,
        (false, left) => Err(broken(format!("{left} processes of attacks could not be ended"))),
    }
}

/// Returns a function that shows the number of completed attacks on a terminal, in one line that is erased at the end.
fn progress(all: usize) -> impl Fn(usize) + Sync {
    let is_shown = std::io::stderr().is_terminal();
    move |done| {
        if is_shown && done < all {
            eprint!("\r{done} of {all} attacks");
        } else if is_shown {
            eprint!("\r\u{1b}[K");
        }
    }
}

/// Watches for the signals by which a user ends a command.
fn stopped_by_signals(stop: &Arc<AtomicBool>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let stop = Arc::clone(stop);
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let guard = runtime.enter();
    let [mut interrupt, mut terminate, mut hangup] = match kinds.map(signal) {
        [Ok(first), Ok(second), Ok(third)] => [first, second, third],
        [Err(error), _, _] | [_, Err(error), _] | [_, _, Err(error)] => return Err(error),
    };
    drop(guard);
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        stop.store(true, Ordering::Relaxed);
    })?;
    Ok(())
}

fn chosen(typed: &ChoiceArguments, ids: &[String]) -> Result<Vec<Attack>, CliError> {
    let mut probes = corpus::corpus().map_err(CliError::new)?;
    if let Some(unknown) = ids.iter().find(|id| !probes.iter().any(|probe| probe.id == **id)) {
        return Err(CliError::new(format!("selftest: there is no attack `{unknown}`"))
            .with_hint("cofferdam selftest --list names them"));
    }
    if let Some(unknown) = typed.only.iter().find(|only| !corpus::topics().any(|one| one == *only))
    {
        let known = corpus::topics().collect::<Vec<_>>().join(", ");
        return Err(CliError::new(format!("selftest: there is no topic `{unknown}`"))
            .with_hint(format!("the topics are {known}")));
    }
    probes.retain(|probe| {
        typed.class.is_none_or(|class| probe.class == class)
            && typed.severity.is_none_or(|severity| probe.class.severity() >= severity)
            && (typed.only.is_empty() || typed.only.iter().any(|only| only == probe.topic))
            && (ids.is_empty() || ids.contains(&probe.id))
    });
    Ok(probes)
}

/// Checks that the sandbox runs a program at all: a sandbox that starts nothing would pass every
/// attack.
fn starts(bench: &Bench) -> Result<(), CliError> {
    let printed = bench.trial().map_err(|error| {
        CliError::new(format!("selftest: {error}"))
            .with_hint("cofferdam selftest --targets lists the sandboxes that have a name here")
            .with_code(UNAVAILABLE)
    })?;
    let [stdout, stderr] = printed.each_ref().map(|text| text.trim());
    if stdout == "EBADF" {
        return Ok(());
    }
    let printed = format!("{stdout} {stderr}");
    Err(CliError::new(format!("selftest: the helper does not run there: {}", printed.trim()))
        .with_hint("cofferdam doctor names the remedy; another sandbox must let {probe} in")
        .with_code(UNAVAILABLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_of_a_user_namespace_is_refused() {
        let is_refused =
            |uid, text: &str| IdMap { uid, text: text.to_owned() }.is_root_of_a_container();
        let host = "         0          0 4294967295\n";
        let rootless = "         0       1001          1\n         1     500000      65536\n";
        assert!(!is_refused(0, host) && !is_refused(1000, host));
        assert!(is_refused(0, rootless) && is_refused(0, "") && !is_refused(1000, rootless));
    }

    #[test]
    fn a_mark_is_painted_and_what_an_attack_printed_is_escaped() {
        let line = ReportLine { mark: Some(Mark::Breach), text: " F1  \u{1b}[2J".to_owned() };
        assert_eq!(shown(&line, Colour::Off), "BREACH     F1  \\u{1b}[2J\n");
        let painted = shown(&line, Colour::On);
        assert_eq!(painted, "\u{1b}[1m\u{1b}[31mBREACH    \u{1b}[0m F1  \\u{1b}[2J\n");
    }
}
