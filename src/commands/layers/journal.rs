//! The journal of an apply: its steps, as they are recorded before the first one is taken.
//!
//! Every file is written first in a staging directory within the directory of the host, which only
//! its owner can enter. Once the journal is on the disk, each step is one rename or removal. The
//! identities in it say after a crash whether a step was taken, so that the next start or review
//! finishes the rest. After the last step the journal is removed, then the staging directory: without
//! a journal nothing is left to do but to remove that.
//!
//! The owner of the directory may rename and replace the staging directory at any time. So it is used
//! by a held descriptor, after a check of its identity, and with the owner's rights alone
//! ([`super::owner`]).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::CStr;
use std::os::fd::OwnedFd;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fchmod, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, syncfs, unlinkat};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::files::{
    DIRECTORY, Identity, OPAQUE, Seen, Stamp, c_name, decoded, encoded, is_empty, is_whiteout,
    look, open_directory, read_file, remove_file, split, write_file,
};
use super::owner::Owner;
use super::rights::{self, Rights};
use crate::commands::format::plain;
use cell::mediate::names::STAGING_PREFIX;
use cell::removal::{open_with_access, remove_all};
use sys::{identity, xattr};

/// Names in the directory of a layer: the journal, the record of a staging directory, and the files
/// that were applied.
const JOURNAL: &str = "journal.json";
const STAGED: &str = "staged.json";
const APPLIED: &str = "applied.json";
/// Version of the journal and of the record.
const VERSION: u8 = 1;
/// Longest journal, and list of applied files.
const MAX_BYTES: usize = 256 << 20;
const MAX_BYTES_READ: u64 = 256 << 20;
/// Longest record of a staging directory.
const MAX_RECORD_BYTES: u64 = 4096;
/// Start of the name of a staging directory.
const STAGING: &str = STAGING_PREFIX;
/// In place of the inode number of a directory that a step makes, which no file has.
const MADE: u64 = 0;
/// End of the name under which a file of the host is kept, and maximum number of such names of a file.
const KEPT: &str = ".cofferdam-kept";
const MAX_KEPT: u8 = 100;

/// What a step does to a name of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Act {
    /// Moves a file to the staging directory, which is removed at the end.
    RemoveFile,
    RemoveDirectory,
    MakeDirectory,
    /// Moves a staged file or link to the name.
    Put,
}

/// One step. Its number is the name of its file in the staging directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    path: String,
    pub act: Act,
    /// The file of the host, as it was judged.
    before: Option<Seen>,
    /// The staged file.
    staged: Option<Seen>,
    /// True if the layer's file can be removed afterwards.
    is_movable: bool,
}

impl Step {
    pub(crate) fn new(
        path: &[u8],
        act: Act,
        before: Option<Seen>,
        staged: Option<Seen>,
        is_movable: bool,
    ) -> Self {
        Self { path: encoded(path), act, before, staged, is_movable }
    }

    pub(crate) fn path(&self) -> Vec<u8> {
        decoded(&self.path)
    }

    /// Replaces a device number by the one that its filesystem has now.
    fn renumber(&mut self, device: u64, now: u64) {
        for seen in self.before.iter_mut().chain(&mut self.staged) {
            if seen.device == device {
                seen.device = now;
            }
        }
    }

    /// Changes the names of a directory as the step would.
    fn take_in(&self, name: &[u8], names: &mut Names) {
        let inode = self.staged.map(|staged| staged.inode);
        match (self.act, inode) {
            (Act::Put, Some(inode)) => drop(names.insert(name.to_vec(), inode)),
            (Act::MakeDirectory, Some(_)) => {
                names.entry(name.to_vec()).or_insert(MADE);
            }
            (Act::RemoveFile | Act::RemoveDirectory, _) => drop(names.remove(name)),
            (Act::Put | Act::MakeDirectory, None) => {}
        }
    }

    fn is_removal(&self) -> bool {
        matches!(self.act, Act::RemoveFile | Act::RemoveDirectory)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Journal {
    version: u8,
    /// Device number of the directory, which another start of the machine may change.
    device: u64,
    steps: Vec<Step>,
    /// Directories of steps in which the host had not changed a name since the layer was made, each
    /// with the digest of the names that it has after all steps.
    quiet: BTreeMap<String, String>,
}

/// The staging directory of an apply. Recorded by its name before it is made, so that a directory that
/// is left is known, and with its identity before anything is put in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StagingRecord {
    version: u8,
    name: String,
    identity: Option<Identity>,
    /// The directory of the host before this one was made in it, and right after.
    top: Option<(Seen, Seen)>,
}

impl StagingRecord {
    /// Returns the directory of the host as it was before the staging directory, if nothing else has
    /// changed in it since.
    fn top_before(&self, now: &Seen) -> Option<Seen> {
        let (before, after) = self.top?;
        (after == *now).then_some(before)
    }
}

/// Why a step was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// The host's file changed meanwhile.
    Changed,
    /// A directory has other files.
    NotEmpty,
    Errno(Errno),
}

impl From<Errno> for Left {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Steps of an apply that has ended, with those that were left.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub done: usize,
    pub left: Vec<(Vec<u8>, Left)>,
}

/// Why an interrupted apply cannot be finished. The layer and its journal are kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stopped {
    #[error("{0}")]
    Errno(#[from] Errno),
    #[error("its journal was written by another version of cofferdam: use that version")]
    OtherVersion,
    #[error("its journal cannot be read")]
    Damaged,
    #[error(
        "its files were in `{0}` of the directory, which is missing or was replaced: put it back, or \
         discard the layer"
    )]
    StagingLost(String),
}

/// A version of a file, before the rest of it is read.
#[derive(Deserialize)]
struct Versioned {
    version: u8,
}

/// Reads a file that has a version; `None` if it is missing.
fn read<T: for<'a> Deserialize<'a>>(
    layer: &OwnedFd,
    name: &str,
    max_bytes: u64,
) -> Result<Option<T>, Stopped> {
    let bytes = match read_file(layer, name, max_bytes) {
        Err(Errno::ENOENT) => return Ok(None),
        Err(Errno::EFBIG) => return Err(Stopped::Damaged),
        bytes => bytes?,
    };
    let Versioned { version } = serde_json::from_slice(&bytes).map_err(|_| Stopped::Damaged)?;
    if version != VERSION {
        return Err(Stopped::OtherVersion);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|_| Stopped::Damaged)
}

fn write(layer: &OwnedFd, name: &str, value: &impl Serialize) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(value).map_err(|_| Errno::EINVAL)?;
    // What is written can be read again.
    if bytes.len() > MAX_BYTES { Err(Errno::EFBIG) } else { write_file(layer, name, &bytes) }
}

/// Returns true if an apply was interrupted.
pub(crate) fn is_unfinished(layer: &OwnedFd) -> Result<bool, Errno> {
    Ok(look(layer, &c_name(STAGED.as_bytes())?)?.is_some()
        || look(layer, &c_name(JOURNAL.as_bytes())?)?.is_some())
}

/// Returns the name of the staging directory that an apply has left, if its record can be read.
pub(crate) fn staging_left(layer: &OwnedFd) -> Option<String> {
    let record: Option<StagingRecord> = read(layer, STAGED, MAX_RECORD_BYTES).ok()?;
    record.map(|record| record.name)
}

/// Makes the staging directory, which only its owner can enter.
pub(crate) fn make_staging(
    layer: &OwnedFd,
    host: &OwnedFd,
    owner: Owner,
) -> Result<OwnedFd, Errno> {
    let name = format!("{STAGING}{}", identity::random_name()?);
    let mut record = StagingRecord { version: VERSION, name, identity: None, top: None };
    write(layer, STAGED, &record)?;
    let before = Seen::from(&fstat(host)?);
    let made = owner.during(|| {
        mkdirat(host, record.name.as_str(), Mode::S_IRWXU)?;
        let made = openat(host, record.name.as_str(), DIRECTORY, Mode::empty())?;
        // Another user who may write to the directory could have replaced it.
        if fstat(&made)?.st_uid != owner.maker() {
            return Err(Errno::ESTALE);
        }
        // Files that are made in it would have the lists of the directory.
        rights::take_lists(&made)?;
        if is_empty(&made)? { Ok(made) } else { Err(Errno::ESTALE) }
    })?;
    record.top = Some((before, Seen::from(&fstat(host)?)));
    record.identity = Some(Identity::of(&made)?);
    write(layer, STAGED, &record)?;
    Ok(made)
}

/// Opens the staging directory of a record; `None` if it is missing or another one has its name.
fn open_staging(
    host: &OwnedFd,
    owner: Owner,
    record: &StagingRecord,
) -> Result<Option<OwnedFd>, Errno> {
    let opened = owner.during(|| openat(host, record.name.as_str(), DIRECTORY, Mode::empty()));
    let staging = match opened {
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES) => return Ok(None),
        opened => opened?,
    };
    let is_it = fstat(&staging)?.st_uid == owner.maker()
        && record.identity == Some(Identity::of(&staging)?);
    Ok(is_it.then_some(staging))
}

/// Records the steps. From here on the apply continues after an interruption.
///
/// # Errors
/// EFBIG: the steps are too many for one journal.
pub(crate) fn record(
    layer: &OwnedFd,
    staging: &OwnedFd,
    host: &OwnedFd,
    since: Stamp,
    steps: Vec<Step>,
) -> Result<(), Errno> {
    syncfs(staging)?;
    let applied = AppliedFiles::read(layer)?;
    let staging = fstat(staging)?.st_ino;
    let staged: Option<StagingRecord> = read(layer, STAGED, MAX_RECORD_BYTES).unwrap_or_default();
    let mut quiet: BTreeMap<String, Option<Names>> = BTreeMap::new();
    for step in &steps {
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
            step.take_in(name, names);
        }
        if step.act == Act::MakeDirectory && is_absent(host, &path) {
            quiet.insert(step.path.clone(), Some(Names::new()));
        }
    }
    let quiet = quiet.into_iter();
    let quiet = quiet.filter_map(|(path, names)| Some((path, digest(&names?)))).collect();
    let device = fstat(host)?.st_dev;
    write(layer, JOURNAL, &Journal { version: VERSION, device, steps, quiet })
}

/// Names in a directory with the inode numbers of their files.
type Names = BTreeMap<Vec<u8>, u64>;

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

/// Takes all steps of the journal that were not taken yet, and cleans up; without a journal, removes
/// the staging directory.
///
/// # Errors
/// What stopped it; the next call continues.
pub(crate) fn finish(
    layer: &OwnedFd,
    upper: &OwnedFd,
    host: &OwnedFd,
    owner: Owner,
) -> Result<Finished, Stopped> {
    let journal: Option<Journal> = read(layer, JOURNAL, MAX_BYTES_READ)?;
    let record: Option<StagingRecord> = read(layer, STAGED, MAX_RECORD_BYTES)?;
    let mut finished = Finished::default();
    let mut quiet_now = BTreeMap::new();
    let mut made = BTreeMap::new();
    let mut is_all_kept = true;
    if let Some(Journal { device, mut steps, quiet, .. }) = journal {
        let now = fstat(host)?.st_dev;
        steps.iter_mut().for_each(|step| step.renumber(device, now));
        // The journal is removed before the staging directory: without it, no step can be trusted to
        // have been taken.
        let lost = |record: Option<&StagingRecord>| {
            Stopped::StagingLost(record.map_or_else(|| STAGING.to_owned(), |it| it.name.clone()))
        };
        let known = record.as_ref().ok_or_else(|| lost(None))?;
        let staging = open_staging(host, owner, known)?.ok_or_else(|| lost(Some(known)))?;
        let mut done = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            match owner.during(|| take(host, &staging, owner, number, step)) {
                Ok(inode) => {
                    done.push(step);
                    made.extend(inode.map(|inode| (step.path.clone(), inode)));
                }
                Err(left) => finished.left.push((step.path(), left)),
            }
        }
        is_all_kept = owner.during(|| keep_changed(host, &staging, &steps, &known.name))?;
        syncfs(host)?;
        finished.done = done.len();
        note_applied(layer, host, &done)?;
        clear_layer(upper, &done)?;
        if !done.is_empty() {
            quiet_now = quiet;
        }
        remove_file(layer, JOURNAL)?;
        fsync(layer)?;
    }
    if let Some(record) = record.as_ref().filter(|_| is_all_kept) {
        remove_staging(host, owner, record)?;
    }
    // Last, as a directory of the host has another time without the staging directory.
    note_quiet(layer, host, quiet_now, &made)?;
    remove_file(layer, STAGED)?;
    Ok(finished)
}

/// Takes one step, unless it was taken before. Returns the inode number of a directory that it made.
pub(super) fn take(
    host: &OwnedFd,
    staging: &OwnedFd,
    owner: Owner,
    number: usize,
    step: &Step,
) -> Result<Option<u64>, Left> {
    let path = step.path();
    let (directory, name) = split(&path);
    let own = c_name(number.to_string().as_bytes()).map_err(Left::Errno)?;
    let is_replaced =
        |errno: &Errno| [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP, Errno::EXDEV].contains(errno);
    let parent = match open_directory(host, directory) {
        Ok(parent) => parent,
        // A later step may have removed or replaced the directory before an interruption.
        Err(Errno::ENOENT | Errno::ENOTDIR) if step.is_removal() => {
            let moved = look(staging, &own).map_err(Left::Errno)?;
            let is_other =
                moved.zip(step.before).is_some_and(|(moved, old)| !moved.is_unchanged(&old));
            return if is_other { Err(Left::Changed) } else { Ok(None) };
        }
        Err(errno) if is_replaced(&errno) => return Err(Left::Changed),
        Err(errno) => return Err(Left::Errno(errno)),
    };
    let name = c_name(name).map_err(Left::Errno)?;
    let place = Place { parent: &parent, name: &name, staging, own: &own };
    match (step.act, step.before, step.staged) {
        (Act::MakeDirectory, _, Some(staged)) => place.make_directory(step.before, staged, owner),
        (Act::Put, before, Some(staged)) => place.put(before, staged).map(|()| None),
        (Act::RemoveFile, Some(before), _) => place.remove_file(before).map(|()| None),
        (Act::RemoveDirectory, Some(before), _) => place.remove_directory(before).map(|()| None),
        (Act::MakeDirectory | Act::Put, _, None)
        | (Act::RemoveFile | Act::RemoveDirectory, None, _) => Err(Left::Errno(Errno::EINVAL)),
    }
}

/// A name of the host, and that of its step in the staging directory.
struct Place<'a> {
    parent: &'a OwnedFd,
    name: &'a CStr,
    staging: &'a OwnedFd,
    own: &'a CStr,
}

impl Place<'_> {
    fn there(&self) -> Result<Option<Seen>, Left> {
        look(self.parent, self.name).map_err(Left::Errno)
    }

    fn staged(&self) -> Result<Option<Seen>, Left> {
        look(self.staging, self.own).map_err(Left::Errno)
    }

    fn to_host(&self, flags: RenameFlags) -> Result<(), Left> {
        let renamed = renameat2(self.staging, self.own, self.parent, self.name, flags);
        renamed.map_err(|errno| match [Errno::EEXIST, Errno::ENOENT].contains(&errno) {
            true => Left::Changed,
            false => Left::Errno(errno),
        })
    }

    /// Makes a directory at its place, with the rights of the staged one. That one is never moved: a
    /// cell to which the directory is granted could have put a guarded name in it.
    fn make_directory(
        &self,
        before: Option<Seen>,
        staged: Seen,
        owner: Owner,
    ) -> Result<Option<u64>, Left> {
        let was_directory = before.is_some_and(|before| before.is(libc::S_IFDIR));
        let closed = libc::S_IFDIR | libc::S_IRWXU;
        let is_there = match self.there()? {
            // Made before an interruption, up to its rights.
            Some(there) if !was_directory && there.mode & (libc::S_IFMT | 0o777) == closed => true,
            Some(there) if there.is(libc::S_IFDIR) => return Ok(None),
            Some(_) => return Err(Left::Changed),
            None => false,
        };
        let replaced = [Errno::EEXIST, Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP];
        let failed = |errno: Errno| match replaced.contains(&errno) {
            true => Left::Changed,
            false => Left::Errno(errno),
        };
        let model = match openat(self.staging, self.own, DIRECTORY, Mode::empty()) {
            // An earlier version has moved it to its place.
            Err(_) if is_there => return Ok(None),
            model => model.map_err(failed)?,
        };
        if !Seen::from(&fstat(&model)?).is_same_file(&staged) {
            return Err(Left::Changed);
        }
        let rights = Rights::of_directory(&model)?;
        if !is_there {
            mkdirat(self.parent, self.name, Mode::S_IRWXU).map_err(failed)?;
        }
        let made = openat(self.parent, self.name, DIRECTORY, Mode::empty()).map_err(failed)?;
        let status = fstat(&made)?;
        // Another one may have taken the name.
        if status.st_uid != owner.maker() || !is_empty(&made)? {
            return if is_there { Ok(None) } else { Err(Left::Changed) };
        }
        rights::take_lists(&made)?;
        rights.give(&made, rights::Kind::Directory)?;
        Ok((!is_there).then_some(status.st_ino))
    }

    fn put(&self, before: Option<Seen>, staged: Seen) -> Result<(), Left> {
        if !self.staged()?.is_some_and(|seen| seen.is_unchanged(&staged)) {
            // Taken before an interruption, up to the check of what came out. Otherwise the host has
            // replaced it since, or the staged file is lost: then the layer's file stays.
            return match (self.there()?.is_some_and(|seen| seen.is_same_file(&staged)), before) {
                (true, Some(before)) => self.check_exchanged(before),
                (true, None) => Ok(()),
                (false, _) => Err(Left::Changed),
            };
        }
        match before {
            // Never replaces: a file that the host has made meanwhile stays.
            None => self.to_host(RenameFlags::RENAME_NOREPLACE),
            Some(before) => {
                if !self.there()?.is_some_and(|there| there.is_unchanged(&before)) {
                    return Err(Left::Changed);
                }
                self.to_host(RenameFlags::RENAME_EXCHANGE)?;
                self.check_exchanged(before)
            }
        }
    }

    /// Checks the file that came out of an exchange, and puts it back if it is not the one that was
    /// judged.
    fn check_exchanged(&self, before: Seen) -> Result<(), Left> {
        if self.staged()?.is_some_and(|old| old.is_unchanged(&before)) {
            return Ok(());
        }
        self.to_host(RenameFlags::RENAME_EXCHANGE)?;
        Err(Left::Changed)
    }

    fn remove_file(&self, before: Seen) -> Result<(), Left> {
        if self.staged()?.is_none() {
            match self.there()? {
                None => return Ok(()),
                Some(there) if !there.is_unchanged(&before) => return Err(Left::Changed),
                Some(_) => {}
            }
            let flags = RenameFlags::RENAME_NOREPLACE;
            renameat2(self.parent, self.name, self.staging, self.own, flags)
                .map_err(Left::Errno)?;
        }
        if self.staged()?.is_some_and(|old| old.is_unchanged(&before)) {
            return Ok(());
        }
        self.to_host(RenameFlags::RENAME_NOREPLACE)?;
        Err(Left::Changed)
    }

    fn remove_directory(&self, before: Seen) -> Result<(), Left> {
        match self.there()? {
            None => return Ok(()),
            // The directory is gone: a later step may have put a file in its place.
            Some(there) if !there.is(libc::S_IFDIR) => return Ok(()),
            Some(there) if !there.is_same_file(&before) => return Err(Left::Changed),
            Some(_) => {}
        }
        let removed = unlinkat(self.parent, self.name, UnlinkatFlags::RemoveDir);
        removed.map_err(|errno| match [Errno::ENOTEMPTY, Errno::EEXIST].contains(&errno) {
            true => Left::NotEmpty,
            false => Left::Errno(errno),
        })
    }
}

/// Removes a staging directory with all that is in it. A directory of which the identity was not
/// recorded is removed only if it is empty, and another one at its name stays.
fn remove_staging(host: &OwnedFd, owner: Owner, record: &StagingRecord) -> Result<(), Errno> {
    let staging = open_staging(host, owner, record)?;
    owner.during(|| {
        if let Some(staging) = &staging {
            remove_all(staging, "")?;
        } else if record.identity.is_some() {
            return Ok(());
        }
        match unlinkat(host, record.name.as_str(), UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) if staging.is_none() => Ok(()),
            Err(errno) => Err(errno),
        }
    })
}

/// Keeps each file of the host that came into the staging directory and is not the one that was
/// judged, such as the second of two saves during a step: it gets a free name next to its place.
/// Returns true if nothing is left in the staging directory that must be kept.
fn keep_changed(
    host: &OwnedFd,
    staging: &OwnedFd,
    steps: &[Step],
    staging_name: &str,
) -> Result<bool, Errno> {
    let mut is_all_kept = true;
    for (number, step) in steps.iter().enumerate() {
        let own = c_name(number.to_string().as_bytes())?;
        let Some(seen) = look(staging, &own)? else { continue };
        let is_staged = step.staged.is_some_and(|staged| seen.is_same_file(&staged));
        if is_staged || step.before.is_some_and(|before| seen.is_unchanged(&before)) {
            continue;
        }
        let path = step.path();
        // A cell may have put a directory or a link there, whose names no guard has seen.
        let kept = match seen.is(libc::S_IFREG) {
            true => kept_next_to(host, staging, &own, &path),
            false => None,
        };
        let at = kept.unwrap_or_else(|| {
            is_all_kept = false;
            format!("{staging_name}/{number}").into_bytes()
        });
        eprintln!(
            "cofferdam: {} was changed while changes were applied: a version of it is in {}",
            plain(&String::from_utf8_lossy(&path)),
            plain(&String::from_utf8_lossy(&at))
        );
    }
    Ok(is_all_kept)
}

/// Moves a file of the staging directory to a free name next to its place; `None` if that fails.
fn kept_next_to(host: &OwnedFd, staging: &OwnedFd, own: &CStr, path: &[u8]) -> Option<Vec<u8>> {
    let (directory, name) = split(path);
    let parent = open_directory(host, directory).ok()?;
    for number in 1..=MAX_KEPT {
        let end = if number == 1 { KEPT.to_owned() } else { format!("{KEPT}-{number}") };
        let free = c_name(&[name, end.as_bytes()].concat()).ok()?;
        let flags = RenameFlags::RENAME_NOREPLACE;
        match renameat2(staging, own, &parent, free.as_c_str(), flags) {
            Err(Errno::EEXIST) => {}
            Err(_) => return None,
            Ok(()) => return Some([path, end.as_bytes()].concat()),
        }
    }
    None
}

/// Removes the staging directory of an apply that is given up. A file of the host that changed
/// meanwhile is kept.
pub(crate) fn give_up(layer: &OwnedFd, host: &OwnedFd, owner: Owner) -> Result<(), Stopped> {
    let Some(record) = read::<StagingRecord>(layer, STAGED, MAX_RECORD_BYTES)? else {
        return Ok(());
    };
    let journal: Option<Journal> = read(layer, JOURNAL, MAX_BYTES_READ)?;
    let is_all_kept = match (journal, open_staging(host, owner, &record)?) {
        (Some(Journal { device, mut steps, .. }), Some(staging)) => {
            let now = fstat(host)?.st_dev;
            steps.iter_mut().for_each(|step| step.renumber(device, now));
            owner.during(|| keep_changed(host, &staging, &steps, &record.name))?
        }
        (None, _) | (_, None) => true,
    };
    if is_all_kept {
        remove_staging(host, owner, &record)?;
    }
    Ok(())
}

/// Removes from the layer what the host has now. What cannot be removed is equal to the host's file,
/// and so no change any more: no file of a layer, which cells chose, stops an apply.
fn clear_layer(upper: &OwnedFd, done: &[&Step]) -> Result<(), Errno> {
    for step in done.iter().rev().filter(|step| step.is_movable) {
        match clear_step(upper, step) {
            Ok(()) | Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::EACCES | Errno::EPERM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn clear_step(upper: &OwnedFd, step: &Step) -> Result<(), Errno> {
    let path = step.path();
    let (directory, name) = split(&path);
    let name = c_name(name)?;
    let Ok(parent) = open_directory(upper, directory) else { return Ok(()) };
    let Some(seen) = look(&parent, &name)? else { return Ok(()) };
    let mode = Mode::from_bits_truncate(fstat(&parent)?.st_mode);
    // A cell may have closed it to its owner.
    if !mode.contains(Mode::S_IRWXU) {
        fchmod(&parent, mode | Mode::S_IRWXU)?;
    }
    match step.act {
        Act::Put if !seen.is(libc::S_IFDIR) => {
            unlinkat(&parent, name.as_c_str(), UnlinkatFlags::NoRemoveDir)
        }
        Act::RemoveFile | Act::RemoveDirectory if is_whiteout(&parent, &name, &seen)? => {
            unlinkat(&parent, name.as_c_str(), UnlinkatFlags::NoRemoveDir)
        }
        Act::MakeDirectory if seen.is(libc::S_IFDIR) => {
            let removed = unlinkat(&parent, name.as_c_str(), UnlinkatFlags::RemoveDir);
            if removed.is_err() {
                // The host has a directory there now, which shows what was removed from this one.
                open_with_access(&parent, &name)?;
                let kept = openat(&parent, name.as_c_str(), DIRECTORY, Mode::empty())?;
                xattr::remove(&kept, OPAQUE)?;
            }
            removed
        }
        Act::Put | Act::RemoveFile | Act::RemoveDirectory | Act::MakeDirectory => Ok(()),
    }
}

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

    fn write(&self, layer: &OwnedFd) -> Result<(), Errno> {
        match write(layer, APPLIED, self) {
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
fn note_applied(layer: &OwnedFd, host: &OwnedFd, done: &[&Step]) -> Result<(), Errno> {
    if done.is_empty() {
        return Ok(());
    }
    let mut applied = AppliedFiles::read(layer)?;
    for step in done {
        let path = step.path();
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

/// Adds directories of the host to the list in which nothing but the steps has changed a name.
fn note_quiet(
    layer: &OwnedFd,
    host: &OwnedFd,
    quiet: BTreeMap<String, String>,
    made: &BTreeMap<String, u64>,
) -> Result<(), Errno> {
    if quiet.is_empty() {
        return Ok(());
    }
    let mut applied = AppliedFiles::read(layer)?;
    for (path, expected) in quiet {
        let Ok(directory) = open_directory(host, &decoded(&path)) else { continue };
        // Before the listing, so that a change after it shows as another time.
        let seen = Seen::from(&fstat(&directory)?);
        let mut names = names_in(&directory, None)?;
        for (name, inode) in &mut names {
            if made.get(&joined(&path, name)) == Some(inode) {
                *inode = MADE;
            }
        }
        if digest(&names) == expected {
            applied.0.insert(path, seen);
        }
    }
    applied.write(layer)
}

/// Removes the journal and the lists of a layer that has no changes.
pub(crate) fn forget(layer: &OwnedFd) -> Result<(), Errno> {
    for name in [JOURNAL, STAGED, APPLIED] {
        remove_file(layer, name)?;
    }
    Ok(())
}
