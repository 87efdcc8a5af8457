//! `config.json` as some other servers of `bash` have it: read from a path that is named, or from the configuration
//! directory, and from nowhere else.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use crate::directory;
use crate::server::http::net;
use crate::{ConfigError, HostContext};
use model::call::MAX_TIMEOUT;
use model::nearest::nearest;

/// Settings of the file for this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigJson {
    /// The file, its links resolved: what holds it is never granted.
    pub file: PathBuf,
    /// Time of a `bash` call that names no time.
    pub command_timeout: Option<Duration>,
    /// Listener for raw TCP, if `network` is enabled.
    pub network: Option<JsonNetwork>,
}

/// Place to listen at, and the addresses that may connect; every address if the list is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonNetwork {
    pub host: String,
    pub port: u16,
    pub allowed: Vec<IpNet>,
}

/// Default host and port.
const HOST: &str = "localhost";
const PORT: u16 = 3000;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    command_timeout: Option<f64>,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    network: Network,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Network {
    #[serde(default)]
    enabled: bool,
    host: Option<String>,
    port: Option<u16>,
    #[serde(default, rename = "allowedIPs")]
    allowed_ips: Vec<String>,
    #[serde(default)]
    allowed_subnets: Vec<String>,
}

fn yes() -> bool {
    true
}

/// Reads the file, strictly: what would be ignored is a mistake.
///
/// # Errors
/// When others could have written it, it has a mistake, or it says that this server is not to start.
pub fn read(path: &Path, host: &HostContext) -> Result<ConfigJson, ConfigError> {
    let document = directory::single(path, host.euid)?;
    let file = PathBuf::from(&document.file);
    let (command_timeout, network) = judge(&document.text)
        .map_err(|(why, hint)| ConfigError::Json { path: file.clone(), why, hint })?;
    Ok(ConfigJson { file, command_timeout, network })
}

type Mistake = (String, String);

fn judge(text: &str) -> Result<(Option<Duration>, Option<JsonNetwork>), Mistake> {
    let written: Written = serde_json::from_str(text).map_err(|error| mistake(&error))?;
    let refuse = |why: String, hint: &str| Err((why, hint.to_owned()));
    let network = network(&written.network)?;
    if !written.enabled {
        return refuse(
            "`enabled` is false".to_owned(),
            "set it to true, or start without this file",
        );
    }
    let Some(seconds) = written.command_timeout else { return Ok((None, network)) };
    let max = MAX_TIMEOUT.as_secs();
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() && time <= MAX_TIMEOUT => Ok((Some(time), network)),
        Ok(_) | Err(_) => refuse(
            format!("`commandTimeout` is {seconds}"),
            &format!("it is a number of seconds above 0 and at most {max}"),
        ),
    }
}

fn network(network: &Network) -> Result<Option<JsonNetwork>, Mistake> {
    let refuse = |why: String, hint: &str| Err((why, hint.to_owned()));
    if network.host.as_ref().is_some_and(String::is_empty) || network.port == Some(0) {
        return refuse(
            "`network` has an empty `host` or the `port` 0".to_owned(),
            "name both, or neither",
        );
    }
    if let Some(bad) = network.allowed_ips.iter().find(|ip| ip.parse::<IpAddr>().is_err()) {
        let why = format!("`network.allowedIPs`: `{}` is no address", bad.escape_default());
        return refuse(why, "write one such as 192.168.1.7");
    }
    if let Some(bad) = network.allowed_subnets.iter().find(|subnet| !is_subnet(subnet)) {
        let why = format!("`network.allowedSubnets`: `{}` is no subnet", bad.escape_default());
        return refuse(why, "write one such as 192.168.1.0/24");
    }
    let all = network.allowed_ips.iter().chain(&network.allowed_subnets);
    Ok(network.enabled.then(|| JsonNetwork {
        host: network.host.clone().unwrap_or_else(|| HOST.to_owned()),
        port: network.port.unwrap_or(PORT),
        allowed: all.filter_map(|text| net(text)).collect(),
    }))
}

/// Returns true for `ADDRESS/LENGTH`.
fn is_subnet(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let max = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    length.parse::<u8>().is_ok_and(|length| length <= max)
}

/// Converts serde's message, with the place, and the nearest key where one is unknown.
fn mistake(error: &serde_json::Error) -> Mistake {
    let text = error.to_string();
    let hint = text.strip_prefix("unknown field `").and_then(|rest| {
        let (unknown, expected) = rest.split_once("`, expected ")?;
        nearest(unknown, expected.split('`').skip(1).step_by(2))
            .map(|near| format!("did you mean `{near}`?"))
    });
    let keys = "the keys are commandTimeout, enabled and network";
    (text, hint.unwrap_or_else(|| keys.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout_of(text: &str) -> Result<Option<u64>, String> {
        judge(text).map(|(time, _)| time.map(|time| time.as_secs())).map_err(|(why, _)| why)
    }

    #[test]
    fn a_whole_file_is_read_and_every_key_can_be_left_out() {
        let whole = r#"{ "commandTimeout": 120, "enabled": true, "network": { "enabled": false,
            "host": "localhost", "port": 3000, "allowedIPs": ["127.0.0.1", "::1"],
            "allowedSubnets": ["10.0.0.0/8", "fd00::/8"] } }"#;
        assert_eq!(timeout_of(whole), Ok(Some(120)));
        assert_eq!(timeout_of("{}"), Ok(None));
    }

    #[test]
    fn a_network_has_the_place_and_the_addresses_of_the_file_or_those_of_the_reference() {
        let read = |text: &str| judge(text).ok().and_then(|(_, network)| network);
        assert_eq!(read(r#"{"network": {"enabled": false, "port": 1}}"#), None);
        let usual = JsonNetwork { host: HOST.to_owned(), port: PORT, allowed: Vec::new() };
        assert_eq!(read(r#"{"network": {"enabled": true}}"#), Some(usual));
        let whole = r#"{"network": {"enabled": true, "host": "::1", "port": 9, "allowedIPs": ["::1"],
            "allowedSubnets": ["10.0.0.0/8"]}}"#;
        let allowed = ["::1/128", "10.0.0.0/8"].map(|net| net.parse().expect("a net")).to_vec();
        assert_eq!(read(whole), Some(JsonNetwork { host: "::1".to_owned(), port: 9, allowed }));
    }

    #[test]
    fn settings_that_would_be_ignored_or_cannot_be_are_reported() {
        let refused = |text: &str| timeout_of(text).err().unwrap_or_default();
        assert_eq!(refused(r#"{"enabled": false}"#), "`enabled` is false");
        for (number, shown) in [("0", "0"), ("-1", "-1"), ("3601", "3601"), ("1e300", "1e300")] {
            let message = refused(&format!(r#"{{"commandTimeout": {number}}}"#));
            assert!(message.starts_with("`commandTimeout` is "), "{shown}: {message}");
        }
        assert_eq!(timeout_of(r#"{"commandTimeout": 3600}"#), Ok(Some(3600)));
        for ip in ["localhost", "10.0.0.0/8", ""] {
            let message = refused(&format!(r#"{{"network": {{"allowedIPs": ["{ip}"]}}}}"#));
            assert_eq!(message, format!("`network.allowedIPs`: `{ip}` is no address"));
        }
        for subnet in ["10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/-1"] {
            let message = refused(&format!(r#"{{"network": {{"allowedSubnets": ["{subnet}"]}}}}"#));
            assert_eq!(message, format!("`network.allowedSubnets`: `{subnet}` is no subnet"));
        }
        for mistaken in
            ["", "[]", r#"{"commandTimeout": "600"}"#, r#"{"network": {"port": 70000}}"#]
        {
            assert!(timeout_of(mistaken).is_err(), "{mistaken}");
        }
    }

    #[test]
    fn an_unknown_key_is_reported_with_the_nearest_one() {
        let (why, hint) = judge("{\n \"commandTimeOut\": 5 }").err().unwrap_or_default();
        assert!(why.starts_with("unknown field `commandTimeOut`"), "{why}");
        assert!(why.ends_with("at line 2 column 17"), "{why}");
        assert_eq!(hint, "did you mean `commandTimeout`?");
    }
}
