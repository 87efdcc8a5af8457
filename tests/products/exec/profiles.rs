//! Choice of a profile: a command and its replay may name one only if the rule allows it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::{fields, refusal};
use crate::server::Server;

const SMALL: &str = r#"schema = 1
name = "small"
description = "bash with less memory"
extends = "bash"

[limits]
memory = "128M"
workspace = "16M"
tmp = "16M"
shm = "16M"
"#;

/// A rule for `bash_exec`, with more lines.
fn policy(more: &str) -> String {
    format!(
        "schema = 1\n[[rule]]\nid = \"exec\"\ntools = [\"bash_exec\"]\naction = \"allow\"\n\
         profile = \"bash\"\n{more}why = \"w\"\nmatches = [{{ tool = \"bash_exec\" }}]\n"
    )
}

struct Configured(tempfile::TempDir);

impl Configured {
    fn with(policy: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let files = [("sandbox-profiles/small.toml", SMALL), ("policies/p.toml", policy)];
        for (name, text) in files {
            let path = directory.path().join(name);
            let parent = path.parent().expect("named");
            fs::create_dir_all(parent).expect("made");
            fs::set_permissions(parent, Permissions::from_mode(0o700)).expect("ours");
            fs::write(path, text).expect("written");
        }
        Self(directory)
    }

    fn server(&self) -> Server {
        let path = self.0.path().to_str().expect("plain");
        Server::start(&["--config", path, "--tools", "exec,history"])
    }
}

fn ran_under(server: &mut Server, tool: &str, arguments: Value) -> Value {
    let result = server.result(tool, arguments);
    result["_meta"]["cofferdam/receipt"]["profile"].clone()
}

fn offered(server: &mut Server, tool: &str) -> Value {
    let id = server.request("tools/list", json!({}));
    let answer = server.answer(id);
    let tools = answer["result"]["tools"].as_array().cloned().unwrap_or_default();
    let found = tools.iter().find(|one| one["name"] == tool);
    found.map_or(Value::Null, |one| one["inputSchema"]["properties"]["profile"]["enum"].clone())
}

#[test]
fn a_rule_can_leave_the_profile_to_the_caller() {
    let configured = Configured::with(&policy("choice = [\"small\"]\n"));
    let mut server = configured.server();
    for tool in ["bash_exec", "history_replay"] {
        assert_eq!(offered(&mut server, tool), json!(["bash", "small"]), "{tool}");
    }
    let size = "df --output=size -B1M /tmp | tail -1 | tr -d ' '";
    let plain = fields(&mut server, "bash_exec", json!({"command": size}));
    assert_eq!(plain["stdout"], "128\n");
    let small = fields(&mut server, "bash_exec", json!({"command": size, "profile": "small"}));
    assert_eq!(small["stdout"], "16\n");
    let replayed = json!({"id": 1, "profile": "small"});
    assert_eq!(fields(&mut server, "history_replay", replayed)["stdout"], "16\n");
    // A replay names the profile of the original call, or another if asked to.
    assert_eq!(ran_under(&mut server, "history_replay", json!({"id": 2})), "small");
    let back = json!({"id": 2, "profile": "bash"});
    assert_eq!(ran_under(&mut server, "history_replay", back), "bash");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_fixed_profile_cannot_be_changed_by_the_caller() {
    let configured = Configured::with(&policy(""));
    let mut server = configured.server();
    assert_eq!(offered(&mut server, "bash_exec"), Value::Null);
    assert_eq!(ran_under(&mut server, "bash_exec", json!({"command": "true"})), "bash");
    let denied = "[denied by rule `exec`: it leaves no call of `bash_exec` the profile `small`]\n\
                  hint: there is bash; the operator can add one to `choice` of the rule";
    let arguments = json!({"command": "true", "profile": "small"});
    assert_eq!(refusal(&mut server, "bash_exec", arguments), denied);
    let arguments = json!({"id": 1, "profile": "small"});
    assert_eq!(refusal(&mut server, "history_replay", arguments), denied);
    let odd = json!({"command": "true", "profile": "../x"});
    assert_eq!(
        refusal(&mut server, "bash_exec", odd),
        "profile must be the name of a profile, not ../x"
    );
    assert_eq!(server.close(), Some(0));
}
