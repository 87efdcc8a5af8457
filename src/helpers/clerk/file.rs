//! File operations of clerk and runner, by descriptor and raw system calls.

use alloc::ffi::CString;
use alloc::vec::Vec;

use crate::errno::Errno;
use crate::sys::{self, number};

/// Numbers of calls that the probe does not make.
mod more {
    // The flags are from fcntl.h of each architecture.
    crate::by_architecture! {
        PREAD64 17 67,
        FSYNC 74 82,
        FCHMOD 91 52,
        RENAMEAT2 316 276,
        READLINKAT 267 78,
        GETRANDOM 318 278,
        STATX 332 291,
        FACCESSAT 269 48,
        O_DIRECTORY 0o200_000 0o40_000,
        O_NOFOLLOW 0o400_000 0o100_000,
    }
}

pub use more::{O_DIRECTORY, O_NOFOLLOW};

pub const O_PATH: usize = 0o10_000_000;
pub const O_WRONLY: usize = 1;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_TRUNC: usize = 0o1000;
const O_APPEND: usize = 0o2000;
/// Tests for permission to write (access(2)).
const W_OK: usize = 2;
const O_NOCTTY: usize = 0o400;
/// No open of the clerk blocks, whether on a FIFO or on a device.
const O_NONBLOCK: usize = 0o4_000;
const O_CLOEXEC: usize = 0o2_000_000;
/// AT_FDCWD is -100.
const AT_FDCWD: usize = usize::MAX - 99;
const AT_EMPTY_PATH: usize = 0x1000;

/// Maximum size of a file that is read or written whole, and of any input.
pub const MAX_FILE_BYTES: usize = 8 << 20;

/// An open file, closed on drop.
#[derive(Debug)]
pub struct OpenFile(pub usize);

impl Drop for OpenFile {
    fn drop(&mut self) {
        // The descriptor is open; an error of an earlier write cannot be handled here.
        sys::call(number::CLOSE, &[self.0]).map(drop).unwrap_or_default();
    }
}

/// Attributes of a file (statx(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub mode: u16,
    pub links: u32,
    pub inode: u64,
    pub size: u64,
}

impl Stat {
    /// Returns the type of the file, in words.
    pub fn kind(&self) -> &'static str {
        match self.mode >> 12 {
            0o10 => "file",
            0o04 => "directory",
            0o12 => "symbolic link",
            0o01 => "FIFO",
            0o14 => "socket",
            0o02 | 0o06 => "device",
            _ => "special file",
        }
    }

    pub fn has_kind(&self, kind: &str) -> bool {
        self.kind() == kind
    }

    /// Returns the permissions without set-id and sticky bits.
    pub fn permissions(&self) -> u16 {
        self.mode & 0o777
    }
}

/// Returns a name for the kernel; EINVAL if it contains a NUL.
fn c_name(name: &[u8]) -> Result<CString, Errno> {
    CString::new(name).map_err(|_| Errno::INVAL)
}

/// Opens the workspace directory, to which `/workspace` may be a link.
pub fn workspace() -> Result<OpenFile, Errno> {
    open_from(AT_FDCWD, b"/workspace/.", O_PATH | O_DIRECTORY)
}

/// Opens a file by openat(2); follows no symbolic link at the end of the name and never blocks.
pub fn open(directory: &OpenFile, name: &[u8], flags: usize) -> Result<OpenFile, Errno> {
    open_from(directory.0, name, flags)
}

fn open_from(directory: usize, name: &[u8], flags: usize) -> Result<OpenFile, Errno> {
    let name = c_name(name)?;
    let flags = flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    let given = [directory, sys::address(name.as_bytes_with_nul()), flags, 0];
    sys::call(number::OPENAT, &given).map(OpenFile)
}

/// Creates a new file for writing, with mode 0600.
pub fn create(directory: &OpenFile, name: &[u8]) -> Result<OpenFile, Errno> {
    let name = c_name(name)?;
    let flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    let given = [directory.0, sys::address(name.as_bytes_with_nul()), flags, 0o600];
    sys::call(number::OPENAT, &given).map(OpenFile)
}

/// Opens a file by path for reading; follows no symbolic link at the end and never blocks.
pub fn read(path: &[u8]) -> Result<OpenFile, Errno> {
    open_from(AT_FDCWD, path, 0)
}

/// Opens a file by path for appending, like [`read`].
pub fn append(path: &[u8]) -> Result<OpenFile, Errno> {
    open_from(AT_FDCWD, path, O_WRONLY | O_APPEND)
}

/// Sets the flags of an open file (F_SETFL of fcntl(2)).
fn set_flags(file: &OpenFile, flags: usize) -> Result<(), Errno> {
    const SET_FLAGS: usize = 4;
    sys::call(number::FCNTL, &[file.0, SET_FLAGS, flags]).map(drop)
}

/// Makes reads block, as programs expect of their input.
pub fn block_reads(file: &OpenFile) -> Result<(), Errno> {
    set_flags(file, 0)
}

/// Makes appends block, as programs expect of their output.
pub fn block_appends(file: &OpenFile) -> Result<(), Errno> {
    set_flags(file, O_APPEND)
}

/// Creates a file by path, or truncates the existing one.
pub fn replace(path: &[u8]) -> Result<OpenFile, Errno> {
    let path = c_name(path)?;
    let flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    let given = [AT_FDCWD, sys::address(path.as_bytes_with_nul()), flags, 0o600];
    sys::call(number::OPENAT, &given).map(OpenFile)
}

/// Creates a file by path with these bytes.
pub fn write(path: &[u8], bytes: &[u8]) -> Result<(), Errno> {
    write_all(replace(path)?.0, bytes)
}

/// Returns true for a file that this program may write to (faccessat(2)).
pub fn is_writable(path: &[u8]) -> Result<bool, Errno> {
    let path = c_name(path)?;
    let given = [AT_FDCWD, sys::address(path.as_bytes_with_nul()), W_OK];
    Ok(sys::call(more::FACCESSAT, &given).is_ok())
}

/// Returns true for a file of this type ([`Stat::kind`]); symbolic links are not followed.
pub fn has_kind(path: &[u8], kind: &str) -> bool {
    open_from(AT_FDCWD, path, O_PATH)
        .and_then(|file| stat(&file))
        .is_ok_and(|stat| stat.has_kind(kind))
}

/// Renames a file by path, replacing any file with the new name.
pub fn rename_over(from: &[u8], to: &[u8]) -> Result<(), Errno> {
    rename(AT_FDCWD, from, to, Over::Any)
}

/// Removes a file by path.
pub fn remove_path(path: &[u8]) -> Result<(), Errno> {
    unlink(AT_FDCWD, path)
}

pub fn make_directory(directory: &OpenFile, name: &[u8]) -> Result<(), Errno> {
    let name = c_name(name)?;
    let given = [directory.0, sys::address(name.as_bytes_with_nul()), 0o755];
    sys::call(number::MKDIRAT, &given).map(drop)
}

pub fn remove(directory: &OpenFile, name: &[u8]) -> Result<(), Errno> {
    unlink(directory.0, name)
}

fn unlink(directory: usize, name: &[u8]) -> Result<(), Errno> {
    let name = c_name(name)?;
    let given = [directory, sys::address(name.as_bytes_with_nul()), 0];
    sys::call(number::UNLINKAT, &given).map(drop)
}

/// Treatment of an existing file with the new name of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The new name must be unused.
    Nothing,
    /// Any existing file is replaced.
    Any,
}

/// Renames within one directory.
pub fn rename_in(directory: &OpenFile, from: &[u8], to: &[u8], over: Over) -> Result<(), Errno> {
    rename(directory.0, from, to, over)
}

/// Renames by renameat2(2).
fn rename(directory: usize, from: &[u8], to: &[u8], over: Over) -> Result<(), Errno> {
    let from = c_name(from)?;
    let to = c_name(to)?;
    let from = from.as_bytes_with_nul();
    let to = to.as_bytes_with_nul();
    let flags = match over {
        Over::Nothing => 1,
        Over::Any => 0,
    };
    let given = [directory, sys::address(from), directory, sys::address(to), flags];
    sys::call(more::RENAMEAT2, &given).map(drop)
}

pub fn set_mode(file: &OpenFile, mode: u16) -> Result<(), Errno> {
    sys::call(more::FCHMOD, &[file.0, usize::from(mode)]).map(drop)
}

pub fn sync(file: &OpenFile) -> Result<(), Errno> {
    sys::call(more::FSYNC, &[file.0]).map(drop)
}

/// Returns the attributes of an open file.
pub fn stat(file: &OpenFile) -> Result<Stat, Errno> {
    // struct statx (statx(2)) has the same layout on every architecture.
    let mut room = [0_u8; 256];
    let basic = 0x7ff;
    let given = [file.0, sys::address(&[0_u8]), AT_EMPTY_PATH, basic, sys::address_mut(&mut room)];
    sys::call(more::STATX, &given)?;
    Ok(Stat {
        links: u32::from_ne_bytes(at(&room, 16)),
        mode: u16::from_ne_bytes(at(&room, 28)),
        inode: u64::from_ne_bytes(at(&room, 32)),
        size: u64::from_ne_bytes(at(&room, 40)),
    })
}

/// Returns `N` bytes at an offset of a structure.
pub fn at<const N: usize>(room: &[u8], offset: usize) -> [u8; N] {
    let bytes = room.get(offset..).and_then(<[u8]>::first_chunk::<N>);
    bytes.copied().unwrap_or([0; N])
}

/// Returns the target of a symbolic link that was opened with [`O_PATH`].
pub fn link_text(link: &OpenFile) -> Result<Vec<u8>, Errno> {
    let mut room = alloc::vec![0; 4096];
    let given = [link.0, sys::address(&[0_u8]), sys::address_mut(&mut room), room.len()];
    let length = sys::call(more::READLINKAT, &given)?;
    room.truncate(length);
    Ok(room)
}

/// Reads the next entries of a directory by getdents64(2); 0 bytes at its end.
pub fn entries(directory: &OpenFile, room: &mut [u8]) -> Result<usize, Errno> {
    sys::call(number::GETDENTS64, &[directory.0, sys::address_mut(room), room.len()])
}

/// Returns random bytes from the kernel.
pub fn random() -> Result<u64, Errno> {
    let mut room = [0_u8; 8];
    sys::call(more::GETRANDOM, &[sys::address_mut(&mut room), room.len(), 0])?;
    Ok(u64::from_ne_bytes(room))
}

/// Reads at most `max_bytes` bytes from `offset`. If the file grows or shrinks meanwhile, reads
/// what is there.
pub fn read_at(file: &OpenFile, offset: u64, max_bytes: usize) -> Result<Vec<u8>, Errno> {
    let left = stat(file)?.size.saturating_sub(offset);
    let length = usize::try_from(left).unwrap_or(usize::MAX).min(max_bytes);
    let mut bytes = alloc::vec![0; length];
    let mut filled = 0;
    while let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty()) {
        let position = usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(filled);
        let given = [file.0, sys::address_mut(room), room.len(), position];
        match sys::call(more::PREAD64, &given) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Writes all bytes (write(2)). Waits for room in a pipe that another process has made
/// non-blocking.
pub fn write_all(descriptor: usize, bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match sys::write(descriptor, rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => await_room(descriptor)?,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Waits until a descriptor can be written to (ppoll(2)).
fn await_room(descriptor: usize) -> Result<(), Errno> {
    const WRITABLE: u64 = 4;
    let mut one = [u64::try_from(descriptor).unwrap_or(0) | WRITABLE << 32];
    match sys::call(number::PPOLL, &[sys::address_mut(&mut one), 1, 0, 0, 8]) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
