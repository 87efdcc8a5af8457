//! The gateway: gives cells a network, in processes that run apart from them.
//!
//! [`start`] clones the gateway from main. `event_loop` serves the `cells` that have a network; it
//! forks a worker at a cell's first packet. `worker` is one cell's TCP/IP stack in user
//! mode, with the judge, the resolver and the relays. `connector` checks each socket that a worker
//! asks for and makes it; `routes` knows the host's own addresses. [`intercept`] judges HTTP
//! requests one by one and puts in secrets. `confine` holds the sandbox of gateway and workers.
//! [`host`] reads the host's resolvers and host names.
//!
//! *Invariants:* a cell never sees the host's network namespace. What no rule allows does not leave
//! the host, not even as a DNS question. The supervisor learns of each gateway or worker that dies,
//! and nothing restarts it.

#![deny(unreachable_pub)]

mod cells;
#[cfg(test)]
#[path = "../../tests/support/child.rs"]
mod child;
mod confine;
mod connector;
mod event_loop;
#[doc(hidden)]
pub mod fuzzing;
pub mod host;
pub mod intercept;
pub mod refusal;
mod routes;
mod start;
mod worker;

use std::net::{IpAddr, SocketAddr};

use model::egress::{Egress, SecretSource};

pub use confine::calls;
pub use start::{GatewayStartError, StartedGateway, start};

/// Input of [`start`].
#[derive(Debug, Clone)]
pub struct GatewaySpec {
    /// One per profile; frames name a profile by its index.
    pub profiles: Vec<Egress>,
    /// Resolvers that questions are forwarded to.
    pub resolvers: Vec<SocketAddr>,
    /// Names from the host's own table, in lower case, with their addresses.
    pub hosts: Vec<(String, IpAddr)>,
    /// Certificates of the host, in PEM, that verify servers where requests are intercepted.
    pub roots: Vec<u8>,
    /// Secrets that rules may use, by name.
    pub secrets: Vec<(String, SecretSource)>,
    /// Host id of the gateway if root starts it; an ordinary user's gateway keeps the user's id.
    pub id: Option<u32>,
}
