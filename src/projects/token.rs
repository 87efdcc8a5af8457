//! The secret that a proxy in front of the server shows with each request.
//!
//! Only its hash is kept: processes that are cloned later have a copy of this memory.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::SettingError;

/// Variable with the secret.
const NAME: &str = "MCPBASH_REMOTE_TOKEN";
/// Variables with the keys of `_meta` that it is shown under, and what they are without.
const KEYS: [(&str, &str); 2] = [
    ("MCPBASH_REMOTE_TOKEN_KEY", "mcpbash/remoteToken"),
    ("MCPBASH_REMOTE_TOKEN_FALLBACK_KEY", "remoteToken"),
];
/// Shortest secret in characters.
const SHORTEST: usize = 32;

/// A secret to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteToken {
    hash: [u8; 32],
    /// Keys of `_meta`.
    keys: Vec<String>,
}

impl RemoteToken {
    /// Reads the secret, if one is set, and wipes the text of it.
    ///
    /// # Errors
    /// A secret that can be guessed.
    pub(crate) fn of(get: &impl Fn(&str) -> Option<String>) -> Result<Option<Self>, SettingError> {
        let Some(mut text) = get(NAME).filter(|text| !text.is_empty()).map(String::into_bytes)
        else {
            return Ok(None);
        };
        let is_short = text.len() < SHORTEST;
        let hash = Sha256::digest(&text).into();
        text.fill(0);
        std::hint::black_box(&text);
        if is_short {
            let message = format!("a secret of at least {SHORTEST} characters is wanted");
            return Err(SettingError { name: NAME, message });
        }
        let key = |(name, usual): (&str, &str)| {
            get(name).filter(|key| !key.is_empty()).unwrap_or_else(|| usual.to_owned())
        };
        Ok(Some(Self { hash, keys: KEYS.into_iter().map(key).collect() }))
    }

    /// Returns true if this `_meta` of a request shows the secret. Hashes are compared, so that the time
    /// depends on no byte of the secret.
    pub fn accepts(&self, meta: &Map<String, Value>) -> bool {
        let mut shown = self.keys.iter().filter_map(|key| meta.get(key)?.as_str());
        shown.any(|shown| {
            let hash: [u8; 32] = Sha256::digest(shown.as_bytes()).into();
            hash.iter().zip(&self.hash).fold(0, |all, (one, other)| all | (one ^ other)) == 0
        })
    }

    /// Takes the secret out of a `_meta`.
    pub(crate) fn strip(meta: &mut Map<String, Value>, token: Option<&Self>) {
        meta.remove(KEYS[0].1);
        for key in token.iter().flat_map(|token| &token.keys) {
            meta.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn token(set: &[(&str, &str)]) -> Result<Option<RemoteToken>, SettingError> {
        RemoteToken::of(&|name: &str| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn only_the_whole_secret_under_one_of_its_keys_is_accepted() {
        let token = token(&[(NAME, SECRET)]).expect("long").expect("set");
        let accepts = |meta: Value| token.accepts(meta.as_object().expect("an object"));
        assert!(accepts(json!({"mcpbash/remoteToken": SECRET})));
        assert!(accepts(json!({"remoteToken": SECRET})));
        for bad in [
            json!({}),
            json!({"other": SECRET}),
            json!({"remoteToken": [SECRET]}),
            json!({"remoteToken": &SECRET[1..]}),
            json!({"remoteToken": format!("{SECRET}0")}),
        ] {
            assert!(!accepts(bad.clone()), "{bad}");
        }
        assert!(!format!("{token:?}").contains(SECRET));
    }

    #[test]
    fn a_short_secret_is_refused_and_an_absent_one_is_not() {
        assert_eq!(token(&[]), Ok(None));
        assert!(token(&[(NAME, &SECRET[1..])]).is_err());
    }
}
