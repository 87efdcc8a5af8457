//! `[http]` of `cofferdam.toml`: who may use the listener of `serve --http`, and how much of it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use toml::Spanned;

use super::server::{Reader, Setting, ShownLine};
use super::{ConfigError, HostContext, directory};
use model::units::Time;
use profile::document::Mistake;

/// MCP sessions of one client, and its open streams.
const SESSIONS: u32 = 64;
const STREAMS: u32 = 64;
/// Time for requests in flight when the server ends.
const DRAIN: Duration = Duration::from_secs(5);

/// Values of `[http]`, each with where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// Addresses that may connect; all if it is empty.
    pub allowed: Setting<Vec<IpNet>>,
    /// Names of the server in lower case.
    pub hosts: Setting<BTreeSet<String>>,
    pub origins: Setting<BTreeSet<String>>,
    /// Certificate and key of TLS: both or neither.
    pub certificate: Setting<Option<PathBuf>>,
    pub key: Setting<Option<PathBuf>>,
    pub sessions: Setting<u32>,
    pub streams: Setting<u32>,
    pub pre_stop: Setting<Option<Duration>>,
    pub drain: Setting<Duration>,
    pub tokens: Setting<Vec<TokenSetting>>,
}

/// A token's file, and the client that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSetting {
    pub client: String,
    pub file: PathBuf,
    /// True for a token of the operator, which controls the server and runs nothing.
    pub operator: bool,
}

/// Listener of `serve --http`: who may use it, and how much of it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    /// Addresses and subnets that may connect, besides what a token asks for.
    ///
    /// Default: `[]`, every address that reaches the listener. Example: `["10.0.0.0/8", "192.168.1.7"]`.
    allowed: Option<Spanned<Vec<Spanned<String>>>>,
    /// Further names under which requests may ask for this server; its address and `localhost` are known.
    ///
    /// Default: `[]`. Example: `["shell.example"]`.
    hosts: Option<Spanned<BTreeSet<String>>>,
    /// Origins of web pages that may use this server from a browser.
    ///
    /// Default: `[]`, no page but its own. Example: `["https://app.example"]`.
    origins: Option<Spanned<BTreeSet<String>>>,
    /// Absolute path of the certificates of TLS, as PEM, this server's first. `key` belongs to it.
    ///
    /// Default: none: no TLS. Example: `"/etc/cofferdam/tls.pem"`.
    certificate: Option<Spanned<PathBuf>>,
    /// Absolute path of the private key, as PEM; others cannot read the file.
    ///
    /// Default: none. Example: `"/etc/cofferdam/tls.key"`.
    key: Option<Spanned<PathBuf>>,
    /// MCP sessions of one client at once.
    ///
    /// Default: `64`. Example: `8`.
    sessions: Option<Spanned<u32>>,
    /// Open streams of one client at once.
    ///
    /// Default: `64`. Example: `8`.
    streams: Option<Spanned<u32>>,
    /// Time after SIGTERM in which requests are still taken, while `/health` answers 503: a load balancer sends no more
    /// then. `drain` begins after it.
    ///
    /// Default: none: `drain` begins at once. Example: `"5s"`.
    pre_stop: Option<Spanned<Time>>,
    /// Time for requests in flight when the server ends; what still runs then is killed.
    ///
    /// Default: `"5s"`. Example: `"30s"`.
    drain: Option<Spanned<Time>>,
    /// Bearer tokens, each of one client.
    #[serde(default)]
    tokens: Vec<WrittenToken>,
}

/// Bearer token of one client. Sessions, history and files of one are not seen by another.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenToken {
    /// Name of the client in the audit log: lower-case letters, digits and dashes. Example: `"ci"`.
    client: Spanned<String>,
    /// Absolute path of the file with the token: one line of 32 characters at least, which others cannot read.
    /// Example: `"/etc/cofferdam/ci.token"`.
    file: Spanned<PathBuf>,
    /// A token of the operator: it switches tools on and off (`POST /tools/NAME/enable`, `disable`, `reset`) and reads
    /// `/config`, and runs nothing. Give none to an agent.
    ///
    /// Default: `false`. Example: `true`.
    #[serde(default)]
    operator: bool,
}

impl HttpSettings {
    pub(super) fn parse(reader: &Reader<'_>, written: &Written) -> Result<Self, Mistake> {
        let absolute = |path: &Option<Spanned<PathBuf>>| match path {
            Some(path) if !path.get_ref().is_absolute() => {
                Err(reader.mistake(path.span(), "a path must be absolute"))
            }
            path => Ok(reader.set(path.as_ref(), None, Some)),
        };
        let certificate = absolute(&written.certificate)?;
        let key = absolute(&written.key)?;
        if let (Some(alone), None) | (None, Some(alone)) = (&written.certificate, &written.key) {
            return Err(reader.mistake(alone.span(), "`certificate` and `key` belong together"));
        }
        let lower = |names: BTreeSet<String>| {
            names.into_iter().map(|name| name.to_ascii_lowercase()).collect()
        };
        Ok(Self {
            allowed: allowed(reader, written.allowed.as_ref())?,
            hosts: reader.set(written.hosts.as_ref(), BTreeSet::new(), lower),
            origins: reader.set(written.origins.as_ref(), BTreeSet::new(), |names| names),
            certificate,
            key,
            sessions: reader.count(written.sessions.as_ref(), SESSIONS)?,
            streams: reader.count(written.streams.as_ref(), STREAMS)?,
            pre_stop: reader.set(written.pre_stop.as_ref(), None, |time| Some(time.0)),
            drain: reader.set(written.drain.as_ref(), DRAIN, |time| time.0),
            tokens: tokens(reader, &written.tokens)?,
        })
    }

    pub(super) fn shown(&self) -> Vec<ShownLine> {
        fn shown<T>(key: &'static str, of: &Setting<T>, text: impl Fn(&T) -> String) -> ShownLine {
            ShownLine { key, value: text(&of.value), source: of.source.clone() }
        }
        let names = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
        let path = |path: &Option<PathBuf>| {
            path.as_ref().map_or(String::new(), |path| path.display().to_string())
        };
        vec![
            shown("http.allowed", &self.allowed, |nets| {
                nets.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ")
            }),
            shown("http.hosts", &self.hosts, names),
            shown("http.origins", &self.origins, names),
            shown("http.certificate", &self.certificate, path),
            shown("http.key", &self.key, path),
            shown("http.sessions", &self.sessions, u32::to_string),
            shown("http.streams", &self.streams, u32::to_string),
            shown("http.pre_stop", &self.pre_stop, |time| {
                time.map_or(String::new(), |time| Time(time).to_string())
            }),
            shown("http.drain", &self.drain, |time| Time(*time).to_string()),
            shown("http.tokens", &self.tokens, |tokens| {
                let name = |token: &TokenSetting| match token.operator {
                    true => format!("{} (operator)", token.client),
                    false => token.client.clone(),
                };
                tokens.iter().map(name).collect::<Vec<_>>().join(", ")
            }),
        ]
    }
}

/// Parses an address, or a subnet as `ADDRESS/LENGTH`.
#[must_use]
pub fn net(text: &str) -> Option<IpNet> {
    text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}

fn allowed(
    reader: &Reader<'_>,
    written: Option<&Spanned<Vec<Spanned<String>>>>,
) -> Result<Setting<Vec<IpNet>>, Mistake> {
    let mut nets = Vec::new();
    for text in written.iter().flat_map(|list| list.get_ref()) {
        let net = net(text.get_ref()).ok_or_else(|| {
            let what = "is neither an address nor a subnet such as 10.0.0.0/8";
            reader.mistake(text.span(), what)
        })?;
        nets.push(net);
    }
    Ok(reader.set(written, Vec::new(), |_| nets))
}

fn tokens(
    reader: &Reader<'_>,
    written: &[WrittenToken],
) -> Result<Setting<Vec<TokenSetting>>, Mistake> {
    let mut tokens: Vec<TokenSetting> = Vec::new();
    for token in written {
        let client = token.client.get_ref();
        let file = token.file.get_ref();
        if !is_client(client) {
            let what = "a client's name is lower-case letters, digits and dashes, at most 32";
            return Err(reader.mistake(token.client.span(), what));
        }
        if ["local", "http", "tcp"].contains(&client.as_str()) {
            let what = "this name is that of clients without a token of their own";
            return Err(reader.mistake(token.client.span(), what));
        }
        if !file.is_absolute() {
            return Err(reader.mistake(token.file.span(), "a path must be absolute"));
        }
        let operator = token.operator;
        tokens.push(TokenSetting { client: client.clone(), file: file.clone(), operator });
    }
    let first = written.first().map(|token| &token.client);
    Ok(reader.set(first, Vec::new(), |_| tokens))
}

/// Returns true for a name that a client may have.
fn is_client(name: &str) -> bool {
    let of_a_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&name.len()) && name.bytes().all(of_a_name)
}

/// Reads a file that holds a secret: this user's or root's, and nobody else may read it.
///
/// # Errors
/// A file that cannot be read, or that others can read or write.
pub fn secret(path: &Path, host: &HostContext) -> Result<String, ConfigError> {
    directory::secret(path, host.euid).map(|document| document.text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use profile::document::Document;

    fn read(text: &str) -> Result<HttpSettings, String> {
        let document = Document::new("f", &format!("schema = 1\n{text}"));
        Config::parse(Some(&document), 2).map(|config| config.http).map_err(|bad| bad.to_string())
    }

    #[test]
    fn a_whole_section_is_read() {
        let http = read(
            "[http]\nallowed = [\"10.0.0.0/8\", \"::1\"]\nhosts = [\"Shell.example\"]\ndrain = \"30s\"\n\
             [[http.tokens]]\nclient = \"ci\"\nfile = \"/t\"\n",
        );
        let http = http.expect("it is right");
        assert_eq!(http.allowed.value.len(), 2);
        assert!(http.hosts.value.contains("shell.example"));
        let token = TokenSetting { client: "ci".to_owned(), file: "/t".into(), operator: false };
        assert_eq!(http.tokens.value, vec![token]);
    }

    #[test]
    fn mistakes_are_told() {
        for (text, told) in [
            ("[http]\nallowed = [\"10.0.0.0/33\"]", "neither an address nor a subnet"),
            ("[http]\ncertificate = \"/c\"", "belong together"),
            ("[http]\nkey = \"k\"\ncertificate = \"/c\"", "must be absolute"),
            ("[http]\nsessions = 0", "above zero"),
            ("[[http.tokens]]\nclient = \"A\"\nfile = \"/t\"", "lower-case"),
            ("[[http.tokens]]\nclient = \"local\"\nfile = \"/t\"", "without a token"),
            ("[[http.tokens]]\nclient = \"a\"\nfile = \"t\"", "must be absolute"),
        ] {
            let bad = read(text).expect_err(text);
            assert!(bad.contains(told), "{text}: {bad}");
        }
    }
}
