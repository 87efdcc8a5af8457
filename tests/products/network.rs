//! Cells with a network, by the real program: names and addresses that are granted, and those that are not.
//!
//! The servers stand in a network namespace that the test makes, behind another, so that nothing of it touches the
//! machine's network. The gateway's own claims are in `src/gateway/tests/lab`; what is shown here is that the program,
//! which is static, its supervisor and its cells work with it.

use std::collections::BTreeMap;
use std::process::Command;

/// Runs all cases; the output of each, and the reply of the last call.
fn ran() -> Option<(BTreeMap<String, String>, serde_json::Value)> {
    if !nix::unistd::geteuid().is_root() {
        assert!(std::env::var_os("COFFERDAM_MUST_RUN").is_none(), "run as root");
        return None;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/network/world.sh");
    let output = Command::new("unshare")
        .args(["--mount", "--net", "--fork", "--kill-child", "bash", script])
        .arg(env!("CARGO_BIN_EXE_cofferdam"))
        .arg(scratch.path())
        .output()
        .expect("unshare runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    let cases = text.lines().filter_map(|line| line.split_once(": "));
    let cases = cases.map(|(name, printed)| (name.to_owned(), printed.trim().to_owned())).collect();
    let reply = std::fs::read_to_string(scratch.path().join("reply.json")).expect(&error);
    Some((cases, serde_json::from_str(&reply).expect(&error)))
}

#[test]
fn a_cell_reaches_only_granted_hosts() {
    let Some((cases, reply)) = ran() else { return };
    // curl's exit codes: 6 for a name that is not known, 7 for a connection that was refused.
    let expected = [
        ("address", "0 hello"),
        ("call-after-it", "True"),
        ("capital", "0 hello"),
        ("lost-call", "True"),
        // SO_SNDTIMEO ends each of 200 that wait; others are answered meanwhile, as the network does.
        ("many-connections", "{'EINPROGRESS': 200} connected EHOSTUNREACH ECONNREFUSED"),
        ("metadata", "7"),
        ("name", "0 hello"),
        // grep finds nothing, in the environment and in files.
        ("no-secret-inside", "0 0"),
        ("nothing", "7"),
        ("other-call", "True"),
        ("other-method", "0 403"),
        ("other-name", "6"),
        ("other-path", "0 403"),
        ("other-port", "7"),
        ("own-address", "7"),
        ("secret", "0 welcome"),
        ("secret-elsewhere", "0 403"),
        ("unlisted-host", "7"),
    ];
    let expected: BTreeMap<String, String> =
        expected.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    assert_eq!(cases, expected, "{reply}");
    let network = reply.get("network").expect("it is in the reply");
    let at = |path: &str| network.pointer(path).cloned().unwrap_or_default();
    assert_eq!(at("/connections"), 1, "{network}");
    assert_eq!(at("/hosts/0/to"), "web.example.org:80", "{network}");
    let denied = at("/denied/0/to");
    assert!(denied.as_str().is_some_and(|to| to.starts_with("other.example.org")), "{network}");
    assert!(
        at("/denied/0/grant").as_str().is_some_and(|it| it.contains("[[egress]]")),
        "{network}"
    );
}
