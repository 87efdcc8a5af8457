//! Credentials of the clients of a listener, made from the files that the configuration names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::file_reader::{FileKind, ListenerFile};
use crate::commands::error::CliError;
use config::certificates::CertificateSetting;
use config::clients::client_fault;
use config::http::{HttpSettings, TokenSetting};
use config::jwt::JwtSettings;
use config::policy::Principal;
use http::access::certificates::CertificateClients;
use http::access::jwt::JwtVerifier;
use http::access::keys::PublicKeys;
use http::access::tokens::Token;
use http::access::{ClientRights, Credentials};

/// Maximum number of tokens in a list.
const MAX_LISTED: usize = 4096;

/// What the files of a listener are for.
#[derive(Debug, Clone)]
pub(super) struct CredentialSettings {
    tokens: Vec<TokenSetting>,
    token_list: Option<PathBuf>,
    /// Tokens that come from no file that is read again.
    pub(super) kept: Vec<Token>,
    /// Certificates of this server, and its private key.
    tls: Option<(PathBuf, PathBuf)>,
    client_ca: Option<PathBuf>,
    client_crl: Option<PathBuf>,
    certificates: Vec<CertificateSetting>,
    jwt: Option<JwtSettings>,
    /// Clients that the configuration names.
    named: Vec<String>,
}

/// Reads one of the files.
pub(super) type ReadFile<'r> = &'r mut dyn FnMut(&ListenerFile) -> Result<String, String>;

impl CredentialSettings {
    pub(super) fn new(settings: &HttpSettings, kept: Vec<Token>) -> Self {
        Self {
            tokens: settings.tokens.value.clone(),
            token_list: settings.token_list.value.clone(),
            kept,
            tls: settings.certificate.value.clone().zip(settings.key.value.clone()),
            client_ca: settings.client_ca.value.clone(),
            client_crl: settings.client_crl.value.clone(),
            certificates: settings.certificates.value.clone(),
            jwt: settings.jwt.value.clone(),
            named: settings.clients().map(str::to_owned).collect(),
        }
    }

    /// Returns true if an agent can have a credential. A token of the operator is not for agents.
    pub(super) fn admit_agents(&self) -> bool {
        self.tokens.iter().any(|token| !token.operator)
            || self.certificates.iter().any(|certificate| !certificate.operator)
            || self.token_list.is_some()
            || self.jwt.is_some()
            || self.kept.iter().any(|token| token.rights == ClientRights::Agent)
    }

    /// Returns true if the configuration itself names this client.
    pub(super) fn names(&self, client: &str) -> bool {
        self.named.iter().any(|name| name == client)
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn jwt(&self) -> Option<&JwtSettings> {
        self.jwt.as_ref()
    }

    /// Returns every file.
    pub(super) fn files(&self) -> Vec<ListenerFile> {
        let file = |path: &PathBuf, kind| ListenerFile { path: path.clone(), kind };
        let mut files: Vec<_> =
            self.tokens.iter().map(|token| file(&token.file, FileKind::Secret)).collect();
        files.extend(self.token_list.iter().map(|path| file(path, FileKind::Secret)));
        if let Some((certificate, key)) = &self.tls {
            files.push(file(certificate, FileKind::Certificate));
            files.push(file(key, FileKind::Secret));
        }
        let trusted = self.client_ca.iter().chain(&self.client_crl);
        let trusted = trusted.chain(self.jwt.as_ref().map(|jwt| &jwt.keys));
        files.extend(trusted.map(|path| file(path, FileKind::Trusted)));
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Makes the credentials.
    ///
    /// # Errors
    /// The file that cannot be used, with the reason; an error has no text of a file.
    pub(super) fn load(&self, read: ReadFile<'_>) -> Result<Credentials, CliError> {
        let mut tokens = self.tokens(read)?;
        tokens.extend(self.kept.clone());
        distinct(&tokens)?;
        let certificates = self.certificate_clients(read)?;
        let verifier = certificates.as_ref().map(|clients| Arc::clone(&clients.verifier));
        let tls = self.tls.as_ref().map(|(certificate, key)| tls(certificate, key, verifier, read));
        let jwt = self.jwt.as_ref().map(|jwt| verifier_of(jwt, read)).transpose()?;
        Ok(Credentials::new(tokens, jwt, certificates, tls.transpose()?))
    }

    fn tokens(&self, read: ReadFile<'_>) -> Result<Vec<Token>, CliError> {
        let mut secret = |path: &Path| {
            let file = ListenerFile { path: path.to_owned(), kind: FileKind::Secret };
            read(&file).map_err(|reason| CliError::new(format!("http: token: {reason}")))
        };
        let mut tokens = Vec::new();
        for TokenSetting { client, file, operator } in &self.tokens {
            let mut token = token(&secret(file)?, client, &file.display().to_string())?;
            if *operator {
                token.rights = ClientRights::Operator;
            }
            tokens.push(token);
        }
        if let Some(path) = &self.token_list {
            tokens.extend(listed(&secret(path)?, &path.display().to_string())?);
        }
        Ok(tokens)
    }

    fn certificate_clients(
        &self,
        read: ReadFile<'_>,
    ) -> Result<Option<CertificateClients>, CliError> {
        let Some(authorities) = &self.client_ca else { return Ok(None) };
        let mut pem = |path: &Path| {
            let file = ListenerFile { path: path.to_owned(), kind: FileKind::Trusted };
            read(&file).map_err(|reason| CliError::new(format!("http: {reason}")))
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem(authorities)?.as_bytes()) {
            let certificate = certificate.map_err(|error| malformed(authorities, &error))?;
            roots.add(certificate).map_err(|error| failed(authorities, &error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        if let Some(lists) = &self.client_crl {
            let text = pem(lists)?;
            let parsed: Result<Vec<_>, _> =
                CertificateRevocationListDer::pem_slice_iter(text.as_bytes()).collect();
            let parsed = parsed.map_err(|error| malformed(lists, &error))?;
            if parsed.is_empty() {
                return Err(failed(lists, &"has no revocation list in PEM format"));
            }
            builder = builder.with_crls(parsed).enforce_revocation_expiration();
        }
        if self.has_other_credentials() {
            builder = builder.allow_unauthenticated();
        }
        let verifier = builder.build().map_err(|error| failed(authorities, &error))?;
        Ok(Some(CertificateClients { verifier, names: self.certificates.clone() }))
    }

    /// Returns true if a client without a certificate can have a token. Without tokens, a connection without a
    /// certificate ends with its handshake.
    fn has_other_credentials(&self) -> bool {
        let has_tokens = !self.tokens.is_empty() || !self.kept.is_empty();
        has_tokens || self.token_list.is_some() || self.jwt.is_some()
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> CliError {
    CliError::new(format!("http: {}: {error}", path.display()))
}

/// Names the kind of a fault in a PEM file. The error itself has text of the file, which may be a private key.
fn malformed(path: &Path, error: &pem::Error) -> CliError {
    let kind = match error {
        pem::Error::MissingSectionEnd { .. } => "a section of PEM has no end",
        pem::Error::IllegalSectionStart { .. } => "a section of PEM begins with a malformed line",
        pem::Error::Base64Decode(_) => "a section of PEM has text that is not base64",
        pem::Error::NoItemsFound => "no section of PEM has what this file is for",
        pem::Error::SectionTooLarge | pem::Error::Io(_) | _ => {
            "this is not a usable file in PEM format"
        }
    };
    failed(path, &kind)
}

fn verifier_of(jwt: &JwtSettings, read: ReadFile<'_>) -> Result<JwtVerifier, CliError> {
    let file = ListenerFile { path: jwt.keys.clone(), kind: FileKind::Trusted };
    let text = read(&file).map_err(|reason| CliError::new(format!("http: keys: {reason}")))?;
    let keys = PublicKeys::read(&text).map_err(|error| failed(&jwt.keys, &error))?;
    Ok(JwtVerifier::new(jwt, keys))
}

/// Makes the token of a client from the text of its file or variable.
pub(super) fn token(secret: &str, client: &str, origin: &str) -> Result<Token, CliError> {
    Token::new(secret.trim(), Principal::named(client)).map_err(|fault| {
        CliError::new(format!("http: {origin}: {fault}"))
            .with_hint("make one: openssl rand -hex 32")
    })
}

/// Reads a list of tokens: a line is empty, begins with `#`, or has a client, its token, and the word `operator` if the
/// token is one of the operator. An error names a line, and nothing that is in it.
fn listed(text: &str, path: &str) -> Result<Vec<Token>, CliError> {
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let origin = format!("{path}:{number}");
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (client, secret, rights) = match words.as_slice() {
            [] => continue,
            [first, ..] if first.starts_with('#') => continue,
            [client, secret] => (client, secret, ClientRights::Agent),
            [client, secret, "operator"] => (client, secret, ClientRights::Operator),
            _ => {
                let message = format!("http: {origin}: a line is `CLIENT TOKEN`");
                return Err(CliError::new(message)
                    .with_hint("add the word `operator` for a token of the operator"));
            }
        };
        if let Some(fault) = client_fault(client) {
            return Err(CliError::new(format!("http: {origin}: {fault}")));
        }
        let mut token = token(secret, client, &origin)?;
        token.rights = rights;
        tokens.push(token);
        if tokens.len() > MAX_LISTED {
            return Err(CliError::new(format!("http: {path}: has more than {MAX_LISTED} tokens")));
        }
    }
    // An empty file is one that is being written, or was lost: it would end the sessions of every client.
    if tokens.is_empty() {
        return Err(CliError::new(format!("http: {path}: has no token"))
            .with_hint("remove `token_list` from the configuration if no client is to have one"));
    }
    Ok(tokens)
}

/// Checks that no two clients have the same token: requests of one would count as the other's.
fn distinct(tokens: &[Token]) -> Result<(), CliError> {
    let mut sorted: Vec<&Token> = tokens.iter().collect();
    sorted.sort_unstable_by(|one, other| one.compare(other));
    for pair in sorted.windows(2) {
        let [one, other] = pair else { continue };
        let is_other = one.principal != other.principal || one.rights != other.rights;
        if is_other && one.is_same_as(other) {
            let mut names = [one.principal.name(), other.principal.name()];
            names.sort_unstable();
            let [first, second] = names;
            let message = format!("http: clients `{first}` and `{second}` have the same token");
            return Err(CliError::new(message).with_hint("make another one: openssl rand -hex 32"));
        }
    }
    Ok(())
}

fn tls(
    certificate: &Path,
    key: &Path,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    read: ReadFile<'_>,
) -> Result<Arc<ServerConfig>, CliError> {
    let mut text = |path: &Path, kind| {
        let file = ListenerFile { path: path.to_owned(), kind };
        read(&file).map_err(|reason| CliError::new(format!("http: {reason}")))
    };
    let chain = text(certificate, FileKind::Certificate)?;
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| malformed(certificate, &error))?;
    let private = text(key, FileKind::Secret)?;
    let private = PrivateKeyDer::from_pem_slice(private.as_bytes())
        .map_err(|error| malformed(key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(certificate, &error))?;
    let builder = match clients {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain, private);
    config.map(Arc::new).map_err(|error| failed(certificate, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: &str = "0123456789abcdef0123456789abcdef";

    fn faults(text: &str) -> Option<String> {
        listed(text, "/t").and_then(|tokens| distinct(&tokens)).err().map(|error| error.text())
    }

    #[test]
    fn a_list_has_a_client_and_its_token_on_each_line() {
        let text = format!("# of this month\n\nci {LONG}\nci {LONG}0\nops {LONG}1 operator\n");
        let tokens = listed(&text, "/t").map_err(|error| error.text()).expect("right");
        let of = |token: &Token| (token.principal.name().to_owned(), token.rights);
        let found: Vec<_> = tokens.iter().map(of).collect();
        let agent = ("ci".to_owned(), ClientRights::Agent);
        assert_eq!(found, [agent.clone(), agent, ("ops".to_owned(), ClientRights::Operator)]);
        assert_eq!(faults(&text), None);
    }

    #[test]
    fn a_malformed_pem_file_is_named_without_its_text() {
        let secret = "MC4CAQAwBQYDK2VwBCIEIF";
        let begin = "-----BEGIN PRIVATE KEY-----";
        let end = "-----END PRIVATE KEY-----";
        for (text, expected) in [
            // A key whose line ends were lost.
            (format!("{begin}{secret}{end}\n"), "has no end"),
            (format!("{begin} {secret} {end}"), "has no end"),
            (format!("{begin}{secret}\n"), "begins with a malformed line"),
            (format!("{begin}\n{secret}\n"), "has no end"),
            (format!("-----BEGIN {secret}-----\n{secret}\n"), "has no end"),
            (format!("{begin}\n{secret}!\n{end}\n"), "not base64"),
            (format!("{secret}\n"), "no section of PEM"),
        ] {
            let error = PrivateKeyDer::from_pem_slice(text.as_bytes()).expect_err("malformed");
            let fault = malformed(Path::new("/key"), &error).text();
            assert!(fault.contains("/key") && fault.contains(expected), "{fault}");
            // Bytes may be shown as numbers, too.
            assert!(!fault.contains(secret) && !fault.contains('['), "{fault}");
        }
    }

    #[test]
    fn a_fault_in_a_list_is_named_without_a_token() {
        for (text, expected) in [
            (format!("{LONG}\n"), "/t:1: a line is `CLIENT TOKEN`"),
            (format!("ci {LONG} admin\n"), "/t:1: a line is `CLIENT TOKEN`"),
            (format!("\nCI {LONG}\n"), "/t:2: a client's name"),
            (format!("local {LONG}\n"), "/t:1: this name is"),
            ("ci short-one\n".to_owned(), "/t:1: a token has 32 characters at least"),
            (format!("ci {LONG}\nbot {LONG}\n"), "clients `bot` and `ci` have the same token"),
            (format!("ci {LONG}\nci {LONG} operator\n"), "have the same token"),
            (String::new(), "/t: has no token"),
            ("# nothing yet\n\n".to_owned(), "/t: has no token"),
        ] {
            let fault = faults(&text).expect(expected);
            assert!(fault.contains(expected), "{fault}");
            assert!(!fault.contains(LONG) && !fault.contains("short-one"), "{fault}");
        }
    }
}
