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
    let told = pipeline(&mut server, &[bytes, "cat", "sha256sum"]);
    assert_eq!(told["steps"][2]["stdout"], expected["stdout"]);
    let counts = [0, 1, 2].map(|step| told["steps"][step]["stdout_bytes"].clone());
    assert_eq!(counts, [json!(5_000_006), json!(5_000_006), json!(68)]);
    assert_eq!(told["steps"][0].get("stdout"), None, "the next step has it");
    assert_eq!((&told["ran"], &told["of"], told.get("stopped")), (&json!(3), &json!(3), None));
    let steps = json!([{"command": "cat; ls -A /tmp; echo $A", "env": {"A": "1"}, "working_dir": "/tmp"},
                       {"command": "cat; pwd; echo ${A-none}", "shell": "sh"}]);
    let told = fields(&mut server, "pipeline", json!({"steps": steps, "stdin": "in\n"}));
    assert_eq!(told["steps"][1]["stdout"], "in\nhome\n1\n/workspace\nnone\n");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_pipeline_stops_at_the_first_failure_unless_it_is_to_go_on() {
    let mut server = Server::start(ALL);
    let commands = ["echo one", "cat; echo two >&2; exit 4", "cat"];
    let told = pipeline(&mut server, &commands);
    assert_eq!(end(&told["steps"][1]), (json!(4), json!("one\n"), json!("two\n")));
    assert_eq!(
        (&told["ran"], &told["of"], &told["first_failed"], &told["stopped"]),
        (&json!(2), &json!(3), &json!(2), &json!("step 2 failed"))
    );
    let steps = commands.map(|command| json!({"command": command}));
    let told = fields(&mut server, "pipeline", json!({"steps": steps, "keep_going": true}));
    assert_eq!(end(&told["steps"][2]), (json!(0), json!("one\n"), json!("")));
    assert_eq!((&told["first_failed"], told.get("stopped")), (&json!(2), None));
    let slow = json!([{"command": "echo x; sleep 1000", "timeout": 1}, {"command": "cat"}]);
    let result = server.result("pipeline", json!({"steps": slow}));
    let told = &result["structuredContent"];
    assert_eq!((&result["isError"], &told["steps"][0]["exit_code"]), (&json!(true), &json!(124)));
    let status = told["steps"][0]["status"].as_str().unwrap_or_default();
    assert!(status.starts_with("[timed out after 1 s"), "{status}");
    assert_eq!(told["error"], "timed out after 1 s; the cell was killed");
    let long = json!([{"command": "true", "timeout": 1000}, {"command": "cat"}]);
    let told = fields(&mut server, "pipeline", json!({"steps": long}));
    let lowered = json!(["step 1: time limit 300 s, which is less than was asked for"]);
    assert_eq!((&told["notes"], told.get("error")), (&lowered, None));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn what_one_step_can_give_to_the_next_is_8_mib() {
    let mut server = Server::start(ALL);
    let told = pipeline(&mut server, &["head -c 8388608 /dev/zero", "wc -c"]);
    assert_eq!(told["steps"][1]["stdout"], "8388608\n");
    let told = pipeline(&mut server, &["head -c 8388609 /dev/zero", "wc -c"]);
    assert_eq!((&told["ran"], &told["steps"][0]["exit_code"]), (&json!(1), &json!(0)));
    assert_eq!(
        told["stopped"],
        "step 1 printed more than the 8388608 bytes that a step can be given"
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn what_is_wrong_with_steps_is_told_by_its_place() {
    let mut server = Server::start(ALL);
    let none = refusal(&mut server, "pipeline", json!({"steps": []}));
    assert_eq!(none, "pipeline: `steps`: expected 1 to 16, not 0");
    let odd =
        refusal(&mut server, "pipeline", json!({"steps": [{"command": "true", "stdin": ""}]}));
    assert!(odd.starts_with("pipeline: `steps[0].stdin`: unknown field `stdin`"), "{odd}");
    let steps = json!([{"command": "echo x"}, {"command": "cat", "profile": "bc"}]);
    let told = fields(&mut server, "pipeline", json!({"steps": steps}));
    let why = told["stopped"].as_str().unwrap_or_default();
    assert_eq!((&told["ran"], &end(&told["steps"][0]).0), (&json!(1), &json!(0)));
    assert!(why.starts_with("step 2 was refused: denied by rule `exec`"), "{why}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_macro_runs_its_commands_with_parameters_that_no_shell_reads() {
    let mut server = Server::start(ALL);
    let commands = json!(["printf '<%s>' \"$@\" \"$#\" \"$0\"", "echo $A >/tmp/left; echo \"$2\""]);
    let saved = fields(&mut server, "macro_save", json!({"name": "show", "commands": commands}));
    assert_eq!(saved, json!({"name": "show", "commands": 2, "replaced": false}));
    let words = json!(["a b", "$(id); echo `id` 'x'"]);
    let run = json!({"name": "show", "arguments": words, "env": {"A": "1"}, "working_dir": "/tmp"});
    let told = fields(&mut server, "macro_run", run);
    let said = ["<a b><$(id); echo `id` 'x'><2><bash>", "$(id); echo `id` 'x'\n"];
    for (step, said) in told["steps"].as_array().into_iter().flatten().zip(said) {
        assert_eq!(end(step), (json!(0), json!(said), json!("")));
    }
    assert_eq!((&told["ran"], told.get("stopped")), (&json!(2), None));
    // Each step is in the history, with its parameters.
    let again = fields(&mut server, "history_replay", json!({"id": 2}));
    assert_eq!((&again["stdout"], &again["working_dir"]), (&json!(said[1]), &json!("/tmp")));
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
fn a_macro_stops_at_the_first_failure_unless_it_is_to_go_on() {
    let mut server = Server::start(ALL);
    let commands = json!(["exit 3", "echo two"]);
    server.result("macro_save", json!({"name": "m", "commands": commands}));
    let told = fields(&mut server, "macro_run", json!({"name": "m"}));
    assert_eq!(
        (&told["ran"], &told["first_failed"], &told["stopped"]),
        (&json!(1), &json!(1), &json!("step 1 failed"))
    );
    let told = fields(&mut server, "macro_run", json!({"name": "m", "keep_going": true}));
    assert_eq!(end(&told["steps"][1]), (json!(0), json!("two\n"), json!("")));
    let bad = refusal(&mut server, "macro_save", json!({"name": "a b", "commands": ["true"]}));
    assert!(bad.starts_with("macro_save: `name`: expected 1 to 64 letters"), "{bad}");
    assert_eq!(server.close(), Some(0));
}
