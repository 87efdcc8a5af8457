//! The example projects of mcp-bash-framework, unmodified, where `MCPBASH_EXAMPLES` names their folder (commit 581f2e6 of
//! yaniv-golan/mcp-bash-framework): `make test-examples EXAMPLES=DIR`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::transcript::until;
use crate::server::{PROGRAM, Server};

/// Copies an example, and serves it to a client that can be asked.
fn served(directory: &tempfile::TempDir, name: &str, more: &str) -> Server {
    served_with(directory, name, more, &[])
}

fn served_with(directory: &tempfile::TempDir, name: &str, more: &str, words: &[&str]) -> Server {
    let examples = std::env::var_os("MCPBASH_EXAMPLES")
        .expect("MCPBASH_EXAMPLES names the folder of the examples");
    let path = directory.path().join("p");
    let copied =
        Command::new("cp").arg("-a").arg(PathBuf::from(examples).join(name)).arg(&path).status();
    assert!(copied.expect("cp").success(), "{name}");
    let owned = Command::new("sh")
        .args(["-c", "chown -R \"$(id -u)\" \"$1\" && chmod -R u+rwX,go+rX,go-w \"$1\"", "sh"])
        .arg(&path)
        .status();
    assert!(owned.expect("sh").success(), "{name}");
    let mut command = Command::new(PROGRAM);
    command.args([
        "serve",
        "--toolchains",
        "none",
        "--project",
        &format!("{}{more}", path.display()),
    ]);
    command.args(words);
    Server::of_client(command, json!({"elicitation": {}}))
}

/// Every line up to the answer, with each question accepted.
fn lines(server: &mut Server, method: &str, params: Value) -> Vec<Value> {
    let id = server.request(method, params);
    until(server, id, |question| {
        let schema = &question["params"]["requestedSchema"]["properties"];
        let content: serde_json::Map<String, Value> = schema
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, field)| {
                let first = field["enum"]
                    .get(0)
                    .or(field["oneOf"].get(0).map(|one| &one["const"]))
                    .cloned();
                let value = match field["type"].as_str() {
                    Some("boolean") => json!(true),
                    Some("array") => json!([]),
                    _ => first.unwrap_or(json!("text")),
                };
                (name.clone(), value)
            })
            .collect();
        Some(json!({"action": "accept", "content": content}))
    })
}

fn called(server: &mut Server, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}});
    lines(server, "tools/call", params).pop().expect("an answer")
}

#[test]
#[ignore = "MCPBASH_EXAMPLES names the folder of the framework's examples"]
fn every_example_is_read() {
    let names: [(&str, &[&str], usize, usize, usize); 19] = [
        ("00-hello-tool", &["example-hello"], 0, 0, 0),
        ("01-args-and-validation", &["example-echo-arg"], 0, 0, 0),
        ("02-logging-and-levels", &["example-logger"], 0, 0, 0),
        ("03-progress-and-cancellation", &["example-slow"], 0, 0, 0),
        ("04-roots-basics", &["example-roots-read"], 0, 0, 0),
        ("05-resources-basics", &[], 1, 0, 0),
        ("06-embedded-resources", &["embed-resource"], 0, 0, 0),
        ("07-prompts-basics", &[], 0, 0, 1),
        ("08-elicitation", &["example-elicitation"], 0, 0, 0),
        ("09-registry-overrides", &["manual.progress"], 1, 0, 1),
        ("10-completions", &[], 0, 0, 1),
        ("11-resource-templates", &[], 1, 3, 0),
        ("12-config-and-downloads", &["fetch-api-data"], 0, 0, 0),
        ("13-ui-basics", &["weather"], 2, 0, 0),
        ("14-ui-templates", &["system-info"], 1, 0, 0),
        ("15-cli-wrapper", &["system-info"], 0, 0, 0),
        (
            "99-test-fixtures",
            &["slow-no-progress", "slow-with-events", "slow-with-hint", "slow-with-progress"],
            0,
            0,
            0,
        ),
        ("advanced/ffmpeg-studio", &["extract_frame", "inspect_media", "transcode"], 0, 0, 0),
        ("advanced/register-sh-hooks", &[], 0, 0, 0),
    ];
    let mut wrong = Vec::new();
    for (name, tools, resources, templates, prompts) in names {
        let directory = tempfile::tempdir().expect("a directory");
        let mut server = served(&directory, name, "");
        let mut list = |method: &str, key: &str| {
            let id = server.request(method, json!({}));
            server.answer(id)["result"][key].as_array().cloned().unwrap_or_default()
        };
        let listed: Vec<String> = list("tools/list", "tools")
            .iter()
            .map(|tool| tool["name"].as_str().unwrap_or_default().to_owned())
            .collect();
        let counts = (
            list("resources/list", "resources").len(),
            list("resources/templates/list", "resourceTemplates").len(),
            list("prompts/list", "prompts").len(),
        );
        if listed != tools || counts != (resources, templates, prompts) {
            wrong.push(format!("{name}: {listed:?} {counts:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
#[ignore = "MCPBASH_EXAMPLES names the folder of the framework's examples"]
fn example_tools_answer_as_in_the_framework() {
    let directory = || tempfile::tempdir().expect("a directory");
    let one = directory();
    let two = directory();
    let four = directory();
    let six = directory();
    let answer = called(&mut served(&one, "00-hello-tool", ""), "example-hello", json!({}));
    assert!(answer["result"]["structuredContent"]["result"]["message"].is_string(), "{answer}");
    let mut server = served(&two, "01-args-and-validation", "");
    let answer = called(&mut server, "example-echo-arg", json!({"value": "x"}));
    assert!(answer.to_string().contains("You sent: x"), "{answer}");
    let error = called(&mut server, "example-echo-arg", json!({}))["error"].clone();
    assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(".value is required")));
    let mut server = served(&four, "04-roots-basics", "");
    let answer = called(&mut server, "example-roots-read", json!({"path": "./data/sample.txt"}));
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    for outside in ["/etc/passwd", "./config/roots.json"] {
        let answer = called(&mut server, "example-roots-read", json!({"path": outside}));
        let is_refused = answer.get("error").is_some() || answer["result"]["isError"] == true;
        assert!(is_refused && !answer.to_string().contains("root:"), "{answer}");
    }
    let answer =
        called(&mut served(&six, "06-embedded-resources", ":rw"), "embed-resource", json!({}));
    assert_eq!(answer["result"]["content"][1]["resource"]["text"], "Embedded report", "{answer}");
    assert!(Path::new(&six.path().join("p/resources/report.txt")).exists());
}

#[test]
#[ignore = "MCPBASH_EXAMPLES names the folder of the framework's examples"]
fn examples_with_progress_questions_and_completion() {
    let held: Vec<tempfile::TempDir> =
        (0..8).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let mut server = served(&held[0], "02-logging-and-levels", "");
    let level = server.request("logging/setLevel", json!({"level": "debug"}));
    server.answer(level);
    let text = lines(&mut server, "tools/call", json!({"name": "example-logger", "arguments": {}}));
    assert!(text.iter().any(|line| line["params"]["logger"] == "example.logger"), "{text:?}");
    let mut server = served(&held[1], "03-progress-and-cancellation", "");
    let params = json!({"name": "example-slow", "arguments": {}, "_meta": {"progressToken": 1}});
    let text = lines(&mut server, "tools/call", params);
    let progress: Vec<f64> =
        text.iter().filter_map(|line| line["params"]["progress"].as_f64()).collect();
    assert_eq!(progress, [10.0, 50.0, 90.0]);
    let mut server = served(&held[2], "08-elicitation", "");
    let text =
        lines(&mut server, "tools/call", json!({"name": "example-elicitation", "arguments": {}}));
    let request = text.iter().filter(|line| line["method"] == "elicitation/create").count();
    assert_eq!(
        (request, &text.last().expect("an answer")["result"]["isError"]),
        (4, &json!(false)),
        "{text:?}"
    );
    let mut server = served(&held[3], "05-resources-basics", "");
    let read =
        lines(&mut server, "resources/read", json!({"uri": "file://./resources/greeting.txt"}));
    assert!(read[0]["result"]["contents"][0]["text"].is_string(), "{read:?}");
    let mut server = served(&held[4], "07-prompts-basics", "");
    let prompt = json!({"name": "prompt.greeting", "arguments": {"name": "Ada"}});
    let got = lines(&mut server, "prompts/get", prompt);
    assert!(
        got[0]["result"]["messages"][0]["content"]["text"].to_string().contains("Hello, Ada!"),
        "{got:?}"
    );
    let mut server = served(&held[5], "10-completions", "");
    let params = json!({"ref": {"type": "ref/prompt", "name": "demo.completion"}, "argument": {"name": "query", "value": "re"}, "limit": 3});
    let first =
        lines(&mut server, "completion/complete", params.clone()).remove(0)["result"].clone();
    assert_eq!(
        (first["completion"]["values"].as_array().map(Vec::len), &first["completion"]["hasMore"]),
        (Some(3), &json!(true))
    );
    let mut next = params;
    next["cursor"] = first["_meta"]["mcpbash/nextCursor"].clone();
    let second = lines(&mut server, "completion/complete", next).remove(0)["result"].clone();
    assert_ne!(first["completion"]["values"], second["completion"]["values"]);
    let mut server = served(&held[6], "13-ui-basics", "");
    let read =
        lines(&mut server, "resources/read", json!({"uri": "ui://ui-basics-example/weather"}));
    assert_eq!(
        read[0]["result"]["contents"][0]["mimeType"], "text/html;profile=mcp-app",
        "{read:?}"
    );
    let mut server = served(&held[7], "15-cli-wrapper", "");
    let answer = called(&mut server, "system-info", json!({"command": "os"}));
    assert_eq!(answer["result"]["isError"], false, "{answer}");
}

/// Requests of the examples' pages: the example and what is added to its path, the method and its parameters, then a place of
/// the answer and its value.
const ANSWERED: [[&str; 6]; 19] = [
    [
        "00-hello-tool",
        "",
        "tools/call",
        r#"{"name": "example-hello"}"#,
        "/result/isError",
        r#"false"#,
    ],
    [
        "01-args-and-validation",
        "",
        "tools/call",
        r#"{"name": "example-echo-arg", "arguments": {"value": "hi"}}"#,
        "/result/isError",
        r#"false"#,
    ],
    [
        "05-resources-basics",
        "",
        "resources/read",
        r#"{"name": "example-greeting"}"#,
        "/result/contents/0/uri",
        r#""file://./resources/greeting.txt""#,
    ],
    [
        "06-embedded-resources",
        ":rw",
        "tools/call",
        r#"{"name": "embed-resource"}"#,
        "/result/content/1/resource/mimeType",
        r#""text/plain""#,
    ],
    [
        "07-prompts-basics",
        "",
        "prompts/get",
        r#"{"name": "prompt.greeting", "arguments": {"name": "Ada"}}"#,
        "/result/text",
        r#""Hello, Ada! Welcome to MCP prompts.\n""#,
    ],
    [
        "09-registry-overrides",
        "",
        "tools/call",
        r#"{"name": "manual.progress"}"#,
        "/result/structuredContent/success",
        r#"true"#,
    ],
    [
        "09-registry-overrides",
        "",
        "resources/read",
        r#"{"uri": "echo://Hello-from-manual-registry"}"#,
        "/result/contents/0/text",
        r#""Hello-from-manual-registry""#,
    ],
    [
        "09-registry-overrides",
        "",
        "prompts/get",
        r#"{"name": "manual.prompt", "arguments": {"topic": "x"}}"#,
        "/result/arguments/topic",
        r#""x""#,
    ],
    [
        "11-resource-templates",
        "",
        "resources/read",
        r#"{"uri": "file://./resources/example.txt"}"#,
        "/result/contents/0/text",
        r#""This file is reachable via the project-files template.\n""#,
    ],
    [
        "11-resource-templates",
        "",
        "resources/templates/list",
        r#"{}"#,
        "/result/resourceTemplates/1/description",
        r#""Manual override with annotations applied""#,
    ],
    [
        "12-config-and-downloads",
        "",
        "tools/call",
        r#"{"name": "fetch-api-data", "arguments": {"url": "https://httpbin.org/get"}}"#,
        "/result/structuredContent/error/type",
        r#""host_blocked""#,
    ],
    [
        "13-ui-basics",
        "",
        "tools/call",
        r#"{"name": "weather", "arguments": {"location": "Rome"}}"#,
        "/result/structuredContent/location",
        r#""Rome""#,
    ],
    [
        "14-ui-templates",
        "",
        "tools/call",
        r#"{"name": "system-info"}"#,
        "/result/structuredContent/result/hostname",
        r#""cofferdam""#,
    ],
    [
        "15-cli-wrapper",
        "",
        "tools/call",
        r#"{"name": "system-info", "arguments": {"command": "disk"}}"#,
        "/result/structuredContent/success",
        r#"true"#,
    ],
    [
        "15-cli-wrapper",
        "",
        "tools/call",
        r#"{"name": "system-info", "arguments": {"command": "uptime"}}"#,
        "/result/structuredContent/success",
        r#"true"#,
    ],
    [
        "advanced/register-sh-hooks",
        "",
        "completion/complete",
        r#"{"ref": {"type": "ref/prompt", "name": "demo.completion"}, "argument": {"name": "query", "value": "re"}}"#,
        "/result/completion/values",
        r#"["retry", "review", "reset"]"#,
    ],
    [
        "advanced/register-sh-hooks",
        "",
        "resources/templates/list",
        r#"{}"#,
        "/result/resourceTemplates/0/name",
        r#""logs-by-date""#,
    ],
    [
        "advanced/ffmpeg-studio",
        ":rw",
        "tools/call",
        r#"{"name": "inspect_media"}"#,
        "/error/code",
        r#"-32602"#,
    ],
    [
        "advanced/ffmpeg-studio",
        ":rw",
        "tools/call",
        r#"{"name": "transcode", "arguments": {"input": "./media/example.mp4", "output": "./media/out.mp4", "preset": "webm"}}"#,
        "/result/structuredContent/error/error",
        r#""Invalid preset""#,
    ],
];

#[test]
#[ignore = "MCPBASH_EXAMPLES names the folder of the framework's examples"]
fn requests_of_the_examples_pages_are_answered() {
    let mut wrong = Vec::new();
    let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    for [name, more, method, params, place, expected] in ANSWERED {
        let directory = tempfile::tempdir().expect("a directory");
        // Only one of the examples has hooks.
        let mut server = served_with(&directory, name, more, &["--project-hooks"]);
        let answer = lines(&mut server, method, json(params)).pop().expect("an answer");
        if answer.pointer(place) != Some(&json(expected)) {
            wrong.push(format!("{name}: {method}: {answer}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
#[ignore = "MCPBASH_EXAMPLES names the folder of the framework's examples"]
fn slow_examples_end_by_their_own_limits() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut server = served(&directory, "99-test-fixtures", "");
    let tools = ["slow-no-progress", "slow-with-hint", "slow-with-events", "slow-with-progress"];
    let results = tools.map(|tool| called(&mut server, tool, json!({}))["result"].clone());
    for (tool, result) in tools.iter().zip(&results).take(2) {
        assert_eq!(result["structuredContent"]["error"]["type"], "timeout", "{tool}: {result}");
    }
    assert!(results[1]["structuredContent"]["error"]["hint"].is_string(), "{}", results[1]);
    for (tool, result) in tools.iter().zip(&results).skip(2) {
        assert_eq!(result["isError"], false, "{tool}: {result}");
    }
}
