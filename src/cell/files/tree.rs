//! The entries of a directory tree as they were seen, in as little memory as will do.

use nix::sys::stat::{FileStat, SFlag};

use model::outcome::FileKind;

/// The most entries that are remembered.
pub(crate) const MOST_ENTRIES: usize = 50_000;
/// Of a cell's memory, this part may be entries, and this part their paths.
const ENTRY_SHARE: u64 = 16 << 10;
const PATH_SHARE: u64 = 128;
/// Longest path that is remembered, as the kernel takes it.
const PATH_BYTES: usize = 4095;

/// Properties by which two states of a file are told apart.
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
    pub(crate) fn of(stat: &FileStat) -> Self {
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

    /// Returns true if the file itself changed. A directory changes with each name in it, and that is
    /// reported for the name.
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

/// Entries with their paths, from the workspace on.
#[derive(Debug)]
pub(crate) struct Tree {
    paths: Vec<u8>,
    entries: Vec<Entry>,
    most_entries: usize,
    most_bytes: usize,
    /// True if nothing was left out.
    pub is_whole: bool,
}

/// There is no room for one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

impl Tree {
    pub(crate) fn empty() -> Self {
        Self::within(0)
    }

    /// Makes a tree with room for a part of so many bytes of memory.
    pub(crate) fn within(memory: u64) -> Self {
        let share = |part: u64| usize::try_from(memory / part).unwrap_or(usize::MAX);
        Self {
            paths: Vec::new(),
            entries: Vec::new(),
            most_entries: share(ENTRY_SHARE).min(MOST_ENTRIES),
            most_bytes: share(PATH_SHARE),
            is_whole: true,
        }
    }

    /// Adds an entry: `name` in the directory that `directory` is the path of.
    pub(crate) fn add(&mut self, directory: &[u8], name: &[u8], stamp: Stamp) -> Result<(), Full> {
        let slash = usize::from(!directory.is_empty());
        let length = directory.len() + slash + name.len();
        let start = self.paths.len();
        if self.entries.len() >= self.most_entries
            || length > PATH_BYTES
            || start + length > self.most_bytes
        {
            return Err(Full);
        }
        // If memory is short, fewer entries are recorded; the cell does not end.
        self.paths.try_reserve(length).map_err(|_| Full)?;
        self.entries.try_reserve(1).map_err(|_| Full)?;
        self.paths.extend_from_slice(directory);
        self.paths.extend_from_slice(b"/".get(..slash).unwrap_or_default());
        self.paths.extend_from_slice(name);
        let length = u16::try_from(length).map_err(|_| Full)?;
        self.entries.push(Entry { start, length, stamp });
        Ok(())
    }

    /// Returns the path and the stamp of an entry by its number.
    pub(crate) fn entry(&self, number: usize) -> Option<(&[u8], &Stamp)> {
        let entry = self.entries.get(number)?;
        Some((path(&self.paths, entry), &entry.stamp))
    }

    /// Puts the entries in the order of their paths.
    pub(crate) fn sort(&mut self) {
        let paths = &self.paths;
        self.entries.sort_unstable_by(|one, other| path(paths, one).cmp(path(paths, other)));
    }
}

fn path<'p>(paths: &'p [u8], entry: &Entry) -> &'p [u8] {
    let end = entry.start.saturating_add(usize::from(entry.length));
    paths.get(entry.start..end).unwrap_or_default()
}
