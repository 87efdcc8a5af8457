//! The prompts of a project: files below `prompts/`, or entries of `register.json`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ProjectMistake;
use crate::fields::Fields;
use crate::metadata::{self, is_entry};
use crate::register::Entry;
use crate::result::is_of_the_server;
use crate::tools::normalised;
use crate::tree::{FoundFile, Tree};

/// A prompt of a project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScriptPrompt {
    pub name: String,
    /// Path below the folder of the prompts.
    pub path: String,
    pub description: String,
    /// Schema of the arguments, an object.
    pub arguments: Map<String, Value>,
    pub icons: Option<Vec<Value>>,
    /// Further words of the author's about it.
    pub metadata: Option<Map<String, Value>>,
    pub role: PromptRole,
    /// Text with places for arguments: `{{name}}` or `${name}`.
    text: String,
}

/// Speaker of a prompt's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PromptRole {
    User,
    Assistant,
}

impl PromptRole {
    /// Reads a role. MCP has no other than these two; the framework's `system` is the user's.
    fn of(name: Option<&str>) -> Self {
        if name == Some("assistant") { Self::Assistant } else { Self::User }
    }
}

impl ScriptPrompt {
    /// Returns the arguments: name, description, and true for those that are required.
    pub fn parameters(&self) -> Vec<(&str, Option<&str>, bool)> {
        let required = self.arguments.get("required").and_then(Value::as_array);
        let is_required = |name: &str| {
            required.is_some_and(|names| names.iter().any(|one| one.as_str() == Some(name)))
        };
        let properties = self.arguments.get("properties").and_then(Value::as_object);
        let named = properties.into_iter().flatten().map(|(name, schema)| {
            let description = schema.get("description").and_then(Value::as_str);
            (name.as_str(), description, is_required(name))
        });
        named.collect()
    }

    /// Puts arguments into the text, in one pass: what an argument holds is never a place for another. A place
    /// without an argument stays.
    pub fn rendered(&self, arguments: &Map<String, Value>) -> String {
        let mut text = String::with_capacity(self.text.len());
        let mut rest = self.text.as_str();
        while let Some(at) = rest.find(['{', '$']) {
            let (before, from) = rest.split_at(at);
            text.push_str(before);
            match place(from)
                .and_then(|(name, behind)| Some((scalar(arguments.get(name)?)?, behind)))
            {
                Some((value, behind)) => {
                    text.push_str(&value);
                    rest = behind;
                }
                None => {
                    let (first, behind) = from.split_at(1);
                    text.push_str(first);
                    rest = behind;
                }
            }
        }
        text + rest
    }
}

/// Reads the place for an argument with which a text begins, and returns its name and the text behind it.
fn place(text: &str) -> Option<(&str, &str)> {
    let (inside, end) = match text.strip_prefix("{{") {
        Some(inside) => (inside, "}}"),
        None => (text.strip_prefix("${")?, "}"),
    };
    // A name ends at the next of these, so that a text of open places is read once and not again from each.
    let (name, rest) = inside.split_at(inside.find(['{', '}', '$', '\n'])?);
    Some((name.trim(), rest.strip_prefix(end)?))
}

/// Returns a value as it is put into a text.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Finds the prompts below `prompts/`.
///
/// # Errors
/// A folder that cannot be listed as a whole.
pub(crate) fn discovered(
    tree: &Tree,
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<ScriptPrompt>, ProjectMistake> {
    let mut files = tree.files(&tree.layout.prompts, mistakes)?;
    files.retain(is_entry);
    let make = |file: &FoundFile, fields: &mut Fields<'_>| prompt(tree, file, fields);
    let prompts = metadata::entries(tree, &files, &["name", "description"], mistakes, make);
    Ok(unique(&tree.layout.prompts, prompts, mistakes))
}

/// Takes the prompts that `register.json` lists.
///
/// # Errors
/// A prompt without a name, or whose file cannot be used.
pub(crate) fn registered(
    tree: &Tree,
    entries: &[Entry],
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<ScriptPrompt>, ProjectMistake> {
    let mut prompts = Vec::new();
    for entry in entries {
        // Keep scripts that may write from changing the text of a prompt.
        let file = match tree.is_written {
            true => entry.file_within(tree, &tree.layout.prompts)?,
            false => entry.file(tree, &tree.layout.prompts)?,
        };
        prompts.push(prompt(tree, &file, &mut entry.fields(mistakes))?);
    }
    Ok(unique(&tree.layout.prompts, prompts, mistakes))
}

fn prompt(
    tree: &Tree,
    file: &FoundFile,
    fields: &mut Fields<'_>,
) -> Result<ScriptPrompt, ProjectMistake> {
    Ok(ScriptPrompt {
        text: tree.text(&file.path)?.unwrap_or_default(),
        name: fields.text("name").unwrap_or_else(|| file.title().to_owned()),
        path: file.below(&tree.layout.prompts).to_owned(),
        description: fields.text("description").unwrap_or_default(),
        arguments: normalised(fields.object("arguments").unwrap_or_default()),
        icons: fields.list("icons"),
        metadata: fields.object("metadata").map(|mut metadata| {
            metadata.retain(|key, _| !is_of_the_server(key));
            metadata
        }),
        role: PromptRole::of(fields.text("role").as_deref()),
    })
}

/// Keeps one prompt of each name, and sorts them.
fn unique(
    folder: &str,
    mut prompts: Vec<ScriptPrompt>,
    mistakes: &mut Vec<ProjectMistake>,
) -> Vec<ScriptPrompt> {
    prompts.sort_by(|one, other| (&one.name, &one.path).cmp(&(&other.name, &other.path)));
    prompts.dedup_by(|later, kept| {
        let is_double = later.name == kept.name;
        if is_double {
            let place = format!("{folder}/{}", later.path);
            let why = format!("another prompt is named `{}`", kept.name);
            mistakes.push(ProjectMistake::new(&place, why));
        }
        is_double
    });
    prompts
}
