//! `server.d/register.json`: lists that take the place of discovery, read strictly.

use serde_json::{Map, Value};

use crate::ProjectMistake;
use crate::fields::{Fields, json_object};
use crate::tree::{FoundFile, Tree, leaves};

/// Place of the file.
pub(crate) const FILE: &str = "server.d/register.json";
/// Keys that it may have.
const KEYS: [&str; 7] =
    ["version", "_meta", "tools", "resources", "resourceTemplates", "prompts", "completions"];

/// The lists of the file. A list that is absent leaves discovery on for its kind.
#[derive(Debug, Default)]
pub(crate) struct Register {
    pub(crate) exists: bool,
    pub(crate) tools: Option<Vec<Entry>>,
    pub(crate) resources: Option<Vec<Entry>>,
    pub(crate) templates: Option<Vec<Entry>>,
    pub(crate) prompts: Option<Vec<Entry>>,
    pub(crate) completions: Option<Vec<Entry>>,
}

/// One entry of a list.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Place of the entry in the file.
    pub(crate) place: String,
    object: Map<String, Value>,
}

impl Entry {
    /// Returns the fields of the entry.
    pub(crate) fn fields<'m>(&self, mistakes: &'m mut Vec<ProjectMistake>) -> Fields<'m> {
        Fields::new(&self.place, self.object.clone(), mistakes)
    }

    /// Finds the file as [`Entry::file`] does. Where scripts may write, one that cannot be used costs its own entry: a script
    /// may have taken it away, and takes no list with it.
    ///
    /// # Errors
    /// As of [`Entry::file`], where scripts do not write.
    pub(crate) fn present(
        &self,
        tree: &Tree,
        folder: &str,
        mistakes: &mut Vec<ProjectMistake>,
    ) -> Result<Option<FoundFile>, ProjectMistake> {
        match self.file(tree, folder) {
            Err(mistake) if tree.is_written => {
                mistakes.push(mistake);
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// Finds the file that an entry names, below `folder`.
    ///
    /// # Errors
    /// An entry without a name or a path, or a file that cannot be used.
    pub(crate) fn file(&self, tree: &Tree, folder: &str) -> Result<FoundFile, ProjectMistake> {
        let text = |key: &str| {
            let value = self.object.get(key).and_then(Value::as_str);
            let bad = || ProjectMistake::new(&self.place, format!("`{key}` is missing"));
            value.filter(|value| !value.is_empty()).ok_or_else(bad)
        };
        text("name")?;
        let path = text("path")?;
        if path.contains(['\n', '\r', '\0']) {
            return Err(ProjectMistake::new(&self.place, "`path` has a line break"));
        }
        let bad = || ProjectMistake::new(&self.place, format!("`path`: no file {folder}/{path}"));
        let found = tree.found(&format!("{folder}/{path}"));
        // Count it as a mistake of the register: no list falls back to what was known of a file before.
        let found = found.map_err(|mistake| ProjectMistake::new(&self.place, mistake.to_string()));
        found?.ok_or_else(bad)
    }

    /// Finds the file as [`Entry::file`] does, in `folder` and nowhere else: scripts may write to other folders.
    ///
    /// # Errors
    /// As of [`Entry::file`], and a path that leads out of the folder.
    pub(crate) fn file_within(
        &self,
        tree: &Tree,
        folder: &str,
    ) -> Result<FoundFile, ProjectMistake> {
        let path = self.object.get("path").and_then(Value::as_str).unwrap_or_default();
        if leaves(path) {
            let why = format!("`path` leads out of {folder}");
            return Err(ProjectMistake::new(&self.place, why));
        }
        self.file(tree, folder)
    }
}

/// Reads the file, if there is one, else the `lists` that the project's hook made.
///
/// # Errors
/// Anything in it that is not as the format has it: no list falls back to discovery then.
pub(crate) fn read(
    tree: &Tree,
    lists: Option<Map<String, Value>>,
) -> Result<Register, ProjectMistake> {
    let file = tree.layout.placed(FILE);
    let (mut object, exists) = match (json_object(tree, &file)?, lists) {
        (Some(object), _) => (object, true),
        (None, Some(mut lists)) => {
            lists.entry("version").or_insert_with(|| Value::from(1));
            (lists, false)
        }
        (None, None) => return Ok(Register::default()),
    };
    if let Some(key) = object.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(ProjectMistake::new(&file, format!("`{}` is no key", key.escape_default())));
    }
    if object.get("version").and_then(Value::as_u64) != Some(1) {
        return Err(ProjectMistake::new(&file, "`version` is not 1"));
    }
    if object.get("_meta").is_some_and(|meta| !meta.is_object() && !meta.is_null()) {
        return Err(ProjectMistake::new(&file, "`_meta` is no object"));
    }
    Ok(Register {
        exists,
        tools: list(&file, &mut object, "tools")?,
        resources: list(&file, &mut object, "resources")?,
        templates: list(&file, &mut object, "resourceTemplates")?,
        prompts: list(&file, &mut object, "prompts")?,
        completions: list(&file, &mut object, "completions")?,
    })
}

fn list(
    file: &str,
    object: &mut Map<String, Value>,
    key: &str,
) -> Result<Option<Vec<Entry>>, ProjectMistake> {
    let Some(value) = object.remove(key).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let Value::Array(entries) = value else {
        return Err(ProjectMistake::new(file, format!("`{key}` is no list")));
    };
    let entry = |(number, value): (usize, Value)| {
        let place = format!("{file}: {key}[{number}]");
        let Value::Object(object) = value else {
            return Err(ProjectMistake::new(&place, "is no object"));
        };
        Ok(Entry { place, object })
    };
    entries.into_iter().enumerate().map(entry).collect::<Result<Vec<_>, _>>().map(Some)
}
