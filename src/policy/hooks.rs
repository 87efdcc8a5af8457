//! Hooks of a declared tool: checks before a call, replacements of a caller's words, and readers of
//! the output. Each hook is data, or a script of the operator that runs in a separate cell. Pure:
//! no I/O.
//!
//! *Invariant:* a hook never widens what a caller may do. The words that it produces pass the same
//! checks as a caller's words.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::commands::why;
use super::flags::BadWords;
use super::pattern::Pattern;
use super::schema::WrittenCommand;
use super::summary::Summary;
use super::tools::{HOOK_PREFIX, REACH_PREFIX};
use super::values::plain;
use model::units::Time;
use profile::document::{Document, Mistake};

/// Timeout of a hook's script, unless the file says otherwise, and its upper bound.
const TIME: Duration = Duration::from_secs(5);
const MAX_TIME: Duration = Duration::from_secs(60);
/// Maximum number of scripts among the hooks of one tool. Each runs in a cell before or after that
/// of the call.
const MAX_SCRIPTS: usize = 4;
/// Maximum length of a script in bytes.
const SCRIPT_BYTES: usize = 64 << 10;
/// Maximum number of lines that one reader takes from an output.
const MAX_LINES: usize = 1000;

/// Hooks of one tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hooks {
    pub checks: Vec<FlagCheck>,
    pub replacements: Vec<Replacement>,
    pub readers: Vec<LineReader>,
    pub summary: Option<Summary>,
    pub scripts: Vec<HookScript>,
}

/// Condition on the flags of a call together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagCheck {
    /// The check applies to calls with one of these flags, or to every call if the list is empty.
    pub given: Vec<String>,
    /// A call needs one of these flags too, unless the list is empty.
    pub needs: Vec<String>,
    /// Flags that the call must not have.
    pub excludes: Vec<String>,
    /// Reason that the caller reads.
    pub why: String,
}

/// Words that replace one of the caller's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    pub word: String,
    pub by: Vec<String>,
}

/// Reader for lines of the standard output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineReader {
    /// Name of the value in `metadata.parsed`.
    pub name: String,
    pattern: Pattern,
    /// Whether the reader lists every line that matches, or takes only the first.
    pub all: bool,
}

/// The part of a line that a reader took: the named groups of the pattern, or a single value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundLine {
    Value(String),
    Groups(Vec<(String, String)>),
}

/// Script of the operator that runs in a separate cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookScript {
    pub at: HookPoint,
    pub script: String,
    pub timeout: Duration,
    /// Whether answers are remembered: the same call has the same answer.
    pub remember: bool,
}

/// Point of a call at which a script runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HookPoint {
    /// Before the program: exit code 0 lets the call through, 1 refuses it with the output as the reason.
    Check,
    /// Before the program: `{"extra_args": […]}` on standard output takes the place of the caller's flags.
    Transform,
    /// After all checks and before the program, in a cell with the network of the call: exit code 0
    /// lets the call through, 1 refuses it with the output as the reason.
    Reach,
    /// After the program: JSON on standard output becomes `metadata.parsed`.
    Output,
}

impl HookPoint {
    /// Returns the prefix of the name by which rules and the audit log know the scripts of this
    /// point.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Check | Self::Transform | Self::Output => HOOK_PREFIX,
            Self::Reach => REACH_PREFIX,
        }
    }

    /// Returns the name in policy files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Transform => "transform",
            Self::Reach => "reach",
            Self::Output => "output",
        }
    }
}

impl Hooks {
    /// Replaces words of the caller. The replacement is not replaced again.
    pub(super) fn replaced(&self, words: &[String]) -> Vec<String> {
        let replacement = |word: &String| self.replacements.iter().find(|one| one.word == *word);
        let replaced = |word: &String| {
            replacement(word).map_or_else(|| vec![word.clone()], |one| one.by.clone())
        };
        words.iter().flat_map(replaced).collect()
    }

    /// Checks the flags of a call together.
    pub(super) fn check(&self, tool: &str, words: &[String]) -> Result<(), BadWords> {
        let has = |flag: &String| {
            words.iter().any(|word| {
                word == flag || word.split_once('=').is_some_and(|(name, _)| name == flag)
            })
        };
        let fails = |check: &&FlagCheck| {
            let concerned = check.given.is_empty() || check.given.iter().any(has);
            let lacks = !check.needs.is_empty() && !check.needs.iter().any(has);
            concerned && (lacks || check.excludes.iter().any(has))
        };
        match self.checks.iter().find(fails) {
            Some(check) => {
                Err(BadWords::Together { tool: tool.to_owned(), why: check.why.clone() })
            }
            None => Ok(()),
        }
    }

    /// Returns the scripts at these points, in the order of the file.
    pub fn scripts_at(&self, points: &[HookPoint]) -> impl Iterator<Item = &HookScript> {
        self.scripts.iter().filter(|script| points.contains(&script.at))
    }
}

impl LineReader {
    /// Returns true if a summary can show this value: a named group, the number of lines, or the
    /// single value.
    pub(super) fn has(&self, group: Option<&str>) -> bool {
        let mut names = self.pattern.names();
        match group {
            Some(group) => !self.all && names.any(|name| name == group),
            None => self.all || names.next().is_none(),
        }
    }

    /// Reads an output. The list is empty if no line matches.
    pub fn read(&self, output: &str) -> Vec<FoundLine> {
        let limit = if self.all { MAX_LINES } else { 1 };
        let Some(regex) = self.pattern.regex() else { return Vec::new() };
        let captured = output.lines().filter_map(|line| regex.captures(line));
        let lines = captured.map(|captured| {
            let named = self.pattern.names().filter_map(|name| {
                Some((name.to_owned(), captured.name(name)?.as_str().to_owned()))
            });
            let named: Vec<(String, String)> = named.collect();
            let first = captured.get(1).or_else(|| captured.get(0));
            match named.is_empty() {
                true => FoundLine::Value(first.map_or("", |text| text.as_str()).to_owned()),
                false => FoundLine::Groups(named),
            }
        });
        lines.take(limit).collect()
    }
}

/// Condition on the flags of a call together, checked before anything runs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenCheck {
    /// Flags that it is about: a call with one of them is checked; `[]` is about every call. Example: `["-sn"]`.
    given: Vec<String>,
    /// Flags of which such a call needs one.
    ///
    /// Default: `[]`. Example: `["-sV"]`.
    #[serde(default)]
    needs: Vec<String>,
    /// Flags that such a call may not have; `[]` where it has `needs`. Example: `["-p", "--top-ports"]`.
    excludes: Vec<String>,
    /// Reason, which the caller is told. Example: `"a ping scan looks at no ports"`.
    why: Spanned<String>,
}

/// Words in the place of one of the caller's. What comes of it is checked as the caller's own words are.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenReplacement {
    /// Word of the caller's, exactly. Example: `"-sS"`.
    word: Spanned<String>,
    /// Words in its place; none takes it out. Example: `["-sT"]`.
    by: Spanned<Vec<String>>,
    /// Reason for it. Example: `"a cell has no raw sockets, and -sT gives the same port states"`.
    why: Spanned<String>,
}

/// Reader of lines of the standard output, for `metadata.parsed`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenReader {
    /// Name of what is found: lower-case letters and underscores. Example: `"replies"`.
    name: Spanned<String>,
    /// Regular expression for a part of a line. Its named groups become fields, else its first group is the value.
    ///
    /// Example: `"(?<bytes>[0-9]+) bytes from (?<from>[^ :]+)"`.
    pattern: Spanned<String>,
    /// A list of all lines that match, 1000 at most, instead of the first alone.
    ///
    /// Default: `false`. Example: `true`.
    #[serde(default)]
    all: bool,
    /// Reason for it. Example: `"each answer, for a program"`.
    why: Spanned<String>,
}

/// Script of bash that runs in a cell of its own, with an empty workspace and without a network. It has the call as
/// JSON on standard input: `tool`, `fields`, `template`, `extra_args` before replacements, `argv` with all words that the
/// program gets (those of templates, defaults and replacements too), and after the program `returncode`, `stdout`
/// and `stderr`. A rule must allow the tool `hook`; for a script at `reach`, which has the network of the call, `reach`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenHook {
    /// Point of the call at which it runs. Example: `"check"`.
    at: HookPoint,
    /// The script. One that fails, or takes too long, refuses the call; after the program it leaves out its data.
    ///
    /// Example: `"jq -e '.fields.target != \"10.0.0.1\"' > /dev/null || { echo 'not the router'; exit 1; }"`.
    script: Spanned<String>,
    /// Time of the script, one minute at most.
    ///
    /// Default: `"5s"`. Example: `"1s"`.
    timeout: Option<Spanned<Time>>,
    /// Remember its answers until the operator clears them (SIGUSR2): the same call has the same answer. For a check or
    /// a transform.
    ///
    /// Default: `false`. Example: `true`.
    #[serde(default)]
    remember: bool,
    /// Reason for it. Example: `"the router is not to be scanned"`.
    why: Spanned<String>,
}

/// Adds the hooks of the extended tool: always its checks and its search for a target, and every
/// other kind of hook if the tool has no hook of that kind.
fn inherited(mut hooks: Hooks, base: Option<&Hooks>) -> Hooks {
    let Some(base) = base else { return hooks };
    hooks.checks.splice(0..0, base.checks.iter().cloned());
    if hooks.replacements.is_empty() {
        hooks.replacements.clone_from(&base.replacements);
    }
    if hooks.readers.is_empty() {
        hooks.readers.clone_from(&base.readers);
        hooks.summary.clone_from(&base.summary);
    }
    let is_before = |hook: &&HookScript| hook.at != HookPoint::Output;
    let (before, after): (Vec<&HookScript>, Vec<&HookScript>) =
        base.scripts.iter().partition(|hook| is_before(hook));
    if !hooks.scripts.iter().any(|hook| is_before(&hook)) {
        hooks.scripts.splice(0..0, before.into_iter().cloned());
    } else {
        // The checks of the extended tool apply even if the tool has other scripts.
        let checks = before.into_iter().filter(|hook| hook.at != HookPoint::Transform);
        hooks.scripts.splice(0..0, checks.cloned());
    }
    if !hooks.scripts.iter().any(|hook| hook.at == HookPoint::Output) {
        hooks.scripts.extend(after.into_iter().cloned());
    }
    hooks
}

/// Reads the hooks of one declared tool and adds those of `base`, the tool that it extends.
pub(super) fn hooks(
    document: &Document,
    written: &WrittenCommand,
    base: Option<&Hooks>,
) -> Result<Hooks, Mistake> {
    let checks = written.checks.iter().map(|one| check(document, one));
    let replacements = written.replacements.iter().map(|one| replacement(document, one));
    let scripts = written.hooks.iter().map(|one| script(document, one));
    let mut readers: Vec<LineReader> = Vec::new();
    for one in &written.readers {
        let reader = reader(document, one)?;
        if readers.iter().any(|other| other.name == reader.name) {
            let message = format!("there are two readers `{}`", reader.name);
            return Err(document.mistake(one.name.span(), message));
        }
        readers.push(reader);
    }
    if let Some(excess) = written.hooks.get(MAX_SCRIPTS) {
        let message = format!("a tool has {MAX_SCRIPTS} hooks at most: each is a cell");
        return Err(document.mistake(excess.script.span(), message));
    }
    let new_hooks = Hooks {
        checks: checks.collect::<Result<_, _>>()?,
        replacements: replacements.collect::<Result<_, _>>()?,
        readers,
        summary: None,
        scripts: scripts.collect::<Result<_, _>>()?,
    };
    let mut all = inherited(new_hooks, base);
    if let Some(text) = &written.summary {
        let summary = Summary::parse(text.get_ref(), &all.readers);
        all.summary = Some(summary.map_err(|why| document.mistake(text.span(), why))?);
    }
    Ok(all)
}

fn check(document: &Document, written: &WrittenCheck) -> Result<FlagCheck, Mistake> {
    let WrittenCheck { given, needs, excludes, why: reason } = written;
    if needs.is_empty() && excludes.is_empty() {
        let message = "a check with no `needs` and no `excludes` refuses nothing";
        return Err(document.mistake(reason.span(), message));
    }
    let given = given.clone();
    let needs = needs.clone();
    let excludes = excludes.clone();
    Ok(FlagCheck { given, needs, excludes, why: why(document, reason)? })
}

fn replacement(document: &Document, written: &WrittenReplacement) -> Result<Replacement, Mistake> {
    why(document, &written.why)?;
    let word = written.word.get_ref();
    let by = written.by.get_ref();
    if let Some(bad) = [word].into_iter().chain(by).find_map(|word| plain(word).err()) {
        return Err(document.mistake(written.word.span(), format!("a word of a replacement {bad}")));
    }
    Ok(Replacement { word: word.clone(), by: by.clone() })
}

fn reader(document: &Document, written: &WrittenReader) -> Result<LineReader, Mistake> {
    why(document, &written.why)?;
    let name = written.name.get_ref();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
        let message = "a reader's name is lower-case letters and underscores";
        return Err(document.mistake(written.name.span(), message));
    }
    let Some(pattern) = Pattern::new(document, written.pattern.get_ref()) else {
        return Err(document.mistake(written.pattern.span(), "`pattern` is no regular expression"));
    };
    Ok(LineReader { name: name.clone(), pattern, all: written.all })
}

fn script(document: &Document, written: &WrittenHook) -> Result<HookScript, Mistake> {
    why(document, &written.why)?;
    let text = written.script.get_ref();
    if text.trim().is_empty() || text.contains('\0') || text.len() > SCRIPT_BYTES {
        let message = "a script is text of 64 KiB at most, and no NUL is in it";
        return Err(document.mistake(written.script.span(), message));
    }
    if written.remember && !matches!(written.at, HookPoint::Check | HookPoint::Transform) {
        let message = "`remember` is for a check or a transform: what others see may change";
        return Err(document.mistake(written.script.span(), message));
    }
    let timeout = match &written.timeout {
        None => TIME,
        Some(time) if time.get_ref().0.is_zero() || time.get_ref().0 > MAX_TIME => {
            return Err(document.mistake(time.span(), "`timeout` is above 0 and 1m at most"));
        }
        Some(time) => time.get_ref().0,
    };
    Ok(HookScript { at: written.at, script: text.clone(), timeout, remember: written.remember })
}

#[cfg(test)]
#[path = "hooks_tests.rs"]
mod tests;
