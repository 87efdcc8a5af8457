//! The kinds of errors of a declared tool, and the way out of each, in the reference implementation's words.

use serde::Serialize;

/// The way out of a call from which something was withheld.
pub(crate) const PERMISSION: &str = "Run with appropriate permissions or adjust policy.";
/// The way out of a call that did not reach what it was to reach.
pub(crate) const NETWORK: &str = "Check network connectivity and firewall rules.";

/// Reason why a call gave no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorType {
    Timeout,
    NotFound,
    ValidationError,
    ExecutionError,
    ResourceExhausted,
    CircuitBreakerOpen,
    Unknown,
}

impl ErrorType {
    /// Every kind, in the order of the schema.
    pub const ALL: [Self; 7] = [
        Self::ValidationError,
        Self::Timeout,
        Self::NotFound,
        Self::ExecutionError,
        Self::ResourceExhausted,
        Self::CircuitBreakerOpen,
        Self::Unknown,
    ];

    /// Returns the word that results have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::NotFound => "not_found",
            Self::ValidationError => "validation_error",
            Self::ExecutionError => "execution_error",
            Self::ResourceExhausted => "resource_exhausted",
            Self::CircuitBreakerOpen => "circuit_breaker_open",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the way out that a result names as `recovery_suggestion`.
    pub fn suggestion(self, program: &str) -> String {
        match self {
            Self::Timeout => "Increase timeout_sec or reduce operation scope.".to_owned(),
            Self::NotFound => format!("Install {program} or add to PATH."),
            Self::ValidationError => {
                "Check argument format. Use get_tool_info for syntax.".to_owned()
            }
            Self::ExecutionError => {
                "Read stderr: the program's own message says what it lacks.".to_owned()
            }
            Self::ResourceExhausted => {
                "Reduce operation scope, or call again when others have ended.".to_owned()
            }
            Self::CircuitBreakerOpen => {
                "Wait for the recovery time; the calls before this one failed.".to_owned()
            }
            Self::Unknown => "Call again; the server's log has the cause.".to_owned(),
        }
    }
}
