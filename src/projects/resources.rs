//! The resources of a project and their templates: files below `resources/`, or entries of `register.json`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ProjectMistake;
use crate::fields::{Fields, json_object};
use crate::metadata::{self, META, is_entry};
use crate::register::Entry;
use crate::tree::{FoundFile, Tree};

/// A resource of a project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScriptResource {
    pub name: String,
    /// Path below the folder of the resources.
    pub path: String,
    pub description: String,
    pub uri: String,
    pub mime_type: String,
    /// Name of the program that reads it.
    pub provider: String,
    pub icons: Option<Vec<Value>>,
    pub annotations: Option<Map<String, Value>>,
    pub meta: Option<Map<String, Value>>,
    /// Source of its HTML, if it is a page.
    pub(crate) page: Option<PageSource>,
}

/// Source of a page's HTML.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PageSource {
    /// File in the project, read at each request.
    File(String),
    /// HTML made of a template.
    Made(String),
}

impl PageSource {
    pub(crate) fn file(&self) -> Option<&str> {
        if let Self::File(file) = self { Some(file) } else { None }
    }

    pub(crate) fn html(&self) -> Option<&str> {
        if let Self::Made(html) = self { Some(html) } else { None }
    }
}

/// A template of resources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScriptTemplate {
    pub name: String,
    pub title: Option<String>,
    pub uri_template: String,
    pub description: Option<String>,
    pub mime_type: Option<String>,
    pub annotations: Option<Map<String, Value>>,
}

/// Finds the resources below `resources/`.
///
/// # Errors
/// Two resources of one name, or a folder that cannot be listed as a whole.
pub(crate) fn discovered(
    tree: &Tree,
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<ScriptResource>, ProjectMistake> {
    let folder = &tree.layout.resources;
    let mut files = tree.files(folder, mistakes)?;
    files.retain(is_entry);
    let make = |file: &FoundFile, fields: &mut Fields<'_>| Ok(resource(folder, file, fields));
    unique(folder, metadata::entries(tree, &files, &["uri"], mistakes, make))
}

/// Takes the resources that `register.json` lists.
///
/// # Errors
/// Two resources of one name, or one whose file cannot be used.
pub(crate) fn registered(
    tree: &Tree,
    entries: &[Entry],
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<ScriptResource>, ProjectMistake> {
    let folder = &tree.layout.resources;
    let mut resources = Vec::new();
    for entry in entries {
        let Some(file) = entry.present(tree, folder, mistakes)? else { continue };
        resources.push(resource(folder, &file, &mut entry.fields(mistakes)));
    }
    unique(folder, resources)
}

fn resource(folder: &str, file: &FoundFile, fields: &mut Fields<'_>) -> ScriptResource {
    let uri = fields.text("uri").unwrap_or_else(|| format!("file://./{}", file.path));
    ScriptResource {
        name: fields.text("name").unwrap_or_else(|| file.title().to_owned()),
        path: file.below(folder).to_owned(),
        description: fields.text("description").unwrap_or_default(),
        mime_type: fields.text("mimeType").unwrap_or_else(|| "text/plain".to_owned()),
        provider: fields.text("provider").unwrap_or_else(|| provider(&uri)),
        icons: fields.list("icons"),
        annotations: fields.object("annotations"),
        meta: None,
        page: None,
        uri,
    }
}

/// Returns the default provider of a URI: its scheme, and git for `git+https`.
pub(crate) fn provider(uri: &str) -> String {
    let scheme = uri.split_once("://").map_or("file", |(scheme, _)| scheme);
    if scheme == "git+https" { "git".to_owned() } else { scheme.to_owned() }
}

/// Decodes `%XX` in the path of a URI; `None` for a path that no file can have.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(match byte {
            b'%' => u8::try_from(digit()? * 16 + digit()?).ok()?,
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok().filter(|path| !path.contains('\0'))
}

fn unique(
    folder: &str,
    mut resources: Vec<ScriptResource>,
) -> Result<Vec<ScriptResource>, ProjectMistake> {
    resources.sort_by(|one, other| one.name.cmp(&other.name));
    let mut names = BTreeSet::new();
    for resource in &resources {
        if !names.insert(&resource.name) {
            let place = format!("{folder}/{}", resource.path);
            let why = format!("another resource is named `{}`", resource.name);
            return Err(ProjectMistake::new(&place, why));
        }
    }
    Ok(resources)
}

/// Collects the templates: metadata below `resources/` with a `uriTemplate`, and those of `register.json`, which win.
///
/// # Errors
/// A template in `register.json` that has no variable, or a folder that cannot be listed as a whole.
pub(crate) fn templates(
    tree: &Tree,
    entries: Option<&[Entry]>,
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<ScriptTemplate>, ProjectMistake> {
    let mut found = BTreeMap::new();
    // The listing of resources has reported the mistakes.
    let files = tree.files(&tree.layout.resources, &mut Vec::new())?;
    // An empty list switches the kind off.
    let is_off = entries.is_some_and(<[Entry]>::is_empty);
    for file in files.iter().filter(|file| !is_off && file.name().ends_with(META)) {
        let Ok(Some(object)) = json_object(tree, &file.path) else { continue };
        if object.contains_key("uri") || !object.contains_key("uriTemplate") {
            continue;
        }
        let stem = file.name().strip_suffix(META).unwrap_or_default();
        match template(&mut Fields::new(&file.path, object, mistakes), stem) {
            Some(template) => found.insert(template.name.clone(), template),
            None => {
                let why = "`uriTemplate` has no {variable}";
                mistakes.push(ProjectMistake::new(&file.path, why));
                None
            }
        };
    }
    for entry in entries.unwrap_or_default() {
        let mut fields = entry.fields(mistakes);
        let bad = || ProjectMistake::new(&entry.place, "`uriTemplate` has no {variable}");
        let template = template(&mut fields, "").ok_or_else(bad)?;
        found.insert(template.name.clone(), template);
    }
    Ok(found.into_values().collect())
}

fn template(fields: &mut Fields<'_>, stem: &str) -> Option<ScriptTemplate> {
    let uri_template = fields.text("uriTemplate")?;
    let (_, behind) = uri_template.split_once('{')?;
    behind.split_once('}').filter(|(variable, _)| !variable.is_empty())?;
    Some(ScriptTemplate {
        name: fields.text("name").unwrap_or_else(|| stem.to_owned()),
        description: fields.text("description"),
        mime_type: fields.text("mimeType"),
        title: fields.text("title"),
        annotations: fields.object("annotations"),
        uri_template,
    })
}
