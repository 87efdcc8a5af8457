//! Downloads of a script project, by the real program against servers of a laboratory: granted URLs are fetched by a
//! separate cell, and a hostile project or server reaches no other place and exceeds no size or time limit.

#![expect(clippy::indexing_slicing, reason = "a JSON value without the key is null")]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Answers of a server by the names of the requests, the lines that the laboratory's servers wrote, and the audit log.
struct Answers {
    answers: BTreeMap<String, Value>,
    requests: String,
    audit: Vec<Value>,
}

impl Answers {
    /// Returns the code and the message of an error.
    fn error(&self, name: &str) -> (i64, String) {
        let error = &self.answers[name]["error"];
        let message = error["message"].as_str().unwrap_or_default().to_owned();
        (error["code"].as_i64().unwrap_or_default(), message)
    }

    fn text(&self, name: &str) -> &str {
        let contents = &self.answers[name]["result"]["contents"][0];
        contents["text"].as_str().unwrap_or_else(|| panic!("{name}: {}", self.answers[name]))
    }

    fn fields(&self, name: &str) -> &Value {
        let text = &self.answers[name]["result"]["structuredContent"];
        assert!(text.is_object(), "{name}: {}", self.answers[name]);
        text
    }
}

/// Makes requests of a server of the project in the laboratory. Returns nothing where it cannot be made.
fn in_laboratory(
    requests: &[(&str, &str, Value)],
    keys: &str,
    env: &[(&str, &str)],
    more: &[&str],
) -> Option<Answers> {
    if !nix::unistd::geteuid().is_root() {
        assert!(std::env::var_os("COFFERDAM_MUST_RUN").is_none(), "run as root");
        return None;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(scratch.path(), mode).expect("a mode");
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/products/projects_network");
    let place = scratch.path().join("project");
    let file = scratch.path().join("requests.json");
    let copied = Command::new("cp").arg("-r").arg(here.join("project")).arg(&place).status();
    assert!(copied.expect("cp").success());
    let modes = Command::new("chmod").args(["-R", "u+rwX,go+rX,go-w"]).arg(&place).status();
    assert!(modes.expect("chmod").success());
    std::fs::write(&file, json!(requests).to_string()).expect("written");
    let config = scratch.path().join("configuration");
    let audit = scratch.path().join("audit/log.jsonl");
    std::fs::create_dir(&config).expect("a directory");
    let keys = format!("schema = 1\n[audit]\nfile = {audit:?}\n[project]\n{keys}\n");
    std::fs::write(config.join("cofferdam.toml"), keys).expect("written");
    let output = Command::new("unshare")
        .args(["--mount", "--net", "--fork", "--kill-child", "bash"])
        .arg(here.join("lab.sh"))
        .arg(scratch.path())
        .arg("python3")
        .arg(here.join("client.py"))
        .arg(&file)
        .arg(env!("CARGO_BIN_EXE_cofferdam"))
        .arg("--config")
        .arg(&config)
        .args(["serve", "--toolchains", "none", "--project"])
        .arg(&place)
        .args(more)
        .envs(env.iter().copied())
        .output()
        .expect("unshare runs");
    let error = String::from_utf8_lossy(&output.stderr);
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|_| panic!("{error}"));
    let audit = read(&audit);
    Some(Answers {
        answers: serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{error}")),
        requests: read(&scratch.path().join("requests")),
        audit: audit.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
    })
}

fn read(name: &'static str) -> (&'static str, &'static str, Value) {
    (name, "resources/read", json!({ "uri": name }))
}

fn fetch(name: &'static str, words: &[&str]) -> (&'static str, &'static str, Value) {
    (name, "tools/call", json!({"name": "fetch", "arguments": {"words": words}}))
}

/// Grants, and bounds that a test can meet.
const KEYS: &str = r#"hosts = ["api.example.org", "api.example.org:8443", "private.example.org", "mapped.example.org"]
https_bytes = "2M"
https_timeout = "2s"
git_bytes = "1M"
git_timeout = "20s""#;

/// Resources that are not read: the code of the error, and a part of its message.
const REFUSED: &[(&str, i64, &str)] = &[
    ("missing", -32603, "HTTP error: 404"),
    ("to-private", -32603, "sends to another address, and no redirection is followed"),
    ("to-other", -32603, "sends to another address"),
    ("endless", -32603, "sends more than 2097152 bytes"),
    ("long", -32603, "sends more than 2097152 bytes"),
    ("slow", -32603, "could not be fetched"),
    ("private", -32602, "an address outside the networks that this call may reach"),
    ("mapped", -32602, "mapped.example.org:443 was refused"),
    ("address", -32602, "projects reach no address"),
    (
        "ungranted",
        -32602,
        "the operator can grant it: [project] hosts = [\"other.example.org:443\"]",
    ),
    ("user", -32602, "names no host"),
    ("git-flag", -32602, "ends with #REF:PATH"),
    ("git-redirect", -32603, "could not be fetched"),
    ("git-large", -32603, "too large"),
];

#[test]
fn resources_are_read_from_granted_hosts_only() {
    let names = [
        "ok",
        "raw",
        "port",
        "missing",
        "to-private",
        "to-other",
        "endless",
        "long",
        "slow",
        "private",
        "mapped",
        "address",
        "ungranted",
        "user",
        "git",
        "git-deep",
        "git-link",
        "git-folder",
        "git-missing",
        "git-flag",
        "git-redirect",
        "git-large",
    ];
    let Some(output) = in_laboratory(&names.map(read), KEYS, &[], &[]) else { return };
    assert_eq!(output.text("ok"), "hello from 203.0.113.10:443");
    assert_eq!(output.text("port"), "hello from 203.0.113.10:8443");
    assert_eq!(output.answers["raw"]["result"]["contents"][0]["blob"], "YQBi/wo=");
    assert_eq!((output.text("git"), output.text("git-deep")), ("of a\n", "of d\n"));
    let no_file = (-32002, "Resource not found".to_owned());
    for name in ["git-link", "git-folder", "git-missing"] {
        assert_eq!(output.error(name), no_file, "{name}");
    }
    for &(name, code, text) in REFUSED {
        let (found, message) = output.error(name);
        assert!(found == code && message.contains(text), "{name}: {found} {message}");
    }
    let data = &output.answers["to-private"]["error"]["data"]["location"];
    assert_eq!(data, "https://private.example.org/ok");
    // Nothing has reached the private server, by whatever name, address or redirection.
    assert!(
        output.requests.contains("203.0.113.10:443 GET /ok mcpbash/1.3.0"),
        "{}",
        output.requests
    );
    assert!(!output.requests.contains("10.9.0.2"), "{}", output.requests);
    let relayed = output.audit.iter().filter(|line| line["event"] == "connection");
    let relayed: Vec<&Value> =
        relayed.filter(|line| line["tool"] == "project-fetch:resources/read").collect();
    let denied: Vec<_> = relayed.iter().filter(|line| line["verdict"] == "denied").collect();
    assert!(denied.iter().any(|line| line["address"] == "10.9.0.2:443"), "{denied:?}");
    assert!(relayed.len() > denied.len(), "{relayed:?}");
}

#[test]
fn downloads_run_outside_of_the_scripts_cell() {
    let url = |path: &str| format!("https://api.example.org{path}");
    let requests = [
        fetch("ok", &["--url", &url("/ok"), "--user-agent", "own \"agent\""]),
        fetch("raw", &["--url", &url("/raw"), "--allow", "API.example.org"]),
        fetch("redirect", &["--url", &url("/to-private")]),
        fetch("missing", &["--url", &url("/missing"), "--retry", "2", "--retry-delay", "0.1"]),
        fetch("long", &["--url", &url("/long")]),
        fetch("short", &["--url", &url("/ok"), "--max-bytes", "5"]),
        fetch("slow", &["--url", &url("/slow"), "--timeout", "1"]),
        fetch("allowed", &["--url", &url("/ok"), "--allow", "elsewhere.org"]),
        fetch("denied", &["--url", &url("/ok"), "--deny", "api.example.org"]),
        fetch("private", &["--url", "https://private.example.org/ok"]),
        fetch(
            "ungranted",
            &["--url", "https://other.example.org/ok", "--allow", "other.example.org"],
        ),
        fetch("plain", &["--url", "http://api.example.org/ok"]),
        fetch("option", &["--url", &url("/ok"), "--alow", "x"]),
        ("reach", "tools/call", json!({"name": "reach", "arguments": {}})),
    ];
    let Some(output) = in_laboratory(&requests, KEYS, &[], &[]) else { return };
    let answer = |name: &str| output.fields(name)["answer"].clone();
    assert_eq!(answer("ok"), json!({"success": true, "bytes": 27, "path": "/tmp/came"}));
    assert_eq!(answer("raw")["bytes"], 5);
    let sum = "6a71fdd5be6ed5ba4ca1e7ce4fd4e7ecf8e2fcd5aaf20f28d23b7c8c1a6d2a5c";
    assert_eq!(output.fields("raw")["sum"].as_str().map(str::len), Some(sum.len()));
    assert!(output.requests.contains("GET /ok own \"agent\""), "{}", output.requests);
    for (name, kind) in [
        ("redirect", "redirect"),
        ("missing", "network_error"),
        ("long", "size_exceeded"),
        ("short", "size_exceeded"),
        ("slow", "network_error"),
        ("allowed", "host_blocked"),
        ("denied", "host_blocked"),
        ("private", "host_blocked"),
        ("ungranted", "host_blocked"),
        ("plain", "invalid_url"),
        ("option", "invalid_params"),
    ] {
        let output = answer(name);
        assert_eq!(
            (&output["success"], &output["error"]["type"]),
            (&json!(false), &json!(kind)),
            "{name}: {output}"
        );
    }
    assert_eq!(answer("redirect")["error"]["location"], "https://private.example.org/ok");
    let grant = "the operator can grant it: [project] hosts = [\"other.example.org:443\"]";
    assert!(answer("ungranted").to_string().contains("the operator can grant it"), "{grant}");
    assert_eq!(output.requests.matches("/missing").count(), 2, "{}", output.requests);
    // curl's exit code for a name that is not known: the script's own cell has no network.
    let expected = json!({
        "curl": 6, "file": "invalid_url", "git": "invalid_url", "big": "size_exceeded", "last": "host_blocked",
        "files": 0,
    });
    assert_eq!(output.fields("reach"), &expected);
    assert!(!output.requests.contains("10.9.0.2"), "{}", output.requests);
}

#[test]
fn framework_variables_can_grant_hosts() {
    let url = "https://api.example.org/ok";
    let requests = [read("ok"), read("git"), fetch("fetch", &["--url", url])];
    let Some(none) = in_laboratory(&requests, "", &[], &[]) else { return };
    let grant = "no rule lets a project reach api.example.org:443; the operator can grant it: \
                 [project] hosts = [\"api.example.org:443\"]";
    assert_eq!(none.error("ok"), (-32602, format!("Resource is not granted: {grant}")));
    let error = json!({"type": "host_blocked", "message": grant});
    assert_eq!(none.fields("fetch")["answer"]["error"], error);
    assert_eq!(none.requests, "");
    let https = [("MCPBASH_HTTPS_ALLOW_HOSTS", "api.example.org")];
    let Some(only) = in_laboratory(&requests, "", &https, &[]) else { return };
    assert_eq!(only.text("ok"), "hello from 203.0.113.10:443");
    assert_eq!(only.fields("fetch")["answer"]["success"], true);
    // A host for one kind of download is not one for the other.
    assert!(only.error("git").1.contains("refused by the operator"), "{:?}", only.error("git"));
    let git =
        [("MCPBASH_GIT_ALLOW_HOSTS", "api.example.org"), ("MCPBASH_ENABLE_GIT_PROVIDER", "true")];
    let Some(only) = in_laboratory(&requests, "", &git, &[]) else { return };
    assert_eq!(only.text("git"), "of a\n");
    assert!(only.error("ok").1.contains("refused by the operator"), "{:?}", only.error("ok"));
}

#[test]
fn metadata_can_only_reduce_a_tools_network() {
    let call = |name: &'static str| (name, "tools/call", json!({"name": name, "arguments": {}}));
    let requests = ["open", "narrow", "closed", "wide"].map(call);
    let egress = ["--egress", "api.example.org:443", "--egress", "other.example.org:443"];
    let Some(output) = in_laboratory(&requests, "", &[], &egress) else { return };
    let reached = |name: &str| output.fields(name).clone();
    // curl's exit codes: 6 for a name that is not known.
    assert_eq!(reached("open"), json!({"api": 0, "other": 0}));
    assert_eq!(reached("narrow"), json!({"api": 0, "other": 6}));
    assert_eq!(reached("closed"), json!({"api": 6, "other": 6}));
    let wide = output.answers["wide"]["result"]["content"][0]["text"].as_str().unwrap_or_default();
    let reason = "profile `bash` leaves no call the egress `private.example.org:443`";
    assert!(wide.contains(reason), "{wide}");
    // The hosts of tools are not those of downloads, nor the other way round.
    assert_eq!(output.requests.lines().count(), 3, "{}", output.requests);
}
