//! Files of a repository with paths that git on the host opens without checking them: its index, the list of conflicts
//! whose resolutions it keeps, which stays empty in cells, and the list of tables with references.
//!
//! With a path outside of the work tree in the index, `git checkout .` would write there. So cells write to no such
//! file. Git makes a new one and renames it, and init then copies it, if each path is one of the work tree: other
//! processes may have the renamed file open, but not the copy.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, RenameFlags, renameat2};
use nix::sys::stat::{FileStat, Mode, fchmod, fstatat, futimens};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, unlinkat};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::names::{self, CACHES, COMMONDIR, GIT};
use super::paths::{MAX_PATH_BYTES, Spot};
use super::rename::new_temporary;
use crate::errno_of;
use sys::Result;
use sys::lookup::{self, Follow};

/// A file with paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// The index (gitformat-index(5)).
    Index,
    /// `MERGE_RR`. By an entry in it `git commit` writes what a cell has put into `rr-cache` to any file, or reads any
    /// file for the next cell, through links too. So only an empty one is made.
    Conflicts,
    /// `tables.list` (reftable): git removes the files that it names once it has read them.
    Tables,
}

/// Bytes of an object id: SHA-1 or SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdBytes {
    Sha1,
    Sha256,
}

impl IdBytes {
    fn count(self) -> u64 {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }
}

/// Replaces `to` by a copy of the file `source` at `from`, which is then removed.
///
/// # Errors
/// EBADMSG: a path outside of the work tree, or another format.
pub(crate) fn replace(
    source: OwnedFd,
    status: &FileStat,
    (from, to): (&Spot, &Spot),
    flags: RenameFlags,
    record: Record,
) -> Result<()> {
    let ids = match record {
        Record::Index => ids_of(to)?,
        Record::Conflicts | Record::Tables => IdBytes::Sha1,
    };
    let (name, copy) = new_temporary(&to.parent)?;
    let mut copy = File::from(copy);
    let done = copy_checked(&mut File::from(source), &mut copy, status, (record, ids))
        .and_then(|copied| if copied == Copied::Less { sign(&mut copy, ids) } else { Ok(()) })
        .and_then(|()| as_source(&copy, status))
        .and_then(|()| renameat2(&to.parent, name.as_c()?, &to.parent, to.last()?, flags));
    if done.is_err() {
        unlinkat(&to.parent, name.as_c()?, UnlinkatFlags::NoRemoveDir)?;
    }
    done?;
    match unlinkat(&from.parent, from.last()?, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Writes the checksum of an index at its end.
fn sign(copy: &mut File, ids: IdBytes) -> Result<()> {
    match ids {
        IdBytes::Sha1 => sign_with::<Sha1>(copy),
        IdBytes::Sha256 => sign_with::<Sha256>(copy),
    }
    .map_err(|error| errno_of(&error))
}

fn sign_with<D: Digest>(copy: &mut File) -> std::io::Result<()> {
    let length = u64::try_from(<D as Digest>::output_size()).unwrap_or_default();
    let mut left = copy.seek(SeekFrom::End(0))?.saturating_sub(length);
    copy.rewind()?;
    let mut digest = D::new();
    let mut buffer = [0; CHUNK];
    while left > 0 {
        let read = Read::by_ref(copy).take(left).read(&mut buffer)?;
        let read = buffer.get(..read).filter(|read| !read.is_empty());
        let read = read.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        digest.update(read);
        left = left.saturating_sub(u64::try_from(read.len()).unwrap_or(left));
    }
    copy.write_all(&digest.finalize())
}

/// Gives the copy the mode of the source, and its times: git takes files for changed that are newer than the index.
fn as_source(copy: &File, status: &FileStat) -> Result<()> {
    fchmod(copy, Mode::from_bits_truncate(status.st_mode & 0o777))?;
    let accessed = TimeSpec::new(status.st_atime, status.st_atime_nsec);
    let written = TimeSpec::new(status.st_mtime, status.st_mtime_nsec);
    futimens(copy, &accessed, &written)
}

/// Returns true if both are the same file.
pub(crate) fn is_same(status: &FileStat, to: &Spot) -> Result<bool> {
    match fstatat(&to.parent, to.last()?, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (status.st_dev, status.st_ino)),
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Returns the size of the ids in a repository, which its configuration has. A linked worktree has that of the repository
/// two levels above it. No cell can make or change these files.
fn ids_of(index: &Spot) -> Result<IdBytes> {
    const MAX_CONFIGURATION: u64 = 1 << 20;
    let is_linked = match fstatat(&index.parent, COMMONDIR, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(_) => true,
        Err(Errno::ENOENT) => false,
        Err(errno) => return Err(errno),
    };
    let path = if is_linked { c"../../config" } else { c"config" };
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    // The host may have made it a link.
    let config = match lookup::open(&index.parent, path, flags, 0, Follow::Texts) {
        // The directory of a worktree elsewhere, to be moved back.
        Err(Errno::ENOENT) => return Err(Errno::EBADMSG),
        config => File::from(config?),
    };
    let mut text = Vec::new();
    let read = config.take(MAX_CONFIGURATION + 1).read_to_end(&mut text);
    let length = read.map_err(|error| errno_of(&error))?;
    if u64::try_from(length).is_ok_and(|length| length <= MAX_CONFIGURATION) {
        Ok(ids_in(&text))
    } else {
        Err(Errno::EBADMSG)
    }
}

/// Returns the size of the ids by `extensions.objectFormat` in a configuration. The names of branches, remotes and
/// submodules in it may be those that a cell chose: they are in other sections, and have no line breaks.
fn ids_in(config: &[u8]) -> IdBytes {
    let mut is_extensions = false;
    let mut ids = IdBytes::Sha1;
    for line in config.split(|byte| *byte == b'\n') {
        let mut line = line.trim_ascii();
        if let Some(header) = line.strip_prefix(b"[") {
            let end = header.iter().position(|byte| *byte == b']').unwrap_or(header.len());
            let (section, rest) = header.split_at(end);
            is_extensions = section.eq_ignore_ascii_case(b"extensions");
            line = rest.get(1..).unwrap_or_default().trim_ascii();
        }
        let mut halves = line.splitn(2, |byte| *byte == b'=');
        let key = halves.next().unwrap_or_default();
        let value = halves.next().unwrap_or_default();
        if is_extensions && key.trim_ascii().eq_ignore_ascii_case(b"objectformat") {
            let value = value.trim_ascii_start();
            let value = value.strip_prefix(b"\"").unwrap_or(value);
            let is_sha256 = value.get(..6).is_some_and(|word| word.eq_ignore_ascii_case(b"sha256"));
            // The last value counts.
            ids = if is_sha256 { IdBytes::Sha256 } else { IdBytes::Sha1 };
        }
    }
    ids
}

/// What a copy has of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    All,
    /// An extension was left out, and zeros stand for the checksum.
    Less,
}

fn copy_checked(
    from: &mut impl Read,
    to: &mut impl Write,
    status: &FileStat,
    (record, ids): (Record, IdBytes),
) -> Result<Copied> {
    let size = u64::try_from(status.st_size).map_err(|_| Errno::EBADMSG)?;
    let mut copying = Copying::new(from, to, size);
    let copied = match record {
        Record::Index => index(&mut copying, ids)?,
        Record::Conflicts if size == 0 => Copied::All,
        Record::Conflicts => return Err(Errno::EBADMSG),
        Record::Tables => {
            tables(&mut copying)?;
            Copied::All
        }
    };
    copying.rest()?;
    Ok(copied)
}

/// Bytes at the end of a file that are looked at again.
const TAIL: usize = 128;

/// Bytes that are read or written at once.
const CHUNK: usize = 8 << 10;

/// A file that is written as it is read.
struct Copying<'f, R, W> {
    from: &'f mut R,
    to: &'f mut W,
    buffer: [u8; CHUNK],
    /// The part of the buffer that was not taken yet.
    start: usize,
    end: usize,
    /// Bytes of the file that were not taken yet.
    left: u64,
    /// True while what is taken is left out of the copy.
    drops: bool,
    /// Bytes of the copy that were not written yet.
    kept: Vec<u8>,
    /// The last bytes that were written.
    tail: [u8; TAIL],
}

impl<'f, R: Read, W: Write> Copying<'f, R, W> {
    fn new(from: &'f mut R, to: &'f mut W, size: u64) -> Self {
        let buffer = [0; CHUNK];
        let kept = Vec::with_capacity(2 * CHUNK);
        let tail = [0; TAIL];
        Self { from, to, buffer, start: 0, end: 0, left: size, drops: false, kept, tail }
    }

    /// Returns the bytes that were read and not taken yet, at least one.
    fn ready(&mut self) -> Result<&[u8]> {
        if self.start == self.end {
            let length = match self.from.read(&mut self.buffer).map_err(|error| errno_of(&error))? {
                // The file became shorter.
                0 => return Err(Errno::EBADMSG),
                length => length,
            };
            (self.start, self.end) = (0, length);
        }
        Ok(self.buffer.get(self.start..self.end).unwrap_or_default())
    }

    fn take(&mut self, count: usize) -> Result<()> {
        let end = self.start + count;
        let taken = self.buffer.get(self.start..end).ok_or(Errno::EBADMSG)?;
        if !self.drops {
            self.kept.extend_from_slice(taken);
        }
        self.start = end;
        let count = u64::try_from(count).map_err(|_| Errno::EBADMSG)?;
        self.left = self.left.checked_sub(count).ok_or(Errno::EBADMSG)?;
        if self.kept.len() >= CHUNK { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        self.to.write_all(&self.kept).map_err(|error| errno_of(&error))?;
        let last = self.kept.get(self.kept.len().saturating_sub(TAIL)..).unwrap_or_default();
        self.tail.rotate_left(last.len());
        self.tail.get_mut(TAIL - last.len()..).ok_or(Errno::EBADMSG)?.copy_from_slice(last);
        self.kept.clear();
        Ok(())
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = *self.ready()?.first().ok_or(Errno::EBADMSG)?;
        self.take(1)?;
        Ok(byte)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn skip(&mut self, mut count: u64) -> Result<()> {
        while count > 0 {
            let ready = self.ready()?.len();
            let now = usize::try_from(count).map_or(ready, |count| count.min(ready));
            self.take(now)?;
            count -= u64::try_from(now).map_err(|_| Errno::EBADMSG)?;
        }
        Ok(())
    }

    /// Copies the rest.
    ///
    /// # Errors
    /// EBADMSG: the file has become shorter or longer.
    fn rest(&mut self) -> Result<()> {
        self.skip(self.left)?;
        self.write()?;
        match self.from.read(&mut [0]) {
            Ok(0) if self.start == self.end => Ok(()),
            Ok(_) => Err(Errno::EBADMSG),
            Err(error) => Err(errno_of(&error)),
        }
    }
}

/// A path in a record, and its length.
struct PathInRecord {
    bytes: [u8; MAX_PATH_BYTES],
    length: usize,
}

impl PathInRecord {
    fn push(&mut self, byte: u8) -> Result<()> {
        *self.bytes.get_mut(self.length).ok_or(Errno::EBADMSG)? = byte;
        self.length += 1;
        Ok(())
    }

    /// Refuses a path outside of the work tree, as git does before it adds one.
    fn check(&self) -> Result<()> {
        let path = self.bytes.get(..self.length).unwrap_or_default();
        // That of a directory that is not checked out ends with a slash.
        let path = path.strip_suffix(b"/").unwrap_or(path);
        // By a link of the work tree a path can lead to a cache, in which a cell makes repositories.
        let is_name = |part: &[u8]| {
            !matches!(part, b"" | b"." | b"..")
                && !names::may_be(part, GIT)
                && !names::may_be(part, CACHES)
        };
        let is_inside = path.split(|byte| *byte == b'/').all(is_name);
        if is_inside { Ok(()) } else { Err(Errno::EBADMSG) }
    }
}

/// Checks an index. What makes git read entries from elsewhere than one after the other is refused: an index in two
/// files, and one with a table of its entries for several threads. The names of files without an entry (`UNTR`) are
/// left out: git would list directories of the host that they name, for the next cell to read.
fn index<R: Read, W: Write>(copying: &mut Copying<'_, R, W>, ids: IdBytes) -> Result<Copied> {
    /// Times, numbers, mode, owner and size of an entry.
    const BEFORE_ID: u64 = 40;
    const EXTENDED: u16 = 0x4000;
    const LENGTH: u16 = 0x0fff;
    if copying.bytes()? != *b"DIRC" {
        return Err(Errno::EBADMSG);
    }
    let version = copying.number()?;
    if !matches!(version, 2..=4) {
        return Err(Errno::EBADMSG);
    }
    let mut path = PathInRecord { bytes: [0; MAX_PATH_BYTES], length: 0 };
    for _ in 0..copying.number()? {
        copying.skip(BEFORE_ID + ids.count())?;
        let flags = u16::from_be_bytes(copying.bytes()?);
        let mut used = BEFORE_ID + ids.count() + 2;
        if flags & EXTENDED != 0 {
            copying.skip(2)?;
            used += 2;
        }
        path.length = match version {
            4 => path.length.checked_sub(offset(copying)?).ok_or(Errno::EBADMSG)?,
            _ => 0,
        };
        loop {
            match copying.byte()? {
                0 => break,
                byte => path.push(byte)?,
            }
        }
        path.check()?;
        // Git takes the length from here, and not from the end of the path.
        let listed = usize::from(flags & LENGTH);
        if listed != path.length.min(usize::from(LENGTH)) {
            return Err(Errno::EBADMSG);
        }
        if version != 4 {
            used += u64::try_from(path.length).map_err(|_| Errno::EBADMSG)?;
            // One to eight bytes, of which the first has been taken.
            copying.skip(7 - used % 8)?;
        }
    }
    let mut copied = Copied::All;
    while copying.left >= ids.count() + 8 {
        copying.drops = true;
        let name: [u8; 4] = copying.bytes()?;
        if matches!(&name, b"link" | b"EOIE" | b"IEOT") {
            return Err(Errno::EBADMSG);
        }
        let length = copying.number()?;
        if name == *b"UNTR" {
            copied = Copied::Less;
        } else {
            copying.drops = false;
            copying.kept.extend_from_slice(&name);
            copying.kept.extend_from_slice(&length.to_be_bytes());
        }
        copying.skip(u64::from(length))?;
        copying.drops = false;
    }
    if copied == Copied::Less {
        let zeros = usize::try_from(copying.left).map_err(|_| Errno::EBADMSG)?;
        copying.kept.resize(copying.kept.len() + zeros, 0);
        copying.drops = true;
    }
    copying.rest()?;
    // Git finds this one by its distance from the end.
    let distance = usize::try_from(2 * ids.count() + 12).map_err(|_| Errno::EBADMSG)?;
    let at_end = copying.tail.get(TAIL - distance..).unwrap_or_default();
    if at_end.starts_with(b"EOIE") { Err(Errno::EBADMSG) } else { Ok(copied) }
}

/// Checks a list of tables: a line each, which is a name in the directory of the list.
fn tables<R: Read, W: Write>(copying: &mut Copying<'_, R, W>) -> Result<()> {
    let mut is_first = true;
    while copying.left > 0 {
        match copying.byte()? {
            b'/' | 0 => return Err(Errno::EBADMSG),
            b'.' if is_first => return Err(Errno::EBADMSG),
            byte => is_first = byte == b'\n',
        }
    }
    Ok(())
}

/// Reads a number in the encoding of offsets in packs.
fn offset<R: Read, W: Write>(copying: &mut Copying<'_, R, W>) -> Result<usize> {
    let mut value = 0_usize;
    loop {
        let byte = copying.byte()?;
        let more =
            value.checked_mul(128).and_then(|value| value.checked_add(usize::from(byte & 0x7f)));
        value = more.ok_or(Errno::EBADMSG)?;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
        value = value.checked_add(1).ok_or(Errno::EBADMSG)?;
    }
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
