//! Whose a request is, and whether its sender may ask at all.

pub mod browser;
mod failures;
pub(crate) mod rights;
pub mod tokens;

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, StatusCode, header};
use ipnet::IpNet;

use crate::respond::Refusal;
use browser::ServedNames;
use failures::Failures;
use policy::Principal;
pub use rights::ClientRights;
use tokens::Token;

/// Sender of the requests of one connection, as the kernel tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Address(SocketAddr),
    /// A process with access to the Unix socket, which its owner and root have.
    Owner,
}

impl Peer {
    /// Returns the address that its requests are counted by: of IPv6 the network, which one sender has as a whole.
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
    /// None: each request needs a token.
    Refused,
    /// Clients that cannot be told apart, so nothing lasts from one request to the next but an MCP session, whose id
    /// nobody can guess.
    Strangers(Principal),
    /// One client: whoever reaches the socket is the user who started the server.
    One(Principal),
}

/// Client of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    pub principal: Principal,
    pub standing: Standing,
    pub rights: ClientRights,
}

/// Knowledge of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It can be told from others.
    Known,
    /// Nobody can tell.
    Stranger,
}

/// Conditions of access.
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

    /// Returns true if this address may connect. One that may not is logged, so many times in a minute.
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
    /// A right token passes however many wrong ones came from the same address: nobody can lock another out. It has
    /// too many characters to be guessed at any rate.
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
            WithoutToken::Strangers(principal) => (principal, Standing::Stranger),
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
                // Beyond the throttle nothing is logged: a sender would fill the log.
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
