//! Name and version of a project's server: `server.d/server.meta.json`.

use serde::{Deserialize, Serialize};

use crate::ProjectMistake;
use crate::fields::{Fields, json_object};
use crate::tree::Tree;

/// Place of the file.
const FILE: &str = "server.d/server.meta.json";

/// Name and version that a server reports to clients.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerIdentity {
    pub name: String,
    pub title: String,
    pub version: String,
    pub description: Option<String>,
    pub website: Option<String>,
}

/// Reads the identity; the default name is that of the directory.
pub(crate) fn identity(tree: &Tree, mistakes: &mut Vec<ProjectMistake>) -> ServerIdentity {
    let file = tree.layout.placed(FILE);
    let object = match json_object(tree, &file) {
        Ok(object) => object.unwrap_or_default(),
        Err(mistake) => {
            mistakes.push(mistake);
            serde_json::Map::new()
        }
    };
    let mut fields = Fields::new(&file, object, mistakes);
    let name = fields.text("name").unwrap_or_else(|| tree.name.clone());
    ServerIdentity {
        title: fields.text("title").unwrap_or_else(|| titled(&name)),
        version: fields.text("version").unwrap_or_else(|| "0.0.0".to_owned()),
        description: fields.text("description"),
        website: fields.text("websiteUrl"),
        name,
    }
}

/// Makes a title of a name: `my-tools` is `My Tools`.
fn titled(name: &str) -> String {
    let words = name.split(['-', '_', ' ']).filter(|word| !word.is_empty());
    let capital = |word: &str| {
        let mut characters = word.chars();
        let first = characters.next().into_iter().flat_map(char::to_uppercase);
        first.chain(characters).collect::<String>()
    };
    words.map(capital).collect::<Vec<_>>().join(" ")
}
