//! The name of a profile.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name of a profile that was loaded at start.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProfileName(String);

impl ProfileName {
    /// Accepts lower-case letters, digits and dashes, starting with a letter; at most 64 bytes.
    pub fn new(name: &str) -> Option<Self> {
        let well_formed = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.len() <= 64
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        well_formed.then(|| Self(name.to_owned()))
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
