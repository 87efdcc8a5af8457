//! MakeHandler of the product: each session of MCP has a scope of its own over the one executor.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use tokio_util::sync::CancellationToken;

use crate::door::MakeHandler;
use crate::health::{Health, HealthWord, health};
use crate::metrics::{OwnMemory, metrics};
use crate::run::run;
use mcp::serve::Offer;
use mcp::server::{Continuity, Server};
use policy::Principal;
use service::{Executor, Scope};

/// The executor, and what of it is served.
#[derive(Debug)]
pub struct Scopes {
    pub executor: Arc<Executor>,
    pub offer: Offer,
    /// Tripped to end every call in flight.
    pub kill: CancellationToken,
    /// Absent where the kernel's count cannot be read.
    pub memory: Option<OwnMemory>,
}

impl MakeHandler for Scopes {
    type Handler = Server<Scope>;

    fn handler(&self, client: &Principal, continuity: Continuity) -> Self::Handler {
        let scope = self.executor.scope(client.clone());
        Server::offering(scope, self.kill.clone(), self.offer.clone(), continuity)
    }

    fn more(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/run", post(run))
            .route("/health", get(health))
            .route("/metrics", get(metrics))
            .with_state(Arc::clone(self))
    }

    fn health(&self) -> HealthWord {
        Health::of(&self.executor.figures()).status
    }
}
