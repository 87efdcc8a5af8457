//! A scan of the workspace in steps. Each directory is opened relative to the descriptor of the
//! workspace, across neither links nor mounts.

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

/// Maximum duration of a scan.
const MAX_DURATION: Duration = Duration::from_millis(200);
/// Entries per step, which take about a millisecond.
const ENTRIES_PER_STEP: usize = 512;

/// Progress of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Done,
}

/// A running scan.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Absent if the workspace cannot be opened: the scan is then empty.
    root: Option<OwnedFd>,
    tree: Tree,
    /// Index of the next entry to descend into.
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
    /// Begins a scan whose size is bounded by the cell's memory in bytes.
    pub(crate) fn begin(memory: u64) -> Self {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(c"/workspace", flags, Mode::empty()).ok();
        let mut tree = Tree::within(memory);
        let current = root.as_ref().and_then(|root| Current::open(root, &[]).ok());
        tree.is_whole = current.is_some();
        Self { root, tree, next: 0, current, until: Instant::now() + MAX_DURATION }
    }

    /// Reads the next entries.
    pub(crate) fn step(&mut self) -> Progress {
        for _ in 0..ENTRIES_PER_STEP {
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
                    if !matches!(name, b"." | b"..") && self.record(name) == Err(Full) {
                        return self.cut_short();
                    }
                }
            }
        }
        Progress::More
    }

    /// Returns the scanned directory and its entries in order.
    pub(crate) fn done(mut self) -> (Option<OwnedFd>, Tree) {
        self.tree.sort();
        (self.root, self.tree)
    }

    fn cut_short(&mut self) -> Progress {
        self.tree.is_whole = false;
        self.current = None;
        Progress::Done
    }

    fn record(&mut self, name: &[u8]) -> Result<(), Full> {
        let Some(current) = &self.current else { return Ok(()) };
        // ENOENT: removed meanwhile. Any other error, such as of a filesystem that does not answer,
        // makes the scan incomplete.
        match fstatat(&current.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => self.tree.add(&current.path, name, Stamp::from_stat(&stat)),
            Err(Errno::ENOENT) => Ok(()),
            Err(_) => {
                self.tree.is_whole = false;
                Ok(())
            }
        }
    }

    /// Opens the next directory among the entries.
    fn descend(&mut self) -> Progress {
        let Some(root) = &self.root else { return Progress::Done };
        let Some((path, stamp)) = self.tree.entry(self.next) else { return Progress::Done };
        self.next += 1;
        if stamp.kind() != FileKind::Directory {
            return Progress::More;
        }
        match Current::open(root, path) {
            Ok(current) => self.current = Some(current),
            // Removed or replaced meanwhile; or a mount, which is not part of the workspace: files
            // that the host obeys have a read-only mount over them.
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
        let reader = directory.try_clone().map_err(|error| crate::errno_of(&error))?;
        let entries = Dir::from_fd(reader)?.into_iter();
        Ok(Self { path: path.to_vec(), directory, entries })
    }
}
