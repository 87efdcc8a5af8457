//! The project of `serve --project`: its settings, its grants, and how it is watched.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::commands;
use crate::commands::error::CliError;
use crate::commands::format::plain;
use crate::commands::grants::request::{MountRequest, WORKSPACE};
use crate::commands::project::ServedProject;
use crate::commands::settings::{self, Settings};
use config::policy::tools::FETCH;
use mcp::projects::CurrentProject;
use model::job::{Access, ProfileName};
use model::outcome::in_words;
use projects::watcher::WatcherSpec;
use projects::{ProjectDirectory, ProjectSettings};

/// Reads the project that is to be served, and says on standard error what of it is not.
///
/// # Errors
/// A project that cannot be used.
pub(super) fn read(
    asked: &str,
    project_hooks: bool,
    config: Option<&Path>,
    settings: &Settings,
) -> Result<ServedProject, CliError> {
    let (directory, access) = granted_as(asked);
    let keys = &settings.loaded.config.project;
    let served = commands::project::with_hooks(directory, access, project_hooks, config, keys)?;
    for change in &served.project.settings.changes {
        tracing::warn!(what = plain(change), "config.clamped");
    }
    for mistake in &served.project.mistakes {
        tracing::warn!("project: {}", plain(&mistake.to_string()));
    }
    Ok(served)
}

/// Applies the operator's settings of the project that is served. Its downloads have a profile only if a host is
/// granted.
///
/// # Errors
/// A malformed host.
pub(super) fn apply(settings: &mut Settings, project: &ProjectSettings) -> Result<(), CliError> {
    settings.workers = project.workers;
    let rule = |host: &String| {
        config::profile::egress::host(host).map_err(|error| {
            CliError::new(format!("hosts of projects: {error}"))
                .with_hint("[project] hosts, MCPBASH_HTTPS_ALLOW_HOSTS, MCPBASH_GIT_ALLOW_HOSTS")
        })
    };
    let rules = project.hosts.iter().map(rule).collect::<Result<Vec<_>, CliError>>()?;
    let Some(name) = ProfileName::new(FETCH) else { return Ok(()) };
    if !rules.is_empty() {
        settings.loaded.profiles.add_egress(&name, &rules);
    }
    let reaches = |name: &ProfileName| {
        settings.loaded.profiles.get(name).is_some_and(|profile| !profile.egress.rules.is_empty())
    };
    let names: Vec<ProfileName> = settings::used(&settings.loaded, |tool| tool == FETCH)
        .filter(|name| reaches(name))
        .cloned()
        .collect();
    settings.add_profiles(&names);
    Ok(())
}

/// Returns the directory of a project, and what scripts may do with it.
fn granted_as(asked: &str) -> (&str, Access) {
    match asked.strip_suffix(":rw") {
        Some(directory) => (directory, Access::ReadWrite),
        None => (asked, Access::ReadOnly),
    }
}

/// Returns the project to offer, and how it is watched; a project learns where its cells have what is granted.
///
/// # Errors
/// A root that is not granted, or a directory that cannot be opened any more.
pub(super) fn offered(
    asked: &str,
    served: ServedProject,
    settings: &Settings,
) -> Result<(Arc<CurrentProject>, WatcherSpec), CliError> {
    let ServedProject { mut project, lists } = served;
    let roots: Vec<PathBuf> =
        roots().iter().filter_map(|root| Path::new(root).canonicalize().ok()).collect();
    project.grant(settings.granted_directories(), &roots).map_err(|root| {
        CliError::new(format!("{ROOTS}: `{}` is granted to no cell", root.display()))
    })?;
    let (directory, access) = granted_as(asked);
    let opened = ProjectDirectory::open(Path::new(directory))
        .map_err(|error| CliError::new(format!("project {directory}: {error}")))?;
    let opened = opened.laid_out(project.layout.clone());
    let directory = match access {
        Access::ReadOnly => opened,
        Access::ReadWrite
        | Access::Unguarded
        | Access::Repository
        | Access::Cache
        | Access::Layer => opened.written_by_scripts(),
    };
    let watcher = WatcherSpec { directory, lists, known: project.clone() };
    Ok((Arc::new(CurrentProject::new(project)), watcher))
}

/// Variable with a project's directory, where neither `--project` nor `--workspace` is given.
pub(super) const ROOT: &str = "MCPBASH_PROJECT_ROOT";
/// Variable with the directories in which scripts of a project work, separated by colons.
const ROOTS: &str = "MCPBASH_ROOTS";

/// Reads the directories of [`ROOTS`].
fn roots() -> Vec<OsString> {
    let roots = std::env::var_os(ROOTS).unwrap_or_default().into_vec();
    let roots = roots.split(|byte| *byte == b':').filter(|root| !root.is_empty());
    roots.map(|root| OsString::from_vec(root.to_owned())).collect()
}

/// Returns the directories of [`ROOTS`] that are granted for reading: those outside of the project's directory.
pub(super) fn granted_roots(project: &str) -> Vec<OsString> {
    let project = project.strip_suffix(":rw").unwrap_or(project);
    let directory = Path::new(project).canonicalize();
    let is_inside = |root: &OsString| {
        let root = Path::new(root).canonicalize();
        matches!((&root, &directory), (Ok(root), Ok(project)) if root.starts_with(project))
    };
    roots().into_iter().filter(|root| !is_inside(root)).collect()
}

/// Returns the argument of `--workspace` for a project: read-only, unless it ends with `:rw`.
pub(super) fn as_workspace(asked: &str) -> String {
    match asked.strip_suffix(":rw") {
        Some(directory) => directory.to_owned(),
        None => format!("{asked}:ro"),
    }
}

/// Makes a folder that scripts cannot change. It belongs to the project's owner.
fn make_kept(directory: &Path, name: &str) -> std::io::Result<()> {
    let owner = std::fs::metadata(directory)?;
    let path = directory.join(name);
    std::fs::DirBuilder::new().mode(0o755).create(&path)?;
    std::os::unix::fs::lchown(&path, Some(owner.uid()), Some(owner.gid()))
}

/// Returns read-only grants of the folders with scripts, metadata and hooks, for a project that is granted for writing: a
/// script that could change another tool would have the grants of that tool.
///
/// # Errors
/// An absent folder that cannot be made here: a script could make it. A link or a file of its name: a script could replace
/// it.
pub(in crate::commands) fn kept(asked: &str) -> Result<Vec<MountRequest>, CliError> {
    let Some(directory) = asked.strip_suffix(":rw") else { return Ok(Vec::new()) };
    let directory = std::path::absolute(directory)
        .map_err(|error| CliError::new(format!("--project: {}", in_words(&error))))?;
    // A named path may be a link, but nothing below it.
    let is_folder = |path: &Path| path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    let layout = commands::project::layout(&directory)?;
    let kept = layout.kept();
    for name in kept.iter().filter(|name| !is_folder(&directory.join(name))) {
        make_kept(&directory, name).map_err(|error| {
            let why = format!("--project: {name} cannot be made: {}", in_words(&error));
            CliError::new(why).with_hint(format!(
                "where scripts may write to the project it is a folder that is kept as it is: mkdir {name}"
            ))
        })?;
    }
    let request = |name: &&str| MountRequest {
        host: directory.join(name),
        cell: Path::new(WORKSPACE).join(name),
        access: Access::ReadOnly,
    };
    Ok(kept.iter().map(request).collect())
}
