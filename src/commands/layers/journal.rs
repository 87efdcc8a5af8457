//! The journal of an apply: its steps, as they are recorded before the first one is taken.
//!
//! Every file is written first in a staging directory within the directory of the host, which only
//! its owner can enter ([`super::staging_directory`]). Once the journal is on the disk, each step is
//! one rename or removal ([`super::step`]). The identities in it say after a crash whether a step was
//! taken. The next start or review records the steps that were, and drops the others: the host may have
//! changed since they were judged, so that the next apply judges them again. The journal is removed
//! before the staging directory: without a journal nothing is left to do but to remove that.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::openat;
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{UnlinkatFlags, fsync, syncfs, unlinkat};
use serde::{Deserialize, Serialize};

use super::applied::{self, AppliedFiles, Quiet};
use super::files::{
    DIRECTORY, OPAQUE, Stamp, c_name, is_whiteout, look, open_directory, remove_file, split,
};
use super::owner::Owner;
use super::records::{self, MAX_BYTES_READ, Stopped, VERSION};
use super::staging_directory::{self, StagingRecord};
use super::step::{Act, Left, Progress, Step, progress, take};
use cell::mediate::names::STAGING_PREFIX;
use cell::removal::open_with_access;
use sys::xattr;

/// Name in the directory of a layer.
const JOURNAL: &str = "journal.json";

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

/// Steps of an apply that has ended, with those that were left.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub done: usize,
    pub left: Vec<(Vec<u8>, Left)>,
}

/// Returns true if an apply was interrupted.
pub(crate) fn is_unfinished(layer: &OwnedFd) -> Result<bool, Errno> {
    Ok(StagingRecord::is_there(layer)? || look(layer, &c_name(JOURNAL.as_bytes())?)?.is_some())
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
    let quiet = applied::quiet_after(layer, staging, host, since, &steps)?;
    let device = fstat(host)?.st_dev;
    records::write(layer, JOURNAL, &Journal { version: VERSION, device, steps, quiet })
}

/// How far an interrupted apply came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interrupted {
    pub written: usize,
    /// Number of changes that it was to write.
    pub all: usize,
}

/// Takes all steps of the journal, and cleans up; without a journal, removes the staging directory.
///
/// # Errors
/// What stopped it.
pub(crate) fn finish(
    layer: &OwnedFd,
    upper: &OwnedFd,
    host: &OwnedFd,
    owner: Owner,
) -> Result<Finished, Stopped> {
    let journal: Option<Journal> = records::read(layer, JOURNAL, MAX_BYTES_READ)?;
    conclude(layer, upper, host, owner, journal, |staging, number, step| {
        take(host, staging, owner, number, step).map(Progress::Taken)
    })
}

/// Ends an apply that was interrupted: records the steps that were taken, and takes no other one, so
/// that the rest stays in the layer. Removes the staging directory.
///
/// # Errors
/// What stopped it; the next call continues.
pub(crate) fn end(
    layer: &OwnedFd,
    upper: &OwnedFd,
    host: &OwnedFd,
    owner: Owner,
) -> Result<Interrupted, Stopped> {
    let journal: Option<Journal> = records::read(layer, JOURNAL, MAX_BYTES_READ)?;
    let all = journal.as_ref().map_or(0, |journal| journal.steps.len());
    let finished = conclude(layer, upper, host, owner, journal, |staging, number, step| {
        progress(host, staging, owner, number, step)
    })?;
    Ok(Interrupted { written: finished.done, all })
}

/// Calls a function for each step with the staging directory and the step's number, records those that
/// are taken then, and cleans up.
fn conclude(
    layer: &OwnedFd,
    upper: &OwnedFd,
    host: &OwnedFd,
    owner: Owner,
    journal: Option<Journal>,
    step_with: impl Fn(&OwnedFd, usize, &Step) -> Result<Progress, Left>,
) -> Result<Finished, Stopped> {
    let record = StagingRecord::read(layer)?;
    let mut finished = Finished::default();
    let mut after = Quiet::default();
    let mut is_all_kept = true;
    if let Some(Journal { device, mut steps, quiet, .. }) = journal {
        let now = fstat(host)?.st_dev;
        steps.iter_mut().for_each(|step| step.renumber(device, now));
        let (known, staging) = staging_of(host, owner, record.as_ref())?;
        let mut done = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            match owner.during(|| step_with(&staging, number, step)) {
                Ok(Progress::Taken(inode)) => {
                    done.push(step);
                    after.made.extend(inode.map(|inode| (step.path.clone(), inode)));
                }
                Ok(Progress::Untaken) => after.untaken.push(step.clone()),
                Err(left) => finished.left.push((step.path(), left)),
            }
        }
        is_all_kept = owner
            .during(|| staging_directory::keep_changed(host, &staging, &steps, &known.name))?;
        syncfs(host)?;
        finished.done = done.len();
        applied::note(layer, host, &done)?;
        clear_layer(upper, &done)?;
        if !done.is_empty() {
            after.directories = quiet;
        }
        remove_file(layer, JOURNAL)?;
        fsync(layer)?;
    }
    if let Some(record) = record.as_ref().filter(|_| is_all_kept) {
        staging_directory::remove(host, owner, record)?;
    }
    // Last, as a directory of the host has another time without the staging directory.
    applied::note_quiet(layer, host, after)?;
    StagingRecord::remove(layer)?;
    Ok(finished)
}

/// Opens the staging directory of a journal. The journal is removed before it: without the directory, no
/// step can be trusted to have been taken.
fn staging_of<'r>(
    host: &OwnedFd,
    owner: Owner,
    record: Option<&'r StagingRecord>,
) -> Result<(&'r StagingRecord, OwnedFd), Stopped> {
    let Some(record) = record else {
        return Err(Stopped::StagingLost(STAGING_PREFIX.to_owned()));
    };
    match staging_directory::open(host, owner, record)? {
        Some(staging) => Ok((record, staging)),
        None => Err(Stopped::StagingLost(record.name.clone())),
    }
}

/// Removes the staging directory of an apply that is given up. A file of the host that changed
/// meanwhile is kept.
pub(crate) fn give_up(layer: &OwnedFd, host: &OwnedFd, owner: Owner) -> Result<(), Stopped> {
    let Some(record) = StagingRecord::read(layer)? else {
        return Ok(());
    };
    let journal: Option<Journal> = records::read(layer, JOURNAL, MAX_BYTES_READ)?;
    let is_all_kept = match (journal, staging_directory::open(host, owner, &record)?) {
        (Some(Journal { device, mut steps, .. }), Some(staging)) => {
            let now = fstat(host)?.st_dev;
            steps.iter_mut().for_each(|step| step.renumber(device, now));
            owner
                .during(|| staging_directory::keep_changed(host, &staging, &steps, &record.name))?
        }
        (None, _) | (_, None) => true,
    };
    if is_all_kept {
        staging_directory::remove(host, owner, &record)?;
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

/// Removes the journal and the lists of a layer that has no changes.
pub(crate) fn forget(layer: &OwnedFd) -> Result<(), Errno> {
    remove_file(layer, JOURNAL)?;
    StagingRecord::remove(layer)?;
    AppliedFiles::forget(layer)
}
