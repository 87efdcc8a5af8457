//! The gateway: the network of cells, in processes of its own.
//!
//! [`start`] clones the gateway from main; `gateway` is its loop over the `cells` that have a network, and forks a worker at a cell's
//! first packet; `worker` is a TCP/IP stack in user mode with the judge, the resolver and the relays of one cell.
//! `connector` judges what workers ask for and makes their sockets, and `routes` knows the host's own addresses.
//! [`intercept`] judges requests one by one and puts in secrets. `confine` has the walls around all three. [`host`]
//! reads what the host says of names.
//!
//! *Invariants:* nothing of the host's network namespace is ever in a cell. What no rule allows goes nowhere, not even
//! as a question of a name. A gateway or worker that dies is told, and nothing takes its place.

#![deny(unreachable_pub)]

mod cells;
mod confine;
mod connector;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
pub mod host;
pub mod intercept;
mod routes;
mod start;
mod worker;

use std::net::{IpAddr, SocketAddr};

use model::egress::{Egress, SecretSource};

pub use confine::calls;
pub use start::{GatewayStartError, StartedGateway, start};

/// Everything that a gateway is made with.
#[derive(Debug, Clone)]
pub struct GatewaySpec {
    /// One for each profile, by the index that frames name.
    pub profiles: Vec<Egress>,
    /// Resolvers that questions are forwarded to.
    pub resolvers: Vec<SocketAddr>,
    /// Names that the host knows by itself, in lower case, with their addresses.
    pub hosts: Vec<(String, IpAddr)>,
    /// Certificates of the host, in PEM, by which servers are verified where requests are read.
    pub roots: Vec<u8>,
    /// Secrets that rules may use, by their names.
    pub secrets: Vec<(String, SecretSource)>,
    /// The id that the gateway has on the host where root starts it; an ordinary user's gateway has the user's.
    pub id: Option<u32>,
}
