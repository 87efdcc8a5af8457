//! Guards what a scan has found: read-only paths, names, and the targets of links.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::budget::Extent;
use super::rights::Rights;
use super::scan::{MAX_PATH_BYTES, Scan};
use super::tree::{GrantPath, Kind, Named, Target, shared};
use cell::mediate::names;

/// Maximum number of paths that are guarded by name: each is compared with every name that a cell
/// makes.
const MAX_NAMED: usize = 1_000;

impl Scan {
    /// Guards a name that the host obeys in any directory.
    pub(crate) fn obeyed(&mut self, path: &GrantPath, kind: Kind) {
        let is_git =
            path.path.file_name().is_some_and(|name| names::may_be(name.as_bytes(), names::GIT));
        match (kind, is_git) {
            (Kind::Directory, true) => self.repository(path),
            (Kind::Directory, false) => self.directory(path),
            (Kind::File | Kind::Other, true) => {
                self.cover(path);
                self.git_file(&self.trees.host(path));
            }
            (Kind::File | Kind::Other, false) => self.cover(path),
            (Kind::Link, _) => {
                if let Some((to, Kind::Directory)) = self.link(path)
                    && is_git
                {
                    self.repository(&to);
                }
            }
        }
    }

    /// Guards the hooks in a directory that may contain hooks of agents. If it is a link, its whole
    /// target is guarded.
    pub(crate) fn holder(&mut self, path: &GrantPath, kind: Kind) {
        let hooks = path.below(Path::new(names::HOOKS));
        match (kind, self.trees.kind(&self.trees.host(&hooks))) {
            (Kind::Link, _) => drop(self.link(path)),
            (Kind::Directory, Some(kind)) => self.obeyed(&hooks, kind),
            (Kind::Directory, None) | (Kind::File | Kind::Other, _) => {}
        }
    }

    /// Guards a directory with all its entries, and the targets of links in it.
    pub(crate) fn directory(&mut self, path: &GrantPath) {
        self.cover(path);
        let mut queue = VecDeque::from([path.clone()]);
        while let Some(directory) = queue.pop_front() {
            for (name, kind) in self.all_entries(&directory) {
                let here = directory.below(&name);
                match kind {
                    Kind::Directory if here.path.as_os_str().len() <= MAX_PATH_BYTES => {
                        queue.push_back(here)
                    }
                    Kind::Link => drop(self.link(&here)),
                    Kind::File => {
                        let stat = self.trees.stat(&self.trees.host(&here)).ok();
                        self.shared.extend(stat.and_then(|(_, stat)| shared(&stat)));
                    }
                    Kind::Directory | Kind::Other => {}
                }
            }
            if self.budget.is_spent() {
                self.note_unseen(path, "has more in it than could be looked at in time");
                return;
            }
        }
    }

    /// Guards the target of a link that the host obeys, and the links on the way. Returns the
    /// target if it is in a granted directory.
    pub(crate) fn link(&mut self, path: &GrantPath) -> Option<(GrantPath, Kind)> {
        let host = self.trees.host(path);
        let from = host.parent()?;
        let name = host.file_name()?;
        let named = Named { from, path: Path::new(name), rights: Rights::Own };
        match self.guard_path(path, named).end {
            Target::InGrant(to, kind) => {
                if self.is_whole(&to, path) {
                    self.note(path, "leads to a directory that holds it, which stays writable");
                    self.guard_whole(&to);
                }
                Some((to, kind))
            }
            Target::Missing(_) => None,
            Target::Outside(_) => {
                self.note(path, "leads out of the directory: what it leads to is not guarded");
                None
            }
            Target::Unresolved => {
                self.note(path, "is a link that cannot be followed");
                None
            }
        }
    }

    /// Returns true if `path` contains `origin`, which refers to it, or is a granted directory
    /// itself.
    pub(crate) fn is_whole(&self, path: &GrantPath, origin: &GrantPath) -> bool {
        let holds = path.tree == origin.tree && origin.path.starts_with(&path.path);
        path.path.as_os_str().is_empty() || (holds && path.path != origin.path)
    }

    /// Records a directory of which everything is obeyed, although a cell may write to it.
    pub(crate) fn guard_whole(&mut self, path: &GrantPath) {
        if let Some(guarded) = self.guarded.get_mut(path.tree) {
            guarded.whole.insert(path.path.clone());
        }
    }

    /// Returns true if a path or one of its parents becomes read-only.
    fn is_covered(&self, path: &GrantPath) -> bool {
        let guarded = self.guarded.get(path.tree);
        guarded.is_some_and(|guarded| {
            guarded.obeyed.iter().any(|parent| path.path.starts_with(parent))
        })
    }

    pub(crate) fn is_new(&self, path: &GrantPath) -> bool {
        let guarded = self.guarded.get(path.tree);
        guarded.is_none_or(|guarded| !guarded.obeyed.contains(&path.path))
    }

    /// Marks a path as read-only.
    pub(crate) fn cover(&mut self, path: &GrantPath) {
        if let Ok((_, stat)) = self.trees.stat(&self.trees.host(path)) {
            self.shared.extend(shared(&stat));
        }
        if let Some(guarded) = self.guarded.get_mut(path.tree)
            && !guarded.obeyed.contains(&path.path)
        {
            guarded.obeyed.push(path.path.clone());
        }
    }

    /// Guards the other names of files that become read-only under one name, as the file could be
    /// written to through them. This needs a second walk, which few directories require.
    pub(crate) fn other_names(&mut self) {
        if self.shared.is_empty() {
            return;
        }
        let roots = (0..self.trees.len()).map(|tree| GrantPath { tree, path: PathBuf::new() });
        let mut queue: VecDeque<GrantPath> = roots.collect();
        while let Some(directory) = queue.pop_front() {
            for (name, kind) in self.all_entries(&directory) {
                let here = directory.below(&name);
                match kind {
                    Kind::Directory if here.path.as_os_str().len() <= MAX_PATH_BYTES => {
                        queue.push_back(here)
                    }
                    Kind::File => {
                        let stat = self.trees.stat(&self.trees.host(&here));
                        let file = stat.ok().and_then(|(_, stat)| shared(&stat));
                        let is_other = file.is_some_and(|file| self.shared.contains(&file));
                        if is_other && !self.is_covered(&here) {
                            self.cover(&here);
                            self.guard_name(here);
                        }
                    }
                    Kind::Directory | Kind::Link | Kind::Other => {}
                }
            }
            if self.is_spent() {
                self.note(
                    &directory,
                    "may have other names of guarded files: there was no time to look",
                );
                return;
            }
        }
    }

    /// Prevents a directory from being renamed.
    pub(crate) fn pin(&mut self, path: &GrantPath) {
        if let Some(guarded) = self.guarded.get_mut(path.tree) {
            guarded.pinned.push(path.path.clone());
        }
    }

    /// Guards a path by name, so that it cannot be made or written to, unless a name in it is
    /// guarded anyway.
    pub(crate) fn guard_name(&mut self, place: GrantPath) {
        let path = place.path.as_os_str().as_bytes();
        if names::has_obeyed(path) || path.is_empty() {
            return;
        }
        let Some(guarded) = self.guarded.get_mut(place.tree) else { return };
        if guarded.named.len() < MAX_NAMED || self.extent == Extent::Whole {
            guarded.named.insert(place.path);
        } else {
            let root = GrantPath { tree: place.tree, path: PathBuf::new() };
            self.note_unseen(
                &root,
                "has more places that links lead to than can be guarded by name",
            );
        }
    }

    /// Records that something on the host was not looked at, so that the paths are not all that the
    /// host obeys.
    pub(crate) fn note_unseen(&mut self, path: &GrantPath, reason: &'static str) {
        // A configuration outside of the granted directories may name files in each of them.
        for guarded in &mut self.guarded {
            guarded.unseen = guarded.unseen.or(Some(reason));
        }
        self.note(path, reason);
    }

    /// Records that a path is guarded only by name, or not at all.
    pub(crate) fn note(&mut self, path: &GrantPath, reason: &'static str) {
        if let Some(guarded) = self.guarded.get_mut(path.tree) {
            guarded.notes.insert((path.path.clone(), reason));
        }
    }
}
