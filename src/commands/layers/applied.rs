//! What of the host a layer knows although it changed after the layer was made: files that were
//! applied, and directories in which nothing but the steps of an apply has changed a name.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::sys::stat::{Mode, fstat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::files::{
    DIRECTORY, Seen, Stamp, c_name, decoded, encoded, look, open_directory, read_file, remove_file,
    split,
};
use super::records::{self, MAX_BYTES_READ};
use super::staging_directory::StagingRecord;
use super::step::{Act, Step};

/// Name in the directory of a layer.
const APPLIED: &str = "applied.json";
/// In place of the inode number of a directory that a step makes, which no file has.
const MADE: u64 = 0;

/// Files that were applied: the layer knows their state although they changed after it was made.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct AppliedFiles(BTreeMap<String, Seen>);

impl AppliedFiles {
    /// Reads the list of a layer; an empty one if the file is missing.
    pub(crate) fn read(layer: &OwnedFd) -> Result<Self, Errno> {
        match read_file(layer, APPLIED, MAX_BYTES_READ) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| Errno::EINVAL),
            Err(Errno::ENOENT) => Ok(Self::default()),
            Err(errno) => Err(errno),
        }
    }

    /// Removes the list of a layer.
    pub(super) fn forget(layer: &OwnedFd) -> Result<(), Errno> {
        remove_file(layer, APPLIED)
    }

    fn write(&self, layer: &OwnedFd) -> Result<(), Errno> {
        match records::write(layer, APPLIED, self) {
            // Without the list, what was applied is a conflict if the layer changes it again.
            Err(Errno::EFBIG) => remove_file(layer, APPLIED),
            written => written,
        }
    }

    /// Returns the paths of the links that were applied.
    pub(crate) fn links(&self) -> impl Iterator<Item = Vec<u8>> {
        let links = self.0.iter().filter(|(_, seen)| seen.is(libc::S_IFLNK));
        links.map(|(path, _)| decoded(path))
    }

    /// Returns true if a file or directory at this path was applied, and not removed by a later apply.
    pub(crate) fn knew(&self, path: &[u8]) -> bool {
        !self.0.is_empty() && self.0.contains_key(&encoded(path))
    }

    /// Returns true if the file is at this path as it was applied.
    pub(crate) fn has(&self, path: &[u8], seen: &Seen) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let known = self.0.get(&encoded(path));
        known.is_some_and(|known| known.is_unchanged(seen) && known.changed == seen.changed)
    }
}

/// Adds the files that were applied to the list. A file that the host has changed or replaced since its
/// step is the host's: a later apply must not take it for the layer's.
pub(super) fn note(layer: &OwnedFd, host: &OwnedFd, done: &[&Step]) -> Result<(), Errno> {
    if done.is_empty() {
        return Ok(());
    }
    let mut applied = AppliedFiles::read(layer)?;
    for step in done {
        let path = step.path();
        if matches!(step.act, Act::RemoveFile | Act::RemoveDirectory) {
            applied.0.remove(&step.path);
            continue;
        }
        let (directory, name) = split(&path);
        let Ok(parent) = open_directory(host, directory) else { continue };
        let there = look(&parent, &c_name(name)?)?;
        let is_ours = |there: &Seen, staged: Seen| {
            there.is_unchanged(&staged) && there.mode == staged.mode && there.owner == staged.owner
        };
        let ours = there.zip(step.staged).filter(|(there, staged)| is_ours(there, *staged));
        if let Some((there, _)) = ours {
            applied.0.insert(step.path.clone(), there);
        }
    }
    applied.write(layer)
}

/// Names in a directory with the inode numbers of their files.
type Names = BTreeMap<Vec<u8>, u64>;

/// Returns the directories of steps in which the host had not changed a name since the layer was made,
/// each with the digest of the names that it has after all steps.
pub(super) fn quiet_after(
    layer: &OwnedFd,
    staging: &OwnedFd,
    host: &OwnedFd,
    since: Stamp,
    steps: &[Step],
) -> Result<BTreeMap<String, String>, Errno> {
    let applied = AppliedFiles::read(layer)?;
    let staging = fstat(staging)?.st_ino;
    let staged = StagingRecord::read(layer).unwrap_or_default();
    let mut quiet: BTreeMap<String, Option<Names>> = BTreeMap::new();
    for step in steps {
        let path = step.path();
        let (directory, name) = split(&path);
        let known = match quiet.entry(encoded(directory)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let is_quiet = |mut seen: Seen| {
                    if directory.is_empty() {
                        let before = staged.as_ref().and_then(|staged| staged.top_before(&seen));
                        seen = before.unwrap_or(seen);
                    }
                    !seen.changed.may_be_since(since) || applied.has(directory, &seen)
                };
                new.insert(quiet_names(host, directory, staging, is_quiet)?)
            }
        };
        if let Some(names) = known {
            take_in(step, name, names);
        }
        if step.act == Act::MakeDirectory && is_absent(host, &path) {
            quiet.insert(step.path.clone(), Some(Names::new()));
        }
    }
    let quiet = quiet.into_iter();
    Ok(quiet.filter_map(|(path, names)| Some((path, digest(&names?)))).collect())
}

/// Changes the names of a directory as the step would.
fn take_in(step: &Step, name: &[u8], names: &mut Names) {
    let inode = step.staged.map(|staged| staged.inode);
    match (step.act, inode) {
        (Act::Put, Some(inode)) => drop(names.insert(name.to_vec(), inode)),
        (Act::MakeDirectory, Some(_)) => {
            names.entry(name.to_vec()).or_insert(MADE);
        }
        (Act::RemoveFile | Act::RemoveDirectory, _) => drop(names.remove(name)),
        (Act::Put | Act::MakeDirectory, None) => {}
    }
}

/// Returns the names in a directory of the host, if the host had not changed one since the layer was
/// made.
fn quiet_names(
    host: &OwnedFd,
    directory: &[u8],
    staging: u64,
    is_quiet: impl Fn(Seen) -> bool,
) -> Result<Option<Names>, Errno> {
    let Ok(held) = open_directory(host, directory) else { return Ok(None) };
    if !is_quiet(Seen::from(&fstat(&held)?)) {
        return Ok(None);
    }
    Ok(Some(names_in(&held, Some(staging))?))
}

fn is_absent(host: &OwnedFd, path: &[u8]) -> bool {
    matches!(open_directory(host, path), Err(Errno::ENOENT))
}

/// Lists the names in a directory, without that of the staging directory.
fn names_in(directory: &OwnedFd, staging: Option<u64>) -> Result<Names, Errno> {
    let mut names = Names::new();
    for entry in Dir::openat(directory, ".", DIRECTORY, Mode::empty())?.into_iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && staging != Some(entry.ino()) {
            names.insert(name.to_vec(), entry.ino());
        }
    }
    Ok(names)
}

/// Returns the text of the path of a name in a directory, of which `directory` is the text.
fn joined(directory: &str, name: &[u8]) -> String {
    match directory.is_empty() {
        true => encoded(name),
        false => format!("{directory}/{}", encoded(name)),
    }
}

fn digest(names: &Names) -> String {
    let mut digest = Sha256::new();
    for (name, inode) in names {
        digest.update(name);
        digest.update([0]);
        digest.update(inode.to_le_bytes());
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Directories that steps have changed, and what the names in them are compared with.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// The directories in which the host had not changed a name, each with the digest of the names that
    /// it has after all steps.
    pub directories: BTreeMap<String, String>,
    /// Directories that steps have made, with their inode numbers.
    pub made: BTreeMap<String, u64>,
    /// Steps that an interrupted apply has left.
    pub untaken: Vec<Step>,
}

/// Adds directories of the host to the list in which nothing but the steps has changed a name.
pub(super) fn note_quiet(layer: &OwnedFd, host: &OwnedFd, quiet: Quiet) -> Result<(), Errno> {
    if quiet.directories.is_empty() {
        return Ok(());
    }
    let mut untaken: BTreeMap<String, Vec<&Step>> = BTreeMap::new();
    for step in &quiet.untaken {
        untaken.entry(encoded(split(&step.path()).0)).or_default().push(step);
    }
    let mut applied = AppliedFiles::read(layer)?;
    for (path, expected) in quiet.directories {
        let Ok(directory) = open_directory(host, &decoded(&path)) else { continue };
        // Before the listing, so that a change after it shows as another time.
        let seen = Seen::from(&fstat(&directory)?);
        let mut names = names_in(&directory, None)?;
        for (name, inode) in &mut names {
            if quiet.made.get(&joined(&path, name)) == Some(inode) {
                *inode = MADE;
            }
        }
        // As if they were taken: the host has at their places what was judged.
        for step in untaken.get(&path).into_iter().flatten() {
            take_in(step, split(&step.path()).1, &mut names);
        }
        if digest(&names) == expected {
            applied.0.insert(path, seen);
        }
    }
    applied.write(layer)
}
