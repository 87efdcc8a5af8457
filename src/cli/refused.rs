//! Refusals of the tools, converted for MCP: the message, and the remedy as a hint.

use crate::mcp::backend::{Refused, RefusedKind};
use crate::tools::Refusal;
use crate::tools::bc::CalcError;

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Denied(denial) => denial.into(),
            full @ (Refusal::QueueFull { .. }
            | Refusal::Unrecorded(_)
            | Refusal::Session(_)
            | Refusal::Job(_)) => {
                let text = full.to_string();
                let (message, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
                Self::failed(message).with_hint(hint)
            }
        }
    }
}

impl From<CalcError> for Refused {
    fn from(error: CalcError) -> Self {
        let kind = match &error {
            CalcError::Refused(refusal) => return refusal.clone().into(),
            CalcError::Invalid(_) => RefusedKind::Arguments,
            CalcError::Cancelled => return Self::cancelled(),
            CalcError::Bc(_)
            | CalcError::Timeout(_)
            | CalcError::Limit(_)
            | CalcError::Internal(_) => RefusedKind::Failed,
        };
        let text = error.with_hint();
        match text.split_once("\nhint: ") {
            Some((message, hint)) => Self::new(kind, message).with_hint(hint),
            None => Self::new(kind, text),
        }
    }
}
