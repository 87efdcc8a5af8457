//! From a path to a directory that is held and a name in it, without a step out of the workspace.
//!
//! The path is walked name by name, each opened from the directory before and never followed by the kernel. A
//! symbolic link is read and its text walked instead, from the workspace on: a text that leads elsewhere is
//! refused. A directory that is replaced by a link meanwhile has no effect: it is not looked up again.

use alloc::vec::Vec;

use crate::errno::Errno;
use crate::file::{self, O_DIRECTORY, O_PATH, OpenFile, Stat};
use crate::reply::No;

const ROOT: &[u8] = b"/workspace";
/// As the kernel has it (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// A place in the workspace.
#[derive(Debug)]
pub struct WorkspacePath {
    /// The directory that the name is in.
    pub directory: OpenFile,
    /// Empty for the workspace itself.
    pub name: Vec<u8>,
    /// The file at the place, if there is one.
    pub found: Option<(OpenFile, Stat)>,
}

/// Treatment of missing directories on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    Refused,
    Made,
}

/// Why a walk ended.
enum Turn {
    There(WorkspacePath),
    /// On with this path instead.
    Link(Vec<Vec<u8>>),
}

/// Finds the place of an absolute path below the workspace.
pub fn find(path: &[u8], missing: Missing) -> Result<WorkspacePath, No> {
    let mut names = below(path)?;
    for _ in 0..MOST_LINKS {
        match walk(&names, missing)? {
            Turn::There(place) => return Ok(place),
            Turn::Link(instead) => names = instead,
        }
    }
    Err(No::Errno("following symbolic links", Errno(40)))
}

/// Returns the names of an absolute path behind the workspace's, `.` and `..` resolved.
fn below(path: &[u8]) -> Result<Vec<Vec<u8>>, No> {
    let rest = path.strip_prefix(ROOT).ok_or(No::Outside)?;
    if !rest.is_empty() && !rest.starts_with(b"/") {
        return Err(No::Outside);
    }
    joined(Vec::new(), rest)
}

/// Returns the names of `path` behind `start`. One `..` too many leads out.
fn joined(start: Vec<Vec<u8>>, path: &[u8]) -> Result<Vec<Vec<u8>>, No> {
    let mut names = start;
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop().ok_or(No::Outside)?;
            }
            name => names.push(name.to_vec()),
        }
    }
    Ok(names)
}

/// Returns the path that a link leads to, from the names before it, its text and the names after it.
fn led(before: &[Vec<u8>], text: &[u8], after: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, No> {
    let mut names = match text.starts_with(b"/") {
        true => below(&text_of(text))?,
        false => joined(before.to_vec(), text)?,
    };
    names.extend_from_slice(after);
    Ok(names)
}

/// Returns an absolute text with `.` and `..` resolved, so that `/workspace/../etc` is seen as `/etc`.
fn text_of(text: &[u8]) -> Vec<u8> {
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

fn walk(names: &[Vec<u8>], missing: Missing) -> Result<Turn, No> {
    let opening = |errno| No::Errno("opening", errno);
    let mut directory = file::workspace().map_err(opening)?;
    let Some((last, way)) = names.split_last() else {
        let stat = file::stat(&directory).map_err(opening)?;
        let again = file::open(&directory, b".", O_PATH | O_DIRECTORY).map_err(opening)?;
        return Ok(Turn::There(WorkspacePath {
            directory,
            name: Vec::new(),
            found: Some((again, stat)),
        }));
    };
    for (at, name) in way.iter().enumerate() {
        let entry = match (look(&directory, name)?, missing) {
            (Some(entry), _) => entry,
            (None, Missing::Refused) => return Err(No::Absent),
            (None, Missing::Made) => made(&directory, name)?,
        };
        let (next, stat) = entry;
        if stat.is("symbolic link") {
            let text = file::link_text(&next).map_err(opening)?;
            let before = names.get(..at).unwrap_or_default();
            let after = names.get(at + 1..).unwrap_or_default();
            return led(before, &text, after).map(Turn::Link);
        }
        if !stat.is("directory") {
            return Err(No::Errno("opening", Errno(20)));
        }
        directory = next;
    }
    match look(&directory, last)? {
        Some((link, stat)) if stat.is("symbolic link") => {
            let text = file::link_text(&link).map_err(opening)?;
            led(way, &text, &[]).map(Turn::Link)
        }
        found => Ok(Turn::There(WorkspacePath { directory, name: last.clone(), found })),
    }
}

/// Looks a name up in a directory: named, not opened.
fn look(directory: &OpenFile, name: &[u8]) -> Result<Option<(OpenFile, Stat)>, No> {
    match file::open(directory, name, O_PATH) {
        Ok(entry) => {
            let stat = file::stat(&entry).map_err(|errno| No::Errno("looking at it", errno))?;
            Ok(Some((entry, stat)))
        }
        Err(errno) if errno == Errno::NOENT => Ok(None),
        Err(errno) => Err(No::Errno("opening", errno)),
    }
}

fn made(directory: &OpenFile, name: &[u8]) -> Result<(OpenFile, Stat), No> {
    match file::make_directory(directory, name) {
        // Somebody else was as fast.
        Ok(()) | Err(Errno(17)) => {}
        Err(errno) => return Err(No::Errno("making a directory", errno)),
    }
    look(directory, name)?.ok_or(No::Changed)
}
