//! Intercepts HTTP requests of a cell: judges method and path of each, and puts in secrets.
//!
//! A connection whose rule has HTTP rules or a secret is passed here once it is open. TLS ends at
//! the gateway: the cell sees a certificate of this run's authority (`authority`), and the server's
//! certificate is verified against the host's roots. Each request is judged (`request`), rebuilt
//! and sent; secrets are removed from its answer (`body`). `connection` joins the two ends; `trust`
//! makes the files by which cells trust the authority.
//!
//! *Architecture Invariant:* a request reaches a server only as hyper writes it from judged parts,
//! and a secret only a server whose certificate was verified for the name of the rule.

mod authority;
mod body;
mod connection;
mod grants;
mod key;
mod prepared;
mod request;
mod scan;
mod secrets;
mod spelling;
#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "an index that is not there fails the test")]
mod tests;
mod tls;
mod traces;
pub mod trust;

use std::sync::Arc;

pub use authority::InterceptAuthority;
pub use connection::ByteStream;
pub use grants::{PinnedRule, RequestRule};
pub(crate) use prepared::{CellRequests, Prepared};
pub use secrets::SecretValue;

use crate::refusal::NetworkRefusal;
use request::{CellSeed, Destination};
use tls::Handshakes;

/// Why an intercepted connection was cut.
#[derive(Debug, thiserror::Error)]
pub enum InterceptError {
    #[error("the cell's handshake failed")]
    Handshake(#[source] std::io::Error),
    #[error("no certificate could be made for the host")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS cannot be configured")]
    Tls(#[from] rustls::Error),
    #[error("the connection to the server failed")]
    Server(#[source] hyper::Error),
    #[error("the cell's connection failed")]
    Cell(#[source] hyper::Error),
    /// Already reported to [`RequestEvents`].
    #[error("the handshake names a host that the address was not resolved for")]
    Denied,
}

/// Receives events about requests. `request` is the method and the URL without the query.
pub trait RequestEvents: Send + Sync {
    /// Reports that a request was refused.
    fn denied(&self, request: &str, refusal: NetworkRefusal);
    /// Reports that a request was answered with this status.
    fn answered(&self, request: &str, status: u16);
}

/// A connection of the cell to intercept.
#[derive(Debug)]
pub struct Intercepted {
    pub port: u16,
    /// Rules by name that have the port and match the address. The connection must be for one of
    /// their names.
    pub rules: Vec<PinnedRule>,
}

/// Keys and configuration of interception, shared by all cells.
#[derive(Debug, Clone)]
pub struct Interception(Arc<Handshakes>);

/// The interception of one cell's connections.
#[derive(Debug, Clone)]
pub struct CellInterception {
    /// `None` if no rule needs TLS to be intercepted.
    handshakes: Option<Arc<Handshakes>>,
    cell: CellSeed,
}

impl Interception {
    /// Prepares interception. `roots` are the certificates, in PEM, that verify servers.
    ///
    /// # Errors
    /// If `roots` holds no certificate.
    pub fn new(authority: InterceptAuthority, roots: &[u8]) -> Result<Self, InterceptError> {
        Ok(Self(Arc::new(Handshakes::new(authority, roots)?)))
    }

    /// Returns the DER certificate of the authority, for cells to trust.
    pub fn certificate(&self) -> &[u8] {
        self.0.authority.certificate()
    }

    /// Returns the interception for a cell whose placeholders are made from `seed`.
    pub fn for_cell(&self, seed: [u8; 16]) -> CellInterception {
        CellInterception { handshakes: Some(Arc::clone(&self.0)), cell: CellSeed::new(seed) }
    }
}

impl CellInterception {
    /// Returns an interception that judges requests without TLS, for a cell whose rules need no
    /// more.
    pub(crate) fn without_tls(seed: [u8; 16]) -> Self {
        Self { handshakes: None, cell: CellSeed::new(seed) }
    }

    /// Serves a connection of the cell, given the open connection to the server. Neither stream has
    /// been read from.
    ///
    /// # Errors
    /// If either side broke off, or spoke neither TLS nor HTTP.
    pub async fn serve(
        &self,
        to: Intercepted,
        client: impl ByteStream,
        server: impl ByteStream,
        events: Arc<dyn RequestEvents>,
    ) -> Result<(), InterceptError> {
        let destination = Destination::plain(to.port, to.rules);
        let client = match tls::begin(client).await.map_err(InterceptError::Handshake)? {
            tls::Begun::Plain(client) => {
                let version = hyper::Version::HTTP_11;
                let upstream = connection::Upstream::new(server, version).await?;
                let cell = self.cell.clone();
                return connection::exchange(client, version, upstream, destination, cell, events)
                    .await;
            }
            tls::Begun::Tls(hello) => hello,
        };
        let Some(name) = client.name().filter(|name| destination.names.contains(name)) else {
            let name = client.name().unwrap_or_else(|| "no name".to_owned());
            let reason = format!("the address was resolved for {}", destination.names.join(", "));
            events.denied(&format!("TLS for {name}"), NetworkRefusal::new(reason));
            return Err(InterceptError::Denied);
        };
        let handshakes = self.handshakes.as_ref().ok_or(InterceptError::Denied)?;
        let (version, upstream) = handshakes.connect(&name, &client, server).await?;
        let client = handshakes.accept(&name, *client, version).await?;
        let destination = destination.verified(name);
        connection::exchange(client, version, upstream, destination, self.cell.clone(), events)
            .await
    }
}
