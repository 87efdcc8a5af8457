//! Shipped command-line tools against servers of a laboratory: compared with the same programs run bare, and held to the
//! target of each call by the gateway.

#![expect(clippy::indexing_slicing, reason = "a JSON value without the key is null")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Makes calls of one server in the laboratory. Returns nothing where it cannot be made.
fn results(calls: &Value, server: &[&str]) -> Option<BTreeMap<String, Value>> {
    if !nix::unistd::geteuid().is_root() {
        assert!(std::env::var_os("COFFERDAM_MUST_RUN").is_none(), "run as root");
        return None;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("calls.json");
    std::fs::write(&file, calls.to_string()).expect("written");
    let at =
        |name: &str| format!("{}/tests/products/tools_network/{name}", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("unshare")
        .args(["--mount", "--net", "--fork", "--kill-child", "bash", &at("lab.sh")])
        .arg(scratch.path())
        .args(["python3", &at("calls.py")])
        .arg(&file)
        .arg(env!("CARGO_BIN_EXE_cofferdam"))
        .args(server)
        .output()
        .expect("unshare runs");
    let error = String::from_utf8_lossy(&output.stderr);
    let results: BTreeMap<String, Value> = serde_json::from_slice(&output.stdout).expect(&error);
    let fields = |result: Value| result.get("structuredContent").cloned().unwrap_or(result);
    Some(results.into_iter().map(|(name, result)| (name, fields(result))).collect())
}

const TOOLS: [&str; 3] = ["serve", "--on", "cli_nmap,cli_ping,cli_traceroute,cli_dig,cli_curl"];

fn text<'r>(result: &'r Value, field: &str) -> &'r str {
    result.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the lines of nmap's report about hosts and ports.
fn scanned(report: &str) -> Vec<&str> {
    let is_one = |line: &&str| {
        line.starts_with("Nmap scan report for ")
            || line.starts_with("PORT ")
            || line.starts_with("Not shown: ")
            || line.starts_with('|')
            || line.starts_with(|c: char| c.is_ascii_digit())
    };
    report.lines().filter(is_one).collect()
}

/// Returns a text without its numbers, which differ from run to run, and without the hops that an answer may go: in a
/// cell it comes from the gateway.
fn shape(text: &str) -> String {
    let kept = text.lines().filter(|line| !line.starts_with("rtt") && !line.trim().is_empty());
    let numbers = |line: &str| {
        let differs = |word: &&str| word.contains("time") || word.starts_with("ttl=");
        let words = line.split_whitespace().filter(|word| !differs(word));
        words
            .map(|word| if word.contains('.') && word.parse::<f64>().is_ok() { "N" } else { word })
            .collect::<Vec<_>>()
            .join(" ")
    };
    let whole = |line: &str| numbers(line).split(" loss").next().unwrap_or_default().to_owned();
    kept.map(whole).collect::<Vec<_>>().join("\n")
}

/// Pairs of a call and the same program bare, as the results name them: `NAME` and `NAME/bare`.
const PAIRS: [(&str, &str, &str, &[&str]); 14] = [
    (
        "nmap scripts",
        "cli_nmap",
        r#"{"target":"10.9.0.2","extra_args":"-Pn --script http-title --reason -p 80-81"}"#,
        &[
            "nmap",
            "-n",
            "-T4",
            "-Pn",
            "--script",
            "http-title",
            "--reason",
            "-p",
            "80-81",
            "10.9.0.2",
        ],
    ),
    (
        "nmap many",
        "cli_nmap",
        r#"{"target":"10.9.0.2","extra_args":"-Pn -p 22-79,84-150"}"#,
        &["nmap", "-n", "-T4", "-Pn", "-p", "22-79,84-150", "10.9.0.2"],
    ),
    (
        "nmap",
        "cli_nmap",
        r#"{"target":"10.9.0.2","extra_args":"-Pn -p 22,25,53,79-82"}"#,
        &[
            "nmap",
            "-n",
            "-T4",
            "--max-parallelism",
            "10",
            "-Pn",
            "-p",
            "22,25,53,79-82",
            "10.9.0.2",
        ],
    ),
    (
        "nmap6",
        "cli_nmap",
        r#"{"target":"fd12::2","extra_args":["-6","-Pn","-p","79-80"]}"#,
        &["nmap", "-n", "-T4", "-6", "-Pn", "-p", "79-80", "fd12::2"],
    ),
    (
        "ping",
        "cli_ping",
        r#"{"target":"10.9.0.2","extra_args":"-c 2 -i 0.2"}"#,
        &["ping", "-n", "-c", "2", "-i", "0.2", "10.9.0.2"],
    ),
    (
        "ping6",
        "cli_ping",
        r#"{"target":"fd12::2","extra_args":"-c 1"}"#,
        &["ping", "-n", "-c", "1", "fd12::2"],
    ),
    (
        "loss",
        "cli_ping",
        r#"{"target":"10.9.0.4","extra_args":"-c 2 -i 0.2 -W 1"}"#,
        &["ping", "-n", "-c", "2", "-i", "0.2", "-W", "1", "10.9.0.4"],
    ),
    (
        "half",
        "cli_ping",
        r#"{"target":"10.9.0.5","extra_args":"-c 4 -i 0.2 -W 1"}"#,
        &["ping", "-n", "-c", "4", "-i", "0.2", "-W", "1", "10.9.0.5"],
    ),
    (
        "lossy",
        "cli_curl",
        r#"{"url":"http://10.9.0.2:83/"}"#,
        &["curl", "-q", "-sS", "http://10.9.0.2:83/"],
    ),
    (
        "traceroute",
        "cli_traceroute",
        r#"{"target":"10.8.0.2","extra_args":"-q 1 -m 4"}"#,
        &["traceroute", "-n", "-q", "1", "-m", "4", "10.8.0.2"],
    ),
    (
        "echo",
        "cli_traceroute",
        r#"{"target":"10.8.0.2","extra_args":"-I -N 1 -q 1 -m 4"}"#,
        &["traceroute", "-n", "-I", "-N", "1", "-q", "1", "-m", "4", "10.8.0.2"],
    ),
    (
        "dig",
        "cli_dig",
        r#"{"name":"two.lab.internal","extra_args":"+short"}"#,
        &["dig", "-r", "+short", "two.lab.internal"],
    ),
    (
        "server",
        "cli_dig",
        r#"{"server":"10.9.0.53","name":"six.lab.internal","type":"AAAA","extra_args":"+short"}"#,
        &["dig", "-r", "+short", "@10.9.0.53", "six.lab.internal", "AAAA"],
    ),
    (
        "curl",
        "cli_curl",
        r#"{"url":"http://web.lab.internal/here","extra_args":"-L"}"#,
        &["curl", "-q", "-sS", "-L", "http://web.lab.internal/here"],
    ),
];

#[test]
fn tools_find_what_they_find_without_a_cell() {
    let calls = PAIRS.iter().flat_map(|(name, tool, given, words)| {
        let given: Value = serde_json::from_str(given).expect("JSON");
        [json!([name, tool, given]), json!([format!("{name}/bare"), null, words])]
    });
    let more = [json!(["dig long", "cli_dig", { "name": "two.lab.internal" }])];
    let Some(results) = results(&calls.chain(more).collect(), &TOOLS) else { return };
    for (name, ..) in PAIRS {
        let caged = &results[name];
        let bare = &results[&format!("{name}/bare")];
        let ours = text(caged, "stdout");
        let theirs = text(bare, "stdout");
        assert_eq!(caged["returncode"], bare["code"], "{name}: {caged}\n{bare}");
        match name.starts_with("nmap") {
            true => assert_eq!(scanned(ours), scanned(theirs), "{name}: {caged}"),
            false => assert_eq!(shape(ours), shape(theirs), "{name}: {caged}"),
        }
        assert!(!ours.is_empty(), "{name}: {caged}");
    }
    let report = text(&results["nmap"], "stdout");
    assert_eq!(scanned(report).len(), 9, "a host, a heading and seven ports: {report}");
    assert!(scanned(report).contains(&"81/tcp filtered hosts2-ns"), "{report}");
    assert!(report.contains("1 IP address (1 host up) scanned in "), "{report}");
    let metadata = &results["nmap"]["metadata"];
    assert_eq!(metadata["summary"], "1 of 1 hosts up, 2 open ports");
    assert_eq!(
        metadata["hosts"][0]["ports"][5],
        json!({
            "port": 81, "protocol": "tcp", "state": "filtered", "service": "hosts2-ns",
        })
    );
    assert!(text(&results["loss"], "stdout").contains("100% packet loss"), "{}", results["loss"]);
    let half = text(&results["half"], "stdout");
    assert!(half.contains("4 packets transmitted, 2 received, 50% packet loss"), "{half}");
    assert_eq!(text(&results["lossy"], "stdout"), "hello from 10.9.0.2 83");
    summaries(&results);
    assert_eq!(text(&results["dig"], "stdout"), "10.9.0.2\n10.9.0.3\n");
    assert!(text(&results["traceroute"], "stdout").contains("\n 1  10.9.0.2"));
}

/// Checks what results say in one line, and that their data agrees.
fn summaries(results: &BTreeMap<String, Value>) {
    let metadata = |name: &str| &results[name]["metadata"];
    assert_eq!(metadata("ping")["summary"], "2 of 2 requests answered, 0% lost");
    assert_eq!(metadata("half")["summary"], "2 of 4 requests answered, 50% lost");
    assert_eq!(metadata("loss")["summary"], "0 of 2 requests answered, 100% lost");
    let replies = metadata("half")["parsed"]["replies"].as_array().map(Vec::as_slice);
    let numbers: Vec<&Value> = replies.unwrap_or_default().iter().map(|one| &one["seq"]).collect();
    assert_eq!(numbers, [&json!(1), &json!(3)]);
    assert_eq!(metadata("ping6")["parsed"]["replies"][0]["from"], "fd12::2");
    assert_eq!(metadata("traceroute")["summary"], "2 hops");
    assert_eq!(metadata("traceroute")["parsed"]["hops"][1]["from"], "10.8.0.2");
    assert_eq!(metadata("dig long")["summary"], "NOERROR, 2 answers");
    let record = json!({"name": "two.lab.internal.", "ttl": 60, "type": "A", "data": "10.9.0.2"});
    let records = metadata("dig long")["parsed"]["records"].as_array();
    let found = records.is_some_and(|all| {
        all.iter().any(|one| one["data"] == record["data"] && one["name"] == record["name"])
    });
    assert!(found, "{}", metadata("dig long"));
}

#[test]
fn curl_writes_its_answer_into_the_workspace_and_nowhere_else() {
    let workspace = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(workspace.path().join(".git")).expect("a directory");
    std::fs::write(workspace.path().join(".git/config"), "[core]\n").expect("written");
    // What a cell writes belongs to the owner of the directory.
    let granted = workspace.path().display().to_string();
    let save = |to: &str| json!({ "url": "http://10.9.0.2/", "extra_args": ["-o", to] });
    let calls = json!([
        ["save", "cli_curl", save("page.txt")],
        ["long", "cli_curl", { "url": "http://10.9.0.2/", "extra_args": "-s --output long.txt" }],
        ["read", "bash", { "command": "cat page.txt" }],
        ["hook", "cli_curl", save(".git/hooks/post-checkout")],
        ["config", "cli_curl", save(".git/config")],
        ["envrc", "cli_curl", save(".envrc")],
        ["outside", "cli_curl", save("/tmp/page.txt")],
        ["stdout", "cli_curl", save("-")],
    ]);
    let server = ["serve", "--on", "cli_curl", "--workspace", &granted];
    let Some(results) = results(&calls, &server) else { return };
    for name in ["save", "long"] {
        assert_eq!(results[name]["returncode"], 0, "{name}: {}", results[name]);
        assert_eq!(text(&results[name], "stdout"), "", "{name}");
    }
    assert_eq!(text(&results["read"], "stdout"), "hello from 10.9.0.2 80", "{}", results["read"]);
    let written = std::fs::read_to_string(workspace.path().join("long.txt")).unwrap_or_default();
    assert_eq!(written, "hello from 10.9.0.2 80");
    // curl's exit code 23: the file cannot be written. These are files that the host would obey.
    for name in ["hook", "config", "envrc"] {
        assert_eq!(results[name]["returncode"], 23, "{name}: {}", results[name]);
    }
    let config = std::fs::read_to_string(workspace.path().join(".git/config"));
    assert_eq!(config.ok().as_deref(), Some("[core]\n"));
    assert!(!workspace.path().join(".envrc").exists());
    for name in ["outside", "stdout"] {
        assert_eq!(text(&results[name], "error_type"), "validation_error", "{name}");
    }
}

#[test]
fn ping_has_the_remedy_where_the_host_lets_no_program_send() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    // A new network namespace has the kernel's default, an empty range of groups.
    let network = "ip link add near type veth peer name far && ip addr add 10.99.0.1/8 dev near && \
                   ip link set near up && ip link set far up && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--net", "--fork", "--kill-child", "bash", "-c", network, "bash"]);
    command.args([env!("CARGO_BIN_EXE_cofferdam"), "serve", "--on", "cli_ping"]);
    let mut server = crate::server::Server::of(command);
    let arguments = json!({ "target": "10.0.0.1", "extra_args": "-c 1 -W 1" });
    let answer = server.result("cli_ping", arguments)["structuredContent"].clone();
    let reason = "the host lets no program send echo requests; its operator can: \
                  sysctl -w net.ipv4.ping_group_range='0 2147483647'";
    assert_eq!(text(&answer["network"]["denied"][0], "why"), reason, "{answer}");
    let context = &answer["metadata"]["error_context"];
    assert_eq!(context["recovery_suggestion"], reason, "{answer}");
    assert_eq!(server.close(), Some(0));
}

#[test]
fn the_gateway_holds_a_call_to_its_target() {
    let calls = json!([
        ["control", "cli_curl", { "url": "http://10.9.0.3/" }],
        ["away", "cli_curl", { "url": "http://10.9.0.2/away", "extra_args": "-L" }],
        ["port", "cli_curl", { "url": "http://10.9.0.2/port", "extra_args": "-L" }],
        ["name", "cli_curl", { "url": "http://10.9.0.2/name", "extra_args": "-L" }],
        ["public", "cli_curl", { "url": "http://public.lab.internal/" }],
        ["other", "cli_dig", { "server": "10.9.0.3", "name": "web.lab.internal" }],
    ]);
    let Some(results) = results(&calls, &TOOLS) else { return };
    assert_eq!(text(&results["control"], "stdout"), "hello from 10.9.0.3 80");
    // curl's exit codes: 6 for a name that is not known, 7 for a connection that was refused.
    for (name, code, to, reason) in [
        ("away", 7, "10.9.0.3:80", "not what this call may reach"),
        ("port", 7, "10.9.0.2:8081", "not what this call may reach"),
        ("name", 6, "web.lab.internal", "not what this call may reach"),
        (
            "public",
            7,
            "public.lab.internal:80",
            "an address outside the networks that this call may reach",
        ),
    ] {
        let result = &results[name];
        assert_eq!(result["returncode"], code, "{name}: {result}");
        let denied = &result["network"]["denied"][0];
        assert_eq!((text(denied, "to"), text(denied, "why")), (to, reason), "{name}: {result}");
        // No grant would help: the call is narrower than its profile.
        assert_eq!(denied.get("grant"), None, "{name}: {result}");
        let context = &result["metadata"]["error_context"];
        let way = "Check network connectivity and firewall rules.";
        assert_eq!(context["recovery_suggestion"], way, "{name}: {result}");
        assert_eq!(context["metadata"], json!({}), "{name}: {result}");
    }
    assert_eq!(results["other"]["returncode"], 9, "{}", results["other"]);
}

/// Words that are no flags of the list, among them those that a shell would obey.
const BAD_WORDS: &[&str] = &[
    "-sT;id",
    "-sT & id",
    "-p 80 | id",
    "`id`",
    "$(id)",
    "${HOME}",
    "-oN ../../x",
    "-p\u{0}80",
    "-sT\nid",
    "-sT\rid",
    "\u{2212}sT",
    "\u{2010}sT",
    "--top-port 10",
    "-sVC",
    "-p80",
    "--",
    "-",
    "10.9.0.3",
    "-iL /workspace/targets",
    "-iR 10",
    "--script-args a=b",
    "-sS",
    "-sU",
    "-O",
];
/// Words that are no target in a private network.
const BAD_TARGETS: &[&str] = &[
    "8.8.8.8",
    "10.9.0.2;id",
    "10.9.0.2 10.9.0.3",
    "10.9.0.2,3",
    "10.9.0.1-9",
    "10.9.0.*",
    "10.0.0.0/8",
    "::ffff:10.9.0.2",
    "169.254.169.254",
    "127.0.0.1",
    "localhost",
    "../etc",
    "-iL",
    "$(id)",
    "evil.example.org",
];

#[test]
fn invalid_flags_and_targets_run_nothing() {
    let mut calls: Vec<Value> = BAD_WORDS
        .iter()
        .map(|words| json!([words, "cli_nmap", { "target": "10.9.0.2", "extra_args": words }]))
        .collect();
    calls.extend(BAD_TARGETS.iter().map(|to| json!([to, "cli_nmap", { "target": to }])));
    calls.push(json!(["dry", "cli_nmap", { "target": "10.9.0.0/30", "template": "quick", "dry_run": true }]));
    let Some(results) = results(&Value::Array(calls), &TOOLS) else { return };
    for name in BAD_WORDS.iter().chain(BAD_TARGETS) {
        let result = &results[*name];
        assert_eq!(text(result, "error_type"), "validation_error", "{name:?}: {result}");
    }
    for flag in ["-sS", "-sU", "-O"] {
        let printed = "needs raw sockets; -sT gives the same port states";
        assert!(text(&results[flag], "error").contains(printed), "{}", results[flag]);
    }
    let large = &results["10.0.0.0/8"]["metadata"]["error_context"]["metadata"];
    assert_eq!(large["suggested_cidr"], "/22", "{large}");
    let dry = &results["dry"]["metadata"];
    let expected = "nmap -oX - -n --max-parallelism 10 -T4 --top-ports 100 10.9.0.0/30";
    assert_eq!((text(dry, "command"), text(dry, "egress")), (expected, "10.9.0.0/30"), "{dry}");
}

/// Configuration of an operator: `bash` may use one of two rules, and both come from the server's file.
const POLICY: &str = r#"schema = 1
extends = "shipped"
[[rule]]
id = "shell"
tools = ["bash"]
action = "allow"
profile = "bash"
egress = ["10.9.0.2:80"]
why = "one host of two"
matches = [{ tool = "bash" }]
not_matches = [{ tool = "calculate" }]
"#;

#[test]
fn a_rule_narrows_the_operators_grants() {
    let configuration = tempfile::tempdir().expect("a directory");
    let at = |name: &str| configuration.path().join(name);
    let write = |path: &Path, text: &str| std::fs::write(path, text).expect("written");
    std::fs::create_dir(at("policies")).expect("a directory");
    write(&at("policies/own.toml"), POLICY);
    let audit = at("audit/audit.jsonl");
    let server = format!(
        "schema = 1\n[server]\negress = [\"10.9.0.2:80\", \"10.9.0.3:80\"]\n\
         [tools]\ngroups = [\"shell\", \"exec\"]\n[audit]\nfile = \"{}\"\n",
        audit.display()
    );
    write(&at("cofferdam.toml"), &server);
    let target = configuration.path().display().to_string();
    let both = "for a in 2 3; do curl -s -m 5 http://10.9.0.$a/; echo \" $?\"; done";
    let calls = json!([
        ["narrowed", "bash", { "command": both }],
        ["all", "bash_exec", { "command": both }],
        ["rules", "sandbox_rules", {}],
    ]);
    let Some(results) = results(&calls, &["--config", &target, "serve"]) else { return };
    let output = |name: &str| text(&results[name], "stdout").to_owned();
    assert_eq!(output("narrowed"), "hello from 10.9.0.2 80 0\n 7\n", "{}", results["narrowed"]);
    let every = "hello from 10.9.0.2 80 0\nhello from 10.9.0.3 80 0\n";
    assert_eq!(output("all"), every, "{}", results["all"]);
    let network = text(&results["rules"], "network");
    assert!(network.contains("10.9.0.2/32") && !network.contains("10.9.0.3"), "{network}");

    // Each connection is a line of the audit log, and so is each that was denied.
    let log = std::fs::read_to_string(&audit).expect("a log");
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut connections: Vec<String> = lines
        .filter(|line| line["event"] == "connection")
        .map(|line| format!("{} {} {}", line["tool"], line["address"], line["verdict"]))
        .map(|line| line.replace('"', ""))
        .collect();
    connections.sort();
    let expected = [
        "bash 10.9.0.2:80 relayed",
        "bash 10.9.0.3:80 denied",
        "bash_exec 10.9.0.2:80 relayed",
        "bash_exec 10.9.0.3:80 relayed",
    ];
    assert_eq!(connections, expected, "{log}");

    // A rule that matches no tool is reported at the start.
    write(&at("policies/own.toml"), &POLICY.replace("10.9.0.2:80", "10.9.0.2:81"));
    let output = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
        .args(["--config", &target, "serve"])
        .stdin(std::process::Stdio::null())
        .output()
        .expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_ne!(output.status.code(), Some(0));
    assert!(error.contains("leaves its calls the egress `10.9.0.2:81`"), "{error}");
    assert!(error.contains("did you mean `10.9.0.2:80`?"), "{error}");
}
