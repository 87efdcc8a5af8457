//! The reason why the gateway refuses a connection, a question for a name, or a request.

/// Why something of a cell is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkRefusal {
    pub reason: String,
    /// A rule or the keys of a rule that would allow it; `None` if no rule can.
    pub grant: Option<String>,
}

impl NetworkRefusal {
    /// Makes a refusal that no rule can lift.
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), grant: None }
    }
}
