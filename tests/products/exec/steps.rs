//! Pipelines and macros: commands that run one after the other, each in a separate cell.

use serde_json::{Value, json};

use super::{ALL, fields, refusal};
use crate::server::Server;

/// A step's end: exit code, standard output, standard error.
fn end(step: &Value) -> (Value, Value, Value) {
    (step["exit_code"].clone(), step["stdout"].clone(), step["stderr"].clone())
}

fn pipeline(server: &mut Server, commands: &[&str]) -> Value {
    let steps: Vec<Value> = commands.iter().map(|command| json!({"command": command})).collect();
    fields(server, "pipeline", json!({"steps": steps}))
}

#[test]
fn each_step_reads_every_byte_of_the_one_before_it() {
    let mut server = Server::start(ALL);
    // More than a reply keeps, with bytes that are no text.
    let bytes = r"head -c 5000000 /dev/zero | tr '\0' '\377'; printf '\0\200end\n'";
    let expected = format!("{{ {bytes}; }} | sha256sum");
    let expected = fields(&mut server, "bash_exec", json!({"command": expected}));
    let answer = pipeline(&mut server, &[bytes, "cat", "sha256sum"]);
    assert_eq!(answer["steps"][2]["stdout"], expected["stdout"]);
    let counts = [0, 1, 2].map(|step| answer["steps"][step]["stdout_bytes"].clone());
    assert_eq!(counts, [json!(5_000_006), json!(5_000_006), json!(68)]);
    assert_eq!(answer["steps"][0].get("stdout"), None, "the next step has it");
    assert_eq!(
        (&answer["ran"], &answer["of"], answer.get("stopped")),
        (&json!(3), &json!(3), None)
    );
    let steps = json!([{"command": "cat; ls -A /tmp; echo $A", "env": {"A": "1"}, "working_dir": "/tmp"},
                       {"command": "cat; pwd; echo ${A-none}", "shell": "sh"}]);
    let answer = fields(&mut server, "pipeline", json!({"steps": steps, "stdin": "in\n"}));
    assert_eq!(answer["steps"][1]["stdout"], "in\nhome\n1\n/workspace\nnone\n");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_pipeline_stops_at_the_first_failure() {
    let mut server = Server::start(ALL);
    let commands = ["echo one", "cat; echo two >&2; exit 4", "cat"];
    let answer = pipeline(&mut server, &commands);
    assert_eq!(end(&answer["steps"][1]), (json!(4), json!("one\n"), json!("two\n")));
    assert_eq!(
        (&answer["ran"], &answer["of"], &answer["first_failed"], &answer["stopped"]),
        (&json!(2), &json!(3), &json!(2), &json!("step 2 failed"))
    );
    let steps = commands.map(|command| json!({"command": command}));
    let answer = fields(&mut server, "pipeline", json!({"steps": steps, "keep_going": true}));
    assert_eq!(end(&answer["steps"][2]), (json!(0), json!("one\n"), json!("")));
    assert_eq!((&answer["first_failed"], answer.get("stopped")), (&json!(2), None));
    let slow = json!([{"command": "echo x; sleep 1000", "timeout": 1}, {"command": "cat"}]);
    let result = server.result("pipeline", json!({"steps": slow}));
    let answer = &result["structuredContent"];
    assert_eq!((&result["isError"], &answer["steps"][0]["exit_code"]), (&json!(true), &json!(124)));
    let status = answer["steps"][0]["status"].as_str().unwrap_or_default();
    assert!(status.starts_with("[timed out after 1 s"), "{status}");
    assert_eq!(answer["error"], "timed out after 1 s; the cell was killed");
    let long = json!([{"command": "true", "timeout": 1000}, {"command": "cat"}]);
    let answer = fields(&mut server, "pipeline", json!({"steps": long}));
    let lowered = json!(["step 1: time limit 300 s, which is less than was asked for"]);
    assert_eq!((&answer["notes"], answer.get("error")), (&lowered, None));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn what_one_step_can_give_to_the_next_is_8_mib() {
    let mut server = Server::start(ALL);
    let answer = pipeline(&mut server, &["head -c 8388608 /dev/zero", "wc -c"]);
    assert_eq!(answer["steps"][1]["stdout"], "8388608\n");
    let answer = pipeline(&mut server, &["head -c 8388609 /dev/zero", "wc -c"]);
    assert_eq!((&answer["ran"], &answer["steps"][0]["exit_code"]), (&json!(1), &json!(0)));
    assert_eq!(
        answer["stopped"],
        "step 1 printed more than the 8388608 bytes that a step can be given"
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn wrong_steps_are_reported_by_index() {
    let mut server = Server::start(ALL);
    let none = refusal(&mut server, "pipeline", json!({"steps": []}));
    assert_eq!(none, "pipeline: `steps`: expected 1 to 16, not 0");
    let odd =
        refusal(&mut server, "pipeline", json!({"steps": [{"command": "true", "stdin": ""}]}));
    assert!(odd.starts_with("pipeline: `steps[0].stdin`: unknown field `stdin`"), "{odd}");
    let steps = json!([{"command": "echo x"}, {"command": "cat", "profile": "bc"}]);
    let answer = fields(&mut server, "pipeline", json!({"steps": steps}));
    let reason = answer["stopped"].as_str().unwrap_or_default();
    assert_eq!((&answer["ran"], &end(&answer["steps"][0]).0), (&json!(1), &json!(0)));
    assert!(reason.starts_with("step 2 was refused: denied by rule `exec`"), "{reason}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn macro_parameters_are_not_read_by_a_shell() {
    let mut server = Server::start(ALL);
    let commands = json!(["printf '<%s>' \"$@\" \"$#\" \"$0\"", "echo $A >/tmp/left; echo \"$2\""]);
    let saved = fields(&mut server, "macro_save", json!({"name": "show", "commands": commands}));
    assert_eq!(saved, json!({"name": "show", "commands": 2, "replaced": false}));
    let words = json!(["a b", "$(id); echo `id` 'x'"]);
    let run = json!({"name": "show", "arguments": words, "env": {"A": "1"}, "working_dir": "/tmp"});
    let answer = fields(&mut server, "macro_run", run);
    let text = ["<a b><$(id); echo `id` 'x'><2><bash>", "$(id); echo `id` 'x'\n"];
    for (step, text) in answer["steps"].as_array().into_iter().flatten().zip(text) {
        assert_eq!(end(step), (json!(0), json!(text), json!("")));
    }
    assert_eq!((&answer["ran"], answer.get("stopped")), (&json!(2), None));
    // Each step is in the history, with its parameters.
    let again = fields(&mut server, "history_replay", json!({"id": 2}));
    assert_eq!((&again["stdout"], &again["working_dir"]), (&json!(text[1]), &json!("/tmp")));
    let listed = fields(&mut server, "macro_list", json!({}));
    assert_eq!(listed, json!({"macros": [{"name": "show", "commands": commands}]}));
    let absent = refusal(&mut server, "macro_run", json!({"name": "shwo"}));
    assert_eq!(absent, "macro_run: no macro `shwo`\nhint: did you mean `show`?");
    let gone = fields(&mut server, "macro_delete", json!({"name": "show"}));
    assert_eq!(gone, json!({"name": "show", "commands": 2}));
    let absent = refusal(&mut server, "macro_run", json!({"name": "show"}));
    assert!(absent.starts_with("macro_run: no macro `show`\nhint: macro_list"), "{absent}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_macro_stops_at_the_first_failure() {
    let mut server = Server::start(ALL);
    let commands = json!(["exit 3", "echo two"]);
    server.result("macro_save", json!({"name": "m", "commands": commands}));
    let answer = fields(&mut server, "macro_run", json!({"name": "m"}));
    assert_eq!(
        (&answer["ran"], &answer["first_failed"], &answer["stopped"]),
        (&json!(1), &json!(1), &json!("step 1 failed"))
    );
    let answer = fields(&mut server, "macro_run", json!({"name": "m", "keep_going": true}));
    assert_eq!(end(&answer["steps"][1]), (json!(0), json!("two\n"), json!("")));
    let bad = refusal(&mut server, "macro_save", json!({"name": "a b", "commands": ["true"]}));
    assert!(bad.starts_with("macro_save: `name`: expected 1 to 64 letters"), "{bad}");
    assert_eq!(server.close(), Some(0));
}
