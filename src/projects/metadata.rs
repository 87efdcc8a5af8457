//! Reads the metadata of one file: a `.meta.json` next to it, or a line `mcp: {…}` among its first ten.

use serde_json::{Map, Value};

use crate::ProjectMistake;
use crate::fields::{Fields, json_object};
use crate::tree::{FoundFile, Tree};

/// Ending of the names of metadata files.
pub(crate) const META: &str = ".meta.json";
/// Endings of the names of scripts that suggest values for the file next to them.
pub(crate) const COMPLETIONS: [&str; 2] = [".completion", ".completion.sh"];
/// Lines of a file among which metadata may stand.
const INLINE_LINES: usize = 10;

/// Returns true for a file that is an entry of a list by itself, and not part of the file next to it.
pub(crate) fn is_entry(file: &FoundFile) -> bool {
    let name = file.name();
    !name.ends_with(META) && !COMPLETIONS.iter().any(|ending| name.ends_with(ending))
}

/// Makes an entry from each file and its metadata. A file that cannot be used, or whose metadata cannot, is a mistake
/// and left out.
pub(crate) fn entries<T>(
    tree: &Tree,
    files: &[FoundFile],
    decisive: &[&str],
    mistakes: &mut Vec<ProjectMistake>,
    make: impl Fn(&FoundFile, &mut Fields<'_>) -> Result<T, ProjectMistake>,
) -> Vec<T> {
    let mut made = Vec::new();
    for file in files {
        let entry = of(tree, file, decisive)
            .and_then(|found| make(file, &mut Fields::new(&found.place, found.object, mistakes)));
        match entry {
            Ok(entry) => made.push(entry),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    made
}

/// Metadata of a file, and the place that it is from.
#[derive(Debug, Default)]
struct Metadata {
    place: String,
    object: Map<String, Value>,
}

/// Reads the metadata of a file: `FILE.meta.json`, else `STEM.meta.json`. If that file lacks all of the `decisive`
/// fields, the inline metadata is added for those that are absent.
///
/// # Errors
/// Metadata that cannot be used: guessing at it would show another entry than the author's.
fn of(tree: &Tree, file: &FoundFile, decisive: &[&str]) -> Result<Metadata, ProjectMistake> {
    let mut found = Metadata { place: file.path.clone(), object: Map::new() };
    for path in [format!("{}{META}", file.path), format!("{}{META}", file.stem())] {
        if let Some(object) = json_object(tree, &path)? {
            found = Metadata { place: path, object };
            break;
        }
    }
    let has = |key: &str| found.object.get(key).is_some_and(is_filled);
    if !decisive.iter().any(|key| has(key)) {
        for (key, value) in inline(tree, file)? {
            found.object.entry(key).or_insert(value);
        }
    }
    Ok(found)
}

/// Returns true unless the value is empty in some way.
fn is_filled(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(object) => !object.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

fn inline(tree: &Tree, file: &FoundFile) -> Result<Map<String, Value>, ProjectMistake> {
    let head = tree.head(&file.path)?.unwrap_or_default();
    for (number, line) in (1..).zip(head.lines().take(INLINE_LINES)) {
        let Some((_, json)) = line.split_once("mcp:") else { continue };
        // Prose may have the word too.
        if !json.trim_start().starts_with('{') {
            continue;
        }
        let place = format!("{}:{number}", file.path);
        tree.take_values(&place, json.trim())?;
        return serde_json::from_str(json.trim()).map_err(|error| {
            ProjectMistake::new(&place, format!("`mcp:` is followed by no JSON object: {error}"))
        });
    }
    Ok(Map::new())
}
