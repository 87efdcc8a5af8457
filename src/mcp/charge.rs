//! The memory that the server over HTTP or lines charges a request for.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use hyperium_http::request::Parts;
use rmcp::RoleServer;
use rmcp::service::RequestContext;

/// Memory that a request is charged for. It is released with the answer, or later by a call that runs on after its
/// answer and still holds the arguments. Clones share the charge.
#[derive(Clone)]
pub struct Charge {
    _held: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge").finish_non_exhaustive()
    }
}

impl Charge {
    /// Makes a charge that is released when the last clone is dropped, by dropping `held`.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self { _held: Arc::new(held) }
    }

    /// Returns the charge of a request: an extension of the message, or of its HTTP request.
    pub(crate) fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let extensions = &context.extensions;
        let of_http = || extensions.get::<Parts>()?.extensions.get::<Self>();
        extensions.get::<Self>().or_else(of_http).cloned()
    }
}
