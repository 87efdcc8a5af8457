//! The name of a profile.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Returns true for lower-case letters, digits and dashes: at least one, and at most `max`.
pub fn is_dashed_word(text: &str, max: usize) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=max).contains(&text.len()) && text.bytes().all(fits)
}

/// Returns true for such a word that starts with a letter.
pub(super) fn is_word(text: &str, max: usize) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase()) && is_dashed_word(text, max)
}

/// The name of a profile that was loaded at start.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProfileName(String);

impl ProfileName {
    /// Accepts lower-case letters, digits and dashes, starting with a letter; at most 64 bytes.
    pub fn new(name: &str) -> Option<Self> {
        is_word(name, 64).then(|| Self(name.to_owned()))
    }

    /// Returns the name that stands for the absence of a profile.
    pub fn none() -> Self {
        Self("none".to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
