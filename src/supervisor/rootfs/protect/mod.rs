//! Protects files of a granted directory that the host may run later: they become read-only in the
//! cell.
//!
//! An agent that writes `.git/hooks/post-commit` only has to wait for its user's next commit. So
//! each such file that exists when the grant is made gets a read-only mount over itself, and each
//! directory on the path to it a mount that prevents it from being renamed.
//!
//! A file that does not exist yet cannot be mounted over: `cell::mediate::guard` prevents its
//! creation.
//!
//! `main` searches once for all cells ([`scan`]); the supervisor mounts. `scan` walks through a
//! directory within a `budget`, `repository` knows the files that git obeys in its own directories,
//! `configured` those that a configuration names and `settings` the keys that do so, `grammar` knows
//! how it is written, and `reader` is the process that parses it. `lookups` finds where such names
//! lead, and `rights` knows whose rights a lookup has. `guarded` has the result and its mounts.

mod budget;
mod configured;
pub mod grammar;
mod guarded;
mod lookups;
mod reader;
mod repository;
mod rights;
mod scan;
mod settings;
mod tree;

use nix::errno::Errno;

use self::budget::Extent;
pub use self::guarded::GuardedPaths;
use self::scan::Scan;
use self::tree::Trees;
use crate::rootfs::error::GrantError;
use crate::rootfs::granted::Granted;
use model::job::Access;

/// Finds the files that the host obeys in those of the `granted` directories that are writable.
/// Returns the result for each of `granted`.
///
/// # Errors
/// A directory cannot be opened, or one in it that belongs to the user, so that nothing in it would be guarded.
pub fn scan(granted: &[Granted]) -> Result<Vec<GuardedPaths>, GrantError> {
    scan_extent(granted, Extent::InTime)
}

/// Finds the same without limits of time and number, for a decision about what is written to the
/// directories. [`GuardedPaths::unseen`] says whether something could not be read.
///
/// # Errors
/// As with [`scan`].
pub fn scan_whole(granted: &[Granted]) -> Result<Vec<GuardedPaths>, GrantError> {
    scan_extent(granted, Extent::Whole)
}

fn scan_extent(granted: &[Granted], extent: Extent) -> Result<Vec<GuardedPaths>, GrantError> {
    let writable = |access| match access {
        Access::ReadOnly | Access::Cache | Access::Layer => false,
        Access::ReadWrite | Access::Unguarded | Access::Repository => true,
    };
    let mut trees = Trees::default();
    let mut indices = Vec::new();
    for (index, directory) in granted.iter().enumerate() {
        if !writable(directory.access) {
            continue;
        }
        match trees.hold(directory) {
            Ok(()) => indices.push(index),
            // A file has no entries.
            Err(Errno::ENOTDIR) => {}
            Err(errno) => return Err(GrantError::held(&directory.host, errno)),
        }
    }
    let mut all = vec![GuardedPaths::default(); granted.len()];
    if indices.is_empty() {
        return Ok(all);
    }
    let for_all = configured::files_for_all(|name| std::env::var_os(name));
    let mut scan = Scan::new(trees, for_all, extent);
    scan.tops();
    scan.walk();
    scan.configurations();
    scan.contents();
    // An apply makes new files, so that it does not write through other names of a guarded one.
    if extent == Extent::InTime {
        scan.other_names();
    }
    match extent {
        Extent::InTime => {
            if let Some(path) = scan.closed() {
                return Err(GrantError::Closed { path });
            }
        }
        // No cell can have closed a directory of the host through a layer.
        Extent::Whole => {
            if let Some(path) = scan.refused.take() {
                let closed = scan.nearest(&path);
                scan.note_unseen(&closed, "has a configuration of git in a closed directory");
            }
        }
    }
    for (index, mut guarded) in indices.into_iter().zip(scan.guarded) {
        if let Some(entry) = all.get_mut(index) {
            guarded.shared.clone_from(&scan.shared);
            *entry = guarded;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod rights_tests;
#[cfg(test)]
mod tests;
