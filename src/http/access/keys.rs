//! Public keys of an authorization server, from a JSON Web Key Set (RFC 7517), and signatures that they verify.
//!
//! A key has its algorithms from the file, never from a token (RFC 8725, section 3.1), and only algorithms of public keys
//! are known: a key of the file can be neither the secret of an HMAC nor ignored.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA256,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::{Map, Value};

use super::json;

/// Maximum number of keys in a file.
const MAX_KEYS: usize = 64;
/// Maximum length of a key's id, in bytes.
pub(super) const MAX_ID: usize = 256;
/// Bytes of the modulus of an RSA key, and its exponent: shorter moduli are weak, and longer ones are slow.
const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;
const EXPONENT: [u8; 3] = [1, 0, 1];
/// Bytes of a coordinate on the curves P-256 and Ed25519.
const COORDINATE_BYTES: usize = 32;
/// Parts of a key that only its owner has.
const PRIVATE_PARTS: [&str; 7] = ["d", "p", "q", "dp", "dq", "qi", "k"];

/// Algorithm of a signature (RFC 7518, section 3; RFC 8037).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Ps256,
    Es256,
    EdDsa,
}

impl Algorithm {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "PS256" => Some(Self::Ps256),
            "ES256" => Some(Self::Es256),
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// Fault in a file of keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    #[error("is no JSON Web Key Set: {0}")]
    Form(String),
    #[error("has more than {MAX_KEYS} keys")]
    TooMany,
    #[error("key {0} has parts of a private key, which do not belong here")]
    Private(usize),
    #[error("key {number} {fault}")]
    Key { number: usize, fault: &'static str },
    #[error("two keys have the same `kid`, or one has none, so the right one is not clear")]
    Ambiguous,
    #[error("has no key for RS256, PS256, ES256 or EdDSA")]
    None,
}

/// Public keys.
#[derive(Debug)]
pub struct PublicKeys(Vec<PublicKey>);

#[derive(Debug)]
struct PublicKey {
    id: Option<String>,
    /// The only algorithm of the key, if the file names one.
    algorithm: Option<Algorithm>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa {
        modulus: Vec<u8>,
    },
    /// Point on P-256, uncompressed.
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl PublicKeys {
    /// Reads a set of keys. Keys for other purposes or of other kinds are left out.
    ///
    /// # Errors
    /// A file from which it is not clear which key verifies what, or that has no key which can verify a token.
    pub fn read(text: &str) -> Result<Self, BadKeys> {
        let form = |error: &dyn std::fmt::Display| BadKeys::Form(error.to_string());
        let set = json::object(text.as_bytes()).map_err(|error| form(&error))?;
        let Some(Value::Array(keys)) = set.get("keys") else {
            return Err(form(&"there is no array `keys`"));
        };
        if keys.len() > MAX_KEYS {
            return Err(BadKeys::TooMany);
        }
        let mut usable = Vec::new();
        for (number, key) in (1..).zip(keys) {
            let Value::Object(key) = key else { return Err(form(&"a key is no object")) };
            if PRIVATE_PARTS.iter().any(|part| key.contains_key(*part)) {
                return Err(BadKeys::Private(number));
            }
            usable.extend(public_key(key).map_err(|fault| BadKeys::Key { number, fault })?);
        }
        let keys = Self(usable);
        match keys.0.is_empty() {
            true => Err(BadKeys::None),
            false if keys.are_clear() => Ok(keys),
            false => Err(BadKeys::Ambiguous),
        }
    }

    /// Returns true if each key has an id that no other has, or if there is one key only.
    fn are_clear(&self) -> bool {
        let mut ids: Vec<_> = self.0.iter().map(|key| key.id.as_deref()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.len() == self.0.len() && (self.0.len() == 1 || !ids.contains(&None))
    }

    /// Verifies a signature by the key of this id. A token without an id is of the only key.
    pub(super) fn verify(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let key = match (id, self.0.as_slice()) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(id), keys) => keys.iter().find(|key| key.id.as_deref() == Some(id)),
        };
        key.is_some_and(|key| key.verify(algorithm, message, signature))
    }
}

impl PublicKey {
    fn verify(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        if self.algorithm.is_some_and(|only| only != algorithm) {
            return false;
        }
        let rsa = |parameters: &RsaParameters, modulus: &[u8]| {
            let key = RsaPublicKeyComponents { n: modulus, e: &EXPONENT[..] };
            key.verify(parameters, message, signature)
        };
        let verified = match (algorithm, &self.material) {
            (Algorithm::Rs256, Material::Rsa { modulus }) => {
                rsa(&RSA_PKCS1_2048_8192_SHA256, modulus)
            }
            (Algorithm::Ps256, Material::Rsa { modulus }) => {
                rsa(&RSA_PSS_2048_8192_SHA256, modulus)
            }
            (Algorithm::Es256, Material::P256(point)) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            (Algorithm::EdDsa, Material::Ed25519(point)) => {
                UnparsedPublicKey::new(&ED25519, point).verify(message, signature)
            }
            // A key of another kind than the token claims.
            (
                Algorithm::Rs256 | Algorithm::Ps256 | Algorithm::Es256 | Algorithm::EdDsa,
                Material::Rsa { .. } | Material::P256(_) | Material::Ed25519(_),
            ) => return false,
        };
        verified.is_ok()
    }
}

/// Reads a key; `None` for one of another kind, or for another purpose than signatures.
fn public_key(key: &Map<String, Value>) -> Result<Option<PublicKey>, &'static str> {
    let text = |name: &str| match key.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err("has a value that is no text"),
    };
    let is_for_other = match key.get("key_ops") {
        None => false,
        Some(Value::Array(uses)) => !uses.iter().any(|one| one == "verify"),
        Some(_) => return Err("has `key_ops` that are no array"),
    };
    if is_for_other || text("use")?.is_some_and(|purpose| purpose != "sig") {
        return Ok(None);
    }
    let algorithm = match text("alg")? {
        None => None,
        Some(name) => match Algorithm::from_name(name) {
            Some(algorithm) => Some(algorithm),
            None => return Ok(None),
        },
    };
    let bytes = |name: &str| {
        let text = text(name)?.ok_or("lacks a part of its public key")?;
        URL_SAFE_NO_PAD.decode(text).map_err(|_| "has a part that is no base64url")
    };
    let coordinate = |name: &str| {
        let bytes = bytes(name)?;
        let is_whole = bytes.len() == COORDINATE_BYTES;
        is_whole.then_some(bytes).ok_or("has a coordinate of another length")
    };
    let material = match (text("kty")?, text("crv")?) {
        (Some("RSA"), _) => rsa(bytes("n")?, &bytes("e")?)?,
        (Some("EC"), Some("P-256")) => {
            Material::P256([&[4][..], &coordinate("x")?, &coordinate("y")?].concat())
        }
        (Some("OKP"), Some("Ed25519")) => Material::Ed25519(coordinate("x")?),
        _ => return Ok(None),
    };
    let id = text("kid")?.map(str::to_owned);
    if id.as_ref().is_some_and(|id| id.len() > MAX_ID) {
        return Err("has a `kid` that is too long");
    }
    Ok(Some(PublicKey { id, algorithm, material }))
}

fn rsa(modulus: Vec<u8>, exponent: &[u8]) -> Result<Material, &'static str> {
    // Some writers put a zero before a modulus, as in DER.
    let modulus = match modulus.split_first() {
        Some((0, rest)) => rest.to_vec(),
        _ => modulus,
    };
    if !MODULUS_BYTES.contains(&modulus.len()) {
        return Err("is an RSA key of less than 2048 bits, or of more than 8192");
    }
    match exponent == EXPONENT {
        true => Ok(Material::Rsa { modulus }),
        false => Err("is an RSA key with another exponent than 65537"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn encoded(bytes: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn read(keys: &Value) -> Result<usize, BadKeys> {
        PublicKeys::read(&json!({ "keys": keys }).to_string()).map(|keys| keys.0.len())
    }

    #[test]
    fn keys_of_signatures_are_kept_and_others_are_left_out() {
        let point = encoded(&[7; 32]);
        let right = json!({"kty": "OKP", "crv": "Ed25519", "x": point, "kid": "a"});
        assert_eq!(read(&json!([right])), Ok(1));
        let with = |name: &str, value: Value| {
            let mut key = right.clone();
            key.as_object_mut().expect("an object").insert(name.to_owned(), value);
            json!([right, key])
        };
        for (name, value) in [
            ("use", json!("enc")),
            ("alg", json!("HS256")),
            ("alg", json!("none")),
            ("kty", json!("oct")),
            ("crv", json!("X25519")),
            ("key_ops", json!(["sign"])),
        ] {
            assert_eq!(read(&with(name, value)), Ok(1), "{name}");
        }
        assert_eq!(read(&with("kid", json!("b"))), Ok(2));
        assert_eq!(read(&with("alg", json!("EdDSA"))), Err(BadKeys::Ambiguous));
        assert_eq!(read(&json!([{"kty": "oct", "kid": "a"}])), Err(BadKeys::None));
        assert_eq!(read(&json!([])), Err(BadKeys::None));
    }

    #[test]
    fn files_that_could_weaken_a_key_are_refused() {
        let rsa = |bytes: usize, exponent: &[u8]| json!([{"kty": "RSA", "n": encoded(&vec![0xff; bytes]), "e": encoded(exponent)}]);
        assert_eq!(read(&rsa(256, &EXPONENT)), Ok(1));
        for (keys, expected) in [
            (rsa(128, &EXPONENT), "less than 2048"),
            (rsa(2048, &EXPONENT), "more than 8192"),
            (rsa(256, &[3]), "exponent"),
            (json!([{"kty": "oct", "k": "AAAA"}]), "private"),
            (json!([{"kty": "OKP", "crv": "Ed25519", "x": "AA", "d": "AA"}]), "private"),
            (json!([{"kty": "OKP", "crv": "Ed25519", "x": "AA"}]), "another length"),
            (json!([{"kty": "OKP", "crv": "Ed25519", "x": "!"}]), "no base64url"),
            (json!([{"kty": "OKP", "crv": "Ed25519"}]), "lacks"),
            (json!([{"kty": 1}]), "no text"),
            (json!(vec![json!({}); MAX_KEYS + 1]), "more than 64"),
            (json!({}), "no array"),
        ] {
            let bad = read(&keys).expect_err(expected).to_string();
            assert!(bad.contains(expected), "{bad}");
        }
        assert!(PublicKeys::read(r#"{"keys": [], "keys": []}"#).is_err());
    }
}
