//! Makes the handlers of the doors: each session of MCP has a scope over the server's executor.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use tokio_util::sync::CancellationToken;

use crate::door::MakeHandler;
use crate::events::events;
use crate::health::{Health, HealthWord, health};
use crate::metrics::{OwnMemory, metrics};
use crate::openapi::openapi;
use crate::operator::{self, configuration};
use crate::run::{TOOL, run};
use crate::session_use::ActivityProbe;
use mcp::gate::RemoteSecret;
use mcp::serve::Offer;
use mcp::server::{Continuity, Server};
use policy::Principal;
use service::refused::{Refused, RefusedKind};
use service::{Backend, Executor, Scope};

/// The executor, and which of its tools are served.
#[derive(Debug)]
pub struct Scopes {
    pub executor: Arc<Executor>,
    pub offer: Offer,
    /// Secret of the project that is served.
    pub secret: Option<Arc<RemoteSecret>>,
    /// Tripped to end every call in flight.
    pub kill: CancellationToken,
    /// Absent where `/proc/self/statm` cannot be read.
    pub memory: Option<OwnMemory>,
    /// Directory within a cell below which each command of `/run` gets a directory, if the operator named one.
    pub run_root: Option<String>,
}

impl Scopes {
    /// Returns the reason why a client has no `/run`. As a shell it is offered with the tools that are shells.
    pub(crate) fn withheld_run(&self, scope: &Scope) -> Option<Refused> {
        let denied = |reason: &str| Refused::new(RefusedKind::Denied, reason);
        if let Offer::Project(_) = self.offer {
            let hint = "the operator can show built-in tools beside a project's with --tools shell";
            return Some(denied("this server has the tools of its project only").with_hint(hint));
        }
        if self.executor.is_off(TOOL) {
            let hint = "the operator did that, under `[tools] off` or since the start";
            return Some(denied(&format!("`{TOOL}` is switched off")).with_hint(hint));
        }
        let shell = scope.withheld("bash");
        shell.filter(|_| scope.withheld(TOOL).is_some())
    }
}

impl MakeHandler for Scopes {
    type Handler = Server<Scope>;

    fn handler(&self, client: &Principal, continuity: Continuity) -> Self::Handler {
        let scope = self.executor.scope(client.clone());
        Server::offering(scope, self.kill.clone(), self.offer.clone(), continuity)
            .of_client(client.name())
    }

    fn session(&self, client: &Principal) -> (Self::Handler, Option<ActivityProbe>) {
        let scope = self.executor.scope(client.clone());
        let activity: ActivityProbe = Arc::new(scope.session_use());
        let kill = self.kill.clone();
        let offer = self.offer.clone();
        let handler = Server::offering(scope, kill, offer, Continuity::Session);
        (handler.of_client(client.name()), Some(activity))
    }

    fn watcher(&self, client: &Principal) -> Self::Handler {
        let scope = self.executor.watching_scope(client.clone());
        Server::offering(scope, self.kill.clone(), self.offer.clone(), Continuity::Requests)
            .of_client(client.name())
    }

    fn secret(&self) -> Option<Arc<RemoteSecret>> {
        self.secret.clone()
    }

    fn more(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/run", post(run))
            .route("/health", get(health))
            .route("/metrics", get(metrics))
            .route("/events", get(events))
            .route("/openapi.json", get(openapi))
            .route("/config", get(configuration))
            .route("/tools/{name}/enable", post(operator::enable))
            .route("/tools/{name}/disable", post(operator::disable))
            .route("/tools/{name}/reset", post(operator::reset))
            .with_state(Arc::clone(self))
    }

    fn health(&self) -> HealthWord {
        Health::of(&self.executor.figures()).status
    }
}
