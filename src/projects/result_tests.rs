//! Results and errors of scripts, by how they ended and what they printed.

use serde_json::{Value, json};

use super::*;
use crate::server::ServerIdentity;
use crate::{Project, ProjectLayout};

fn tool(schema: Value) -> ScriptTool {
    ScriptTool {
        name: "one".to_owned(),
        path: "one/tool.sh".to_owned(),
        is_executable: true,
        description: String::new(),
        input_schema: Map::new(),
        output_schema: schema.as_object().cloned(),
        timeout: Some(5),
        timeout_hint: Some("Ask for less".to_owned()),
        is_extended: false,
        max_timeout: None,
        icons: None,
        annotations: None,
        meta: None,
    }
}

fn launched(tool: &ScriptTool) -> ScriptLaunch {
    let name = "p".to_owned();
    let server = ServerIdentity {
        title: name.clone(),
        name,
        version: String::new(),
        description: None,
        website: None,
    };
    let project = Project {
        server,
        layout: ProjectLayout::default(),
        tools: Vec::new(),
        resources: Vec::new(),
        templates: Vec::new(),
        prompts: Vec::new(),
        completions: Vec::new(),
        providers: Vec::new(),
        settings: Default::default(),
        hooks: Vec::new(),
        roots: Vec::new(),
        has_named_roots: false,
        is_written: false,
        granted: Vec::new(),
        hash: String::new(),
        mistakes: Vec::new(),
    };
    let none = Map::new();
    ScriptLaunch::new(&project, tool, &none, &none, "MARK".to_owned()).expect("short metadata")
}

/// Returns the result of a script that printed `stdout`, ended with `code` and left `error` in its file.
fn ended(schema: Value, stdout: &str, code: i32, error: &str) -> Result<Value, ScriptError> {
    let tool = tool(schema);
    let report = format!("MARK {code} {}\n{error}\nMARK\n{stdout}", error.len());
    let report = Some(report.into_bytes());
    let output = ScriptOutput {
        end: ScriptEnd::Exited,
        report,
        stderr: b"said\nmore".to_vec(),
        stderr_bytes: 9,
    };
    launched(&tool).result(&tool, &output)
}

fn error(code: i64, message: &str, data: Option<Value>) -> Result<Value, ScriptError> {
    Err(ScriptError { code, message: message.to_owned(), data })
}

#[test]
fn an_error_file_wins_over_output_and_exit_code() {
    let file = r#"{"code":-32602,"message":"no","data":[1]}"#;
    let expected = error(-32602, "no", Some(json!([1])));
    assert_eq!(ended(Value::Null, "output", 0, file), expected);
    assert_eq!(ended(Value::Null, r#"{"code":1,"message":"x"}"#, 1, file), expected);
}

#[test]
fn a_code_other_than_0_is_an_error_by_what_was_printed() {
    let printed = r#"{"code":-7,"message":"mine"}"#;
    assert_eq!(ended(Value::Null, printed, 1, ""), error(-7, "mine", None));
    assert_eq!(
        ended(Value::Null, "half", 1, ""),
        error(-32603, "Tool failed", Some(json!("half")))
    );
    let meta = json!({"exitCode": 9, "stderr": "said\nmore"});
    let data = json!({"exitCode": 9, "_meta": meta, "stderrTail": "said\nmore"});
    assert_eq!(ended(Value::Null, "", 9, ""), error(-32603, "said", Some(data)));
}

#[test]
fn output_becomes_a_result_structured_content_or_text() {
    let meta = json!({"exitCode": 0, "stderr": "said\nmore"});
    let text = |text: &str| json!([{"type": "text", "text": text}]);
    assert_eq!(
        ended(Value::Null, "plain", 0, ""),
        Ok(json!({"content": text("plain"), "isError": false, "_meta": meta}))
    );
    assert_eq!(
        ended(Value::Null, "[1]", 0, ""),
        Ok(json!({
            "content": text("[1]"), "structuredContent": [1], "isError": false, "_meta": meta
        }))
    );
    // The second document is of a script that reported an error and went on.
    let own = r#"{"content":[],"isError":true}{"content":[],"isError":false}"#;
    assert_eq!(
        ended(Value::Null, own, 0, ""),
        Ok(json!({"content": [], "isError": true, "_meta": meta}))
    );
}

#[test]
fn output_is_checked_against_its_schema() {
    let schema =
        || json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
    assert!(ended(schema(), r#"{"n":1}"#, 0, "").is_ok());
    let unmet = error(-32603, "Tool output does not satisfy outputSchema", None);
    assert_eq!(ended(schema(), r#"{"n":"1"}"#, 0, ""), unmet);
    assert_eq!(ended(schema(), "{}", 0, ""), unmet);
    let text = "Tool output is not valid JSON for declared outputSchema";
    assert_eq!(ended(schema(), "text", 0, ""), error(-32603, text, None));
}

#[test]
fn a_timeout_is_a_result_with_the_authors_hint() {
    let tool = tool(Value::Null);
    let output =
        |end| ScriptOutput { end, report: Some(Vec::new()), stderr: Vec::new(), stderr_bytes: 0 };
    let result = launched(&tool).result(&tool, &output(ScriptEnd::TimedOut));
    let text = "Tool timed out after 5s\n\nSuggestion: Ask for less";
    let result = result.unwrap_or_default();
    assert_eq!(result.pointer("/content/0/text"), Some(&json!(text)));
    assert_eq!(result.pointer("/isError"), Some(&json!(true)));
    assert_eq!(result.pointer("/structuredContent/error/reason"), Some(&json!("fixed")));
    let cancelled = launched(&tool).result(&tool, &output(ScriptEnd::Cancelled));
    assert_eq!(cancelled, error(-32001, "Tool cancelled", None));
    // A shell that was ended before its report is no success.
    assert!(launched(&tool).result(&tool, &output(ScriptEnd::Exited)).is_err());
}

#[test]
fn nothing_of_the_caller_is_in_the_script() {
    let tool = tool(Value::Null);
    let given = json!({"a": "'; touch /tmp/x; '", "$(id)": 1});
    let meta = json!({"mcpbash/remoteToken": "secret", "kept": true});
    let given = given.as_object().cloned();
    let meta = meta.as_object().cloned();
    let given = given.unwrap_or_default();
    let meta = meta.unwrap_or_default();
    let none = Map::new();
    let project = || Project {
        layout: ProjectLayout::default(),
        tools: Vec::new(),
        resources: Vec::new(),
        templates: Vec::new(),
        prompts: Vec::new(),
        completions: Vec::new(),
        providers: Vec::new(),
        settings: Default::default(),
        hooks: Vec::new(),
        roots: Vec::new(),
        has_named_roots: false,
        is_written: false,
        granted: Vec::new(),
        hash: String::new(),
        mistakes: Vec::new(),
        server: ServerIdentity {
            name: "p".to_owned(),
            title: String::new(),
            version: String::new(),
            description: None,
            website: None,
        },
    };
    let launch = |given, meta| ScriptLaunch::new(&project(), &tool, given, meta, "M".to_owned());
    let with = launch(&given, &meta).expect("it");
    let without = launch(&none, &none).expect("it");
    assert_eq!(with.words, without.words);
    assert_eq!(with.env.keys().collect::<Vec<_>>(), without.env.keys().collect::<Vec<_>>());
    assert_eq!(with.env.get("MCP_TOOL_META_JSON").map(String::as_str), Some(r#"{"kept":true}"#));
    let long = Map::from_iter([("a".to_owned(), json!("x".repeat(40_000)))]);
    let with = launch(&long, &none).expect("it");
    assert_eq!(with.env.get("MCP_TOOL_ARGS_JSON").map(String::as_str), Some(""));
    let arguments = Value::Object(long).to_string();
    assert_eq!(arguments.len(), 40_000 + r#"{"a":""}"#.len());
    let text = String::from_utf8(with.stdin).expect("text");
    let (head, rest) = text.split_once('\n').expect("a head");
    assert_eq!(head, format!("M {} {}", rest.len() - arguments.len(), arguments.len()));
    assert!(rest.ends_with(&arguments));
}

#[test]
fn a_tool_whose_progress_renews_its_time_says_which_limit_it_reached() {
    let tool = ScriptTool { is_extended: true, max_timeout: Some(4000), ..tool(Value::Null) };
    let launch = launched(&tool);
    assert_eq!((launch.seconds, launch.idle), (600, Some(5)));
    let ended = |end| {
        let output = ScriptOutput {
            end,
            report: Some(Vec::new()),
            stderr: b"said".to_vec(),
            stderr_bytes: 4,
        };
        launch.result(&tool, &output).unwrap_or_default()
    };
    let expected = |reason: &str, message: &str| {
        let error = json!({
            "type": "timeout", "message": message, "timeoutSecs": 5, "reason": reason, "exitCode": 124,
            "progressExtendsTimeout": true, "maxTimeoutSecs": 600, "hint": "Ask for less",
        });
        let text = format!("{message}\n\nSuggestion: Ask for less");
        json!({
            "content": [{"type": "text", "text": text}],
            "structuredContent": {"success": false, "error": error},
            "isError": true,
            "_meta": {"exitCode": 124, "stderr": "said"},
        })
    };
    let idle = "Tool timed out after 5s (no progress reported)";
    assert_eq!(ended(ScriptEnd::Idle), expected("idle", idle));
    let over = "Tool exceeded maximum runtime of 600s";
    assert_eq!(ended(ScriptEnd::TimedOut), expected("max_exceeded", over));
}

#[test]
fn a_tool_that_asks_for_no_network_has_no_downloads_either() {
    let of = |rules: Value| {
        let mut tool = tool(Value::Null);
        tool.meta = json!({"cofferdam/egress": rules}).as_object().cloned();
        launched(&tool)
    };
    let asked = |launch: &ScriptLaunch| {
        (launch.downloads.is_some(), launch.env.contains_key("COFFERDAM_DOWNLOADS"))
    };
    assert_eq!(asked(&launched(&tool(Value::Null))), (true, true));
    assert_eq!(asked(&of(json!(["api"]))), (true, true));
    assert_eq!(asked(&of(json!([]))), (false, false));
    // A value that is not a list counts as absent too.
    assert_eq!(asked(&of(json!("api"))), (false, false));
}
