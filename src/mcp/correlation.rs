//! Name that a client gave the HTTP request by which a message came.

use hyperium_http::request::Parts;
use rmcp::RoleServer;
use rmcp::service::RequestContext;

use model::call::Correlation;

/// Returns the name, where the front door over HTTP has put one beside the request's head.
pub(crate) fn of_request(context: &RequestContext<RoleServer>) -> Option<Correlation> {
    context.extensions.get::<Parts>()?.extensions.get::<Correlation>().cloned()
}
