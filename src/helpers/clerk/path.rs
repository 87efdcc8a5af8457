//! Resolves a path to an open directory and a name in it, without leaving the workspace.
//!
//! The path is walked name by name, each opened from the directory before, and the kernel follows
//! no links. A symbolic link is read and its text walked instead, starting within the workspace: a
//! link that leads outside is refused. Replacing a directory by a link meanwhile has no effect, as
//! open directories are not looked up again.

use alloc::vec::Vec;

use crate::errno::Errno;
use crate::file::{self, O_DIRECTORY, O_PATH, OpenFile, Stat};
use crate::reply::Refused;

const ROOT: &[u8] = b"/workspace";
/// Maximum number of symbolic links, as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// A path in the workspace, resolved up to its last name.
#[derive(Debug)]
pub struct WorkspacePath {
    /// The directory that contains the name.
    pub directory: OpenFile,
    /// Empty for the workspace itself.
    pub name: Vec<u8>,
    /// The file with this name, if there is one.
    pub existing: Option<(OpenFile, Stat)>,
}

/// Treatment of missing directories on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    Refused,
    Created,
}

/// Result of walking a path once.
enum Step {
    Found(WorkspacePath),
    /// A symbolic link: continue with this path.
    Link(Vec<Vec<u8>>),
}

/// Resolves an absolute path in the workspace.
pub fn find(path: &[u8], missing: Missing) -> Result<WorkspacePath, Refused> {
    let mut names = below(path)?;
    for _ in 0..MAX_LINKS {
        match walk(&names, missing)? {
            Step::Found(path) => return Ok(path),
            Step::Link(instead) => names = instead,
        }
    }
    Err(Refused::Errno("following symbolic links", Errno(40)))
}

/// Returns the names of an absolute path below the workspace, with `.` and `..` resolved.
fn below(path: &[u8]) -> Result<Vec<Vec<u8>>, Refused> {
    let rest = path.strip_prefix(ROOT).ok_or(Refused::Outside)?;
    if !rest.is_empty() && !rest.starts_with(b"/") {
        return Err(Refused::Outside);
    }
    joined(Vec::new(), rest)
}

/// Appends the names of `path` to `start`. A `..` beyond the start is refused as outside.
fn joined(start: Vec<Vec<u8>>, path: &[u8]) -> Result<Vec<Vec<u8>>, Refused> {
    let mut names = start;
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop().ok_or(Refused::Outside)?;
            }
            name => names.push(name.to_vec()),
        }
    }
    Ok(names)
}

/// Returns the path that a link leads to, given the names before it, its text and the names after
/// it.
fn follow(before: &[Vec<u8>], text: &[u8], after: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, Refused> {
    let mut names = match text.starts_with(b"/") {
        true => below(&normalized(text))?,
        false => joined(before.to_vec(), text)?,
    };
    names.extend_from_slice(after);
    Ok(names)
}

/// Returns an absolute path with `.` and `..` resolved, so that `/workspace/../etc` is seen as
/// `/etc`.
fn normalized(text: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in text.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    let mut whole = Vec::new();
    for name in names {
        whole.push(b'/');
        whole.extend_from_slice(name);
    }
    whole
}

fn walk(names: &[Vec<u8>], missing: Missing) -> Result<Step, Refused> {
    let opening = |errno| Refused::Errno("opening", errno);
    let mut directory = file::workspace().map_err(opening)?;
    let Some((last, parents)) = names.split_last() else {
        let stat = file::stat(&directory).map_err(opening)?;
        let again = file::open(&directory, b".", O_PATH | O_DIRECTORY).map_err(opening)?;
        return Ok(Step::Found(WorkspacePath {
            directory,
            name: Vec::new(),
            existing: Some((again, stat)),
        }));
    };
    for (at, name) in parents.iter().enumerate() {
        let entry = match (look(&directory, name)?, missing) {
            (Some(entry), _) => entry,
            (None, Missing::Refused) => return Err(Refused::Absent),
            (None, Missing::Created) => create(&directory, name)?,
        };
        let (next, stat) = entry;
        if stat.has_kind("symbolic link") {
            let text = file::link_text(&next).map_err(opening)?;
            let before = names.get(..at).unwrap_or_default();
            let after = names.get(at + 1..).unwrap_or_default();
            return follow(before, &text, after).map(Step::Link);
        }
        if !stat.has_kind("directory") {
            return Err(Refused::Errno("opening", Errno(20)));
        }
        directory = next;
    }
    match look(&directory, last)? {
        Some((link, stat)) if stat.has_kind("symbolic link") => {
            let text = file::link_text(&link).map_err(opening)?;
            follow(parents, &text, &[]).map(Step::Link)
        }
        existing => Ok(Step::Found(WorkspacePath { directory, name: last.clone(), existing })),
    }
}

/// Looks a name up in a directory, without opening the file for reading.
fn look(directory: &OpenFile, name: &[u8]) -> Result<Option<(OpenFile, Stat)>, Refused> {
    match file::open(directory, name, O_PATH) {
        Ok(entry) => {
            let stat =
                file::stat(&entry).map_err(|errno| Refused::Errno("looking at it", errno))?;
            Ok(Some((entry, stat)))
        }
        Err(errno) if errno == Errno::NOENT => Ok(None),
        Err(errno) => Err(Refused::Errno("opening", errno)),
    }
}

fn create(directory: &OpenFile, name: &[u8]) -> Result<(OpenFile, Stat), Refused> {
    match file::make_directory(directory, name) {
        // EEXIST: another process was faster.
        Ok(()) | Err(Errno(17)) => {}
        Err(errno) => return Err(Refused::Errno("making a directory", errno)),
    }
    look(directory, name)?.ok_or(Refused::Changed)
}
