//! Advice about a valid project, and the repair of modes of files.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::commands::error::CliError;
use model::outcome::in_words;
use projects::{Project, ProjectLayout};

/// Mode bits with which group and others may write.
const OTHERS_WRITE: u32 = 0o022;
/// Mode bits with which every user may run a file.
const ALL_EXECUTE: u32 = 0o111;
/// Maximum levels of folders.
const MAX_DEPTH: usize = 16;

/// Returns advice that a strict check counts as mistakes.
pub(super) fn advice(project: &Project) -> Vec<String> {
    let ProjectLayout { tools, resources, prompts, .. } = &project.layout;
    let mut advice = Vec::new();
    for tool in &project.tools {
        let file = format!("{tools}/{}", tool.path);
        if tool.description.is_empty() {
            advice.push(format!("{file}: tool `{}` has no description", tool.name));
        }
        if tool.name.contains('.') {
            advice.push(format!("{file}: some clients refuse the `.` in `{}`", tool.name));
        }
        if tool.is_extended && tool.max_timeout.is_none() {
            advice.push(format!("{file}: `progressExtendsTimeout` without `maxTimeoutSecs`"));
        }
    }
    let bare = project.prompts.iter().filter(|prompt| prompt.description.is_empty());
    advice.extend(bare.map(|prompt| format!("{prompts}/{}: no description", prompt.path)));
    let bare = project.resources.iter().filter(|resource| resource.description.is_empty());
    advice.extend(bare.map(|resource| format!("{resources}/{}: no description", resource.path)));
    advice
}

/// Removes the right of others to write, and makes scripts executable. Returns a line for each change.
///
/// # Errors
/// A file whose mode cannot be changed.
pub(super) fn fix_modes(directory: &Path, layout: &ProjectLayout) -> Result<Vec<String>, CliError> {
    let mut changed = Vec::new();
    for folder in layout.defining().into_iter().chain([layout.resources.as_str()]) {
        walk(layout, directory, Path::new(folder), 0, &mut changed)?;
    }
    Ok(changed)
}

fn walk(
    layout: &ProjectLayout,
    root: &Path,
    below: &Path,
    depth: usize,
    changed: &mut Vec<String>,
) -> Result<(), CliError> {
    let path = root.join(below);
    let failed = |error: &std::io::Error| {
        CliError::new(format!("project: {}: {}", below.display(), in_words(error)))
    };
    // Links are ignored: their targets may be outside of the project.
    let Ok(metadata) = fs::symlink_metadata(&path) else { return Ok(()) };
    let mode = metadata.permissions().mode();
    let mut wanted = mode & !OTHERS_WRITE;
    if metadata.is_file()
        && is_program(layout, below)
        && fs::read(&path).is_ok_and(|text| text.starts_with(b"#!"))
    {
        wanted |= ALL_EXECUTE;
    }
    if (metadata.is_file() || metadata.is_dir()) && wanted != mode {
        fs::set_permissions(&path, Permissions::from_mode(wanted))
            .map_err(|error| failed(&error))?;
        changed.push(format!("{}: mode {:o}", below.display(), wanted & 0o7777));
    }
    if metadata.is_dir() && depth < MAX_DEPTH {
        for entry in fs::read_dir(&path).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            walk(layout, root, &below.join(entry.file_name()), depth + 1, changed)?;
        }
    }
    Ok(())
}

/// Returns true for scripts that are run by themselves.
fn is_program(layout: &ProjectLayout, below: &Path) -> bool {
    let is_script = below.extension().is_some_and(|kind| kind == "sh" || kind == "bash");
    is_script && !below.starts_with("lib") && !below.starts_with(&layout.server)
}
