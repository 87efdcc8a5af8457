//! Describes the entries of a project to a client.

use rmcp::ErrorData;
use rmcp::model::{
    GetPromptResponse, GetPromptResult, Implementation, JsonObject, MetaObject, Prompt,
    PromptArgument, PromptMessage, Resource, ResourceTemplate, Role, Tool,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harmless;
use crate::pages::MOVED;
use projects::{Project, PromptRole, ScriptPrompt, ScriptResource, ScriptTemplate, ScriptTool};

/// Describes a tool to a client. Annotations and icons that no client could read are left out.
pub(crate) fn tool(tool: &ScriptTool) -> Tool {
    let fixed = json!({
        "name": tool.name, "description": tool.description, "inputSchema": tool.input_schema,
    });
    // In `_meta`, as a strict client refuses unknown members elsewhere.
    let mut meta = tool.meta.clone().unwrap_or_default();
    meta.insert(format!("{MOVED}path"), json!(tool.path));
    meta.insert(format!("{MOVED}timeoutSecs"), json!(tool.timeout));
    let more = [
        ("outputSchema", tool.output_schema.clone().map(Value::Object)),
        ("annotations", tool.annotations.clone().map(Value::Object)),
        ("icons", tool.icons.clone().map(Value::Array)),
        ("_meta", Some(Value::Object(meta))),
    ];
    let plain = || Tool::new(tool.name.clone(), "", tool.input_schema.clone());
    entry(fixed, more).unwrap_or_else(plain)
}

/// Describes a resource to a client, as [`tool`] does a tool.
pub(crate) fn resource(resource: &ScriptResource) -> Resource {
    let fixed = json!({
        "name": resource.name, "description": resource.description, "uri": resource.uri,
        "mimeType": resource.mime_type,
    });
    let more = [
        ("annotations", resource.annotations.clone().map(Value::Object)),
        ("icons", resource.icons.clone().map(Value::Array)),
        ("_meta", resource.meta.clone().map(Value::Object)),
    ];
    entry(fixed, more).unwrap_or_else(|| Resource::new(&resource.uri, &resource.name))
}

/// Describes a template to a client, as [`tool`] does a tool.
pub(crate) fn template(template: &ScriptTemplate) -> ResourceTemplate {
    let fixed = json!({ "name": template.name, "uriTemplate": template.uri_template });
    let more = [
        ("title", template.title.clone().map(Value::String)),
        ("description", template.description.clone().map(Value::String)),
        ("mimeType", template.mime_type.clone().map(Value::String)),
        ("annotations", template.annotations.clone().map(Value::Object)),
    ];
    let plain = || ResourceTemplate::new(&template.uri_template, &template.name);
    entry(fixed, more).unwrap_or_else(plain)
}

/// Makes an entry of a list of the `fixed` fields, and of those of `more` that a client can read.
fn entry<T: DeserializeOwned, const N: usize>(
    mut fixed: Value,
    more: [(&str, Option<Value>); N],
) -> Option<T> {
    for (key, value) in more {
        let Some(value) = value else { continue };
        let mut with = fixed.clone();
        with.as_object_mut()?.insert(key.to_owned(), value);
        if serde_json::from_value::<T>(with.clone()).is_ok() {
            fixed = with;
        }
    }
    harmless::described(&mut fixed);
    serde_json::from_value(fixed).ok()
}

/// Describes a prompt to a client.
pub(crate) fn prompt(prompt: &ScriptPrompt) -> Prompt {
    let argument = |(name, description, is_required): (&str, Option<&str>, bool)| {
        let argument = PromptArgument::new(name).with_required(is_required);
        match description {
            Some(description) => argument.with_description(description),
            None => argument,
        }
    };
    let arguments: Vec<PromptArgument> = prompt.parameters().into_iter().map(argument).collect();
    let fixed = json!({
        "name": prompt.name, "description": prompt.description, "arguments": arguments,
    });
    let more = [
        ("icons", prompt.icons.clone().map(Value::Array)),
        ("_meta", prompt.metadata.clone().map(Value::Object)),
    ];
    let plain = || Prompt::new(&prompt.name, Some(&prompt.description), Some(arguments.clone()));
    entry(fixed, more).unwrap_or_else(plain)
}

/// Puts arguments into a prompt.
///
/// # Errors
/// An argument that is required and missing.
pub(crate) fn rendered_prompt(
    prompt: &ScriptPrompt,
    arguments: &JsonObject,
) -> Result<GetPromptResponse, ErrorData> {
    for (name, _, is_required) in prompt.parameters() {
        if is_required && !arguments.contains_key(name) {
            return Err(ErrorData::invalid_params(format!("argument `{name}` is required"), None));
        }
    }
    let role = match prompt.role {
        PromptRole::User => Role::User,
        PromptRole::Assistant => Role::Assistant,
    };
    let message = PromptMessage::new_text(role, prompt.rendered(arguments));
    let mut result = GetPromptResult::new(vec![message]).with_description(&prompt.description);
    result.meta = prompt.metadata.clone().map(MetaObject);
    Ok(harmless::prompt(result).into())
}

/// Returns the name and version that a project gives its server.
pub(crate) fn implementation(project: &Project) -> Implementation {
    let server = &project.server;
    let mut implementation = Implementation::new(server.name.clone(), server.version.clone())
        .with_title(server.title.clone());
    implementation.description = server.description.clone();
    implementation.website_url = server.website.clone();
    implementation
}
