//! Walks through the host's `/etc` and reads unchanged files of packages, and the texts of links.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::OwnedFd;

use md5::{Digest, Md5};
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, fstat, fstatat};
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, RawDir};

use super::digests::Digests;
use cell::late_files::Extent;
use sys::lookup::{self, Follow};

/// Maximum files and links that are copied.
pub(super) const MAX_COPIED: usize = 4_000;
/// Maximum bytes of all copied files.
const MAX_BYTES: usize = 8 << 20;
/// Maximum entries of all directories that are looked at.
const MAX_ENTRIES: usize = 50_000;
/// Bytes of entries that one getdents64(2) returns at most.
const DIRECTORY_BYTES: usize = 32 << 10;
/// Maximum levels of directories.
const MAX_DEPTH: u8 = 8;

/// Path of the host's directory in a cell.
pub(super) const ETC: &[u8] = b"/etc";

/// Files that were read and not written yet. Paths are those that cells see, as bytes: comparing their components would
/// take a fifth of the time.
#[derive(Debug)]
pub(crate) struct ReadFiles {
    pub(super) files: Vec<ReadFile>,
    /// Bytes of all these files, one after the other.
    pub(super) bytes: Vec<u8>,
}

/// An unchanged file of a package.
#[derive(Debug)]
pub(super) struct ReadFile {
    pub path: Vec<u8>,
    pub mode: u32,
    /// Its place in the bytes of all files.
    pub bytes: Range<usize>,
}

impl ReadFiles {
    fn new() -> Self {
        // Only pages that are written take memory, and the bytes never move.
        Self { files: Vec::new(), bytes: Vec::with_capacity(MAX_BYTES) }
    }

    /// Forgets the files. Their memory is used again, as new pages take longer than reading the files.
    pub(super) fn clear(&mut self) {
        self.files.clear();
        self.bytes.clear();
    }
}

/// The part of what was found that is written after all files.
#[derive(Debug)]
pub(crate) struct Rest {
    /// Links with their texts.
    pub(super) links: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) extent: Extent,
}

/// A walk in progress.
pub(super) struct Finder<'a, W> {
    /// Files and directories that a cell has already.
    skipped: &'a HashSet<Vec<u8>>,
    digests: &'a Digests,
    /// Called after each directory: writes files and clears them, or leaves them for later.
    write: W,
    entries: usize,
    /// Files, and their bytes, that were found so far.
    count: usize,
    length: usize,
    files: ReadFiles,
    rest: Rest,
}

impl<'a, W> Finder<'a, W>
where
    W: FnMut(&mut ReadFiles) -> Result<(), Errno>,
{
    pub(super) fn new(skipped: &'a HashSet<Vec<u8>>, digests: &'a Digests, write: W) -> Self {
        let rest = Rest { links: Vec::new(), extent: Extent::All };
        let files = ReadFiles::new();
        Self { skipped, digests, write, entries: 0, count: 0, length: 0, files, rest }
    }

    /// Reads the files and links of `etc`. Those that cannot be read are left out. Returns the files that were not
    /// written, and the rest.
    ///
    /// # Errors
    /// Those of the function that writes.
    pub(super) fn find(mut self, etc: &OwnedFd) -> Result<(ReadFiles, Rest), Errno> {
        self.walk(etc, c".", &mut ETC.to_owned(), MAX_DEPTH)?;
        Ok((self.files, self.rest))
    }

    /// Reads the files of the directory `name` in `parent`, and those below it. `path` is its path in the cell.
    fn walk(
        &mut self,
        parent: &OwnedFd,
        name: &CStr,
        path: &mut Vec<u8>,
        depth: u8,
    ) -> Result<(), Errno> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let Ok(opened) = open(parent, name, flags) else { return Ok(()) };
        if !fstat(&opened).is_ok_and(|status| is_for_all(&status, libc::S_IFDIR, 0o555)) {
            return Ok(());
        }
        let mut entries = self.entries(&opened, path);
        // The same files are copied each time, should a limit be reached.
        entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        for (name, kind) in entries {
            if self.count >= MAX_COPIED {
                self.rest.extent = Extent::Limited;
                break;
            }
            let length = push(path, &name);
            match kind {
                FileType::Directory if depth == 0 => self.rest.extent = Extent::Limited,
                FileType::Directory => self.walk(&opened, &name, path, depth - 1)?,
                FileType::RegularFile => self.read(&opened, &name, path),
                FileType::Symlink => {
                    let mut buffer = [0; 1024];
                    if let Ok(text) = lookup::read_link(&opened, &name, &mut buffer) {
                        self.rest.links.push((path.clone(), text.to_owned()));
                    }
                }
                FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => {}
            }
            path.truncate(length);
        }
        if self.files.files.is_empty() { Ok(()) } else { (self.write)(&mut self.files) }
    }

    /// Returns the entries of a directory that may be copied, with their types, as far as it can be
    /// read. `path` is its path in the cell.
    fn entries(&mut self, directory: &OwnedFd, path: &mut Vec<u8>) -> Vec<(CString, FileType)> {
        let mut buffer = Vec::with_capacity(DIRECTORY_BYTES);
        let mut reader = RawDir::new(directory, buffer.spare_capacity_mut());
        let mut entries = Vec::new();
        while let Some(Ok(entry)) = reader.next() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                self.rest.extent = Extent::Limited;
                break;
            }
            let mut kind = entry.file_type();
            // Some filesystems do not have it in the directory.
            if kind == FileType::Unknown
                && let Ok(status) = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            {
                kind = FileType::from_raw_mode(status.st_mode);
            }
            let length = push(path, name);
            if self.may_be_copied(path, kind) {
                entries.push((name.to_owned(), kind));
            }
            path.truncate(length);
        }
        entries
    }

    /// Returns true for links, files of packages, and directories that have such files below them or
    /// next to them, unless cells have the path already.
    fn may_be_copied(&self, path: &[u8], kind: FileType) -> bool {
        match kind {
            FileType::RegularFile => {
                !self.digests.of(path).is_empty() && !self.skipped.contains(path)
            }
            FileType::Directory => {
                (self.digests.are_below(path) || self.may_have_links(path))
                    && !self.skipped.contains(path)
            }
            FileType::Symlink => true,
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => false,
        }
    }

    /// Returns true for a directory in one of `/etc` that has files of packages: it may have nothing
    /// but links to them, as `conf.d` of PHP has.
    fn may_have_links(&self, path: &[u8]) -> bool {
        let above = path.iter().rposition(|byte| *byte == b'/').and_then(|end| path.get(..end));
        above.is_some_and(|above| above != ETC && self.digests.are_below(above))
    }

    /// Reads a file. Keeps its bytes if they are those of a package.
    fn read(&mut self, parent: &OwnedFd, name: &CStr, path: &[u8]) {
        // Nothing waits for the other end, should the file have become a FIFO.
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let Ok(opened) = open(parent, name, flags) else { return };
        let status = match fstat(&opened) {
            Ok(status) if is_for_all(&status, libc::S_IFREG, 0o444) => status,
            Ok(_) | Err(_) => return,
        };
        let size = usize::try_from(status.st_size).ok();
        let Some(size) = size.filter(|size| *size <= MAX_BYTES.saturating_sub(self.length)) else {
            self.rest.extent = Extent::Limited;
            return;
        };
        let ReadFiles { files, bytes } = &mut self.files;
        let start = bytes.len();
        // A file that has become longer or shorter has another digest, or is as it was shipped.
        let is_read = read_to(&opened, bytes, start + size).is_ok();
        let read = bytes.get(start..).unwrap_or_default();
        let digest: [u8; 16] = Md5::digest(read).into();
        if !is_read || !self.digests.of(path).iter().any(|(_, listed)| *listed == digest) {
            bytes.truncate(start);
            return;
        }
        self.count += 1;
        self.length = self.length.saturating_add(read.len());
        let mode = if status.st_mode & 0o111 == 0o111 { 0o755 } else { 0o644 };
        files.push(ReadFile { path: path.to_owned(), mode, bytes: start..bytes.len() });
    }
}

/// Reads a file into the capacity of `bytes` until these are at least `end`, or the file ends.
fn read_to(file: &OwnedFd, bytes: &mut Vec<u8>, end: usize) -> Result<(), Errno> {
    while bytes.len() < end {
        match rustix::io::read(file, spare_capacity(bytes)) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Errno::from_raw(errno.raw_os_error())),
        }
    }
    Ok(())
}

/// Appends a name to a path. Returns the length before, to which the path is truncated later.
fn push(path: &mut Vec<u8>, name: &CStr) -> usize {
    let length = path.len();
    path.push(b'/');
    path.extend(name.to_bytes());
    length
}

/// Opens an entry of a directory of the host. Does not leave its filesystem, and follows no links.
fn open(directory: &OwnedFd, name: &CStr, flags: i32) -> Result<OwnedFd, Errno> {
    lookup::open(directory, name, flags, 0, Follow::Beneath)
}

/// Returns true for a file of the type that owner, group and others may use in all of these ways.
fn is_for_all(status: &FileStat, kind: libc::mode_t, ways: libc::mode_t) -> bool {
    status.st_mode & libc::S_IFMT == kind && status.st_mode & ways == ways
}
