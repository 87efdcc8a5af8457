//! A project's directory that is held open: it is read again as it is then, and stays the same directory whatever its path
//! leads to later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};
use serde_json::{Map, Value};

use crate::tree::Tree;
use crate::{Project, ProjectError};

/// Folders whose files make the lists.
const LISTED: [&str; 8] =
    ["tools", "resources", "prompts", "completions", "providers", "server.d", "ui", "config"];

/// Folders of a project that say what its scripts are and what they do: where scripts may write to the project, these
/// stay as they are. `resources` is not among them, as scripts write files there for clients.
pub const KEPT: [&str; 8] =
    ["server.d", "tools", "prompts", "completions", "providers", "lib", "ui", "config"];

/// The held directory of a project.
#[derive(Debug)]
pub struct ProjectDirectory {
    root: OwnedFd,
    /// Last component of its path.
    name: String,
    /// True if scripts may write to it.
    is_written: bool,
}

impl ProjectDirectory {
    /// Opens a project's directory.
    ///
    /// # Errors
    /// A path that leads to no directory.
    pub fn open(directory: &Path) -> Result<Self, ProjectError> {
        let place = directory.canonicalize().map_err(ProjectError::Open)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(&place, flags, Mode::empty());
        let root = root.map_err(|errno| ProjectError::Open(errno.into()))?;
        let name = place.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self { root, name: name.unwrap_or_default(), is_written: false })
    }

    /// Says that scripts may write to it: what they leave where nothing is kept ([`KEPT`]) costs no more than itself.
    #[must_use]
    pub fn written_by_scripts(self) -> Self {
        Self { is_written: true, ..self }
    }

    /// Reads the project, with the lists that its `register.sh` made.
    ///
    /// # Errors
    /// As of [`Project::read`].
    pub fn read(&self, lists: Option<Map<String, Value>>) -> Result<Project, ProjectError> {
        Project::in_tree(&self.tree()?, lists)
    }

    pub(crate) fn tree(&self) -> Result<Tree, ProjectError> {
        let root = self.folder(".").map_err(ProjectError::Open)?;
        let mut tree = Tree::of(root, self.name.clone())?;
        tree.is_written = self.is_written;
        Ok(tree)
    }

    /// Returns the user and the group that own it.
    ///
    /// # Errors
    /// A directory whose changes the kernel does not report.
    pub fn owner(&self) -> io::Result<(u32, u32)> {
        let stat = fstat(&self.root)?;
        Ok((stat.st_uid, stat.st_gid))
    }

    /// Opens a folder of the project, following no link.
    ///
    /// # Errors
    /// No such folder.
    pub fn folder(&self, path: &str) -> io::Result<OwnedFd> {
        self.at(path, OFlags::DIRECTORY)
    }

    /// Opens a file of the project, following no link. Whatever it is, this does not wait.
    ///
    /// # Errors
    /// No such file.
    pub fn file(&self, path: &str) -> io::Result<OwnedFd> {
        self.at(path, OFlags::NONBLOCK | OFlags::NOCTTY)
    }

    fn at(&self, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(openat2(&self.root, path, flags, Mode::empty(), resolve)?)
    }

    /// Visits the project's own directory (`.`), then each folder in which a change can change a list. A folder is visited
    /// before the folders in it are listed, so that a watcher misses no later one.
    ///
    /// # Errors
    /// That of the first visit that failed.
    pub(crate) fn visit_listed_folders<E>(
        &self,
        mut visit: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        visit(".")?;
        // Visit no list of a directory that can no longer be used.
        let Ok(tree) = self.tree() else { return Ok(()) };
        for folder in LISTED {
            if tree.is_folder(folder) {
                tree.visit_folders(folder, &mut visit)?;
            }
        }
        Ok(())
    }

    /// Returns true for an entry of the directory itself in which a list begins.
    pub fn is_listed(name: &str) -> bool {
        LISTED.contains(&name)
    }
}

impl AsFd for ProjectDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::fs;

    use super::*;

    #[test]
    fn a_folder_that_comes_while_the_one_above_is_visited_is_visited_too() {
        let held = tempfile::tempdir().expect("a directory");
        let directory = ProjectDirectory::open(held.path()).expect("a project");
        let mut visited = Vec::new();
        let visit = |path: &str| -> Result<(), Infallible> {
            visited.push(path.to_owned());
            let new = match path {
                "." => "tools",
                "tools" => "tools/a",
                _ => return Ok(()),
            };
            fs::create_dir(held.path().join(new)).expect("made");
            Ok(())
        };
        directory.visit_listed_folders(visit).unwrap_or_else(|never| match never {});
        assert_eq!(visited, [".", "tools", "tools/a"]);
    }
}
