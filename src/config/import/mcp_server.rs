//! Settings in the form of the reference implementation of command-line tools: variables named `MCP_…`, and a file of
//! YAML that `MCP_CONFIG_FILE` names. A variable overrides the file, and both override `cofferdam.toml`.
//!
//! A number out of its range is set to the nearest that is in it, and that is reported, as there. What would be ignored
//! there and could be taken for a protection here is refused.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::directory;
use crate::policy::tools::class_name;
use crate::server::Config;
use crate::server::settings::{Setting, ValueSource};
use crate::{ConfigError, HostContext};
use model::defaults::MIB;
use model::nearest::nearest;

/// Variable that names the file.
const FILE: &str = "MCP_CONFIG_FILE";

/// Settings that were given, in the order of the table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct McpSettings {
    given: Vec<GivenSetting>,
    /// The file, if one is named: what holds it is never granted for writing.
    pub file: Option<PathBuf>,
    /// Values that were changed or are not used, for the operator.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct GivenSetting {
    meaning: Meaning,
    by: &'static str,
    value: Value,
}

/// Meaning of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Timeout,
    Concurrency,
    Failures,
    Recovery,
    MaxArgs,
    MaxStdout,
    MaxStderr,
    /// Memory of one cell, in mebibytes.
    Memory,
    Intrusive,
    Include,
    Exclude,
    Targets,
    Transport,
    Host,
    Port,
    Grace,
    /// Taken and without an effect: something else has its place.
    Unused(&'static str),
}

/// A row of the table: the key of the file, the variables that go before it, the meaning.
type Row = (&'static str, &'static [&'static str], Meaning);

/// Every setting.
const ROWS: [Row; 34] = [
    (
        "tool.default_timeout",
        &["MCP_DEFAULT_TIMEOUT_SEC", "MCP_TOOL_DEFAULT_TIMEOUT"],
        Meaning::Timeout,
    ),
    ("security.timeout_seconds", &["MCP_SECURITY_TIMEOUT_SECONDS"], Meaning::Timeout),
    (
        "tool.default_concurrency",
        &["MCP_DEFAULT_CONCURRENCY", "MCP_TOOL_DEFAULT_CONCURRENCY"],
        Meaning::Concurrency,
    ),
    ("security.concurrency_limit", &["MCP_SECURITY_CONCURRENCY_LIMIT"], Meaning::Concurrency),
    (
        "circuit_breaker.failure_threshold",
        &["MCP_CIRCUIT_BREAKER_FAILURE_THRESHOLD"],
        Meaning::Failures,
    ),
    (
        "circuit_breaker.recovery_timeout",
        &["MCP_CIRCUIT_BREAKER_RECOVERY_TIMEOUT"],
        Meaning::Recovery,
    ),
    (
        "security.max_args_length",
        &["MCP_MAX_ARGS_LEN", "MCP_SECURITY_MAX_ARGS_LENGTH"],
        Meaning::MaxArgs,
    ),
    (
        "security.max_output_size",
        &["MCP_MAX_STDOUT_BYTES", "MCP_SECURITY_MAX_OUTPUT_SIZE"],
        Meaning::MaxStdout,
    ),
    ("", &["MCP_MAX_STDERR_BYTES"], Meaning::MaxStderr),
    ("", &["MCP_MAX_MEMORY_MB"], Meaning::Memory),
    ("security.allow_intrusive", &["MCP_SECURITY_ALLOW_INTRUSIVE"], Meaning::Intrusive),
    ("tool.include_patterns", &["TOOL_INCLUDE"], Meaning::Include),
    ("tool.exclude_patterns", &["TOOL_EXCLUDE"], Meaning::Exclude),
    ("security.allowed_targets", &["MCP_SECURITY_ALLOWED_TARGETS"], Meaning::Targets),
    ("server.transport", &["MCP_SERVER_TRANSPORT"], Meaning::Transport),
    ("server.host", &["MCP_SERVER_HOST"], Meaning::Host),
    ("server.port", &["MCP_SERVER_PORT"], Meaning::Port),
    ("server.shutdown_grace_period", &["MCP_SERVER_SHUTDOWN_GRACE_PERIOD"], Meaning::Grace),
    (
        "",
        &["MCP_MAX_FILE_DESCRIPTORS"],
        Meaning::Unused("`open_files` of a profile bounds descriptors"),
    ),
    ("", &["TOOLS_PACKAGE"], Meaning::Unused("tools are `[[tool]]` of files under policies/")),
    (
        "server.max_connections",
        &["MCP_SERVER_MAX_CONNECTIONS"],
        Meaning::Unused("`[http]` bounds sessions and streams"),
    ),
    ("server.workers", &["MCP_SERVER_WORKERS"], Meaning::Unused("one process serves all")),
    (
        "circuit_breaker.expected_exceptions",
        &[],
        Meaning::Unused("docs/command-tools.md says which"),
    ),
    (
        "circuit_breaker.expected_exception",
        &[],
        Meaning::Unused("docs/command-tools.md says which failures count"),
    ),
    (
        "circuit_breaker.half_open_success_threshold",
        &["MCP_CIRCUIT_BREAKER_HALF_OPEN_SUCCESS_THRESHOLD"],
        Meaning::Unused("one call decides"),
    ),
    (
        "logging.level",
        &["MCP_LOGGING_LEVEL"],
        Meaning::Unused("COFFERDAM_LOG, else LOG_LEVEL, says it"),
    ),
    ("logging.format", &["LOG_FORMAT"], Meaning::Unused("COFFERDAM_LOG_FORMAT is text or json")),
    ("logging.file_path", &["MCP_LOGGING_FILE_PATH"], Meaning::Unused("the log is standard error")),
    (
        "logging.max_file_size",
        &["MCP_LOGGING_MAX_FILE_SIZE"],
        Meaning::Unused("the log is standard error"),
    ),
    (
        "logging.backup_count",
        &["MCP_LOGGING_BACKUP_COUNT"],
        Meaning::Unused("the log is standard error"),
    ),
    ("health", &[], Meaning::Unused("health is computed when it is asked for")),
    ("metrics", &[], Meaning::Unused("metrics are computed when they are asked for")),
    ("database", &[], Meaning::Unused("there is no database")),
    ("", &["MCP_DATABASE_URL"], Meaning::Unused("there is no database")),
];

/// Unit of times.
const MILLISECONDS: u32 = 1000;

/// Beginnings of names that are never tools' in the reference implementation, and endings.
const NO_TOOL_STARTS: [&str; 5] = ["Test", "Mock", "Abstract", "_", "Example"];
const NO_TOOL_ENDS: [&str; 3] = ["Base", "Mixin", "Interface"];

impl McpSettings {
    /// Reads the variables and the file that one of them names.
    ///
    /// # Errors
    /// A file that others could have written, one that is no such YAML, or a value that cannot be right.
    pub fn read(
        variable: impl Fn(&str) -> Option<OsString>,
        host: &HostContext,
    ) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        let mut written = Map::new();
        if let Some(path) = variable(FILE).filter(|path| !path.is_empty()).map(PathBuf::from) {
            if !path.is_absolute() {
                let hint =
                    "use an absolute path: no file of the current directory configures cofferdam";
                return Err(bad(&path, "the path depends on the current directory", hint));
            }
            let document = directory::single(&path, host.euid)?;
            written = yaml(&path, &document.text)?;
            settings.file = Some(PathBuf::from(&document.file));
        }
        let variables = given_variables(variable)?;
        for (key, _, meaning) in ROWS {
            let Some(value) = take(&mut written, key) else { continue };
            // A variable overrides the file by its meaning: two rows can have the same.
            let is_same = |(other, ..): &(Meaning, &str, Value)| *other == meaning;
            if matches!(meaning, Meaning::Unused(_)) || !variables.iter().any(is_same) {
                settings.give(meaning, key, value)?;
            }
        }
        for (meaning, name, value) in variables {
            settings.give(meaning, name, value)?;
        }
        match first_key(&written) {
            Some(key) => {
                let names = ROWS.iter().map(|(name, _, _)| *name).filter(|name| !name.is_empty());
                let hint = match nearest(&key, names) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "docs/command-tools.md lists the keys".to_owned(),
                };
                let path = settings.file.unwrap_or_default();
                Err(bad(&path, &format!("unknown key `{}`", key.escape_default()), &hint))
            }
            None => Ok(settings),
        }
    }

    /// Returns the address to listen at, if HTTP is asked for.
    pub fn http(&self) -> Option<String> {
        let text = |meaning| self.last(meaning).map(|given| words(&given.value).join(""));
        if !text(Meaning::Transport)?.eq_ignore_ascii_case("http") {
            return None;
        }
        let host = text(Meaning::Host).unwrap_or_else(|| "127.0.0.1".to_owned());
        let port = text(Meaning::Port).unwrap_or_else(|| "8080".to_owned());
        let is_six = host.parse::<std::net::Ipv6Addr>().is_ok();
        Some(if is_six { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    }

    /// Returns true if a value is about tools by their names: most servers need not read what tools there are.
    pub fn names_tools(&self) -> bool {
        let names = [Meaning::Include, Meaning::Exclude, Meaning::Intrusive];
        self.given.iter().any(|given| names.contains(&given.meaning))
    }

    /// Puts the values into a configuration. `declared` names the command-line tools there are.
    ///
    /// # Errors
    /// A pattern that no tool has.
    pub fn apply(&self, config: &mut Config, declared: &[&str]) -> Result<(), ConfigError> {
        for given in &self.given {
            let source = ValueSource::Given(given.by);
            let number = given.value.as_u64().unwrap_or_default();
            let count = u32::try_from(number).unwrap_or(u32::MAX);
            let time = Duration::from_millis(number);
            let commands = &mut config.commands;
            match given.meaning {
                Meaning::Timeout => commands.timeout = Setting { value: Some(time), source },
                Meaning::Concurrency => commands.concurrency = Setting { value: count, source },
                Meaning::Failures => commands.failures = Setting { value: count, source },
                Meaning::Recovery => commands.recovery = Setting { value: time, source },
                Meaning::MaxArgs => commands.max_args = Setting { value: number, source },
                Meaning::MaxStdout => commands.max_stdout = Setting { value: number, source },
                Meaning::MaxStderr => commands.max_stderr = Setting { value: number, source },
                Meaning::Memory => {
                    let bytes = number.saturating_mul(MIB);
                    commands.memory = Setting { value: Some(bytes), source };
                }
                Meaning::Grace => config.http.drain = Setting { value: time, source },
                Meaning::Include => {
                    let named = named(given, declared)?;
                    let value = named.into_iter().filter(|name| !is_intrusive(name)).collect();
                    config.tools_on = Setting { value, source };
                }
                Meaning::Exclude => {
                    config.tools_off.value.extend(named(given, declared)?);
                    config.tools_off.source = source;
                }
                Meaning::Intrusive
                | Meaning::Targets
                | Meaning::Transport
                | Meaning::Host
                | Meaning::Port
                | Meaning::Unused(_) => {}
            }
        }
        self.apply_intrusive(config, declared);
        Ok(())
    }

    /// Switches the intrusive kinds of the tools that are on, which is known once those are.
    fn apply_intrusive(&self, config: &mut Config, declared: &[&str]) {
        let Some(given) = self.last(Meaning::Intrusive) else { return };
        let on = &mut config.tools_on;
        let is_of_one =
            |name: &&&str| name.strip_suffix(INTRUSIVE).is_some_and(|base| on.value.contains(base));
        let more: Vec<String> =
            declared.iter().filter(is_of_one).map(|name| (*name).to_owned()).collect();
        match given.value == Value::Bool(true) {
            true => on.value.extend(more),
            false => on.value.retain(|name| !is_intrusive(name)),
        }
        on.source = ValueSource::Given(given.by);
    }

    fn last(&self, meaning: Meaning) -> Option<&GivenSetting> {
        self.given.iter().rev().find(|given| given.meaning == meaning)
    }

    /// Takes a value, within its range.
    fn give(
        &mut self,
        meaning: Meaning,
        by: &'static str,
        value: Value,
    ) -> Result<(), ConfigError> {
        let value = match meaning {
            Meaning::Timeout => self.number(by, &value, 60..=3600, MILLISECONDS)?,
            Meaning::Recovery | Meaning::Grace => {
                self.number(by, &value, 1..=3600, MILLISECONDS)?
            }
            Meaning::Concurrency => self.number(by, &value, 1..=1024, 1)?,
            Meaning::Failures => self.number(by, &value, 1..=10, 1)?,
            Meaning::MaxArgs => self.number(by, &value, 1..=2048, 1)?,
            Meaning::MaxStdout => self.number(by, &value, 1024..=1 << 20, 1)?,
            Meaning::MaxStderr => self.number(by, &value, 1024..=256 << 10, 1)?,
            Meaning::Memory => self.number(by, &value, 8..=1 << 20, 1)?,
            Meaning::Port => self.number(by, &value, 1..=65_535, 1)?,
            Meaning::Intrusive => Value::Bool(yes(by, &value)?),
            Meaning::Targets => {
                let named: BTreeSet<String> = words(&value).into_iter().collect();
                if !named.iter().map(String::as_str).eq([".lab.internal", "RFC1918"]) {
                    let hint = "`within` of a field or a flag of a `[[tool]]` names other places";
                    let why = "RFC1918 and .lab.internal are taken, both and no others";
                    return Err(bad(Path::new(by), why, hint));
                }
                return Ok(());
            }
            Meaning::Transport => {
                let transport = words(&value).join("").to_ascii_lowercase();
                if !["stdio", "http"].contains(&&*transport) {
                    let why = "the transports are stdio and http";
                    return Err(bad(Path::new(by), why, "name one"));
                }
                value
            }
            Meaning::Unused(instead) => {
                self.notes.push(format!("{by} has no effect: {instead}"));
                return Ok(());
            }
            Meaning::Include | Meaning::Exclude | Meaning::Host => value,
        };
        self.given.push(GivenSetting { meaning, by, value });
        Ok(())
    }

    /// Reads a number, and returns it as a whole number of `unit`ths. One out of the range is set to the nearest bound.
    fn number(
        &mut self,
        by: &str,
        value: &Value,
        range: RangeInclusive<u32>,
        unit: u32,
    ) -> Result<Value, ConfigError> {
        let asked = decimal(by, value)? * f64::from(unit);
        let min = u64::from(*range.start()) * u64::from(unit);
        let max = u64::from(*range.end()) * u64::from(unit);
        let whole = Duration::try_from_secs_f64(asked.max(0.0)).map(|it| it.as_secs()).ok();
        let used = whole.unwrap_or(max).clamp(min, max);
        if whole != Some(used) || asked < 0.0 {
            self.notes
                .push(format!("{by} is out of its range: {} is used", used / u64::from(unit)));
        }
        Ok(Value::from(used))
    }
}

/// End of the names of tools that `allow_intrusive` is about.
const INTRUSIVE: &str = "_intrusive";

fn is_intrusive(name: &str) -> bool {
    name.ends_with(INTRUSIVE)
}

/// Reads the variables, one of each row: the first that is set.
fn given_variables(
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<(Meaning, &'static str, Value)>, ConfigError> {
    let mut all = Vec::new();
    for (_, names, meaning) in ROWS {
        let set = names.iter().find_map(|name| Some((*name, variable(name)?)));
        let Some((name, text)) = set else { continue };
        let Ok(text) = text.into_string() else {
            return Err(bad(Path::new(name), "the value is not UTF-8", "unset it"));
        };
        all.push((meaning, name, Value::String(text)));
    }
    Ok(all)
}

/// Returns the tools that a list of names and patterns means.
fn named(given: &GivenSetting, declared: &[&str]) -> Result<Vec<String>, ConfigError> {
    let mut all = Vec::new();
    for pattern in words(&given.value) {
        let never = NO_TOOL_STARTS.iter().any(|start| pattern.starts_with(start))
            || NO_TOOL_ENDS.iter().any(|end| pattern.ends_with(end));
        // A name that is left out counts, whatever it looks like.
        if never && given.meaning == Meaning::Include {
            continue;
        }
        let before = all.len();
        let is = |name: &&&str| like(&pattern, name) || like(&pattern, &class_name(name));
        all.extend(declared.iter().filter(is).map(|name| (*name).to_owned()));
        if all.len() == before && !never {
            let shown: String = pattern.chars().take(80).flat_map(char::escape_default).collect();
            let hint = format!("the tools are {}", declared.join(", "));
            return Err(bad(Path::new(given.by), &format!("no tool is named `{shown}`"), &hint));
        }
    }
    Ok(all)
}

/// Returns true if a name has the form of a pattern, in which `*` stands for anything.
fn like(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).filter_map(|at| name.get(at..)).any(|name| like(rest, name))
        }),
    }
}

/// Returns the words of a list, or of a text with commas.
fn words(value: &Value) -> Vec<String> {
    let split = |text: &str| text.split(',').map(|word| word.trim().to_owned()).collect::<Vec<_>>();
    let all = match value {
        Value::Array(all) => all.iter().flat_map(words).collect(),
        Value::String(text) => split(text),
        Value::Null => Vec::new(),
        other @ (Value::Bool(_) | Value::Number(_) | Value::Object(_)) => split(&other.to_string()),
    };
    all.into_iter().filter(|word| !word.is_empty()).collect()
}

fn decimal(by: &str, value: &Value) -> Result<f64, ConfigError> {
    let number = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let number = number.filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| bad(Path::new(by), "the value is no number", "write digits, such as 300"))
}

fn yes(by: &str, value: &Value) -> Result<bool, ConfigError> {
    let word = words(value).join("").to_ascii_lowercase();
    match &*word {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(bad(Path::new(by), "the value is neither true nor false", "write one of them")),
    }
}

/// Reads a file of YAML, or of JSON, which is YAML too.
fn yaml(path: &Path, text: &str) -> Result<Map<String, Value>, ConfigError> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    let hint = "write sections such as `tool:` with keys such as `default_timeout: 300` below them";
    match serde_saphyr::from_str::<Value>(text) {
        Ok(Value::Object(sections)) => Ok(sections),
        Ok(Value::Null) => Ok(Map::new()),
        Ok(_) => Err(bad(path, "it is no map of sections", hint)),
        Err(error) => {
            let first = error.to_string();
            let first = first.lines().next().unwrap_or_default().to_owned();
            Err(bad(path, &format!("it is no YAML: {first}"), hint))
        }
    }
}

/// Takes a key out of the sections: `section.key`, or a whole section.
fn take(sections: &mut Map<String, Value>, key: &str) -> Option<Value> {
    match key.split_once('.') {
        None => sections.remove(key),
        Some((section, key)) => sections.get_mut(section)?.as_object_mut()?.remove(key),
    }
}

/// Returns the first key that nothing took.
fn first_key(sections: &Map<String, Value>) -> Option<String> {
    sections.iter().find_map(|(section, value)| match value {
        Value::Object(keys) => keys.keys().next().map(|key| format!("{section}.{key}")),
        Value::Null => None,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Some(section.clone())
        }
    })
}

fn bad(path: &Path, why: &str, hint: &str) -> ConfigError {
    let path = path.to_owned();
    let why = why.to_owned();
    let hint = hint.to_owned();
    ConfigError::Json { path, why, hint }
}

#[cfg(test)]
#[path = "mcp_server_tests.rs"]
mod tests;
