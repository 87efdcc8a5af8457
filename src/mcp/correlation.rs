//! Name that a client gave the HTTP request by which a message came.

use hyperium_http::request::Parts;
use rmcp::RoleServer;
use rmcp::service::RequestContext;

use model::call::Correlation;

/// Returns the name of a request, if the HTTP server has put one into its extensions.
pub(crate) fn of_request(context: &RequestContext<RoleServer>) -> Option<Correlation> {
    context.extensions.get::<Parts>()?.extensions.get::<Correlation>().cloned()
}
