//! Applies changes of a layer to the directory of the host.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{Mode, UtimensatFlags, fstat, futimens, mkdirat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use super::change::{Act, Change, Kind};
use super::copy::{Space, copy};
use super::files::{DIRECTORY, Seen, c_name, look, open_directory, open_file, split};
use super::journal::{self, Finished};
use super::layer::Layer;
use super::owner::Owner;
use super::records::Stopped;
use super::rights::{self, Rights};
use super::staging_directory;
use super::step::{self, Left, Step};

/// Why an apply ended before all changes were tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Nothing has changed on the host.
    Before(Errno),
    /// The steps are recorded: the next review or start keeps those that were taken.
    During(Stopped),
}

/// Applies these changes.
///
/// # Errors
/// A file that cannot be staged, such as on a full disk, or a step after that.
pub(crate) fn apply(layer: &Layer, changes: &[&Change]) -> Result<Finished, Failed> {
    let host = layer.host().map_err(Failed::Before)?;
    let upper = layer.upper().map_err(Failed::Before)?;
    let owner = layer.base.owner;
    let staged = Staging::make(&layer.directory, &host, &upper, owner).and_then(|mut staging| {
        let (steps, left) = staging.stage(changes)?;
        let since = layer.base.since;
        journal::record(&layer.directory, &staging.directory, &host, since, steps)?;
        Ok(left)
    });
    let finish = || journal::finish(&layer.directory, &upper, &host, owner);
    match staged {
        Ok(mut left) => {
            let mut finished = finish().map_err(Failed::During)?;
            finished.left.append(&mut left);
            Ok(finished)
        }
        // Without a journal this removes what was staged.
        Err(errno) => match finish() {
            Ok(_) => Err(Failed::Before(errno)),
            Err(stopped) => Err(Failed::During(stopped)),
        },
    }
}

/// The staging directory of an apply.
struct Staging<'a> {
    directory: OwnedFd,
    host: &'a OwnedFd,
    upper: &'a OwnedFd,
    owner: Owner,
    umask: u32,
    space: Space,
}

impl<'a> Staging<'a> {
    fn make(
        layer: &OwnedFd,
        host: &'a OwnedFd,
        upper: &'a OwnedFd,
        owner: Owner,
    ) -> Result<Self, Errno> {
        let space = Space::of(host)?;
        let directory = staging_directory::make(layer, host, owner)?;
        let umask = nix::sys::stat::umask(Mode::S_IRWXG | Mode::S_IRWXO);
        nix::sys::stat::umask(umask);
        Ok(Self { directory, host, upper, owner, umask: umask.bits(), space })
    }

    /// Makes the new files, and the steps in the order in which they are taken: removals, then
    /// directories, then files.
    #[expect(clippy::type_complexity, reason = "the steps, and the paths that have none")]
    fn stage(&mut self, changes: &[&Change]) -> Result<(Vec<Step>, Vec<(Vec<u8>, Left)>), Errno> {
        let removals = changes.iter().filter(|change| change.act == Act::Delete);
        let mut puts_staged = Vec::new();
        let mut left: Vec<(Vec<u8>, Left)> = Vec::new();
        let first = removals.clone().count();
        let puts = |is_directory: bool| {
            let is_put = move |change: &&&Change| {
                change.act != Act::Delete && (change.kind == Kind::Directory) == is_directory
            };
            changes.iter().filter(is_put)
        };
        for change in puts(true).chain(puts(false)) {
            let own = own_name(first + puts_staged.len())?;
            match self.put(change, &own) {
                Ok(staged) => {
                    let act = match change.kind {
                        Kind::Directory => step::Act::MakeDirectory,
                        Kind::File | Kind::Link | Kind::Other => step::Act::Put,
                    };
                    let staged = Some(staged);
                    let path = &change.path;
                    puts_staged.push(Step::new(path, act, change.old, staged, change.is_movable));
                }
                Err(errno) if is_of_the_machine(errno) => return Err(errno),
                // Not the file that was judged, not to be read, or not for this filesystem.
                Err(errno) => {
                    // The next step has the same name in the staging directory.
                    self.owner.during(|| self.remove(&own))?;
                    let why =
                        if errno == Errno::ESTALE { Left::Changed } else { Left::Errno(errno) };
                    left.push((change.path.clone(), why));
                }
            }
        }
        let mut steps = Vec::new();
        let failed: BTreeMap<Vec<u8>, Left> = left.iter().cloned().collect();
        for change in removals {
            // Without what takes its place, it stays.
            if let Some(why) = at_or_above(&change.path, &failed) {
                left.push((change.path.clone(), why));
                continue;
            }
            let act = match change.kind {
                Kind::Directory => step::Act::RemoveDirectory,
                Kind::File | Kind::Link | Kind::Other => step::Act::RemoveFile,
            };
            steps.push(Step::new(&change.path, act, change.old, None, change.is_movable));
        }
        // The number of a step is the name of its file.
        for (at, step) in puts_staged.into_iter().enumerate() {
            if steps.len() != first + at {
                let from = own_name(first + at)?;
                let to = own_name(steps.len())?;
                let directory = &self.directory;
                let rename = || renameat(directory, from.as_c_str(), directory, to.as_c_str());
                self.owner.during(rename)?;
            }
            steps.push(step);
        }
        Ok((steps, left))
    }

    fn remove(&self, own: &CStr) -> Result<(), Errno> {
        match unlinkat(&self.directory, own, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::EISDIR) => unlinkat(&self.directory, own, UnlinkatFlags::RemoveDir),
            Err(errno) => Err(errno),
        }
    }

    /// Makes the new file of a change under a name of the staging directory. The layer is read with
    /// the rights of this process, and the file is made with those of the directory's owner.
    fn put(&mut self, change: &Change, own: &CStr) -> Result<Seen, Errno> {
        let (directory, name) = split(&change.path);
        let from = open_directory(self.upper, directory)?;
        let name = c_name(name)?;
        let new = change.new.ok_or(Errno::EINVAL)?;
        let seen = look(&from, &name)?.ok_or(Errno::ESTALE)?;
        if !is_as_judged(&seen, &new) {
            return Err(Errno::ESTALE);
        }
        let owner = self.owner;
        match change.kind {
            Kind::Directory => owner.during(|| self.make_directory(own, directory))?,
            // The text that was judged: cells may have put another link here since.
            Kind::Link => {
                let text = change.target.as_deref().ok_or(Errno::EINVAL)?;
                owner.during(|| self.make_link(text, own, &new))?;
            }
            Kind::File => {
                let file = File::from(open_file(&from, &name)?);
                owner.during(|| self.copy(&file, change, &new, own))?;
            }
            Kind::Other => return Err(Errno::EINVAL),
        }
        look(&self.directory, own)?.ok_or(Errno::ESTALE)
    }

    /// Returns the rights of new files in a directory: those that the nearest directory of the host on
    /// the way to it gives.
    fn new_rights(&self, mut directory: &[u8]) -> Result<Rights, Errno> {
        loop {
            match open_directory(self.host, directory) {
                Ok(held) => return Rights::of_new(&held, self.umask),
                Err(Errno::ENOENT | Errno::ENOTDIR) if !directory.is_empty() => {
                    directory = split(directory).0;
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Returns the rights of a file that replaces another.
    fn kept_rights(&self, path: &[u8], old: &Seen) -> Result<Rights, Errno> {
        let (directory, name) = split(path);
        let parent = open_directory(self.host, directory)?;
        match open_file(&parent, &c_name(name)?) {
            Ok(file) => Rights::of_replaced(&file, old),
            Err(Errno::EACCES | Errno::EPERM) => Ok(Rights::of_unreadable(old)),
            Err(_) => Err(Errno::ESTALE),
        }
    }

    fn make_directory(&self, own: &CStr, parent: &[u8]) -> Result<(), Errno> {
        mkdirat(&self.directory, own, Mode::S_IRWXU)?;
        let made = openat(&self.directory, own, DIRECTORY, Mode::empty())?;
        self.new_rights(parent)?.give(&made, rights::Kind::Directory)
    }

    fn make_link(&self, text: &[u8], own: &CStr, new: &Seen) -> Result<(), Errno> {
        symlinkat(text, &self.directory, own)?;
        let flags = UtimensatFlags::NoFollowSymlink;
        utimensat(&self.directory, own, &TimeSpec::UTIME_OMIT, &time(new), flags)
    }

    fn copy(&mut self, from: &File, change: &Change, new: &Seen, own: &CStr) -> Result<(), Errno> {
        let rights = match change.old.filter(|old| old.is(libc::S_IFREG)) {
            Some(old) => self.kept_rights(&change.path, &old)?,
            None => self.new_rights(split(&change.path).0)?,
        };
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let to = File::from(openat(&self.directory, own, flags, mode)?);
        copy(from, &to, new.size, &mut self.space)?;
        if !is_as_judged(&Seen::from(&fstat(from)?), new) {
            return Err(Errno::ESTALE);
        }
        let kind = match new.mode & 0o111 {
            0 => rights::Kind::File,
            _ => rights::Kind::Executable,
        };
        rights.give(&to, kind)?;
        futimens(&to, &TimeSpec::UTIME_OMIT, &time(new))
    }
}

/// Returns the name in the staging directory for the file of a step.
fn own_name(number: usize) -> Result<CString, Errno> {
    c_name(number.to_string().as_bytes())
}

/// Returns why nothing was staged at a path or at a directory around it; `None` if that did not fail.
fn at_or_above(mut path: &[u8], failed: &BTreeMap<Vec<u8>, Left>) -> Option<Left> {
    if failed.is_empty() {
        return None;
    }
    loop {
        match failed.get(path) {
            None if path.is_empty() => return None,
            None => path = split(path).0,
            Some(why) => return Some(*why),
        }
    }
}

/// Returns true if a file of the layer is the one that was judged. Cells can set the time of its
/// contents, and not that of its last change.
fn is_as_judged(seen: &Seen, judged: &Seen) -> bool {
    seen.is_unchanged(judged) && seen.changed == judged.changed
}

/// Returns true if the next file would meet the same error, whatever a cell has made of this one.
fn is_of_the_machine(errno: Errno) -> bool {
    let machines = [
        Errno::ENOSPC,
        Errno::EDQUOT,
        Errno::EIO,
        Errno::EROFS,
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOMEM,
    ];
    machines.contains(&errno)
}

fn time(seen: &Seen) -> TimeSpec {
    TimeSpec::new(seen.modified.0, seen.modified.1)
}

#[cfg(test)]
#[path = "apply_tests/mod.rs"]
mod tests;
