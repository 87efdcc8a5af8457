//! Schemas of tools: made from the types of their arguments and results, when a client asks for the list.
//!
//! The doc comment of a field is its description.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::generate::{Contract, SchemaSettings};
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use crate::arguments::Named;
use model::shells::ShellKind;
use service::request::ExecOptions;
use service::rules::Rules;
use service::session::DEFAULT;

/// Describes a tool with the arguments `T` and the result `R`.
pub(super) fn tool<T: Named + JsonSchema, R: JsonSchema>(
    title: &str,
    description: impl Into<String>,
) -> Tool {
    Tool::new(T::TOOL, description.into(), schema::<T>(Contract::Deserialize))
        .with_title(title)
        .with_raw_output_schema(Arc::new(output::<R>()))
}

/// Returns the schema of a result, with the fields of a refusal and of remarks. No field is required: clients hold the
/// result of an error to the schema too, and a refusal has only its reason.
pub(crate) fn output<R: JsonSchema>() -> JsonObject {
    or_error(schema::<R>(Contract::Serialize))
}

fn or_error(mut output: JsonObject) -> JsonObject {
    let text = json!({ "type": "string" });
    let more = [
        ("error", text.clone()),
        ("hint", text.clone()),
        ("notes", json!({ "type": "array", "items": text })),
    ];
    if let Some(properties) = output.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, schema) in more {
            properties.entry(name).or_insert(schema);
        }
    }
    output.remove("required");
    output
}

/// Returns the schema of a type.
fn schema<T: JsonSchema>(contract: Contract) -> JsonObject {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
        settings.contract = contract;
    });
    plain(settings.into_generator().subschema_for::<T>())
}

/// Makes a derived schema one of a tool.
fn plain(mut schema: Schema) -> JsonObject {
    ForModels.transform(&mut schema);
    let mut fields = schema.as_object().cloned().unwrap_or_default();
    // The comment of the type is for readers of the code.
    fields.remove("description");
    fields.entry("properties").or_insert_with(|| json!({}));
    fields
}

/// Rewrites derived schemas for models, which read every word: an optional field is one that may be absent, and never
/// null; no field is unknown; no format names a type of Rust.
struct ForModels;

impl Transform for ForModels {
    fn transform(&mut self, schema: &mut Schema) {
        if let Some(fields) = schema.as_object_mut() {
            fields.remove("format");
            without_optional(fields);
            without_null(fields);
            if fields.contains_key("properties") {
                fields.entry("additionalProperties").or_insert(Value::Bool(false));
            }
            for items in ["items", "additionalProperties"] {
                // The comment of the type of the items.
                if let Some(items) = fields.get_mut(items).and_then(Value::as_object_mut) {
                    items.remove("description");
                }
            }
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.replace('\n', " ");
            }
        }
        transform_subschemas(self, schema);
    }
}

/// Takes the fields that may be null from those that are required.
fn without_optional(schema: &mut JsonObject) {
    let Some(Value::Object(properties)) = schema.get("properties") else { return };
    let optional: Vec<String> = properties
        .iter()
        .filter(|(_, field)| allows_null(field))
        .map(|(name, _)| name.clone())
        .collect();
    let Some(Value::Array(required)) = schema.get_mut("required") else { return };
    let count = required.len();
    required.retain(|name| !optional.iter().any(|other| name == other));
    if required.is_empty() && count > 0 {
        schema.remove("required");
    }
}

fn allows_null(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_array).is_some_and(|types| types.contains(&json!("null")))
}

/// Takes null from the types and the values of a schema.
fn without_null(schema: &mut JsonObject) {
    if let Some(types) = schema.get_mut("type")
        && let Some(list) = types.as_array_mut()
    {
        list.retain(|name| name != "null");
        if let [one] = list.as_slice() {
            *types = one.clone();
        }
    }
    if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        values.retain(|value| !value.is_null());
    }
}

/// The name of a session as an argument.
#[derive(JsonSchema)]
#[schemars(description = "")]
#[expect(dead_code, reason = "it is described, and never made")]
pub(super) struct SessionName(
    #[schemars(
        length(min = 1, max = 64),
        extend("default" = DEFAULT, "pattern" = "^[A-Za-z0-9._-]+$")
    )]
    String,
);

/// The name of a shell as an argument.
#[derive(JsonSchema)]
#[schemars(description = "")]
#[expect(dead_code, reason = "it is described, and never made")]
pub(super) struct ShellName(
    #[schemars(extend("enum" = ShellKind::ALL.map(ShellKind::name)))] String,
);

/// Takes the default out of the schema of a field: an absent text or list is an empty one.
pub(super) fn without_default(schema: &mut Schema) {
    schema.remove("default");
}

/// Returns the fields of a tool's arguments, to add what depends on the configuration.
pub(super) fn fields(tool: &mut Tool) -> Option<&mut JsonObject> {
    Arc::make_mut(&mut tool.input_schema).get_mut("properties")?.as_object_mut()
}

/// Adds keywords to the schema of a field, if the tool has the field.
pub(super) fn extend(fields: &mut JsonObject, name: &str, keywords: Value) {
    if let (Some(field), Value::Object(keywords)) =
        (fields.get_mut(name).and_then(Value::as_object_mut), keywords)
    {
        field.extend(keywords);
    }
}

/// Adds to the fields of a command in a fresh cell the time that it has, and the profiles that the operator leaves to
/// choose from.
pub(super) fn extend_exec(fields: &mut JsonObject, options: &ExecOptions) {
    let maximum = options.max_timeout.as_secs_f64();
    let default = options.default_timeout.as_secs_f64();
    extend(fields, "timeout", json!({ "maximum": maximum, "default": default }));
    match options.profiles.as_slice() {
        [own, _, ..] => {
            extend(fields, "profile", json!({ "enum": options.profiles, "default": own }));
        }
        [_] | [] => drop(fields.remove("profile")),
    }
}

/// Adds the time that a calculation has, which is the operator's at most.
pub(super) fn extend_calculation(tool: &mut Tool, rules: &Rules) {
    let maximum = rules.limits.calculator_timeout_s;
    let about = format!("Seconds; at most {maximum}");
    if let Some(fields) = fields(tool) {
        extend(fields, "timeout", json!({ "default": maximum, "description": about }));
    }
}

/// Annotates a tool that only reads, is repeatable, and reaches nothing outside.
pub(super) fn pure() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).idempotent(true).open_world(false)
}

/// Annotates a tool that runs a command: it may change anything inside of its cell, and nothing
/// outside.
pub(super) fn runs() -> ToolAnnotations {
    ToolAnnotations::new().read_only(false).destructive(true).idempotent(false).open_world(false)
}

/// Annotates a tool that sets a value of the session.
pub(super) fn sets() -> ToolAnnotations {
    ToolAnnotations::new().read_only(false).destructive(false).idempotent(true).open_world(false)
}
