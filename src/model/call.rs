//! The request of a client after parsing: every value is bounded and free of NUL.
//!
//! A [`Call`] is made from these checked types only, so later code does not check lengths or names
//! again. The exception is the supervisor, which checks again on its side of the process boundary.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::egress::Only;
use crate::profile::name::ProfileName;

/// Maximum size of a script in bytes (1 MiB); it travels as a sealed memfd.
pub const SCRIPT_BYTES: usize = 1 << 20;
/// Maximum number of bytes of standard input that a call carries (8 MiB).
pub const STDIN_BYTES: usize = 8 << 20;
/// Maximum size of the environment in bytes, names and values with separators (64 KiB).
pub const ENV_BYTES: usize = 64 << 10;
/// Maximum size of the argument vector in bytes, including terminators (128 KiB).
pub const ARGV_BYTES: usize = 128 << 10;
/// Maximum length of a path in a cell in bytes, the kernel's `PATH_MAX` without its NUL.
pub const PATH_BYTES: usize = 4095;
/// The program that reads and writes files in a cell that can hold a shell.
pub const CLERK: &str = "/.cofferdam/clerk";
/// The program that runs the scripts of a project, in cells that have some.
pub const RUNNER: &str = "/.cofferdam/runner";
/// Maximum timeout of a call.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// Environment variables that no caller may set: each changes what a program runs or loads.
const REFUSED_ENV: &[&str] = &[
    "BASH_ENV",
    "ENV",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "IFS",
    "GLIBC_TUNABLES",
    "ZDOTDIR",
    "FPATH",
    "BC_ENV_ARGS",
    "LESSOPEN",
    "LESSCLOSE",
];
/// Prefixes refused for the same reason.
const REFUSED_ENV_PREFIXES: &[&str] = &["LD_", "BASH_FUNC_", "GIT_"];

/// Why a value of a caller was rejected. `field` is the name that the caller used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCall {
    #[error("{field} is empty")]
    Empty { field: &'static str },
    #[error("{field} is {bytes} bytes; at most {limit} are taken")]
    TooLong { field: &'static str, bytes: usize, limit: usize },
    #[error("{field} contains a NUL byte at offset {offset}")]
    Nul { field: &'static str, offset: usize },
    #[error("{field} `{path}` is not inside /workspace or /tmp")]
    Outside { field: &'static str, path: String },
    #[error("{field} `{name}` is not a name a shell variable can have")]
    NotAnIdentifier { field: &'static str, name: String },
    #[error("{field} `{name}` is refused: it changes what programs load or run")]
    RefusedName { field: &'static str, name: String },
    #[error("{field} must be {expected}, not {got}")]
    OutOfRange { field: &'static str, expected: &'static str, got: String },
}

fn bounded(field: &'static str, bytes: &[u8], limit: usize) -> Result<(), InvalidCall> {
    if bytes.len() > limit {
        return Err(InvalidCall::TooLong { field, bytes: bytes.len(), limit });
    }
    match bytes.iter().position(|byte| *byte == 0) {
        Some(offset) => Err(InvalidCall::Nul { field, offset }),
        None => Ok(()),
    }
}

/// Text of a script: not empty, at most [`SCRIPT_BYTES`], no NUL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script(String);

impl Script {
    /// Takes a script as the caller's `field` gave it.
    pub fn new(field: &'static str, text: String) -> Result<Self, InvalidCall> {
        bounded(field, text.as_bytes(), SCRIPT_BYTES)?;
        if text.trim().is_empty() {
            return Err(InvalidCall::Empty { field });
        }
        Ok(Self(text))
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }
}

/// An argument vector: at least one argument, at most [`ARGV_BYTES`] in total.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Argv(Vec<String>);

impl Argv {
    /// Takes an argument vector; `argv[0]` names the program.
    pub fn new(words: Vec<String>) -> Result<Self, InvalidCall> {
        let field = "argv";
        if words.first().is_none_or(String::is_empty) {
            return Err(InvalidCall::Empty { field });
        }
        let bytes = words.iter().map(|word| word.len() + 1).sum();
        if bytes > ARGV_BYTES {
            return Err(InvalidCall::TooLong { field, bytes, limit: ARGV_BYTES });
        }
        for word in &words {
            bounded(field, word.as_bytes(), ARGV_BYTES)?;
        }
        Ok(Self(words))
    }

    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// Returns the program's name as the caller gave it.
    pub fn program(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }
}

/// Variables that a caller adds to a cell's environment; refused names cannot be among them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// Takes the variables of a caller, except refused names.
    pub fn new(variables: BTreeMap<String, String>) -> Result<Self, InvalidCall> {
        let field = "env";
        let bytes = variables.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        if bytes > ENV_BYTES {
            return Err(InvalidCall::TooLong { field, bytes, limit: ENV_BYTES });
        }
        for (name, value) in &variables {
            check_name(field, name)?;
            bounded(field, value.as_bytes(), ENV_BYTES)?;
        }
        Ok(Self(variables))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

fn check_name(field: &'static str, name: &str) -> Result<(), InvalidCall> {
    let mut characters = name.chars();
    let starts_well = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !starts_well || !characters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(InvalidCall::NotAnIdentifier { field, name: printable(name) });
    }
    let refused = REFUSED_ENV.contains(&name)
        || REFUSED_ENV_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if refused {
        return Err(InvalidCall::RefusedName { field, name: name.to_owned() });
    }
    Ok(())
}

/// Makes text of a caller fit for an error message: escaped, at most 80 characters.
fn printable(word: &str) -> String {
    word.chars().take(80).flat_map(char::escape_default).collect()
}

/// Returns a path of the workspace as one of `/workspace`, if it is written with `other`, at which
/// cells have the workspace too. The result is not checked.
pub fn in_workspace(path: &str, other: &Path) -> Option<String> {
    let below = Path::new(path).strip_prefix(other).ok()?;
    Path::new("/workspace").join(below).to_str().map(str::to_owned)
}

/// A directory in the cell where a call starts: absolute, normalised, inside `/workspace` or
/// `/tmp`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cwd(String);

impl Cwd {
    /// Returns `/workspace`.
    pub fn workspace() -> Self {
        Self("/workspace".to_owned())
    }

    /// Returns `/tmp`, for profiles without a workspace.
    pub fn tmp() -> Self {
        Self("/tmp".to_owned())
    }

    /// Takes a path as typed; a relative one starts at `/workspace`. `..` is resolved textually,
    /// before symbolic links are followed: where a link in the cell leads is up to the cell.
    pub fn new(field: &'static str, path: &str) -> Result<Self, InvalidCall> {
        bounded(field, path.as_bytes(), PATH_BYTES)?;
        if path.is_empty() {
            return Err(InvalidCall::Empty { field });
        }
        let absolute =
            if path.starts_with('/') { path.to_owned() } else { format!("/workspace/{path}") };
        let mut parts: Vec<&str> = Vec::new();
        for part in absolute.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop();
                }
                name => parts.push(name),
            }
        }
        if !matches!(parts.first(), Some(&("workspace" | "tmp"))) {
            return Err(InvalidCall::Outside { field, path: printable(path) });
        }
        Ok(Self(format!("/{}", parts.join("/"))))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A file or directory of the workspace: absolute, normalised, inside `/workspace`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePath(Cwd);

impl FilePath {
    /// Takes a path as typed; as with [`Cwd`], a relative one starts at `/workspace`, and `..` is
    /// resolved textually.
    pub fn new(field: &'static str, path: &str) -> Result<Self, InvalidCall> {
        let outside = || InvalidCall::OutOfRange {
            field,
            expected: "a path inside /workspace",
            got: printable(path),
        };
        let path = match Cwd::new(field, path) {
            Err(InvalidCall::Outside { .. }) => return Err(outside()),
            path => path?,
        };
        let inside = path.as_str() == "/workspace" || path.as_str().starts_with("/workspace/");
        if inside { Ok(Self(path)) } else { Err(outside()) }
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// The standard input of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stdin {
    /// End of file at once.
    Empty,
    /// These bytes, then end of file; at most [`STDIN_BYTES`].
    Bytes(Vec<u8>),
    /// A pipe that the front end writes to while the program runs: first these bytes.
    Pipe(Vec<u8>),
    /// A separate terminal, which is the command's output too: first these bytes.
    Terminal(Vec<u8>),
}

impl Stdin {
    /// Takes text as the caller's `field` gave it.
    pub fn text(field: &'static str, text: String) -> Result<Self, InvalidCall> {
        Self::bytes(field, text.into_bytes())
    }

    /// Takes bytes as the caller's `field` gave them.
    pub fn bytes(field: &'static str, bytes: Vec<u8>) -> Result<Self, InvalidCall> {
        if bytes.len() > STDIN_BYTES {
            return Err(InvalidCall::TooLong { field, bytes: bytes.len(), limit: STDIN_BYTES });
        }
        Ok(if bytes.is_empty() { Self::Empty } else { Self::Bytes(bytes) })
    }

    /// Returns the same bytes as a pipe that stays open.
    #[must_use]
    pub fn open(self) -> Self {
        match self {
            Self::Empty => Self::Pipe(Vec::new()),
            Self::Bytes(bytes) | Self::Pipe(bytes) | Self::Terminal(bytes) => Self::Pipe(bytes),
        }
    }

    /// Returns the same bytes as typed at a terminal.
    #[must_use]
    pub fn at_terminal(self) -> Self {
        match self {
            Self::Empty => Self::Terminal(Vec::new()),
            Self::Bytes(bytes) | Self::Pipe(bytes) | Self::Terminal(bytes) => Self::Terminal(bytes),
        }
    }
}

/// Limits that a caller requests. They can only lower what profile and rule allow; absent ones
/// leave it as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Wall time from exec to the end.
    pub wall: Option<Duration>,
    /// Bytes of memory for the whole cell.
    pub memory: Option<u64>,
    /// Processes and threads in the whole cell.
    pub processes: Option<u32>,
    /// Bytes over both output streams before the call is ended.
    pub output: Option<u64>,
}

/// Parses seconds of an MCP argument: finite and above zero. Values over [`MAX_TIMEOUT`] are
/// accepted and clamped later, so that the reply can say so.
pub fn seconds(field: &'static str, value: f64) -> Result<Duration, InvalidCall> {
    let bad = || InvalidCall::OutOfRange {
        field,
        expected: "a number of seconds above 0",
        got: value.to_string(),
    };
    if !value.is_finite() || value <= 0.0 {
        return Err(bad());
    }
    // A year is far above every clamp; more would overflow a timer.
    Duration::try_from_secs_f64(value.min(31_536_000.0)).map_err(|_| bad())
}

/// An id by which a client matches its records with the log: at most [`Self::BYTES`] bytes, without
/// control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correlation(String);

impl Correlation {
    /// Maximum length in bytes.
    pub const BYTES: usize = 128;

    /// Takes the id that a caller gave.
    ///
    /// # Errors
    /// If the id is empty, too long, or has control characters.
    pub fn new(id: &str) -> Result<Self, InvalidCall> {
        let field = "correlation_id";
        if id.is_empty() {
            return Err(InvalidCall::Empty { field });
        }
        bounded(field, id.as_bytes(), Self::BYTES)?;
        if id.chars().any(char::is_control) {
            let expected = "a text without control characters";
            let got = printable(id);
            return Err(InvalidCall::OutOfRange { field, expected, got });
        }
        Ok(Self(id.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a tool: a constant for a built-in tool, the operator's text for a declared one.
pub type ToolName = Cow<'static, str>;

/// One call, checked but not decided yet. `policy` turns it into a grant or a denial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The tool's name as policy rules know it, such as `bash` or `calculate`.
    pub tool: ToolName,
    pub argv: Argv,
    /// A script that the program reads from descriptor 3.
    pub script: Option<Script>,
    pub stdin: Stdin,
    pub env: Env,
    pub cwd: Option<Cwd>,
    pub asked: Asked,
    /// The profile that the caller names, if any. Policy decides whether it may be used.
    pub profile: Option<ProfileName>,
    /// Restricts the network of the call to these targets.
    pub only: Option<Only>,
    /// The caller's id for the call, which the audit log repeats.
    pub correlation: Option<Correlation>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_workspace_on_the_host_is_one_of_workspace() {
        for (path, expected) in [
            ("/home/u/p", Some("/workspace")),
            ("/home/u/p/sub/", Some("/workspace/sub")),
            ("/home//u/./p/sub/../x", Some("/workspace/x")),
            // Outside of the workspace.
            ("/home/u/p/../q", None),
            ("/home/u/p/../p/sub", None),
            ("/home/u/pq", None),
            ("/home/u", None),
            ("home/u/p", None),
        ] {
            let path = in_workspace(path, Path::new("/home/u/p"));
            let cwd = path.and_then(|path| Cwd::new("cwd", &path).ok());
            assert_eq!(cwd.as_ref().map(Cwd::as_str), expected);
        }
    }
}
