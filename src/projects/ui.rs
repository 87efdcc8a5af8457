//! Pages for clients that show them: `tools/NAME/ui` and `ui/NAME`, as HTML of the author's or made of a template.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::ProjectMistake;
use crate::fields::{Fields, json_object};
use crate::resources::{PageSource, ScriptResource};
use crate::tools::ScriptTool;
use crate::tree::{Tree, leaves};

/// MIME type of such a page (MCP Apps).
pub const PAGE_TYPE: &str = "text/html;profile=mcp-app";
/// Name of the provider of pages.
pub(crate) const PROVIDER: &str = "ui";
/// File of metadata of a page.
const META: &str = "ui.meta.json";
/// Page that the templates are parts of.
const PAGE: &str = include_str!("ui/page.html");
/// Place of the settings in it.
const SETTINGS: &str = "/*SETTINGS*/null";
/// Templates that the page has.
const TEMPLATES: [&str; 6] =
    ["form", "data-table", "progress", "diff-viewer", "tree-view", "kanban"];

/// Finds the pages of a project.
pub(crate) fn pages(
    tree: &Tree,
    server: &str,
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<ScriptResource>, ProjectMistake> {
    let mut folders = Vec::new();
    // The list of tools reports mistakes in this folder.
    for tool in tree.folders(&tree.layout.tools, &mut Vec::new())? {
        let name = tool.rsplit('/').next().unwrap_or_default().to_owned();
        folders.push((format!("{tool}/ui"), name));
    }
    for folder in tree.folders(&tree.layout.ui, mistakes)? {
        let name = folder.rsplit('/').next().unwrap_or_default().to_owned();
        folders.push((folder, name));
    }
    let mut names = BTreeSet::new();
    let mut pages = Vec::new();
    for (folder, name) in folders {
        // The page of a tool comes first.
        if names.contains(&name) || !is_page(tree, &folder) {
            continue;
        }
        match page(tree, &folder, &name, server, mistakes) {
            Ok(page) => {
                names.insert(name);
                pages.push(page);
            }
            Err(mistake) => mistakes.push(mistake),
        }
    }
    Ok(pages)
}

/// Returns true if a folder has a page or its metadata.
fn is_page(tree: &Tree, folder: &str) -> bool {
    // Most tools have no such folder.
    tree.has(folder)
        && (tree.has(&format!("{folder}/index.html")) || tree.has(&format!("{folder}/{META}")))
}

fn page(
    tree: &Tree,
    folder: &str,
    name: &str,
    server: &str,
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<ScriptResource, ProjectMistake> {
    let place = format!("{folder}/{META}");
    let mut fields = Fields::new(&place, json_object(tree, &place)?.unwrap_or_default(), mistakes);
    let entry = fields.text("entrypoint").unwrap_or_else(|| "index.html".to_owned());
    let html = format!("{folder}/{entry}");
    let description = fields.text("description");
    let template = fields.text("template");
    let config = fields.object("config").unwrap_or_default();
    let meta = fields.object("meta").unwrap_or_default();
    // Keep scripts that may write from changing a page.
    let is_own = !(tree.is_written && leaves(&entry));
    let is_file = is_own && !entry.contains(['\n', '\0']) && tree.found(&html)?.is_some();
    let source = match template {
        _ if is_file => PageSource::File(html),
        Some(template) if TEMPLATES.contains(&template.as_str()) => {
            PageSource::Made(made(&template, &config))
        }
        Some(template) => {
            let why = format!(
                "`template`: `{}` is none of {}",
                template.escape_default(),
                TEMPLATES.join(", ")
            );
            return Err(ProjectMistake::new(&place, why));
        }
        None => {
            return Err(ProjectMistake::new(
                &place,
                format!("there is no {html}, and no `template`"),
            ));
        }
    };
    let or_empty = |key: &str| meta.get(key).cloned().unwrap_or_else(|| json!({}));
    let shown = json!({
        "csp": or_empty("csp"),
        "permissions": or_empty("permissions"),
        "prefersBorder": meta.get("prefersBorder").and_then(Value::as_bool).unwrap_or(true),
    });
    Ok(ScriptResource {
        name: name.to_owned(),
        path: folder.to_owned(),
        description: description.unwrap_or_else(|| format!("UI resource for {name}")),
        uri: uri(server, name),
        mime_type: PAGE_TYPE.to_owned(),
        provider: PROVIDER.to_owned(),
        icons: None,
        annotations: None,
        meta: Some(Map::from_iter([("ui".to_owned(), shown)])),
        page: Some(source),
    })
}

/// Returns the URI of a page.
fn uri(server: &str, name: &str) -> String {
    format!("{PROVIDER}://{server}/{name}")
}

/// Makes the HTML of a template.
fn made(template: &str, config: &Map<String, Value>) -> String {
    let settings = json!({ "template": template, "config": config }).to_string();
    // No text can end the script that it stands in.
    PAGE.replacen(SETTINGS, &settings.replace('<', "\\u003c"), 1)
}

/// Names the page of each tool that has one, unless its metadata names another.
pub(crate) fn link(tree: &Tree, tools: &mut [ScriptTool], pages: &[ScriptResource]) {
    for tool in tools {
        let parent = tool.path.rsplit_once('/').map_or("", |(at, _)| at);
        let folder = format!("{}/{parent}/ui", tree.layout.tools);
        let Some(page) = pages.iter().find(|page| page.path == folder) else { continue };
        let meta = tool.meta.get_or_insert_default();
        meta.entry("ui")
            .or_insert_with(|| json!({ "resourceUri": page.uri, "visibility": ["model", "app"] }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_holds_its_settings_and_no_setting_ends_the_script() {
        let config = json!({"title": "</script><script>alert(1)"});
        let html = made("form", config.as_object().expect("an object"));
        assert!(html.contains(r#""title":"\u003c/script>\u003cscript>alert(1)""#), "{html}");
        assert!(!html.contains(SETTINGS) && PAGE.contains(SETTINGS));
        assert_eq!(html.matches("</script>").count(), 1);
    }
}
