//! Credentials of the clients of a listener, made from the files that the configuration names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::listener_file::{FileKind, FileResult, ListenerFile};
use crate::commands::error::CliError;
use config::certificates::CertificateSetting;
use config::http::{HttpSettings, TokenSetting};
use config::jwt::JwtSettings;
use http::access::certificates::CertificateClients;
use http::access::jwt::JwtVerifier;
use http::access::keys::PublicKeys;
use http::access::tokens::Token;
use http::access::{ClientRights, Credentials};

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

/// Fault of a file whose content did not come.
pub(super) const NOT_READ: &str = "was not read again";

/// Reads one of the files.
pub(super) type ReadFile<'r> = &'r mut dyn FnMut(&ListenerFile) -> FileResult;

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
        let mut files = self.token_files();
        if let Some((certificate, key)) = &self.tls {
            files.push(file(certificate, FileKind::Certificate));
            files.push(file(key, FileKind::Key));
        }
        let trusted = self.client_ca.iter().chain(&self.client_crl);
        let trusted = trusted.chain(self.jwt.as_ref().map(|jwt| &jwt.keys));
        files.extend(trusted.map(|path| file(path, FileKind::Trusted)));
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Returns the files of tokens.
    fn token_files(&self) -> Vec<ListenerFile> {
        let of_client = |TokenSetting { client, file, operator }: &TokenSetting| ListenerFile {
            path: file.clone(),
            kind: FileKind::Token {
                client: client.clone(),
                rights: if *operator { ClientRights::Operator } else { ClientRights::Agent },
            },
        };
        let mut files: Vec<_> = self.tokens.iter().map(of_client).collect();
        let list = self.token_list.clone();
        files.extend(list.map(|path| ListenerFile { path, kind: FileKind::TokenList }));
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
        let mut tokens = Vec::new();
        for file in self.token_files() {
            let found = read(&file)?.into_tokens();
            tokens.extend(found.ok_or_else(|| failed(&file.path, &NOT_READ))?);
        }
        Ok(tokens)
    }

    fn certificate_clients(
        &self,
        read: ReadFile<'_>,
    ) -> Result<Option<CertificateClients>, CliError> {
        let Some(authorities) = &self.client_ca else { return Ok(None) };
        let mut pem = |path: &Path| text(path, FileKind::Trusted, read);
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

/// Returns the text of a file of this kind.
fn text(path: &Path, kind: FileKind, read: ReadFile<'_>) -> Result<String, CliError> {
    let content = read(&ListenerFile { path: path.to_owned(), kind })?;
    content.into_text().ok_or_else(|| failed(path, &NOT_READ))
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
    let keys = PublicKeys::read(&text(&jwt.keys, FileKind::Trusted, read)?)
        .map_err(|error| failed(&jwt.keys, &error))?;
    Ok(JwtVerifier::new(jwt, keys))
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
    let chain = text(certificate, FileKind::Certificate, read)?;
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| malformed(certificate, &error))?;
    let private = text(key, FileKind::Key, read)?;
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
    use config::policy::Principal;

    const LONG: &str = "0123456789abcdef0123456789abcdef";

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
    fn two_clients_have_no_token_in_common_and_one_may_have_it_twice() {
        let token = |client: &str, last: char, rights| {
            let token = Token::new(&format!("{LONG}{last}"), Principal::named(client));
            token.expect("it is long enough").with_rights(rights)
        };
        let agent = ClientRights::Agent;
        let one = token("ci", 'a', agent);
        let fault = |other| distinct(&[one.clone(), other]).err().map(|error| error.text());
        assert_eq!(fault(token("ci", 'a', agent)), None);
        assert_eq!(fault(token("bot", 'b', agent)), None);
        for (other, expected) in [
            (token("bot", 'a', agent), "clients `bot` and `ci` have the same token"),
            (token("ci", 'a', ClientRights::Operator), "have the same token"),
        ] {
            let fault = fault(other).expect(expected);
            assert!(fault.contains(expected) && !fault.contains(LONG), "{fault}");
        }
    }
}
