//! Directories in which scripts work: the client's roots, else those that the operator names, else those of
//! `config/roots.json`, else the project. Nothing is granted by them: each is in the project, or in what the operator grants.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fields::{Fields, json_object};
use crate::resources::percent_decoded;
use crate::tree::Tree;
use crate::{Project, ProjectMistake, ROOT};

/// Place of the file.
const FILE: &str = "config/roots.json";
/// Longest list.
const MAX_ROOTS: usize = 64;
/// Longest address of a root in bytes, and the longest name in characters.
const URI_BYTES: usize = 4096;
const NAME_CHARACTERS: usize = 128;

/// A directory in which scripts work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptRoot {
    /// Path in a cell.
    path: String,
    name: String,
}

/// A directory of the host that cells have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedDirectory {
    /// Path without links.
    pub host: PathBuf,
    pub cell: PathBuf,
}

impl Project {
    /// Finds the directories that a client calls its roots, by address and name, among what is granted. Others are left
    /// out: a client grants nothing.
    pub fn roots_of_client<'r>(
        &self,
        roots: impl Iterator<Item = (&'r str, Option<&'r str>)>,
    ) -> Vec<ScriptRoot> {
        let mut found: Vec<ScriptRoot> = Vec::new();
        for (uri, name) in roots.take(MAX_ROOTS) {
            let root = path_of(uri).and_then(|host| self.root_at(&host, name));
            found.extend(root.filter(|root| found.iter().all(|one| one.path != root.path)));
        }
        found
    }

    /// Sets the grants in addition to the project, and the directories that the operator names as roots.
    ///
    /// # Errors
    /// A root that is in nothing that is granted.
    pub fn grant(
        &mut self,
        granted: Vec<GrantedDirectory>,
        roots: &[PathBuf],
    ) -> Result<(), PathBuf> {
        self.granted = granted;
        let root = |host: &PathBuf| self.root_at(host, None).ok_or_else(|| host.clone());
        let roots: Vec<ScriptRoot> = roots.iter().map(root).collect::<Result<_, _>>()?;
        if !roots.is_empty() {
            self.roots = roots;
            self.has_named_roots = true;
        }
        Ok(())
    }

    /// Finds a directory of the host in what is granted; the narrowest grant counts.
    fn root_at(&self, host: &Path, name: Option<&str>) -> Option<ScriptRoot> {
        let holds = |one: &&GrantedDirectory| host.starts_with(&one.host);
        let grant =
            self.granted.iter().filter(holds).max_by_key(|one| one.host.components().count())?;
        let below = host.strip_prefix(&grant.host).ok()?;
        let path =
            if below.as_os_str().is_empty() { grant.cell.clone() } else { grant.cell.join(below) };
        let path = path.to_str().filter(|path| !path.contains('\n'))?.to_owned();
        let last = || path.rsplit('/').next().unwrap_or_default().to_owned();
        let name = name.filter(|name| !name.is_empty());
        let name = name.map_or_else(last, |name| name.chars().take(NAME_CHARACTERS).collect());
        Some(ScriptRoot { path, name })
    }
}

/// Reads the path of a `file://` address of this machine.
fn path_of(uri: &str) -> Option<PathBuf> {
    if uri.len() > URI_BYTES {
        return None;
    }
    let (scheme, rest) = uri.split_once("://")?;
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !scheme.eq_ignore_ascii_case("file") || !path.starts_with('/') {
        return None;
    }
    let path = PathBuf::from(percent_decoded(path)?);
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    path.components().all(is_plain).then_some(path)
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
    for (number, entry) in entries.iter().enumerate().take(MAX_ROOTS) {
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

/// Returns the variables that list the roots for scripts: as JSON, one on each line, and their number.
pub(crate) fn variables(roots: &[ScriptRoot], project: &str) -> [(String, String); 3] {
    let whole = [ScriptRoot { path: ROOT.to_owned(), name: project.to_owned() }];
    let roots = if roots.is_empty() { &whole } else { roots };
    let entry = |root: &ScriptRoot| {
        let path = root.path.as_str();
        json!({ "uri": format!("file://{path}"), "name": root.name.replace('\0', ""), "path": path })
    };
    let list = Value::Array(roots.iter().map(entry).collect());
    let paths: Vec<&str> = roots.iter().map(|root| root.path.as_str()).collect();
    [
        ("MCP_ROOTS_JSON", list.to_string()),
        ("MCP_ROOTS_PATHS", paths.join("\n")),
        ("MCP_ROOTS_COUNT", paths.len().to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_root_is_where_its_directory_is_granted_and_nothing_else_is_one() {
        let held = tempfile::tempdir().expect("a directory");
        let mut project = Project::read(held.path()).expect("a project");
        let granted =
            |host: &str, cell: &str| GrantedDirectory { host: host.into(), cell: cell.into() };
        let all = vec![
            granted("/srv/p", "/workspace"),
            granted("/home/u/data", "/mnt/data"),
            granted("/home/u/data/in", "/mnt/in"),
        ];
        project.grant(all, &[]).expect("no roots");
        let of = |uri: &str| {
            let roots = project.roots_of_client([(uri, None)].into_iter());
            roots.first().map(|root| root.path.clone())
        };
        for (uri, path) in [
            ("file:///srv/p", "/workspace"),
            ("file:///home/u/data/a%20b/", "/mnt/data/a b"),
            ("FILE://localhost/home/u/data/in/x", "/mnt/in/x"),
        ] {
            assert_eq!(of(uri).as_deref(), Some(path), "{uri}");
        }
        for uri in [
            "file:///",
            "file:///etc",
            "file:///home/u",
            "file:///home/u/database",
            "file:///srv/p/../q",
            "file:///srv/p/%2e%2e/q",
            "file://host/srv/p",
            "http:///srv/p",
            "/srv/p",
            "file:///srv/p/a%0ab",
            "file:///srv/p/%00",
            "file:///srv/p/%zz",
            "",
        ] {
            assert_eq!(of(uri), None, "{uri}");
        }
        let twice = [("file:///srv/p", Some("One")), ("file:///srv/p", Some("Two"))];
        let roots = project.roots_of_client(twice.into_iter());
        assert_eq!(roots, [ScriptRoot { path: "/workspace".to_owned(), name: "One".to_owned() }]);
        let refused = project.grant(Vec::new(), &["/etc".into()]);
        assert_eq!(refused, Err("/etc".into()));
    }
}
