//! Logs access tokens that are signed, and not valid here: each once, and a limited number each minute.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use crate::throttle::LogThrottle;

/// Number of logged tokens that are remembered.
const MAX_REMEMBERED: usize = 64;

/// Tokens that were logged.
#[derive(Debug, Default)]
pub(super) struct UnfitTokens {
    /// Hashes of the last of them, the newest last.
    logged: Mutex<VecDeque<[u8; 32]>>,
    throttle: LogThrottle,
}

impl UnfitTokens {
    /// Logs the reason why a token was refused, and nothing of the token.
    pub(super) fn note(&self, token: &[u8], address: IpAddr, reason: &str) {
        if let Some(left_out) = self.is_to_be_logged(token) {
            tracing::warn!(%address, left_out, "an access token was refused: {reason}");
        }
    }

    /// Returns the number of requests that were left out before, if this token is to be logged: it is not among the last
    /// ones.
    fn is_to_be_logged(&self, token: &[u8]) -> Option<u64> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.contains(&digest) {
            return None;
        }
        let left_out = self.throttle.passes()?;
        if logged.len() >= MAX_REMEMBERED {
            logged.pop_front();
        }
        logged.push_back(digest);
        Some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_logged_once_and_of_many_a_few() {
        let tokens = UnfitTokens::default();
        let is_logged = |token: &str| tokens.is_to_be_logged(token.as_bytes()).is_some();
        assert!(is_logged("a") && is_logged("b"));
        assert!((0..1000).all(|_| !is_logged("a") && !is_logged("b")));
        let many = (0..1000).filter(|number| is_logged(&number.to_string())).count();
        assert!((8..=9).contains(&many), "ten in a minute: {many}");
        assert!(tokens.logged.lock().expect("no panic").len() <= 11);
    }
}
