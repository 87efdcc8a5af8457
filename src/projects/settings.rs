//! Settings of a project in variables of the server, as the framework names them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::SettingError;
use crate::stream::StreamLimits;
use crate::token::RemoteToken;

/// Beginning of the variables' names.
const PREFIX: &str = "MCPBASH_";
/// Words that mean yes.
const YES: [&str; 4] = ["true", "1", "yes", "on"];
/// Default time limit of a tool, in seconds.
const DEFAULT_SECONDS: u64 = 30;
/// Longest time limit in seconds of a tool whose progress renews it.
const MAX_SECONDS: u64 = 600;
/// Calls of scripts that run at once, and the most that an operator may ask for.
const WORKERS: u32 = 16;
const MAX_WORKERS: u64 = 1024;
/// Most bytes of an output or a resource, and most lines of one kind in a minute, that an operator may ask for.
const MAX_OUTPUT: u64 = 64 << 20;
const MAX_LINES: u64 = 10_000;
/// Longest text of a result in bytes; scripts shorten others.
const TEXT_BYTES: u64 = 100 << 10;
/// Time in seconds for `exit` after `shutdown`, and the longest of it and of idleness.
const SHUTDOWN_SECONDS: u64 = 5;
const MAX_WAIT_SECONDS: u64 = 86_400;
/// Requests without the remote token in a minute, after which the answers wait.
const TOKEN_FAILURES: usize = 10;
/// Poll interval in seconds where the kernel reports no changes.
const POLL_SECONDS: u64 = 2;
/// Longest arguments in bytes that are a variable, and the least that an operator may ask for.
const ARGUMENT_BYTES: u64 = 32 << 10;
/// Levels of log messages (RFC 5424).
const LEVELS: [&str; 8] =
    ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
/// Variables of the framework that change nothing here, each with the reason.
const WITHOUT_EFFECT: [(&str, &str); 26] = [
    ("MCPBASH_REGISTRY_DIR", NO_REGISTRY),
    ("MCPBASH_REGISTRY_MAX_BYTES", NO_REGISTRY),
    ("MCPBASH_REGISTRY_REFRESH_PATH", NO_REGISTRY),
    ("MCPBASH_STATIC_REGISTRY", NO_REGISTRY),
    ("MCPBASH_ENABLE_LIVE_PROGRESS", LIVE),
    ("MCPBASH_PROGRESS_FLUSH_INTERVAL", LIVE),
    ("MCPBASH_ORPHAN_CHECK_INTERVAL", "cells end with the server, and the server with its input"),
    ("MCPBASH_ORPHAN_CHECK_ENABLED", "cells end with the server, and the server with its input"),
    ("MCPBASH_JSON_TOOL", OWN_JQ),
    ("MCPBASH_JSON_TOOL_BIN", OWN_JQ),
    ("MCPBASH_ALLOW_JSON_TOOL_OVERRIDE_FOR_ROOT", OWN_JQ),
    ("MCPBASH_PROVIDER_ENV_MODE", OF_PROVIDERS),
    ("MCPBASH_PROVIDER_ENV_ALLOWLIST", OF_PROVIDERS),
    ("MCPBASH_PROVIDER_ENV_INHERIT_ALLOW", OF_PROVIDERS),
    ("MCPBASH_PROGRESS_EXTENDS_TIMEOUT", "a tool asks for it itself: progressExtendsTimeout"),
    ("MCPBASH_DEBUG", NO_DEBUGGING),
    ("MCPBASH_DEBUG_ERRORS", NO_DEBUGGING),
    ("MCPBASH_DEBUG_PAYLOADS", NO_DEBUGGING),
    ("MCPBASH_PRESERVE_STATE", NO_DEBUGGING),
    ("MCPBASH_LOG_VERBOSE", NO_DEBUGGING),
    ("MCPBASH_TRACE_TOOLS", NO_DEBUGGING),
    ("MCPBASH_MAX_MANUAL_REGISTRY_BYTES", "a file of metadata has 1M at most"),
    ("MCPBASH_CORRUPTION_WINDOW", NO_CORRUPTION),
    ("MCPBASH_CORRUPTION_THRESHOLD", NO_CORRUPTION),
    ("MCPBASH_FORCE_MINIMAL", "there is no minimal mode: JSON needs no other program"),
    ("MCPBASH_DEFAULT_SUBSCRIBE_TIMEOUT", "a subscription lasts until it is ended"),
];
const NO_REGISTRY: &str = "lists are kept in memory, and follow the project";
const LIVE: &str = "progress and messages are sent while a script runs";
const OWN_JQ: &str = "cells have cofferdam's jq";
const OF_PROVIDERS: &str = "providers have the variables of scripts: MCPBASH_TOOL_ENV_MODE";
const NO_DEBUGGING: &str =
    "standard error of a script is in its reply, and in `cofferdam project run-tool`";
const NO_CORRUPTION: &str = "no script has the server's output";

/// Settings of a server of one project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectSettings {
    /// True if the project's hooks are run.
    pub has_hooks: bool,
    /// True if batches are taken in each revision.
    pub has_batches: bool,
    /// Instructions for the model in place of ours.
    pub instructions: Option<String>,
    /// Tools that may be called.
    pub tools: ToolFilter,
    /// Calls of the project's scripts that run at once.
    pub workers: u32,
    pub default_seconds: u64,
    pub max_seconds: u64,
    pub text_bytes: u64,
    /// Bounds of what is taken of a script's output.
    pub stream: StreamLimits,
    /// Bytes of the longest resource.
    pub resource_bytes: usize,
    /// Hosts that downloads reach, each with its port.
    pub hosts: Vec<String>,
    pub downloads: FetchBounds,
    /// Variables of the server's environment that scripts are given by name.
    pub env: BTreeMap<String, String>,
    /// Secret that each request shows.
    pub token: Option<RemoteToken>,
    /// Requests without it in a minute, after which the answers wait.
    pub token_failures: usize,
    /// Default minimum level of the messages that a client gets.
    pub log_level: &'static str,
    /// Time in seconds that a client has for `exit` after `shutdown`.
    pub shutdown_seconds: u64,
    /// Time in seconds without a request after which the server of one client ends; 0 if it does not.
    pub idle_seconds: u64,
    /// Time in seconds between two looks at files where the kernel reports no changes; 0 if no file is watched for
    /// clients.
    pub poll_seconds: u64,
    /// Longest arguments in bytes that are a variable; longer ones are a file.
    pub argument_bytes: usize,
    /// Values beyond their bounds and variables without effect, each as a sentence.
    pub changes: Vec<String>,
}

/// Tools that are called, by the variables for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolFilter {
    All,
    None,
    /// These, by their names.
    Listed(Vec<String>),
}

/// Bounds of downloads, by the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchBounds {
    pub https_seconds: u64,
    pub https_bytes: u64,
    pub git_seconds: u64,
    /// Bytes of a repository without its history.
    pub git_bytes: u64,
    /// Bytes of what is read of a repository.
    pub file_bytes: u64,
    /// Name by which a server is asked.
    pub agent: String,
    /// Hosts that are refused although they are granted.
    pub https_deny: Vec<String>,
    pub git_deny: Vec<String>,
}

impl FetchBounds {
    /// Longest time of a download in seconds, and its most bytes.
    pub(crate) const SECONDS: u64 = 60;
    pub(crate) const HTTPS_BYTES: u64 = 20 << 20;
    pub(crate) const GIT_BYTES: u64 = 60 << 20;
}

impl Default for FetchBounds {
    fn default() -> Self {
        Self {
            https_seconds: 15,
            https_bytes: 10 << 20,
            git_seconds: 30,
            git_bytes: 50 << 20,
            file_bytes: 10 << 20,
            agent: "mcpbash/1.3.0 (cofferdam)".to_owned(),
            https_deny: Vec::new(),
            git_deny: Vec::new(),
        }
    }
}

impl Default for ProjectSettings {
    fn default() -> Self {
        Self {
            has_hooks: false,
            has_batches: false,
            instructions: None,
            tools: ToolFilter::All,
            workers: WORKERS,
            default_seconds: DEFAULT_SECONDS,
            max_seconds: MAX_SECONDS,
            text_bytes: TEXT_BYTES,
            stream: StreamLimits::default(),
            resource_bytes: StreamLimits::default().output,
            hosts: Vec::new(),
            downloads: FetchBounds::default(),
            env: BTreeMap::new(),
            token: None,
            token_failures: TOKEN_FAILURES,
            log_level: "info",
            shutdown_seconds: SHUTDOWN_SECONDS,
            idle_seconds: 0,
            poll_seconds: POLL_SECONDS,
            argument_bytes: usize::try_from(ARGUMENT_BYTES).unwrap_or(usize::MAX),
            changes: Vec::new(),
        }
    }
}

/// Reader of variables, with what was beyond a bound.
struct Variables<'g, G> {
    get: &'g G,
    changes: Vec<String>,
}

impl<G: Fn(&str) -> Option<String>> Variables<'_, G> {
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|value| !value.trim().is_empty())
    }

    fn has(&self, name: &str) -> bool {
        self.text(name).is_some_and(|it| YES.contains(&it.to_lowercase().as_str()))
    }

    fn words(&self, name: &str) -> Vec<String> {
        let list = self.text(name).unwrap_or_default();
        words(&list).map(str::to_ascii_lowercase).collect()
    }

    /// Replaces a value by that of a variable. A value out of bounds is clamped, and reported.
    fn number<T>(
        &mut self,
        name: &'static str,
        value: &mut T,
        range: RangeInclusive<u64>,
    ) -> Result<(), SettingError>
    where
        T: TryFrom<u64>,
    {
        let Some(text) = self.text(name) else { return Ok(()) };
        let min = *range.start();
        let max = *range.end();
        let bad = || {
            let message = format!("expected a whole number from {min} to {max}");
            SettingError { name, message }
        };
        let read: u64 = text.trim().parse().map_err(|_| bad())?;
        let taken = read.clamp(min, max);
        if taken != read {
            self.changes.push(format!("{name} is {taken}: {read} is beyond {min} to {max}"));
        }
        *value = T::try_from(taken).map_err(|_| bad())?;
        Ok(())
    }
}

impl ProjectSettings {
    /// Reads the settings from variables, which go before those of the server's file.
    ///
    /// # Errors
    /// A value that is not understood, or one that would give scripts the whole environment or every host.
    pub fn over(mut self, get: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let mut of = Variables { get: &get, changes: Vec::new() };
        self.token = RemoteToken::of(&get)?;
        self.has_hooks |= of.has("MCPBASH_ALLOW_PROJECT_HOOKS");
        self.has_batches |= of.has("MCPBASH_COMPAT_BATCHES");
        self.instructions = of.text("MCPBASH_SERVER_INSTRUCTIONS").or(self.instructions);
        self.tools =
            filter(of.text("MCPBASH_TOOL_ALLOWLIST"), of.text("MCPBASH_TOOL_ALLOW_DEFAULT"))?;
        of.number("MCPBASH_MAX_CONCURRENT_REQUESTS", &mut self.workers, 1..=MAX_WORKERS)?;
        of.number("MCPBASH_MAX_TIMEOUT_SECS", &mut self.max_seconds, 1..=86_400)?;
        let max = self.max_seconds;
        self.default_seconds = self.default_seconds.min(max);
        of.number("MCPBASH_DEFAULT_TOOL_TIMEOUT", &mut self.default_seconds, 1..=max)?;
        of.number("MCPBASH_MAX_TEXT_BYTES", &mut self.text_bytes, 1024..=1 << 20)?;
        self.read_bounds(&mut of)?;
        self.read_downloads(&mut of)?;
        self.read_serving(&mut of)?;
        let mode = of.text("MCPBASH_TOOL_ENV_MODE");
        let names = of.text("MCPBASH_TOOL_ENV_ALLOWLIST");
        self.env = environment(&get, mode, names)?;
        self.changes = of.changes;
        Ok(self)
    }

    fn read_bounds<G: Fn(&str) -> Option<String>>(
        &mut self,
        of: &mut Variables<'_, G>,
    ) -> Result<(), SettingError> {
        let stream = &mut self.stream;
        of.number("MCPBASH_MAX_TOOL_OUTPUT_SIZE", &mut stream.output, 1024..=MAX_OUTPUT)?;
        of.number("MCPBASH_MAX_TOOL_STDERR_SIZE", &mut stream.stderr, 1024..=MAX_OUTPUT)?;
        of.number("MCPBASH_TOOL_STDERR_TAIL_LIMIT", &mut stream.stderr_tail, 0..=64 << 10)?;
        of.number("MCPBASH_MAX_PROGRESS_PER_MIN", &mut stream.progress, 1..=MAX_LINES)?;
        of.number("MCPBASH_MAX_LOGS_PER_MIN", &mut stream.messages, 1..=MAX_LINES)?;
        of.number("MCPBASH_MAX_RESOURCE_BYTES", &mut self.resource_bytes, 1024..=MAX_OUTPUT)
    }

    /// Reads how clients are served.
    fn read_serving<G: Fn(&str) -> Option<String>>(
        &mut self,
        of: &mut Variables<'_, G>,
    ) -> Result<(), SettingError> {
        let failures = "MCPBASH_REMOTE_TOKEN_MAX_FAILURES_PER_MIN";
        of.number(failures, &mut self.token_failures, 1..=MAX_LINES)?;
        of.number("MCPBASH_SHUTDOWN_TIMEOUT", &mut self.shutdown_seconds, 1..=MAX_WAIT_SECONDS)?;
        of.number("MCPBASH_IDLE_TIMEOUT", &mut self.idle_seconds, 0..=MAX_WAIT_SECONDS)?;
        if of.text("MCPBASH_IDLE_TIMEOUT_ENABLED").is_some()
            && !of.has("MCPBASH_IDLE_TIMEOUT_ENABLED")
        {
            self.idle_seconds = 0;
        }
        let polls = "MCPBASH_RESOURCES_POLL_INTERVAL_SECS";
        of.number(polls, &mut self.poll_seconds, 0..=MAX_WAIT_SECONDS)?;
        let spill = "MCPBASH_ENV_PAYLOAD_THRESHOLD";
        of.number(spill, &mut self.argument_bytes, 1024..=ARGUMENT_BYTES)?;
        for name in ["MCPBASH_LOG_LEVEL_DEFAULT", "MCPBASH_LOG_LEVEL"] {
            if let Some(word) = of.text(name) {
                self.log_level = level(&word.trim().to_lowercase()).ok_or_else(|| {
                    let message = format!("expected one of {}", LEVELS.join(", "));
                    SettingError { name, message }
                })?;
            }
        }
        for (name, why) in WITHOUT_EFFECT {
            if of.text(name).is_some() {
                of.changes.push(format!("{name} has no effect: {why}"));
            }
        }
        Ok(())
    }

    /// Reads hosts and bounds of downloads. A host that is for one kind of them is refused to the other.
    fn read_downloads<G: Fn(&str) -> Option<String>>(
        &mut self,
        of: &mut Variables<'_, G>,
    ) -> Result<(), SettingError> {
        for name in ["MCPBASH_HTTPS_ALLOW_ALL", "MCPBASH_GIT_ALLOW_ALL"] {
            if of.has(name) {
                let message = "no cell reaches every host: name them in the variable of that kind that ends with \
                               _ALLOW_HOSTS, or in [project] hosts";
                return Err(SettingError { name, message: message.to_owned() });
            }
        }
        let https = of.words("MCPBASH_HTTPS_ALLOW_HOSTS");
        let mut git = of.words("MCPBASH_GIT_ALLOW_HOSTS");
        if !git.is_empty() && !of.has("MCPBASH_ENABLE_GIT_PROVIDER") {
            of.changes.push(
                "MCPBASH_GIT_ALLOW_HOSTS counts only with MCPBASH_ENABLE_GIT_PROVIDER=true"
                    .to_owned(),
            );
            git.clear();
        }
        let for_both = |host: &String| self.hosts.iter().any(|one| is_of(one, host));
        let bounds = &mut self.downloads;
        let only = |these: &[String], others: &[String]| {
            let is_only = |host: &&String| !others.contains(host) && !for_both(host);
            these.iter().filter(is_only).map(|host| name_of(host).to_owned()).collect::<Vec<_>>()
        };
        bounds.https_deny.extend(only(&git, &https));
        bounds.git_deny.extend(only(&https, &git));
        bounds.https_deny.extend(denied(of, "MCPBASH_HTTPS_DENY_HOSTS")?);
        bounds.git_deny.extend(denied(of, "MCPBASH_GIT_DENY_HOSTS")?);
        let seconds = 1..=FetchBounds::SECONDS;
        of.number("MCPBASH_HTTPS_TIMEOUT", &mut bounds.https_seconds, seconds.clone())?;
        of.number("MCPBASH_GIT_TIMEOUT", &mut bounds.git_seconds, seconds)?;
        let max = FetchBounds::HTTPS_BYTES;
        of.number("MCPBASH_HTTPS_MAX_BYTES", &mut bounds.https_bytes, 1..=max)?;
        let mut kib = bounds.git_bytes >> 10;
        of.number("MCPBASH_GIT_MAX_KB", &mut kib, 1..=FetchBounds::GIT_BYTES >> 10)?;
        bounds.git_bytes = kib << 10;
        bounds.file_bytes = u64::try_from(self.resource_bytes).unwrap_or(u64::MAX);
        if let Some(agent) = of.text("MCPBASH_HTTPS_USER_AGENT") {
            if agent.len() > 256 || agent.chars().any(char::is_control) {
                let message = "expected a line of at most 256 bytes".to_owned();
                return Err(SettingError { name: "MCPBASH_HTTPS_USER_AGENT", message });
            }
            bounds.agent = agent;
        }
        for host in https.into_iter().chain(git) {
            let with_port = with_port(&host);
            if !self.hosts.contains(&with_port) {
                self.hosts.push(with_port);
            }
        }
        Ok(())
    }
}

/// Returns the level of a word; the framework takes yes and no for two of them.
fn level(word: &str) -> Option<&'static str> {
    match word {
        "true" | "1" => Some("debug"),
        "false" | "0" => Some("info"),
        word => LEVELS.into_iter().find(|level| *level == word),
    }
}

/// Reads hosts that are refused, on every port.
///
/// # Errors
/// A word that no host can have: it would refuse nothing.
fn denied<G: Fn(&str) -> Option<String>>(
    of: &Variables<'_, G>,
    of_name: &'static str,
) -> Result<Vec<String>, SettingError> {
    let host = |word: String| {
        let name = match word.split_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => name,
            Some(_) | None => &word,
        };
        if is_pattern(name) {
            return Ok(name.to_owned());
        }
        let word = word.escape_default();
        let message = format!("`{word}` is no host: write a name, or `*.example.org`");
        Err(SettingError { name: of_name, message })
    };
    of.words(of_name).into_iter().map(host).collect()
}

/// Returns a host with its port; the default is that of https.
fn with_port(host: &str) -> String {
    if host.contains(':') { host.to_owned() } else { format!("{host}:443") }
}

/// Returns the name of a host, without a port.
fn name_of(host: &str) -> &str {
    host.split(':').next().unwrap_or_default()
}

fn is_of(one: &str, other: &str) -> bool {
    name_of(one) == name_of(other)
}

impl ToolFilter {
    /// Returns true if a tool of this name is called.
    pub fn admits(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Listed(names) => names.iter().any(|one| one == name),
        }
    }
}

/// Splits a list at spaces and commas.
fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty())
}

fn filter(list: Option<String>, default: Option<String>) -> Result<ToolFilter, SettingError> {
    let Some(list) = list else {
        return match default.as_deref().map(str::trim) {
            None | Some("allow") => Ok(ToolFilter::All),
            Some("deny") => Ok(ToolFilter::None),
            Some(_) => Err(SettingError {
                name: "MCPBASH_TOOL_ALLOW_DEFAULT",
                message: "expected allow or deny".to_owned(),
            }),
        };
    };
    match words(&list).any(|word| word == "*" || word == "all") {
        true => Ok(ToolFilter::All),
        false => Ok(ToolFilter::Listed(words(&list).map(str::to_owned).collect())),
    }
}

/// Takes the variables that are named. The framework's own are settings and not a script's.
fn environment(
    get: &impl Fn(&str) -> Option<String>,
    mode: Option<String>,
    names: Option<String>,
) -> Result<BTreeMap<String, String>, SettingError> {
    let bad = |name, message: &str| SettingError { name, message: message.to_owned() };
    match mode.as_deref().map(str::trim) {
        None | Some("minimal") => return Ok(BTreeMap::new()),
        Some("allowlist") => {}
        Some("inherit") => {
            let why = "no cell has the whole environment of the server: name variables in MCPBASH_TOOL_ENV_ALLOWLIST, \
                       with allowlist here";
            return Err(bad("MCPBASH_TOOL_ENV_MODE", why));
        }
        Some(_) => return Err(bad("MCPBASH_TOOL_ENV_MODE", "expected minimal or allowlist")),
    }
    let list = names.unwrap_or_default();
    let mut env = BTreeMap::new();
    for name in words(&list) {
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if !is_name || is_own(name) {
            let why = format!("`{}` is no variable for scripts", name.escape_default());
            return Err(bad("MCPBASH_TOOL_ENV_ALLOWLIST", &why));
        }
        if let Some(value) = get(name) {
            env.insert(name.to_owned(), value);
        }
    }
    Ok(env)
}

/// Returns true for the variables that only the contract sets.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with(PREFIX) || name.starts_with("MCP_") || name.starts_with("COFFERDAM_")
}

/// Returns true for what a list of hosts can have: a name, or `*.` before one.
fn is_pattern(word: &str) -> bool {
    let name = word.strip_prefix("*.").unwrap_or(word);
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_in_label = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    name.split('.').all(|label| !label.is_empty() && label.chars().all(is_in_label))
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
