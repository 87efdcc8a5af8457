//! Declared commands as an agent sees them: schemas, arguments, and results with the reference implementation's fields.

use std::sync::Arc;

use rmcp::model::{CallToolResult, JsonObject, Tool, ToolAnnotations, object};
use serde::Deserialize;
use serde_json::{Value, json};

use super::arguments::{BadArguments, Seconds, known_fields, typed};
use super::reply;
use super::tools::schema::output;
use config::policy::flags::{
    Changes, DeclaredCommand, Flag, Input, MAX_BYTES, MAX_WORDS, Positional, Takes,
};
use config::policy::reach::TargetPlaces;
use config::policy::values::{Type, WordType};
use model::call::{MAX_TIMEOUT, STDIN_BYTES};
use model::defaults::INLINE_CHARACTERS;
use service::cli::{
    self, AboutCall, Declared, DeclaredRequest, DeclaredResult, ErrorType, ToolError, Words,
};

/// Fields that every declared command has.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Common {
    extra_args: Option<Words>,
    stdin: Option<String>,
    template: Option<String>,
    #[serde(default)]
    dry_run: bool,
    timeout_sec: Option<Seconds>,
    correlation_id: Option<String>,
}

/// Returns the fields of a command, in the order of its schema.
fn fields(command: &DeclaredCommand) -> Vec<&str> {
    let own = command.positionals.iter().map(|one| one.name.as_str());
    let flags = (!command.flags.is_empty()).then_some("extra_args");
    let stdin = (command.input != Input::None).then_some("stdin");
    let template = (!command.conduct.templates.is_empty()).then_some("template");
    let common = ["dry_run", "timeout_sec", "correlation_id"];
    own.chain(flags).chain(stdin).chain(template).chain(common).collect()
}

/// Parses the arguments of one call.
///
/// # Errors
/// Fields that the tool does not have, or values of another type.
pub(crate) fn parse_request(
    declared: &Declared,
    given: Option<JsonObject>,
) -> Result<DeclaredRequest, BadArguments> {
    let mut rest = given.unwrap_or_default();
    renamed(&declared.command, &mut rest)?;
    known_fields(&declared.command.name, &fields(&declared.command), &rest)?;
    let mut given = Vec::new();
    for one in &declared.command.positionals {
        let words = match rest.remove(&one.name) {
            Some(value) => words(&declared.command.name, one, value)?,
            None => Vec::new(),
        };
        given.extend(words.into_iter().map(|word| (one.name.clone(), word)));
    }
    let Common { extra_args, stdin, template, dry_run, timeout_sec, correlation_id } =
        typed(&declared.command.name, rest)?;
    Ok(DeclaredRequest {
        given,
        flags: extra_args.unwrap_or_default(),
        template,
        stdin,
        dry_run,
        timeout: timeout_sec.map(|seconds| seconds.0),
        correlation: correlation_id,
    })
}

/// Renames fields that came under their second names.
fn renamed(command: &DeclaredCommand, given: &mut JsonObject) -> Result<(), BadArguments> {
    for one in &command.positionals {
        let Some(value) = one.also.as_ref().and_then(|also| given.remove(also)) else { continue };
        if given.insert(one.name.clone(), value).is_some() {
            let also = one.also.as_deref().unwrap_or_default();
            let message = format!("{}: give `{}` or `{also}`, not both", command.name, one.name);
            return Err(BadArguments { message, hint: None });
        }
    }
    Ok(())
}

/// Returns a field's value: one word, or a list where the field accepts more than one.
fn words(tool: &str, one: &Positional, value: Value) -> Result<Vec<String>, BadArguments> {
    let expected = if one.max > 1 { "a string or a list of strings" } else { "a string" };
    let bad = || BadArguments {
        message: format!("{tool}: `{}`: expected {expected}", one.name),
        hint: None,
    };
    if let Some(word) = value.as_str() {
        return Ok(vec![word.to_owned()]);
    }
    let words = value.as_array().filter(|_| one.max > 1).ok_or_else(bad)?;
    words.iter().map(|word| word.as_str().map(str::to_owned).ok_or_else(bad)).collect()
}

/// Makes the result of arguments that the tool does not have.
pub fn invalid(declared: &Declared, bad: BadArguments) -> DeclaredResult {
    let hint = bad.hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    let error = ToolError::new(ErrorType::ValidationError, format!("{}{hint}", bad.message));
    let request = DeclaredRequest::default();
    let correlation = cli::correlation(None);
    DeclaredResult::refused(error, AboutCall::of(declared, &request, &correlation))
}

/// Makes the MCP result: output and error for a model, all fields for a program.
pub fn reply(done: &DeclaredResult) -> CallToolResult {
    let mut text: String = done.stdout.chars().take(INLINE_CHARACTERS).collect();
    if text.len() < done.stdout.len() {
        text.push_str("\n[shortened here; structuredContent has the rest]");
    }
    let error: String = done.stderr.chars().take(INLINE_CHARACTERS).collect();
    let failed = done.error.as_ref().map(|error| format!("[{error}]"));
    let denials = done.denials.iter().map(|denial| denial.line());
    let network = done.network_lines.iter().cloned();
    for part in [error].into_iter().chain(failed).chain(denials).chain(network) {
        if !text.is_empty() && !text.ends_with('\n') && !part.is_empty() {
            text.push('\n');
        }
        text.push_str(&part);
    }
    let mut result = reply::result(text, done.is_error());
    result.structured_content = serde_json::to_value(done).ok();
    result.meta = reply::meta_if_any(done.receipt.as_ref(), None);
    result
}

/// Describes an offered command for the list of tools.
pub fn tool(declared: &Declared) -> Tool {
    let command = &declared.command;
    let reads = command.changes == Changes::Nothing;
    Tool::new(declared.command.name.clone(), command.description.clone(), object(input(declared)))
        .with_title(command.program.clone())
        .with_raw_output_schema(Arc::new(output::<DeclaredResult>()))
        .annotate(ToolAnnotations::new().read_only(reads).destructive(!reads).open_world(false))
}

fn input(declared: &Declared) -> Value {
    let command = &declared.command;
    let mut properties = JsonObject::new();
    for one in &command.positionals {
        properties.insert(one.name.clone(), positional(one));
    }
    if !command.flags.is_empty() {
        properties.insert("extra_args".to_owned(), extra_args(command));
    }
    if command.input != Input::None {
        let about = "Text that the command reads on standard input.";
        let schema = json!({ "type": "string", "maxLength": STDIN_BYTES, "description": about });
        properties.insert("stdin".to_owned(), schema);
    }
    if !command.conduct.templates.is_empty() {
        let names: Vec<&str> = command.conduct.templates.iter().map(|one| &*one.name).collect();
        let about: Vec<String> = command
            .conduct
            .templates
            .iter()
            .map(|one| format!("{}: {}", one.name, one.why))
            .collect();
        properties.insert(
            "template".to_owned(),
            json!({ "type": "string", "enum": names, "description": about.join("; ") }),
        );
    }
    properties.insert(
        "dry_run".to_owned(),
        json!({ "type": "boolean", "description": "Say what would run, and run nothing." }),
    );
    let usual = declared.terms.timeout.as_secs_f64();
    properties.insert(
        "timeout_sec".to_owned(),
        json!({
            "type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT.as_secs(),
            "description": format!("Seconds until the command is killed; {usual} unless given.")
        }),
    );
    let about = "Returned as given.";
    properties.insert(
        "correlation_id".to_owned(),
        json!({ "type": "string", "maxLength": 128, "description": about }),
    );
    let needed = command.positionals.iter().filter(|one| one.min > 0);
    let required: Vec<&str> = needed.map(|one| one.name.as_str()).collect();
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false
    })
}

/// Describes the flags, and the defaults of a call without flags.
fn extra_args(command: &DeclaredCommand) -> Value {
    let flags: Vec<String> = command.flags.iter().map(flag).collect();
    let defaults = command.conduct.defaults.iter().map(|one| one.args.join(" "));
    let defaults: Vec<String> = defaults.collect();
    let usual = match defaults.is_empty() {
        true => String::new(),
        false => format!(" Added unless you choose otherwise: {}.", defaults.join(", ")),
    };
    let about = format!("Flags, one a word, by exact name: {}.{usual}", flags.join(", "));
    let items = json!({ "type": "string" });
    let list = json!({ "type": "array", "items": items, "maxItems": MAX_WORDS });
    let text = json!({ "type": "string", "maxLength": MAX_BYTES });
    json!({ "anyOf": [list, text], "description": about })
}

/// Formats a flag: `-r`, `--indent INT`, `--indent=INT`.
fn flag(flag: &Flag) -> String {
    match &flag.takes {
        Takes::Nothing => flag.name.clone(),
        Takes::Next(takes) => format!("{} {}", flag.name, word_form(takes).0),
        Takes::Equals(takes) => format!("{}={}", flag.name, word_form(takes).0),
    }
}

/// Describes the form of a word: as the value of a flag, and behind the purpose of a field.
fn word_form(takes: &Type) -> (String, String) {
    let (value, form) = match &takes.kind {
        WordType::Text => ("TEXT", ""),
        WordType::Int(range) => {
            let first = range.start();
            let last = range.end();
            return (format!("{first}..{last}"), format!(" ({first} to {last})"));
        }
        WordType::Decimal(range) => {
            let first = range.start();
            let last = range.end();
            let form = format!(" ({first} to {last}, decimals taken)");
            return (format!("{first}..{last} (decimal)"), form);
        }
        WordType::Path => ("PATH", " (inside /workspace)"),
        WordType::Host => ("HOST", " (a host name or an address)"),
        WordType::Cidr => ("NETWORK", " (such as 10.0.0.0/8)"),
        WordType::Target => ("TARGET", " (a host name, an address or a network)"),
        WordType::Ports => ("PORTS", " (such as 22,80-90)"),
        WordType::Url => ("URL", " (http or https)"),
        WordType::Choice(values) => return (values.join("|"), String::new()),
    };
    (value.to_owned(), form.to_owned())
}

fn positional(one: &Positional) -> Value {
    let (_, form) = word_form(&one.takes);
    let mut word = json!({ "type": "string", "minLength": 1, "maxLength": one.takes.max_bytes });
    if let (WordType::Choice(values), Some(map)) = (&one.takes.kind, word.as_object_mut()) {
        map.insert("enum".to_owned(), json!(values));
    }
    let mut schema = match one.max {
        0 | 1 => word,
        max => json!({ "type": "array", "items": word, "minItems": one.min, "maxItems": max }),
    };
    if let Some(map) = schema.as_object_mut() {
        let places = places(&one.takes);
        map.insert("description".to_owned(), Value::from(format!("{}{form}{places}", one.why)));
    }
    schema
}

/// Describes the places that a word may name.
fn places(takes: &Type) -> String {
    match (&takes.reach.within, takes.kind.is_target()) {
        (TargetPlaces::Private, true) => {
            "; in a private network (RFC 1918, fc00::/7) or below lab.internal".to_owned()
        }
        (TargetPlaces::Listed { hosts, nets }, true) => {
            let hosts = hosts.iter().map(ToString::to_string);
            let all: Vec<String> = hosts.chain(nets.iter().map(ToString::to_string)).collect();
            format!("; within {}", all.join(", "))
        }
        (TargetPlaces::Any, true) | (_, false) => String::new(),
    }
}
