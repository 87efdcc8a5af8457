//! Declared commands as an agent sees them: schemas, arguments, and results with the seed's fields.

use std::sync::Arc;

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations, object};
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{Arguments, BadArguments, Seconds, parse};
use super::backend::{Refused, RefusedKind};
use crate::call::{MAX_TIMEOUT, STDIN_BYTES};
use crate::policy::values::WORD_BYTES;
use crate::tools::cli::{Asking, Done, ErrorType, NAMES, Words};

/// Characters of output that the text of a result shows; the fields have all of it.
const TEXT_CHARACTERS: usize = 30_000;

/// Arguments of `cli_jq`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct JqArguments {
    filter: String,
    extra_args: Option<Words>,
    stdin: Option<String>,
    path: Option<String>,
    timeout_sec: Option<Seconds>,
    correlation_id: Option<String>,
}

impl Arguments for JqArguments {
    const TOOL: &'static str = "cli_jq";
    const FIELDS: &'static [&'static str] =
        &["filter", "extra_args", "stdin", "path", "timeout_sec", "correlation_id"];
}

/// Arguments of `cli_file`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileArguments {
    path: String,
    extra_args: Option<Words>,
    timeout_sec: Option<Seconds>,
    correlation_id: Option<String>,
}

impl Arguments for FileArguments {
    const TOOL: &'static str = "cli_file";
    const FIELDS: &'static [&'static str] =
        &["path", "extra_args", "timeout_sec", "correlation_id"];
}

/// The declared command of this name, offered or not.
pub fn known(name: &str) -> Option<&'static str> {
    NAMES.iter().copied().find(|known| *known == name)
}

/// What a call of a command that is not offered is answered with.
pub fn off(tool: &str) -> Refused {
    Refused::new(RefusedKind::Denied, format!("`{tool}` is switched off"))
        .with_hint("the operator can switch it on with `[tools] on` in cofferdam.toml")
}

/// The arguments of one call.
///
/// # Errors
/// When they are not the tool's.
pub fn asking(tool: &str, given: Option<JsonObject>) -> Result<Asking, BadArguments> {
    let list = |words: Option<Words>| words.map(Words::into_list).unwrap_or_default();
    if tool == JqArguments::TOOL {
        let jq = parse::<JqArguments>(given)?;
        let path = jq.path.map(|path| ("path", path));
        return Ok(Asking {
            given: [("filter", jq.filter)].into_iter().chain(path).collect(),
            flags: list(jq.extra_args),
            stdin: jq.stdin,
            timeout: jq.timeout_sec.map(|seconds| seconds.0),
            correlation: jq.correlation_id,
        });
    }
    let file = parse::<FileArguments>(given)?;
    Ok(Asking {
        given: vec![("path", file.path)],
        flags: list(file.extra_args),
        stdin: None,
        timeout: file.timeout_sec.map(|seconds| seconds.0),
        correlation: file.correlation_id,
    })
}

/// The result of arguments that were not the tool's.
pub fn invalid(bad: BadArguments) -> Done {
    let hint = bad.hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    Done::refused(ErrorType::ValidationError, format!("{}{hint}", bad.message), None)
}

/// The result as MCP has it: output and error for a model, all fields for a program.
pub fn reply(done: &Done) -> CallToolResult {
    let mut text: String = done.stdout.chars().take(TEXT_CHARACTERS).collect();
    if text.len() < done.stdout.len() {
        text.push_str("\n[shortened here; structuredContent has the rest]");
    }
    let error: String = done.stderr.chars().take(TEXT_CHARACTERS).collect();
    for part in [error, done.error.as_ref().map(|e| format!("[{e}]")).unwrap_or_default()] {
        if !text.is_empty() && !text.ends_with('\n') && !part.is_empty() {
            text.push('\n');
        }
        text.push_str(&part);
    }
    let content = vec![ContentBlock::text(text)];
    let mut result = match done.is_error() {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    result.structured_content = serde_json::to_value(done).ok();
    result
}

/// The offered commands, in the order of [`NAMES`].
pub fn tools(offered: &[&str]) -> Vec<Tool> {
    let all = [jq(), file()];
    all.into_iter().filter(|tool| offered.contains(&tool.name.as_ref())).collect()
}

fn common(mut properties: Value, required: &[&str]) -> Value {
    if let Some(map) = properties.as_object_mut() {
        map.insert(
            "timeout_sec".to_owned(),
            json!({
                "type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT.as_secs(),
                "description": "Seconds until the command is killed."
            }),
        );
        map.insert(
            "correlation_id".to_owned(),
            json!({
                "type": "string", "maxLength": 128, "description": "Returned as given."
            }),
        );
    }
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false
    })
}

fn flags(examples: &str) -> Value {
    json!({
        "type": "array", "items": { "type": "string" }, "maxItems": 64,
        "description": format!("Flags, one a word, by exact name: {examples}.")
    })
}

fn jq() -> Tool {
    let input = json!({
        "filter": {
            "type": "string", "minLength": 1, "maxLength": WORD_BYTES,
            "description": "The jq filter, such as .items[] | .name. It cannot begin with a dash: write (-1)."
        },
        "extra_args": flags("-r, -c, -s, -S, -n, -R, -e, --tab, --indent N"),
        "stdin": { "type": "string", "maxLength": STDIN_BYTES, "description": "The JSON to read." },
        "path": { "type": "string", "description": "Or the file to read, inside /workspace." }
    });
    let about = "Select and transform JSON with jq, alone in a sandbox cell, without a shell.";
    tool(JqArguments::TOOL, "jq", about, common(input, &["filter"]))
}

fn file() -> Tool {
    let input = json!({
        "path": { "type": "string", "description": "The file to look at, inside /workspace." },
        "extra_args": flags("-b, -i, --mime-type, --mime-encoding, --extension, -k")
    });
    let about = "Tell what a file is with file(1), alone in a sandbox cell, without a shell.";
    tool(FileArguments::TOOL, "file", about, common(input, &["path"]))
}

fn tool(name: &'static str, title: &str, about: &'static str, input: Value) -> Tool {
    Tool::new(name, about, object(input))
        .with_title(title)
        .with_raw_output_schema(Arc::new(object(output())))
        .annotate(ToolAnnotations::new().read_only(true).destructive(false).open_world(false))
}

fn output() -> Value {
    let (text, yes) = (json!({ "type": "string" }), json!({ "type": "boolean" }));
    json!({
        "type": "object",
        "properties": {
            "stdout": text, "stderr": text, "returncode": { "type": "integer" },
            "truncated_stdout": yes, "truncated_stderr": yes, "timed_out": yes, "error": text,
            "error_type": {
                "type": "string",
                "enum": ["validation_error", "timeout", "not_found", "execution_error",
                    "resource_exhausted"]
            },
            "execution_time": { "type": "number", "description": "Seconds." },
            "correlation_id": text, "metadata": { "type": "object" }
        },
        "required": ["stdout", "stderr", "returncode", "truncated_stdout", "truncated_stderr",
            "timed_out", "execution_time", "correlation_id", "metadata"],
        "additionalProperties": false
    })
}
