//! Finds files that git runs or obeys in a repository's directory, wherever that is.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::rights::Rights;
use super::scan::{Repository, Scan};
use super::tree::{Found, GrantPath, Kind, Named, Target, path_of};
use cell::mediate::names::{
    COMMONDIR, CONFIG, Depth, GIT, GIT_PARTS, GITDIR, HEAD, INFO, OLD_REMOTES, RESOLUTIONS,
};

/// More parts of a repository: attributes choose which configured program processes a file, and
/// alternates name directories that git reads from.
const MORE_PARTS: [&str; 2] = ["info/attributes", "objects/info/alternates"];
/// Directories with the steps of an unfinished rebase, `git am`, or a cherry-pick of several commits, which may be
/// commands or name programs.
const STEPS: [&str; 3] = ["rebase-merge", "rebase-apply", "sequencer"];
/// Directories of the repositories of submodules, and of linked worktrees.
const MODULES: &str = "modules";
const WORKTREES: &str = "worktrees";
/// Maximum bytes read of a file that points to a repository or to its common directory: longer than
/// any path.
const MAX_POINTER_BYTES: usize = 8192;

impl Scan {
    /// Guards a repository's directory in a work tree. Its submodules and linked worktrees are
    /// handled after the walk.
    pub(crate) fn repository(&mut self, git: &GrantPath) {
        self.main_repository(git);
        self.unlisted.push(git.clone());
    }

    /// Guards a repository's directory without submodules and linked worktrees, so that no
    /// directory is listed.
    pub(crate) fn main_repository(&mut self, git: &GrantPath) {
        self.pin(git);
        self.guard_parts(git);
        let host = self.trees.host(git);
        let tops = host.parent().map(Path::to_owned).into_iter().collect();
        let rights = Rights::Own;
        self.repositories.push(Repository { is_linked: false, git: host, tops, rights });
    }

    /// Returns true if a repository has a directory for submodules or for linked worktrees.
    pub(crate) fn has_others(&self, git: &GrantPath) -> bool {
        [MODULES, WORKTREES].iter().any(|name| {
            let directory = git.below(Path::new(name));
            self.trees.kind(&self.trees.host(&directory)) == Some(Kind::Directory)
        })
    }

    /// Guards linked worktrees, each with its own parts.
    pub(crate) fn worktrees(&mut self, git: &GrantPath) {
        let worktrees = git.below(Path::new(WORKTREES));
        for (name, kind) in self.entries(&worktrees) {
            let worktree = worktrees.below(&name);
            // Git does not treat a directory without any of these as a worktree.
            let signs = [COMMONDIR, HEAD, GITDIR];
            if !self.budget.spend(signs.len()) {
                return;
            }
            let host = self.trees.host(&worktree);
            let exists = |name: &&str| self.trees.kind(&host.join(name)).is_some();
            let is_worktree = kind == Kind::Directory && signs.iter().any(exists);
            if !is_worktree {
                continue;
            }
            self.know(&worktree);
            self.guard_parts(&worktree);
            let pointer = self.first_line(&host.join(GITDIR), b"");
            let top = pointer.and_then(|Found { path, rights }| {
                self.resolved(Named { from: &host, path: path.parent()?, rights })
            });
            let rights = top.as_ref().map_or(Rights::Own, |top| top.rights);
            let tops = top.into_iter().map(|top| top.path).collect();
            self.repositories.push(Repository { is_linked: true, git: host, tops, rights });
        }
    }

    /// Guards a directory with a HEAD in it: a bare repository, or one that could become a
    /// repository.
    pub(crate) fn bare_repository(&mut self, git: &GrantPath) {
        // The next start knows it by its HEAD, which must be neither moved nor removed. Cells cannot replace one.
        let head = git.below(Path::new(HEAD));
        match self.trees.kind(&self.trees.host(&head)) {
            Some(Kind::File) if !self.is_below_references(git) => self.cover(&head),
            Some(Kind::Link) => {
                self.note(&head, "is a link, and nothing keeps a link in its place")
            }
            Some(Kind::File | Kind::Directory | Kind::Other) | None => {}
        }
        self.git_directory(git);
    }

    /// Returns true for a directory in which a bare repository, whose HEAD is kept, has references or their logs.
    fn is_below_references(&self, directory: &GrantPath) -> bool {
        let tree = directory.tree;
        let is_kept = |above: &&Path| !self.is_new(&GrantPath { tree, path: above.join(HEAD) });
        let git = directory.path.ancestors().skip(1).find(is_kept);
        git.is_some_and(|git| is_of_references(git, &directory.path))
    }

    /// Guards a directory as one that may be a repository's.
    fn git_directory(&mut self, git: &GrantPath) {
        self.guard_parts(git);
        let host = self.trees.host(git);
        self.repositories.push(Repository {
            is_linked: false,
            git: host.clone(),
            tops: vec![host],
            rights: Rights::Own,
        });
    }

    /// Guards the existing parts of a repository, and the targets of links in those that no cell can make.
    fn guard_parts(&mut self, git: &GrantPath) {
        let info = git.below(Path::new(INFO));
        if self.trees.kind(&self.trees.host(&info)) == Some(Kind::Link) {
            drop(self.link(&info));
        }
        for part in GIT_PARTS.iter().chain(&OLD_REMOTES).chain(&MORE_PARTS) {
            let path = git.below(Path::new(part));
            match self.trees.kind(&self.trees.host(&path)) {
                Some(Kind::Directory) => self.directory(&path),
                Some(Kind::File | Kind::Other) => self.cover(&path),
                Some(Kind::Link) => drop(self.link(&path)),
                None => {}
            }
        }
        // A cell may make these, with any number of links and names: they must not take the guard from what comes later.
        for directory in STEPS.into_iter().chain([RESOLUTIONS]) {
            let path = git.below(Path::new(directory));
            if self.trees.kind(&self.trees.host(&path)) == Some(Kind::Directory) {
                self.cover(&path);
            }
        }
    }

    /// Guards the repositories of submodules, which are named by their paths.
    pub(crate) fn submodules(&mut self, git: &GrantPath) {
        let mut queue = VecDeque::from([git.below(Path::new(MODULES))]);
        while let Some(directory) = queue.pop_front() {
            if self.is_spent() {
                return;
            }
            let entries = self.entries(&directory);
            // Git replaces HEAD here, so that a cell may remove it. No cell can remove or make a configuration.
            let is_sign = |(name, kind): &(PathBuf, Kind)| match name.as_os_str().as_bytes() {
                name if name == HEAD.as_bytes() => true,
                name => name == CONFIG.as_bytes() && *kind != Kind::Directory,
            };
            if entries.iter().any(is_sign) {
                self.know(&directory);
                self.git_directory(&directory);
                self.worktrees(&directory);
                queue.push_back(directory.below(Path::new(MODULES)));
                continue;
            }
            let inside = entries.into_iter().filter(|(_, kind)| *kind == Kind::Directory);
            queue.extend(inside.map(|(name, _)| directory.below(&name)));
        }
    }

    /// Has the guard of names know a repository in another one's directory by its path: its name may have any parts.
    fn know(&mut self, git: &GrantPath) {
        if let Some(guarded) = self.guarded.get_mut(git.tree) {
            guarded.repositories.insert(git.path.clone());
        }
    }

    /// Guards the repository to which a `.git` file points, as in worktrees and submodules.
    pub(crate) fn git_file(&mut self, file: &Path) {
        let Some(top) = file.parent() else { return };
        let Some(Found { path, rights }) = self.first_line(file, b"gitdir:") else { return };
        if let Some(git) = self.resolved(Named { from: top, path: &path, rights }) {
            self.repositories.push(Repository {
                is_linked: false,
                git: git.path,
                tops: vec![top.to_owned()],
                rights: git.rights,
            });
        }
    }

    /// Adds repositories that contain a granted directory: their hooks may be in it.
    pub(crate) fn enclosing(&mut self) {
        for tree in 0..self.trees.len() {
            let host = self.trees.host(&GrantPath { tree, path: PathBuf::new() });
            let owner = |path: &Path| Some(self.trees.stat(path).ok()?.1.st_uid);
            // Git ignores other users' repositories (safe.directory), as anyone could make one in /tmp.
            let users = [owner(&host), Some(self.trees.user()), Some(0)];
            let gits = host.ancestors().skip(1).map(|top| (top, top.join(GIT)));
            let gits: Vec<_> = gits
                .filter(|(_, git)| owner(git).is_some_and(|id| users.contains(&Some(id))))
                .collect();
            for (top, git) in gits {
                match self.trees.kind(&git) {
                    Some(Kind::Directory) => {
                        let tops = vec![top.to_owned()];
                        let rights = Rights::Own;
                        self.repositories.push(Repository { is_linked: false, git, tops, rights });
                    }
                    Some(Kind::File) => self.git_file(&git),
                    // Followed like git does, for its configuration.
                    Some(Kind::Link) => {
                        let path = Path::new(GIT);
                        let found = self.follow(Named { from: top, path, rights: Rights::Own });
                        let git = match found.end {
                            Target::Outside(git) => Some(git),
                            Target::InGrant(git, _) => Some(self.trees.host(&git)),
                            Target::Missing(_) | Target::Unresolved => None,
                        };
                        if let Some(git) = git {
                            self.repositories.push(Repository {
                                is_linked: false,
                                git,
                                tops: vec![top.to_owned()],
                                rights: found.rights,
                            });
                        }
                    }
                    Some(Kind::Other) | None => {}
                }
            }
        }
    }

    /// Returns the directory that a repository, which was found with these rights, shares with its
    /// worktrees.
    pub(crate) fn common(&mut self, git: &Path, rights: Rights) -> Found {
        let named = self.line_of(&git.join(COMMONDIR), b"", rights);
        let common = named.and_then(|Found { path, rights }| {
            self.resolved(Named { from: git, path: &path, rights })
        });
        common.unwrap_or_else(|| Found { path: git.to_owned(), rights })
    }

    /// Returns the path in the first line of a file, after `prefix`.
    fn first_line(&mut self, file: &Path, prefix: &[u8]) -> Option<Found> {
        self.line_of(file, prefix, Rights::Own)
    }

    fn line_of(&mut self, file: &Path, prefix: &[u8], rights: Rights) -> Option<Found> {
        let origin = self.nearest(file);
        let text = match self.read(file, MAX_POINTER_BYTES, rights, &origin) {
            Ok(text) => text,
            Err(Errno::ETIMEDOUT | Errno::EOPNOTSUPP) => {
                self.note_unseen(&origin, "names a repository by a file that cannot be read");
                return None;
            }
            Err(Errno::EACCES) => {
                self.denied(file, rights);
                return None;
            }
            Err(_) => return None,
        };
        let line = text.bytes.split(|byte| matches!(byte, b'\n' | b'\0')).next()?;
        let path = line.strip_prefix(prefix)?.trim_ascii();
        (!path.is_empty()).then(|| Found { path: path_of(path), rights: text.rights })
    }
}

/// Returns true for a directory in which git keeps references or their logs, by its path in the repository's directory
/// `git`. Cells may make files there that have the names of a repository's parts.
fn is_of_references(git: &Path, directory: &Path) -> bool {
    let below = directory.strip_prefix(git).unwrap_or(directory);
    let depth = below.iter().fold(Depth::Top, |depth, name| depth.below(name.as_bytes()));
    depth.is_of_references()
}
