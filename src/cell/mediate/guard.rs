//! The name guard: applies the rules of [`names`] to directories that init holds.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat, stat};
use nix::sys::statvfs::{FsFlags, fstatvfs};

use super::Mediation;
use super::names::{
    self, COMMONDIR, Depth, DirectoryClass, GIT, HEAD, NameClass, OBJECTS, RESOLUTIONS, Renames,
};
use super::paths::{Spot, TargetThread};
use super::records::Record;
use sys::{Result, lookup, mount};

/// Maximum number of private filesystems of a cell: `/tmp`, `/dev/shm`, `/workspace`, and that of
/// granted sockets.
const MAX_PRIVATE: usize = 4;

/// Suffix of the path of a file that has no name any more (proc_pid_fd(5)).
const DELETED: &[u8] = b" (deleted)";

/// A private filesystem that the cell may share with others of its session.
const WORKSPACE: &CStr = c"/workspace";

/// Decides which names a cell may make, in its init.
#[derive(Debug)]
pub struct NameGuard<'a> {
    /// Paths that a configuration names, which must be neither made nor written to: directory and
    /// name.
    named: &'a [(Vec<u8>, Vec<u8>)],
    /// Files that are read-only under one name and must not be written to under another: device and inode number.
    shared: &'a BTreeSet<(u64, u64)>,
    /// Additional names that the operator guards.
    also: &'a [Vec<u8>],
    /// Directories of repositories that are known by their paths.
    repositories: &'a [Vec<u8>],
    /// A procfs of the cell's pid namespace that is mounted nowhere.
    pub proc: OwnedFd,
    /// Device numbers of the private filesystems; unused entries are 0, which no file has.
    private: [u64; MAX_PRIVATE],
    /// Number of leading entries of `private` that only this cell has.
    exclusive: usize,
    /// Mount id of the workspace's cache. A device number would not identify it, as the workspace
    /// is usually on the same filesystem.
    cache: Option<u64>,
    /// Device number of a `/workspace` that other cells of the session have too; else 0.
    workspace: u64,
}

/// What a guarded name would have made or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    Repository,
    Configuration,
    Other,
}

impl<'a> NameGuard<'a> {
    pub fn new(guard: &'a Mediation, proc: OwnedFd) -> Result<Self> {
        let mut private = [0; MAX_PRIVATE];
        let mut workspace = 0;
        for (device, path) in private.iter_mut().zip(guard.private.iter().chain(&guard.sockets)) {
            *device = stat(path.as_c_str())?.st_dev;
            if path.as_c_str() == WORKSPACE {
                workspace = *device;
            }
        }
        let cache = guard.cache.as_deref().map(mount::mount_id).transpose()?;
        let exclusive = guard.private.len();
        Ok(Self {
            named: &guard.named,
            shared: &guard.shared,
            also: &guard.also,
            repositories: &guard.repositories,
            proc,
            private,
            exclusive,
            cache,
            workspace,
        })
    }

    /// Decides which files may be renamed from one spot to another.
    pub fn renames(&self, from: &Spot, to: &Spot) -> Result<Renames> {
        let from_depth = self.depth(&from.parent)?;
        let to_depth = self.depth(&to.parent)?;
        let decided = names::renames((from_depth, from.name()), (to_depth, to.name()));
        let is_one = || {
            let mut one = [0; 4096];
            let mut other = [0; 4096];
            Ok(self.path(&from.parent, &mut one)? == self.path(&to.parent, &mut other)?)
        };
        if decided != Renames::Anything {
            return Ok(decided);
        }
        // What a directory may have in it depends on the repositories that are known, and cells of
        // another start know others.
        if self.is_of_others(from)? || self.is_of_others(to)? {
            return Ok(Renames::Files);
        }
        // If there is no such file, the kernel says so.
        let kind = from.kind().ok().flatten();
        let is_directory = kind == Some(SFlag::S_IFDIR);
        if from_depth != Depth::Without || (!is_directory && is_one()?) {
            return Ok(decided);
        }
        // No link, nor a directory with one, comes into a bare repository, and no directory moves in it.
        let in_bare = [self.is_in_repository(&from.parent)?, self.is_in_repository(&to.parent)?];
        Ok(match in_bare {
            [false, false] => decided,
            [true, true] if !is_directory => Renames::Files,
            _ => Renames::Regular,
        })
    }

    /// Returns true if this is in a repository's directory of submodules or linked worktrees.
    fn is_of_others(&self, spot: &Spot) -> Result<bool> {
        let mut buffer = [0; 4096];
        let directory = self.path(&spot.parent, &mut buffer)?;
        let mut after_git = names::parts(directory).skip_while(|part| !names::may_be(part, GIT));
        let first = match after_git.next() {
            Some(_) => after_git.next(),
            None => {
                // The outermost one is a granted repository.
                let rests = self.repositories.iter().filter_map(|known| below(directory, known));
                let Some(rest) = rests.max_by_key(|rest| rest.len()) else { return Ok(false) };
                names::parts(rest).next()
            }
        };
        let first = first.unwrap_or_else(|| spot.name());
        Ok(names::OTHERS.iter().any(|word| names::may_be(first, word)))
    }

    /// Returns true if a link must not be made in a directory, as that is a repository's or lies in one: git on the host
    /// writes many of its files through links, with text that a cell can choose.
    pub(crate) fn refuses_links(&self, directory: &OwnedFd) -> Result<bool> {
        Ok(!self.is_free(directory)? && self.is_in_repository(directory)?)
    }

    /// Returns true if a directory is a repository's, or lies in one.
    fn is_in_repository(&self, directory: &OwnedFd) -> Result<bool> {
        let mut buffer = [0; 4096];
        let path = self.path(directory, &mut buffer)?;
        let levels = names::parts(path).count();
        Ok(self.depth_of(path) != Depth::Without || has_head_above(directory, levels)?)
    }

    /// Returns true if a directory is on a private filesystem of the cell.
    pub fn is_private(&self, directory: impl AsFd) -> Result<bool> {
        Ok(self.private.contains(&fstat(directory)?.st_dev))
    }

    /// Returns true if any name may be made in a directory: on a private filesystem, or in the
    /// cache. The kernel refuses renames and links between mounts (EXDEV), even of one filesystem,
    /// so that no name can leave it.
    pub fn is_free(&self, directory: impl AsFd) -> Result<bool> {
        let Some(cache) = self.cache else { return self.is_private(directory) };
        let (device, mount) = mount::device_and_mount(directory)?;
        Ok(mount == cache || self.private.contains(&device))
    }

    /// Returns true if a file is on a filesystem that no other cell has.
    pub(crate) fn is_own(&self, file: impl AsFd) -> Result<bool> {
        let device = fstat(file)?.st_dev;
        Ok(self.private.iter().take(self.exclusive).any(|private| *private == device))
    }

    /// Returns true if only processes of this cell can change a directory. The kernel cannot
    /// replace a part of such a path by a link of another cell or the host between a check and its
    /// use.
    pub fn is_alone(&self, directory: impl AsFd) -> Result<bool> {
        let device = fstat(&directory)?.st_dev;
        Ok(device != self.workspace && self.is_own(directory)?)
    }

    /// Returns true if this name must not be made here, or if this is uncertain.
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
        let kind = NameClass::classify(spot.name());
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
            | NameClass::Info
            | NameClass::Index
            | NameClass::Conflicts
            | NameClass::Tables
            | NameClass::Lock => {
                Ok(self.directory_class(&spot.parent, self.depth_of(directory))?.refuses(kind))
            }
        }
    }

    /// Returns the kind of a file with paths that has its place here, and which may only be made by a rename.
    pub(crate) fn record(&self, spot: &Spot) -> Result<Option<Record>> {
        let class = NameClass::classify(spot.name());
        let record = match class {
            NameClass::Index => Record::Index,
            NameClass::Conflicts => Record::Conflicts,
            NameClass::Tables => Record::Tables,
            NameClass::Plain
            | NameClass::Obeyed
            | NameClass::Head { .. }
            | NameClass::Part
            | NameClass::Commondir
            | NameClass::Objects
            | NameClass::Attributes
            | NameClass::Holder
            | NameClass::OldRemotes
            | NameClass::Info
            | NameClass::Lock => return Ok(None),
        };
        if self.is_free(&spot.parent)? || names::is_one_of(self.also, spot.name()) {
            return Ok(None);
        }
        let mut buffer = [0; 4096];
        let directory = self.path(&spot.parent, &mut buffer)?;
        if self.is_named(directory, spot.name()) || self.is_within(spot, directory)? {
            return Ok(None);
        }
        let is_place = self.directory_class(&spot.parent, self.depth_of(directory))?.refuses(class);
        Ok(is_place.then_some(record))
    }

    /// Returns true if a guarded name is that of a new version of such a file.
    pub(crate) fn is_lock(&self, spot: &Spot) -> Result<bool> {
        let is_lock = NameClass::classify(spot.name()) == NameClass::Lock;
        if !is_lock || names::is_one_of(self.also, spot.name()) {
            return Ok(false);
        }
        let mut buffer = [0; 4096];
        let directory = self.path(&spot.parent, &mut buffer)?;
        Ok(!self.is_named(directory, spot.name()) && !self.is_within(spot, directory)?)
    }

    /// Returns what a guarded name would have made or changed.
    pub(crate) fn reason(&self, spot: &Spot) -> Result<RefusalReason> {
        if names::may_be(spot.name(), names::GIT) {
            return Ok(RefusalReason::Repository);
        }
        let mut buffer = [0; 4096];
        let depth = self.depth_of(self.path(&spot.parent, &mut buffer)?);
        let class = self.directory_class(&spot.parent, depth)?;
        Ok(match (NameClass::classify(spot.name()), class) {
            (NameClass::Part, DirectoryClass::Repository)
                if !names::may_be(spot.name(), names::HOOKS) =>
            {
                RefusalReason::Configuration
            }
            (NameClass::Head { .. }, DirectoryClass::WorkTree | DirectoryClass::Inside)
            | (
                NameClass::Part | NameClass::Commondir | NameClass::OldRemotes,
                DirectoryClass::Headed | DirectoryClass::Inside,
            ) => RefusalReason::Repository,
            _ => RefusalReason::Other,
        })
    }

    /// Returns true if this name may be given to a new directory or a file, but neither to a link
    /// nor to an existing directory, which could already contain entries that must not be made
    /// under this name.
    pub(crate) fn is_holder(&self, spot: &Spot) -> Result<bool> {
        Ok(NameClass::classify(spot.name()) == NameClass::Holder && !self.is_free(&spot.parent)?)
    }

    /// Returns true if no directory of this name must be made here, or if this is uncertain.
    pub(crate) fn is_guarded_directory(&self, spot: &Spot) -> Result<bool> {
        let is_info = NameClass::classify(spot.name()) == NameClass::Info;
        if !is_info || names::is_one_of(self.also, spot.name()) || self.is_free(&spot.parent)? {
            return self.is_guarded(spot);
        }
        let mut buffer = [0; 4096];
        let directory = self.path(&spot.parent, &mut buffer)?;
        Ok(self.is_named(directory, spot.name()) || self.is_within(spot, directory)?)
    }

    /// Returns true if this name may be given to a new file, but not to a link: `info` below the top
    /// of a repository. Git looks for nothing in a file, and `git am` makes one in
    /// `.git/rebase-apply`.
    pub(crate) fn may_be_file(&self, spot: &Spot) -> Result<bool> {
        let is_info = NameClass::classify(spot.name()) == NameClass::Info;
        if !is_info || self.is_guarded_directory(spot)? {
            return Ok(false);
        }
        let mut buffer = [0; 4096];
        let depth = self.depth_of(self.path(&spot.parent, &mut buffer)?);
        Ok(self.directory_class(&spot.parent, depth)? == DirectoryClass::Inside)
    }

    /// Returns true if the file here must not be written to. Its read-only mount disappears if the
    /// host replaces the file after the grant, as git does with its configuration. A HEAD by itself
    /// names no program to run.
    pub fn keeps(&self, spot: &Spot) -> Result<bool> {
        if self.may_be_file(spot)? {
            return Ok(false);
        }
        let is_head = matches!(NameClass::classify(spot.name()), NameClass::Head { .. });
        if !is_head || names::is_one_of(self.also, spot.name()) || self.is_free(&spot.parent)? {
            return self.is_guarded(spot);
        }
        let mut buffer = [0; 4096];
        let directory = self.path(&spot.parent, &mut buffer)?;
        Ok(self.is_named(directory, spot.name()) || self.is_within(spot, directory)?)
    }

    /// Returns true if a file here may be one that must not be written to under any name.
    pub(crate) fn may_be_shared(&self, spot: &Spot) -> Result<bool> {
        Ok(!self.shared.is_empty() || self.is_in_repository(&spot.parent)?)
    }

    /// Returns true if an open file must not be written to, according to its current name.
    pub(crate) fn keeps_file(&self, file: &OwnedFd) -> Result<bool> {
        let mut buffer = [0; 4096];
        let path = self.path(file, &mut buffer)?;
        if path.first() != Some(&b'/') || self.is_free(file)? {
            // A pipe, a socket, or a file in a directory without guarded names.
            return Ok(false);
        }
        let status = fstat(file)?;
        // The kernel refuses writes by a read-only mount.
        if self.shared.contains(&(status.st_dev, status.st_ino)) && !is_read_only(file)? {
            return Ok(true);
        }
        // No program can find a file without a name, and no cell can give it one again.
        let is_nameless = status.st_nlink == 0 || path.ends_with(DELETED);
        match Spot::as_named(path) {
            // A file that was granted by itself. A different file at its path: the cell has
            // replaced a directory in the path since.
            Ok(spot) if self.is_free(&spot.parent)? => {
                let there = fstatat(&spot.parent, spot.last()?, AtFlags::AT_SYMLINK_NOFOLLOW)?;
                Ok((there.st_dev, there.st_ino) != (status.st_dev, status.st_ino))
            }
            // The object of another repository too, of which this one is a local clone.
            Ok(spot)
                if status.st_nlink > 1
                    && self.is_in_repository(&spot.parent)?
                    && !is_read_only(file)? =>
            {
                Ok(true)
            }
            Ok(spot) => self.keeps(&spot),
            Err(Errno::ENOENT) if is_nameless => Ok(false),
            // A directory in the path was moved or replaced by a link since.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// Returns true if a directory is inside a path that the host obeys, unless its mount is
    /// read-only: then the kernel refuses writes anyway.
    fn is_within(&self, spot: &Spot, directory: &[u8]) -> Result<bool> {
        let within = names::has_obeyed(directory)
            || names::parts(directory).any(|part| names::is_one_of(self.also, part))
            || self.named.iter().any(|(parent, name)| is_within(directory, parent, name))
            || self.is_of_repository(&spot.parent, directory)?;
        Ok(within && !is_read_only(&spot.parent)?)
    }

    /// Returns true if a directory is, or lies below, a repository's directory for hooks,
    /// remotes or resolutions. A source directory with such a name has no HEAD next to it. In a repository's directory HEAD
    /// is not checked, as it could be moved away and back; references have such names too.
    fn is_of_repository(&self, directory: &OwnedFd, path: &[u8]) -> Result<bool> {
        let (mut depth, below) = match self.below_repository(path) {
            Some(below) => (Depth::Top, below),
            None => (Depth::Without, path),
        };
        for part in names::parts(below) {
            if matches!(depth, Depth::Top | Depth::Inside) && is_obeyed_in_repository(part) {
                return Ok(true);
            }
            depth = depth.below(part);
        }
        if depth != Depth::Without {
            return Ok(false);
        }
        for (level, part) in path.rsplit(|byte| *byte == b'/').enumerate() {
            if is_obeyed_in_repository(part) && has_head(directory, level + 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if this path, or one below it, is named by a configuration. Making it must be
    /// refused too: the cell could put a directory in the place of one that the host has replaced.
    fn is_named(&self, directory: &[u8], name: &[u8]) -> bool {
        self.named.iter().any(|(parent, named)| {
            let mut guarded = names::parts(parent).chain([named.as_slice()]);
            let mut here = names::parts(directory).chain([name]);
            here.all(|part| guarded.next().is_some_and(|other| names::may_be_same(part, other)))
        })
    }

    fn directory_class(&self, directory: &OwnedFd, depth: Depth) -> Result<DirectoryClass> {
        let head = has(directory, HEAD)?;
        let is_repository = || Ok(head && (has(directory, OBJECTS)? || has(directory, COMMONDIR)?));
        Ok(match depth {
            Depth::Without if head => DirectoryClass::Headed,
            Depth::Without => match self.depth_in_bare(directory)? {
                None => DirectoryClass::WorkTree,
                // No HEAD is made below a bare repository, by which a directory could be one.
                Some(Depth::Branches | Depth::Remotes) => DirectoryClass::Branches,
                Some(depth) if depth.is_of_references() => DirectoryClass::References,
                Some(_) => DirectoryClass::Inside,
            },
            Depth::Top => DirectoryClass::Repository,
            // Repository of a submodule or a linked worktree that existed before.
            Depth::Inside if is_repository()? => DirectoryClass::Repository,
            Depth::Inside => DirectoryClass::Inside,
            Depth::Branches => DirectoryClass::Branches,
            Depth::Remotes | Depth::Logs => DirectoryClass::Remotes,
            Depth::Refs | Depth::References => DirectoryClass::References,
        })
    }

    /// Returns the depth of a directory below that of a bare repository: the nearest one above with a
    /// HEAD. What else it has could be moved away for a moment.
    fn depth_in_bare(&self, directory: &OwnedFd) -> Result<Option<Depth>> {
        let mut buffer = [0; 4096];
        let path = self.path(directory, &mut buffer)?;
        let levels = names::parts(path).count();
        for level in 1..levels {
            if has_head(directory, level)? {
                let below = names::parts(path).skip(levels - level);
                return Ok(Some(below.fold(Depth::Top, Depth::below)));
            }
        }
        Ok(None)
    }

    fn depth(&self, directory: &OwnedFd) -> Result<Depth> {
        self.path(directory, &mut [0; 4096]).map(|path| self.depth_of(path))
    }

    /// Returns true if a known repository is here or below, or was.
    pub(crate) fn holds_repository(&self, spot: &Spot) -> Result<bool> {
        let mut buffer = [0; 4096];
        let directory = self.path(&spot.parent, &mut buffer)?;
        Ok(self.repositories.iter().any(|repository| {
            let mut known = names::parts(repository);
            let mut here = names::parts(directory).chain([spot.name()]);
            here.all(|part| known.next().is_some_and(|other| names::may_be_same(part, other)))
        }))
    }

    /// Returns the depth of a directory. A known repository's is the top of it.
    fn depth_of(&self, path: &[u8]) -> Depth {
        match self.below_repository(path) {
            Some(below) => names::parts(below).fold(Depth::Top, Depth::below),
            None => Depth::of_path(path),
        }
    }

    /// Returns the rest of a path that lies in a known repository: the innermost one.
    fn below_repository<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let rests = self.repositories.iter().filter_map(|repository| below(path, repository));
        rests.min_by_key(|rest| rest.len())
    }

    /// Returns init's thread, as the procfs shows it.
    pub(crate) fn init_thread(&self) -> TargetThread<'_> {
        TargetThread { proc: self.proc.as_fd(), pid: 1 }
    }

    /// Reopens a held file with other flags.
    pub(crate) fn open_held(&self, held: &OwnedFd, flags: OFlag) -> Result<OwnedFd> {
        let number = u32::try_from(held.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        self.init_thread().descriptor(number, flags)
    }

    /// Returns true if a path leads from a directory to a spot without passing a link or `..`.
    pub(crate) fn leads_straight(&self, from: &OwnedFd, path: &[u8], spot: &Spot) -> Result<bool> {
        let mut start = [0; 4096];
        let mut end = [0; 4096];
        let start = if path.starts_with(b"/") { &[][..] } else { self.path(from, &mut start)? };
        let end = self.path(&spot.parent, &mut end)?;
        let path = names::parts(path).filter(|part| *part != b".");
        let walked = names::parts(start).chain(path);
        Ok(walked.eq(names::parts(end).chain([spot.name()])))
    }

    /// Returns the path of a held directory inside the cell.
    pub fn path<'b>(&self, directory: &OwnedFd, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
        let mut entry = [0; 64];
        let entry =
            self.init_thread().entry(&mut entry, format_args!("fd/{}", directory.as_raw_fd()))?;
        lookup::read_link(&self.proc, entry, buffer)
    }
}

/// Returns true if a file is on a read-only mount.
fn is_read_only(file: &OwnedFd) -> Result<bool> {
    Ok(fstatvfs(file)?.flags().contains(FsFlags::ST_RDONLY))
}

fn has(directory: &OwnedFd, name: &str) -> Result<bool> {
    match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns the rest of a path that is a directory's or lies below it.
fn below<'p>(path: &'p [u8], directory: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(directory)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

/// Returns true if the directory so many levels above this one has a HEAD.
fn has_head(directory: &OwnedFd, levels: usize) -> Result<bool> {
    const MAX_LEVELS: usize = 64;
    const UP: &str = "../";
    let mut path = [0; MAX_LEVELS * UP.len() + HEAD.len()];
    let length = levels * UP.len() + HEAD.len();
    // Deeper than any part of a repository that git writes to by itself: refused to be safe.
    let Some(path) = path.get_mut(..length) else { return Ok(true) };
    let (up, head) = path.split_at_mut(length - HEAD.len());
    up.chunks_mut(UP.len()).for_each(|step| step.copy_from_slice(UP.as_bytes()));
    head.copy_from_slice(HEAD.as_bytes());
    has(directory, std::str::from_utf8(path).map_err(|_| Errno::EINVAL)?)
}

/// Returns true if a directory, or one of so many above it, has a HEAD.
fn has_head_above(directory: &OwnedFd, levels: usize) -> Result<bool> {
    for level in 0..levels {
        if has_head(directory, level)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true for the name of a repository's directory for hooks, remotes or resolutions.
fn is_obeyed_in_repository(name: &[u8]) -> bool {
    let words = ["hooks", RESOLUTIONS].into_iter().chain(names::OLD_REMOTES);
    words.into_iter().any(|word| names::may_be(name, word))
}

/// Returns true if a path is `parent/name` or lies below it.
fn is_within(path: &[u8], parent: &[u8], name: &[u8]) -> bool {
    let mut guarded = names::parts(parent).chain([name]);
    let mut here = names::parts(path);
    guarded.all(|part| here.next().is_some_and(|other| names::may_be_same(other, part)))
}

/// Returns true if names in a directory may ignore case.
fn may_fold(directory: &OwnedFd) -> Result<bool> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match openat(directory, c".", flags, Mode::empty()) {
        Ok(opened) => lookup::may_fold(opened),
        // An unreadable directory cannot be checked.
        Err(Errno::EACCES) => Ok(true),
        Err(errno) => Err(errno),
    }
}
