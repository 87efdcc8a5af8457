//! Opens what the files of a workspace name. A cell, or a stranger's archive, may have put a link in the way, to a device or
//! to a filesystem whose server does not answer. So no link is followed, no mount point is passed, and only regular files
//! are opened for reading.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat};

use super::request::MountRequest;
use cell::c_path;
use supervisor::FileId;
use sys::lookup::{self, Follow};
use sys::mount::mount_id;

/// A file or directory that is held open (O_PATH), so that no other can get its inode.
#[derive(Debug)]
pub(super) struct HeldPath {
    pub path: PathBuf,
    /// User to whom it belongs.
    pub owner: u32,
    pub id: FileId,
    kind: libc::mode_t,
    file: OwnedFd,
}

impl HeldPath {
    fn of(path: PathBuf, file: OwnedFd) -> Result<Self, Errno> {
        let status = fstat(&file)?;
        let kind = kind(&status);
        Ok(Self { path, owner: status.st_uid, id: FileId::from(&status), kind, file })
    }

    /// Holds a directory that the operator named, or one above it. Links in its path are followed.
    pub(super) fn of_operator(path: &Path) -> Option<Self> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        Self::of(path.to_owned(), file.into()).ok()
    }

    /// Holds a file or directory below this directory.
    ///
    /// # Errors
    /// ELOOP: a link is in the way. EXDEV: a mount point, or `..` leads out. Otherwise the errno of openat2(2) or fstat(2).
    pub(super) fn below(&self, path: &Path) -> Result<Self, Errno> {
        let name = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        let file = lookup::open(&self.file, &c_path(name)?, flags, 0, Follow::Beneath)?;
        Self::of(self.path.join(path), file)
    }

    fn is_directory(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    pub(super) fn has_directory(&self, name: &str) -> bool {
        self.below(Path::new(name)).is_ok_and(|below| below.is_directory())
    }

    pub(super) fn has_file(&self, name: &str) -> bool {
        self.below(Path::new(name)).is_ok_and(|below| below.kind == libc::S_IFREG)
    }

    /// Reads a regular file of at most `max_bytes` below this directory.
    pub(super) fn read(&self, name: &str, max_bytes: u64) -> Option<Vec<u8>> {
        read_regular(&self.below(Path::new(name)).ok()?.file, max_bytes)
    }
}

/// Reads a file that is held open with O_PATH, if it is a regular one of at most `max_bytes`.
pub(super) fn read_regular(held: &OwnedFd, max_bytes: u64) -> Option<Vec<u8>> {
    let status = fstat(held).ok()?;
    let length = u64::try_from(status.st_size).ok()?;
    if kind(&status) != libc::S_IFREG || length > max_bytes {
        return None;
    }
    // The same file, whatever is at its path by now.
    let file = File::open(format!("/proc/self/fd/{}", held.as_raw_fd())).ok()?;
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn kind(status: &FileStat) -> libc::mode_t {
    status.st_mode & libc::S_IFMT
}

/// Why a path that a file names was not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotFollowed {
    Missing,
    /// A link or a mount point is in the way.
    Apart,
}

/// Directories below which a path that a file names is followed: the mount that the workspace is on, and what the operator
/// grants at its path on the host.
#[derive(Debug)]
pub(super) struct Reach(Vec<HeldPath>);

impl Reach {
    /// Returns the reach of a workspace, given its path without links.
    pub(super) fn of(top: &Path, mounts: &[MountRequest]) -> Self {
        let id = |path: &Path| c_path(path).and_then(|path| mount_id(&path)).ok();
        let mount = id(top);
        let is_on_it = |directory: &&Path| mount.is_some() && id(directory) == mount;
        let root = top.ancestors().take_while(is_on_it).last().map(Path::to_owned);
        let granted = mounts.iter().filter_map(|mount| {
            let host = mount.host.canonicalize().ok()?;
            (host == mount.cell).then_some(host)
        });
        Self(granted.chain(root).filter_map(|path| HeldPath::of_operator(&path)).collect())
    }

    /// Holds the file or directory that a file in the directory `from` names.
    ///
    /// # Errors
    /// A path that does not exist, or one that leads elsewhere.
    pub(super) fn follow(&self, from: &Path, text: &Path) -> Result<HeldPath, NotFollowed> {
        let path = joined(from, text).ok_or(NotFollowed::Apart)?;
        let mut why = NotFollowed::Apart;
        for top in &self.0 {
            let Ok(below) = path.strip_prefix(&top.path) else { continue };
            match top.below(below) {
                Ok(held) => return Ok(HeldPath { path, ..held }),
                Err(Errno::ENOENT | Errno::ENOTDIR) => why = NotFollowed::Missing,
                Err(_) => {}
            }
        }
        Err(why)
    }
}

/// Joins a path that a file names to the directory of the file, whose path has no links. `None` if `..` follows a name in
/// it, which could be a link: git writes no such path.
pub(super) fn joined(from: &Path, text: &Path) -> Option<PathBuf> {
    let mut path = if text.is_absolute() { PathBuf::from("/") } else { from.to_owned() };
    let mut has_name = text.is_absolute();
    for part in text.components() {
        match part {
            Component::Normal(name) => {
                has_name = true;
                path.push(name);
            }
            Component::ParentDir => {
                if has_name || !path.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(path)
}

/// Returns the path in the first line of a text, after `prefix`.
pub(super) fn first_line(text: &[u8], prefix: &[u8]) -> Option<PathBuf> {
    let line = text.split(|byte| matches!(byte, b'\n' | b'\0')).next()?;
    let path = line.strip_prefix(prefix)?.trim_ascii();
    (!path.is_empty()).then(|| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    type Failed = Box<dyn std::error::Error>;

    #[test]
    fn only_regular_files_below_a_directory_are_read() -> Result<(), Failed> {
        let directory = tempfile::tempdir()?;
        let root = directory.path().canonicalize()?;
        std::fs::create_dir_all(root.join("top/inside"))?;
        std::fs::create_dir(root.join("outside"))?;
        for file in ["top/inside/file", "outside/file"] {
            std::fs::write(root.join(file), "text")?;
        }
        symlink("/dev/ptmx", root.join("top/device"))?;
        symlink("inside", root.join("top/link"))?;
        symlink("inside/file", root.join("top/linked"))?;
        nix::unistd::mkfifo(&root.join("top/fifo"), nix::sys::stat::Mode::S_IRWXU)?;
        let top = HeldPath::of_operator(&root.join("top")).ok_or("no directory")?;
        assert_eq!(top.read("inside/file", 4).as_deref(), Some(b"text".as_slice()));
        assert_eq!(top.read("inside/file", 3), None, "too long");
        let others =
            ["device", "link/file", "linked", "fifo", "inside", "../outside/file", "missing"];
        for path in others {
            assert_eq!(top.read(path, 4), None, "{path}");
        }
        // The directory stays the same when a link takes its place.
        std::fs::rename(root.join("top"), root.join("moved"))?;
        symlink("outside", root.join("top"))?;
        assert!(top.has_file("inside/file") && !top.has_file("file"));
        Ok(())
    }

    #[test]
    fn a_path_in_a_file_is_followed_on_the_same_mount_and_through_no_link() -> Result<(), Failed> {
        let directory = tempfile::tempdir()?;
        let root = directory.path().canonicalize()?;
        std::fs::create_dir_all(root.join("w/sub"))?;
        std::fs::create_dir(root.join("other"))?;
        symlink("other", root.join("link"))?;
        let reach = Reach::of(&root.join("w"), &[]);
        let follow =
            |text: &str| reach.follow(&root.join("w"), Path::new(text)).map(|held| held.path);
        let absolute = root.join("other").display().to_string();
        for text in ["../other", "./../other/.", absolute.as_str()] {
            assert_eq!(follow(text), Ok(root.join("other")), "{text}");
        }
        for text in ["../missing", "../missing/x"] {
            assert_eq!(follow(text), Err(NotFollowed::Missing), "{text}");
        }
        for text in ["../link", "../link/x", "/proc", "/proc/self/root", "sub/../../other"] {
            assert_eq!(follow(text), Err(NotFollowed::Apart), "{text}");
        }
        Ok(())
    }
}
