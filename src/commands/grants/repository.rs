//! Finds the part of the workspace's repository that lies elsewhere: of a linked worktree, a submodule, a directory with
//! `--separate-git-dir`, a shared clone, or a subdirectory.
//!
//! The files that name the other part came with the workspace, perhaps from a stranger's archive. So nothing is granted
//! because of such a file alone. The other part must be a repository by its form, belong to the same user, lie in no
//! forbidden place and name the workspace in turn: as a work tree, in files that no cell can write, or in its index, which
//! a cell of a linked worktree can write. An index opens only the `.git` above the workspace, for reading.
//! Otherwise a remark says what is missing. [`held_paths`](super::held_paths) opens what such files name.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::git_index::index_has;
use super::held_paths::{HeldPath, NotFollowed, Reach, first_line, joined};
use super::lookup;
use super::request::{MountRequest, WORKSPACE};
use super::toolchains::{is_shown, touches};
use crate::commands::error::CliError;
use crate::commands::format::plain;
use crate::commands::settings::Settings;
use cell::mediate::names::{CACHES, COMMONDIR, GIT, GITDIR, HEAD};
use model::accounts;
use model::job::Access;
use supervisor::Granted;
use supervisor::protect::grammar;

/// Maximum bytes of a file that names a path: longer than any path.
const MAX_POINTER_BYTES: u64 = 8192;
/// Maximum bytes of an index that is read: some hundred thousand files.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Maximum bytes of a repository's configuration, and of its list of directories with more objects.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum directories with more objects that are reported.
const MAX_ALTERNATES: usize = 8;
/// Directory in a repository of its linked worktrees.
const WORKTREES: &str = "worktrees";
/// Directory in a repository of its objects, and the file that names directories with more of them.
const OBJECTS: &str = "objects";
const ALTERNATES: &str = "objects/info/alternates";

/// Ends a remark on a path that is not followed.
const APART: &str = "which leads through a link or to another filesystem: cells have it only where you grant it at that path";

/// The part of the workspace's repository outside of the workspace, and what follows from it.
#[derive(Debug, Default)]
pub(crate) struct RepositoryElsewhere {
    /// The directory that git uses for the workspace, if it lies outside.
    pub git: Option<PathBuf>,
    /// Grants in addition to the operator's.
    pub mounts: Vec<MountRequest>,
    /// The file or directory of each of these grants, as it was checked.
    checked: Vec<HeldPath>,
    /// True if git in a cell finds the repository only where the workspace has its path on the host, or would write a path
    /// that only the cell has.
    pub needs_host_path: bool,
    /// The work tree, if the workspace is a part of it.
    pub above: Option<PathBuf>,
    /// Sentences for the operator.
    pub remarks: Vec<String>,
}

/// A repository's directory, as a `.git` file names it.
#[derive(Debug)]
struct NamedRepository {
    /// The directory itself; of a linked worktree, its part of it.
    git: HeldPath,
    /// The directory that is to be granted.
    common: HeldPath,
    /// True if it names the directory of the `.git` file as its work tree.
    is_mutual: bool,
}

impl RepositoryElsewhere {
    /// Looks at the workspace among `mounts`. Grants of the operator that are a repository's directory are guarded as one
    /// from here on.
    pub(crate) fn find(mounts: &mut [MountRequest]) -> Self {
        let mut found = Self::default();
        let workspace = mounts.iter().find(|mount| mount.cell == Path::new(WORKSPACE));
        let Some(MountRequest { host, access, .. }) = workspace.cloned() else { return found };
        // Most workspaces: few calls of the system.
        let git = host.join(GIT);
        if git.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            let top = HeldPath::of_operator(&host);
            let text = top.and_then(|top| top.read(&format!("{GIT}/{ALTERNATES}"), MAX_FILE_BYTES));
            if let (Some(text), Ok(top)) = (text, host.canonicalize()) {
                found.alternates(&text, &top.join(GIT), &Reach::of(&top, mounts), mounts);
            }
            // A worktree that is added to another grant names the workspace by its path.
            let is_neighbour = |mount: &MountRequest| {
                mount.access == Access::Unguarded && mount.cell == mount.host
            };
            found.needs_host_path = access == Access::Unguarded
                && mounts.iter().any(is_neighbour)
                && host.canonicalize().is_ok_and(|top| can_have_host_path(&top, mounts));
            return found;
        }
        let Ok(top) = host.canonicalize() else { return found };
        let above = top.ancestors().find_map(|directory| {
            let entry = directory.join(GIT);
            entry.symlink_metadata().ok().map(|metadata| (directory.to_owned(), metadata))
        });
        let Some((directory, entry)) = above.filter(|(directory, _)| is_project(directory)) else {
            return found;
        };
        let asked = Asked { top: &top, access, owner: owner(&top) };
        if entry.is_symlink() || entry.is_file() {
            found.named(&asked, &directory, mounts);
        } else if directory != top {
            found.enclosing(&asked, &directory, mounts);
        }
        found.where_shown(&top, mounts)
    }

    /// Returns this if cells can have the workspace at the path that is needed, else the reason.
    fn where_shown(self, top: &Path, mounts: &[MountRequest]) -> Self {
        if !self.needs_host_path || can_have_host_path(top, mounts) {
            return self;
        }
        let remark = format!(
            "the workspace has a part of its repository elsewhere, and git would find that only if cells had `{}` at this \
             path, which they cannot",
            shown(top)
        );
        Self { remarks: vec![remark], ..Self::default() }
    }

    /// Returns the remarks on a workspace that is granted for writing and alone.
    pub(crate) fn remarks_on(workspace: &Path) -> Vec<String> {
        let mount = MountRequest {
            host: workspace.to_owned(),
            cell: PathBuf::from(WORKSPACE),
            access: Access::ReadWrite,
        };
        Self::find(&mut [mount]).remarks
    }

    /// Follows a `.git` that is a file or a link.
    fn named(&mut self, asked: &Asked, directory: &Path, mounts: &mut [MountRequest]) {
        let pointer = directory.join(GIT);
        let reach = Reach::of(asked.top, mounts);
        let named = match NamedRepository::of(directory, &reach) {
            Ok(named) => named,
            Err(why) => return self.remarks.push(format!("`{}` {why}", shown(&pointer))),
        };
        let NamedRepository { git, common, is_mutual } = named;
        if common.path.starts_with(asked.top) {
            return;
        }
        let names = format!("`{}` names `{}`", shown(&pointer), shown(&common.path));
        let is_part = directory != asked.top;
        let is_writable = asked.access == Access::ReadWrite && !is_part;
        // A link is not held: cells cannot have it at its path.
        let held_pointer = HeldPath::of_operator(directory)
            .and_then(|directory| directory.below(Path::new(GIT)).ok());
        let more = alternates_of(&common);
        let git_path = git.path.clone();
        let common_path = common.path.clone();
        if !self.is_granted(&common_path, mounts) {
            if !asked.can_have(&[&common, &git]) {
                return self.remarks.push(format!("{names}, which cells cannot have at this path"));
            }
            let is_tracked = !is_part || has_files_of(&git, asked.below(directory));
            let refusal = asked.refusal(&common, &[Some(git.owner), owner(&pointer)]);
            let refusal = refusal.or_else(|| {
                (!is_mutual || !is_tracked).then_some("which does not name this directory in turn")
            });
            if let Some(why) = refusal {
                let flag = flag(if is_writable { "--rw" } else { "--ro" }, &common_path);
                return self.remarks.push(format!(
                    "{names}, {why}: a workspace's file may name any repository, so grant it only if you made \
                     the workspace from it{flag}"
                ));
            }
            let access = if is_writable { Access::Repository } else { Access::ReadOnly };
            self.grant(common, access);
            let how = if is_writable { "" } else { ", read-only" };
            self.remarks.push(format!(
                "{names}, which cells have too{how}: they can read its configuration, with any credentials in it"
            ));
        }
        if let Some(pointer) = held_pointer.filter(|_| is_part)
            && !self.is_granted(&pointer.path, mounts)
        {
            self.grant(pointer, Access::ReadOnly);
        }
        self.git = Some(git_path);
        self.above = is_part.then(|| directory.to_owned());
        self.needs_host_path = true;
        self.alternates(&more, &common_path, &reach, mounts);
    }

    /// Grants the `.git` of a repository that the workspace is a part of. Cells lack its other files, so that a commit of
    /// all changes would remove these: it is read-only.
    fn enclosing(&mut self, asked: &Asked, directory: &Path, mounts: &mut [MountRequest]) {
        let Some(git) = HeldPath::of_operator(&directory.join(GIT)) else { return };
        if !is_repository(&git) || !asked.can_have(&[&git]) || asked.refusal(&git, &[]).is_some() {
            // Git takes no other user's either.
            return;
        }
        let path = git.path.clone();
        let more = alternates_of(&git);
        if !self.is_granted(&path, mounts) {
            if !has_files_of(&git, asked.below(directory)) {
                return self.remarks.push(format!(
                    "the workspace lies in the repository `{}`, which has no file of it: grant its .git, if cells are \
                     to have its history{}",
                    shown(directory),
                    flag("--ro", &path)
                ));
            }
            self.grant(git, Access::ReadOnly);
            self.remarks.push(format!(
                "the workspace is a part of the repository `{0}`: cells have its .git, read-only, with its configuration \
                 and any credentials in that; where `{0}` is the workspace, they can commit",
                shown(directory)
            ));
        }
        self.git = Some(path.clone());
        self.above = Some(directory.to_owned());
        self.needs_host_path = true;
        self.alternates(&more, &path, &Reach::of(asked.top, mounts), mounts);
    }

    /// Reports the directories with more objects that `text` names, the list of the repository `git`. They do not name
    /// who uses them, so that they are granted by a flag alone.
    fn alternates(&mut self, text: &[u8], git: &Path, reach: &Reach, mounts: &mut [MountRequest]) {
        let objects = git.join(OBJECTS);
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        for line in lines.filter(|line| !line.starts_with(b"#")).take(MAX_ALTERNATES) {
            let text = Path::new(std::ffi::OsStr::from_bytes(line));
            let path = joined(&objects, text).unwrap_or_else(|| objects.join(text));
            let is_within = |mount: &MountRequest| {
                mount.cell == Path::new(WORKSPACE)
                    && mount.host.canonicalize().is_ok_and(|top| path.starts_with(top))
            };
            if mounts.iter().any(is_within) {
                continue;
            }
            match reach.follow(&objects, text) {
                Err(NotFollowed::Missing) => continue,
                Err(NotFollowed::Apart) if self.is_granted(&path, mounts) => continue,
                Err(NotFollowed::Apart) => {
                    self.remarks.push(format!(
                        "a file of the workspace's repository names objects in `{}`, {APART}",
                        shown(&path)
                    ));
                    continue;
                }
                Ok(_) => {}
            }
            let is_whole = path.ends_with(OBJECTS)
                && path
                    .parent()
                    .and_then(|parent| reach.follow(parent, Path::new("")).ok())
                    .is_some_and(|parent| is_repository(&parent));
            if !is_whole || self.is_granted(&path, mounts) {
                continue;
            }
            self.remarks.push(format!(
                "a file of the workspace's repository names objects in `{}`, which cells do not have: grant them only \
                 if you made the clone from there{}",
                shown(&path),
                flag("--ro", &path)
            ));
        }
    }

    fn grant(&mut self, held: HeldPath, access: Access) {
        let path = held.path.clone();
        self.mounts.push(MountRequest { host: path.clone(), cell: path, access });
        self.checked.push(held);
    }

    /// Returns true if cells have a path of the host at the same path. If the operator granted just this directory, for
    /// writing, it is guarded as a repository.
    fn is_granted(&self, path: &Path, mounts: &mut [MountRequest]) -> bool {
        let mut is_granted = self.mounts.iter().any(|mount| path.starts_with(&mount.cell));
        for mount in mounts.iter_mut() {
            let is_there = path.starts_with(&mount.cell)
                && mount.host.canonicalize().is_ok_and(|host| host == mount.cell);
            if is_there && mount.cell == path && mount.access == Access::ReadWrite {
                mount.access = Access::Repository;
            }
            is_granted |= is_there;
        }
        is_granted
    }

    /// Returns the variables by which git finds a repository in a directory above the workspace.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let Some(above) = &self.above else { return Vec::new() };
        let mut variables = vec![("GIT_DISCOVERY_ACROSS_FILESYSTEM", "1".to_owned())];
        // Cells of root do not own the directory that stands for the work tree: each has another id.
        if let (true, Some(above)) = (nix::unistd::geteuid().is_root(), above.to_str()) {
            variables.extend([
                ("GIT_CONFIG_COUNT", "1".to_owned()),
                ("GIT_CONFIG_KEY_0", "safe.directory".to_owned()),
                ("GIT_CONFIG_VALUE_0", above.to_owned()),
            ]);
        }
        variables
    }

    /// Returns this if its parts can be granted, else the reason as a remark: the operator typed no flag for them, and
    /// cells can start without them.
    pub(crate) fn if_grantable(self, settings: &Settings) -> Self {
        if self.mounts.is_empty() {
            return self;
        }
        let granted = lookup::grant_all(settings, &self.mounts, false);
        match granted.and_then(|granted| self.check_same(&granted)) {
            Ok(()) => self,
            Err(error) => {
                let remark = format!("{}; cells start without it", plain(&error.message));
                Self { remarks: vec![remark], ..Self::default() }
            }
        }
    }

    /// Checks that the parts that were found are the files that are granted.
    ///
    /// # Errors
    /// A part that was replaced since it was found.
    fn check_same(&self, granted: &[Granted]) -> Result<(), CliError> {
        let is_granted = |held: &HeldPath| {
            granted.iter().any(|granted| {
                granted.host == held.path && granted.cell == held.path && granted.file == held.id
            })
        };
        match self.checked.iter().find(|held| !is_granted(held)) {
            None => Ok(()),
            Some(replaced) => {
                let path = shown(&replaced.path);
                Err(CliError::new(format!("`{path}` was replaced while it was looked up")))
            }
        }
    }

    /// Makes the path on the host that of the workspace, and `/workspace` a link to it.
    ///
    /// # Errors
    /// A part that was replaced since it was found.
    pub(crate) fn place(&self, granted: &mut Vec<Granted>) -> Result<(), CliError> {
        self.check_same(granted)?;
        let workspace = Path::new(WORKSPACE);
        let Some(at) = granted.iter().position(|granted| granted.cell == workspace) else {
            return Ok(());
        };
        if !self.needs_host_path {
            return Ok(());
        }
        let host = granted.get(at).map(|granted| granted.host.clone()).unwrap_or_default();
        granted.retain(|granted| granted.cell != host);
        for granted in granted.iter_mut() {
            if granted.cell == workspace {
                granted.cell.clone_from(&host);
                granted.is_linked = true;
            } else if let Ok(below) = granted.cell.strip_prefix(workspace) {
                granted.cell = host.join(below);
            }
        }
        Ok(())
    }
}

/// What the operator asks for.
#[derive(Debug)]
struct Asked<'p> {
    /// The workspace, without links.
    top: &'p Path,
    access: Access,
    owner: Option<u32>,
}

impl Asked<'_> {
    /// Returns why `granted` is not granted without a flag. `others` are the owners of files on the way to it.
    fn refusal(&self, granted: &HeldPath, others: &[Option<u32>]) -> Option<&'static str> {
        let user = nix::unistd::geteuid();
        let is_the_users = |owner: &Option<u32>| {
            owner.is_some()
                && *owner == self.owner
                && (user.is_root() || *owner == Some(user.as_raw()))
        };
        if !is_the_users(&Some(granted.owner)) || !others.iter().all(is_the_users) {
            return Some("which belongs to another user");
        }
        let granted = &granted.path;
        // An archive that was unpacked over other files must not make these a repository.
        let is_usual = granted.iter().any(|name| name == GIT)
            || [".git", ".bare"]
                .iter()
                .any(|end| granted.as_os_str().as_bytes().ends_with(end.as_bytes()));
        (!is_usual).then_some("which is not named like a repository")
    }

    /// Returns true if cells can have a part, the first of these paths, at its path.
    fn can_have(&self, paths: &[&HeldPath]) -> bool {
        let is_in_cache = |part: &&HeldPath| part.path.iter().any(|name| name == CACHES);
        let is_apart = |part: &&HeldPath| is_shown(&part.path) && !touches(&part.path, self.top);
        paths.first().is_some_and(is_apart) && !paths.iter().any(is_in_cache)
    }

    /// Returns the workspace's path in a directory above it.
    fn below(&self, directory: &Path) -> &Path {
        self.top.strip_prefix(directory).unwrap_or(Path::new(""))
    }
}

impl NamedRepository {
    /// Reads which repository the `.git` in `directory` names, and whether that names `directory` in turn.
    ///
    /// # Errors
    /// What the `.git` does not name.
    fn of(directory: &Path, reach: &Reach) -> Result<Self, String> {
        let pointer = directory.join(GIT);
        let link = std::fs::read_link(&pointer).ok();
        let is_link = link.is_some();
        let named = link.or_else(|| {
            let directory = HeldPath::of_operator(directory)?;
            first_line(&directory.read(GIT, MAX_POINTER_BYTES)?, b"gitdir:")
        });
        let named = named.ok_or("is neither a repository nor names one")?;
        let follow = |from: &Path, path: &Path| {
            let why = |error: NotFollowed| {
                let why = match error {
                    NotFollowed::Missing => "which is not there",
                    NotFollowed::Apart => APART,
                };
                let path = joined(from, path).unwrap_or_else(|| from.join(path));
                format!("names `{}`, {why}", shown(&path))
            };
            reach.follow(from, path).map_err(why)
        };
        let git = follow(directory, &named)?;
        let no_repository =
            |git: &HeldPath| Err(format!("names `{}`, which is no repository", shown(&git.path)));
        let above = git.path.parent().filter(|parent| parent.ends_with(WORKTREES));
        let Some(common) = above.and_then(Path::parent).filter(|_| git.has_file(COMMONDIR)) else {
            if !is_repository(&git) {
                return no_repository(&git);
            }
            let is_mutual = !is_link && work_tree(&git).as_deref() == Some(directory);
            let common = follow(&git.path, Path::new(""))?;
            return Ok(Self { git, common, is_mutual });
        };
        let common = follow(common, Path::new(""))?;
        let path_in = |name: &str| {
            let path = first_line(&git.read(name, MAX_POINTER_BYTES)?, b"")?;
            joined(&git.path, &path)
        };
        if path_in(COMMONDIR).as_ref() != Some(&common.path) || !is_repository(&common) {
            return no_repository(&git);
        }
        let is_mutual = path_in(GITDIR).is_some_and(|back| back == pointer);
        Ok(Self { git, common, is_mutual })
    }
}

/// Returns the work tree that a repository's configuration names.
fn work_tree(git: &HeldPath) -> Option<PathBuf> {
    let mut named = None;
    for file in ["config", "config.worktree"] {
        let text = git.read(file, MAX_FILE_BYTES).unwrap_or_default();
        grammar::settings(&text, |setting| {
            if (setting.section, setting.subsection, setting.key) == (b"core", None, b"worktree") {
                let value = setting.value.map(std::ffi::OsStr::from_bytes);
                named = value.and_then(|value| joined(&git.path, Path::new(value)));
            }
        });
    }
    named
}

/// Returns true if a directory has the form of a repository's (git's is_git_directory), without links.
fn is_repository(directory: &HeldPath) -> bool {
    directory.has_file(HEAD) && directory.has_directory(OBJECTS) && directory.has_directory("refs")
}

/// Returns the list of directories with more objects of a repository.
fn alternates_of(git: &HeldPath) -> Vec<u8> {
    git.read(ALTERNATES, MAX_FILE_BYTES).unwrap_or_default()
}

/// Returns true if the index of a repository's directory has files in a directory of the work tree.
fn has_files_of(git: &HeldPath, directory: &Path) -> bool {
    let Some(text) = git.read("index", MAX_INDEX_BYTES) else { return false };
    let mut prefix = directory.as_os_str().as_bytes().to_vec();
    prefix.push(b'/');
    index_has(&text, &prefix).unwrap_or(false)
}

/// Returns true unless a directory is the root, the home or one that contains the home.
fn is_project(directory: &Path) -> bool {
    let home = accounts::home().and_then(|home| home.canonicalize().ok());
    directory.parent().is_some() && !home.is_some_and(|home| home.starts_with(directory))
}

/// Returns true if cells can have the workspace at its path on the host: no other grant is there or around it.
fn can_have_host_path(top: &Path, mounts: &[MountRequest]) -> bool {
    let workspace = Path::new(WORKSPACE);
    is_shown(top)
        && mounts.iter().filter(|mount| !mount.cell.starts_with(workspace)).all(|mount| {
            !top.starts_with(&mount.cell)
                || mount.host.canonicalize().is_ok_and(|host| host == mount.cell)
        })
}

fn owner(path: &Path) -> Option<u32> {
    path.symlink_metadata().ok().map(|metadata| metadata.uid())
}

/// Returns the flag that grants a path, to be put at the end of a remark. Text that is copied to a shell has no letter that
/// means something there or between two paths.
fn flag(name: &str, path: &Path) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._/+@-".contains(byte);
    match path.as_os_str().as_bytes().iter().all(is_plain) {
        true => format!(": `{name} {0}:{0}`", path.display()),
        false => String::new(),
    }
}

fn shown(path: &Path) -> String {
    plain(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Failed = Box<dyn std::error::Error>;

    /// Makes a directory that has the form of a repository's.
    fn repository(git: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(git.join("refs"))?;
        std::fs::create_dir_all(git.join(OBJECTS))?;
        std::fs::write(git.join(HEAD), "ref: refs/heads/main\n")
    }

    #[test]
    fn a_repository_that_was_replaced_since_it_was_checked_is_not_granted() -> Result<(), Failed> {
        let home = tempfile::tempdir_in("/var/tmp")?;
        let root = home.path().canonicalize()?;
        let git = root.join("main/.git");
        let part = git.join("worktrees/w");
        repository(&git)?;
        std::fs::create_dir_all(&part)?;
        std::fs::create_dir(root.join("w"))?;
        std::fs::write(part.join(COMMONDIR), "../..\n")?;
        std::fs::write(part.join(GITDIR), format!("{}\n", root.join("w/.git").display()))?;
        std::fs::write(root.join("w/.git"), format!("gitdir: {}\n", part.display()))?;
        let workspace = MountRequest {
            host: root.join("w"),
            cell: PathBuf::from(WORKSPACE),
            access: Access::ReadWrite,
        };
        let found = RepositoryElsewhere::find(&mut [workspace]);
        assert_eq!(found.git.as_ref(), Some(&part), "{found:?}");
        let granted = || Granted::now(git.clone(), git.clone(), Access::Repository);
        assert!(found.place(&mut vec![granted()?]).is_ok());
        // Another directory of the same user, with the same content.
        std::fs::rename(&git, root.join("away"))?;
        repository(&git)?;
        let error = found.place(&mut vec![granted()?]).err().map(|error| error.message);
        let replaced = format!("`{}` was replaced while it was looked up", git.display());
        assert_eq!(error, Some(replaced));
        Ok(())
    }
}
