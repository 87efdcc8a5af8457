//! Directories in which scripts work: those of `config/roots.json`, else the project. Nothing is granted by them: each is in the
//! project already.

use serde_json::{Value, json};

use crate::ProjectMistake;
use crate::fields::{Fields, json_object};
use crate::launch::ROOT;
use crate::tree::Tree;

/// Place of the file.
const FILE: &str = "config/roots.json";
/// Longest list.
const MOST: usize = 64;

/// A directory in which scripts work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScriptRoot {
    /// Path in a cell.
    pub(crate) path: String,
    pub(crate) name: String,
}

/// Reads the list. An entry that is no directory of the project is a mistake, and left out.
pub(crate) fn read(tree: &Tree, mistakes: &mut Vec<ProjectMistake>) -> Vec<ScriptRoot> {
    let object = match json_object(tree, FILE) {
        Ok(object) => object.unwrap_or_default(),
        Err(mistake) => {
            mistakes.push(mistake);
            return Vec::new();
        }
    };
    let mut fields = Fields::new(FILE, object, mistakes);
    let entries = fields.list("roots").unwrap_or_default();
    let mut roots: Vec<ScriptRoot> = Vec::new();
    for (number, entry) in entries.iter().enumerate().take(MOST) {
        match root(tree, entry) {
            Some(root) if roots.iter().any(|one| one.path == root.path) => {}
            Some(root) => roots.push(root),
            None => {
                let why = "is no directory of the project; others are granted with --ro and --rw";
                mistakes.push(ProjectMistake::new(&format!("{FILE}: roots[{number}]"), why));
            }
        }
    }
    roots
}

fn root(tree: &Tree, entry: &Value) -> Option<ScriptRoot> {
    let text = |key: &str| entry.get(key)?.as_str().filter(|text| !text.is_empty());
    let path = entry.as_str().or_else(|| text("path"))?;
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    let parts: Vec<&str> = parts.collect();
    let is_below = !path.starts_with('/') && !parts.contains(&"..") && !path.contains(['\n', '\0']);
    let below = parts.join("/");
    if !is_below || !tree.is_folder(if below.is_empty() { "." } else { &below }) {
        return None;
    }
    let path = if below.is_empty() { ROOT.to_owned() } else { format!("{ROOT}/{below}") };
    let name = text("name").unwrap_or_else(|| parts.last().copied().unwrap_or("project"));
    Some(ScriptRoot { path, name: name.to_owned() })
}

/// Returns the variables that tell scripts of them: as JSON, a line for each, and their number.
pub(crate) fn told(roots: &[ScriptRoot], project: &str) -> (String, String, usize) {
    let whole = [ScriptRoot { path: ROOT.to_owned(), name: project.to_owned() }];
    let roots = if roots.is_empty() { &whole } else { roots };
    let entry = |root: &ScriptRoot| {
        let path = root.path.as_str();
        json!({ "uri": format!("file://{path}"), "name": root.name, "path": path })
    };
    let list = Value::Array(roots.iter().map(entry).collect());
    let paths: Vec<&str> = roots.iter().map(|root| root.path.as_str()).collect();
    (list.to_string(), paths.join("\n"), paths.len())
}
