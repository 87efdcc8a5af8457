//! Script projects: a folder of scripts, read into a list of tools, resources and prompts.
//!
//! The layout is that of mcp-bash-framework 1.3.0. Files are read beneath a held directory and no link is followed.
//! Nothing here runs a script: the words and variables of a call are made here, and its result from what it printed.
//! [`watcher`] is the process that reads a served project again when it changes.

#![deny(unreachable_pub)]

mod completions;
mod directory;
mod embedded;
mod fetch;
mod fields;
pub mod hooks;
mod icons;
mod json;
mod launch;
mod layout;
mod metadata;
mod output;
mod prompts;
mod reading;
mod register;
mod resources;
mod result;
mod roots;
mod server;
mod settings;
mod stream;
mod token;
mod tools;
mod tree;
mod ui;
pub mod watcher;

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use tree::Tree;

pub use completions::{
    AskedCompletion, CompletionOf, CompletionRequest, SUGGESTIONS, ScriptCompletion, Suggestions,
};
pub use directory::ProjectDirectory;
pub use fetch::{FetchError, FetchFault, FetchRequest};
pub use launch::{SDK, ScriptLaunch, Unlaunched};
pub use layout::ProjectLayout;
pub use output::{ScriptEnd, ScriptError, ScriptMessage, ScriptOutput};
pub use prompts::{PromptRole, ScriptPrompt};
pub use reading::{AskedResource, ResourceContent, WatchableResource};
pub use resources::{ScriptResource, ScriptTemplate};
pub use roots::{GrantedDirectory, ScriptRoot};
pub use server::ServerIdentity;
pub use settings::{FetchBounds, ProjectSettings, ToolFilter};
pub use stream::{ScriptEvent, ScriptStream, StreamLimits};
pub use token::RemoteToken;
pub use tools::ScriptTool;
pub use ui::PAGE_TYPE;
pub use watcher::reports::{
    FRAME_BYTES, ListedChanges, PATH_BYTES, WATCHED_FILES, WatchOrder, WatchReport, framed,
};

/// Directory of the project in a cell.
pub(crate) const ROOT: &str = "/workspace";
/// Files of a project that are programs, and that are run only if the operator says so.
const HOOKS: [&str; 4] = [hooks::REGISTER, hooks::POLICY, hooks::ENV, hooks::HEALTH];

/// A project as it was read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Project {
    pub server: ServerIdentity,
    pub layout: ProjectLayout,
    /// Sorted by name, each name once.
    pub tools: Vec<ScriptTool>,
    pub resources: Vec<ScriptResource>,
    pub templates: Vec<ScriptTemplate>,
    pub prompts: Vec<ScriptPrompt>,
    pub completions: Vec<ScriptCompletion>,
    /// Names of the project's providers.
    providers: Vec<String>,
    /// Words of the operator.
    #[serde(skip)]
    pub settings: ProjectSettings,
    /// Hooks that the project has, by their paths.
    #[serde(deserialize_with = "known_hooks")]
    pub hooks: Vec<&'static str>,
    /// Directories in which its scripts work.
    roots: Vec<ScriptRoot>,
    /// True if the operator named them.
    #[serde(skip)]
    has_named_roots: bool,
    /// True if its scripts may write to it.
    #[serde(skip)]
    is_written: bool,
    /// Directories of the host that its cells have.
    #[serde(skip)]
    granted: Vec<GrantedDirectory>,
    /// Changes with the lists.
    pub hash: String,
    /// Mistakes that cost an entry or a field.
    pub mistakes: Vec<ProjectMistake>,
}

/// A mistake in a file of a project.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{file}: {message}")]
pub struct ProjectMistake {
    /// Path in the project, with line and column where they are known.
    pub file: String,
    pub message: String,
}

impl ProjectMistake {
    fn new(file: &str, message: impl Into<String>) -> Self {
        Self { file: file.escape_default().to_string(), message: message.into() }
    }

    fn of_json(file: &str, error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let message = text.split(" at line ").next().unwrap_or_default();
        let place = format!("{file}:{}:{}", error.line(), error.column());
        Self::new(&place, format!("not valid JSON: {message}"))
    }
}

/// Reasons why a project is not read at all.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    #[error("the directory cannot be opened: {0}")]
    Open(#[source] std::io::Error),
    #[error("others than its owner may write to the directory")]
    WritableByOthers,
    #[error("the directory belongs to another user")]
    ForeignOwner,
    /// A mistake after which no list can be trusted.
    #[error(transparent)]
    Mistake(#[from] ProjectMistake),
}

/// A variable whose value is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {message}")]
pub struct SettingError {
    pub name: &'static str,
    pub message: String,
}

impl Project {
    /// Reads a project.
    ///
    /// # Errors
    /// A directory that cannot be used, or a mistake after which a list would be another than the author's.
    pub fn read(directory: &Path) -> Result<Self, ProjectError> {
        ProjectDirectory::open(directory)?.read(None)
    }

    /// Reads the project of a directory that is held.
    fn in_tree(tree: &Tree, lists: Option<Map<String, Value>>) -> Result<Self, ProjectError> {
        let mut mistakes = Vec::new();
        if tree.is_removed {
            let why =
                "the directory was removed; what is at its place is served after another start";
            mistakes.push(ProjectMistake::new(".", why));
        }
        let server = server::identity(tree, &mut mistakes);
        let register = register::read(tree, lists)?;
        let pages = ui::pages(tree, &server.name, &mut mistakes)?;
        let roots = roots::read(tree, &mut mistakes);
        let mut project = Self {
            server,
            layout: tree.layout.clone(),
            tools: match &register.tools {
                Some(entries) => tools::registered(tree, entries, &mut mistakes)?,
                None => tools::discovered(tree, &mut mistakes)?,
            },
            prompts: match &register.prompts {
                Some(entries) => prompts::registered(tree, entries, &mut mistakes)?,
                None => prompts::discovered(tree, &mut mistakes)?,
            },
            // Behind all others, which they leave no room of the project's bounds where scripts write them.
            resources: match &register.resources {
                Some(entries) => resources::registered(tree, entries, &mut mistakes)?,
                None => {
                    let found = resources::discovered(tree, &mut mistakes);
                    costing_itself(tree, found, &mut mistakes)?
                }
            },
            templates: {
                let entries = register.templates.as_deref();
                let found = resources::templates(tree, entries, &mut mistakes);
                costing_itself(tree, found, &mut mistakes)?
            },
            completions: Vec::new(),
            providers: providers(tree),
            settings: ProjectSettings::default(),
            hooks: hooks(tree)?,
            roots,
            has_named_roots: false,
            is_written: false,
            granted: Vec::new(),
            hash: String::new(),
            mistakes: Vec::new(),
        };
        project.embed_icons(tree, &mut mistakes);
        ui::link(tree, &mut project.tools, &pages);
        project.add_pages(pages, register.resources.is_some(), &mut mistakes);
        project.completions = completions::read(
            tree,
            register.completions.as_deref(),
            &project.prompts,
            &project.resources,
            &mut mistakes,
        )?;
        // A register.json takes the place of register.sh.
        project.hooks.retain(|hook| !(register.exists && *hook == hooks::REGISTER));
        project.mistakes = mistakes;
        project.hash = project.hashed();
        Ok(project)
    }

    /// Adds the pages of tools. A file of `resources` takes no page's address: that folder is not kept from scripts
    /// ([`ProjectLayout::kept`]), and a page is the user's view of its tool. An entry of `register.json` does, as its author means it.
    fn add_pages(
        &mut self,
        pages: Vec<ScriptResource>,
        is_registered: bool,
        mistakes: &mut Vec<ProjectMistake>,
    ) {
        let addresses: BTreeSet<&String> = pages.iter().map(|page| &page.uri).collect();
        let is_page = |one: &ScriptResource| addresses.contains(&one.uri);
        if !is_registered {
            for one in self.resources.extract_if(.., |one| is_page(one)) {
                let why = format!("is left out: `{}` is a page", one.uri);
                let place = format!("{}/{}", self.layout.resources, one.path);
                mistakes.push(ProjectMistake::new(&place, why));
            }
        }
        let taken: BTreeSet<String> = self.resources.iter().map(|one| one.uri.clone()).collect();
        self.resources.extend(pages.into_iter().filter(|page| !taken.contains(&page.uri)));
    }

    /// Takes out what scripts could change where they may write to the project: a script runs from folders alone that are
    /// kept as they are ([`ProjectLayout::kept`]).
    #[must_use]
    pub fn written_by_scripts(mut self) -> Self {
        self.is_written = true;
        let kept = self.layout.kept();
        let is_kept = |completion: &ScriptCompletion| {
            let folder = completion.path.split('/').next().unwrap_or_default();
            kept.contains(&folder) && !completion.path.split('/').any(|name| name == "..")
        };
        let all = std::mem::take(&mut self.completions);
        let (kept_as_they_are, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_kept);
        self.completions = kept_as_they_are;
        let why = "is not run: scripts may write to its folder (--project DIR:rw)";
        let skipped = others.iter().map(|one| ProjectMistake::new(&one.path, why));
        self.mistakes.extend(skipped);
        self
    }

    /// Takes over the operator's settings and grants from the reading before.
    #[must_use]
    pub fn following(mut self, before: &Self) -> Self {
        self.settings = before.settings.clone();
        // The operator names the folders: a report cannot move those that scripts may not write to.
        self.layout = before.layout.clone();
        self.granted = before.granted.clone();
        if before.has_named_roots {
            self.roots = before.roots.clone();
            self.has_named_roots = true;
        }
        // While an editor replaces the file, calls are decided by the last version, or refused.
        if before.hooks.contains(&hooks::POLICY) && !self.hooks.contains(&hooks::POLICY) {
            let is_kept = |hook: &&str| *hook == hooks::POLICY || self.hooks.contains(hook);
            self.hooks = HOOKS.into_iter().filter(is_kept).collect();
        }
        if before.is_written { self.written_by_scripts() } else { self }
    }

    /// Finds a tool by its name.
    pub fn tool(&self, name: &str) -> Option<&ScriptTool> {
        // They are sorted.
        let place = self.tools.binary_search_by(|tool| tool.name.as_str().cmp(name));
        self.tools.get(place.ok()?)
    }

    /// Puts icons that are files into the lists.
    fn embed_icons(&mut self, tree: &Tree, mistakes: &mut Vec<ProjectMistake>) {
        let ProjectLayout { tools, prompts, resources, .. } = &self.layout;
        let tools = self.tools.iter_mut().map(|one| (tools, &one.path, &mut one.icons));
        let prompts = self.prompts.iter_mut().map(|one| (prompts, &one.path, &mut one.icons));
        let resources = self.resources.iter_mut().map(|one| (resources, &one.path, &mut one.icons));
        for (folder, path, icons) in tools.chain(prompts).chain(resources) {
            icons::embed(tree, &format!("{folder}/{path}"), icons, mistakes);
        }
    }

    /// Makes a hash of the lists, as far as a client sees their order.
    fn hashed(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |one: &str, other: &str| {
            hash.update(format!("{}:{one}{}:{other}", one.len(), other.len()));
        };
        self.tools.iter().for_each(|one| add(&one.name, &one.path));
        self.resources.iter().for_each(|one| add(&one.name, &one.uri));
        self.templates.iter().for_each(|one| add(&one.name, &one.uri_template));
        self.prompts.iter().for_each(|one| add(&one.name, &one.path));
        hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Reads the hooks that a project has, from the words of the process that watches it.
fn known_hooks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<&'static str>, D::Error> {
    let named = Vec::<String>::deserialize(deserializer)?;
    Ok(HOOKS.into_iter().filter(|hook| named.iter().any(|name| name == hook)).collect())
}

/// Replaces a list of `resources` that cannot be read by an empty one if scripts may write to that folder, and records
/// the mistake: a file that a script leaves there must not break the other lists or a later start.
fn costing_itself<T>(
    tree: &Tree,
    found: Result<Vec<T>, ProjectMistake>,
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<T>, ProjectMistake> {
    match found {
        Err(mistake) if tree.is_written && mistake.file.starts_with(&tree.layout.resources) => {
            mistakes.push(mistake);
            Ok(Vec::new())
        }
        found => found,
    }
}

/// Finds the project's providers. One that cannot be used is reported when a resource asks for it.
fn providers(tree: &Tree) -> Vec<String> {
    let known = ["https", "git"].into_iter();
    let folder = &tree.layout.providers;
    known.filter(|name| tree.has(&format!("{folder}/{name}.sh"))).map(str::to_owned).collect()
}

/// Finds the hooks of a project.
///
/// # Errors
/// One that others may write to: it could not be trusted, and without it the project is another.
fn hooks(tree: &Tree) -> Result<Vec<&'static str>, ProjectMistake> {
    let mut found = Vec::new();
    for hook in HOOKS {
        let path = tree.layout.placed(hook);
        if tree.has(&path) && tree.found(&path)?.is_some() {
            found.push(hook);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
