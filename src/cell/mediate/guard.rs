//! The name guard: applies the rules of [`names`] to a directory that is held.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstat, fstatat, stat};
use nix::sys::statvfs::{FsFlags, fstatvfs};

use super::Mediation;
use super::names::{self, COMMONDIR, Depth, DirectoryClass, HEAD, NameClass, OBJECTS, Renames};
use super::paths::{Spot, TargetThread};
use sys::{Result, lookup, mount};

/// Private filesystems of a cell: `/tmp`, `/dev/shm`, `/workspace`, and the one of granted sockets.
const PRIVATE: usize = 4;

/// What the kernel puts after the path of a file whose name is gone (proc_pid_fd(5)).
const DELETED: &[u8] = b" (deleted)";

/// A filesystem of the cell's own that it may share with others of its session.
const WORKSPACE: &CStr = c"/workspace";

/// Decides on names, in the init of one cell.
#[derive(Debug)]
pub struct NameGuard<'a> {
    /// Places that a configuration names, none of which may be made or written to: directory and name.
    named: &'a [(Vec<u8>, Vec<u8>)],
    /// Names that the operator guards.
    also: &'a [Vec<u8>],
    /// A procfs of the cell's pid namespace that is mounted nowhere.
    pub proc: OwnedFd,
    /// Device numbers of the cell's own filesystems; unused entries are 0, which no file has.
    private: [u64; PRIVATE],
    /// Number of entries, from the first, that are filesystems of this cell alone.
    own: usize,
    /// Number of the mount of the workspace's cache. Its device number says nothing: the workspace mostly is on the
    /// same filesystem.
    cache: Option<u64>,
    /// Device number of a `/workspace` of the cell's session, which its other cells have too; else 0.
    workspace: u64,
}

impl<'a> NameGuard<'a> {
    pub fn new(guard: &'a Mediation, proc: OwnedFd) -> Result<Self> {
        let mut private = [0; PRIVATE];
        let mut workspace = 0;
        for (place, path) in private.iter_mut().zip(guard.private.iter().chain(&guard.sockets)) {
            *place = stat(path.as_c_str())?.st_dev;
            if path.as_c_str() == WORKSPACE {
                workspace = *place;
            }
        }
        let cache = guard.cache.as_deref().map(mount::mount_id).transpose()?;
        let own = guard.private.len();
        Ok(Self { named: &guard.named, also: &guard.also, proc, private, own, cache, workspace })
    }

    /// Decides what a rename may move from one spot to the other.
    pub fn renames(&self, from: &Spot, to: &Spot) -> Result<Renames> {
        let (from_depth, to_depth) = (self.depth(&from.parent)?, self.depth(&to.parent)?);
        Ok(names::renames((from_depth, from.name()), (to_depth, to.name())))
    }

    /// Returns true if a directory is on one of the cell's own filesystems.
    pub fn is_private(&self, directory: impl AsFd) -> Result<bool> {
        Ok(self.private.contains(&fstat(directory)?.st_dev))
    }

    /// Returns true if every name may be made in a directory: one of the cell's own filesystems, or of the cache.
    /// The kernel neither renames nor links from one mount to another (EXDEV), also of one filesystem.
    pub fn is_free(&self, directory: impl AsFd) -> Result<bool> {
        let Some(cache) = self.cache else { return self.is_private(directory) };
        let (device, mount) = mount::device_and_mount(directory)?;
        Ok(mount == cache || self.private.contains(&device))
    }

    /// Returns true if a file is on a filesystem that no other cell has.
    pub(crate) fn is_own(&self, file: impl AsFd) -> Result<bool> {
        let device = fstat(file)?.st_dev;
        Ok(self.private.iter().take(self.own).any(|own| *own == device))
    }

    /// Returns whether this init alone makes names in a directory. The kernel lets nobody else turn a part of a path
    /// into a link there between a look and the act.
    pub fn is_alone(&self, directory: impl AsFd) -> Result<bool> {
        let device = fstat(&directory)?.st_dev;
        Ok(device != self.workspace && self.is_own(directory)?)
    }

    /// Returns true if this name must not be made here, also in doubt.
    pub(crate) fn is_guarded(&self, spot: &Spot) -> Result<bool> {
        if self.is_free(&spot.parent)? {
            return Ok(false);
        }
        let mut buffer = [0; 4096];
        let directory = self.path(&spot.parent, &mut buffer)?;
        if self.is_named(directory, spot.name()) || self.is_within(spot, directory)? {
            return Ok(true);
        }
        if names::is_one_of(self.also, spot.name()) {
            return Ok(true);
        }
        let kind = NameClass::of(spot.name());
        match kind {
            NameClass::Plain | NameClass::Holder => Ok(false),
            NameClass::Obeyed => Ok(true),
            NameClass::Part if names::is_hooks(directory, spot.name()) => Ok(true),
            NameClass::Head { exact: false } if !may_fold(&spot.parent)? => Ok(false),
            NameClass::Head { .. }
            | NameClass::Part
            | NameClass::Commondir
            | NameClass::Objects
            | NameClass::Attributes
            | NameClass::OldRemotes
            | NameClass::Info => Ok(self.place(&spot.parent, Depth::of(directory))?.refuses(kind)),
        }
    }

    /// Returns true if this name may be a directory's or a file's, but neither a link's nor one that a directory gets
    /// later: it could have in it what must not be made under this name.
    pub(crate) fn is_holder(&self, spot: &Spot) -> Result<bool> {
        Ok(NameClass::of(spot.name()) == NameClass::Holder && !self.is_free(&spot.parent)?)
    }

    /// Returns true if no directory of this name must be made here, also in doubt.
    pub(crate) fn is_guarded_directory(&self, spot: &Spot) -> Result<bool> {
        if names::is_one_of(self.also, spot.name()) {
            return self.is_guarded(spot);
        }
        match NameClass::of(spot.name()) {
            NameClass::Info if !self.is_free(&spot.parent)? => {
                let mut buffer = [0; 4096];
                let directory = self.path(&spot.parent, &mut buffer)?;
                Ok(self.is_named(directory, spot.name()) || self.is_within(spot, directory)?)
            }
            NameClass::Plain
            | NameClass::Obeyed
            | NameClass::Head { .. }
            | NameClass::Part
            | NameClass::Commondir
            | NameClass::Objects
            | NameClass::Attributes
            | NameClass::Holder
            | NameClass::OldRemotes
            | NameClass::Info => self.is_guarded(spot),
        }
    }

    /// Returns true if the file here must not be written to: the mount over it is gone if the host has
    /// replaced it since the grant, as git does with its configuration. A HEAD alone names nothing to run.
    pub fn keeps(&self, spot: &Spot) -> Result<bool> {
        if names::is_one_of(self.also, spot.name()) {
            return self.is_guarded(spot);
        }
        match NameClass::of(spot.name()) {
            NameClass::Head { .. } if !self.is_free(&spot.parent)? => {
                let mut buffer = [0; 4096];
                let directory = self.path(&spot.parent, &mut buffer)?;
                self.is_within(spot, directory)
            }
            NameClass::Plain
            | NameClass::Obeyed
            | NameClass::Head { .. }
            | NameClass::Part
            | NameClass::Commondir
            | NameClass::Objects
            | NameClass::Attributes
            | NameClass::Holder
            | NameClass::OldRemotes
            | NameClass::Info => self.is_guarded(spot),
        }
    }

    /// Returns true if a held file must not be written to, by the name that it has now.
    pub(crate) fn keeps_file(&self, file: &OwnedFd) -> Result<bool> {
        let mut buffer = [0; 4096];
        let path = self.path(file, &mut buffer)?;
        if path.first() != Some(&b'/') || self.is_free(file)? {
            // A pipe, a socket, or a file that no name guards.
            return Ok(false);
        }
        let found = fstat(file)?;
        // Without a name no program finds it, and no cell can give it one again.
        let is_nameless = found.st_nlink == 0 || path.ends_with(DELETED);
        match Spot::as_named(path) {
            // A file that was granted alone. Another file: the cell has put another directory on the way since.
            Ok(spot) if self.is_free(&spot.parent)? => {
                let there = fstatat(&spot.parent, spot.last()?, AtFlags::AT_SYMLINK_NOFOLLOW)?;
                Ok((there.st_dev, there.st_ino) != (found.st_dev, found.st_ino))
            }
            Ok(spot) => self.keeps(&spot),
            Err(Errno::ENOENT) if is_nameless => Ok(false),
            // Its directory was moved since, or a link came in its place.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// Returns true if a directory lies in a place that the host obeys. If its mount is read-only, the
    /// kernel refuses by itself.
    fn is_within(&self, spot: &Spot, directory: &[u8]) -> Result<bool> {
        let within = names::has_obeyed(directory)
            || names::parts(directory).any(|part| names::is_one_of(self.also, part))
            || self.named.iter().any(|(parent, name)| is_within(directory, parent, name))
            || is_of_repository(&spot.parent, directory)?;
        Ok(within && !fstatvfs(&spot.parent)?.flags().contains(FsFlags::ST_RDONLY))
    }

    /// Returns true if a configuration names this place, or one below it: the cell could move a directory
    /// on the way aside that the host has replaced, and put another one in its place.
    fn is_named(&self, directory: &[u8], name: &[u8]) -> bool {
        self.named.iter().any(|(parent, named)| {
            let mut place = names::parts(parent).chain([named.as_slice()]);
            let mut here = names::parts(directory).chain([name]);
            here.all(|part| place.next().is_some_and(|other| names::may_be_same(part, other)))
        })
    }

    fn place(&self, directory: &OwnedFd, depth: Depth) -> Result<DirectoryClass> {
        let head = has(directory, HEAD)?;
        let is_repository = || Ok(head && (has(directory, OBJECTS)? || has(directory, COMMONDIR)?));
        Ok(match depth {
            Depth::Without if head => DirectoryClass::Headed,
            Depth::Without => DirectoryClass::WorkTree,
            Depth::Top => DirectoryClass::Repository,
            // Repository of a submodule or a linked worktree, which existed before.
            Depth::Inside if is_repository()? => DirectoryClass::Repository,
            Depth::Inside => DirectoryClass::Inside,
            Depth::Branches => DirectoryClass::Branches,
            Depth::Remotes | Depth::Logs => DirectoryClass::Remotes,
            Depth::Refs | Depth::References => DirectoryClass::References,
        })
    }

    fn depth(&self, directory: &OwnedFd) -> Result<Depth> {
        self.path(directory, &mut [0; 4096]).map(Depth::of)
    }

    /// Returns init itself, as a process in the procfs.
    pub fn own(&self) -> TargetThread<'_> {
        TargetThread { proc: self.proc.as_fd(), pid: 1 }
    }

    /// Opens a held file again, with other flags.
    pub(crate) fn open_held(&self, held: &OwnedFd, flags: OFlag) -> Result<OwnedFd> {
        let number = u32::try_from(held.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        self.own().descriptor(number, flags)
    }

    /// Returns true if a path leads from a directory to a spot without a link or `..` on the way.
    pub(crate) fn leads_straight(&self, from: &OwnedFd, path: &[u8], spot: &Spot) -> Result<bool> {
        let (mut start, mut end) = ([0; 4096], [0; 4096]);
        let start = if path.starts_with(b"/") { &[][..] } else { self.path(from, &mut start)? };
        let end = self.path(&spot.parent, &mut end)?;
        let path = names::parts(path).filter(|part| *part != b".");
        let walked = names::parts(start).chain(path);
        Ok(walked.eq(names::parts(end).chain([spot.name()])))
    }

    /// Returns the path of a held directory in the cell.
    pub fn path<'b>(&self, directory: &OwnedFd, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
        let mut entry = [0; 64];
        let entry = self.own().entry(&mut entry, format_args!("fd/{}", directory.as_raw_fd()))?;
        lookup::read_link(&self.proc, entry, buffer)
    }
}

fn has(directory: &OwnedFd, name: &str) -> Result<bool> {
    match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns true if a directory is one of a repository's own for hooks or remotes, or below it. A directory of sources
/// with such a name has no HEAD beside it. The HEAD of a `.git` is not looked for, as it may be moved away and back.
fn is_of_repository(directory: &OwnedFd, path: &[u8]) -> Result<bool> {
    const DEEPEST: usize = 32;
    const UP: &str = "../";
    let mut parts = path.rsplit(|byte| *byte == b'/').enumerate().peekable();
    while let Some((level, part)) = parts.next() {
        let words = ["hooks"].into_iter().chain(names::OLD_REMOTES);
        if !words.into_iter().any(|word| names::may_be(part, word)) {
            continue;
        }
        if parts.peek().is_some_and(|(_, above)| names::may_be(above, names::GIT)) {
            return Ok(true);
        }
        let mut above = [0; DEEPEST * UP.len() + HEAD.len()];
        let length = (level + 1) * UP.len() + HEAD.len();
        // Deeper than hooks are ever kept: treated as hooks.
        let Some(above) = above.get_mut(..length) else { return Ok(true) };
        let (up, head) = above.split_at_mut(length - HEAD.len());
        up.chunks_mut(UP.len()).for_each(|step| step.copy_from_slice(UP.as_bytes()));
        head.copy_from_slice(HEAD.as_bytes());
        if has(directory, std::str::from_utf8(above).map_err(|_| Errno::EINVAL)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if a path is `parent/name`, or lies beneath.
fn is_within(path: &[u8], parent: &[u8], name: &[u8]) -> bool {
    let mut place = names::parts(parent).chain([name]);
    let mut here = names::parts(path);
    place.all(|part| here.next().is_some_and(|other| names::may_be_same(other, part)))
}

fn may_fold(directory: &OwnedFd) -> Result<bool> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match openat(directory, c".", flags, Mode::empty()) {
        Ok(opened) => lookup::may_fold(opened),
        // An unreadable directory is not looked at.
        Err(Errno::EACCES) => Ok(true),
        Err(errno) => Err(errno),
    }
}
