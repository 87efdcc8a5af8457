//! `[http]` of `cofferdam.toml`: who may use the listener of `serve --http`, and how much of it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use toml::Spanned;

use super::certificates::CertificateNames;
use super::clients::checked_client;
use super::jwt::JwtValue;
use super::settings::{
    AbsolutePath, AnyTime, CountValue, File, Kind, NamesValue, Optional, settings,
};
use crate::document::{Item, Read, ReadError, text};
use crate::{ConfigError, HostContext, directory};

settings! {
/// Values of `[http]`, each with where it came from.
pub struct HttpSettings {
    /// Listener of `serve --http`: its clients and their limits.
    http {
        /// Addresses and subnets that may connect. Clients must also present a token if there are
        /// tokens.
        ///
        /// Default: `[]`, every address that reaches the listener. Example: `["10.0.0.0/8",
        /// "192.168.1.7"]`.
        allowed: Networks = Vec::new(),
        /// Further names of this server that requests may have in `Host`; its address and
        /// `localhost` are accepted.
        ///
        /// Default: `[]`. Example: `["shell.example"]`.
        hosts: HostNames = BTreeSet::new(),
        /// Origins of web pages that may use this server from a browser.
        ///
        /// Default: `[]`, only its own page. Example: `["https://app.example"]`.
        origins: NamesValue = BTreeSet::new(),
        /// Absolute path of the TLS certificates in PEM format, this server's first. Needs `key`.
        ///
        /// Default: no TLS. Example: `"/etc/cofferdam/tls.pem"`.
        certificate: Optional<AbsolutePath> = None,
        /// Absolute path of the private key in PEM format. Other users must not be able to read the
        /// file.
        ///
        /// Default: no TLS. Example: `"/etc/cofferdam/tls.key"`.
        key: Optional<AbsolutePath> = None,
        /// Absolute path of the certificates, in PEM format, of the authorities whose client
        /// certificates are accepted. Needs `certificate` and `certificates`.
        ///
        /// Default: no client certificates. Example: `"/etc/cofferdam/clients-ca.pem"`.
        client_ca: Optional<AbsolutePath> = None,
        /// Absolute path of revocation lists in PEM format, one for each authority. A certificate
        /// that no list is about is refused, and so is each certificate once its list is out of
        /// date. Needs `client_ca`.
        ///
        /// Default: no certificate is revoked. Example: `"/etc/cofferdam/clients-crl.pem"`.
        client_crl: Optional<AbsolutePath> = None,
        /// Maximum number of MCP sessions of one client.
        ///
        /// Default: `64`. Example: `8`.
        sessions: CountValue = 64,
        /// Maximum number of open streams of one client.
        ///
        /// Default: `64`. Example: `8`.
        streams: CountValue = 64,
        /// Maximum number of calls of one tool by one client in a minute through `POST
        /// /tools/NAME/execute`.
        ///
        /// Default: `10`. Example: `120`.
        rate: CountValue = 10,
        /// Time after SIGTERM during which requests are still accepted while `/health` answers 503,
        /// so that a load balancer stops sending them. `drain` begins after it.
        ///
        /// Default: `drain` begins at once. Example: `"5s"`.
        pre_stop: Optional<AnyTime> = None,
        /// Time for running requests when the server stops; those that still run after it are
        /// killed.
        ///
        /// Default: `"5s"`. Example: `"30s"`.
        drain: AnyTime = Duration::from_secs(5),
        /// Absolute path of a file with a token of each client, one a line: `CLIENT TOKEN`, or
        /// `CLIENT TOKEN operator` for a token of the operator. Other users must not be able to read
        /// it. SIGHUP has it read again. A list without a token is refused, at the start and at
        /// SIGHUP, where the earlier tokens stay.
        ///
        /// Default: no file. Example: `"/etc/cofferdam/tokens"`.
        token_list: Optional<AbsolutePath> = None,
        /// Bearer tokens of clients.
        tokens: Tokens = Vec::new(),
        /// Clients that are known by a certificate.
        certificates: CertificateNames = Vec::new(),
        /// Access tokens of an authorization server (JSON Web Tokens).
        jwt: Optional<JwtValue> = None,
    }
}
}

/// A token's file, and the client that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSetting {
    pub client: String,
    pub file: PathBuf,
    /// True for a token of the operator, which controls the server and runs nothing.
    pub operator: bool,
}

table! {
    /// Bearer token of one client. Clients do not see each other's sessions, history and files.
    pub struct WrittenToken {
        /// Name of the client in the audit log: lower-case letters, digits and dashes. Example: `"ci"`.
        client: Spanned<String>,
        /// Absolute path of the file with the token: one line of at least 32 characters. Other
        /// users must not be able to read it. Example: `"/etc/cofferdam/ci.token"`.
        file: Spanned<PathBuf>,
        /// Marks a token of the operator, which switches tools on and off (`POST
        /// /tools/NAME/enable`, `disable`, `reset`) and reads `/config`, but cannot call tools.
        /// Never give it to an agent.
        ///
        /// Default: `false`. Example: `true`.
        operator: bool = false,
    }
}

impl HttpSettings {
    /// Checks that settings are present which others need.
    pub(super) fn check(&self, file: File<'_>) -> Result<(), ReadError> {
        let value = |key| file.value("http", key);
        let together = |one, other, message: &str| match (value(one), value(other)) {
            (Some(alone), None) | (None, Some(alone)) => Err(alone.error(message)),
            (Some(_), Some(_)) | (None, None) => Ok(()),
        };
        let needs = |one, other, message: &str| match (value(one), value(other)) {
            (Some(alone), None) => Err(alone.error(message)),
            (Some(_), Some(_)) | (None, _) => Ok(()),
        };
        together("certificate", "key", "`certificate` and `key` belong together")?;
        together("client_ca", "certificates", "`client_ca` and `certificates` belong together")?;
        needs("client_ca", "certificate", "client certificates need TLS: `certificate` and `key`")?;
        needs("client_crl", "client_ca", "a revocation list needs `client_ca`")
    }

    /// Returns the clients that credentials of this configuration stand for. A file of
    /// `token_list` can have others.
    pub fn clients(&self) -> impl Iterator<Item = &str> {
        let tokens = self.tokens.value.iter().map(|token| token.client.as_str());
        let certificates = self.certificates.value.iter();
        let certificates = certificates.map(|certificate| certificate.client.as_str());
        let jwt = self.jwt.value.iter().flat_map(|jwt| &jwt.clients);
        tokens.chain(certificates).chain(jwt.map(|scope| scope.client.as_str()))
    }
}

/// Parses an address, or a subnet as `ADDRESS/LENGTH`.
#[must_use]
pub fn net(text: &str) -> Option<IpNet> {
    text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok()
}

/// Addresses and networks.
pub struct Networks;

impl Kind for Networks {
    type Value = Vec<IpNet>;
    type Written = Vec<String>;

    fn read(item: Item<'_>) -> Result<Vec<IpNet>, ReadError> {
        let one = |item: Item<'_>| {
            let what = "is neither an address nor a subnet such as 10.0.0.0/8";
            net(text(item)?).ok_or_else(|| item.error(what))
        };
        item.items()?.map(one).collect()
    }

    fn show(nets: &Vec<IpNet>) -> String {
        nets.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// Names of hosts, which become lower case.
pub struct HostNames;

impl Kind for HostNames {
    type Value = BTreeSet<String>;
    type Written = BTreeSet<String>;

    fn read(item: Item<'_>) -> Result<BTreeSet<String>, ReadError> {
        item.items()?.map(|item| Ok(text(item)?.to_ascii_lowercase())).collect()
    }

    fn show(names: &BTreeSet<String>) -> String {
        NamesValue::show(names)
    }
}

/// Tokens of clients.
pub struct Tokens;

impl Kind for Tokens {
    type Value = Vec<TokenSetting>;
    type Written = Vec<WrittenToken>;

    fn read(item: Item<'_>) -> Result<Vec<TokenSetting>, ReadError> {
        item.items()?.map(token).collect()
    }

    fn show(tokens: &Vec<TokenSetting>) -> String {
        let name = |token: &TokenSetting| match token.operator {
            true => format!("{} (operator)", token.client),
            false => token.client.clone(),
        };
        tokens.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

fn token(item: Item<'_>) -> Result<TokenSetting, ReadError> {
    let WrittenToken { client, file, operator } = WrittenToken::read(item)?;
    let client = checked_client(client)?;
    if !file.get_ref().is_absolute() {
        return Err(ReadError::new(file.span(), "a path must be absolute"));
    }
    Ok(TokenSetting { client, file: file.into_inner(), operator })
}

/// Reads a file that holds a secret: this user's or root's, and readable by no other user.
///
/// # Errors
/// A file that cannot be read, or that others can read or write.
pub fn secret(path: &Path, host: &HostContext) -> Result<String, ConfigError> {
    directory::secret(path, host.euid).map(|document| document.text.into_owned())
}

/// Reads a file that decides who is a client: this user's or root's, and writable by no other user.
///
/// # Errors
/// A file that cannot be read, or that others can write.
pub fn trusted(path: &Path, host: &HostContext) -> Result<String, ConfigError> {
    directory::single(path, host.euid).map(|document| document.text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::document::Document;

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
    fn mistakes_are_reported() {
        for (text, expected) in [
            ("[http]\nallowed = [\"10.0.0.0/33\"]", "neither an address nor a subnet"),
            ("[http]\ncertificate = \"/c\"", "belong together"),
            ("[http]\nkey = \"k\"\ncertificate = \"/c\"", "must be absolute"),
            ("[http]\nclient_ca = \"/c\"", "`client_ca` and `certificates` belong together"),
            (
                "[http]\nclient_ca = \"/c\"\n[[http.certificates]]\nclient = \"a\"\nname = \"a.example\"",
                "need TLS",
            ),
            ("[http]\nclient_crl = \"/c\"", "needs `client_ca`"),
            ("[http]\ntoken_list = \"t\"", "must be absolute"),
            ("[http]\nsessions = 0", "above zero"),
            ("[[http.tokens]]\nclient = \"A\"\nfile = \"/t\"", "lower-case"),
            ("[[http.tokens]]\nclient = \"local\"\nfile = \"/t\"", "without a token"),
            ("[[http.tokens]]\nclient = \"a\"\nfile = \"t\"", "must be absolute"),
        ] {
            let bad = read(text).expect_err(text);
            assert!(bad.contains(expected), "{text}: {bad}");
        }
    }
}
