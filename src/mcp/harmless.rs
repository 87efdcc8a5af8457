//! Passes every text of a cell or a project through [`service::capture::deceptive::harmless`] before it is sent to a client.

use std::borrow::Cow;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolResult, CompleteResult, ContentBlock, GetPromptResult, ReadResourceResult,
    ResourceContents,
};
use serde_json::Value;
use service::capture::deceptive::harmless;

/// Replaces a text by its harmless form, if the two differ.
pub(crate) fn text(text: &mut String) {
    if let Cow::Owned(shown) = harmless(text) {
        *text = shown;
    }
}

/// Makes every text in a value harmless, including names of fields.
pub(crate) fn value(value: &mut Value) {
    match value {
        Value::String(one) => text(one),
        Value::Array(all) => all.iter_mut().for_each(self::value),
        Value::Object(fields) => {
            let has_other_names = fields.keys().any(|name| matches!(harmless(name), Cow::Owned(_)));
            if has_other_names {
                let named = |(name, value): (String, Value)| (harmless(&name).into_owned(), value);
                *fields = std::mem::take(fields).into_iter().map(named).collect();
            }
            fields.values_mut().for_each(self::value);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Makes descriptions and titles in an entry of a list harmless. Names, addresses and values that a schema compares
/// stay, as clients send them back.
pub(crate) fn described(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(described),
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), field) {
                    ("description" | "title", Value::String(one)) => text(one),
                    (_, field) => described(field),
                }
            }
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Makes the result of a tool harmless: its texts and its fields.
pub(crate) fn result(mut result: CallToolResult) -> CallToolResult {
    result.content.iter_mut().for_each(block);
    result.structured_content.iter_mut().for_each(value);
    if let Some(meta) = &mut result.meta {
        meta.0.values_mut().for_each(value);
    }
    result
}

fn block(block: &mut ContentBlock) {
    match block {
        ContentBlock::Text(one) => text(&mut one.text),
        ContentBlock::Resource(embedded) => contents(&mut embedded.resource),
        ContentBlock::ResourceLink(link) => {
            let texts = [link.title.as_mut(), link.description.as_mut()];
            texts.into_iter().flatten().chain([&mut link.name, &mut link.uri]).for_each(text);
        }
        // Bytes in base64, and kinds of content that no reply of a cell has.
        ContentBlock::Image(_) | ContentBlock::Audio(_) | _ => {}
    }
}

fn contents(contents: &mut ResourceContents) {
    match contents {
        ResourceContents::TextResourceContents { uri, text: content, .. } => {
            text(uri);
            text(content);
        }
        ResourceContents::BlobResourceContents { uri, .. } => text(uri),
        _ => {}
    }
}

/// Makes the contents of resources harmless.
pub(crate) fn read(mut result: ReadResourceResult) -> ReadResourceResult {
    result.contents.iter_mut().for_each(contents);
    result
}

/// Makes a prompt harmless.
pub(crate) fn prompt(mut result: GetPromptResult) -> GetPromptResult {
    result.description.iter_mut().for_each(text);
    for message in &mut result.messages {
        block(&mut message.content);
    }
    if let Some(meta) = &mut result.meta {
        meta.0.values_mut().for_each(value);
    }
    result
}

/// Makes suggestions harmless.
pub(crate) fn suggestions(mut result: CompleteResult) -> CompleteResult {
    result.completion.values.iter_mut().for_each(text);
    result
}

/// Makes an error harmless, whose message may come from a script.
pub(crate) fn error(mut error: ErrorData) -> ErrorData {
    if let Cow::Owned(shown) = harmless(&error.message) {
        error.message = Cow::Owned(shown);
    }
    error.data.iter_mut().for_each(value);
    error
}
