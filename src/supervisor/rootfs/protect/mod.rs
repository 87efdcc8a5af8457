//! Makes files of a granted directory read-only in the cell that the host may later run.
//!
//! An agent that writes `.git/hooks/post-commit` waits for its user's next commit. So each such
//! place that is there when the grant is made gets a read-only mount over itself, and each directory
//! on the way to it a mount of its own, which keeps it from being renamed out of the way.
//!
//! What is not there yet cannot be mounted over: `cell::mediate::guard` keeps it from being made.
//!
//! `main` looks, once for all cells ([`scan`]); the supervisor mounts. `walk` goes through a directory,
//! `repository` knows what git obeys in its own, `configured` what a configuration names, `grammar` how
//! it is written, and `reader` is the process that reads it.

mod configured;
pub mod grammar;
mod reader;
mod repository;
mod scan;
mod tree;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use self::scan::Scan;
use self::tree::Trees;
use crate::rootfs::error::GrantError;
use crate::rootfs::granted::Granted;
use cell::c_path;
use model::job::Access;
use sys::mount::{Reach, attach, attribute, clone_tree, set_attributes};

/// Mounts in one granted directory, at most: each costs every cell time. Places beyond it are guarded by
/// its name.
const MOUNTS: usize = 512;
/// Notes on one granted directory, at most.
const NOTES: usize = 8;

/// Places to guard below a granted directory, in the order in which they were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuardedPaths {
    /// Become read-only.
    obeyed: Vec<PathBuf>,
    /// Stay writable, and stay where they are.
    pinned: Vec<PathBuf>,
    /// Must not be made or written to, by their names: links lead there, or a configuration does.
    pub named: BTreeSet<PathBuf>,
    /// Places that are guarded by their names alone or not at all, and why.
    notes: BTreeSet<(PathBuf, &'static str)>,
}

/// Looks at what the host obeys in those of the `granted` directories that can be written to.
/// Returns what was found for each of them.
///
/// # Errors
/// A directory that cannot be held: nothing in it would be guarded.
pub fn scan(granted: &[Granted]) -> Result<Vec<GuardedPaths>, GrantError> {
    let writable = |access| match access {
        Access::ReadOnly | Access::Cache => false,
        Access::ReadWrite | Access::Unguarded => true,
    };
    let mut trees = Trees::default();
    let mut indices = Vec::new();
    for (index, directory) in granted.iter().enumerate() {
        if !writable(directory.access) {
            continue;
        }
        match trees.hold(directory) {
            Ok(()) => indices.push(index),
            // A file has nothing in it.
            Err(Errno::ENOTDIR) => {}
            Err(errno) => return Err(GrantError::held(&directory.host, errno)),
        }
    }
    let mut all = vec![GuardedPaths::default(); granted.len()];
    if indices.is_empty() {
        return Ok(all);
    }
    let mut scan = Scan::new(trees);
    scan.tops();
    scan.walk();
    scan.configurations();
    scan.other_names();
    for (index, found) in indices.into_iter().zip(scan.found) {
        if let Some(place) = all.get_mut(index) {
            *place = found;
        }
    }
    Ok(all)
}

impl GuardedPaths {
    /// Returns the directories that must stay where they are: those named, and all between the granted directory and
    /// a guarded place. The kernel refuses to rename a mount, not a directory with one beneath.
    fn pins(&self, obeyed: &[PathBuf]) -> BTreeSet<PathBuf> {
        let places = obeyed.iter().chain(&self.pinned).chain(&self.named);
        let above = places.flat_map(|place| place.ancestors().skip(1));
        let all = above.map(Path::to_owned).chain(self.pinned.iter().cloned());
        all.filter(|path| !path.as_os_str().is_empty()).collect()
    }

    /// Returns these paths with the directories on the way to other places pinned as well.
    pub(crate) fn with_places<'p>(&self, places: impl Iterator<Item = &'p Path>) -> Self {
        let mut all = self.clone();
        for place in places {
            let above = place.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty());
            all.pinned.extend(above.map(Path::to_owned));
        }
        all
    }

    /// Places and reasons, for whoever reads a reply, as the cell has the paths.
    pub fn notes(&self, cell: &Path) -> Vec<String> {
        let over = self.obeyed.len() > MOUNTS;
        let over = over.then(|| format!("`{}`: only {MOUNTS} places are covered", cell.display()));
        let notes = self.notes.iter().map(|(path, why)| {
            let path = if path.as_os_str().is_empty() { cell.to_owned() } else { cell.join(path) };
            format!("{} {why}", quoted(&path))
        });
        notes.take(NOTES).chain(over).collect()
    }

    /// Mounts what was found over itself below `root`, where the granted directory is in a template.
    ///
    /// # Errors
    /// The place that could not be guarded: then the directory is not granted.
    pub fn cover(&self, root: &Path) -> Result<(), (PathBuf, Errno)> {
        let obeyed = self.obeyed.get(..MOUNTS).unwrap_or(&self.obeyed);
        let pins = self.pins(obeyed).into_iter().filter(|pin| !obeyed.contains(pin));
        let pins = pins.take(MOUNTS).map(|path| (path, 0));
        let obeyed = obeyed.iter().map(|path| (path.clone(), attribute::RDONLY));
        for (path, more) in pins.chain(obeyed) {
            let path = root.join(path);
            match mount_over_itself(&path, more) {
                // Gone or replaced since the look: its name is guarded.
                Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
                // Its path is too long for a mount, or neither we nor the cell may go there.
                Err(Errno::ENAMETOOLONG | Errno::EACCES) => {}
                Err(errno) => return Err((path, errno)),
            }
        }
        Ok(())
    }
}

fn mount_over_itself(path: &Path, more: u64) -> Result<(), Errno> {
    let target = c_path(path)?;
    let tree = clone_tree(&target)?;
    set_attributes(&tree, attribute::NOSUID | attribute::NODEV | more, Reach::Recursive)?;
    attach(tree, &target)
}

/// Quotes a path for a note. A cell can have chosen its names: no character of theirs ends the quotes.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string().escape_default().to_string();
    format!("`{}`", text.replace('`', "\\u{60}"))
}

#[cfg(test)]
mod tests;
