//! Advice about a project that works, and the mending of what can be mended without a question: modes of files.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::commands::error::CliError;
use model::outcome::in_words;
use project::Project;

/// Folders whose files a project uses.
const FOLDERS: [&str; 8] =
    ["tools", "resources", "prompts", "completions", "providers", "server.d", "lib", "ui"];
/// Bits of a mode by which others than the owner may write.
const WRITABLE: u32 = 0o022;
/// Bits by which everybody may run a file.
const RUNS: u32 = 0o111;
/// Folders below each other.
const DEPTH: usize = 16;

/// Returns what a strict reader asks for beyond a project that works.
pub(super) fn advice(project: &Project) -> Vec<String> {
    let mut advice = Vec::new();
    for tool in &project.tools {
        let place = format!("tools/{}", tool.path);
        if tool.description.is_empty() {
            advice.push(format!("{place}: tool `{}` has no description", tool.name));
        }
        if tool.name.contains('.') {
            advice.push(format!("{place}: some clients refuse the `.` in `{}`", tool.name));
        }
        if tool.is_extended && tool.max_timeout.is_none() {
            advice.push(format!("{place}: `progressExtendsTimeout` without `maxTimeoutSecs`"));
        }
    }
    let prompts = project.prompts.iter().filter(|prompt| prompt.description.is_empty());
    advice.extend(prompts.map(|one| format!("prompts/{}: no description", one.path)));
    let resources = project.resources.iter().filter(|one| one.description.is_empty());
    advice.extend(resources.map(|one| format!("resources/{}: no description", one.path)));
    advice
}

/// Takes the right to write from others, and makes scripts of tools programs. Returns what was changed.
///
/// # Errors
/// A file whose mode cannot be changed.
pub(super) fn mend(directory: &Path) -> Result<Vec<String>, CliError> {
    let mut changed = Vec::new();
    for folder in FOLDERS {
        walk(directory, Path::new(folder), 0, &mut changed)?;
    }
    Ok(changed)
}

fn walk(
    root: &Path,
    below: &Path,
    depth: usize,
    changed: &mut Vec<String>,
) -> Result<(), CliError> {
    let place = root.join(below);
    let failed = |error: &std::io::Error| {
        CliError::new(format!("project: {}: {}", below.display(), in_words(error)))
    };
    // Links are left alone: what they lead to is not the project's.
    let Ok(metadata) = fs::symlink_metadata(&place) else { return Ok(()) };
    let mode = metadata.permissions().mode();
    let mut wanted = mode & !WRITABLE;
    if metadata.is_file()
        && is_program(below)
        && fs::read(&place).is_ok_and(|it| it.starts_with(b"#!"))
    {
        wanted |= RUNS;
    }
    if (metadata.is_file() || metadata.is_dir()) && wanted != mode {
        fs::set_permissions(&place, Permissions::from_mode(wanted))
            .map_err(|error| failed(&error))?;
        changed.push(format!("{}: mode {:o}", below.display(), wanted & 0o7777));
    }
    if metadata.is_dir() && depth < DEPTH {
        for entry in fs::read_dir(&place).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            walk(root, &below.join(entry.file_name()), depth + 1, changed)?;
        }
    }
    Ok(())
}

/// Returns true for scripts that are run by themselves.
fn is_program(below: &Path) -> bool {
    let is_script = below.extension().is_some_and(|it| it == "sh" || it == "bash");
    is_script && !below.starts_with("lib") && !below.starts_with("server.d")
}
