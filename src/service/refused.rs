//! Calls without a result, as every front door reports them: the kind, the message, and the remedy as a hint.

use calc::CalcError;
use config::policy::Denial;
use model::call::InvalidCall;
use model::outcome::Failure;
use model::receipt::Receipt;

use super::Refusal;

/// A call without a report: nothing ran, or the cell that ran gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    pub kind: RefusedKind,
    pub message: String,
    pub hint: Option<String>,
    /// Protection of the cell, if one ran and gave no result.
    pub receipt: Option<Box<Receipt>>,
}

/// Reason why there is no report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedKind {
    /// The arguments were refused.
    Arguments,
    /// Policy forbids it.
    Denied,
    /// The client cancelled it before it had a cell.
    Cancelled,
    /// The requested thing does not exist.
    Absent,
    /// cofferdam could not do it, or the calculator answered with an error.
    Failed,
}

impl Refused {
    pub fn new(kind: RefusedKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, receipt: None }
    }

    /// Makes a failure that has a message only, such as `BC error: divide by zero`.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(RefusedKind::Failed, message)
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the protection of the cell that ran.
    #[must_use]
    pub fn protected_by(mut self, receipt: Option<Receipt>) -> Self {
        self.receipt = receipt.map(Box::new);
        self
    }

    /// Makes the refusal of a call that was cancelled before anything ran.
    pub fn cancelled() -> Self {
        Self::new(RefusedKind::Cancelled, "cancelled before it started")
    }
}

impl From<InvalidCall> for Refused {
    fn from(invalid: InvalidCall) -> Self {
        Self::new(RefusedKind::Arguments, invalid.to_string())
    }
}

impl From<Denial> for Refused {
    fn from(denial: Denial) -> Self {
        let message = denial.to_string();
        let hint = Some(denial.hint).filter(|hint| !hint.is_empty());
        Self { hint, ..Self::new(RefusedKind::Denied, message) }
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        let hint = failure.hint().map(str::to_owned);
        Self { hint, ..Self::new(RefusedKind::Failed, failure.to_string()) }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        if let Refusal::Denied(denial) = refusal {
            return denial.into();
        }
        Self { hint: refusal.hint(), ..Self::failed(refusal.to_string()) }
    }
}

impl From<CalcError> for Refused {
    fn from(error: CalcError) -> Self {
        let kind = match &error {
            CalcError::Refused => RefusedKind::Denied,
            CalcError::Invalid(_) | CalcError::Notation { .. } => RefusedKind::Arguments,
            CalcError::Cancelled => return Self::cancelled(),
            CalcError::Bc(_)
            | CalcError::Timeout(_)
            | CalcError::Limit(_)
            | CalcError::Internal(_)
            | CalcError::NoBc => RefusedKind::Failed,
        };
        let hint = error.hint().map(str::to_owned);
        Self { hint, ..Self::new(kind, error.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{NoJob, SessionError};

    #[test]
    fn a_reply_has_message_and_hint_apart_and_the_log_has_them_as_one_text() {
        let runs = SessionError::Runs { session: "s".to_owned(), job: "c1".to_owned() };
        for (refusal, message, hint) in [
            (
                Refusal::Session(runs),
                "the session `s` runs job c1",
                "use another `session`, or end it with `restart`",
            ),
            (
                Refusal::Job(NoJob::Unknown("c9".to_owned())),
                "there is no job `c9`",
                "bash_jobs lists them",
            ),
        ] {
            assert_eq!(refusal.in_full(), format!("{message}\nhint: {hint}"));
            assert_eq!(Refused::from(refusal), Refused::failed(message).with_hint(hint));
        }
    }
}
