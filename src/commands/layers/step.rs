//! A step of an apply: one name of the host that is made, replaced or removed. The identities in it
//! say after a crash whether it was taken, so that it can be taken a second time without harm.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};

use super::files::{
    DIRECTORY, Seen, c_name, decoded, encoded, is_empty, look, open_directory, split,
};
use super::owner::Owner;
use super::rights::{self, Rights};

/// Mode of a directory until it has its rights: closed, and with the sticky bit, by which it is not
/// taken for one that the user has made.
const BEING_MADE: libc::mode_t = libc::S_ISVTX | libc::S_IRWXU;

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
    /// Path below the directory, with bytes other than plain characters as `%XX`.
    pub(super) path: String,
    pub act: Act,
    /// The file of the host, as it was judged.
    pub(super) before: Option<Seen>,
    /// The staged file.
    pub(super) staged: Option<Seen>,
    /// True if the layer's file can be removed afterwards.
    pub(super) is_movable: bool,
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
    pub(super) fn renumber(&mut self, device: u64, now: u64) {
        for seen in self.before.iter_mut().chain(&mut self.staged) {
            if seen.device == device {
                seen.device = now;
            }
        }
    }

    fn is_removal(&self) -> bool {
        matches!(self.act, Act::RemoveFile | Act::RemoveDirectory)
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

/// How far a step came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Taken, with the inode number of the directory that it was to make.
    Taken(Option<u64>),
    /// Not taken, and the host has at its place what was judged.
    Untaken,
}

/// Finds out how far a step came before an interruption. Never takes it: completes or takes back only
/// what a step has begun.
pub(super) fn progress(
    host: &OwnedFd,
    staging: &OwnedFd,
    owner: Owner,
    number: usize,
    step: &Step,
) -> Result<Progress, Left> {
    at_place(host, staging, number, step, |place| place.progress(owner, step))
}

/// Takes one step, unless it was taken before. Returns the inode number of a directory that it made.
pub(super) fn take(
    host: &OwnedFd,
    staging: &OwnedFd,
    owner: Owner,
    number: usize,
    step: &Step,
) -> Result<Option<u64>, Left> {
    let taken = at_place(host, staging, number, step, |place| {
        if place.progress(owner, step)? != Progress::Untaken {
            return Ok(Progress::Taken(None));
        }
        place.take(owner, step).map(Progress::Taken)
    })?;
    match taken {
        Progress::Taken(made) => Ok(made),
        Progress::Untaken => Ok(None),
    }
}

/// Calls a function with the place of a step.
fn at_place(
    host: &OwnedFd,
    staging: &OwnedFd,
    number: usize,
    step: &Step,
    act: impl FnOnce(&Place) -> Result<Progress, Left>,
) -> Result<Progress, Left> {
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
                moved.zip(step.before).is_some_and(|(moved, old)| !is_as_judged(&moved, &old));
            return if is_other { Err(Left::Changed) } else { Ok(Progress::Taken(None)) };
        }
        Err(errno) if is_replaced(&errno) => return Err(Left::Changed),
        Err(errno) => return Err(Left::Errno(errno)),
    };
    let name = c_name(name).map_err(Left::Errno)?;
    act(&Place { parent: &parent, name: &name, staging, own: &own })
}

/// Returns true if a file of the host is the one that was judged, with the same mode and owner. The
/// time of its last change is not compared: a step on another name of the file sets it.
fn is_as_judged(there: &Seen, before: &Seen) -> bool {
    there.is_unchanged(before) && there.mode == before.mode && there.owner == before.owner
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

    fn progress(&self, owner: Owner, step: &Step) -> Result<Progress, Left> {
        match (step.act, step.before, step.staged) {
            (Act::MakeDirectory, before, Some(staged)) => {
                self.directory_made(before, staged, owner)
            }
            (Act::Put, before, Some(staged)) => self.file_put(before, staged),
            (Act::RemoveFile, Some(before), _) => self.file_removed(before),
            (Act::RemoveDirectory, Some(before), _) => self.directory_removed(before),
            (Act::MakeDirectory | Act::Put, _, None)
            | (Act::RemoveFile | Act::RemoveDirectory, None, _) => Err(Left::Errno(Errno::EINVAL)),
        }
    }

    /// Takes a step that was not taken.
    fn take(&self, owner: Owner, step: &Step) -> Result<Option<u64>, Left> {
        match (step.act, step.before, step.staged) {
            (Act::MakeDirectory, _, Some(staged)) => self.make_directory(staged, owner).map(Some),
            // Never replaces: a file that the host has made meanwhile stays.
            (Act::Put, None, Some(_)) => self.to_host(RenameFlags::RENAME_NOREPLACE).map(|()| None),
            (Act::Put, Some(before), Some(_)) => {
                self.to_host(RenameFlags::RENAME_EXCHANGE)?;
                self.check_exchanged(before).map(|()| None)
            }
            (Act::RemoveFile, Some(before), _) => self.remove_file(before).map(|()| None),
            (Act::RemoveDirectory, Some(_), _) => self.remove_directory().map(|()| None),
            (Act::MakeDirectory | Act::Put, _, None)
            | (Act::RemoveFile | Act::RemoveDirectory, None, _) => Err(Left::Errno(Errno::EINVAL)),
        }
    }

    /// Returns that the step was not taken, if its place is as it was judged.
    fn untaken(&self, before: Option<Seen>) -> Result<Progress, Left> {
        let is_same = match (self.there()?, before) {
            (Some(there), Some(before)) => is_as_judged(&there, &before),
            (there, before) => there.is_none() && before.is_none(),
        };
        if is_same { Ok(Progress::Untaken) } else { Err(Left::Changed) }
    }

    fn directory_made(
        &self,
        before: Option<Seen>,
        staged: Seen,
        owner: Owner,
    ) -> Result<Progress, Left> {
        let was_directory = before.is_some_and(|before| before.is(libc::S_IFDIR));
        match self.there()? {
            // Made before an interruption, up to its rights.
            Some(there) if there.mode & (libc::S_IFMT | 0o1777) == libc::S_IFDIR | BEING_MADE => {
                let made = self.give(&self.staged_rights(staged)?, owner)?;
                Ok(Progress::Taken(Some(made.unwrap_or(there.inode))))
            }
            Some(there) if there.is(libc::S_IFDIR) => {
                Ok(Progress::Taken((!was_directory).then_some(there.inode)))
            }
            Some(_) => Err(Left::Changed),
            None => Ok(Progress::Untaken),
        }
    }

    /// Makes a directory at its place, with the rights of the staged one. That one is never moved: a
    /// cell to which the directory is granted could have put a guarded name in it.
    fn make_directory(&self, staged: Seen, owner: Owner) -> Result<u64, Left> {
        let rights = self.staged_rights(staged)?;
        let mode = Mode::from_bits_truncate(BEING_MADE);
        mkdirat(self.parent, self.name, mode).map_err(replaced_or)?;
        self.give(&rights, owner)?.ok_or(Left::Changed)
    }

    fn staged_rights(&self, staged: Seen) -> Result<Rights, Left> {
        let model =
            openat(self.staging, self.own, DIRECTORY, Mode::empty()).map_err(replaced_or)?;
        if !Seen::from(&fstat(&model)?).is_same_file(&staged) {
            return Err(Left::Changed);
        }
        Ok(Rights::of_directory(&model)?)
    }

    /// Gives rights to the directory at its place, which was made closed. Returns its inode number;
    /// `None` if another one has taken the name.
    fn give(&self, rights: &Rights, owner: Owner) -> Result<Option<u64>, Left> {
        let made = openat(self.parent, self.name, DIRECTORY, Mode::empty()).map_err(replaced_or)?;
        let status = fstat(&made)?;
        if status.st_uid != owner.maker() || !is_empty(&made)? {
            return Ok(None);
        }
        rights::take_lists(&made, Mode::from_bits_truncate(BEING_MADE))?;
        rights.give(&made, rights::Kind::Directory)?;
        Ok(Some(status.st_ino))
    }

    fn file_put(&self, before: Option<Seen>, staged: Seen) -> Result<Progress, Left> {
        if self.staged()?.is_some_and(|seen| seen.is_unchanged(&staged)) {
            return self.untaken(before);
        }
        // Taken before an interruption, up to the check of what came out. Otherwise the host has
        // replaced it since, or the staged file is lost: then the layer's file stays.
        if !self.there()?.is_some_and(|seen| seen.is_same_file(&staged)) {
            return Err(Left::Changed);
        }
        if let Some(before) = before {
            self.check_exchanged(before)?;
        }
        Ok(Progress::Taken(None))
    }

    /// Checks the file that came out of an exchange, and puts it back if it is not the one that was
    /// judged.
    fn check_exchanged(&self, before: Seen) -> Result<(), Left> {
        if self.staged()?.is_some_and(|old| is_as_judged(&old, &before)) {
            return Ok(());
        }
        self.to_host(RenameFlags::RENAME_EXCHANGE)?;
        Err(Left::Changed)
    }

    fn file_removed(&self, before: Seen) -> Result<Progress, Left> {
        if self.staged()?.is_some() {
            return self.check_removed(before).map(|()| Progress::Taken(None));
        }
        match self.there()? {
            None => Ok(Progress::Taken(None)),
            Some(_) => self.untaken(Some(before)),
        }
    }

    fn remove_file(&self, before: Seen) -> Result<(), Left> {
        let flags = RenameFlags::RENAME_NOREPLACE;
        renameat2(self.parent, self.name, self.staging, self.own, flags).map_err(Left::Errno)?;
        self.check_removed(before)
    }

    /// Checks the file that was removed, and puts it back if it is not the one that was judged.
    fn check_removed(&self, before: Seen) -> Result<(), Left> {
        if self.staged()?.is_some_and(|old| is_as_judged(&old, &before)) {
            return Ok(());
        }
        self.to_host(RenameFlags::RENAME_NOREPLACE)?;
        Err(Left::Changed)
    }

    fn directory_removed(&self, before: Seen) -> Result<Progress, Left> {
        match self.there()? {
            None => Ok(Progress::Taken(None)),
            // The directory is gone: a later step may have put a file in its place.
            Some(there) if !there.is(libc::S_IFDIR) => Ok(Progress::Taken(None)),
            Some(there) if !there.is_same_file(&before) => Err(Left::Changed),
            Some(_) => Ok(Progress::Untaken),
        }
    }

    fn remove_directory(&self) -> Result<(), Left> {
        let removed = unlinkat(self.parent, self.name, UnlinkatFlags::RemoveDir);
        removed.map_err(|errno| match [Errno::ENOTEMPTY, Errno::EEXIST].contains(&errno) {
            true => Left::NotEmpty,
            false => Left::Errno(errno),
        })
    }
}

/// Returns why a name could not be used: another file may have taken it.
fn replaced_or(errno: Errno) -> Left {
    match [Errno::EEXIST, Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP].contains(&errno) {
        true => Left::Changed,
        false => Left::Errno(errno),
    }
}
