//! An operator's own tools against servers of a laboratory in a network namespace: the examples of the documentation,
//! and many calls at once.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use super::{asked, has};
use crate::server::patience::patience;
use crate::server::{PROGRAM, Server};

/// Starts a server in front of the laboratory. Returns `None` as an ordinary user, for lack of network namespaces.
pub(super) fn in_front_of_the_lab(configuration: &Path, workspace: &Path) -> Option<Server> {
    if !nix::unistd::geteuid().is_root() {
        assert!(std::env::var_os("COFFERDAM_MUST_RUN").is_none(), "run as root");
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/products/cli_tools/lab.sh");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--fork", "--kill-child", "bash", script, PROGRAM]);
    command.arg("--config").arg(configuration).arg("serve").arg("--workspace").arg(workspace);
    Some(Server::of(command))
}

/// Copies the documentation's configuration with modes that let no other user write to it.
fn examples() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tools");
    for file in ["cofferdam.toml", "policies/tools.toml", "sandbox-profiles/lab.toml"] {
        let to = directory.path().join(file);
        std::fs::create_dir_all(to.parent().expect("a directory")).expect("made");
        std::fs::copy(from.join(file), to).expect("copied");
    }
    directory
}

#[test]
fn gobuster_hydra_and_sqlmap_reach_only_the_target() {
    let programs = ["/usr/bin/gobuster", "/usr/bin/hydra", "/usr/bin/sqlmap"];
    if !programs.iter().all(|program| has(program)) {
        return;
    }
    let configuration = examples();
    let workspace = tempfile::tempdir().expect("a directory");
    let words = "one\nhidden\nadmin\nsesame\nprivate\n";
    std::fs::write(workspace.path().join("words.txt"), words).expect("written");
    let Some(mut server) = in_front_of_the_lab(configuration.path(), workspace.path()) else {
        return;
    };
    let list = ["-w", "words.txt", "-x", "php", "-t", "2"];
    let flags = ["-u", "http://10.77.0.10/"].into_iter().chain(list).collect::<Vec<_>>();
    let answer = asked(&mut server, "cli_gobuster", json!({"extra_args": flags}));
    let found = answer["metadata"]["parsed"]["found"].as_array().cloned().unwrap_or_default();
    let mut found: Vec<(String, u64)> = found
        .iter()
        .map(|one| {
            let path = one["path"].as_str().unwrap_or_default().to_owned();
            (path, one["status"].as_u64().unwrap_or_default())
        })
        .collect();
    found.sort();
    let expected = [("/admin.php", 200), ("/hidden", 200), ("/private", 401)];
    assert_eq!(found, expected.map(|(path, status)| (path.to_owned(), status)), "{answer}");
    // An address that the list takes and the profile does not grant.
    let flags = ["-u", "http://10.77.1.10/"].into_iter().chain(list).collect::<Vec<_>>();
    let answer = asked(&mut server, "cli_gobuster", json!({"extra_args": flags}));
    assert_eq!(answer["error_type"], "execution_error", "{answer}");
    assert_eq!(answer["metadata"]["parsed"]["found"], json!([]), "{answer}");

    let arguments = json!({"target": "10.77.0.10", "service": "http-get", "path": "/private",
        "extra_args": ["-l", "admin", "-P", "words.txt", "-f", "-t", "2"]});
    let answer = asked(&mut server, "cli_hydra", arguments);
    let login = json!({"login": "admin", "password": "sesame"});
    assert_eq!(answer["metadata"]["parsed"]["login"], login, "{answer}");

    let url = "http://10.77.0.10/item?id=1";
    let arguments = json!({"extra_args": ["-u", url, "--technique=B"]});
    let answer = asked(&mut server, "cli_sqlmap", arguments);
    let injectable = json!({"parameter": "id", "place": "GET"});
    assert_eq!(answer["metadata"]["parsed"]["injectable"], injectable, "{answer}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_hundred_questions_at_once_are_all_answered() {
    if !has("/usr/bin/dig") {
        return;
    }
    let configuration = tempfile::tempdir();
    let workspace = tempfile::tempdir();
    let configuration = configuration.expect("a directory");
    let workspace = workspace.expect("a directory");
    let tools = "schema = 1\n[tools]\non = [\"cli_dig\"]\n";
    std::fs::write(configuration.path().join("cofferdam.toml"), tools).expect("written");
    let Some(mut server) = in_front_of_the_lab(configuration.path(), workspace.path()) else {
        return;
    };
    let started = Instant::now();
    let calls: Vec<u64> = (0..100)
        .map(|number| {
            let name = format!("host{number}.lab.internal");
            let arguments = json!({"server": "10.77.0.10", "name": name, "extra_args": "+short"});
            server.call("cli_dig", arguments)
        })
        .collect();
    let mut took = Vec::new();
    let end = started + patience();
    while took.len() < calls.len() {
        let left = end.saturating_duration_since(Instant::now());
        let answer = server.lines.recv_timeout(left).expect("an answer in time");
        let output = &answer["result"]["structuredContent"];
        assert_eq!(
            (&output["stdout"], &output["error"]),
            (&json!("10.77.0.99\n"), &Value::Null),
            "{output}"
        );
        took.push(started.elapsed());
    }
    let all: std::time::Duration = took.iter().sum();
    // The mean from the moment at which all were asked, waiting included: a figure, for machines differ.
    println!("100 calls: mean {:?}, last {:?}", all / 100, took.last());
    assert_eq!(server.close(), Some(0));
}
