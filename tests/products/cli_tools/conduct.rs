//! Declared tools: dry runs, argument templates, concurrency, retries, the circuit breaker, structured output.

use std::time::Duration;

use serde_json::{Value, json};

use super::own::own;
use super::{asked, names, serving};
use crate::server::Server;
use crate::server::patience::patience;

/// `cli_mine`, which runs `program` as the keys of `conduct` say.
pub(crate) fn mine(program: &str, conduct: &str) -> String {
    format!(
        r#"
[[tool]]
name = "cli_mine"
program = "{program}"
why = "this test calls it"
accepts = [{{ args = ["-c"] }}]
refuses = [{{ args = ["--help"] }}]
{conduct}
[[tool.flag]]
flag = "-c"
why = "a flag"
[[tool.flag]]
flag = "--text"
arity = 1
kind = "text"
why = "a word"
[[tool.positional]]
name = "word"
kind = "text"
min = 0
max = 3
why = "words"

[[rule]]
id = "mine"
tools = ["cli_mine"]
action = "allow"
profile = "bash"
limits = {{ timeout = "20s" }}
why = "this test calls it"
matches = [{{ tool = "cli_mine" }}]
not_matches = [{{ tool = "bash" }}]
"#
    )
}

/// A server with that tool; the directory is its configuration.
fn with(program: &str, conduct: &str) -> (tempfile::TempDir, Server) {
    let directory = own("on = [\"cli_mine\"]", &mine(program, conduct));
    let server = serving(directory.path(), None);
    (directory, server)
}

#[test]
fn a_dry_run_prints_the_command_and_runs_no_cell() {
    let conduct = "timeout = \"7s\"\nalways = [\"-n\"]\n\
        [[tool.default]]\nargs = [\"-T4\"]\nunless = [\"--text\"]\nwhy = \"usual\"\n\
        [[tool.template]]\nname = \"quick\"\nargs = [\"-q\", \"1\"]\nwhy = \"fast\"\n";
    let (_directory, mut server) = with("echo", conduct);
    let arguments = json!({"dry_run": true, "extra_args": "-c", "word": ["a b"]});
    let answer = asked(&mut server, "cli_mine", arguments.clone());
    assert_eq!(answer["stdout"], "Would execute: echo -n -T4 -c 'a b'", "{answer}");
    let metadata = json!({
        "dry_run": true, "command": "echo -n -T4 -c 'a b'", "argv": ["echo", "-n", "-T4", "-c", "a b"],
        "rule": "mine", "profile": "bash", "timeout_sec": 7.0, "clamped": false
    });
    assert_eq!((&answer["metadata"], &answer["returncode"]), (&metadata, &json!(0)));
    // No cell: nothing protected it.
    let result = server.result("cli_mine", arguments);
    assert_eq!(result["_meta"].get("cofferdam/receipt"), None, "{result}");
    // The same words run.
    let answer = asked(&mut server, "cli_mine", json!({"extra_args": "-c", "word": ["a b"]}));
    assert_eq!(answer["stdout"], "-T4 -c a b", "{answer}");
    let answer = asked(
        &mut server,
        "cli_mine",
        json!({"dry_run": true, "template": "quick", "extra_args": ["--text", "x y"]}),
    );
    assert_eq!(answer["metadata"]["argv"], json!(["echo", "-n", "-q", "1", "--text", "x y"]));
    let answer = asked(&mut server, "cli_mine", json!({"template": "slow"}));
    assert_eq!(
        answer["error"], "cli_mine: there is no template `slow`\nhint: the templates are quick",
        "{answer}"
    );
    assert_eq!(server.close(), Some(0));
}

#[test]
fn argument_strings_are_split_without_a_shell() {
    let (_directory, mut server) = with("echo", "");
    let argv = |server: &mut Server, text: &str| {
        let answer = asked(server, "cli_mine", json!({"dry_run": true, "extra_args": text}));
        match answer["error"].as_str() {
            Some(_) => Err(answer["error_type"].clone()),
            None => Ok(answer["metadata"]["argv"].clone()),
        }
    };
    assert_eq!(
        argv(&mut server, "--text 'Accept: a \"b\"' -c"),
        Ok(json!(["echo", "--text", "Accept: a \"b\"", "-c"]))
    );
    assert_eq!(argv(&mut server, "--text a\\ b"), Ok(json!(["echo", "--text", "a b"])));
    // The reference implementation's own list, and what hides words.
    let refused = [
        "-c ; rm -rf /",
        "-c & wget x",
        "-c | nc x 1",
        "-c `whoami`",
        "-c $(curl x)",
        "--text $VAR",
        "--text ${SHELL}",
        "../../../etc/passwd",
        "..\\..\\windows",
        "\u{0}",
        "-c\u{0}x",
        "--text a\nb",
        "--text 'a\nb'",
        "--text a\rb",
        "-c > x",
        "-c < x",
        "--text 'x",
        "-c #x",
        "x\\",
        "-c=x",
        "--te x",
        "-cc",
        "--",
        "\u{2013}c",
        "\u{2014}text x",
    ];
    for text in refused {
        assert_eq!(argv(&mut server, text), Err(json!("validation_error")), "{text:?}");
    }
    let long = format!("--text {}", "x".repeat(2048));
    assert_eq!(argv(&mut server, &long), Err(json!("validation_error")));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn consecutive_failures_open_the_breaker() {
    let conduct = "breaker = { failures = 2, recovery = \"2s\" }";
    let (_directory, mut server) = with("no-such-program", conduct);
    for _ in 0..2 {
        let answer = asked(&mut server, "cli_mine", json!({}));
        assert_eq!(answer["error_type"], "not_found", "{answer}");
    }
    let answer = asked(&mut server, "cli_mine", json!({"correlation_id": "c-1"}));
    assert_eq!(answer["error_type"], "circuit_breaker_open", "{answer}");
    let context = &answer["metadata"]["error_context"];
    assert_eq!(
        (&context["error_type"], &context["tool_name"], &answer["correlation_id"]),
        (&json!("circuit_breaker_open"), &json!("cli_mine"), &json!("c-1"))
    );
    let suggestion = "Wait for the recovery time; the calls before this one failed.";
    assert_eq!(context["recovery_suggestion"], suggestion);
    let about = asked(&mut server, "get_tool_info", json!({"tool": "cli_mine"}));
    assert_eq!(
        (&about["circuit_breaker"]["state"], &about["health"], &about["metrics"]["calls"]),
        (&json!("open"), &json!("unhealthy"), &json!(3)),
        "{about}"
    );
    std::thread::sleep(Duration::from_secs(2));
    let answer = asked(&mut server, "cli_mine", json!({}));
    assert_eq!(answer["error_type"], "not_found", "it is tried again: {answer}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn an_exit_code_is_an_answer_that_opens_no_breaker() {
    let (_directory, mut server) = with("false", "breaker = { failures = 1 }");
    for _ in 0..3 {
        let answer = asked(&mut server, "cli_mine", json!({}));
        assert_eq!(
            (&answer["returncode"], &answer["error_type"]),
            (&json!(1), &json!("execution_error"))
        );
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn failed_calls_are_retried_as_configured() {
    let conduct = "retries = { times = 2, delay = \"10ms\", codes = [1], why = \"it may work\" }";
    let (_directory, mut server) = with("false", conduct);
    let answer = asked(&mut server, "cli_mine", json!({}));
    assert_eq!((&answer["metadata"]["attempts"], &answer["returncode"]), (&json!(3), &json!(1)));
    assert_eq!(server.close(), Some(0));
    // A code that is not listed is the answer.
    let (_directory, mut server) = with("false", &conduct.replace("[1]", "[2]"));
    let answer = asked(&mut server, "cli_mine", json!({}));
    assert_eq!((&answer["metadata"].get("attempts"), &answer["returncode"]), (&None, &json!(1)));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn concurrent_calls_of_a_tool_are_limited() {
    let (_directory, mut server) = with("sleep", "concurrency = 1\nqueue = 1");
    for _ in 0..3 {
        server.call("cli_mine", json!({"word": ["1"]}));
    }
    // In the order in which they come: the one that is refused first.
    let report: Vec<Value> = (0..3)
        .map(|_| server.lines.recv_timeout(patience()).expect("an answer in time"))
        .map(|answer| answer["result"]["structuredContent"].clone())
        .collect();
    let kinds: Vec<&Value> = report.iter().map(|one| &one["error_type"]).collect();
    let exhausted = kinds.iter().filter(|kind| **kind == "resource_exhausted").count();
    assert_eq!((exhausted, kinds.len()), (1, 3), "{report:?}");
    // The second waited for the first.
    let slow = report.iter().filter(|one| one["error"].is_null()).count();
    assert_eq!(slow, 2, "{report:?}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn structured_output_is_parsed() {
    let (_directory, mut server) = with("echo", "output = \"json\"");
    let answer = asked(&mut server, "cli_mine", json!({"word": ["{\"a\": [1]}"]}));
    assert_eq!(answer["metadata"]["json"], json!({"a": [1]}), "{answer}");
    assert_eq!(answer["stdout"], "{\"a\": [1]}\n");
    let answer = asked(&mut server, "cli_mine", json!({"word": ["x"]}));
    let reason = answer["metadata"]["parse_error"].as_str().unwrap_or_default();
    assert!(reason.starts_with("the output is no JSON: "), "{answer}");
    assert_eq!(answer["returncode"], 0, "it is data, not an error");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn get_tool_info_exists_if_there_are_tools() {
    let (_directory, mut server) = with("echo", "concurrency = 5");
    assert!(names(&mut server).contains(&"get_tool_info".to_owned()));
    let about = asked(&mut server, "get_tool_info", json!({"tool": "cli_mine"}));
    assert_eq!(
        (&about["performance"]["concurrency"], &about["allowed_operations"]["flags_count"]),
        (&json!(5), &json!(2)),
        "{about}"
    );
    let result = server.result("get_tool_info", json!({"tool": "cli_min"}));
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.ends_with("hint: did you mean `cli_mine`?"), "{text}");
    assert_eq!(server.close(), Some(0));
    let mut server = Server::start(&[]);
    assert!(!names(&mut server).contains(&"get_tool_info".to_owned()));
    assert_eq!(server.close(), Some(0));
}

#[test]
fn the_audit_log_repeats_the_callers_id() {
    let directory = own("on = [\"cli_mine\"]", &mine("echo", ""));
    let log = directory.path().join("log");
    let file = log.join("audit.jsonl");
    let text = format!(
        "schema = 1\n[tools]\non = [\"cli_mine\"]\n[audit]\nfile = \"{}\"\n",
        file.display()
    );
    std::fs::write(directory.path().join("cofferdam.toml"), text).expect("written");
    let mut server = serving(directory.path(), None);
    asked(&mut server, "cli_mine", json!({"correlation_id": "mine-7"}));
    asked(&mut server, "cli_mine", json!({"dry_run": true, "correlation_id": "mine-8"}));
    let answer = asked(&mut server, "cli_mine", json!({"correlation_id": "x\u{7}"}));
    assert_eq!(answer["error_type"], "validation_error", "{answer}");
    assert_eq!(server.close(), Some(0));
    let lines: Vec<Value> = std::fs::read_to_string(&file)
        .expect("it is written")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let ids: Vec<&str> = lines.iter().filter_map(|line| line["correlation_id"].as_str()).collect();
    assert_eq!(ids, ["mine-7", "mine-8"], "{lines:?}");
    let ends: Vec<&str> = lines.iter().filter_map(|line| line["outcome"].as_str()).collect();
    assert_eq!(ends, ["exited", "dry_run"], "{lines:?}");
}

/// `cli_mine`, which takes one word of a kind.
fn pointed(kind: &str) -> (tempfile::TempDir, Server) {
    let policy = mine("echo", "").replace("kind = \"text\"\nmin", &format!("{kind}\nmin"));
    let directory = own("on = [\"cli_mine\"]", &policy);
    let server = serving(directory.path(), None);
    (directory, server)
}

#[test]
fn targets_are_private_unless_configured() {
    let output = |server: &mut Server, word: &str| {
        asked(server, "cli_mine", json!({"dry_run": true, "word": [word]}))
    };
    let (_directory, mut server) = pointed("kind = \"target\"");
    for word in ["10.1.2.3", "192.168.0.0/24", "fd00::1", "web.lab.internal"] {
        assert_eq!(output(&mut server, word)["metadata"]["argv"], json!(["echo", word]), "{word}");
    }
    for word in
        ["8.8.8.8", "example.org", "127.0.0.1", "10.0.0.0/7", "0x0a000001", "::ffff:10.0.0.1"]
    {
        assert_eq!(output(&mut server, word)["error_type"], "validation_error", "{word}");
    }
    let large = output(&mut server, "10.0.0.0/16");
    let facts = json!({
        "network_size": 65536, "max_allowed": 1024, "suggested_cidr": "/22"
    });
    let context = &large["metadata"]["error_context"];
    assert_eq!((&context["metadata"], &context["target"]), (&facts, &json!("10.0.0.0/16")));
    assert_eq!(context["recovery_suggestion"], "Use /22 or smaller");
    assert_eq!(server.close(), Some(0));
    let (_directory, mut server) = pointed("kind = \"host\"\nwithin = [\"*.example.org\"]");
    assert_eq!(output(&mut server, "a.example.org")["error"], json!(null));
    assert_eq!(
        output(&mut server, "10.1.2.3")["error"],
        "cli_mine: word `10.1.2.3` is not within *.example.org\n\
         hint: the tool is for these places alone; the operator can name others with `within`"
    );
    let context = &output(&mut server, "10.1.2.3")["metadata"]["error_context"];
    let way = "Run with appropriate permissions or adjust policy.";
    assert_eq!(context["recovery_suggestion"], way);
    assert_eq!(server.close(), Some(0));
    let (_directory, mut server) = pointed("kind = \"url\"");
    for (word, taken) in [
        ("http://10.1.2.3:8080/a?b=c", true),
        ("https://[fd00::1]/", true),
        ("http://web.lab.internal", true),
        ("http://example.org/10.1.2.3", false),
        ("http://10.1.2.3.example.org/", false),
        ("http://10.1.2.3@example.org/", false),
    ] {
        assert_eq!(output(&mut server, word)["error"].is_null(), taken, "{word}");
    }
    assert_eq!(server.close(), Some(0));
}

#[test]
fn ports_are_numbers_and_ranges_within_bounds() {
    let (_directory, mut server) = pointed("kind = \"ports\"");
    let many = ["1"; 101].join(",");
    for (word, argv) in [
        ("22,80-90", Some("22,80-90")),
        ("022", Some("22")),
        ("1-65535", Some("1-65535")),
        ("7-7", Some("7")),
        ("0", None),
        ("65536", None),
        ("90-80", None),
        ("T:22", None),
        ("22,", None),
        ("1-2-3", None),
        ("+1", None),
        (&many, None),
    ] {
        let answer = asked(&mut server, "cli_mine", json!({"dry_run": true, "word": [word]}));
        assert_eq!(answer["metadata"]["argv"][1].as_str(), argv, "{answer}");
    }
    assert_eq!(server.close(), Some(0));
}
