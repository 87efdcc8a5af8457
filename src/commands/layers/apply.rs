//! Applies changes of a layer to the directory of the host.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, UtimensatFlags, fchmod, fstat, futimens, mkdirat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, symlinkat, unlinkat};

use super::changes::{Act, Change, Kind, link};
use super::files::{Seen, c_name, look, open_directory, open_file, split};
use super::journal::{self, Finished, Left, Step};
use super::store::Layer;
use cell::errno_of;

/// Applies these changes. Nothing has changed on the host if this fails before the journal is
/// written.
///
/// # Errors
/// A file that cannot be staged, such as on a full disk.
pub(crate) fn apply(layer: &Layer, changes: &[&Change]) -> Result<Finished, Errno> {
    let host = layer.host()?;
    let upper = layer.upper()?;
    let staged = Staging::make(&layer.directory, &layer.id, &host, &upper).and_then(|staging| {
        let (steps, left) = staging.stage(changes)?;
        let since = layer.base.since;
        journal::record(&layer.directory, &staging.directory, &host, since, steps)?;
        Ok(left)
    });
    match staged {
        Ok(mut left) => {
            let mut finished = journal::finish(&layer.directory, &upper, &host, &layer.id)?;
            finished.left.append(&mut left);
            Ok(finished)
        }
        Err(errno) => {
            // Without a journal this removes what was staged.
            journal::finish(&layer.directory, &upper, &host, &layer.id)?;
            Err(errno)
        }
    }
}

/// The staging directory of an apply.
struct Staging<'a> {
    directory: OwnedFd,
    host: &'a OwnedFd,
    upper: &'a OwnedFd,
    /// Bits that new files do not get.
    mask: u32,
    is_root: bool,
}

impl<'a> Staging<'a> {
    fn make(
        layer: &OwnedFd,
        id: &str,
        host: &'a OwnedFd,
        upper: &'a OwnedFd,
    ) -> Result<Self, Errno> {
        let directory = journal::make_staging(layer, host, id)?;
        let mask = nix::sys::stat::umask(Mode::S_IRWXG | Mode::S_IRWXO);
        nix::sys::stat::umask(mask);
        let is_root = nix::unistd::geteuid().is_root();
        Ok(Self { directory, host, upper, mask: mask.bits(), is_root })
    }

    /// Makes the new files, and the steps in the order in which they are taken: removals, then
    /// directories, then files.
    #[expect(clippy::type_complexity, reason = "the steps, and the paths that have none")]
    fn stage(&self, changes: &[&Change]) -> Result<(Vec<Step>, Vec<(Vec<u8>, Left)>), Errno> {
        let mut steps = Vec::new();
        let mut left = Vec::new();
        for change in changes.iter().filter(|change| change.act == Act::Delete) {
            let act = match change.kind {
                Kind::Directory => journal::Act::RemoveDirectory,
                Kind::File | Kind::Link | Kind::Other => journal::Act::RemoveFile,
            };
            steps.push(Step::new(&change.path, act, change.old, None, change.is_movable));
        }
        let puts = |is_directory: bool| {
            let is_put = move |change: &&&Change| {
                change.act != Act::Delete && (change.kind == Kind::Directory) == is_directory
            };
            changes.iter().filter(is_put)
        };
        for change in puts(true).chain(puts(false)) {
            let own = c_name(steps.len().to_string().as_bytes())?;
            match self.put(change, &own) {
                Ok(staged) => {
                    let act = match change.kind {
                        Kind::Directory => journal::Act::MakeDirectory,
                        Kind::File | Kind::Link | Kind::Other => journal::Act::Put,
                    };
                    let staged = Some(staged);
                    let path = &change.path;
                    steps.push(Step::new(path, act, change.old, staged, change.is_movable));
                }
                // Not the file that was judged, or not to be read.
                Err(errno @ (Errno::ESTALE | Errno::EACCES | Errno::ELOOP)) => {
                    // The next step has the same name in the staging directory.
                    match unlinkat(&self.directory, own.as_c_str(), UnlinkatFlags::NoRemoveDir) {
                        Ok(()) | Err(Errno::ENOENT) => {}
                        Err(errno) => return Err(errno),
                    }
                    let why =
                        if errno == Errno::ESTALE { Left::Changed } else { Left::Errno(errno) };
                    left.push((change.path.clone(), why));
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok((steps, left))
    }

    /// Makes the new file of a change under a name of the staging directory.
    fn put(&self, change: &Change, own: &CStr) -> Result<Seen, Errno> {
        let (directory, name) = split(&change.path);
        let from = open_directory(self.upper, directory)?;
        let name = c_name(name)?;
        let new = change.new.ok_or(Errno::EINVAL)?;
        let seen = look(&from, &name)?.ok_or(Errno::ESTALE)?;
        if !seen.is_unchanged(&new) {
            return Err(Errno::ESTALE);
        }
        let owner = match (self.is_root, change.old) {
            (false, _) => None,
            (true, Some(old)) => Some(old.owner),
            (true, None) => Some(self.owner_above(directory)?),
        };
        match change.kind {
            Kind::Directory => self.make_directory(own, owner)?,
            Kind::Link => self.make_link(&link(&from, &name)?, own, &new, owner)?,
            Kind::File => {
                let file = File::from(open_file(&from, &name)?);
                self.copy(file, change, &new, own, owner)?;
            }
            Kind::Other => return Err(Errno::EINVAL),
        }
        look(&self.directory, own)?.ok_or(Errno::ESTALE)
    }

    /// Returns the owner of the nearest directory of the host on the way to a path.
    fn owner_above(&self, mut directory: &[u8]) -> Result<(u32, u32), Errno> {
        loop {
            match open_directory(self.host, directory) {
                Ok(held) => {
                    let status = fstat(&held)?;
                    return Ok((status.st_uid, status.st_gid));
                }
                Err(Errno::ENOENT | Errno::ENOTDIR) if !directory.is_empty() => {
                    directory = split(directory).0;
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    fn make_directory(&self, own: &CStr, owner: Option<(u32, u32)>) -> Result<(), Errno> {
        mkdirat(&self.directory, own, Mode::S_IRWXU)?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let made = openat(&self.directory, own, flags, Mode::empty())?;
        give(&made, owner)?;
        fchmod(&made, Mode::from_bits_truncate(0o777 & !self.mask))
    }

    fn make_link(
        &self,
        text: &[u8],
        own: &CStr,
        new: &Seen,
        owner: Option<(u32, u32)>,
    ) -> Result<(), Errno> {
        symlinkat(text, &self.directory, own)?;
        if let Some((uid, gid)) = owner {
            let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
            let uid = Uid::from_raw(uid);
            let gid = Gid::from_raw(gid);
            fchownat(&self.directory, own, Some(uid), Some(gid), flags)?;
        }
        let flags = UtimensatFlags::NoFollowSymlink;
        utimensat(&self.directory, own, &TimeSpec::UTIME_OMIT, &time(new), flags)
    }

    fn copy(
        &self,
        mut from: File,
        change: &Change,
        new: &Seen,
        own: &CStr,
        owner: Option<(u32, u32)>,
    ) -> Result<(), Errno> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let mut to = File::from(openat(&self.directory, own, flags, mode)?);
        let copied = std::io::copy(&mut from, &mut to).map_err(|error| errno_of(&error))?;
        if i64::try_from(copied) != Ok(new.size) || !Seen::from(&fstat(&from)?).is_unchanged(new) {
            return Err(Errno::ESTALE);
        }
        give(&to, owner)?;
        // Never a set-id bit: only whether the file can be executed is the layer's.
        let base = match change.old.filter(|old| old.is(libc::S_IFREG)) {
            Some(old) => old.mode & 0o777,
            None => 0o666 & !self.mask,
        };
        let mode = match new.mode & 0o111 {
            0 => base & !0o111,
            // Users that may read the file may execute it.
            _ => base | (base & 0o444) >> 2,
        };
        fchmod(&to, Mode::from_bits_truncate(mode))?;
        futimens(&to, &TimeSpec::UTIME_OMIT, &time(new))
    }
}

fn time(seen: &Seen) -> TimeSpec {
    TimeSpec::new(seen.modified.0, seen.modified.1)
}

fn give(file: impl std::os::fd::AsFd, owner: Option<(u32, u32)>) -> Result<(), Errno> {
    match owner {
        Some((uid, gid)) => fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
