//! The choice of the tools that a server has: built-in ones, those of a project, or both.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::projects::current::CurrentProject;
use crate::server::{Continuity, Server};
use crate::tool_entry::ToolEntry;
use service::Scope;

/// Tools of a server, in addition to declared ones.
#[derive(Debug, Clone)]
pub enum Offer {
    /// The built-in ones.
    BuiltIn,
    /// The scripts of a project, and nothing else.
    Project(Arc<CurrentProject>),
    /// Both; the built-in tool is called where names collide.
    Both(Arc<CurrentProject>),
}

impl Server {
    /// Serves `client` with what `offer` says, to requests that belong together or not; tripping `kill` ends every call in
    /// flight.
    pub fn offering(
        client: Scope,
        kill: CancellationToken,
        offer: Offer,
        continuity: Continuity,
    ) -> Self {
        let (tools, project): (&'static [ToolEntry<Self>], _) = match offer {
            Offer::BuiltIn => (ToolEntry::ALL, None),
            Offer::Project(project) => (&[], Some(project)),
            Offer::Both(project) => (ToolEntry::ALL, Some(project)),
        };
        Self::with_tools(client, kill, tools, project, continuity)
    }
}
