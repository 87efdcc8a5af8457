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
