//! Finds the client of a request, and decides whether its sender may connect.

pub mod browser;
mod failures;
pub(crate) mod rights;
pub mod tokens;

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, StatusCode, header};
use ipnet::IpNet;

use crate::respond::Refusal;
use browser::ServedNames;
use config::policy::Principal;
use failures::Failures;
pub use rights::ClientRights;
use tokens::Token;

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
}

/// Says if a client has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The client has a name.
    Known,
    /// Clients without a token share one name.
    Anonymous,
}

/// Rules of access.
#[derive(Debug)]
pub struct AccessRules {
    pub names: ServedNames,
    pub tokens: Vec<Token>,
    pub without_token: WithoutToken,
    /// Addresses that may connect; all if it is empty.
    pub allowed: Vec<IpNet>,
    pub failures: Failures,
}

impl AccessRules {
    pub fn new(names: ServedNames, tokens: Vec<Token>, without_token: WithoutToken) -> Self {
        Self { names, tokens, without_token, allowed: Vec::new(), failures: Failures::default() }
    }

    /// Returns every client that requests can belong to.
    pub fn clients(&self) -> Vec<Client> {
        let mut clients: Vec<Client> = self.tokens.iter().map(of_token).collect();
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
    pub(crate) fn client(&self, peer: Peer, headers: &HeaderMap) -> Result<Client, Refusal> {
        let mut presented = headers.get_all(header::AUTHORIZATION).iter();
        match (presented.next(), presented.next()) {
            (None, _) => self.of_no_token().ok_or_else(|| {
                let message = "a token is needed: send `Authorization: Bearer TOKEN`";
                Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
            }),
            (Some(header), None) => match tokens::presented(&self.tokens, header.as_bytes()) {
                Some(token) => Ok(of_token(token)),
                None => Err(self.failed(peer)),
            },
            (Some(_), Some(_)) => Err(self.failed(peer)),
        }
    }

    fn of_no_token(&self) -> Option<Client> {
        let (principal, standing) = match &self.without_token {
            WithoutToken::Refused => return None,
            WithoutToken::Anonymous(principal) => (principal, Standing::Anonymous),
            WithoutToken::One(principal) => (principal, Standing::Known),
        };
        Some(Client { principal: principal.clone(), standing, rights: ClientRights::Agent })
    }

    fn failed(&self, peer: Peer) -> Refusal {
        let address = match peer {
            Peer::Address(from) => from.ip().to_canonical(),
            Peer::Owner => IpAddr::from([0, 0, 0, 0]),
        };
        match self.failures.note(address) {
            Ok(()) => {
                // Beyond the throttle nothing is logged: a client could fill the log.
                tracing::warn!(%address, "a request had a wrong token");
                Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "the token is wrong")
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
    let Token { principal, rights, .. } = token;
    Client { principal: principal.clone(), standing: Standing::Known, rights: *rights }
}
