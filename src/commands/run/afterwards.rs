//! The end of a run with `--cow`: what the layer has, and at a terminal the question what becomes of it.
//!
//! A process that ran a program is confined: it can neither read the layer nor start a review. So at a
//! terminal the run is a child of this process, which has opened nothing, waits for it, and starts
//! reviews afterwards. Elsewhere the confined process looks only at the time of the layer's top.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{getpid, getppid, pipe2};

use super::arguments::RunArguments;
use crate::commands::error::CliError;
use crate::commands::exit;
use crate::commands::format::{plain, shell_word};
use crate::commands::layers::files::Stamp;
use crate::commands::layers::layer::UPPER;
use crate::commands::review::LEFT;
use model::outcome::in_words;
use supervisor::Granted;
use sys::fork::fork;
use sys::process::{self, Child, Side};
use sys::{signals, terminal};

/// Lines of a list that are shown before the question.
const MAX_LINES: usize = 10;
/// Time for the kernel to remove the cells of the run, and between two lists meanwhile.
const MAX_END: Duration = Duration::from_secs(2);
const LIST_INTERVAL: Duration = Duration::from_millis(20);
/// Signals that are passed on to the run. Those of keys are not: the terminal has sent them to it too.
const PASSED_ON: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
/// Value of `si_code` from which on a signal is the kernel's (sigaction(2)).
const FROM_KERNEL: i32 = 1;

/// What this process does from here on.
pub(super) enum Begun {
    /// It runs the program.
    Run(Report),
    /// The run has ended with this code, in a child.
    Ended(u8),
}

/// How the end is reported.
pub(super) enum Report {
    /// There is no layer, or its user names it and asks by other means.
    Nothing,
    /// One line, unless the layer is known to have no changes.
    Line(Vec<Changed>),
    /// The waiting process gets the layers and asks.
    Asked(OwnedFd),
}

/// A layer and its state before the run.
pub(super) struct Changed {
    /// The directory that it belongs to.
    host: PathBuf,
    upper: PathBuf,
    /// Time of the last change of its top, which a cell cannot set; `None` if it had changes already.
    empty_since: Option<Stamp>,
}

/// Begins a run; at a terminal in a child, for which this process waits.
///
/// # Errors
/// A child that cannot be made or awaited.
pub(super) fn begin(typed: &RunArguments, config: Option<&Path>) -> Result<Begun, CliError> {
    let is_terminal = std::io::stderr().is_terminal();
    if typed.cow.is_empty() || typed.json || (typed.layer.is_some() && !is_terminal) {
        return Ok(Begun::Run(Report::Nothing));
    }
    if !is_terminal {
        return Ok(Begun::Run(Report::Line(Vec::new())));
    }
    let failed = |errno: Errno| {
        CliError::new(format!("--cow: the process of the run cannot be made: {errno}"))
    };
    // So that the child can be waited for.
    signals::usual_signals().map_err(failed)?;
    let (layers, to_layers) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
    let parent = getpid();
    match fork().map_err(failed)? {
        Side::Child => {
            process::set_death_signal(Signal::SIGKILL).map_err(failed)?;
            // The signal is not sent if the parent has ended before it was set.
            if getppid() != parent {
                process::exit_now(exit::REFUSED.into());
            }
            Ok(Begun::Run(Report::Asked(to_layers)))
        }
        Side::Parent(child) => {
            drop(to_layers);
            let code = awaited(&child).map_err(failed)?;
            // A terminal that was closed meanwhile shows nothing: the layers are kept.
            if std::io::stderr().is_terminal() {
                ask_about(layers, config)?;
            }
            Ok(Begun::Ended(code))
        }
    }
}

impl Report {
    /// Takes note of the layers among the grants, before this process is confined.
    ///
    /// # Errors
    /// The waiting process has ended.
    pub(super) fn note(&mut self, granted: &[Vec<Granted>]) -> Result<(), CliError> {
        let mut layers: Vec<(&Path, &Path)> = Vec::new();
        for granted in granted.iter().flatten() {
            let layer = granted.layer.as_ref().map(|layer| layer.host.as_path());
            layers.extend(layer.map(|layer| (granted.host.as_path(), layer)));
        }
        layers.sort_unstable();
        layers.dedup();
        match std::mem::replace(self, Self::Nothing) {
            Self::Nothing => Ok(()),
            Self::Line(_) => {
                let changed = layers.into_iter().map(|(host, layer)| Changed::of(host, layer));
                *self = Self::Line(changed.collect());
                Ok(())
            }
            // Closed here: the supervisor would hold it.
            Self::Asked(to) => send(to, &layers).map_err(|error| {
                CliError::new(format!("--cow: the waiting process: {}", in_words(&error)))
            }),
        }
    }

    /// Prints a line for each layer that may have changes.
    pub(super) fn print(&self) {
        let Self::Line(layers) = self else { return };
        for changed in layers.iter().filter(|changed| changed.is_left()) {
            let host = shell_word(&changed.host.display().to_string());
            eprintln!(
                "cofferdam: the directory is as before; changes are in its layer: cofferdam review {host}"
            );
        }
    }
}

impl Changed {
    fn of(host: &Path, layer: &Path) -> Self {
        let upper = layer.join(UPPER);
        let is_empty = std::fs::read_dir(&upper).is_ok_and(|mut names| names.next().is_none());
        let empty_since = changed(&upper).filter(|_| is_empty);
        Self { host: host.to_owned(), upper, empty_since }
    }

    /// Returns false only if nothing came to the top of a layer without changes: whatever a cell changes
    /// is copied to a place below it. The first mount of a layer changes its time too.
    fn is_left(&self) -> bool {
        self.empty_since.is_none() || self.empty_since != changed(&self.upper)
    }
}

/// Returns the time of the last change of a directory. Nothing is opened.
fn changed(path: &Path) -> Option<Stamp> {
    let metadata = path.symlink_metadata().ok()?;
    Some(Stamp(metadata.ctime(), metadata.ctime_nsec()))
}

/// Sends the layers, each as the directory that it belongs to and its id.
fn send(to: OwnedFd, layers: &[(&Path, &Path)]) -> std::io::Result<()> {
    let mut to = File::from(to);
    for (host, layer) in layers {
        let id = layer.file_name().unwrap_or_default();
        let parts = [host.as_os_str().as_bytes(), b"\0", id.as_bytes(), b"\0"];
        to.write_all(&parts.concat())?;
    }
    Ok(())
}

/// Waits for the run, passes signals on to it, and returns its exit code.
fn awaited(child: &Child) -> nix::Result<u8> {
    let mut mask = SigSet::empty();
    PASSED_ON.into_iter().for_each(|signal| mask.add(signal));
    mask.thread_block()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let code = loop {
        let mut events = [
            PollFd::new(child.pidfd.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut events, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        while let Some(signal) = signals.read_signal()? {
            let number = i32::try_from(signal.ssi_signo).unwrap_or_default();
            let number = Signal::try_from(number)?;
            // That of a closed terminal may have come to this process alone, the leader of the session.
            if signal.ssi_code >= FROM_KERNEL && number != Signal::SIGHUP {
                continue;
            }
            match process::signal(&child.pidfd, number) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(errno),
            }
        }
        if let Some(ended) = process::collect(&child.pidfd)? {
            break ended.code.and_then(|code| u8::try_from(code).ok());
        }
    };
    // From here on Ctrl-C ends this process, and the layer is kept.
    mask.thread_unblock()?;
    Ok(code.unwrap_or(exit::REFUSED))
}

/// Asks about each layer that the run had.
fn ask_about(layers: OwnedFd, config: Option<&Path>) -> Result<(), CliError> {
    let mut bytes = Vec::new();
    let read = File::from(layers).read_to_end(&mut bytes);
    read.map_err(|error| review_failed(&error))?;
    let mut parts = bytes.split(|byte| *byte == 0);
    while let (Some(host), Some(id)) = (parts.next(), parts.next()) {
        let host = Path::new(OsStr::from_bytes(host));
        Layer { host, id: OsStr::from_bytes(id), config }.ask()?;
    }
    Ok(())
}

fn review_failed(error: &std::io::Error) -> CliError {
    CliError::new(format!("--cow: the review cannot be made: {}", in_words(error)))
        .with_hint("the changes are kept: cofferdam review")
}

/// A review that has ended.
struct Reviewed {
    /// False if it failed.
    is_done: bool,
    messages: Vec<u8>,
}

/// A layer that is asked about.
struct Layer<'a> {
    host: &'a Path,
    id: &'a OsStr,
    config: Option<&'a Path>,
}

impl Layer<'_> {
    /// Shows what the layer has, and does what the person says. Without an answer everything is kept.
    fn ask(&self) -> Result<(), CliError> {
        let listed = self.listed_at_end()?;
        let list = String::from_utf8_lossy(&listed.stdout).into_owned();
        if list.is_empty() {
            // Without changes there is nothing to ask, and a failure is the review's to explain.
            if !listed.status.success() {
                eprint!("{}", String::from_utf8_lossy(&listed.stderr));
            }
            return Ok(());
        }
        // Another start may use the layer before the answer.
        let mut shown = digest_in(&listed.stderr);
        eprint!("{}", summary(&plain(&self.host.display().to_string()), &list));
        if !std::io::stdin().is_terminal() {
            self.keep();
            return Ok(());
        }
        loop {
            match answer()? {
                Answer::Apply => return self.change("--apply", shown.as_deref()),
                Answer::Discard => return self.change("--discard", shown.as_deref()),
                Answer::Diff => {
                    let diff = self.act(&["--diff"])?;
                    // Without one, what is applied must still be what the list has shown.
                    shown = digest_in(&diff.messages).or(shown);
                }
                Answer::Keep => {
                    self.keep();
                    return Ok(());
                }
                Answer::Unknown => {}
            }
        }
    }

    /// Lists the changes when the cells of the run, which use the layer, have been removed.
    fn listed_at_end(&self) -> Result<Output, CliError> {
        let end = Instant::now() + MAX_END;
        loop {
            let listed = self.listed()?;
            let is_free = listed.stdout.is_empty() || digest_in(&listed.stderr).is_some();
            if is_free || Instant::now() >= end {
                return Ok(listed);
            }
            std::thread::sleep(LIST_INTERVAL);
        }
    }

    /// Lists the changes.
    fn listed(&self) -> Result<Output, CliError> {
        let mut list = self.review(&[]);
        list.env("NO_COLOR", "1").env_remove("CLICOLOR_FORCE").stderr(Stdio::piped());
        list.output().map_err(|error| review_failed(&error))
    }

    /// Applies or discards the changes if they are still those that were shown.
    fn change(&self, how: &str, shown: Option<&str>) -> Result<(), CliError> {
        match shown {
            Some(digest) => {
                if !self.act(&[how, "--if", digest])?.is_done {
                    self.keep();
                }
                Ok(())
            }
            None => {
                self.keep_unknown();
                Ok(())
            }
        }
    }

    fn keep(&self) {
        eprintln!("cofferdam: kept; cofferdam review {}", self.directory());
    }

    fn keep_unknown(&self) {
        eprintln!(
            "cofferdam: the layer was in use when it was listed, or an apply of it was interrupted"
        );
        self.keep();
    }

    fn directory(&self) -> String {
        shell_word(&self.host.display().to_string())
    }

    /// Returns a review of the layer.
    fn review(&self, arguments: &[&str]) -> Command {
        // The same program even if another was installed meanwhile.
        let mut command = Command::new("/proc/self/exe");
        if let Some(config) = self.config {
            command.arg("--config").arg(config);
        }
        command.arg("review").arg("--layer").arg(self.id).arg(self.host).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a review whose output is for the person: standard output is that of the program that ran.
    fn act(&self, arguments: &[&str]) -> Result<Reviewed, CliError> {
        let to = std::io::stderr().as_fd().try_clone_to_owned();
        let to = to.map_err(|error| review_failed(&error))?;
        let mut review = self.review(arguments);
        let mut review = review.stdout(to).stderr(Stdio::piped()).spawn();
        let review = review.as_mut().map_err(|error| review_failed(error))?;
        let mut messages = Vec::new();
        let from = review.stderr.take().into_iter();
        for line in from.flat_map(|from| BufReader::new(from).split(b'\n')) {
            let mut line = line.map_err(|error| review_failed(&error))?;
            line.push(b'\n');
            eprint!("{}", String::from_utf8_lossy(&line));
            messages.extend(line);
        }
        // It has explained a failure.
        let ended = review.wait().map_err(|error| review_failed(&error))?;
        let is_done = ended.code().is_some_and(|code| code <= LEFT.into());
        Ok(Reviewed { is_done, messages })
    }
}

/// Returns the digest that a review has printed with its list.
fn digest_in(messages: &[u8]) -> Option<String> {
    let messages = String::from_utf8_lossy(messages);
    let mut digests = messages.lines().filter_map(|line| {
        let digest = line.strip_prefix("cofferdam: `--apply --if ")?.split('`').next()?;
        let is_digest = !digest.is_empty() && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| digest.to_owned())
    });
    digests.next()
}

/// Formats the counts and the first lines of a list.
fn summary(directory: &str, list: &str) -> String {
    let lines: Vec<&str> = list.lines().collect();
    let count = |is: fn(&str) -> bool| lines.iter().filter(|line| is(line)).count();
    let counts = [
        (count(|line| line.starts_with("A ")), "added"),
        (count(|line| line.starts_with("M ")), "changed"),
        (count(|line| line.starts_with("D ")), "deleted"),
        (count(|line| notes(line).contains("held back: ")), "held back"),
        (count(|line| notes(line).contains("conflict: ")), "in conflict"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, what)| format!("{count} {what}")).collect();
    let mut text = format!("cofferdam: changes to {directory}: {}\n", counts.join(", "));
    for line in lines.iter().take(MAX_LINES) {
        text.push_str(&format!("  {line}\n"));
    }
    if lines.len() > MAX_LINES {
        text.push_str(&format!("  and {} more\n", lines.len() - MAX_LINES));
    }
    text
}

/// Returns the notes at the end of a line: names with two blanks or a quotation mark are in quotation
/// marks.
fn notes(line: &str) -> &str {
    let end = line.rsplit('"').next().unwrap_or_default();
    end.split_once("  [").map(|(_, notes)| notes).unwrap_or_default()
}

/// What becomes of the changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Apply,
    Diff,
    Keep,
    Discard,
    Unknown,
}

impl Answer {
    /// Reads a line. A word that changes the host or removes changes is written in full.
    fn of(line: &str) -> Self {
        match line.trim() {
            "" | "k" | "keep" => Self::Keep,
            "apply" => Self::Apply,
            "diff" => Self::Diff,
            "discard" => Self::Discard,
            _ => Self::Unknown,
        }
    }
}

/// Asks the person at the terminal. The end of the input keeps the changes.
fn answer() -> Result<Answer, CliError> {
    // What was typed while the program ran is no answer.
    terminal::discard_input(std::io::stdin()).map_err(|errno| review_failed(&errno.into()))?;
    eprint!("apply, diff, keep or discard? [keep] ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    if read.map_err(|error| review_failed(&error))? == 0 {
        eprintln!();
    }
    Ok(Answer::of(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_word_applies_or_discards_and_no_answer_keeps() {
        for (line, answer) in [
            ("", Answer::Keep),
            ("\n", Answer::Keep),
            ("k\n", Answer::Keep),
            ("a\n", Answer::Unknown),
            ("apply\n", Answer::Apply),
            ("diff\n", Answer::Diff),
            ("d\n", Answer::Unknown),
            ("discard\n", Answer::Discard),
            ("y\n", Answer::Unknown),
        ] {
            assert_eq!(Answer::of(line), answer, "{line:?}");
        }
    }

    #[test]
    fn a_digest_is_one_that_the_review_printed() {
        let digest = |messages: &str| digest_in(messages.as_bytes());
        let line = "cofferdam: x\ncofferdam: `--apply --if 01ab` does so only if the list is still this one\n";
        assert_eq!(digest(line).as_deref(), Some("01ab"));
        let in_use =
            "cofferdam: `--apply --if DIGEST` needs a list of the layer when no cell uses it\n";
        assert_eq!(digest(in_use), None);
        assert_eq!(digest("cofferdam: changes to `--apply --if 01ab` in the layer x\n"), None);
        assert_eq!(digest(""), None);
    }

    #[test]
    fn a_summary_counts_all_lines_and_shows_the_first() {
        let mut list: String = (0..10).map(|number| format!("A {number}\n")).collect();
        list.push_str("A \"x  [held back: a name\"\n");
        list.push_str("M b  [conflict: the host changed it too]\nD c  [held back: a reason]\n");
        let text = summary("/p", &list);
        let first = "cofferdam: changes to /p: 11 added, 1 changed, 1 deleted, 1 held back, 1 in conflict\n";
        assert!(text.starts_with(first), "{text}");
        assert!(text.ends_with("  A 9\n  and 3 more\n"), "{text}");
        assert_eq!(text.lines().count(), 12);
    }
}
