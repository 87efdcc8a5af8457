//! Files that git runs or obeys in a repository's own directory, wherever that is.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::scan::{Repository, Scan};
use super::tree::{End, Kind, Place, path_of};
use cell::mediate::names::{COMMONDIR, GIT, GIT_PARTS, HEAD, INFO, OLD_REMOTES};

/// Parts besides: attributes choose which of the configured programs sees a file, alternates name directories that git
/// reads from; the steps of a rebase or of `git am`
/// that the host has yet to end may be commands.
const MORE_PARTS: [&str; 4] =
    ["info/attributes", "objects/info/alternates", "rebase-merge", "rebase-apply"];
/// Where repositories' own directories of submodules are, and those of linked worktrees.
const MODULES: &str = "modules";
const WORKTREES: &str = "worktrees";
/// More of a file that stands for a repository, or for where its common part is, no path is.
const LONGEST: usize = 8192;

impl Scan {
    /// A repository's own directory, in a work tree. Its submodules and linked worktrees come after the walk.
    pub(crate) fn repository(&mut self, git: &Place) {
        self.main_repository(git);
        self.unlisted.push(git.clone());
    }

    /// The same, without submodules and linked worktrees: nothing is listed.
    pub(crate) fn main_repository(&mut self, git: &Place) {
        self.pin(git);
        self.guard_parts(git);
        let host = self.trees.host(git);
        let tops = host.parent().map(Path::to_owned).into_iter().collect();
        self.repositories.push(Repository { is_linked: false, git: host, tops });
    }

    /// Returns whether a repository's own directory has a place for those of submodules or of linked worktrees.
    pub(crate) fn has_others(&self, git: &Place) -> bool {
        [MODULES, WORKTREES].iter().any(|name| {
            let place = git.below(Path::new(name));
            self.trees.kind(&self.trees.host(&place)) == Some(Kind::Directory)
        })
    }

    /// Linked worktrees, each with what is its own.
    pub(crate) fn worktrees(&mut self, git: &Place) {
        let worktrees = git.below(Path::new(WORKTREES));
        for (name, kind) in self.entries(&worktrees) {
            let worktree = worktrees.below(&name);
            // A directory without any of these is no worktree to git.
            let signs = [COMMONDIR, HEAD, "gitdir"];
            if !self.budget.spend(signs.len()) {
                return;
            }
            let place = self.trees.host(&worktree);
            let is_there = |name: &&str| self.trees.kind(&place.join(name)).is_some();
            if kind != Kind::Directory || !signs.iter().any(is_there) {
                continue;
            }
            self.guard_parts(&worktree);
            let told = self.first_line(&place.join("gitdir"), b"");
            let top = told.and_then(|file| self.resolved(&place, file.parent()?));
            let tops = top.into_iter().collect();
            self.repositories.push(Repository { is_linked: true, git: place, tops });
        }
    }

    /// A directory with a HEAD in it: a repository without a work tree, or what could become one.
    pub(crate) fn bare_repository(&mut self, git: &Place) {
        self.guard_parts(git);
        let host = self.trees.host(git);
        self.repositories.push(Repository {
            is_linked: false,
            git: host.clone(),
            tops: vec![host],
        });
    }

    /// Guards what of a repository's parts is there, and what links in them lead to.
    fn guard_parts(&mut self, git: &Place) {
        let info = git.below(Path::new(INFO));
        if self.trees.kind(&self.trees.host(&info)) == Some(Kind::Link) {
            drop(self.link(&info));
        }
        for part in GIT_PARTS.iter().chain(&OLD_REMOTES).chain(&MORE_PARTS) {
            let place = git.below(Path::new(part));
            match self.trees.kind(&self.trees.host(&place)) {
                Some(Kind::Directory) => self.directory(&place),
                Some(Kind::File | Kind::Other) => self.cover(&place),
                Some(Kind::Link) => drop(self.link(&place)),
                None => {}
            }
        }
    }

    /// Submodules keep their own git directories here, named by their paths.
    pub(crate) fn submodules(&mut self, git: &Place) {
        let mut left = VecDeque::from([git.below(Path::new(MODULES))]);
        while let Some(directory) = left.pop_front() {
            if self.is_spent() {
                return;
            }
            let entries = self.entries(&directory);
            if entries.iter().any(|(name, _)| name.as_os_str().as_bytes() == HEAD.as_bytes()) {
                self.bare_repository(&directory);
                left.push_back(directory.below(Path::new(MODULES)));
                continue;
            }
            let inside = entries.into_iter().filter(|(_, kind)| *kind == Kind::Directory);
            left.extend(inside.map(|(name, _)| directory.below(&name)));
        }
    }

    /// The file that stands for a repository's own directory in worktrees and submodules.
    pub(crate) fn git_file(&mut self, file: &Path) {
        let Some(top) = file.parent() else { return };
        let Some(named) = self.first_line(file, b"gitdir:") else { return };
        if let Some(git) = self.resolved(top, &named) {
            self.repositories.push(Repository {
                is_linked: false,
                git,
                tops: vec![top.to_owned()],
            });
        }
    }

    /// Repositories that a granted directory lies in: their hooks may be in it.
    pub(crate) fn enclosing(&mut self) {
        for tree in 0..self.trees.len() {
            let host = self.trees.host(&Place { tree, path: PathBuf::new() });
            let owner = |path: &Path| Some(self.trees.look(path).ok()?.1.st_uid);
            // Git obeys none of another user's (safe.directory), who could make one in /tmp.
            let users = [owner(&host), Some(nix::unistd::geteuid().as_raw()), Some(0)];
            let gits = host.ancestors().skip(1).map(|top| (top, top.join(GIT)));
            let gits: Vec<_> = gits
                .filter(|(_, git)| owner(git).is_some_and(|id| users.contains(&Some(id))))
                .collect();
            for (top, git) in gits {
                match self.trees.kind(&git) {
                    Some(Kind::Directory) => {
                        let tops = vec![top.to_owned()];
                        self.repositories.push(Repository { is_linked: false, git, tops });
                    }
                    Some(Kind::File) => self.git_file(&git),
                    // Followed as git would, for its configuration.
                    Some(Kind::Link) => {
                        if let End::Outside(git) = self.follow(top, Path::new(GIT)).end {
                            let tops = vec![top.to_owned()];
                            self.repositories.push(Repository { is_linked: false, git, tops });
                        }
                    }
                    Some(Kind::Other) | None => {}
                }
            }
        }
    }

    /// Returns the directory that a repository shares with its worktrees.
    pub(crate) fn common(&mut self, git: &Path) -> PathBuf {
        let named = self.first_line(&git.join(COMMONDIR), b"");
        let common = named.and_then(|named| self.resolved(git, &named));
        common.unwrap_or_else(|| git.to_owned())
    }

    /// The path that a file of one line names, after `prefix`.
    fn first_line(&mut self, file: &Path, prefix: &[u8]) -> Option<PathBuf> {
        let text = self.read(file, LONGEST).ok()?;
        let line = text.split(|byte| matches!(byte, b'\n' | b'\0')).next()?;
        let path = line.strip_prefix(prefix)?.trim_ascii();
        (!path.is_empty()).then(|| path_of(path))
    }
}
