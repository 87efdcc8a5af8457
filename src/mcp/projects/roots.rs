//! Asks a client for its roots, once and again after they changed.
#![expect(
    deprecated,
    reason = "the newest revision drops roots; clients of those before it have them"
)]

use std::time::Duration;

use rmcp::model::ProtocolVersion;
use rmcp::{Peer, RoleServer};
use tokio::sync::Mutex;

use crate::context::Context;
use projects::{Project, ScriptRoot};

/// Time that a client has to list its roots; after it a call runs without them.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// Roots of one client; `None` until they are asked for.
#[derive(Debug, Default)]
pub(super) struct ClientRoots(Mutex<Option<Vec<ScriptRoot>>>);

impl ClientRoots {
    /// Returns the paths of the client's roots in a cell; empty if no root is granted.
    pub(super) async fn get(&self, project: &Project, context: &Context) -> Vec<ScriptRoot> {
        let Some(peer) = peer_with_roots(context) else { return Vec::new() };
        // Concurrent calls wait for the same answer.
        let mut known = self.0.lock().await;
        if let Some(roots) = &*known {
            return roots.clone();
        }
        let roots = match tokio::time::timeout(MAX_WAIT, peer.list_roots()).await {
            Ok(Ok(list)) => {
                let named = list.roots.iter().map(|root| (&*root.uri, root.name.as_deref()));
                project.roots_of_client(named)
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "the client named no roots");
                Vec::new()
            }
            Err(_) => {
                tracing::debug!("the client named no roots in time");
                Vec::new()
            }
        };
        *known = Some(roots.clone());
        roots
    }

    /// Makes the next call ask for the roots again.
    pub(super) async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

/// Returns the client if it has roots, and may be asked while a call runs.
fn peer_with_roots(context: &Context) -> Option<&Peer<RoleServer>> {
    let is_older =
        context.protocol_version().is_none_or(|version| *version < ProtocolVersion::V_2026_07_28);
    let has_roots = |peer: &&Peer<RoleServer>| {
        peer.peer_info().is_some_and(|info| info.capabilities.roots.is_some())
    };
    context.peer.as_ref().filter(|_| is_older).filter(has_roots)
}
