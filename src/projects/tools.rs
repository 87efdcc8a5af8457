//! The tools of a project: discovered below `tools/`, or listed by `register.json`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::ProjectMistake;
use crate::fields::Fields;
use crate::metadata::{self, META};
use crate::register::Entry;
use crate::tree::{FoundFile, Tree};

/// Characters of a tool's name.
const NAME_CHARACTERS: usize = 64;

/// A tool of a project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScriptTool {
    pub name: String,
    /// Path below the folder of the tools.
    pub path: String,
    /// True if the file is run itself; else bash reads it.
    pub is_executable: bool,
    pub description: String,
    pub input_schema: Map<String, Value>,
    pub output_schema: Option<Map<String, Value>>,
    /// Time limit in seconds.
    pub timeout: Option<u64>,
    pub timeout_hint: Option<String>,
    /// True if progress renews the time limit, up to `max_timeout`.
    pub is_extended: bool,
    pub max_timeout: Option<u64>,
    pub icons: Option<Vec<Value>>,
    pub annotations: Option<Map<String, Value>>,
    pub meta: Option<Map<String, Value>>,
}

/// Finds the tools below `tools/`.
///
/// # Errors
/// A folder that cannot be listed as a whole.
pub(crate) fn discovered(
    tree: &Tree,
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<ScriptTool>, ProjectMistake> {
    let folder = &tree.layout.tools;
    let mut files = tree.files(folder, mistakes)?;
    files.retain(|file| is_tool(tree, file));
    let make = |file: &FoundFile, fields: &mut Fields<'_>| Ok(tool(folder, file, fields));
    let tools = metadata::entries(tree, &files, &["name", "description"], mistakes, make);
    Ok(unique(folder, tools, mistakes))
}

/// Takes the tools that `register.json` lists.
///
/// # Errors
/// A tool without a name, or whose file cannot be used or is not in `tools/`.
pub(crate) fn registered(
    tree: &Tree,
    entries: &[Entry],
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<ScriptTool>, ProjectMistake> {
    let folder = &tree.layout.tools;
    let mut tools = Vec::new();
    for entry in entries {
        let file = entry.file_within(tree, folder)?;
        tools.push(tool(folder, &file, &mut entry.fields(mistakes)));
    }
    Ok(unique(folder, tools, mistakes))
}

/// Returns true if a file below `tools/` is a tool: a program or a script in a subfolder.
fn is_tool(tree: &Tree, file: &FoundFile) -> bool {
    let name = file.name();
    let is_nested = file.below(&tree.layout.tools).contains('/');
    if !is_nested || name.ends_with(META) || name == "smoke.sh" {
        return false;
    }
    let is_script = name.ends_with(".sh") || name.ends_with(".bash");
    let is_interpreted = |head: String| head.starts_with("#!");
    file.is_executable
        || is_script
        || tree.head(&file.path).is_ok_and(|head| head.is_some_and(is_interpreted))
}

fn tool(folder: &str, file: &FoundFile, fields: &mut Fields<'_>) -> ScriptTool {
    let schema = fields.object("inputSchema").or_else(|| fields.object("arguments"));
    ScriptTool {
        name: fields.text("name").unwrap_or_else(|| file.title().to_owned()),
        path: file.below(folder).to_owned(),
        is_executable: file.is_executable,
        description: fields.text("description").unwrap_or_default(),
        input_schema: normalised(schema.unwrap_or_default()),
        output_schema: fields.object("outputSchema"),
        timeout: fields.seconds("timeoutSecs"),
        timeout_hint: fields.text("timeoutHint"),
        is_extended: fields.flag("progressExtendsTimeout").unwrap_or(false),
        max_timeout: fields.seconds("maxTimeoutSecs"),
        icons: fields.list("icons"),
        annotations: fields.object("annotations"),
        meta: fields.object("_meta"),
    }
}

/// Completes a schema of arguments, which is of an object.
pub(crate) fn normalised(mut schema: Map<String, Value>) -> Map<String, Value> {
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        schema.insert("type".to_owned(), json!("object"));
    }
    if !schema.get("properties").is_some_and(Value::is_object) {
        schema.insert("properties".to_owned(), json!({}));
    }
    schema
}

/// Keeps one tool of each name, the first by path, and sorts them.
fn unique(
    folder: &str,
    mut tools: Vec<ScriptTool>,
    mistakes: &mut Vec<ProjectMistake>,
) -> Vec<ScriptTool> {
    tools.sort_by(|one, other| (&one.name, &one.path).cmp(&(&other.name, &other.path)));
    let mut names = BTreeSet::new();
    tools.retain(|tool| {
        let place = format!("{folder}/{}", tool.path);
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if tool.name.len() > NAME_CHARACTERS || !tool.name.chars().all(is_name) {
            let why = "the tool's name is not made of 1 to 64 letters, digits, `_`, `-` and `.`";
            mistakes.push(ProjectMistake::new(&place, why));
            return false;
        }
        let is_first = names.insert(tool.name.clone());
        if !is_first {
            let why = format!("another tool is named `{}`", tool.name);
            mistakes.push(ProjectMistake::new(&place, why));
        }
        is_first
    });
    tools
}
