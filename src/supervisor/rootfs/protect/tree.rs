//! Reads granted directories before a start, through held descriptors and without following links.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::{FileStat, fstat, fstatat};

use super::rights::{Rights, Users};
use crate::rootfs::bounded::{Place, ReadFile};
use crate::rootfs::granted::{FileId, Granted};
use crate::rootfs::host_mounts::{HostMounts, Source};
use cell::mediate::names;
use model::job::Access;
use sys::lookup::{self, Follow};

/// Maximum number of symbolic links that one lookup follows (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// Maximum number of path components that one lookup reads, including those of links.
const MAX_COMPONENTS: usize = 1024;

/// A path in one of the granted directories.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GrantPath {
    pub tree: usize,
    /// Relative to the granted directory; empty for the directory itself.
    pub path: PathBuf,
}

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
    Link,
    Other,
}

/// A path as a file or a link of the host names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'p> {
    /// Resolved directory at which a relative path starts.
    pub from: &'p Path,
    pub path: &'p Path,
    /// Rights of the author.
    pub rights: Rights,
}

/// A path that was found, and the rights for what is named there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub path: PathBuf,
    pub rights: Rights,
}

/// Bytes of a file, and the rights for what they name.
#[derive(Debug)]
pub(crate) struct Content {
    pub bytes: Vec<u8>,
    pub rights: Rights,
}

/// Target of a path, with every link followed here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A file in a granted directory.
    InGrant(GrantPath, Kind),
    /// A missing file in a granted directory.
    Missing(GrantPath),
    /// A file of the host that no cell can write to through these grants.
    Outside(PathBuf),
    /// The path cannot be followed: too many links, an unreadable one, or its author may not.
    Unresolved,
}

/// Result of following a path.
#[derive(Debug)]
pub(crate) struct Resolution {
    /// Links on the way that are in a granted directory, and missing directories there.
    pub links: Vec<GrantPath>,
    pub end: Target,
    /// Number of components that were read.
    pub components: usize,
    /// Rights for what the file at the end names.
    pub rights: Rights,
}

impl Resolution {
    /// Returns that of a path that was not followed.
    pub(crate) fn unresolved(rights: Rights) -> Self {
        Self { links: Vec::new(), end: Target::Unresolved, components: 0, rights }
    }
}

/// A granted directory, held open.
#[derive(Debug)]
struct Tree {
    held: OwnedFd,
    host: PathBuf,
    file: FileId,
    also: Rc<[Vec<u8>]>,
    is_repository: bool,
    is_unguarded: bool,
}

/// The granted directories that a cell may write to.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    granted: Vec<Tree>,
    mounts: HostMounts,
    users: Users,
    /// Rights for what is named in directories that were asked for.
    directories: RefCell<BTreeMap<PathBuf, Rights>>,
    /// Paths in granted directories to which access was denied, and whose lookups these were.
    denied: RefCell<BTreeSet<(PathBuf, Rights)>>,
    /// True if a path of the host could not be followed because a filesystem gave no answer.
    is_unanswered: Cell<bool>,
}

impl Trees {
    /// Adds a granted directory.
    pub(crate) fn hold(&mut self, granted: &Granted) -> Result<(), Errno> {
        let held = granted.hold()?;
        if kind(&fstat(&held)?) != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let host = granted.host.clone();
        let also = Rc::clone(&granted.also);
        let is_repository = granted.access == Access::Repository;
        let is_unguarded = granted.access == Access::Unguarded;
        let file = granted.file;
        self.granted.push(Tree { held, host, file, also, is_repository, is_unguarded });
        Ok(())
    }

    /// Returns the names that the operator guards in a granted directory.
    pub(crate) fn also(&self, tree: usize) -> Rc<[Vec<u8>]> {
        self.granted.get(tree).map(|tree| Rc::clone(&tree.also)).unwrap_or_default()
    }

    /// Returns true if a granted directory is that of a repository.
    pub(crate) fn is_repository(&self, tree: usize) -> bool {
        self.granted.get(tree).is_some_and(|tree| tree.is_repository)
    }

    pub(crate) fn len(&self) -> usize {
        self.granted.len()
    }

    /// Returns the host path of a path in a granted directory.
    pub(crate) fn host(&self, place: &GrantPath) -> PathBuf {
        let host = self.granted.get(place.tree).map(|tree| tree.host.as_path());
        // Joining an empty path would add a slash.
        let below = Some(place.path.as_path()).filter(|path| !path.as_os_str().is_empty());
        let host = host.unwrap_or(Path::new("/"));
        below.map_or_else(|| host.to_owned(), |below| host.join(below))
    }

    /// Returns the location of a resolved host path in the granted directories; for nested grants,
    /// in the innermost.
    pub(crate) fn locate(&self, host: &Path) -> Option<GrantPath> {
        let within = self.granted.iter().enumerate().filter_map(|(tree, one)| {
            Some(GrantPath { tree, path: host.strip_prefix(&one.host).ok()?.to_owned() })
        });
        within.min_by_key(|place| place.path.as_os_str().len())
    }

    /// Returns the location of a path in each granted directory that contains it: cells may write to it through all of
    /// them.
    pub(crate) fn everywhere(&self, place: &GrantPath) -> Vec<GrantPath> {
        if self.granted.len() == 1 {
            return vec![place.clone()];
        }
        let host = self.host(place);
        let within = self.granted.iter().enumerate();
        within
            .filter_map(|(tree, one)| {
                Some(GrantPath { tree, path: host.strip_prefix(&one.host).ok()?.to_owned() })
            })
            .collect()
    }

    /// Opens a resolved path. ELOOP means that it contains a link now, ETIMEDOUT that a filesystem of
    /// the host does not answer.
    pub(crate) fn open(&self, host: &Path, flags: i32) -> Result<OwnedFd, Errno> {
        // O_PATH cannot be combined with other flags.
        let opened = libc::O_NONBLOCK | libc::O_NOCTTY;
        let opened = if flags & libc::O_PATH == 0 { opened } else { 0 };
        let flags = flags | opened | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let (directory, path, follow) = self.place(host)?;
        if follow == Follow::Nothing {
            self.mounts.await_answer(host)?;
        }
        let result = lookup::open(directory, &path, flags, 0, follow);
        // A file that cannot be read keeps out nothing but its bytes.
        let is_lookup = flags & (libc::O_PATH | libc::O_DIRECTORY) != 0;
        let is_denied = result.as_ref().is_err_and(|errno| *errno == Errno::EACCES);
        if is_denied && is_lookup && follow == Follow::Below && !self.is_unguarded(host) {
            let is_listing = flags & libc::O_PATH == 0;
            let path = if is_listing { host.join(names::HEAD) } else { host.to_owned() };
            self.denied.borrow_mut().insert((path, self.users.acting()));
        }
        result
    }

    /// Returns a directory that kept a lookup in a granted directory out, and that its user owns: a cell may
    /// have closed it, and can open it again.
    pub(crate) fn take_closed(&self) -> Option<PathBuf> {
        let denied = self.denied.take();
        denied.iter().find_map(|(path, rights)| self.closed_above(path, *rights))
    }

    /// Returns the nearest directory above `path`, to which access was denied, that can be reached, if it
    /// belongs to the user of the lookup. It counts as closed if it is open by now: a cell may still run.
    pub(crate) fn closed_above(&self, path: &Path, rights: Rights) -> Option<PathBuf> {
        let reached = |at: &Path| {
            let status = self.users.with(rights, || self.stat(at)).ok()?.1;
            Some((at.to_owned(), status))
        };
        let (at, status) = path.ancestors().skip(1).find_map(reached)?;
        // A refused lookup is noted where it was made first.
        self.users.take_refused();
        let user = match rights {
            Rights::Own => self.user(),
            Rights::Of(user) => user,
        };
        (user == 0 || status.st_uid == user).then_some(at)
    }

    /// Returns true for a file that its mode keeps this user from reading, so that no directory does.
    pub(crate) fn is_unreadable(&self, file: &Path, rights: Rights) -> bool {
        let status = self.users.with(rights, || self.stat(file));
        self.users.take_refused();
        let user = match rights {
            Rights::Own => self.user(),
            Rights::Of(user) => user,
        };
        status.is_ok_and(|(_, status)| match status.st_uid == user {
            true => status.st_mode & libc::S_IRUSR == 0,
            false => status.st_mode & libc::S_IROTH == 0 || status.st_mode & libc::S_IRGRP == 0,
        })
    }

    /// Returns true for a path in a granted directory of which nothing is guarded.
    pub(crate) fn is_unguarded(&self, host: &Path) -> bool {
        let tree = self.locate(host).and_then(|place| self.granted.get(place.tree));
        tree.is_some_and(|tree| tree.is_unguarded)
    }

    /// Returns true if a path of the host got no answer since the last call.
    pub(crate) fn take_unanswered(&self) -> bool {
        self.is_unanswered.take()
    }

    /// Returns the directory from which a resolved path is opened, the rest of the path, and what is
    /// followed in it.
    fn place(&self, host: &Path) -> Result<(BorrowedFd<'_>, CString, Follow), Errno> {
        let Some(GrantPath { tree, path }) = self.locate(host) else {
            return Ok((AT_FDCWD, text(host)?, Follow::Nothing));
        };
        let tree = self.granted.get(tree).ok_or(Errno::ENOENT)?;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
        Ok((tree.held.as_fd(), text(path)?, Follow::Below))
    }

    /// Holds the file at a resolved path; a link is held itself.
    pub(crate) fn stat(&self, host: &Path) -> Result<(OwnedFd, FileStat), Errno> {
        let held = self.open(host, libc::O_PATH)?;
        let status = fstat(&held)?;
        Ok((held, status))
    }

    /// Returns the type of the file at a resolved path; `None` if it cannot be read.
    pub(crate) fn kind(&self, host: &Path) -> Option<Kind> {
        self.stat(host).ok().map(|(_, status)| kind(&status))
    }

    /// Returns true if a lookup with another user's rights was refused since the last call.
    pub(crate) fn take_refused(&self) -> bool {
        self.users.take_refused()
    }

    /// Returns the user of this process.
    pub(crate) fn user(&self) -> u32 {
        self.users.user()
    }

    /// Returns the rights for what a directory at a resolved path names: those of the first owner on
    /// its path other than root, who can replace what is below.
    pub(crate) fn rights_in(&self, directory: &Path, rights: Rights) -> Rights {
        if rights != Rights::Own || self.user() != 0 {
            return rights;
        }
        if let Some(known) = self.directories.borrow().get(directory) {
            return *known;
        }
        // The operator has chosen a granted directory, whatever directories of others it is in.
        let is_top = self.granted.iter().any(|tree| tree.host == directory);
        let above = directory.parent().filter(|_| !is_top);
        let above = above.map_or(Rights::Own, |above| self.rights_in(above, rights));
        let here = match self.stat(directory) {
            Ok((_, status)) => self.users.rights_of(above, status.st_uid),
            Err(_) => above,
        };
        self.directories.borrow_mut().insert(directory.to_owned(), here);
        here
    }

    /// Returns the rights for what a file names that was found with these rights.
    pub(crate) fn rights_at(&self, host: &Path, rights: Rights) -> Result<Rights, Errno> {
        let rights = self.rights_in(host.parent().unwrap_or(host), rights);
        let (_, status) = self.users.with(rights, || self.stat(host))?;
        Ok(self.users.rights_of(rights, status.st_uid))
    }

    /// Reads at most the first `limit` bytes of a regular file, given [`Self::rights_at`] it.
    ///
    /// # Errors
    /// ETIMEDOUT: the filesystem does not answer. EOPNOTSUPP: the kernel makes the file up, and a
    /// read of it may not end. Otherwise those of open(2) and read(2).
    pub(crate) fn read(&self, host: &Path, limit: usize, rights: Rights) -> Result<Vec<u8>, Errno> {
        self.users.with(rights, || self.read_now(host, limit, rights))
    }

    fn read_now(&self, host: &Path, limit: usize, rights: Rights) -> Result<Vec<u8>, Errno> {
        // A device or a FIFO must not be opened for reading.
        if kind(&self.stat(host)?.1) != Kind::File {
            return Err(Errno::EINVAL);
        }
        let ReadFile { owner, bytes } = match self.mounts.source(host) {
            Source::Local => self.read_here(host, limit)?,
            Source::Kernel => return Err(Errno::EOPNOTSUPP),
            Source::Remote => {
                let (directory, path, follow) = self.place(host)?;
                self.mounts.read(host, Place { directory, path: &path, follow }, limit)?
            }
        };
        // Another user has replaced the file since.
        if self.users.rights_of(rights, owner) != rights {
            return Err(Errno::ESTALE);
        }
        Ok(bytes)
    }

    fn read_here(&self, host: &Path, limit: usize) -> Result<ReadFile, Errno> {
        use std::io::Read;
        let file = std::fs::File::from(self.open(host, libc::O_RDONLY)?);
        let status = fstat(&file)?;
        if kind(&status) != Kind::File {
            return Err(Errno::EINVAL);
        }
        let mut bytes = Vec::new();
        let limit = u64::try_from(limit).map_err(|_| Errno::EFBIG)?;
        file.take(limit).read_to_end(&mut bytes).map_err(|error| cell::errno_of(&error))?;
        Ok(ReadFile { owner: status.st_uid, bytes })
    }

    /// Lists a directory at a resolved path, until `each` returns Break.
    pub(crate) fn list(
        &self,
        host: &Path,
        mut each: impl FnMut(&[u8], Kind) -> std::ops::ControlFlow<()>,
    ) -> Result<(), Errno> {
        let opened = self.open(host, libc::O_RDONLY | libc::O_DIRECTORY)?;
        let mut directory = Dir::from_fd(opened)?;
        let by_name = directory.as_fd().try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
        for entry in directory.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind_of_entry = match entry.file_type() {
                Some(Type::Directory) => Kind::Directory,
                Some(Type::File) => Kind::File,
                Some(Type::Symlink) => Kind::Link,
                Some(Type::Fifo | Type::Socket | Type::CharacterDevice | Type::BlockDevice) => {
                    Kind::Other
                }
                // Not every filesystem returns types in a listing.
                None => match fstatat(&by_name, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                    Ok(status) => kind(&status),
                    Err(_) => continue,
                },
            };
            if each(name.to_bytes(), kind_of_entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Follows a path as the host would. From the first directory or link of another user on, root
    /// has the rights of that user alone.
    pub(crate) fn follow(&self, named: Named<'_>) -> Resolution {
        let Named { from, path, mut rights } = named;
        if !path.is_absolute() {
            rights = self.rights_in(from, rights);
        }
        let mut here = from.to_owned();
        let mut remaining: VecDeque<OsString> = VecDeque::new();
        let mut links = Vec::new();
        let mut followed = 0;
        let mut components = 0;
        prepend(path, &mut here, &mut remaining);
        let mut last = Kind::Directory;
        while let Some(part) = remaining.pop_front() {
            if part == OsStr::new("..") {
                here.pop();
                continue;
            }
            components += 1;
            if components > MAX_COMPONENTS {
                return Resolution { links, end: Target::Unresolved, components, rights };
            }
            let next = here.join(&part);
            // The operator has named these directories, and cells see what is in them.
            let rights_here = if self.is_near(&next) { Rights::Own } else { rights };
            let (held, status) = match self.users.with(rights_here, || self.stat(&next)) {
                Ok(result) => result,
                // A missing directory may be created, and the path continues above it.
                Err(Errno::ENOENT) if remaining.iter().any(|part| part == "..") => {
                    links.extend(self.locate(&next));
                    here = next;
                    continue;
                }
                Err(errno) => {
                    let end = self.stopped(&here, next, errno, rights_here);
                    return Resolution { links, end, components, rights };
                }
            };
            rights = self.users.rights_of(rights, status.st_uid);
            last = kind(&status);
            match last {
                Kind::Link => {
                    followed += 1;
                    links.extend(self.locate(&next));
                    let mut buffer = [0; 4096];
                    let Ok(text) = lookup::read_link(&held, c"", &mut buffer) else {
                        return Resolution { links, end: Target::Unresolved, components, rights };
                    };
                    if followed > MAX_LINKS {
                        return Resolution { links, end: Target::Unresolved, components, rights };
                    }
                    prepend(Path::new(OsStr::from_bytes(text)), &mut here, &mut remaining);
                    last = Kind::Directory;
                }
                Kind::Directory | Kind::File | Kind::Other => {
                    // Through another path, such as a second mount, this may be a granted
                    // directory.
                    let granted =
                        self.granted.iter().find(|tree| tree.file == FileId::from(&status));
                    here = granted.map_or(next, |tree| tree.host.clone());
                }
            }
        }
        let end = match self.locate(&here) {
            Some(path) => Target::InGrant(path, last),
            None => Target::Outside(here),
        };
        Resolution { links, end, components, rights }
    }

    /// Returns true for a path in a granted directory or on the way to one.
    fn is_near(&self, path: &Path) -> bool {
        self.granted.iter().any(|tree| tree.host.starts_with(path) || path.starts_with(&tree.host))
    }

    /// Returns the end of a path that cannot be followed in the directory `here` to `next`.
    fn stopped(&self, here: &Path, next: PathBuf, errno: Errno, rights: Rights) -> Target {
        let is_denied = matches!(errno, Errno::EACCES | Errno::EPERM);
        if rights != Rights::Own && is_denied {
            return Target::Unresolved;
        }
        // A cell can open a directory that it has closed: all of it is guarded.
        let closed = self.locate(here).filter(|place| !place.path.as_os_str().is_empty());
        match (self.locate(&next), errno) {
            (Some(place), Errno::ENOENT | Errno::ENOTDIR) => Target::Missing(place),
            (Some(_), _) if is_denied => {
                closed.map_or(Target::Unresolved, |place| Target::InGrant(place, Kind::Directory))
            }
            (Some(_), _) => Target::Unresolved,
            (None, errno) => {
                use Errno::{EACCES, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM};
                let answers = [EACCES, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM];
                self.is_unanswered.set(self.is_unanswered.get() || !answers.contains(&errno));
                Target::Outside(next)
            }
        }
    }
}

/// Puts the components of a path before the remaining ones; an absolute path starts at the root.
fn prepend(path: &Path, here: &mut PathBuf, remaining: &mut VecDeque<OsString>) {
    if path.is_absolute() {
        *here = PathBuf::from("/");
    }
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => remaining.push_front(name.to_owned()),
            Component::ParentDir => remaining.push_front(OsString::from("..")),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
}

fn kind(status: &FileStat) -> Kind {
    match status.st_mode & libc::S_IFMT {
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFREG => Kind::File,
        libc::S_IFLNK => Kind::Link,
        _ => Kind::Other,
    }
}

/// Returns the identity of a file that has several names.
pub(crate) fn shared(status: &FileStat) -> Option<(u64, u64)> {
    (kind(status) == Kind::File && status.st_nlink > 1).then(|| inode(status))
}

fn inode(status: &FileStat) -> (u64, u64) {
    (status.st_dev, status.st_ino)
}

/// Converts a path for a system call.
pub(crate) fn text(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

/// Makes a path from bytes of a file.
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}
