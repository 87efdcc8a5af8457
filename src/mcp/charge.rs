//! The memory that a request is charged for by the front door that it came through.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use hyperium_http::request::Parts;
use rmcp::RoleServer;
use rmcp::service::RequestContext;

/// Part that a request has of its front door's memory. The door gives it back with the answer; a call that goes on
/// after its answer has the arguments still, and so this too. Clones are the same part.
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
    /// Makes a part that is given back when the last clone is dropped, by dropping `held`.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Self { _held: Arc::new(held) }
    }

    /// Returns that of a request, from where its front door has put it: beside the message, or beside the head of HTTP.
    pub(crate) fn of(context: &RequestContext<RoleServer>) -> Option<Self> {
        let extensions = &context.extensions;
        let of_http = || extensions.get::<Parts>()?.extensions.get::<Self>();
        extensions.get::<Self>().or_else(of_http).cloned()
    }
}
