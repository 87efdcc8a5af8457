//! A project's directory that is held open: it is read again as it is then, and stays the same directory whatever its path
//! leads to later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};
use serde_json::{Map, Value};

use crate::layout::ProjectLayout;
use crate::tree::{Tree, parents};
use crate::{Project, ProjectError};

/// The held directory of a project.
#[derive(Debug)]
pub struct ProjectDirectory {
    root: OwnedFd,
    /// Last component of its path.
    name: String,
    /// True if scripts may write to it.
    is_written: bool,
    layout: ProjectLayout,
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
        let name = name.unwrap_or_default();
        Ok(Self { root, name, is_written: false, layout: ProjectLayout::default() })
    }

    /// Sets the folders of the project.
    #[must_use]
    pub fn laid_out(self, layout: ProjectLayout) -> Self {
        Self { layout, ..self }
    }

    /// Says that scripts may write to it: what they leave where nothing is kept ([`ProjectLayout::kept`]) costs no more than itself.
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
        tree.layout = self.layout.clone();
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

    /// Visits the project's own directory (`.`), the folders on the way to those of the lists, then each folder in which a change can change a list. A folder is visited
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
        for folder in self.layout.listed() {
            for on_the_way in parents(folder).filter(|path| tree.is_folder(path)) {
                visit(on_the_way)?;
            }
            if tree.is_folder(folder) {
                tree.visit_folders(folder, &mut visit)?;
            }
        }
        Ok(())
    }

    pub(crate) fn layout(&self) -> &ProjectLayout {
        &self.layout
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
