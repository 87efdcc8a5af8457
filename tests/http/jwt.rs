//! Access tokens of an authorization server: keys of RSA and of curves, what leads clients to the authorization server,
//! and what one subject sees of another.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::client::{ALICE, Answer, Server, bearer, call, initialize, secret};

const TOML: &str = "[http.jwt]\nissuer = \"https://login.example\"\naudience = \"https://shell.example/mcp\"\n\
                    keys = \"HOME/jwks\"\n[[http.jwt.clients]]\nclient = \"agents\"\nscope = \"shell\"\n\
                    [[http.tokens]]\nclient = \"ci\"\nfile = \"HOME/ci\"\n";
const METADATA: &str = "/.well-known/oauth-protected-resource/mcp";

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Runs openssl with this input; returns its output.
fn openssl(arguments: &[&str], input: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut command = Command::new("openssl");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("openssl runs");
    child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{arguments:?}");
    output.stdout
}

/// Makes private keys of an authorization server, and its public keys.
fn issue_keys(home: &Path) {
    let at = |name: &str| home.join(name).display().to_string();
    let bits = "rsa_keygen_bits:2048";
    openssl(&["genpkey", "-algorithm", "RSA", "-pkeyopt", bits, "-out", &at("rsa")], b"");
    let curve = "ec_paramgen_curve:prime256v1";
    openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", curve, "-out", &at("ec")], b"");
    openssl(&["genpkey", "-algorithm", "ED25519", "-out", &at("ed")], b"");
    let public =
        |name: &str| openssl(&["pkey", "-in", &at(name), "-pubout", "-outform", "DER"], b"");
    let modulus = openssl(&["rsa", "-in", &at("rsa"), "-noout", "-modulus"], b"");
    let modulus = String::from_utf8(modulus).expect("text");
    let digits = modulus.trim().trim_start_matches("Modulus=");
    let modulus: Vec<u8> = (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits"))
        .collect();
    let ec = public("ec");
    let (x, y) = ec[ec.len() - 64..].split_at(32);
    let ed = public("ed");
    let keys = json!({"keys": [
        {"kty": "RSA", "kid": "rsa", "use": "sig", "n": encoded(&modulus), "e": "AQAB"},
        {"kty": "EC", "kid": "ec", "crv": "P-256", "alg": "ES256", "x": encoded(x), "y": encoded(y)},
        {"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": encoded(&ed[ed.len() - 32..])},
    ]});
    fs::write(home.join("jwks"), keys.to_string()).expect("written");
}

/// Signs with a key of the authorization server.
fn sign(home: &Path, algorithm: &str, text: &[u8]) -> Vec<u8> {
    let at = |name: &str| home.join(name).display().to_string();
    match algorithm {
        "RS256" => openssl(&["dgst", "-sha256", "-sign", &at("rsa")], text),
        "PS256" => {
            let padding = ["-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:32"];
            openssl(&[&["dgst", "-sha256", "-sign", &at("rsa")], &padding[..]].concat(), text)
        }
        "ES256" => fixed(&openssl(&["dgst", "-sha256", "-sign", &at("ec")], text)),
        "EdDSA" => {
            fs::write(home.join("text"), text).expect("written");
            let input = at("text");
            openssl(&["pkeyutl", "-sign", "-rawin", "-inkey", &at("ed"), "-in", &input], b"")
        }
        // The text of the public keys as the key of an HMAC, which every client has.
        "HS256" => {
            let keys = fs::read_to_string(home.join("jwks")).expect("keys");
            openssl(&["dgst", "-sha256", "-hmac", &keys, "-binary"], text)
        }
        _ => Vec::new(),
    }
}

/// Turns a signature in DER, two numbers, into two numbers of 32 bytes.
fn fixed(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut whole = Vec::new();
    for _ in 0..2 {
        let length = usize::from(rest[1]);
        let number = &rest[2..2 + length];
        let number = &number[number.len().saturating_sub(32)..];
        whole.extend(std::iter::repeat_n(0, 32 - number.len()).chain(number.iter().copied()));
        rest = &rest[2 + length..];
    }
    whole
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs()
}

fn claims(subject: &str) -> Value {
    json!({
        "iss": "https://login.example", "aud": ["https://shell.example/mcp"], "sub": subject,
        "scope": "openid shell", "iat": now(), "nbf": now(), "exp": now() + 300,
    })
}

fn signed(home: &Path, algorithm: &str, key: &str, claims: &Value) -> String {
    let header = json!({"alg": algorithm, "kid": key, "typ": "at+jwt"}).to_string();
    let text = format!("{}.{}", encoded(header.as_bytes()), encoded(claims.to_string().as_bytes()));
    let signature = sign(home, algorithm, text.as_bytes());
    format!("{text}.{}", encoded(&signature))
}

fn started() -> Server {
    Server::prepared(TOML, &[], |home, _| {
        issue_keys(home);
        secret(&home.join("ci"), ALICE);
    })
}

impl Server {
    fn token(&self, subject: &str) -> String {
        signed(self.home.path(), "EdDSA", "ed", &claims(subject))
    }

    fn with(&self, token: &str) -> Answer {
        self.ask("GET", "/tools", &[("authorization", &bearer(token))], "")
    }
}

#[test]
fn each_algorithm_of_public_keys_is_taken_and_no_other() {
    let server = started();
    let home = server.home.path();
    for (algorithm, key) in [("RS256", "rsa"), ("PS256", "rsa"), ("ES256", "ec"), ("EdDSA", "ed")] {
        let token = signed(home, algorithm, key, &claims("alice"));
        assert_eq!(server.with(&token).status, 200, "{algorithm}");
    }
    for (algorithm, key) in
        [("HS256", "rsa"), ("HS256", "ed"), ("none", "ed"), ("RS256", "ec"), ("ES256", "ed")]
    {
        let token = signed(home, algorithm, key, &claims("alice"));
        let refused = server.with(&token);
        assert_eq!(refused.status, 401, "{algorithm} {key}");
        let challenge = refused.header("www-authenticate").unwrap_or_default();
        assert!(challenge.contains("error=\"invalid_token\""), "{challenge}");
        let line = server.said("a request had a wrong token");
        assert!(!line.contains(&token[..20]), "{line}");
    }
    // A token from a file is valid next to them.
    assert_eq!(server.with(ALICE).status, 200);
}

#[test]
fn a_client_without_a_token_is_led_to_the_authorization_server() {
    let server = started();
    let refused = server.mcp(&[], &initialize());
    assert_eq!(refused.status, 401);
    // The name of the server is that of its configuration, never that of the request.
    let expected = format!(
        "Bearer realm=\"cofferdam\", resource_metadata=\"https://shell.example{METADATA}\", scope=\"shell\""
    );
    assert_eq!(refused.header("www-authenticate"), Some(expected.as_str()));
    for path in [METADATA, "/.well-known/oauth-protected-resource"] {
        let answer = server.ask("GET", path, &[], "");
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(
            answer.message(),
            json!({
                "resource": "https://shell.example/mcp",
                "authorization_servers": ["https://login.example"],
                "scopes_supported": ["shell"],
                "bearer_methods_supported": ["header"],
                "resource_name": "cofferdam",
            })
        );
    }
    assert_eq!(server.ask("POST", METADATA, &[], "").status, 401, "it is for reading");
    assert_eq!(server.ask("GET", &format!("{METADATA}/x"), &[], "").status, 401);
    assert_eq!(server.ask("GET", METADATA, &[("host", "evil.example")], "").status, 403);
    // Without an authorization server there is no such path.
    let server = crate::client::with_tokens(&[]);
    let refused = server.mcp(&[], &initialize());
    assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"cofferdam\""));
    let answer = server.ask("GET", METADATA, &[("authorization", &bearer(ALICE))], "");
    assert_eq!(answer.status, 404);
}

#[test]
fn a_valid_token_without_the_scope_is_told_apart_from_a_wrong_one() {
    let server = started();
    let mut other = claims("alice");
    other["scope"] = json!("openid email");
    let refused = server.with(&signed(server.home.path(), "EdDSA", "ed", &other));
    assert_eq!(refused.status, 403);
    assert_eq!(refused.message()["error"], "insufficient_scope");
    let challenge = refused.header("www-authenticate").unwrap_or_default();
    assert!(challenge.contains("error=\"insufficient_scope\""), "{challenge}");
    assert!(challenge.ends_with("scope=\"shell\""), "{challenge}");
}

#[test]
fn expired_tokens_are_not_counted_as_guesses() {
    let server = started();
    let mut old = claims("alice");
    old["exp"] = json!(now() - 61);
    let old = signed(server.home.path(), "EdDSA", "ed", &old);
    for _ in 0..15 {
        let refused = server.with(&old);
        assert_eq!(refused.status, 401);
        assert_eq!(refused.message()["message"], "the token has expired");
    }
    let forged = format!("{old}x");
    let statuses: Vec<u16> = (0..12).map(|_| server.with(&forged).status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 10, "{statuses:?}");
    assert_eq!(statuses.last(), Some(&429));
    assert_eq!(server.with(&server.token("alice")).status, 200, "a right token always passes");
}

#[test]
fn a_token_that_is_not_valid_here_is_logged_once_with_the_reason() {
    let server = started();
    let unfit = |name: &str, value: Value| {
        let mut claims = claims("alice");
        claims[name] = value;
        signed(server.home.path(), "EdDSA", "ed", &claims)
    };
    let old = unfit("exp", json!(now() - 61));
    let other = unfit("aud", json!("https://other.example/mcp"));
    let scope = unfit("scope", json!("openid"));
    for (token, reason) in [
        (&old, "the token has expired"),
        (&other, "the token is for another audience"),
        (&scope, "the token has no scope of this server"),
    ] {
        // Each of them is logged at its first request only, so the next line is about the next one.
        let statuses: Vec<u16> = (0..3).map(|_| server.with(token).status).collect();
        assert!(statuses.iter().all(|status| [401, 403].contains(status)), "{statuses:?}");
        let line = server.said("an access token was refused: ");
        assert!(line.contains(reason), "{reason}: {line}");
        let parts: Vec<&str> = token.split('.').collect();
        assert!(parts.iter().all(|part| !line.contains(part)), "{line}");
    }
}

#[test]
fn subjects_share_nothing_but_the_rules_of_their_client() {
    let policy = "schema = 1\nextends = \"shipped\"\n[[rule]]\nid = \"no-exec\"\ntools = [\"bash_exec\"]\n\
                  clients = [\"agents\"]\naction = \"deny\"\nwhy = \"they compute\"\n\
                  matches = [{ tool = \"bash_exec\", client = \"agents\" }]\n";
    let audit = "[audit]\nfile = \"HOME/audit/log\"\n";
    let toml = format!("{audit}{TOML}");
    let server = Server::prepared(&toml, &["--tools", "shell,exec"], |home, _| {
        issue_keys(home);
        secret(&home.join("ci"), ALICE);
        fs::create_dir_all(home.join("config/policies")).expect("a directory");
        fs::write(home.join("config/policies/mine.toml"), policy).expect("written");
    });
    let alice = bearer(&server.token("alice"));
    let bob = bearer(&server.token("bob"));
    let id = server.session(&[("authorization", &alice)]);
    let of_alice = [("authorization", alice.as_str()), ("mcp-session-id", id.as_str())];
    let of_bob = [("authorization", bob.as_str()), ("mcp-session-id", id.as_str())];
    let set = call("bash", json!({"command": "x=7; echo set"}));
    assert_eq!(server.mcp(&of_alice, &set).stdout(), "set\n");
    let shown = call("bash", json!({"command": "echo $x"}));
    assert_eq!(server.mcp(&of_bob, &shown).status, 404, "a session of another subject");
    assert_eq!(server.mcp(&of_alice, &shown).stdout(), "7\n");
    // A new token of the same subject has the same sessions.
    let renewed = bearer(&signed(server.home.path(), "ES256", "ec", &claims("alice")));
    let of_renewed = [("authorization", renewed.as_str()), ("mcp-session-id", id.as_str())];
    assert_eq!(server.mcp(&of_renewed, &shown).stdout(), "7\n");
    // The rule is about both, and not about the client of the file.
    let status = |token: &str| {
        let headers = [("authorization", token), ("content-type", "application/json")];
        let body = "{\"command\": \"echo on\"}";
        server.ask("POST", "/tools/bash_exec/execute", &headers, body).status
    };
    assert_eq!([status(&alice), status(&bob), status(&bearer(ALICE))], [403, 403, 200]);
    let log = fs::read_to_string(server.home.path().join("audit/log")).expect("a log");
    assert!(log.contains("\"agents/alice\""), "{log}");
    assert!(!log.contains("eyJ"), "no token is in it");
    // A token of an authorization server has no rights of the operator.
    let operator = server.ask("GET", "/config", &[("authorization", &alice)], "");
    assert_eq!(operator.status, 403);
}

#[test]
fn a_key_that_was_removed_is_refused_at_the_next_request() {
    let server = started();
    let token = server.token("alice");
    let header = bearer(&token);
    let id = server.session(&[("authorization", &header)]);
    let of = [("authorization", header.as_str()), ("mcp-session-id", id.as_str())];
    let path = server.home.path().join("jwks");
    let whole = fs::read_to_string(&path).expect("keys");
    let mut keys: Value = serde_json::from_str(&whole).expect("JSON");
    keys["keys"].as_array_mut().expect("a list").retain(|key| key["kid"] != "ed");
    let hang_up = |text: &str, said: &str| {
        fs::write(&path, text).expect("written");
        let pid = i32::try_from(server.child.id()).expect("a pid");
        let pid = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(pid, nix::sys::signal::SIGHUP).expect("it runs");
        server.said(said)
    };
    hang_up(&keys.to_string(), "cofferdam_reload");
    let shown = call("bash", json!({"command": "echo on"}));
    assert_eq!(server.mcp(&of, &shown).status, 401);
    hang_up("{\"keys\": []}", "earlier tokens, keys and certificates stay");
    hang_up(&whole, "cofferdam_reload");
    // The session of the subject is as it was.
    assert_eq!(server.mcp(&of, &shown).stdout(), "on\n");
}

#[test]
fn a_file_of_keys_that_cannot_be_trusted_is_refused_at_the_start() {
    let start = |text: &str, mode: u32| {
        let (home, mut command) = crate::client::configured_command(
            Command::new(crate::client::PROGRAM),
            TOML,
            &["--http", "127.0.0.1:0"],
        );
        secret(&home.path().join("ci"), ALICE);
        let path = home.path().join("jwks");
        fs::write(&path, text).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&path, mode).expect("its mode");
        let ended = command.stdin(Stdio::null()).output().expect("it runs");
        assert_eq!(ended.status.code(), Some(125), "{ended:?}");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    let right = "{\"keys\": [{\"kty\": \"OKP\", \"crv\": \"Ed25519\", \"x\": \"AA\"}]}";
    assert!(start(right, 0o666).contains("others can write"));
    assert!(start(right, 0o644).contains("another length"));
    assert!(
        start("{\"keys\": [{\"kty\": \"oct\", \"k\": \"c2VjcmV0\"}]}", 0o644)
            .contains("private key")
    );
    assert!(start("{", 0o644).contains("no JSON Web Key Set"));
    assert!(start(&" ".repeat((1 << 20) + 1), 0o644).contains("jwks"), "it is too large");
}
