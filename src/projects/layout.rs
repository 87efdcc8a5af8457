//! The folders of a project: their usual names, or those that the operator names in the framework's variables.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::SettingError;

/// Folder of the settings and hooks, as their paths name it ([`crate::hooks`]).
const SERVER: &str = "server.d";
/// Folders that have no variable.
const COMPLETIONS: &str = "completions";
const LIBRARIES: &str = "lib";
const CONFIG: &str = "config";
/// Usual folders with a variable that say what scripts are and what they do.
const USUAL: [&str; 5] = [SERVER, "tools", "prompts", "providers", "ui"];
/// Length of the longest folder name in bytes.
const MAX_BYTES: usize = 255;

/// Folders of a project, as paths from its directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectLayout {
    pub tools: String,
    pub resources: String,
    pub prompts: String,
    pub providers: String,
    pub ui: String,
    /// Folder of settings and hooks.
    pub server: String,
}

impl Default for ProjectLayout {
    fn default() -> Self {
        Self {
            tools: "tools".to_owned(),
            resources: "resources".to_owned(),
            prompts: "prompts".to_owned(),
            providers: "providers".to_owned(),
            ui: "ui".to_owned(),
            server: SERVER.to_owned(),
        }
    }
}

impl ProjectLayout {
    /// Reads the folders of the project in `directory` from variables. A relative value is a path from this directory, or
    /// from the working directory.
    ///
    /// # Errors
    /// A folder that is not in the project: cells have nothing else of the host. The project's directory itself is not one
    /// of its folders.
    pub fn from_variables(
        directory: &Path,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingError> {
        let mut layout = Self::default();
        for (name, folder) in [
            ("MCPBASH_TOOLS_DIR", &mut layout.tools),
            ("MCPBASH_RESOURCES_DIR", &mut layout.resources),
            ("MCPBASH_PROMPTS_DIR", &mut layout.prompts),
            ("MCPBASH_PROVIDERS_DIR", &mut layout.providers),
            ("MCPBASH_UI_DIR", &mut layout.ui),
            ("MCPBASH_SERVER_DIR", &mut layout.server),
        ] {
            let Some(value) = get(name).filter(|value| !value.is_empty()) else { continue };
            let found = folder_in(directory, Path::new(&value));
            *folder = found.ok_or_else(|| SettingError {
                name,
                message: format!(
                    "`{}` is no folder within the project, with a name of letters, digits, `.`, `-` and `_`",
                    value.escape_default()
                ),
            })?;
        }
        Ok(layout)
    }

    /// Returns the path of a file by its path in the usual folders.
    pub fn placed(&self, usual: &str) -> String {
        let (folder, path) = usual.split_once('/').unwrap_or((usual, ""));
        let folder = match folder {
            "tools" => &self.tools,
            "resources" => &self.resources,
            "prompts" => &self.prompts,
            "providers" => &self.providers,
            "ui" => &self.ui,
            SERVER => &self.server,
            other => other,
        };
        format!("{folder}/{path}")
    }

    /// Returns the folders whose files make the lists.
    pub(crate) fn listed(&self) -> [&str; 8] {
        let Self { tools, resources, prompts, providers, ui, server } = self;
        [tools, resources, prompts, COMPLETIONS, providers, server, ui, CONFIG]
    }

    /// Returns the folders that say what a project's scripts are and what they do, without those below another: where
    /// scripts may write to the project, these stay as they are. Of a deeper path it is the first folder, since a script
    /// that may rename that one replaces all in it. The usual folders are among them too: a start without the variables
    /// obeys those. Resources are not, as scripts write files there for clients, unless they are in one of these folders.
    pub fn kept(&self) -> Vec<&str> {
        let mut kept: Vec<&str> = Vec::new();
        for folder in self.defining().into_iter().chain(USUAL) {
            let first = first_of(folder);
            if !kept.contains(&first) {
                kept.push(first);
            }
        }
        kept
    }

    /// Returns the folders that say what a project's scripts are and what they do.
    pub fn defining(&self) -> [&str; 8] {
        let Self { tools, prompts, providers, ui, server, resources: _ } = self;
        [server, tools, prompts, COMPLETIONS, providers, LIBRARIES, ui, CONFIG]
    }

    /// Returns true for an entry of the project's directory in which a list begins.
    pub(crate) fn is_listed(&self, name: &str) -> bool {
        self.listed().iter().any(|folder| first_of(folder) == name)
    }
}

/// Returns the first folder of a path.
fn first_of(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// Finds the path of a folder from the directory of the project; `None` if it is not in there.
fn folder_in(directory: &Path, value: &Path) -> Option<String> {
    let resolved = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    let root = resolved(directory)?;
    // An absolute path replaces the directory that it is joined to.
    let mut places = [directory.join(value), PathBuf::from(value)].into_iter();
    let below = places.find_map(|place| {
        let place = resolved(&place)?;
        Some(place.strip_prefix(&root).ok()?.to_owned())
    })?;
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => name.to_str().filter(|name| is_name(name)).map(str::to_owned),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            None
        }
    };
    let path = below.components().map(name).collect::<Option<Vec<String>>>()?.join("/");
    (!path.is_empty() && path.len() <= MAX_BYTES).then_some(path)
}

/// Returns true for a name that needs no quoting anywhere.
fn is_name(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_names_a_folder_within_the_project_and_no_other() {
        let held = tempfile::tempdir().expect("a directory");
        let directory = held.path().join("p");
        for folder in ["tools", "mcp/tools", "a b"] {
            std::fs::create_dir_all(directory.join(folder)).expect("made");
        }
        let outside = held.path().join("outside");
        std::fs::create_dir(&outside).expect("made");
        std::os::unix::fs::symlink(&outside, directory.join("link")).expect("a link");
        std::os::unix::fs::symlink("tools", directory.join("near")).expect("a link");
        let tools = |value: &str| {
            let get = |name: &str| (name == "MCPBASH_TOOLS_DIR").then(|| value.to_owned());
            let layout = ProjectLayout::from_variables(&directory, get);
            layout.map(|layout| layout.tools).map_err(|error| error.to_string())
        };
        let within = |path: &str| directory.join(path).display().to_string();
        for (value, expected) in [
            ("", "tools"),
            ("tools", "tools"),
            ("./tools/", "tools"),
            ("mcp/tools", "mcp/tools"),
            ("mcp/../mcp/tools", "mcp/tools"),
            ("later", "later"),
            (&within("tools"), "tools"),
            (&within("later/tools"), "later/tools"),
            // The folder that the link leads to counts.
            ("near", "tools"),
        ] {
            assert_eq!(tools(value), Ok(expected.to_owned()), "{value}");
        }
        let out = outside.display().to_string();
        let through = within("../outside");
        for value in [
            ".",
            "/",
            "..",
            "../outside",
            "link",
            "a b",
            "later/..",
            &out,
            &through,
            "$(id)",
            "a\nb",
        ] {
            let message = tools(value).expect_err(value);
            assert!(message.starts_with("MCPBASH_TOOLS_DIR: `"), "{value}: {message}");
            assert!(message.contains("is no folder within the project"), "{value}: {message}");
        }
    }

    #[test]
    fn folders_with_scripts_are_kept_by_the_first_folder_of_their_paths() {
        let usual =
            ["server.d", "tools", "prompts", "completions", "providers", "lib", "ui", "config"];
        assert_eq!(ProjectLayout::default().kept(), usual);
        let layout = ProjectLayout {
            tools: "mcp/tools".to_owned(),
            prompts: "mcp/prompts".to_owned(),
            resources: "mcp/resources".to_owned(),
            server: "settings".to_owned(),
            ..ProjectLayout::default()
        };
        assert_eq!(
            layout.kept(),
            [
                "settings",
                "mcp",
                "completions",
                "providers",
                "lib",
                "ui",
                "config",
                "server.d",
                "tools",
                "prompts"
            ]
        );
        assert!(layout.is_listed("mcp") && !layout.is_listed("tools"));
        assert_eq!(layout.placed("server.d/policy.sh"), "settings/policy.sh");
    }
}
