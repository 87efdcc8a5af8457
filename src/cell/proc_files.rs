//! Reads files and lists directories of a procfs (proc(5)).

use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::unistd::read;

use sys::Result;

/// `Name:<tab>value` lines of a procfs file.
pub struct Fields(String);

impl Fields {
    /// Reads a whole file of this format.
    pub fn read(proc: impl AsFd, path: &str) -> Result<Self> {
        read_lossy(proc, path).map(Self)
    }

    /// Returns the value of a field, empty if it is absent.
    pub fn get(&self, name: &str) -> &str {
        self.0
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map_or("", str::trim)
    }
}

/// Opens `/proc` for listing.
pub(crate) fn open_proc() -> Result<OwnedFd> {
    open(c"/proc", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
}

/// Reads a whole file that is text.
pub fn read_all(proc: impl AsFd, path: &str) -> Result<String> {
    String::from_utf8(read_bytes(proc, path)?).map_err(|_| Errno::EILSEQ)
}

/// Reads a whole file that contains a program's name, and replaces bytes that are not UTF-8.
pub fn read_lossy(proc: impl AsFd, path: &str) -> Result<String> {
    read_bytes(proc, path).map(|text| String::from_utf8_lossy(&text).into_owned())
}

/// Reads a whole file.
pub(crate) fn read_bytes(proc: impl AsFd, path: &str) -> Result<Vec<u8>> {
    let file = open_file(proc, path)?;
    let mut text = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let length = read(&file, &mut buffer)?;
        if length == 0 {
            return Ok(text);
        }
        text.extend_from_slice(buffer.get(..length).unwrap_or_default());
    }
}

/// Reads the beginning of a file, in one read. Returns bytes: a program may choose a name that is
/// not UTF-8.
pub(crate) fn read_start<'b>(
    proc: impl AsFd,
    path: &str,
    buffer: &'b mut [u8],
) -> Result<&'b [u8]> {
    let length = read(&open_file(proc, path)?, buffer)?;
    Ok(buffer.get(..length).unwrap_or_default())
}

fn open_file(proc: impl AsFd, path: &str) -> Result<OwnedFd> {
    openat(proc, path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
}

/// Returns the numeric entries of a directory, which are processes or threads; an empty list if the
/// directory is gone.
///
/// # Errors
/// The directory cannot be read.
pub fn numbers<N: FromStr>(proc: impl AsFd, path: &str) -> Result<Vec<N>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let list = match Dir::openat(proc, path, flags, Mode::empty()) {
        Ok(list) => list,
        Err(Errno::ENOENT | Errno::ESRCH) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    };
    let mut numbers = Vec::new();
    // By value: nix rewinds a borrowed list at its end (lseek(2)), which init's filter refuses.
    for entry in list {
        match entry {
            Ok(entry) => {
                numbers.extend(entry.file_name().to_str().ok().and_then(|n| n.parse().ok()))
            }
            Err(Errno::ENOENT | Errno::ESRCH) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(numbers)
}
