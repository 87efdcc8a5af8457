//! The prompts of a project: files below `prompts/`, or entries of `register.json`.

use serde_json::{Map, Value};

use crate::ProjectMistake;
use crate::fields::Fields;
use crate::metadata::{self, META};
use crate::register::Entry;
use crate::tools::normalised;
use crate::tree::{FoundFile, Tree};

/// Folder of the prompts.
const FOLDER: &str = "prompts";

/// A prompt of a project.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptPrompt {
    pub name: String,
    /// Path below `prompts/`.
    pub path: String,
    pub description: String,
    /// Schema of the arguments, an object.
    pub arguments: Map<String, Value>,
}

/// Finds the prompts below `prompts/`.
///
/// # Errors
/// A folder that cannot be listed as a whole.
pub(crate) fn discovered(
    tree: &Tree,
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<ScriptPrompt>, ProjectMistake> {
    let files = tree.files(FOLDER, mistakes)?;
    let is_prompt = |file: &&FoundFile| {
        let name = file.name();
        !name.ends_with(META) && !name.ends_with(".completion") && !name.ends_with(".completion.sh")
    };
    let mut prompts = Vec::new();
    for file in files.iter().filter(is_prompt) {
        match metadata::of(tree, file, &["name", "description"]) {
            Ok(found) => {
                let mut fields = Fields::new(&found.place, found.object, mistakes);
                prompts.push(prompt(file, &mut fields));
            }
            Err(mistake) => mistakes.push(mistake),
        }
    }
    Ok(unique(prompts, mistakes))
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
        let file = entry.file(tree, FOLDER)?;
        let mut fields = Fields::new(&entry.place, entry.object.clone(), mistakes);
        prompts.push(prompt(&file, &mut fields));
    }
    Ok(unique(prompts, mistakes))
}

fn prompt(file: &FoundFile, fields: &mut Fields<'_>) -> ScriptPrompt {
    let stem = file.stem().rsplit('/').next().unwrap_or_default();
    let path = file.path.strip_prefix("prompts/").unwrap_or(&file.path);
    ScriptPrompt {
        name: fields.text("name").unwrap_or_else(|| stem.to_owned()),
        path: path.to_owned(),
        description: fields.text("description").unwrap_or_default(),
        arguments: normalised(fields.object("arguments").unwrap_or_default()),
    }
}

/// Keeps one prompt of each name, and sorts them.
fn unique(mut prompts: Vec<ScriptPrompt>, mistakes: &mut Vec<ProjectMistake>) -> Vec<ScriptPrompt> {
    prompts.sort_by(|one, other| (&one.name, &one.path).cmp(&(&other.name, &other.path)));
    prompts.dedup_by(|later, kept| {
        let is_double = later.name == kept.name;
        if is_double {
            let place = format!("{FOLDER}/{}", later.path);
            let why = format!("another prompt is named `{}`", kept.name);
            mistakes.push(ProjectMistake::new(&place, why));
        }
        is_double
    });
    prompts
}
