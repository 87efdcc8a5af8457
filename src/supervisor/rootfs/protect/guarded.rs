//! The paths to guard below a granted directory, and the mounts that guard them.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::stat;

use cell::c_path;
use cell::file_ids::FileIds;
use cell::mediate::names::RESOLUTIONS;
use sys::mount::{Reach, attach, attribute, clone_held, clone_tree, set_attributes};

/// Maximum number of mounts in one granted directory, as each costs every cell time. Paths beyond
/// it are guarded by name.
const MAX_MOUNTS: usize = 512;
/// Maximum number of notes on one granted directory.
const MAX_NOTES: usize = 8;

/// Paths to guard below a granted directory, in the order in which they were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuardedPaths {
    /// Become read-only.
    pub(super) obeyed: Vec<PathBuf>,
    /// Stay writable, but cannot be renamed.
    pub(super) pinned: Vec<PathBuf>,
    /// Must not be made or written to by name: a link or a configuration refers to them.
    pub named: BTreeSet<PathBuf>,
    /// Files that become read-only under one name and must not be written to under another: device and inode number.
    pub shared: BTreeSet<(u64, u64)>,
    /// Directories of submodules' repositories and of linked worktrees.
    pub repositories: BTreeSet<PathBuf>,
    /// Paths that are guarded only by name or not at all, with the reason.
    pub(super) notes: BTreeSet<(PathBuf, &'static str)>,
    /// Directories of which everything is obeyed, and which cells may write to.
    pub(super) whole: BTreeSet<PathBuf>,
    /// The links of the directory, if all of it was looked at.
    pub(super) links: Vec<PathBuf>,
    /// Why the paths may not be all that the host obeys.
    pub(super) unseen: Option<&'static str>,
}

impl GuardedPaths {
    /// Returns the directories that must not be renamed: the pinned ones, and all between the
    /// granted directory and a guarded path. The kernel refuses to rename a mount point, but not a
    /// directory with one below.
    pub(super) fn pins(&self, obeyed: &[PathBuf]) -> BTreeSet<PathBuf> {
        let paths = obeyed.iter().chain(&self.pinned).chain(&self.named);
        let above = paths.flat_map(|path| path.ancestors().skip(1));
        let all = above.map(Path::to_owned).chain(self.pinned.iter().cloned());
        all.filter(|path| !path.as_os_str().is_empty()).collect()
    }

    /// Returns every path that is guarded as it is or by name, or of which everything is obeyed.
    pub fn all(&self) -> impl Iterator<Item = &Path> {
        self.obeyed.iter().chain(&self.named).chain(&self.whole).map(PathBuf::as_path)
    }

    /// Returns the links of the directory that [`super::scan_whole`] found.
    pub fn links(&self) -> impl Iterator<Item = &Path> {
        self.links.iter().map(PathBuf::as_path)
    }

    /// Returns an empty list that may not be whole, for this reason.
    #[must_use]
    pub fn unseen_because(reason: &'static str) -> Self {
        Self { unseen: Some(reason), ..Self::default() }
    }

    /// Returns why the paths may not be all that the host obeys; `None` if they are.
    pub fn unseen(&self) -> Option<&'static str> {
        self.unseen
    }

    /// Returns these paths, and pins the directories on the way to `targets` too.
    pub(crate) fn with_pins<'p>(&self, targets: impl Iterator<Item = &'p Path>) -> Self {
        let mut all = self.clone();
        for target in targets {
            let above = target.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty());
            all.pinned.extend(above.map(Path::to_owned));
        }
        all
    }

    /// Returns notes for the reader of a reply, with paths inside the cell.
    pub fn notes(&self, cell: &Path) -> Vec<String> {
        let over = self.obeyed.len() > MAX_MOUNTS;
        let over =
            over.then(|| format!("`{}`: only {MAX_MOUNTS} places are covered", cell.display()));
        let notes = self.notes.iter().map(|(path, reason)| {
            let path = if path.as_os_str().is_empty() { cell.to_owned() } else { cell.join(path) };
            format!("{} {reason}", quoted(&path))
        });
        notes.take(MAX_NOTES).chain(over).collect()
    }

    /// Makes each path a mount point below `root`, the location of the granted directory in a
    /// template. A directory of resolutions becomes the `empty` one: git on the host may have recorded
    /// other files of the host in it.
    ///
    /// # Errors
    /// The path that could not be guarded; the directory must not be granted then.
    pub fn cover(&self, root: &Path, empty: &OwnedFd) -> Result<(), (PathBuf, Errno)> {
        let obeyed = self.obeyed.get(..MAX_MOUNTS).unwrap_or(&self.obeyed);
        let pins = self.pins(obeyed).into_iter().filter(|pin| !obeyed.contains(pin));
        let pins = pins.take(MAX_MOUNTS).map(|path| (path, 0));
        let obeyed = obeyed.iter().map(|path| (path.clone(), attribute::RDONLY));
        let mut closed = BTreeSet::new();
        for (path, more) in pins.chain(obeyed) {
            let is_hidden = more != 0 && path.ends_with(RESOLUTIONS);
            match cover_one(
                root,
                &path,
                if is_hidden { Over::Empty(empty) } else { Over::Itself(more) },
            ) {
                Ok(()) => {}
                // Removed or replaced since the scan: its name is guarded.
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
                // The path is too long for a mount: its name is guarded.
                Err(Errno::ENAMETOOLONG) => {}
                Err(Errno::EACCES) => cover_closed(root, &path, &mut closed)?,
                Err(errno) => return Err((root.join(path), errno)),
            }
        }
        Ok(())
    }
}

/// What is mounted over a path.
#[derive(Debug, Clone, Copy)]
enum Over<'e> {
    /// The path itself, with these attributes.
    Itself(u64),
    /// An empty directory.
    Empty(&'e OwnedFd),
}

/// Makes `path` in the granted directory at `root` a mount point, with the ids of cells where this
/// process may not search a directory on the way: they own the granted directory.
///
/// # Errors
/// EACCES: cells may not search it either.
fn cover_one(root: &Path, path: &Path, over: Over<'_>) -> Result<(), Errno> {
    let place = root.join(path);
    match mount_over(&place, over) {
        Err(Errno::EACCES) => {}
        done => return done,
    }
    let top = stat(root)?;
    let ids = FileIds { uid: top.st_uid, gid: top.st_gid, supplementary: Vec::new() };
    match ids.during(|| mount_over(&place, over)) {
        // Another user's supervisor has the ids of its cells already.
        Err(Errno::EPERM) => Err(Errno::EACCES),
        done => done,
    }
}

/// Makes the nearest directory above `path` that can be reached read-only, with all in it: it is closed
/// to cells, which may open it again if they own it.
fn cover_closed(
    root: &Path,
    path: &Path,
    closed: &mut BTreeSet<PathBuf>,
) -> Result<(), (PathBuf, Errno)> {
    let above = path.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty());
    for directory in above {
        if closed.contains(directory) {
            return Ok(());
        }
        match cover_one(root, directory, Over::Itself(attribute::RDONLY)) {
            Ok(()) => {
                closed.insert(directory.to_owned());
                return Ok(());
            }
            Err(Errno::EACCES) => {}
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
            Err(errno) => return Err((root.join(directory), errno)),
        }
    }
    Err((root.join(path), Errno::EACCES))
}

fn mount_over(path: &Path, over: Over<'_>) -> Result<(), Errno> {
    let target = c_path(path)?;
    let (tree, more) = match over {
        Over::Itself(more) => (clone_tree(&target)?, more),
        Over::Empty(empty) => (clone_held(empty)?, attribute::RDONLY),
    };
    set_attributes(&tree, attribute::NOSUID | attribute::NODEV | more, Reach::Recursive)?;
    attach(tree, &target)
}

/// Quotes a path for a note. A cell may have chosen the names in it: no character of theirs can end
/// the quotes.
pub(super) fn quoted(path: &Path) -> String {
    let text = path.display().to_string().escape_default().to_string();
    format!("`{}`", text.replace('`', "\\u{60}"))
}
