//! `[project]` of `cofferdam.toml`: what scripts of a project may use, and where their downloads go.

use std::time::Duration;

use super::settings::{BytesValue, FlagValue, Kind, PeriodValue, WholeValue, settings};
use crate::document::{Item, Read, ReadError};

settings! {
/// Values of `[project]`, each with where it came from.
pub struct ProjectKeys {
    /// Settings of `serve --project`. A variable of the framework (`MCPBASH_…`) overrides them.
    project {
        /// Hosts for resources of the providers `https` and `git`, and for `mcp_download_safe` of
        /// scripts: `HOST`, `HOST:PORT` or `*.DOMAIN`. Each download runs in a separate cell that
        /// reaches only its host; cells of scripts have no network.
        ///
        /// Default: `[]`. Example: `["raw.githubusercontent.com", "api.example.org:8443"]`.
        hosts: Hosts = Vec::new(),
        /// Run the project's hooks, as `--project-hooks` does.
        ///
        /// Default: `false`. Example: `true`.
        hooks: FlagValue = false,
        /// Calls of scripts that run at the same time; at most 1024. `server.concurrency` also
        /// applies.
        ///
        /// Default: `16`. Example: `4`.
        workers: WholeValue<1, 1024> = 16,
        /// Timeout of a tool whose metadata has none.
        ///
        /// Default: `"30s"`. Example: `"60s"`.
        timeout: PeriodValue<1, 86_400> = Duration::from_secs(30),
        /// Longest timeout of a tool, even if its metadata or a client has a longer one. The
        /// policy's rule and the profile also apply.
        ///
        /// Default: `"600s"`. Example: `"120s"`.
        max_timeout: PeriodValue<1, 86_400> = Duration::from_secs(600),
        /// Maximum output of a script; at most 64M. More output is an error.
        ///
        /// Default: `"10M"`. Example: `"1M"`.
        output: BytesValue<1024, { 64 << 20 }> = 10 << 20,
        /// Maximum standard error of a tool; at most 64M. More is an error.
        ///
        /// Default: `"10M"`. Example: `"1M"`.
        stderr: BytesValue<1024, { 64 << 20 }> = 10 << 20,
        /// Size of the last part of standard error that a result includes; at most 64K.
        ///
        /// Default: `"4K"`. Example: `"1K"`.
        stderr_tail: BytesValue<0, { 64 << 10 }> = 4096,
        /// Maximum size of a resource; at most 64M. A larger one is an error.
        ///
        /// Default: `"10M"`. Example: `"1M"`.
        resource: BytesValue<1024, { 64 << 20 }> = 10 << 20,
        /// Size above which scripts shorten the text of a result; at most 1M.
        ///
        /// Default: `"100K"`. Example: `"32K"`.
        text: BytesValue<1024, { 1 << 20 }> = 100 << 10,
        /// Progress notifications that a call may send per minute; at most 10000.
        ///
        /// Default: `100`. Example: `20`.
        progress: WholeValue<1, 10_000> = 100,
        /// Log messages that a call may send per minute; at most 10000.
        ///
        /// Default: `100`. Example: `20`.
        messages: WholeValue<1, 10_000> = 100,
        /// Timeout of a download over https; at most 60s.
        ///
        /// Default: `"15s"`. Example: `"30s"`.
        https_timeout: PeriodValue<1, 60> = Duration::from_secs(15),
        /// Maximum size of a download over https; at most 20M.
        ///
        /// Default: `"10M"`. Example: `"1M"`.
        https_bytes: BytesValue<1, { 20 << 20 }> = 10 << 20,
        /// Timeout of fetching a repository; at most 60s.
        ///
        /// Default: `"30s"`. Example: `"60s"`.
        git_timeout: PeriodValue<1, 60> = Duration::from_secs(30),
        /// Maximum size of a repository without its history; at most 60M.
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
    type Written = Vec<String>;

    fn read(item: Item<'_>) -> Result<Vec<String>, ReadError> {
        let with_port = |host: String| match host.contains(':') {
            true => host.to_ascii_lowercase(),
            false => format!("{}:443", host.to_ascii_lowercase()),
        };
        let words: Vec<String> = Vec::read(item)?.into_iter().map(with_port).collect();
        match words.iter().find_map(|word| crate::profile::egress::host(word).err()) {
            Some(error) => Err(item.error(error.to_string())),
            None => Ok(words),
        }
    }

    fn show(hosts: &Vec<String>) -> String {
        hosts.join(", ")
    }
}
