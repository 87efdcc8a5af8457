//! Hooks of a declared tool: checks before a call, replacements of a caller's words, and readers of
//! the output. Each hook is data, or a script of the operator that runs in a separate cell. Pure:
//! no I/O.
//!
//! *Invariant:* a hook never widens what a caller may do. The words that it produces pass the same
//! checks as a caller's words.

use std::time::Duration;

use super::pattern::LazyRegex;
use super::summary::Summary;
use super::tools::{HOOK_PREFIX, REACH_PREFIX};

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
    pub(super) pattern: LazyRegex,
    /// Whether the reader lists every line that matches, or takes only the first.
    pub all: bool,
    /// How the server's metrics show the number that is found.
    pub metric: Option<ReaderMetric>,
    /// Health of the tool after an output with such a line.
    pub health: Option<ReaderHealth>,
    pub why: String,
}

words! {
    /// Kind of metric for the numbers that a reader finds.
    pub enum ReaderMetric {
        /// The sum of all numbers that were found.
        Counter = "counter",
        /// The last number that was found.
        Gauge = "gauge",
    }
}

words! {
    /// Health of a tool after an output with a line of a reader.
    #[derive(PartialOrd, Ord)]
    pub enum ReaderHealth {
        /// Calls are useful, but an operator should look at the reason.
        Degraded = "degraded",
        /// Calls are useless until an operator acts.
        Unhealthy = "unhealthy",
    }
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

words! {
    /// Point of a call at which a script runs.
    pub enum HookPoint {
        /// Before the program: exit code 0 lets the call through, 1 refuses it with the output as
        /// the reason.
        Check = "check",
        /// Before the program: `{"extra_args": […]}` on standard output takes the place of the
        /// caller's flags.
        Transform = "transform",
        /// After all checks and before the program, in a cell with the network of the call: exit code 0
        /// lets the call through, 1 refuses it with the output as the reason.
        Reach = "reach",
        /// After the program: JSON on standard output becomes `metadata.parsed`.
        Output = "output",
    }
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

    /// Returns the first check that the flags of a call fail.
    pub(super) fn failed_check(&self, words: &[String]) -> Option<&FlagCheck> {
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
        self.checks.iter().find(fails)
    }

    /// Returns the scripts at these points, in the order of the file.
    pub fn scripts_at(&self, points: &[HookPoint]) -> impl Iterator<Item = &HookScript> {
        self.scripts.iter().filter(|script| points.contains(&script.at))
    }
}

impl LineReader {
    /// Returns true if a summary or a metric can show this value: a named group, the number of
    /// lines, or the single value.
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

#[cfg(test)]
#[path = "hooks_tests.rs"]
mod tests;
