//! Finds the client of a request, and decides whether its sender may connect.

pub mod browser;
pub mod certificates;
mod failures;
mod json;
pub mod jwt;
pub mod keys;
pub mod resource;
pub(crate) mod rights;
pub mod tokens;
mod unfit;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use axum::http::{HeaderMap, StatusCode, header};
use ipnet::IpNet;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::respond::Refusal;
use browser::ServedNames;
use certificates::{CertificateClients, CertificateFault, PresentedCertificate, VERIFIED_TIME};
use config::policy::Principal;
use failures::Failures;
use jwt::{JwtVerifier, TokenFault};
use resource::{Challenge, Resource, challenge};
pub use rights::ClientRights;
use tokens::Token;
use unfit::UnfitTokens;

/// Sender of the requests of one connection, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Address(SocketAddr),
    /// A process with access to the Unix socket, which its owner and root have.
    Owner,
}

impl Peer {
    /// Returns the address that its requests are counted by. For IPv6 it is the network of 64 bits, which one sender
    /// usually has as a whole.
    pub(crate) fn sender(self) -> Option<IpAddr> {
        match self {
            Self::Address(from) => Some(failures::sender(from.ip().to_canonical())),
            Self::Owner => None,
        }
    }

    /// Returns the address that logs have; that of a Unix socket is 0.0.0.0.
    fn address(self) -> IpAddr {
        match self {
            Self::Address(from) => from.ip().to_canonical(),
            Self::Owner => IpAddr::from([0; 4]),
        }
    }
}

/// Client to which requests without a token belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WithoutToken {
    /// Each request needs a token.
    Refused,
    /// Clients without names, so only an MCP session, whose id cannot be guessed, lasts from one request to
    /// the next.
    Anonymous(Principal),
    /// One client: only the user who started the server reaches the socket.
    One(Principal),
}

/// Client of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    pub principal: Principal,
    pub standing: Standing,
    pub rights: ClientRights,
    /// Time at which its access token expires, if it has one that does.
    pub until: Option<SystemTime>,
}

impl Client {
    /// Makes a client with a name, whose credential does not expire.
    fn known(principal: Principal, rights: ClientRights) -> Self {
        Self { principal, standing: Standing::Known, rights, until: None }
    }
}

/// Says if a client has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The client has a name.
    Known,
    /// Clients without a token share one name.
    Anonymous,
}

/// Credentials of all clients, as the files of the configuration have them.
#[derive(Debug, Default)]
pub struct Credentials {
    tokens: Vec<Token>,
    jwt: Option<JwtVerifier>,
    certificates: Option<CertificateClients>,
    /// Settings of TLS for new connections.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Tripped when other credentials take the place of these.
    replaced: CancellationToken,
}

impl Credentials {
    pub fn new(
        tokens: Vec<Token>,
        jwt: Option<JwtVerifier>,
        certificates: Option<CertificateClients>,
        tls: Option<Arc<ServerConfig>>,
    ) -> Self {
        Self { tokens, jwt, certificates, tls, replaced: CancellationToken::new() }
    }

    /// Returns every client that has a token or a certificate. Subjects of an authorization server are not known
    /// before they come.
    fn clients(&self) -> Vec<Client> {
        let certificates = self.certificates.iter().flat_map(CertificateClients::clients);
        let certificates = certificates.map(|(principal, rights)| Client::known(principal, rights));
        self.tokens.iter().map(of_token).chain(certificates).collect()
    }

    /// Resolves when the certificate of a connection is not valid any more: it has expired, say.
    pub(crate) async fn lapse(&self, certificate: &PresentedCertificate) {
        let names_a_client =
            || self.certificates.as_ref().is_some_and(|known| known.client(certificate).is_ok());
        while names_a_client() {
            tokio::time::sleep(VERIFIED_TIME).await;
        }
    }

    /// Returns the names of the clients that have a token or a certificate.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        self.clients().into_iter().map(|client| client.principal.name().to_owned()).collect()
    }

    /// Returns a token that is tripped when other credentials take the place of these.
    pub(crate) fn replaced(&self) -> &CancellationToken {
        &self.replaced
    }
}

/// Numbers of clients that got a credential, and that have none any more. Subjects of an authorization server are not
/// counted: they are not known before they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientChanges {
    pub added: usize,
    pub removed: usize,
}

/// Credentials that can be replaced while they are used.
#[derive(Debug)]
pub struct CredentialStore(watch::Sender<Arc<Credentials>>);

impl CredentialStore {
    pub fn new(credentials: Credentials) -> Self {
        Self(watch::Sender::new(Arc::new(credentials)))
    }

    /// Replaces the credentials. A request that was admitted by the earlier ones is served to its end.
    pub fn replace(&self, credentials: Credentials) -> ClientChanges {
        let keys = |credentials: &Credentials| -> BTreeSet<_> {
            let of = |client: Client| (client.principal, client.rights);
            credentials.clients().into_iter().map(of).collect()
        };
        let after = keys(&credentials);
        let earlier = self.0.send_replace(Arc::new(credentials));
        earlier.replaced.cancel();
        let before = keys(&earlier);
        ClientChanges {
            added: after.difference(&before).count(),
            removed: before.difference(&after).count(),
        }
    }

    pub(crate) fn reader(&self) -> watch::Receiver<Arc<Credentials>> {
        self.0.subscribe()
    }
}

/// Rules of access.
#[derive(Debug)]
pub struct AccessRules {
    pub names: ServedNames,
    credentials: watch::Receiver<Arc<Credentials>>,
    pub without_token: WithoutToken,
    /// Addresses that may connect; all if it is empty.
    pub allowed: Vec<IpNet>,
    pub failures: Failures,
    unfit: UnfitTokens,
    /// Metadata for clients that look for an authorization server.
    pub resource: Option<Resource>,
}

impl AccessRules {
    pub fn new(
        names: ServedNames,
        credentials: &CredentialStore,
        without_token: WithoutToken,
    ) -> Self {
        Self {
            names,
            credentials: credentials.reader(),
            without_token,
            allowed: Vec::new(),
            failures: Failures::default(),
            unfit: UnfitTokens::default(),
            resource: None,
        }
    }

    /// Returns the credentials in force.
    pub(crate) fn credentials(&self) -> Arc<Credentials> {
        Arc::clone(&self.credentials.borrow())
    }

    /// Returns a reader that reports when the credentials are replaced.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Credentials>> {
        self.credentials.clone()
    }

    /// Returns every client that requests can belong to, except for subjects of an authorization server.
    pub fn clients(&self) -> Vec<Client> {
        let mut clients = self.credentials().clients();
        clients.extend(self.of_no_token());
        clients
    }

    /// Returns true if this address may connect. Refused ones are logged, a limited number of times each minute.
    pub(crate) fn admits(&self, from: SocketAddr) -> bool {
        let address = from.ip().to_canonical();
        let admits =
            self.allowed.is_empty() || self.allowed.iter().any(|net| net.contains(&address));
        if !admits && self.failures.note(address).is_ok() {
            tracing::warn!(%address, "an address that is not allowed");
        }
        admits
    }

    /// Returns the client of a request.
    ///
    /// A right token passes however many wrong ones came from the same address, so that no client can lock another out.
    /// Tokens are too long to be guessed at any rate.
    pub(crate) fn client(
        &self,
        credentials: &Credentials,
        peer: Peer,
        certificate: Option<&PresentedCertificate>,
        headers: &HeaderMap,
    ) -> Result<Client, Refusal> {
        let mut presented = headers.get_all(header::AUTHORIZATION).iter();
        match (certificate, presented.next(), presented.next()) {
            (None, None, _) => self.of_no_token().ok_or_else(|| {
                let message = "a token is needed: send `Authorization: Bearer TOKEN`";
                self.challenged(StatusCode::UNAUTHORIZED, message, Challenge::Missing)
            }),
            (None, Some(header), None) => self.of_header(credentials, peer, header.as_bytes()),
            (None, Some(_), Some(_)) => Err(self.failed(peer, "two tokens")),
            (Some(certificate), None, _) => self.of_certificate(credentials, peer, certificate),
            (Some(_), Some(_), _) => {
                let message = "a request has a certificate or a token, and not both";
                Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message))
            }
        }
    }

    fn of_header(
        &self,
        credentials: &Credentials,
        peer: Peer,
        header: &[u8],
    ) -> Result<Client, Refusal> {
        if let Some(token) = tokens::presented(&credentials.tokens, header) {
            return Ok(of_token(token));
        }
        let jwt = credentials.jwt.as_ref().zip(tokens::bearer(header));
        let Some((jwt, token)) = jwt else { return Err(self.failed(peer, "a wrong token")) };
        match jwt.client(token, SystemTime::now()) {
            Ok((principal, until)) => {
                let client = Client::known(principal, ClientRights::Agent);
                Ok(Client { until: Some(until), ..client })
            }
            Err(TokenFault::Forged) => Err(self.failed(peer, "a wrong token")),
            // No guess: the authorization server made it. So it is not counted, and its client gets another one.
            Err(TokenFault::Unfit(reason)) => {
                self.unfit.note(token, peer.address(), reason);
                Err(self.challenged(StatusCode::UNAUTHORIZED, reason, Challenge::Invalid))
            }
            Err(TokenFault::Scope) => {
                let message = "the token has no scope of this server";
                self.unfit.note(token, peer.address(), message);
                Err(self.challenged(StatusCode::FORBIDDEN, message, Challenge::Scope))
            }
        }
    }

    fn of_certificate(
        &self,
        credentials: &Credentials,
        peer: Peer,
        certificate: &PresentedCertificate,
    ) -> Result<Client, Refusal> {
        // After the files were read again there may be no authority any more.
        let known = credentials.certificates.as_ref();
        match known.ok_or(CertificateFault::Unknown).and_then(|known| known.client(certificate)) {
            Ok((principal, rights)) => Ok(Client::known(principal, rights)),
            Err(CertificateFault::Invalid) => Err(self.failed(peer, "an invalid certificate")),
            Err(CertificateFault::Unknown) => {
                Err(self.failed(peer, "a certificate that names no client"))
            }
        }
    }

    fn challenged(&self, status: StatusCode, message: &str, reason: Challenge) -> Refusal {
        let error = if reason == Challenge::Scope { "insufficient_scope" } else { "unauthorized" };
        let challenge = challenge(self.resource.as_ref(), reason);
        Refusal { challenge: Some(challenge), ..Refusal::new(status, error, message) }
    }

    fn of_no_token(&self) -> Option<Client> {
        let (principal, standing) = match &self.without_token {
            WithoutToken::Refused => return None,
            WithoutToken::Anonymous(principal) => (principal, Standing::Anonymous),
            WithoutToken::One(principal) => (principal, Standing::Known),
        };
        let client = Client::known(principal.clone(), ClientRights::Agent);
        Some(Client { standing, ..client })
    }

    /// Counts a failure, and refuses its request.
    fn failed(&self, peer: Peer, what: &'static str) -> Refusal {
        let address = peer.address();
        match self.failures.note(address) {
            Ok(()) => {
                // Beyond the throttle nothing is logged: a client could fill the log.
                tracing::warn!(%address, "a request had {what}");
                let message = match what.contains("certificate") {
                    true => "the certificate is not valid, or names no client",
                    false => "the token is wrong",
                };
                self.challenged(StatusCode::UNAUTHORIZED, message, Challenge::Invalid)
            }
            Err(wait) => {
                let message = "too many requests with a wrong token came from this address";
                Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_failures", message)
                    .after(wait.as_secs() + 1)
            }
        }
    }
}

fn of_token(token: &Token) -> Client {
    Client::known(token.principal.clone(), token.rights)
}
