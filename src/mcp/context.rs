//! The request that a call arrived with.

use rmcp::RoleServer;
use rmcp::service::RequestContext;

/// A request, with what identifies its client.
pub type Context = RequestContext<RoleServer>;
