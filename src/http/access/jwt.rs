//! Access tokens of an authorization server: JSON Web Tokens (RFC 7519, RFC 9068) that are verified with public keys
//! from a file.
//!
//! The order is that of RFC 8725: the form, the algorithm and the key, the signature, and only then what the token
//! claims. Nothing of a token is fetched, opened or logged.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::json;
use super::keys::{Algorithm, MAX_ID, PublicKeys};
use config::jwt::{JwtSettings, ScopeSetting};
use config::policy::Principal;

/// Maximum length of a token, in bytes.
pub(super) const MAX_TOKEN: usize = 8 << 10;
/// Difference between the clocks of the authorization server and of this machine.
const CLOCK_SKEW: Duration = Duration::from_secs(60);
/// Latest end of a token that is kept, in seconds since 1970: some thousand years ahead.
const MAX_END: f64 = 1e11;
/// Maximum length of a subject, in bytes.
const MAX_SUBJECT: usize = 128;
/// Types of tokens that are access tokens (RFC 9068), or of no special kind.
const TYPES: [&str; 4] = ["at+jwt", "application/at+jwt", "jwt", "application/jwt"];

/// Reason why a token names no client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenFault {
    /// The text is no token, or is not signed by a key of the file.
    Forged,
    /// The token is signed by a key of the file, and not valid here.
    Unfit(&'static str),
    /// The token is valid, and has no scope that stands for a client.
    Scope,
}

/// Verifies tokens.
#[derive(Debug)]
pub struct JwtVerifier {
    issuer: String,
    audience: String,
    keys: PublicKeys,
    clients: Vec<ScopeSetting>,
}

impl JwtVerifier {
    pub fn new(settings: &JwtSettings, keys: PublicKeys) -> Self {
        let JwtSettings { issuer, audience, clients, .. } = settings.clone();
        Self { issuer, audience, keys, clients }
    }

    /// Returns the client of a token, and the time from which the token is refused.
    ///
    /// # Errors
    /// The reason why it names no client.
    pub(super) fn client(
        &self,
        token: &[u8],
        now: SystemTime,
    ) -> Result<(Principal, SystemTime), TokenFault> {
        let claims = self.signed_claims(token).ok_or(TokenFault::Forged)?;
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (subject, end) = self.valid_subject(&claims, now).map_err(TokenFault::Unfit)?;
        let scopes = scopes(&claims);
        let client = self.clients.iter().find(|client| scopes.contains(&client.scope.as_str()));
        let client = client.ok_or(TokenFault::Scope)?;
        Ok((Principal::subject(&client.client, subject), end))
    }

    /// Returns the claims of a token that a key of the file has signed.
    fn signed_claims(&self, token: &[u8]) -> Option<Map<String, Value>> {
        let token = std::str::from_utf8(token).ok().filter(|token| token.len() <= MAX_TOKEN)?;
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        // The alphabet has no dot, so a fourth part is refused here.
        let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let header = json::object(&decoded(header)?).ok()?;
        let algorithm = algorithm(&header)?;
        let id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) if id.len() <= MAX_ID => Some(id.as_str()),
            Some(_) => return None,
        };
        let signature = decoded(signature)?;
        let claims = decoded(claims)?;
        let is_signed = self.keys.verify(id, algorithm, signed.as_bytes(), &signature);
        json::object(&claims).ok().filter(|_| is_signed)
    }

    /// Checks that a token was made for this server and is valid now. Returns its subject, and its end.
    fn valid_subject<'c>(
        &self,
        claims: &'c Map<String, Value>,
        now: Duration,
    ) -> Result<(&'c str, SystemTime), &'static str> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if text("iss") != Some(self.issuer.as_str()) {
            return Err("the token is of another issuer");
        }
        if !self.is_for_us(claims.get("aud")) {
            return Err("the token is for another audience");
        }
        // The owner of a key must prove that it has it (RFC 7800), which is not checked here.
        if claims.contains_key("cnf") {
            return Err("the token is bound to a key");
        }
        let latest = now.saturating_add(CLOCK_SKEW).as_secs_f64();
        let earliest = now.saturating_sub(CLOCK_SKEW).as_secs_f64();
        let time = |name: &str| claims.get(name).map(Value::as_f64);
        let end = match time("exp") {
            Some(Some(end)) if end > earliest => refused_from(end),
            Some(Some(_)) => return Err("the token has expired"),
            None | Some(None) => return Err("the token has no end"),
        };
        match time("nbf") {
            None => {}
            Some(Some(begin)) if begin <= latest => {}
            Some(_) => return Err("the token is not valid yet"),
        }
        let is_fit = |subject: &&str| {
            (1..=MAX_SUBJECT).contains(&subject.len())
                && subject.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let subject = text("sub").filter(is_fit);
        let subject = subject.ok_or("the token has no subject of 1 to 128 visible characters")?;
        Ok((subject, end))
    }

    fn is_for_us(&self, audience: Option<&Value>) -> bool {
        match audience {
            Some(Value::String(one)) => *one == self.audience,
            Some(Value::Array(all)) => all.iter().any(|one| *one == self.audience),
            _ => false,
        }
    }
}

/// Returns the time from which a token with this end, in seconds since 1970, is refused. A later end than a clock can
/// show is the latest.
fn refused_from(end: f64) -> SystemTime {
    let end = Duration::try_from_secs_f64(end.clamp(0.0, MAX_END)).unwrap_or_default();
    UNIX_EPOCH + end + CLOCK_SKEW
}

/// Returns the algorithm of a token, if its header asks for nothing that is not done here.
fn algorithm(header: &Map<String, Value>) -> Option<Algorithm> {
    let is_plain = !header.contains_key("crit") && !header.contains_key("b64");
    let is_access_token = match header.get("typ") {
        None => true,
        Some(Value::String(kind)) => TYPES.iter().any(|known| kind.eq_ignore_ascii_case(known)),
        Some(_) => false,
    };
    let name = header.get("alg").and_then(Value::as_str)?;
    Algorithm::from_name(name).filter(|_| is_plain && is_access_token)
}

/// Returns the scopes of a token: `scope` as RFC 9068 has it, or else `scp`, which some servers write.
fn scopes(claims: &Map<String, Value>) -> Vec<&str> {
    match claims.get("scope").or_else(|| claims.get("scp")) {
        Some(Value::String(all)) => all.split(' ').filter(|scope| !scope.is_empty()).collect(),
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    /// Two key pairs, and a verifier that knows their public keys.
    struct Lab {
        curve: EcdsaKeyPair,
        edwards: Ed25519KeyPair,
        verifier: JwtVerifier,
    }

    fn encoded(bytes: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    impl Lab {
        fn new() -> Self {
            let random = SystemRandom::new();
            let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let made = EcdsaKeyPair::generate_pkcs8(kind, &random).expect("a key");
            let curve = EcdsaKeyPair::from_pkcs8(kind, made.as_ref(), &random).expect("a key");
            let made = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
            let edwards = Ed25519KeyPair::from_pkcs8(made.as_ref()).expect("a key");
            let (x, y) = curve.public_key().as_ref().split_at(1).1.split_at(32);
            let keys = json!({"keys": [
                {"kty": "EC", "crv": "P-256", "x": encoded(x), "y": encoded(y), "kid": "p", "alg": "ES256"},
                {"kty": "OKP", "crv": "Ed25519", "x": encoded(edwards.public_key().as_ref()), "kid": "e"},
            ]});
            let scope = |client: &str, scope: &str| ScopeSetting {
                client: client.to_owned(),
                scope: scope.to_owned(),
            };
            let settings = JwtSettings {
                issuer: "https://login.example".to_owned(),
                audience: "https://shell.example/mcp".to_owned(),
                keys: "/k".into(),
                resource: None,
                clients: vec![scope("trusted", "all"), scope("agents", "shell")],
            };
            let keys = PublicKeys::read(&keys.to_string()).expect("right");
            Self { curve, edwards, verifier: JwtVerifier::new(&settings, keys) }
        }

        fn signed(&self, header: &Value, claims: &Value) -> String {
            self.signed_text(&header.to_string(), &claims.to_string())
        }

        /// Signs with the key that the header names.
        fn signed_text(&self, header: &str, claims: &str) -> String {
            let text = format!("{}.{}", encoded(header.as_bytes()), encoded(claims.as_bytes()));
            let signature = match header.contains("\"kid\":\"p\"") {
                true => {
                    let random = SystemRandom::new();
                    let signed = self.curve.sign(&random, text.as_bytes()).expect("signed");
                    encoded(signed.as_ref())
                }
                false => encoded(self.edwards.sign(text.as_bytes()).as_ref()),
            };
            format!("{text}.{signature}")
        }

        fn client(&self, token: &str) -> Result<String, TokenFault> {
            let now = UNIX_EPOCH + Duration::from_secs(NOW);
            let client = self.verifier.client(token.as_bytes(), now);
            client.map(|(client, _)| client.name().to_owned())
        }
    }

    fn claims() -> Value {
        json!({
            "iss": "https://login.example", "aud": "https://shell.example/mcp",
            "sub": "alice", "scope": "openid shell", "exp": NOW + 600,
        })
    }

    /// The claims with another value of one of them; null removes it.
    fn with(name: &str, value: Value) -> Value {
        let Value::Object(mut all) = claims() else { panic!("an object") };
        if value.is_null() {
            all.remove(name);
        } else {
            all.insert(name.to_owned(), value);
        }
        Value::Object(all)
    }

    #[test]
    fn a_token_of_each_kind_of_key_names_its_subject() {
        let lab = Lab::new();
        for header in [
            json!({"alg": "ES256", "kid": "p"}),
            json!({"alg": "EdDSA", "kid": "e", "typ": "at+JWT"}),
            json!({"alg": "Ed25519", "kid": "e", "typ": "JWT"}),
        ] {
            let client = lab.client(&lab.signed(&header, &claims()));
            assert_eq!(client.as_deref(), Ok("agents/alice"), "{header}");
        }
    }

    #[test]
    fn what_the_header_asks_for_never_weakens_the_signature() {
        let lab = Lab::new();
        let right = lab.signed(&json!({"alg": "EdDSA", "kid": "e"}), &claims());
        assert!(lab.client(&right).is_ok());
        for header in [
            json!({"alg": "none", "kid": "e"}),
            json!({"alg": "NONE", "kid": "e"}),
            json!({"alg": "HS256", "kid": "e"}),
            // The key of another algorithm.
            json!({"alg": "ES256", "kid": "e"}),
            json!({"alg": "RS256", "kid": "e"}),
            json!({"alg": "EdDSA", "kid": "p"}),
            json!({"alg": "eddsa", "kid": "e"}),
            json!({"alg": ["EdDSA"], "kid": "e"}),
            json!({"kid": "e"}),
            // No key, or an id that no key has.
            json!({"alg": "EdDSA"}),
            json!({"alg": "EdDSA", "kid": "x"}),
            json!({"alg": "EdDSA", "kid": "../../../../dev/null"}),
            json!({"alg": "EdDSA", "kid": "e\u{0}"}),
            json!({"alg": "EdDSA", "kid": 1}),
            json!({"alg": "EdDSA", "kid": "e".repeat(MAX_ID + 1)}),
            // Extensions that would have to be understood.
            json!({"alg": "EdDSA", "kid": "e", "crit": ["exp"], "exp": NOW}),
            json!({"alg": "EdDSA", "kid": "e", "crit": null}),
            json!({"alg": "EdDSA", "kid": "e", "b64": false}),
            // Tokens for another purpose.
            json!({"alg": "EdDSA", "kid": "e", "typ": "dpop+jwt"}),
            json!({"alg": "EdDSA", "kid": "e", "typ": "logout+jwt"}),
        ] {
            let token = lab.signed(&header, &claims());
            assert_eq!(lab.client(&token), Err(TokenFault::Forged), "{header}");
        }
        // Keys and addresses of keys in a token are not used.
        let own = json!({"alg": "EdDSA", "kid": "e", "jku": "file:///k", "jwk": {"kty": "oct", "k": "AA"}, "x5u": "https://x"});
        assert!(lab.client(&lab.signed(&own, &claims())).is_ok());
    }

    #[test]
    fn another_text_than_the_signed_one_is_refused() {
        let lab = Lab::new();
        let right = lab.signed(&json!({"alg": "EdDSA", "kid": "e"}), &claims());
        assert!(lab.client(&right).is_ok());
        let parts: Vec<&str> = right.split('.').collect();
        let [header, body, signature] = parts[..] else { panic!("three parts") };
        let other = encoded(with("sub", json!("bob")).to_string().as_bytes());
        let hmac_key = encoded(lab.edwards.public_key().as_ref());
        for token in [
            String::new(),
            "..".to_owned(),
            format!("{header}.{body}"),
            format!("{header}.{body}."),
            format!("{header}.{other}.{signature}"),
            format!("{header}.{body}.{signature}.x"),
            format!("x.{header}.{body}.{signature}"),
            format!("{header}.{body}.{signature}="),
            format!("{header}.{body}.{hmac_key}"),
            format!("{header}.{body} .{signature}"),
            format!("{}.{body}.{signature}", encoded(b"{\"alg\":\"none\"}")),
            format!("{header}.{body}.{}", &signature[1..]),
        ] {
            assert_eq!(lab.client(&token), Err(TokenFault::Forged), "{token}");
        }
        let long = with("pad", json!("x".repeat(MAX_TOKEN)));
        let long = lab.signed(&json!({"alg": "EdDSA", "kid": "e"}), &long);
        assert_eq!(lab.client(&long), Err(TokenFault::Forged));
    }

    #[test]
    fn repeated_claims_are_refused() {
        let lab = Lab::new();
        let header = r#"{"alg":"EdDSA","kid":"e"}"#;
        let right = claims().to_string();
        assert!(lab.client(&lab.signed_text(header, &right)).is_ok());
        let twice = right.replacen('{', "{\"sub\":\"root\",", 1);
        assert_eq!(lab.client(&lab.signed_text(header, &twice)), Err(TokenFault::Forged));
        let twice = header.replacen('{', "{\"alg\":\"EdDSA\",", 1);
        assert_eq!(lab.client(&lab.signed_text(&twice, &right)), Err(TokenFault::Forged));
    }

    #[test]
    fn a_token_is_for_this_server_and_for_a_time() {
        let lab = Lab::new();
        let client = |name: &str, value: Value| {
            lab.client(&lab.signed(&json!({"alg": "EdDSA", "kid": "e"}), &with(name, value)))
        };
        // Within the difference of the clocks, and beyond it.
        assert!(client("exp", json!(NOW - 59)).is_ok());
        assert!(client("nbf", json!(NOW + 60)).is_ok());
        assert!(client("exp", json!(1.9e9)).is_ok());
        let ours = "https://shell.example/mcp";
        assert!(client("aud", json!(["x", ours])).is_ok());
        for (name, value) in [
            ("exp", json!(NOW - 60)),
            ("exp", json!(null)),
            ("exp", json!("1900000000")),
            ("nbf", json!(NOW + 61)),
            ("nbf", json!("0")),
            ("iss", json!("https://login.example/")),
            ("iss", json!(["https://login.example"])),
            ("iss", json!(null)),
            ("aud", json!("https://shell.example/mcp/")),
            ("aud", json!(["x"])),
            ("aud", json!({"a": ours})),
            ("aud", json!(null)),
            ("sub", json!(null)),
            ("sub", json!("")),
            ("sub", json!("a b")),
            ("sub", json!("a\nb")),
            ("sub", json!("x".repeat(MAX_SUBJECT + 1))),
            ("cnf", json!({"jkt": "x"})),
        ] {
            let fault = client(name, value.clone());
            assert!(matches!(fault, Err(TokenFault::Unfit(_))), "{name} {value}: {fault:?}");
        }
    }

    #[test]
    fn a_token_is_refused_from_the_time_that_is_returned() {
        let lab = Lab::new();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let token = |end| lab.signed(&json!({"alg": "EdDSA", "kid": "e"}), &with("exp", end));
        let until = |token: &str, now| lab.verifier.client(token.as_bytes(), now).map(|of| of.1);
        let soon = token(json!(NOW + 10));
        assert_eq!(until(&soon, at(NOW)), Ok(at(NOW + 70)));
        assert!(until(&soon, at(NOW + 69)).is_ok());
        assert_eq!(until(&soon, at(NOW + 70)), Err(TokenFault::Unfit("the token has expired")));
        // An end that no clock can show.
        let far = until(&token(json!(1e300)), at(NOW));
        assert!(far.is_ok_and(|end| end > at(NOW * 10)));
    }

    #[test]
    fn the_first_scope_of_the_configuration_decides() {
        let lab = Lab::new();
        let client = |name: &str, value: Value| {
            let mut claims = with("scope", Value::Null);
            let all = claims.as_object_mut().expect("an object");
            all.insert(name.to_owned(), value);
            lab.client(&lab.signed(&json!({"alg": "ES256", "kid": "p"}), &claims))
        };
        assert_eq!(client("scope", json!("shell all")).as_deref(), Ok("trusted/alice"));
        assert_eq!(client("scp", json!(["shell"])).as_deref(), Ok("agents/alice"));
        for (name, value) in [
            ("scope", json!("shells xshell shell:read")),
            ("scope", json!("")),
            ("scope", json!(1)),
            ("roles", json!("shell")),
        ] {
            assert_eq!(client(name, value.clone()), Err(TokenFault::Scope), "{name} {value}");
        }
    }
}
