//! The memory that the server over HTTP or lines charges a request for.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

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
}
