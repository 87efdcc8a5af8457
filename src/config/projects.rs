//! `[project]` of `cofferdam.toml`: what scripts of a project may use, and where their downloads go.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::server::{Reader, Setting, ShownLine};
use model::units::{Size, Time};
use profile::document::Mistake;

/// Most calls at once, most lines of one kind in a minute, and most bytes of an output.
const WORKERS_MOST: u32 = 1024;
const LINES_MOST: u32 = 10_000;
const OUTPUT_MOST: u64 = 64 << 20;
/// Longest time of a tool and of a download, and most bytes of each kind of download.
const TIMEOUT_MOST: Duration = Duration::from_secs(86_400);
const DOWNLOAD_MOST: Duration = Duration::from_secs(60);
const HTTPS_MOST: u64 = 20 << 20;
const GIT_MOST: u64 = 60 << 20;

/// Values of `[project]`, each with where it came from. An absent one is that of the framework.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectKeys {
    /// Hosts that downloads of a project reach, each with its port.
    pub hosts: Setting<Vec<String>>,
    /// True if the project's hooks are run.
    pub hooks: Setting<bool>,
    pub workers: Setting<u32>,
    pub timeout: Setting<Duration>,
    pub max_timeout: Setting<Duration>,
    pub output: Setting<u64>,
    pub stderr: Setting<u64>,
    pub stderr_tail: Setting<u64>,
    pub resource: Setting<u64>,
    pub text: Setting<u64>,
    /// Lines in a minute.
    pub progress: Setting<u32>,
    pub messages: Setting<u32>,
    pub https_timeout: Setting<Duration>,
    pub https_bytes: Setting<u64>,
    pub git_timeout: Setting<Duration>,
    pub git_bytes: Setting<u64>,
}

/// Settings of `serve --project`. A variable of the framework (`MCPBASH_…`) is before them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenProject {
    /// Hosts from which resources of the providers `https` and `git` are read, and scripts download with
    /// `mcp_download_safe`: `HOST`, `HOST:PORT` or `*.DOMAIN`. A cell of its own reaches the one host of a download;
    /// the scripts' own cells reach none.
    ///
    /// Default: `[]`. Example: `["raw.githubusercontent.com", "api.example.org:8443"]`.
    hosts: Option<Spanned<Vec<String>>>,
    /// Run the project's hooks, as `--project-hooks` does.
    ///
    /// Default: `false`. Example: `true`.
    hooks: Option<Spanned<bool>>,
    /// Calls of scripts that run at once, 1024 at most; `server.concurrency` holds too.
    ///
    /// Default: `16`. Example: `4`.
    workers: Option<Spanned<u32>>,
    /// Time of a tool whose metadata states none.
    ///
    /// Default: `"30s"`. Example: `"60s"`.
    timeout: Option<Spanned<Time>>,
    /// Longest time of a tool, whatever its metadata or a client says; the policy's rule and the profile hold too.
    ///
    /// Default: `"600s"`. Example: `"120s"`.
    max_timeout: Option<Spanned<Time>>,
    /// Size of the longest output of a script, 64M at most; more is an error.
    ///
    /// Default: `"10M"`. Example: `"1M"`.
    output: Option<Spanned<Size>>,
    /// Size of the longest standard error of a tool, 64M at most; more is an error.
    ///
    /// Default: `"10M"`. Example: `"1M"`.
    stderr: Option<Spanned<Size>>,
    /// Size of the end of standard error that is in a result, 64K at most.
    ///
    /// Default: `"4K"`. Example: `"1K"`.
    stderr_tail: Option<Spanned<Size>>,
    /// Size of the longest resource, 64M at most; more is an error.
    ///
    /// Default: `"10M"`. Example: `"1M"`.
    resource: Option<Spanned<Size>>,
    /// Text of a result above which scripts shorten it, 1M at most.
    ///
    /// Default: `"100K"`. Example: `"32K"`.
    text: Option<Spanned<Size>>,
    /// Progress notifications that a call may send in a minute, 10000 at most.
    ///
    /// Default: `100`. Example: `20`.
    progress: Option<Spanned<u32>>,
    /// Log messages that a call may send in a minute, 10000 at most.
    ///
    /// Default: `100`. Example: `20`.
    messages: Option<Spanned<u32>>,
    /// Time of a download by https, 60s at most.
    ///
    /// Default: `"15s"`. Example: `"30s"`.
    https_timeout: Option<Spanned<Time>>,
    /// Size of a download by https, 20M at most.
    ///
    /// Default: `"10M"`. Example: `"1M"`.
    https_bytes: Option<Spanned<Size>>,
    /// Time in which a repository is fetched, 60s at most.
    ///
    /// Default: `"30s"`. Example: `"60s"`.
    git_timeout: Option<Spanned<Time>>,
    /// Size of a repository without its history, 60M at most.
    ///
    /// Default: `"50M"`. Example: `"10M"`.
    git_bytes: Option<Spanned<Size>>,
}

impl ProjectKeys {
    pub(super) fn parse(reader: &Reader<'_>, written: &WrittenProject) -> Result<Self, Mistake> {
        let size = |value: Option<&Spanned<Size>>, usual: u64, (least, most): (u64, u64)| {
            let out = |value: &&Spanned<Size>| !(least..=most).contains(&value.get_ref().0);
            match value.filter(out) {
                Some(bad) => {
                    let message = format!("must be {} to {}", Size(least), Size(most));
                    Err(reader.mistake(bad.span(), message))
                }
                None => Ok(reader.set(value, usual, |size| size.0)),
            }
        };
        let time = |value: Option<&Spanned<Time>>, usual: u64, most: Duration| {
            let least = Duration::from_secs(1);
            let out = |value: &&Spanned<Time>| !(least..=most).contains(&value.get_ref().0);
            match value.filter(out) {
                Some(bad) => {
                    let message = format!("must be 1s to {}", Time(most));
                    Err(reader.mistake(bad.span(), message))
                }
                None => Ok(reader.set(value, Duration::from_secs(usual), |time| time.0)),
            }
        };
        let count = |value: Option<&Spanned<u32>>, usual: u32, most: u32| match value
            .filter(|value| !(1..=most).contains(value.get_ref()))
        {
            Some(bad) => Err(reader.mistake(bad.span(), format!("must be 1 to {most}"))),
            None => Ok(reader.set(value, usual, |value| value)),
        };
        let output = (1024, OUTPUT_MOST);
        Ok(Self {
            hosts: hosts(reader, written.hosts.as_ref())?,
            hooks: reader.set(written.hooks.as_ref(), false, |hooks| hooks),
            workers: count(written.workers.as_ref(), 16, WORKERS_MOST)?,
            timeout: time(written.timeout.as_ref(), 30, TIMEOUT_MOST)?,
            max_timeout: time(written.max_timeout.as_ref(), 600, TIMEOUT_MOST)?,
            output: size(written.output.as_ref(), 10 << 20, output)?,
            stderr: size(written.stderr.as_ref(), 10 << 20, output)?,
            stderr_tail: size(written.stderr_tail.as_ref(), 4096, (0, 64 << 10))?,
            resource: size(written.resource.as_ref(), 10 << 20, output)?,
            text: size(written.text.as_ref(), 100 << 10, (1024, 1 << 20))?,
            progress: count(written.progress.as_ref(), 100, LINES_MOST)?,
            messages: count(written.messages.as_ref(), 100, LINES_MOST)?,
            https_timeout: time(written.https_timeout.as_ref(), 15, DOWNLOAD_MOST)?,
            https_bytes: size(written.https_bytes.as_ref(), 10 << 20, (1, HTTPS_MOST))?,
            git_timeout: time(written.git_timeout.as_ref(), 30, DOWNLOAD_MOST)?,
            git_bytes: size(written.git_bytes.as_ref(), 50 << 20, (1024, GIT_MOST))?,
        })
    }

    pub(super) fn shown(&self) -> Vec<ShownLine> {
        fn shown<T>(key: &'static str, of: &Setting<T>, text: impl Fn(&T) -> String) -> ShownLine {
            ShownLine { key, value: text(&of.value), source: of.source.clone() }
        }
        let size = |key, setting| shown(key, setting, |bytes: &u64| Size(*bytes).to_string());
        let time = |key, setting| shown(key, setting, |time: &Duration| Time(*time).to_string());
        let count = |key, setting| shown(key, setting, u32::to_string);
        vec![
            shown("project.hosts", &self.hosts, |hosts| hosts.join(", ")),
            shown("project.hooks", &self.hooks, bool::to_string),
            count("project.workers", &self.workers),
            time("project.timeout", &self.timeout),
            time("project.max_timeout", &self.max_timeout),
            size("project.output", &self.output),
            size("project.stderr", &self.stderr),
            size("project.stderr_tail", &self.stderr_tail),
            size("project.resource", &self.resource),
            size("project.text", &self.text),
            count("project.progress", &self.progress),
            count("project.messages", &self.messages),
            time("project.https_timeout", &self.https_timeout),
            size("project.https_bytes", &self.https_bytes),
            time("project.git_timeout", &self.git_timeout),
            size("project.git_bytes", &self.git_bytes),
        ]
    }
}

/// Reads names of hosts. One without a port has that of https.
fn hosts(
    reader: &Reader<'_>,
    written: Option<&Spanned<Vec<String>>>,
) -> Result<Setting<Vec<String>>, Mistake> {
    let with_port = |host: &String| match host.contains(':') {
        true => host.to_ascii_lowercase(),
        false => format!("{}:443", host.to_ascii_lowercase()),
    };
    let words: Vec<String> =
        written.iter().flat_map(|words| words.get_ref()).map(with_port).collect();
    let wrong = words.iter().find_map(|word| match profile::egress::host(word) {
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    });
    match (wrong, written) {
        (Some(message), Some(written)) => Err(reader.mistake(written.span(), message)),
        (_, written) => Ok(reader.set(written, Vec::new(), |_| words)),
    }
}
