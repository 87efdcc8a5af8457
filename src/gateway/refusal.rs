//! The refusal of a request, which the gateway answers itself.

/// Why the gateway answers a request itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: String,
    /// The keys of a rule that would allow it; `None` if no rule can.
    pub(crate) grant: Option<String>,
}

impl Refusal {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), grant: None }
    }
}
