//! One look at the workspace, in steps: directory by directory, each opened from the workspace's own
//! descriptor, across no link and no mount.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{Mode, fstatat};

use super::tree::{Full, Stamp, Tree};
use model::outcome::FileKind;
use sys::lookup::{self, Follow};

/// The longest that a look takes.
const TIME: Duration = Duration::from_millis(200);
/// Entries of one step: about a millisecond.
const STEP: usize = 512;

/// Progress of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Done,
}

/// A look that is under way.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Absent where the workspace cannot be opened: then nothing is seen.
    root: Option<OwnedFd>,
    tree: Tree,
    /// The entry up to which directories were looked into.
    next: usize,
    current: Option<Current>,
    until: Instant,
}

/// The directory whose entries are being read.
#[derive(Debug)]
struct Current {
    path: Vec<u8>,
    directory: OwnedFd,
    entries: OwningIter,
}

impl Scan {
    /// Begins, for a cell with so much memory.
    pub(crate) fn begin(memory: u64) -> Self {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(c"/workspace", flags, Mode::empty()).ok();
        let mut tree = Tree::within(memory);
        let current = root.as_ref().and_then(|root| Current::open(root, &[]).ok());
        tree.is_whole = current.is_some();
        Self { root, tree, next: 0, current, until: Instant::now() + TIME }
    }

    /// Looks at the next entries.
    pub(crate) fn step(&mut self) -> Progress {
        for _ in 0..STEP {
            if Instant::now() >= self.until {
                return self.cut_short();
            }
            let Some(current) = &mut self.current else {
                match self.descend() {
                    Progress::More => continue,
                    Progress::Done => return Progress::Done,
                }
            };
            match current.entries.next() {
                None => self.current = None,
                Some(Err(_)) => {
                    self.tree.is_whole = false;
                    self.current = None;
                }
                Some(Ok(entry)) => {
                    let name = entry.file_name().to_bytes();
                    if !matches!(name, b"." | b"..") && self.see(name) == Err(Full) {
                        return self.cut_short();
                    }
                }
            }
        }
        Progress::More
    }

    /// Returns the entries in order, and the directory that was scanned.
    pub(crate) fn done(mut self) -> (Option<OwnedFd>, Tree) {
        self.tree.sort();
        (self.root, self.tree)
    }

    fn cut_short(&mut self) -> Progress {
        self.tree.is_whole = false;
        self.current = None;
        Progress::Done
    }

    fn see(&mut self, name: &[u8]) -> Result<(), Full> {
        let Some(current) = &self.current else { return Ok(()) };
        // Gone meanwhile, or of a filesystem that does not answer.
        match fstatat(&current.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => self.tree.add(&current.path, name, Stamp::of(&stat)),
            Err(Errno::ENOENT) => Ok(()),
            Err(_) => {
                self.tree.is_whole = false;
                Ok(())
            }
        }
    }

    /// Opens the next directory that was seen.
    fn descend(&mut self) -> Progress {
        let Some(root) = &self.root else { return Progress::Done };
        let Some((path, stamp)) = self.tree.entry(self.next) else { return Progress::Done };
        self.next += 1;
        if stamp.kind() != FileKind::Directory {
            return Progress::More;
        }
        match Current::open(root, path) {
            Ok(current) => self.current = Some(current),
            // Gone, or something else by now; or a mount, which is not the workspace's own: what the
            // host obeys is mounted over itself, for reading only.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV) => {}
            Err(_) => self.tree.is_whole = false,
        }
        Progress::More
    }
}

impl Current {
    fn open(root: &OwnedFd, path: &[u8]) -> nix::Result<Self> {
        let name = if path.is_empty() { b"." } else { path };
        let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let directory = lookup::open(root, &name, flags, 0, Follow::Beneath)?;
        let again = directory.try_clone().map_err(|error| crate::errno_of(&error))?;
        let entries = Dir::from_fd(again)?.into_iter();
        Ok(Self { path: path.to_vec(), directory, entries })
    }
}
