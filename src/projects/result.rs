//! The result of a call, or its error, from the output of the script.

use serde_json::{Map, Value, json};

use crate::ScriptTool;
use crate::embedded;
use crate::json::{FirstDocument, VALUES};
use crate::launch::{ScriptLaunch, ShellReport};
use crate::output::{ScriptEnd, ScriptError, ScriptOutput};

/// Code of a cancelled call.
const CANCELLED: i64 = -32001;
/// Exit code of a call that was ended by its time limit (timeout(1)).
const TIMED_OUT: i32 = 124;
/// Words of the C library for a write to what is read-only (EROFS), in lower case.
const READ_ONLY: &[u8] = b"read-only file system";
/// Beginnings of the keys of `_meta` that are the server's.
const OF_THE_SERVER: [&str; 2] = ["cofferdam/", "io.modelcontextprotocol/"];

impl ScriptLaunch {
    /// Makes the result of a call: a `CallToolResult` as JSON.
    ///
    /// # Errors
    /// The error that the script reported, or the one that stands for its end.
    pub fn result(&self, tool: &ScriptTool, output: &ScriptOutput) -> Result<Value, ScriptError> {
        let result = self.result_of(tool, output);
        if !says_read_only(&output.stderr) {
            return result;
        }
        result.map(|result| hinted(result, self.read_only)).map_err(|mut error| {
            error.message.push_str(&format!("\nhint: {}", self.read_only));
            error
        })
    }

    fn result_of(&self, tool: &ScriptTool, output: &ScriptOutput) -> Result<Value, ScriptError> {
        match &output.end {
            ScriptEnd::Exited => {}
            ScriptEnd::TimedOut | ScriptEnd::Idle => return Ok(timed_out(tool, self, output)),
            ScriptEnd::Cancelled => return Err(ScriptError::new(CANCELLED, "Tool cancelled")),
            ScriptEnd::Stopped(how) => return Err(ScriptError::internal(how)),
        }
        let limits = &self.limits;
        let exceeded =
            |max: u64| Err(ScriptError::internal(format!("Tool output exceeded {max} bytes")));
        let too_long = || exceeded(u64::try_from(limits.output).unwrap_or(u64::MAX));
        let Some(report) = &output.report else { return too_long() };
        let stderr = tail(&output.stderr, limits.stderr_tail);
        let Some(report) = self.report(report) else {
            let mut error = ScriptError::internal("Tool failed before it could be run");
            error.data = Some(json!({ "stderrTail": stderr }));
            return Err(error);
        };
        if !report.error.is_empty() {
            let unread = || ScriptError::internal("Tool wrote an error that is not understood");
            return Err(ScriptError::read(report.error).unwrap_or_else(unread));
        }
        if report.output.len() > limits.output {
            return too_long();
        }
        if output.stderr_bytes > limits.stderr {
            return exceeded(limits.stderr);
        }
        if report.exit_code != 0 {
            // A script that says what failed and then ends so has said it in the better way.
            let printed = FirstDocument::of(report.output).value;
            if let Some(result) = printed.clone().filter(is_own_result).filter(is_error) {
                return Ok(with_meta(result, report.exit_code, &stderr));
            }
            return Err(failed(printed, report, &stderr));
        }
        let mut result = succeeded(tool, report.output, &stderr)?;
        if let Some(content) = result.get_mut("content").and_then(Value::as_array_mut) {
            content.extend(embedded::blocks(report.embedded));
        }
        Ok(result)
    }
}

/// Returns true if a program reported that it may not write.
fn says_read_only(stderr: &[u8]) -> bool {
    stderr.windows(READ_ONLY.len()).any(|words| words.eq_ignore_ascii_case(READ_ONLY))
}

/// Adds a way out to a result that is an error.
fn hinted(mut result: Value, hint: &str) -> Value {
    let has_failed = is_error(&result);
    let content = result.get_mut("content").and_then(Value::as_array_mut);
    if let Some(content) = content.filter(|_| has_failed) {
        content.push(json!({ "type": "text", "text": format!("hint: {hint}") }));
    }
    result
}

/// Returns the last part of standard error as text.
fn tail(stderr: &[u8], max: usize) -> String {
    let from = stderr.len().saturating_sub(max);
    String::from_utf8_lossy(stderr.get(from..).unwrap_or_default()).into_owned()
}

/// Makes the result of a call that was ended by one of its time limits.
fn timed_out(tool: &ScriptTool, launch: &ScriptLaunch, output: &ScriptOutput) -> Value {
    let limit = launch.idle.unwrap_or(launch.seconds);
    let (reason, message) = match (&output.end, launch.idle) {
        (ScriptEnd::Idle, _) => {
            ("idle", format!("Tool timed out after {limit}s (no progress reported)"))
        }
        (_, Some(_)) => {
            ("max_exceeded", format!("Tool exceeded maximum runtime of {}s", launch.seconds))
        }
        (_, None) => ("fixed", format!("Tool timed out after {limit}s")),
    };
    let mut text = message.clone();
    let mut error = Map::new();
    error.insert("type".to_owned(), json!("timeout"));
    error.insert("message".to_owned(), json!(message));
    error.insert("timeoutSecs".to_owned(), json!(limit));
    error.insert("reason".to_owned(), json!(reason));
    error.insert("exitCode".to_owned(), json!(TIMED_OUT));
    if launch.idle.is_some() {
        error.insert("progressExtendsTimeout".to_owned(), json!(true));
        error.insert("maxTimeoutSecs".to_owned(), json!(launch.seconds));
    }
    if let Some(hint) = &tool.timeout_hint {
        text.push_str(&format!("\n\nSuggestion: {hint}"));
        error.insert("hint".to_owned(), json!(hint));
    }
    json!({
        "content": [{ "type": "text", "text": text }],
        "structuredContent": { "success": false, "error": error },
        "isError": true,
        "_meta": meta(TIMED_OUT, &tail(&output.stderr, launch.limits.stderr_tail)),
    })
}

/// Makes the error of a script that ended with another code than 0.
fn failed(printed: Option<Value>, report: ShellReport<'_>, stderr: &str) -> ScriptError {
    if let Some(error) = printed.and_then(ScriptError::of) {
        return error;
    }
    let said = String::from_utf8_lossy(report.output);
    let exit_code = report.exit_code;
    if !said.trim().is_empty() {
        return ScriptError { data: Some(json!(said)), ..ScriptError::internal("Tool failed") };
    }
    let line = stderr.lines().find(|line| !line.trim().is_empty()).unwrap_or("Tool failed");
    let data =
        json!({ "exitCode": exit_code, "_meta": meta(exit_code, stderr), "stderrTail": stderr });
    ScriptError { data: Some(data), ..ScriptError::internal(line) }
}

fn meta(exit_code: i32, stderr: &str) -> Value {
    match stderr.is_empty() {
        true => json!({ "exitCode": exit_code }),
        false => json!({ "exitCode": exit_code, "stderr": stderr }),
    }
}

/// Returns true if a document is a result of a tool.
fn is_own_result(document: &Value) -> bool {
    document.get("content").is_some_and(Value::is_array)
        && document.get("isError").is_some_and(Value::is_boolean)
}

fn is_error(result: &Value) -> bool {
    result.get("isError") == Some(&Value::Bool(true))
}

/// Returns true for a key of `_meta` that only the server sets.
pub(crate) fn is_of_the_server(key: &str) -> bool {
    OF_THE_SERVER.iter().any(|start| key.starts_with(start))
}

/// Adds the end of the script to the result that it returned.
fn with_meta(mut result: Value, exit_code: i32, stderr: &str) -> Value {
    if let Some(fields) = result.as_object_mut() {
        let given = fields.remove("_meta");
        // A script has no say in what a client believes of the server.
        fields.remove("resultType");
        let mut merged = given.and_then(|meta| meta.as_object().cloned()).unwrap_or_default();
        merged.retain(|key, _| !is_of_the_server(key));
        merged.extend(meta(exit_code, stderr).as_object().cloned().unwrap_or_default());
        fields.insert("_meta".to_owned(), Value::Object(merged));
    }
    result
}

/// Makes the result of a script that ended with 0.
fn succeeded(tool: &ScriptTool, output: &[u8], stderr: &str) -> Result<Value, ScriptError> {
    let text = String::from_utf8_lossy(output);
    let printed = FirstDocument::of(output);
    let own = printed.value.as_ref().filter(|value| is_own_result(value));
    // The schema is about what succeeded.
    let has_failed = own.is_some_and(is_error);
    if let Some(schema) = tool.output_schema.as_ref().filter(|_| !has_failed) {
        if printed.is_too_large {
            let why =
                format!("Tool output has more than {VALUES} values, and a declared outputSchema");
            return Err(ScriptError::internal(why));
        }
        let fields = match own {
            Some(result) => result.get("structuredContent"),
            None => printed.alone(),
        };
        check_output(schema, fields, &text)?;
    }
    let is_own = own.is_some();
    let is_alone = printed.is_alone;
    if let Some(result) = printed.value.filter(|_| is_own || is_alone) {
        if is_own {
            return Ok(with_meta(result, 0, stderr));
        }
        return Ok(json!({
            "content": [{ "type": "text", "text": text }], "isError": false, "_meta": meta(0, stderr),
            "structuredContent": result,
        }));
    }
    Ok(json!({
        "content": [{ "type": "text", "text": text }], "isError": false, "_meta": meta(0, stderr),
    }))
}

/// Checks an output against the required fields of a schema and their types.
fn check_output(
    schema: &Map<String, Value>,
    output: Option<&Value>,
    text: &str,
) -> Result<(), ScriptError> {
    let what =
        if text.trim().is_empty() { "is empty, and there is a" } else { "is not valid JSON for" };
    let Some(output) = output else {
        return Err(ScriptError::internal(format!("Tool output {what} declared outputSchema")));
    };
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let mut required = required.filter_map(Value::as_str);
    let properties = schema.get("properties").and_then(Value::as_object);
    let mut properties = properties.into_iter().flatten();
    let is_well = has_type(schema.get("type"), output)
        && required.all(|key| output.get(key).is_some())
        && properties.all(|(key, property)| {
            output.get(key).is_none_or(|value| has_type(property.get("type"), value))
        });
    match is_well {
        true => Ok(()),
        false => Err(ScriptError::internal("Tool output does not satisfy outputSchema")),
    }
}

/// Returns true if a value is of a type, or of one of a list, as JSON Schema names them.
fn has_type(expected: Option<&Value>, value: &Value) -> bool {
    let names = match expected {
        Some(name @ Value::String(_)) => std::slice::from_ref(name),
        Some(Value::Array(names)) => names,
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => {
            return true;
        }
    };
    names.iter().filter_map(Value::as_str).any(|name| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => true,
    })
}

#[cfg(test)]
#[path = "result_tests.rs"]
mod tests;
