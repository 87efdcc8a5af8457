//! The flags in the text that a program prints about itself, and which of them a tool can take.
//!
//! The text is data of a program that is not trusted: it is only split, compared and quoted. A flag
//! is taken if nothing in the text speaks against it; all others are left to the operator, each with
//! the reason. Pure: no I/O.

use std::collections::BTreeSet;

/// Maximum number of flags that are read from one text.
const MAX_FLAGS: usize = 400;
/// Maximum characters of a description.
const MAX_DESCRIPTION: usize = 120;
/// Numbers that a flag takes if its help does not say which.
const NUMBERS: &str = "0..1000000";

/// A flag in a help text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HelpFlag {
    /// Name with its dashes, followed by the form of its value: `--indent 0..1000000`.
    pub(super) form: String,
    /// Description from the text, in printable ASCII.
    pub(super) about: String,
    /// Reason why a tool does not take the flag unless the operator decides so.
    pub(super) left_out: Option<&'static str>,
}

/// Words that speak against a flag, and the reason that they stand for. They are compared with whole
/// words of a flag's name, value and description.
const SUSPICIOUS: &[(&str, &[&str])] = &[
    (
        "may write, rename or remove files",
        &[
            "write",
            "writes",
            "writing",
            "written",
            "overwrite",
            "append",
            "save",
            "create",
            "creates",
            "creating",
            "delete",
            "deletes",
            "remove",
            "removes",
            "unlink",
            "truncate",
            "extract",
            "unpack",
            "update",
            "decompress",
            "compress",
            "restore",
            "install",
            "rename",
            "backup",
            "edit",
            "inplace",
            "place",
            "destination",
            "dump",
            "log",
            "logfile",
            "outfile",
            "upload",
            "clobber",
            "store",
            "stores",
        ],
    ),
    (
        "may run commands or load code",
        &[
            "exec",
            "execute",
            "executes",
            "run",
            "runs",
            "running",
            "command",
            "commands",
            "program",
            "shell",
            "script",
            "scripts",
            "eval",
            "plugin",
            "plugins",
            "load",
            "module",
            "modules",
            "library",
            "pager",
            "paginate",
            "editor",
            "hook",
            "hooks",
            "interactive",
            "debugger",
            "external",
            "helper",
            "textconv",
            "gpg",
        ],
    ),
    (
        "concerns a network, an account or rights",
        &[
            "listen",
            "server",
            "serve",
            "daemon",
            "proxy",
            "proxies",
            "socket",
            "connect",
            "interface",
            "port",
            "remote",
            "user",
            "username",
            "password",
            "passphrase",
            "credential",
            "credentials",
            "token",
            "key",
            "cookie",
            "netrc",
            "insecure",
            "privileged",
            "root",
            "sudo",
            "spoof",
            "decoy",
            "relay",
            "zombie",
            "raw",
            "packet",
            "packets",
            "trusted",
            "security",
            "auth",
            "authentication",
            "login",
            "next",
            "metalink",
        ],
    ),
    (
        "reads settings or names of files from elsewhere",
        &["config", "configuration", "resume", "datadir", "include", "database", "env"],
    ),
];

/// Parts of the name of a value that is a path, and ends of words in the name of its flag.
const PATHS: &[&str] = &["file", "path", "dir", "directory", "folder"];
/// Names of values that are numbers.
const NUMBER_NAMES: &[&str] = &[
    "n", "num", "number", "count", "cols", "columns", "width", "lines", "int", "integer", "level",
    "depth", "seconds", "secs", "sec", "ms", "limit", "max", "min", "bytes", "context", "rate",
    "tries", "ratio", "indent",
];
/// Parts of the name of a value that names a place in a network.
const PLACES: &[&str] = &["host", "addr", "url", "domain", "server", "target"];

/// Reads the flags of a text, in its order. Each name is listed once.
pub(super) fn flags(text: &str) -> Vec<HelpFlag> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in text.lines() {
        let shown = printable(line);
        let trimmed = shown.trim();
        if trimmed.starts_with('-') && !trimmed.starts_with("---") {
            entries.push(Entry::of_line(trimmed));
        } else if trimmed.contains("[-") {
            entries.extend(bracketed(trimmed));
        } else if let Some(entry) = entries.last_mut() {
            entry.continue_with(&shown);
        }
    }
    let mut names = BTreeSet::new();
    let all = entries.iter().flat_map(Entry::flags);
    all.filter(|flag| names.insert(name(&flag.form).to_owned())).take(MAX_FLAGS).collect()
}

/// Returns the name in the form of a flag.
fn name(form: &str) -> &str {
    form.split([' ', '=']).next().unwrap_or_default()
}

/// Part of a text about one flag under all its names.
#[derive(Debug, Default)]
struct Entry {
    /// Names with their values as the text has them: `-w, --width=COLS`.
    names: String,
    about: String,
    /// True if the next lines can belong to it.
    is_open: bool,
}

impl Entry {
    /// Splits a line into names and description, which are two spaces, a tab or a colon apart.
    fn of_line(line: &str) -> Self {
        // A long value can be one space apart: `--user <user:password> Server user`.
        let is_text = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphanumeric());
        let mut values = line.match_indices("> ").map(|(at, _)| at + 1);
        let after_value = values.find(|at| line.get(at + 1..).is_some_and(is_text));
        let ends = [line.find("  "), line.find(": "), after_value];
        let (names, about) = match ends.into_iter().flatten().min().or_else(|| sentence(line)) {
            Some(at) => line.split_at(at),
            None => (line, ""),
        };
        let about = about.trim_start_matches([':', ' ']).to_owned();
        Self { names: names.trim().to_owned(), about, is_open: true }
    }

    /// Adds the first line of a description that begins below the names, and ends the entry at a
    /// line that is no continuation.
    fn continue_with(&mut self, line: &str) {
        let is_continuation = line.starts_with("      ") && !line.trim().is_empty();
        if self.is_open && is_continuation && self.about.is_empty() {
            self.about = line.trim().to_owned();
        } else if self.is_open && is_continuation && self.about.len() < MAX_DESCRIPTION {
            self.about = format!("{} {}", self.about, line.trim());
        } else {
            self.is_open = false;
        }
    }

    /// Returns a flag for each name.
    fn flags(&self) -> Vec<HelpFlag> {
        let names = alternatives(&self.names);
        let values = names.iter().map(|name| Value::of(name));
        // `-d, --data <data>`: the value belongs to both names.
        let value = values.max_by_key(Value::rank).unwrap_or(Value::None);
        let cut: String = self.about.chars().take(MAX_DESCRIPTION).collect();
        let about = cut.trim_end_matches([';', '.', ',', ' ']).trim().to_owned();
        let judged = |name: &String| {
            let name = name.split(VALUE_STARTS).next().unwrap_or_default();
            let (value, left_out) = value.judged(name, &self.names, &about);
            let form = match value.is_empty() {
                true => name.to_owned(),
                false => format!("{name} {value}"),
            };
            HelpFlag { form, about: about.clone(), left_out }
        };
        names.iter().map(judged).filter(|flag| is_flag(name(&flag.form))).collect()
    }
}

/// Returns the end of the names in a line whose description is one space apart: behind the last flag
/// there are three plain words or more.
fn sentence(line: &str) -> Option<usize> {
    let dash = line.rfind(" -").map_or(0, |at| at + 1);
    let end = dash + line.get(dash..)?.find(' ')?;
    let mut words = line.get(end..)?.split_whitespace();
    let is_plain = |word: &str| word.starts_with(|c: char| c.is_ascii_alphanumeric());
    (words.clone().count() >= 3 && words.by_ref().take(3).all(is_plain)).then_some(end)
}

/// Characters that begin the value in a name of a help text.
const VALUE_STARTS: [char; 5] = [' ', '=', '<', '[', '{'];

/// Returns true for one or two dashes, followed by letters, digits and dashes.
fn is_flag(name: &str) -> bool {
    let letters = name.trim_start_matches('-');
    (1..=2).contains(&(name.len() - letters.len()))
        && !letters.is_empty()
        && letters.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Returns the flags of a usage line in brackets: `[-v | --version] [--git-dir=<path>]`.
fn bracketed(line: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut depth = 0_usize;
    let mut names = String::new();
    for c in line.chars() {
        match c {
            '[' if depth == 0 => depth = 1,
            ']' if depth == 1 => {
                depth = 0;
                let names = std::mem::take(&mut names);
                entries.push(Entry { names, about: String::new(), is_open: false });
            }
            '[' | ']' => {
                depth = if c == '[' { depth + 1 } else { depth.saturating_sub(1) };
                names.push(c);
            }
            _ if depth > 0 => names.push(c),
            _ => {}
        }
    }
    entries.retain(|entry| entry.names.starts_with('-'));
    entries
}

/// Splits `-g/--source-port <n>`, `-w, --width=COLS`, `-v | --version` and `-sS/sT` into names.
fn alternatives(names: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut depth = 0_usize;
    let mut one = String::new();
    for (at, c) in names.char_indices() {
        match c {
            '<' | '[' | '{' => depth += 1,
            '>' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let rest = names.get(at + 1..).unwrap_or_default();
        let ends = match c {
            // `--when=a|b` has a list of words as its value.
            ',' | '|' | ';' => rest.trim_start().starts_with('-'),
            '/' => !one.contains(VALUE_STARTS),
            _ => false,
        };
        if depth == 0 && ends {
            all.push(std::mem::take(&mut one));
        } else {
            one.push(c);
        }
    }
    all.push(one);
    let dashes: String = names.chars().take_while(|c| *c == '-').collect();
    let complete = |name: String| {
        let name = name.trim().to_owned();
        if name.starts_with('-') { name } else { format!("{dashes}{name}") }
    };
    all.into_iter().map(complete).filter(|name| name.len() > dashes.len()).collect()
}

/// Value of a flag in a help text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    None,
    /// After `[=`: the flag can be given without it.
    Optional,
    /// In the same word as the flag, without an equals sign: `-T<0-5>`.
    Attached,
    /// Name of one value, in lower case.
    One(String),
    Several,
}

impl Value {
    /// Reads the value behind a name.
    fn of(text: &str) -> Self {
        let Some(at) = text.find(VALUE_STARTS) else { return Self::None };
        let (_, value) = text.split_at(at);
        if value.starts_with("[=") {
            return Self::Optional;
        }
        if value.starts_with(['<', '[', '{']) {
            return Self::Attached;
        }
        let mut depth = 0_usize;
        let mut words = 1_usize;
        for c in value.trim_matches([' ', '=']).chars() {
            match c {
                '<' | '[' | '{' => depth += 1,
                '>' | ']' | '}' => depth = depth.saturating_sub(1),
                ' ' if depth == 0 => words += 1,
                _ => {}
            }
        }
        match words {
            1 => Self::One(value.trim_matches([' ', '=', '<', '>']).to_lowercase()),
            _ => Self::Several,
        }
    }

    /// Orders values: the one that says most comes last.
    fn rank(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Optional => 1,
            Self::Attached => 2,
            Self::One(_) => 3,
            Self::Several => 4,
        }
    }

    /// Returns the form of the value in a tool's file, and the reason against the flag if there is
    /// one.
    fn judged(&self, flag: &str, names: &str, about: &str) -> (String, Option<&'static str>) {
        let text = format!("{names} {about}").to_lowercase();
        let words: BTreeSet<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let is_named = |list: &&(&str, &[&'static str])| list.1.iter().any(|w| words.contains(w));
        let suspicious = SUSPICIOUS.iter().find(is_named).map(|(why, _)| *why);
        let unexplained = about.is_empty().then_some("its help does not say what it does");
        let against = suspicious.or(unexplained);
        match self {
            Self::None | Self::Optional => (String::new(), against),
            Self::Attached => {
                (String::new(), Some("has its value in the same word: list each word as a flag"))
            }
            Self::Several => (String::new(), Some("takes several values, which no flag can have")),
            Self::One(value) => {
                let (form, own) = kind(value, flag);
                (form, own.or(against))
            }
        }
    }
}

/// Returns the form for a value of this name, and the reason why the operator must choose it.
fn kind(value: &str, flag: &str) -> (String, Option<&'static str>) {
    let has = |parts: &[&str]| parts.iter().any(|part| value.contains(part));
    let choices = value.trim_matches(['{', '}', '(', ')', '[', ']']).replace(',', "|");
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    let names_path = |part: &str| PATHS.iter().any(|path| part.ends_with(path));
    if has(PATHS) || flag.split('-').any(names_path) {
        return ("PATH".to_owned(), Some("names a file or a directory"));
    }
    if choices.contains('|') && choices.split('|').all(is_word) {
        return (choices, None);
    }
    if NUMBER_NAMES.contains(&value) {
        return (NUMBERS.to_owned(), None);
    }
    if has(PLACES) {
        return ("HOST".to_owned(), Some("names a place in a network"));
    }
    ("TEXT".to_owned(), Some("takes free text: choose numbers, words or a pattern for it"))
}

/// Returns a line in printable ASCII: tabs as spaces, and nothing for characters that a terminal
/// would act on.
fn printable(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for c in line.chars() {
        match c {
            '\t' => text.push_str("        "),
            ' '..='~' => text.push(c),
            _ if c.is_control() => {}
            _ => text.push('?'),
        }
    }
    text
}

#[cfg(test)]
#[path = "help_text_tests.rs"]
mod tests;
