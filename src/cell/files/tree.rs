//! The entries of a scanned directory tree, stored compactly.

use nix::sys::stat::{FileStat, SFlag};

use model::outcome::FileKind;

/// Maximum number of recorded entries.
pub(crate) const MAX_ENTRIES: usize = 50_000;
/// Bytes of a cell's memory for each entry that may be recorded.
const ENTRY_SHARE: u64 = 16 << 10;
/// Bytes of a cell's memory for each byte of recorded paths.
const PATH_SHARE: u64 = 128;
/// Maximum length of a path, as for the kernel.
const MAX_PATH_BYTES: usize = 4095;

/// Attributes of a file that reveal a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub mode: u32,
    pub size: u64,
    pub inode: u64,
    /// Nanoseconds since 1970.
    pub modified: i128,
    pub changed: i128,
}

impl Stamp {
    pub(crate) fn from_stat(stat: &FileStat) -> Self {
        let time =
            |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Self {
            mode: stat.st_mode,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            inode: stat.st_ino,
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    pub(crate) fn kind(&self) -> FileKind {
        let format = SFlag::from_bits_truncate(self.mode) & SFlag::S_IFMT;
        if format == SFlag::S_IFREG {
            FileKind::File
        } else if format == SFlag::S_IFDIR {
            FileKind::Directory
        } else if format == SFlag::S_IFLNK {
            FileKind::Link
        } else {
            FileKind::Other
        }
    }

    /// Returns true if the file itself changed. A directory's timestamps change with each name in
    /// it, which is reported for that name instead.
    pub(crate) fn differs(&self, other: &Self) -> bool {
        match self.kind() {
            FileKind::Directory => (self.mode, self.inode) != (other.mode, other.inode),
            FileKind::File | FileKind::Link | FileKind::Other => self != other,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: usize,
    length: u16,
    stamp: Stamp,
}

/// Entries with their paths relative to the workspace.
#[derive(Debug)]
pub(crate) struct Tree {
    paths: Vec<u8>,
    entries: Vec<Entry>,
    max_entries: usize,
    max_path_bytes: usize,
    /// True if no entry is missing.
    pub is_whole: bool,
}

/// The tree has no room for another entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Tree {
    pub(crate) fn empty() -> Self {
        Self::within(0)
    }

    /// Makes an empty tree that may use a fixed share of `memory` bytes.
    pub(crate) fn within(memory: u64) -> Self {
        let share = |part: u64| usize::try_from(memory / part).unwrap_or(usize::MAX);
        Self {
            paths: Vec::new(),
            entries: Vec::new(),
            max_entries: share(ENTRY_SHARE).min(MAX_ENTRIES),
            max_path_bytes: share(PATH_SHARE),
            is_whole: true,
        }
    }

    /// Adds the entry `name` of the directory at the path `directory`.
    pub(crate) fn add(&mut self, directory: &[u8], name: &[u8], stamp: Stamp) -> Result<(), Full> {
        let slash = usize::from(!directory.is_empty());
        let length = directory.len() + slash + name.len();
        let start = self.paths.len();
        if self.entries.len() >= self.max_entries
            || length > MAX_PATH_BYTES
            || start + length > self.max_path_bytes
        {
            return Err(Full);
        }
        // If allocation fails, the scan is cut; init must not die of it.
        self.paths.try_reserve(length).map_err(|_| Full)?;
        self.entries.try_reserve(1).map_err(|_| Full)?;
        self.paths.extend_from_slice(directory);
        // At most one byte is taken of one.
        self.paths.extend_from_slice(b"/".get(..slash).unwrap_or_default());
        self.paths.extend_from_slice(name);
        let length = u16::try_from(length).map_err(|_| Full)?;
        self.entries.push(Entry { start, length, stamp });
        Ok(())
    }

    /// Returns the path and the stamp of the entry at an index.
    pub(crate) fn entry(&self, number: usize) -> Option<(&[u8], &Stamp)> {
        let entry = self.entries.get(number)?;
        Some((path(&self.paths, entry), &entry.stamp))
    }

    /// Sorts the entries by path.
    pub(crate) fn sort(&mut self) {
        let paths = &self.paths;
        self.entries.sort_unstable_by(|one, other| path(paths, one).cmp(path(paths, other)));
    }
}

fn path<'p>(paths: &'p [u8], entry: &Entry) -> &'p [u8] {
    let end = entry.start.saturating_add(usize::from(entry.length));
    // Entries are made only by `add`, which stores their path first.
    paths.get(entry.start..end).unwrap_or_default()
}
