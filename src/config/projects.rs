//! `[project]` of `cofferdam.toml`: what scripts of a project may use, and where their downloads go.

use std::time::Duration;

use super::settings::{BytesValue, FlagValue, Kind, PeriodValue, WholeValue, settings};
use profile::document::{Form, Item, Read, ReadError};

settings! {
/// Values of `[project]`, each with where it came from.
pub struct ProjectKeys {
    /// Settings of `serve --project`. A variable of the framework (`MCPBASH_…`) is before them.
    project {
        /// Hosts from which resources of the providers `https` and `git` are read, and scripts download with
        /// `mcp_download_safe`: `HOST`, `HOST:PORT` or `*.DOMAIN`. A cell of its own reaches the one host of a download;
        /// the scripts' own cells reach none.
        ///
        /// Default: `[]`. Example: `["raw.githubusercontent.com", "api.example.org:8443"]`.
        hosts: Hosts = Vec::new(),
        /// Run the project's hooks, as `--project-hooks` does.
        ///
        /// Default: `false`. Example: `true`.
        hooks: FlagValue = false,
        /// Calls of scripts that run at once, 1024 at most; `server.concurrency` holds too.
        ///
        /// Default: `16`. Example: `4`.
        workers: WholeValue<1, 1024> = 16,
        /// Time of a tool whose metadata states none.
        ///
        /// Default: `"30s"`. Example: `"60s"`.
        timeout: PeriodValue<1, 86_400> = Duration::from_secs(30),
        /// Longest time of a tool, whatever its metadata or a client says; the policy's rule and the profile hold too.
        ///
        /// Default: `"600s"`. Example: `"120s"`.
        max_timeout: PeriodValue<1, 86_400> = Duration::from_secs(600),
        /// Size of the longest output of a script, 64M at most; more is an error.
        ///
        /// Default: `"10M"`. Example: `"1M"`.
        output: BytesValue<1024, { 64 << 20 }> = 10 << 20,
        /// Size of the longest standard error of a tool, 64M at most; more is an error.
        ///
        /// Default: `"10M"`. Example: `"1M"`.
        stderr: BytesValue<1024, { 64 << 20 }> = 10 << 20,
        /// Size of the end of standard error that is in a result, 64K at most.
        ///
        /// Default: `"4K"`. Example: `"1K"`.
        stderr_tail: BytesValue<0, { 64 << 10 }> = 4096,
        /// Size of the longest resource, 64M at most; more is an error.
        ///
        /// Default: `"10M"`. Example: `"1M"`.
        resource: BytesValue<1024, { 64 << 20 }> = 10 << 20,
        /// Text of a result above which scripts shorten it, 1M at most.
        ///
        /// Default: `"100K"`. Example: `"32K"`.
        text: BytesValue<1024, { 1 << 20 }> = 100 << 10,
        /// Progress notifications that a call may send in a minute, 10000 at most.
        ///
        /// Default: `100`. Example: `20`.
        progress: WholeValue<1, 10_000> = 100,
        /// Log messages that a call may send in a minute, 10000 at most.
        ///
        /// Default: `100`. Example: `20`.
        messages: WholeValue<1, 10_000> = 100,
        /// Time of a download by https, 60s at most.
        ///
        /// Default: `"15s"`. Example: `"30s"`.
        https_timeout: PeriodValue<1, 60> = Duration::from_secs(15),
        /// Size of a download by https, 20M at most.
        ///
        /// Default: `"10M"`. Example: `"1M"`.
        https_bytes: BytesValue<1, { 20 << 20 }> = 10 << 20,
        /// Time in which a repository is fetched, 60s at most.
        ///
        /// Default: `"30s"`. Example: `"60s"`.
        git_timeout: PeriodValue<1, 60> = Duration::from_secs(30),
        /// Size of a repository without its history, 60M at most.
        ///
        /// Default: `"50M"`. Example: `"10M"`.
        git_bytes: BytesValue<1024, { 60 << 20 }> = 50 << 20,
    }
}
}

/// Names of hosts. One without a port has that of https.
pub struct Hosts;

impl Kind for Hosts {
    type Value = Vec<String>;

    fn read(item: Item<'_>) -> Result<Vec<String>, ReadError> {
        let with_port = |host: String| match host.contains(':') {
            true => host.to_ascii_lowercase(),
            false => format!("{}:443", host.to_ascii_lowercase()),
        };
        let words: Vec<String> = Vec::read(item)?.into_iter().map(with_port).collect();
        match words.iter().find_map(|word| profile::egress::host(word).err()) {
            Some(error) => Err(item.fault(error.to_string())),
            None => Ok(words),
        }
    }

    fn show(hosts: &Vec<String>) -> String {
        hosts.join(", ")
    }

    fn form() -> Form {
        Vec::<String>::form()
    }
}
