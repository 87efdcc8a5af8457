//! Makes the handlers of the doors, and their routes other than MCP and the calls of tools.

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::door::MakeHandler;
use crate::events::events;
use crate::health::{Health, HealthWord, health};
use crate::limits::ListenerLimits;
use crate::metrics::metrics;
use crate::openapi::openapi;
use crate::operator::{self, configuration};
use crate::rest;
use crate::run::run;
use crate::scopes::Scopes;
use crate::session_use::ActivityProbe;
use config::policy::Principal;
use mcp::gate::RemoteSecret;
use mcp::server::{Continuity, Server};
use service::Scope;

fn server(scopes: &Scopes, scope: Scope, continuity: Continuity) -> Server {
    Server::offering(scope, scopes.kill.clone(), scopes.offer.clone(), continuity)
}

impl MakeHandler for Scopes {
    type Handler = Server;

    fn handler(&self, client: &Principal, continuity: Continuity) -> Server {
        server(self, self.executor.scope(client.clone()), continuity)
    }

    fn session(&self, client: &Principal) -> (Server, Option<ActivityProbe>) {
        let scope = self.executor.scope(client.clone());
        let activity: ActivityProbe = Arc::new(scope.session_use());
        (server(self, scope, Continuity::Session), Some(activity))
    }

    fn watcher(&self, client: &Principal) -> Server {
        server(self, self.executor.watching_scope(client.clone()), Continuity::Requests)
    }

    fn forget(&self, client: &Principal) {
        self.executor.forget(client);
    }

    fn secret(&self) -> Option<Arc<RemoteSecret>> {
        self.secret.clone()
    }

    fn more(self: &Arc<Self>, limits: &ListenerLimits) -> Router {
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
            .merge(rest::routes(limits.rate))
    }

    fn health(&self) -> HealthWord {
        Health::from_figures(&self.executor.figures()).status
    }
}
