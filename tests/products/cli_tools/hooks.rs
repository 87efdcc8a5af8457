//! Hooks of an operator's tool: they refuse, change and read, each in a separate cell, and never widen a call.

use serde_json::{Value, json};

use super::conduct::mine;
use super::own::own;
use super::{asked, serving};
use crate::server::{PROGRAM, Server};

/// The rule without which no hook runs.
const RULE: &str = r#"
[[rule]]
id = "hooks"
tools = ["hook"]
action = "allow"
profile = "bash"
limits = { timeout = "10s" }
why = "scripts of the operator's own"
matches = [{ tool = "hook" }]
not_matches = [{ tool = "bash" }]
"#;

fn hook(at: &str, script: &str, more: &str) -> String {
    format!(
        "[[tool.hook]]\nat = \"{at}\"\nscript = '''{script}'''\nwhy = \"for this test\"\n{more}\n"
    )
}

fn with(program: &str, hooks: &str) -> (tempfile::TempDir, Server) {
    let directory = own("on = [\"cli_mine\"]", &(mine(program, hooks) + RULE));
    let server = serving(directory.path(), None);
    (directory, server)
}

#[test]
fn a_check_hook_can_refuse_with_a_message() {
    let script = "read -r call; [[ $call == *'\"word\":[\"secret\"]'* ]] || exit 0\n\
        echo 'not that word'; exit 1";
    let (_directory, mut server) = with("echo", &hook("check", script, ""));
    let answer = asked(&mut server, "cli_mine", json!({"word": ["open"], "extra_args": "-c"}));
    assert_eq!(
        (&answer["stdout"], &answer["error"]),
        (&json!("-c open\n"), &json!(null)),
        "{answer}"
    );
    let answer =
        asked(&mut server, "cli_mine", json!({"word": ["secret"], "correlation_id": "h-1"}));
    assert_eq!(
        (&answer["error_type"], &answer["error"], &answer["correlation_id"], &answer["stdout"]),
        (&json!("validation_error"), &json!("cli_mine: not that word"), &json!("h-1"), &json!("")),
        "{answer}"
    );
    // A dry run has no cell, so it says which hooks have not spoken.
    let answer = asked(&mut server, "cli_mine", json!({"word": ["secret"], "dry_run": true}));
    assert_eq!(
        (&answer["metadata"]["hooks_not_run"], &answer["metadata"]["argv"]),
        (&json!(["check"]), &json!(["echo", "secret"]))
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_hook_that_fails_lets_nothing_through() {
    let scripts = [
        ("check", "exit 2"),
        ("check", "sleep 9"),
        ("transform", "echo x"),
        ("transform", "exit 3"),
    ];
    for (at, script) in scripts {
        let (_directory, mut server) = with("echo", &hook(at, script, "timeout = \"200ms\""));
        let answer = asked(&mut server, "cli_mine", json!({"word": ["x"]}));
        assert_eq!(
            (&answer["error_type"], &answer["stdout"]),
            (&json!("execution_error"), &json!(""))
        );
        let start = format!("the operator's {at} hook ");
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error.starts_with(&start) && error.ends_with("; the call was not made"), "{error}");
        assert_eq!(server.close(), Some(0));
    }
}

#[test]
fn transformed_arguments_are_validated() {
    let print = |words: &str| format!("echo '{{\"extra_args\": {words}}}'");
    let (_directory, mut server) =
        with("echo", &hook("transform", &print(r#"["-c", "--text", "a b"]"#), ""));
    let answer = asked(&mut server, "cli_mine", json!({"word": ["w"]}));
    assert_eq!(answer["stdout"], "-c --text a b w\n", "{answer}");
    assert_eq!(server.close(), Some(0));
    let wide = [
        r#"["--evil"]"#,
        r#"["--tex", "x"]"#,
        r#"["-cc"]"#,
        r#"["--"]"#,
        r#"["x"]"#,
        r#"["--text", "-c"]"#,
        r#"["--text", "a;b"]"#,
        r#"["--text", "a\nb"]"#,
        r#"["--text", "a\u0000b"]"#,
    ];
    for words in wide {
        let (_directory, mut server) = with("echo", &hook("transform", &print(words), ""));
        let answer = asked(&mut server, "cli_mine", json!({"word": ["w"]}));
        let error = answer["error"].as_str().unwrap_or_default();
        assert_eq!(
            (&answer["error_type"], &answer["stdout"]),
            (&json!("validation_error"), &json!(""))
        );
        let start = "the operator's transform hook made a call that is refused: cli_mine: ";
        assert!(error.starts_with(start), "{words}: {error}");
        assert_eq!(server.close(), Some(0));
    }
}

#[test]
fn a_check_before_a_transform_sees_what_that_made() {
    let check = "read -r call; [[ $call != *evil* ]] || { echo 'not that'; exit 1; }";
    let change = r#"read -r call
        [[ $call == *'"-c"'* ]] && word=evil || word=good
        printf '{"extra_args": ["--text", "%s"]}' $word"#;
    let both = hook("check", check, "remember = true") + &hook("transform", change, "");
    let (_directory, mut server) = with("echo", &both);
    let answer = asked(&mut server, "cli_mine", json!({"word": ["w"]}));
    assert_eq!(answer["stdout"], "--text good w\n", "{answer}");
    let answer = asked(&mut server, "cli_mine", json!({"word": ["w"], "extra_args": "-c"}));
    assert_eq!(
        (&answer["error_type"], &answer["error"], &answer["stdout"]),
        (&json!("validation_error"), &json!("cli_mine: not that"), &json!("")),
        "{answer}"
    );
    assert_eq!(server.close(), Some(0));
    // However a value is written, a script sees one form.
    let check = r#"read -r call; [[ $call != *'"--text","x"'* ]] || { echo 'not x'; exit 1; }"#;
    let (_directory, mut server) = with("echo", &hook("check", check, ""));
    for words in ["--text x", "--text=x"] {
        let answer = asked(&mut server, "cli_mine", json!({"extra_args": words}));
        assert_eq!(answer["error"], "cli_mine: not x", "{words}: {answer}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_check_hook_sees_expanded_templates() {
    let script = r#"read -r call; argv=${call#*'"argv":['}; argv=${argv%%]*}
        [[ $argv != *'"secret"'* ]] || { echo 'not that word'; exit 1; }"#;
    let conduct = "[[tool.template]]\nname = \"t\"\nargs = [\"--text\", \"secret\"]\nwhy = \"x\"\n\
        [[tool.replace]]\nword = \"-s\"\nby = [\"--text\", \"secret\"]\nwhy = \"x\"\n"
        .to_owned()
        + &hook("check", script, "");
    let (_directory, mut server) = with("echo", &conduct);
    for arguments in [json!({"template": "t"}), json!({"extra_args": "-s"})] {
        let answer = asked(&mut server, "cli_mine", arguments);
        assert_eq!(answer["error"], "cli_mine: not that word", "{answer}");
    }
    let answer = asked(&mut server, "cli_mine", json!({"extra_args": "--text open"}));
    assert_eq!(answer["stdout"], "--text open\n", "the control: {answer}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn a_summary_is_made_of_what_the_readers_found() {
    let readers = "summary = \"{pair.a} of {words}, first {first}\"\n\
        [[tool.read]]\nname = \"pair\"\npattern = \"(?<a>[0-9]+) (?<b>[a-z]+)\"\nwhy = \"x\"\n\
        [[tool.read]]\nname = \"words\"\npattern = \"[a-z]\"\nall = true\nwhy = \"x\"\n\
        [[tool.read]]\nname = \"first\"\npattern = \"^([0-9]+)\"\nwhy = \"x\"\n";
    let (_directory, mut server) = with("echo", readers);
    let answer = asked(&mut server, "cli_mine", json!({"word": ["7", "x"]}));
    assert_eq!(answer["metadata"]["summary"], "7 of 1, first 7", "{answer}");
    // A part that is not there leaves it out.
    let answer = asked(&mut server, "cli_mine", json!({"word": ["x"]}));
    assert_eq!(answer["metadata"].get("summary"), None, "{answer}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn output_hooks_turn_output_into_data() {
    let script = r#"read -r call; [[ $call == *'"returncode":0'* ]] || exit 1
        echo '{"summary": "two words", "words": 2}'"#;
    let reader =
        "[[tool.read]]\nname = \"pair\"\npattern = \"(?<a>[0-9]+) (?<b>[a-z]+)\"\nwhy = \"x\"\n";
    let (_directory, mut server) = with("echo", &(reader.to_owned() + &hook("output", script, "")));
    let answer = asked(&mut server, "cli_mine", json!({"word": ["7", "x"]}));
    let parsed = json!({"pair": {"a": 7, "b": "x"}, "summary": "two words", "words": 2});
    assert_eq!(
        (&answer["metadata"]["parsed"], &answer["stdout"]),
        (&parsed, &json!("7 x\n")),
        "{answer}"
    );
    assert_eq!(server.close(), Some(0));
    // One that fails is no failure of the call.
    let (_directory, mut server) = with("echo", &hook("output", "exit 1", ""));
    let answer = asked(&mut server, "cli_mine", json!({"word": ["x"]}));
    let reason = answer["metadata"]["parse_error"].as_str().unwrap_or_default();
    assert!(reason.starts_with("the operator's output hook ended with exit code 1"), "{answer}");
    assert_eq!((&answer["returncode"], &answer["error"]), (&json!(0), &json!(null)));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn hooks_are_audited_and_have_no_network() {
    // The hook refuses with what it sees: the interfaces of its cell, and its workspace.
    let script = "shopt -s nullglob; cd /workspace; all=(*); printf '%s ' ${#all[@]}; \
        while IFS=: read -r name rest; do [[ $rest ]] && printf '%s ' $name; done < /proc/net/dev; \
        (: > /dev/tcp/10.0.0.1/80) 2> /dev/null && printf reached; exit 1";
    let directory = own("on = [\"cli_mine\"]", &(mine("echo", &hook("check", script, "")) + RULE));
    let log = directory.path().join("log/audit.jsonl");
    let text = format!(
        "schema = 1\n[tools]\non = [\"cli_mine\"]\n[audit]\nfile = \"{}\"\n",
        log.display()
    );
    std::fs::write(directory.path().join("cofferdam.toml"), text).expect("written");
    let workspace = tempfile::tempdir().expect("a directory");
    std::fs::write(workspace.path().join("a"), "x").expect("written");
    let mut server = serving(directory.path(), Some(workspace.path()));
    let answer = asked(&mut server, "cli_mine", json!({"correlation_id": "h-2"}));
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(error == "cli_mine: 0 lo" || error == "cli_mine: 0", "{error}");
    assert_eq!(server.close(), Some(0));
    let lines: Vec<Value> = std::fs::read_to_string(&log)
        .expect("it is written")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let hooked = lines.iter().find(|line| line["tool"] == "hook:cli_mine").expect("its line");
    assert_eq!((&hooked["rule"], &hooked["correlation_id"]), (&json!("hooks"), &json!("h-2")));
}

#[test]
fn no_hook_runs_for_a_denied_call() {
    let hooks_run_for = |client: &str| {
        let action = format!("action = \"allow\"\nclients = [\"{client}\"]");
        let hooks =
            hook("check", "true", "") + &hook("transform", "echo '{\"extra_args\": []}'", "");
        let policy = mine("echo", &hooks).replacen("action = \"allow\"", &action, 1) + RULE;
        let directory = own("on = [\"cli_mine\"]", &policy);
        let log = directory.path().join("log/audit.jsonl");
        let text = format!(
            "schema = 1\n[tools]\non = [\"cli_mine\"]\n[audit]\nfile = \"{}\"\n",
            log.display()
        );
        std::fs::write(directory.path().join("cofferdam.toml"), text).expect("written");
        let mut server = serving(directory.path(), None);
        let answer = server.result("cli_mine", json!({"word": ["x"]}));
        assert_eq!(server.close(), Some(0));
        let log = std::fs::read_to_string(&log).expect("it is written");
        (answer, log.matches("hook:cli_mine").count())
    };
    let (answer, hooks) = hooks_run_for("http");
    assert!(
        answer["isError"] == true && answer.to_string().contains("no rule allows `cli_mine`"),
        "{answer}"
    );
    assert_eq!(hooks, 0, "nothing ran for it");
    let (answer, hooks) = hooks_run_for("local");
    assert_eq!(answer["structuredContent"]["stdout"], "x\n", "the control: {answer}");
    assert!(hooks >= 2, "both are in the log");
}

#[test]
fn a_hook_needs_a_rule_without_network() {
    let refused = |policy: &str, more: &[&str]| {
        let directory = own("on = [\"cli_mine\"]", policy);
        let mut command = std::process::Command::new(PROGRAM);
        command.arg("--config").arg(directory.path()).arg("serve").args(more);
        let output = command.stdin(std::process::Stdio::null()).output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), error)
    };
    let policy = mine("echo", &hook("check", "true", ""));
    let (code, error) = refused(&policy, &[]);
    assert_eq!(code, Some(125), "{error}");
    assert!(error.contains("`cli_mine` has a hook that may not run: denied by rule"), "{error}");
    assert!(error.ends_with("names the profile of such scripts\n"), "{error}");

    // A network that is added to the profile at the start closes the way too.
    let directory = own("on = [\"cli_mine\"]", &(policy + RULE));
    let path = directory.path().display().to_string();
    let mut server = Server::start(&["--config", &path, "--egress", "10.0.0.1:80"]);
    let answer = asked(&mut server, "cli_mine", json!({}));
    let error = "the operator's check hook cannot run: its profile `bash` has a network; the call was not made";
    assert_eq!((&answer["error"], &answer["stdout"]), (&json!(error), &json!("")), "{answer}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn cached_answers_are_used_until_cleared() {
    // The hook gives another reason each time.
    let script = "echo $EPOCHREALTIME; exit 1";
    let (_directory, mut server) = with("echo", &hook("check", script, "remember = true"));
    let ask = |server: &mut Server, word: &str| {
        asked(server, "cli_mine", json!({"word": [word]}))["error"].clone()
    };
    let first = ask(&mut server, "a");
    assert_eq!(ask(&mut server, "a"), first);
    assert_ne!(ask(&mut server, "b"), first, "another call");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.child.id()).expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGUSR2).expect("it lives");
    let end = std::time::Instant::now() + crate::server::patience::patience();
    while ask(&mut server, "a") == first {
        assert!(std::time::Instant::now() < end, "it is remembered for ever");
    }
    assert_eq!(server.close(), Some(0));
    let (_directory, mut server) = with("echo", &hook("check", script, ""));
    assert_ne!(ask(&mut server, "a"), ask(&mut server, "a"), "without `remember` each is asked");
    assert_eq!(server.close(), Some(0));
}
