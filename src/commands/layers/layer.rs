//! A layer: the directory that it belongs to, and what a start or a review does with it.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use serde::{Deserialize, Serialize};

use super::files::{
    DIRECTORY, Identity, Seen, Stamp, decoded, encoded, is_empty, is_kind, look, open_directory_at,
    read_file, remove_file, write_file,
};
use super::journal::{self, Interrupted};
use super::lock::{LOCK, lock};
use super::owner::Owner;
use super::records::Stopped;
use super::staging_directory;
use crate::commands::format::plain;
use cell::c_path;
use cell::removal::{open_with_access, put_aside, remove_all};
use sys::xattr;

/// Version of [`BASE`].
const VERSION: u8 = 2;
/// Directories of an overlay in the directory of a layer.
pub(crate) const UPPER: &str = "upper";
const WORK: &str = "work";
/// The file that says which directory the layer belongs to. Written last, so that a layer with it is
/// complete.
const BASE: &str = "base.json";
/// Prefix of parts that are being removed.
const GONE: &str = "gone-";
/// Longest file that is read from the directory of a layer, apart from its journal.
const MAX_FILE_BYTES: u64 = 64 << 10;
const SECONDS_PER_DAY: i64 = 86_400;
/// Maximum depth of directories that are looked at for the last change: two descriptors for each.
const MAX_DEPTH: u16 = 128;
/// An attribute that overlayfs sets on files of a layer.
const ATTRIBUTE: &CStr = c"user.overlay.cofferdam";

/// Start of the names of all attributes that overlayfs sets, and of those that it stores for a cell which
/// sets one of such a name.
const OVERLAYS: &[u8] = b"user.overlay.";
const ESCAPED: &[u8] = b"user.overlay.overlay.";

/// What a layer belongs to, and since when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Base {
    version: u8,
    /// Path of the directory on the host, without links, with bytes other than plain characters as
    /// `%XX`.
    path: String,
    /// The directory that was at the path.
    identity: Identity,
    /// Owner of the directory, with whose rights root applies changes.
    pub owner: Owner,
    /// Time after which a change of a file in the directory is one that the layer does not know.
    pub since: Stamp,
    /// Names that the operator guarded at the starts that used the layer.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub guard_names: BTreeSet<String>,
}

impl Base {
    /// Returns the path of the directory on the host.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&decoded(&self.path)))
    }

    /// Returns true if the layer belongs to the directory that is at a path now.
    pub(super) fn is_of(&self, path: &Path, now: Identity) -> bool {
        self.path() == path && self.identity == now
    }
}

/// A layer whose directory is open.
#[derive(Debug)]
pub(crate) struct Layer {
    pub id: String,
    /// Path without links.
    pub path: PathBuf,
    pub directory: OwnedFd,
    pub base: Base,
    /// Held by a start with cells in the layer, and by a review that changes it.
    pub lock: Option<Flock<File>>,
    /// Held while changes are applied.
    pub applying: Option<Flock<OwnedFd>>,
}

impl Layer {
    /// Opens the directory that has the changes. A cell may have closed it to its owner: then it gets
    /// the rights of its owner again.
    pub(crate) fn upper(&self) -> Result<OwnedFd, Errno> {
        let opened = openat(&self.directory, UPPER, DIRECTORY, Mode::empty());
        // A cell may have left it readable but not searchable.
        match opened.and_then(|upper| look(&upper, c".").map(|_| upper)) {
            Err(Errno::EACCES) => {
                open_with_access(&self.directory, &c_path(UPPER.as_ref())?)?;
                openat(&self.directory, UPPER, DIRECTORY, Mode::empty())
            }
            opened => opened,
        }
    }

    /// Returns true unless the layer is known to have no change and no interrupted apply.
    pub(crate) fn has_changes(&self) -> bool {
        let is_without = match self.upper().and_then(|upper| is_empty(&upper)) {
            // Its removal was interrupted.
            Err(Errno::ENOENT) => true,
            is_empty => is_empty == Ok(true),
        };
        !is_without || self.is_unfinished()
    }

    /// Returns true unless no apply of the layer was interrupted, or is running now.
    pub(crate) fn is_unfinished(&self) -> bool {
        journal::is_unfinished(&self.directory) != Ok(false)
    }

    /// Opens the directory that the changes are to.
    ///
    /// # Errors
    /// ESTALE: another directory is at the path now, or its owner is another one.
    pub(crate) fn host(&self) -> Result<OwnedFd, Errno> {
        let directory = open_directory_at(&self.base.path())?;
        let is_it = Identity::of(&directory)? == self.base.identity
            && self.base.owner.has(&fstat(&directory)?);
        if is_it { Ok(directory) } else { Err(Errno::ESTALE) }
    }

    /// Locks the layer, unless this process has it already.
    ///
    /// # Errors
    /// EBUSY: cells use the layer, or another review changes it.
    pub(crate) fn lock(&mut self) -> Result<(), Errno> {
        if self.lock.is_none() {
            self.lock = Some(lock(&self.directory)?.ok_or(Errno::EBUSY)?);
        }
        Ok(())
    }

    /// Waits until no other apply of this user runs: two at once in one directory, or in one within the
    /// other, would each take the other's steps for changes of the host. Says so if it has to wait.
    ///
    /// # Errors
    /// The errno of flock(2).
    pub(crate) fn begin_apply(&mut self) -> Result<(), Errno> {
        if self.applying.is_some() {
            return Ok(());
        }
        let layers = openat(&self.directory, "..", DIRECTORY, Mode::empty())?;
        self.applying = Some(match Flock::lock(layers, FlockArg::LockExclusiveNonblock) {
            Ok(applying) => applying,
            Err((layers, Errno::EWOULDBLOCK)) => {
                eprintln!("cofferdam: waiting until another review has applied its changes");
                Flock::lock(layers, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?
            }
            Err((_, errno)) => return Err(errno),
        });
        Ok(())
    }

    /// Locks the layer and returns true if it was not used for this many days.
    pub(super) fn lock_unused(&mut self, days: u32) -> Result<bool, Errno> {
        let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = match openat(&self.directory, LOCK, flags, Mode::empty()) {
            Err(Errno::ENOENT) => return Ok(false),
            file => File::from(file?),
        };
        let end = Stamp::now()?.0.saturating_sub(i64::from(days).saturating_mul(SECONDS_PER_DAY));
        // Only a start and a review that changes the layer write to this file.
        if Seen::from(&fstat(&file)?).modified.0 > end || self.is_unfinished() {
            return Ok(false);
        }
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return Ok(false) };
        let is_unused = Seen::from(&fstat(&*lock)?).modified.0 <= end
            // A server may have run for longer than that.
            && last_change(&self.directory, MAX_DEPTH).is_ok_and(|last| last.0 <= end);
        self.lock = Some(lock);
        Ok(is_unused)
    }

    /// Returns true if a start or another review uses the layer.
    pub(crate) fn is_in_use(&self) -> bool {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = openat(&self.directory, LOCK, flags, Mode::empty());
        let is_locked = |file| Flock::lock(File::from(file), FlockArg::LockSharedNonblock).is_err();
        self.lock.is_none() && opened.is_ok_and(is_locked)
    }

    /// Returns what no two starts with the layer have in common: each makes the work directory of the
    /// overlay, and no review changes it.
    pub(crate) fn last_start(&self) -> Result<Vec<u8>, Errno> {
        let work = look(&self.directory, &c_path(WORK.as_ref())?)?;
        let work = work.map(|work| (work.inode, work.changed));
        serde_json::to_vec(&work).map_err(|_| Errno::EINVAL)
    }

    /// Ends an apply that was interrupted, and prints how far it came: what it has written stays on the
    /// host, and the rest stays in the layer, to be judged again.
    ///
    /// # Errors
    /// ESTALE: the directory was replaced meanwhile. Otherwise what stopped it.
    pub(crate) fn end_interrupted(&mut self) -> Result<(), Stopped> {
        if !journal::is_unfinished(&self.directory)? {
            return Ok(());
        }
        self.begin_apply()?;
        let upper = self.upper()?;
        let Interrupted { written, all } =
            journal::end(&self.directory, &upper, &self.host()?, self.base.owner)?;
        if all > 0 {
            let path = plain(&self.base.path().display().to_string());
            eprintln!(
                "cofferdam: an interrupted apply had written {written} of {all} changes to {path}; the others were \
                 not written"
            );
        }
        Ok(())
    }

    /// Prepares the layer for a mount: cells have left its directories in any state.
    pub(super) fn make_ready(
        &mut self,
        host: &FileStat,
        guards: &[Vec<u8>],
    ) -> Result<(), Stopped> {
        self.end_interrupted()?;
        // Cells do not apply changes, however long they live.
        self.applying = None;
        // Work and index of the mount before. What overlayfs needs of them it makes again.
        for part in [WORK, GONE] {
            remove_all(&self.directory, part)?;
        }
        mkdirat(&self.directory, WORK, Mode::S_IRWXU)?;
        match mkdirat(&self.directory, UPPER, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        // The top of the workspace has the mode of the directory.
        let mode = Mode::from_bits_truncate(host.st_mode & 0o777) | Mode::S_IRWXU;
        fchmodat(&self.directory, UPPER, mode, FchmodatFlags::FollowSymlink)?;
        let upper = self.upper()?;
        if !is_kind(&fstat(&upper)?, libc::S_IFDIR) {
            return Err(Errno::ENOTDIR.into());
        }
        // The kernel mounts an overlay without attributes too, in which removing a directory and
        // renaming one fail. Cells may have filled the room for attributes of the top itself.
        let work = openat(&self.directory, WORK, DIRECTORY, Mode::empty())?;
        xattr::try_one(&work, ATTRIBUTE)?;
        remove_foreign_attributes(&upper)?;
        let guards = guards.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        let guards: BTreeSet<String> = guards.collect();
        if !is_empty(&upper)? {
            if !guards.is_subset(&self.base.guard_names) {
                self.base.guard_names.extend(guards);
                write_base(&self.directory, &self.base)?;
            }
        } else {
            self.base.since = Stamp::now()?;
            self.base.guard_names = guards;
            write_base(&self.directory, &self.base)?;
            journal::forget(&self.directory)?;
        }
        Ok(())
    }

    /// Removes what an interrupted apply has prepared in the directory. What stays there is named: it
    /// does not keep the layer.
    fn give_up(&self) {
        let Some(name) = staging_directory::left(&self.directory) else { return };
        let host = self.host().map_err(Stopped::Errno);
        let given_up =
            host.and_then(|host| journal::give_up(&self.directory, &host, self.base.owner));
        if let Err(why) = given_up {
            let path = plain(&self.base.path().display().to_string());
            eprintln!("cofferdam: `{name}` of {path} cannot be removed: {why}");
        }
    }

    /// Removes all changes and the layer.
    pub(crate) fn discard(mut self) -> Result<(), Errno> {
        self.lock()?;
        self.give_up();
        let layers = openat(&self.directory, "..", DIRECTORY, Mode::empty())?;
        // From here on there is no change, however far the rest gets.
        match put_aside(&self.directory, &c_path(UPPER.as_ref())?, &self.directory, GONE, &mut 0) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        remove_all(&self.directory, GONE)?;
        remove_all(&self.directory, WORK)?;
        journal::forget(&self.directory)?;
        remove_file(&self.directory, BASE)?;
        remove_file(&self.directory, LOCK)?;
        unlinkat(&layers, self.id.as_str(), UnlinkatFlags::RemoveDir)
    }
}

/// Removes the attributes and access lists that cells have set on the top of a layer: they could leave no
/// room for those of overlayfs.
fn remove_foreign_attributes(upper: &OwnedFd) -> Result<(), Errno> {
    let is_foreign = |name: &CStr| {
        let name = name.to_bytes();
        let is_overlays = name.starts_with(OVERLAYS) && !name.starts_with(ESCAPED);
        (name.starts_with(b"user.") && !is_overlays) || name.starts_with(b"system.posix_acl_")
    };
    for name in xattr::list(upper)?.iter().filter(|name| is_foreign(name)) {
        xattr::remove(upper, name)?;
    }
    Ok(())
}

pub(super) fn read_base(directory: &OwnedFd) -> Result<Base, Errno> {
    let bytes = read_file(directory, BASE, MAX_FILE_BYTES)?;
    let base: Base = serde_json::from_slice(&bytes).map_err(|_| Errno::EINVAL)?;
    if base.version == VERSION { Ok(base) } else { Err(Errno::EINVAL) }
}

/// Makes the directories of a new layer.
pub(super) fn begin(
    directory: &OwnedFd,
    host: &Path,
    identity: Identity,
    status: &FileStat,
) -> Result<Base, Errno> {
    // Parts of a layer that was not finished.
    for part in [UPPER, WORK, GONE] {
        remove_all(directory, part)?;
    }
    mkdirat(directory, UPPER, Mode::S_IRWXU)?;
    let path = encoded(host.as_os_str().as_bytes());
    let owner = Owner::of(status);
    let since = Stamp::now()?;
    let guard_names = BTreeSet::new();
    let base = Base { version: VERSION, path, identity, owner, since, guard_names };
    write_base(directory, &base)?;
    Ok(base)
}

fn write_base(directory: &OwnedFd, base: &Base) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(base).map_err(|_| Errno::EINVAL)?;
    // A longer one could not be read again.
    if u64::try_from(bytes.len()).map_or(true, |length| length > MAX_FILE_BYTES) {
        return Err(Errno::EFBIG);
    }
    write_file(directory, BASE, &bytes)
}

/// Returns the time of the last change in a directory of a layer.
///
/// # Errors
/// ELOOP: it has more directories in each other than are looked at. Otherwise the errno of one that
/// cannot be read.
fn last_change(directory: &OwnedFd, depth: u16) -> Result<Stamp, Errno> {
    if depth == 0 {
        return Err(Errno::ELOOP);
    }
    let mut last = Seen::from(&fstat(directory)?).changed;
    for entry in Dir::openat(directory, ".", DIRECTORY, Mode::empty())?.into_iter() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Some(seen) = look(directory, name)? else { continue };
        last = last.max(seen.changed);
        if seen.is(libc::S_IFDIR) {
            let inner = openat(directory, name, DIRECTORY, Mode::empty())?;
            last = last.max(last_change(&inner, depth - 1)?);
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// Makes a layer of a directory, with one change.
    fn make(root: &Path) -> std::io::Result<()> {
        let path = root.join("project-1");
        let host = root.join("project");
        fs::create_dir(&path)?;
        fs::create_dir(&host)?;
        let directory = OwnedFd::from(File::open(&path)?);
        let held = OwnedFd::from(File::open(&host)?);
        begin(&directory, &host, Identity::of(&held)?, &fstat(&held)?)?;
        drop(lock(&directory)?);
        fs::create_dir_all(path.join("upper/a/b"))?;
        fs::write(path.join("upper/a/b/file"), "text")
    }

    fn open(root: &Path) -> std::io::Result<Layer> {
        let path = root.join("project-1");
        let directory = OwnedFd::from(File::open(&path)?);
        let base = read_base(&directory)?;
        Ok(Layer { id: "project-1".to_owned(), path, directory, base, lock: None, applying: None })
    }

    #[test]
    fn a_layer_is_unused_long_after_its_last_start_and_its_last_change() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let root = root.path();
        make(root)?;
        let is_unused = |days| Ok::<_, std::io::Error>(open(root)?.lock_unused(days)?);
        assert!(is_unused(0)?);
        assert!(!is_unused(1)?);
        let held = lock(&open(root)?.directory)?;
        assert!(held.is_some() && !is_unused(0)?);
        drop(held);
        assert!(is_unused(0)?);
        // An apply was interrupted.
        let journal = root.join("project-1/journal.json");
        fs::write(&journal, "")?;
        assert!(!is_unused(0)?);
        fs::remove_file(&journal)?;
        let tomorrow = std::time::SystemTime::now() + Duration::from_secs(86_400);
        let lock = File::options().write(true).open(root.join("project-1/lock"))?;
        lock.set_modified(tomorrow)?;
        assert!(!is_unused(0)?);
        Ok(())
    }

    #[test]
    fn attributes_of_the_top_that_fill_its_room_stop_no_start() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let root = root.path();
        make(root)?;
        let mut layer = open(root)?;
        let host = fstat(OwnedFd::from(File::open(root.join("project"))?))?;
        let upper = layer.upper()?;
        xattr::set(&upper, c"user.overlay.opaque", b"y")?;
        xattr::set(&upper, c"user.overlay.overlay.opaque", b"y")?;
        // As much as the filesystem takes, and at most a few blocks.
        for number in 0..64 {
            let name = std::ffi::CString::new(format!("user.f{number}"))?;
            if [3_000, 300, 30, 1]
                .iter()
                .all(|size| xattr::set(&upper, &name, &vec![0; *size]).is_err())
            {
                break;
            }
        }
        assert!(xattr::list(&upper)?.len() > 2);
        assert_eq!(layer.make_ready(&host, &[]), Ok(()));
        assert_eq!(xattr::list(&upper)?, [c"user.overlay.opaque".to_owned()]);
        Ok(())
    }

    #[test]
    fn the_last_change_of_a_layer_may_be_deep_in_it() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let root = root.path();
        make(root)?;
        std::thread::sleep(Duration::from_millis(20));
        let file = root.join("project-1/upper/a/b/file");
        // A cell can set the time of the contents, and not that of the change.
        File::options().write(true).open(&file)?.set_modified(std::time::UNIX_EPOCH)?;
        let directory = open(root)?.directory;
        let deep = OwnedFd::from(File::open(&file)?);
        let changed = Seen::from(&fstat(&deep)?).changed;
        assert_eq!(last_change(&directory, MAX_DEPTH), Ok(changed));
        assert_eq!(last_change(&directory, 3), Err(Errno::ELOOP));
        Ok(())
    }
}
