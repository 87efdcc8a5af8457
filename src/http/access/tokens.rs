//! Bearer tokens, each of which names a client. They are compared in constant time.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::ClientRights;
use config::policy::Principal;

/// Minimum characters of a token.
const MIN_CHARACTERS: usize = 32;
/// Maximum characters of a token.
const MAX_CHARACTERS: usize = 1024;

/// Fault in a token as it was configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    #[error("a token has {MIN_CHARACTERS} characters at least")]
    Short,
    #[error("a token has {MAX_CHARACTERS} characters at most")]
    Long,
    #[error("a token has visible ASCII characters and no spaces")]
    Characters,
}

/// A token's hash, and the client that it stands for.
#[derive(Clone)]
pub struct Token {
    digest: [u8; 32],
    pub principal: Principal,
    pub rights: ClientRights,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not even the hash: a log of it could be searched for.
        f.debug_struct("Token").field("principal", &self.principal).finish_non_exhaustive()
    }
}

impl Token {
    /// Makes the token of a client; only its hash is kept.
    ///
    /// # Errors
    /// A token that is too short, too long, or not of visible ASCII characters.
    pub fn new(secret: &str, principal: Principal) -> Result<Self, BadToken> {
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadToken::Characters);
        }
        match secret.len() {
            short if short < MIN_CHARACTERS => Err(BadToken::Short),
            long if long > MAX_CHARACTERS => Err(BadToken::Long),
            _ => Ok(Self {
                digest: digest(secret.as_bytes()),
                principal,
                rights: ClientRights::Agent,
            }),
        }
    }
}

impl Token {
    /// Makes the token of a hash, which [`Token::digest`] of another process returned.
    #[must_use]
    pub fn of_digest(digest: [u8; 32], principal: Principal, rights: ClientRights) -> Self {
        Self { digest, principal, rights }
    }

    /// Sets the rights of the client.
    #[must_use]
    pub fn with_rights(self, rights: ClientRights) -> Self {
        Self { rights, ..self }
    }

    /// Returns the SHA-256 of the token's text.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Returns true for a token of the same text.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.digest.ct_eq(&other.digest).into()
    }

    /// Orders tokens of the configuration, so that equal ones are neighbours.
    #[must_use]
    pub fn compare(&self, other: &Self) -> std::cmp::Ordering {
        self.digest.cmp(&other.digest)
    }
}

fn digest(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Returns the token that a header `Authorization` presents. It is compared with every configured token, so that the
/// time does not depend on which one matches.
pub(crate) fn presented<'t>(tokens: &'t [Token], header: &[u8]) -> Option<&'t Token> {
    let secret = bearer(header).filter(|secret| secret.len() <= MAX_CHARACTERS)?;
    let presented = digest(secret);
    let mut found = None;
    for token in tokens {
        if bool::from(token.digest.ct_eq(&presented)) {
            found = Some(token);
        }
    }
    found
}

/// Returns the credentials of the scheme Bearer (RFC 6750), whose name has no case.
pub fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = header.split_at_checked(7)?;
    let secret = rest.trim_ascii();
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer ");
    (is_bearer && !secret.is_empty()).then_some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn token(secret: &str) -> Result<Token, BadToken> {
        Token::new(secret, Principal::named("alice"))
    }

    #[test]
    fn a_token_is_long_enough_and_visible() {
        assert!(token(SECRET).is_ok());
        let error_of = |secret: &str| token(secret).err();
        assert_eq!(error_of(&SECRET[1..]), Some(BadToken::Short));
        assert_eq!(error_of(&SECRET.repeat(33)), Some(BadToken::Long));
        assert_eq!(error_of(&format!("{SECRET} x")), Some(BadToken::Characters));
        assert_eq!(error_of(&format!("{SECRET}\u{e9}")), Some(BadToken::Characters));
    }

    #[test]
    fn only_the_whole_token_is_known() {
        let tokens = [token(SECRET).expect("long enough")];
        let known = |header: &str| presented(&tokens, header.as_bytes()).is_some();
        assert!(known(&format!("Bearer {SECRET}")));
        assert!(known(&format!("bearer   {SECRET} ")), "the scheme has no case");
        for not in [
            String::new(),
            "Bearer".to_owned(),
            "Bearer ".to_owned(),
            SECRET.to_owned(),
            format!("Basic {SECRET}"),
            format!("Bearer {SECRET}0"),
            format!("Bearer {}", &SECRET[1..]),
            format!("Bearer {}", SECRET.to_uppercase()),
            format!("Bearer {}", SECRET.repeat(33)),
        ] {
            assert!(!known(&not), "{not}");
        }
    }

    #[test]
    fn a_token_is_not_shown() {
        let shown = format!("{:?}", token(SECRET).expect("long enough"));
        assert!(!shown.contains(SECRET) && shown.contains("alice"), "{shown}");
    }
}
