//! Granted directories as they are looked at before a start: by held descriptors, and no link followed.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::{FileStat, fstat, fstatat};

use crate::rootfs::granted::{FileId, Granted};
use sys::lookup::{self, Follow};

/// Symbolic links that one lookup follows (path_resolution(7)).
const LINKS: usize = 40;
/// Parts of a path that one lookup looks at, those of links included.
const LOOKS: usize = 1024;

/// A place in one of the granted directories.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub tree: usize,
    /// Below the granted directory; empty for itself.
    pub path: PathBuf,
}

/// The file at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
    Link,
    Other,
}

/// The end of a path, every link followed by ourselves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Into a granted directory.
    At(Place, Kind),
    /// The same, but from this part on nothing is there.
    Absent(Place),
    /// To this path of the host, which no cell can write to by these grants.
    Outside(PathBuf),
    /// Nowhere: too many links, or one that cannot be read.
    Nowhere,
}

/// A path that was followed.
#[derive(Debug)]
pub(crate) struct Led {
    /// Links on the way that are in a granted directory, and what is missing there.
    pub links: Vec<Place>,
    pub end: End,
    /// Parts that were looked at.
    pub looks: usize,
}

/// A granted directory, held.
#[derive(Debug)]
struct Tree {
    held: OwnedFd,
    host: PathBuf,
    file: FileId,
    also: Rc<[Vec<u8>]>,
}

/// The granted directories that a cell may write to.
#[derive(Debug, Default)]
pub(crate) struct Trees(Vec<Tree>);

impl Trees {
    /// Holds one more.
    pub(crate) fn hold(&mut self, granted: &Granted) -> Result<(), Errno> {
        let held = granted.hold()?;
        if kind(&fstat(&held)?) != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let host = granted.host.clone();
        let also = Rc::clone(&granted.also);
        self.0.push(Tree { held, host, file: granted.file, also });
        Ok(())
    }

    /// Returns the names that the operator guards in a granted directory.
    pub(crate) fn also(&self, tree: usize) -> Rc<[Vec<u8>]> {
        self.0.get(tree).map(|tree| Rc::clone(&tree.also)).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The path on the host of a place.
    pub(crate) fn host(&self, place: &Place) -> PathBuf {
        let host = self.0.get(place.tree).map(|tree| tree.host.as_path());
        // Joined with nothing, a path would end in a slash.
        let below = Some(place.path.as_path()).filter(|path| !path.as_os_str().is_empty());
        let host = host.unwrap_or(Path::new("/"));
        below.map_or_else(|| host.to_owned(), |below| host.join(below))
    }

    /// The place of a resolved path of the host; of nested grants the inner one.
    pub(crate) fn place(&self, host: &Path) -> Option<Place> {
        let within = self.0.iter().enumerate().filter_map(|(tree, one)| {
            Some(Place { tree, path: host.strip_prefix(&one.host).ok()?.to_owned() })
        });
        within.min_by_key(|place| place.path.as_os_str().len())
    }

    /// Opens a resolved path: a link in it, put there since, is ELOOP.
    pub(crate) fn open(&self, host: &Path, flags: i32) -> Result<OwnedFd, Errno> {
        // A file that is only held takes no other flags.
        let opened = libc::O_NONBLOCK | libc::O_NOCTTY;
        let opened = if flags & libc::O_PATH == 0 { opened } else { 0 };
        let flags = flags | opened | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        match self.place(host) {
            Some(Place { tree, path }) => {
                let tree = self.0.get(tree).ok_or(Errno::ENOENT)?;
                let path = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
                lookup::open(&tree.held, &text(path)?, flags, 0, Follow::Below)
            }
            None => lookup::open(AT_FDCWD, &text(host)?, flags, 0, Follow::Nothing),
        }
    }

    /// Holds what is at a resolved path, links themselves too.
    pub(crate) fn look(&self, host: &Path) -> Result<(OwnedFd, FileStat), Errno> {
        let held = self.open(host, libc::O_PATH)?;
        let found = fstat(&held)?;
        Ok((held, found))
    }

    /// Returns the file at a resolved path; nothing where it cannot be looked at.
    pub(crate) fn kind(&self, host: &Path) -> Option<Kind> {
        self.look(host).ok().map(|(_, found)| kind(&found))
    }

    /// The first `most` bytes of a regular file, and no more.
    pub(crate) fn read(&self, host: &Path, most: usize) -> Result<Vec<u8>, Errno> {
        use std::io::Read;
        // A device or a FIFO is never opened, only held.
        if kind(&self.look(host)?.1) != Kind::File {
            return Err(Errno::EINVAL);
        }
        let file = std::fs::File::from(self.open(host, libc::O_RDONLY)?);
        if kind(&fstat(&file)?) != Kind::File {
            return Err(Errno::EINVAL);
        }
        let mut bytes = Vec::new();
        let most = u64::try_from(most).map_err(|_| Errno::EFBIG)?;
        file.take(most).read_to_end(&mut bytes).map_err(|error| cell::errno_of(&error))?;
        Ok(bytes)
    }

    /// Lists a directory at a resolved path: `each` is given names and kinds, until it says stop.
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
            let found = match entry.file_type() {
                Some(Type::Directory) => Kind::Directory,
                Some(Type::File) => Kind::File,
                Some(Type::Symlink) => Kind::Link,
                Some(Type::Fifo | Type::Socket | Type::CharacterDevice | Type::BlockDevice) => {
                    Kind::Other
                }
                // Not every filesystem says so in a listing.
                None => match fstatat(&by_name, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                    Ok(found) => kind(&found),
                    Err(_) => continue,
                },
            };
            if each(name.to_bytes(), found).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Follows `path` from the resolved directory `from`, as the host would.
    pub(crate) fn follow(&self, from: &Path, path: &Path) -> Led {
        let mut here = from.to_owned();
        let mut left: VecDeque<OsString> = VecDeque::new();
        let mut links = Vec::new();
        let mut followed = 0;
        let mut looks = 0;
        prepend(path, &mut here, &mut left);
        let mut last = Kind::Directory;
        while let Some(part) = left.pop_front() {
            if part == OsStr::new("..") {
                here.pop();
                continue;
            }
            looks += 1;
            if looks > LOOKS {
                return Led { links, end: End::Nowhere, looks };
            }
            let next = here.join(&part);
            let (held, found) = match self.look(&next) {
                Ok(looked) => looked,
                // A missing file may be made, and the path goes on from above it.
                Err(Errno::ENOENT) if left.iter().any(|part| part == "..") => {
                    links.extend(self.place(&next));
                    here = next;
                    continue;
                }
                Err(errno) => return Led { links, end: self.stopped(next, errno), looks },
            };
            last = kind(&found);
            match last {
                Kind::Link => {
                    followed += 1;
                    links.extend(self.place(&next));
                    let mut buffer = [0; 4096];
                    let Ok(text) = lookup::read_link(&held, c"", &mut buffer) else {
                        return Led { links, end: End::Nowhere, looks };
                    };
                    if followed > LINKS {
                        return Led { links, end: End::Nowhere, looks };
                    }
                    prepend(Path::new(OsStr::from_bytes(text)), &mut here, &mut left);
                    last = Kind::Directory;
                }
                Kind::Directory | Kind::File | Kind::Other => {
                    // By another path, such as a second mount, it may be a granted directory.
                    let granted = self.0.iter().find(|tree| tree.file == FileId::from(&found));
                    here = granted.map_or(next, |tree| tree.host.clone());
                }
            }
        }
        let end = match self.place(&here) {
            Some(place) => End::At(place, last),
            None => End::Outside(here),
        };
        Led { links, end, looks }
    }

    fn stopped(&self, next: PathBuf, errno: Errno) -> End {
        match (self.place(&next), errno) {
            (Some(place), Errno::ENOENT | Errno::ENOTDIR) => End::Absent(place),
            (Some(_), _) => End::Nowhere,
            (None, _) => End::Outside(next),
        }
    }
}

/// Puts the parts of a path before those that are left; an absolute one starts at the root.
fn prepend(path: &Path, here: &mut PathBuf, left: &mut VecDeque<OsString>) {
    if path.is_absolute() {
        *here = PathBuf::from("/");
    }
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => left.push_front(name.to_owned()),
            Component::ParentDir => left.push_front(OsString::from("..")),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
}

fn kind(found: &FileStat) -> Kind {
    match found.st_mode & libc::S_IFMT {
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFREG => Kind::File,
        libc::S_IFLNK => Kind::Link,
        _ => Kind::Other,
    }
}

/// The file that a name is of, where it has others.
pub(crate) fn shared(found: &FileStat) -> Option<(u64, u64)> {
    (kind(found) == Kind::File && found.st_nlink > 1).then(|| inode(found))
}

fn inode(found: &FileStat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

/// A path for a system call.
pub(crate) fn text(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)
}

/// A path of bytes that somebody wrote.
pub(crate) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}
