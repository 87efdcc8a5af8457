//! Errors about a value of a file, with its place.

use std::ops::Range;

/// A value that is not what its key takes, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadError {
    pub(super) span: Range<usize>,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl ReadError {
    pub fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), hint: None }
    }

    /// Adds a hint to the error.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Makes the error about a name that is not one of `names`.
    pub(super) fn unknown(span: Range<usize>, what: &str, name: &str, names: &[&str]) -> Self {
        let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let expected = match quoted.as_slice() {
            [] => "nothing".to_owned(),
            [one] => one.clone(),
            [one, other] => format!("{one} or {other}"),
            all => format!("one of {}", all.join(", ")),
        };
        Self::new(span, format!("unknown {what} `{name}`, expected {expected}"))
    }
}
