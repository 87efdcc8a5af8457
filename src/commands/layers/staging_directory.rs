//! The staging directory of an apply, within the directory of the host.
//!
//! The owner of the directory may rename and replace it at any time. So it is used by a held
//! descriptor, after a check of its identity, and with the owner's rights alone ([`super::owner`]).

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};

use super::files::{
    DIRECTORY, Identity, Seen, c_name, is_empty, look, open_directory, remove_file, split,
};
use super::owner::Owner;
use super::records::{self, Stopped, VERSION};
use super::rights;
use super::step::Step;
use crate::commands::format::plain;
use cell::mediate::names::STAGING_PREFIX;
use cell::removal::remove_all;
use sys::identity;

/// The record of it in the directory of the layer, and its greatest length.
const STAGED: &str = "staged.json";
const MAX_RECORD_BYTES: u64 = 4096;
/// End of the name under which a file of the host is kept, and maximum number of such names of a file.
const KEPT: &str = ".cofferdam-kept";
const MAX_KEPT: u8 = 100;

/// The staging directory of an apply. Recorded by its name before it is made, so that a directory that
/// is left is known, and with its identity before anything is put in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StagingRecord {
    version: u8,
    pub(super) name: String,
    identity: Option<Identity>,
    /// The directory of the host before this one was made in it, and right after.
    top: Option<(Seen, Seen)>,
}

impl StagingRecord {
    /// Reads the record of a layer; `None` if its last apply has ended.
    pub(super) fn read(layer: &OwnedFd) -> Result<Option<Self>, Stopped> {
        records::read(layer, STAGED, MAX_RECORD_BYTES)
    }

    /// Returns true if a layer has a record, which perhaps cannot be read.
    pub(super) fn is_there(layer: &OwnedFd) -> Result<bool, Errno> {
        Ok(look(layer, &c_name(STAGED.as_bytes())?)?.is_some())
    }

    pub(super) fn remove(layer: &OwnedFd) -> Result<(), Errno> {
        remove_file(layer, STAGED)
    }

    /// Returns the directory of the host as it was before the staging directory, if nothing else has
    /// changed in it since.
    pub(super) fn top_before(&self, now: &Seen) -> Option<Seen> {
        let (before, after) = self.top?;
        (after == *now).then_some(before)
    }
}

/// Returns the name of the staging directory that an apply has left, if its record can be read.
pub(crate) fn left(layer: &OwnedFd) -> Option<String> {
    StagingRecord::read(layer).ok()?.map(|record| record.name)
}

/// Makes the staging directory, which only its owner can enter.
pub(crate) fn make(layer: &OwnedFd, host: &OwnedFd, owner: Owner) -> Result<OwnedFd, Errno> {
    let name = format!("{STAGING_PREFIX}{}", identity::random_name()?);
    let mut record = StagingRecord { version: VERSION, name, identity: None, top: None };
    records::write(layer, STAGED, &record)?;
    let before = Seen::from(&fstat(host)?);
    let made = owner.during(|| {
        mkdirat(host, record.name.as_str(), Mode::S_IRWXU)?;
        let made = openat(host, record.name.as_str(), DIRECTORY, Mode::empty())?;
        // Another user who may write to the directory could have replaced it.
        if fstat(&made)?.st_uid != owner.maker() {
            return Err(Errno::ESTALE);
        }
        // Files that are made in it would have the lists of the directory.
        rights::take_lists(&made, Mode::S_IRWXU)?;
        if is_empty(&made)? { Ok(made) } else { Err(Errno::ESTALE) }
    })?;
    record.top = Some((before, Seen::from(&fstat(host)?)));
    record.identity = Some(Identity::of(&made)?);
    records::write(layer, STAGED, &record)?;
    Ok(made)
}

/// Opens the staging directory of a record; `None` if it is missing or another one has its name.
pub(super) fn open(
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

/// Removes a staging directory with all that is in it. A directory of which the identity was not
/// recorded is removed only if it is empty, and another one at its name stays.
pub(super) fn remove(host: &OwnedFd, owner: Owner, record: &StagingRecord) -> Result<(), Errno> {
    let staging = open(host, owner, record)?;
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
pub(super) fn keep_changed(
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
