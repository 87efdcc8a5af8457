//! Resolves the paths of mediated calls as the kernel would for the caller.
//!
//! The text is copied once and never read again from the caller's memory. Directories are held by
//! descriptor, and each call acts on one name in a held directory that is not a symbolic link.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use super::registers::PathArgument;
use crate::ids::AGENT;
use sys::lookup::{self, Follow};
use sys::{Result, remote};

/// Maximum length of a path including its NUL, as in the kernel.
pub(super) const MAX_PATH_BYTES: usize = 4096;
/// Maximum number of symbolic links that one lookup follows (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// A NUL-terminated path or name.
#[derive(Clone)]
pub struct Text {
    bytes: [u8; MAX_PATH_BYTES],
    length: usize,
}

impl Text {
    /// Copies a path or name.
    ///
    /// # Errors
    /// ENAMETOOLONG: the path and its NUL do not fit.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut text = Self { bytes: [0; MAX_PATH_BYTES], length: bytes.len() };
        let room = text.bytes.get_mut(..bytes.len()).filter(|room| room.len() < MAX_PATH_BYTES);
        room.ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(bytes);
        Ok(text)
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    pub fn as_c(&self) -> Result<&CStr> {
        CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::ENAMETOOLONG)
    }
}

/// Location of a name: the held directory, and the last part of the path with its trailing slashes.
pub struct Spot {
    pub parent: OwnedFd,
    last: Text,
}

impl Spot {
    /// Resolves an absolute path chosen by init.
    pub fn at(path: &[u8]) -> Result<Self> {
        spot_from(None, path, Follow::Texts)
    }

    /// Resolves a path that the kernel reported for a held file, which contains no link.
    ///
    /// # Errors
    /// ELOOP, ENOENT, ENOTDIR: a directory in the path was changed since.
    pub(crate) fn as_named(path: &[u8]) -> Result<Self> {
        spot_from(None, path, Follow::Nothing)
    }

    /// Returns the last part of the path as an argument of a call.
    ///
    /// # Errors
    /// ENAMETOOLONG: cannot happen for a part of a path that was resolved.
    pub fn last(&self) -> Result<&CStr> {
        // The root has no last part and is addressed as ".".
        if self.last.bytes().is_empty() { Ok(c".") } else { self.last.as_c() }
    }

    /// Returns the name without trailing slashes.
    pub fn name(&self) -> &[u8] {
        trimmed(self.last.bytes())
    }

    /// Returns the kind of the file here; `None` if the name does not exist.
    pub(crate) fn kind(&self) -> Result<Option<SFlag>> {
        match fstatat(&self.parent, self.last()?, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(Some(SFlag::from_bits_truncate(status.st_mode & libc::S_IFMT))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Removes the trailing slashes.
    pub(crate) fn without_slashes(self) -> Result<Self> {
        let last = Text::new(self.name())?;
        Ok(Self { parent: self.parent, last })
    }

    /// Returns true if the path ends in a part that cannot name a file: an empty part, `.`, `..`,
    /// or a slash.
    pub(crate) fn is_no_file(&self) -> bool {
        self.name().len() != self.last.length || matches!(self.name(), b"" | b"." | b"..")
    }
}

fn trimmed(part: &[u8]) -> &[u8] {
    let end = part.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    part.get(..end).unwrap_or_default()
}

/// The file that a path leads to.
#[expect(clippy::large_enum_variant, reason = "lives for one call, and init does not allocate")]
pub enum FoundFile {
    Spot(Spot),
    /// A descriptor of the caller, named by a path in /proc.
    Descriptor(u32),
}

/// Treatment of a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    Follow,
    Stay,
}

/// The waiting thread, and the procfs of its pid namespace.
#[derive(Debug, Clone, Copy)]
pub struct TargetThread<'a> {
    pub proc: BorrowedFd<'a>,
    pub pid: i32,
}

const HOLD: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

impl TargetThread<'_> {
    /// Copies a NUL-terminated text from the caller's memory.
    pub fn text(&self, address: u64) -> Result<Text> {
        let mut bytes = [0; MAX_PATH_BYTES];
        let read = remote::read(self.pid, address, &mut bytes)?;
        let got = bytes.get(..read).unwrap_or_default();
        match got.iter().position(|byte| *byte == 0) {
            Some(length) => Ok(Text { bytes, length }),
            None if read == MAX_PATH_BYTES => Err(Errno::ENAMETOOLONG),
            None => Err(Errno::EFAULT),
        }
    }

    /// Returns true if init cannot read the caller's memory: the caller's file is unreadable by its
    /// mode, and the kernel then gives its entries in /proc to root (proc(5)).
    pub(crate) fn is_unreadable(&self) -> bool {
        let mut buffer = [0; 64];
        let entry = self.entry(&mut buffer, format_args!("environ"));
        let status = entry.and_then(|entry| fstatat(self.proc, entry, AtFlags::empty()));
        status.is_ok_and(|status| status.st_uid != AGENT)
    }

    /// Opens an entry of the caller's directory in /proc.
    fn open_entry(&self, what: std::fmt::Arguments<'_>, flags: OFlag) -> Result<OwnedFd> {
        let mut buffer = [0; 64];
        openat(self.proc, self.entry(&mut buffer, what)?, flags, Mode::empty())
    }

    /// Writes the path of an entry of the caller's directory, relative to the procfs.
    pub fn entry<'b>(
        &self,
        buffer: &'b mut [u8; 64],
        what: std::fmt::Arguments<'_>,
    ) -> Result<&'b CStr> {
        let mut rest = buffer.as_mut_slice();
        write!(rest, "{}/{what}\0", self.pid).map_err(|_| Errno::ENAMETOOLONG)?;
        CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::ENAMETOOLONG)
    }

    /// Opens the file of one of the caller's descriptors.
    pub fn descriptor(&self, number: u32, flags: OFlag) -> Result<OwnedFd> {
        self.open_entry(format_args!("fd/{number}"), flags)
    }

    /// Opens the directory that a relative path starts from.
    pub(super) fn start(&self, from: i32) -> Result<OwnedFd> {
        if from == libc::AT_FDCWD {
            return self.open_entry(format_args!("cwd"), HOLD);
        }
        let number = u32::try_from(from).map_err(|_| Errno::EBADF)?;
        let held = self.descriptor(number, HOLD);
        held.map_err(|errno| if errno == Errno::ENOENT { Errno::EBADF } else { errno })
    }

    /// Reads umask and process id from `/proc/<pid>/status`.
    pub fn status(&self) -> Result<Status> {
        let file = self.open_entry(format_args!("status"), OFlag::O_RDONLY | OFlag::O_CLOEXEC)?;
        let mut buffer = [0; 512];
        let length = nix::unistd::read(file, &mut buffer)?;
        let text = buffer.get(..length).unwrap_or_default();
        // The name precedes both fields, with its line feeds escaped (proc_pid_status(5)).
        let field = |name: &[u8]| {
            let mut lines = text.split(|byte| *byte == b'\n');
            let value = lines.find_map(|line| line.strip_prefix(name))?;
            std::str::from_utf8(value).ok().map(str::trim)
        };
        let umask = field(b"Umask:").and_then(|octal| u32::from_str_radix(octal, 8).ok());
        let process = field(b"Tgid:").and_then(|number| number.parse().ok());
        umask.zip(process).map(|(umask, process)| Status { umask, process }).ok_or(Errno::EPERM)
    }

    /// Reads the number of the caller's controlling terminal from `/proc/<pid>/stat`; `None` if it
    /// has no pseudo-terminal.
    pub(crate) fn terminal(&self) -> Result<Option<u32>> {
        let file = self.open_entry(format_args!("stat"), OFlag::O_RDONLY | OFlag::O_CLOEXEC)?;
        let mut buffer = [0; 512];
        let length = nix::unistd::read(file, &mut buffer)?;
        Ok(terminal_in(buffer.get(..length).unwrap_or_default()))
    }

    /// Resolves a path to the spot of its last part, without following a link there.
    pub(crate) fn spot(&self, named: PathArgument) -> Result<Spot> {
        self.spot_of_text(named.from, &self.text(named.text)?)
    }

    /// Resolves a path that has already been copied.
    pub(crate) fn spot_of_text(&self, from: i32, text: &Text) -> Result<Spot> {
        if text.length == 0 {
            return Err(Errno::ENOENT);
        }
        let start = match text.bytes().first() {
            Some(b'/') => None,
            Some(_) | None => Some(self.start(from)?),
        };
        spot_from(start, text.bytes(), Follow::Texts)
    }

    /// Opens the directory that a path starts from: the root, or the caller's current directory.
    pub fn start_of(&self, path: &[u8]) -> Result<OwnedFd> {
        match path.first() {
            Some(b'/') => openat(AT_FDCWD, c"/", HOLD, Mode::empty()),
            Some(_) | None => self.start(libc::AT_FDCWD),
        }
    }

    /// Resolves a path to its file. `links` selects whether a link at its end is followed.
    ///
    /// # Errors
    /// EACCES: the path leads into a procfs, where `self` would mean init. Only the caller's
    /// descriptors can be reached there.
    pub fn find(&self, named: PathArgument, links: LastLink) -> Result<FoundFile> {
        self.find_text(named.from, self.text(named.text)?, links)
    }

    /// Resolves a path to its file, and holds that without opening it (O_PATH).
    ///
    /// # Errors
    /// The same as of [`Self::find`].
    pub(crate) fn hold(&self, named: PathArgument, links: LastLink) -> Result<OwnedFd> {
        let spot = match self.find(named, links)? {
            FoundFile::Spot(spot) => spot,
            FoundFile::Descriptor(number) => {
                return self.descriptor(number, OFlag::O_PATH | OFlag::O_CLOEXEC);
            }
        };
        let hold = libc::O_PATH | libc::O_CLOEXEC;
        // A path that ends in a slash or a dot names a directory, or nothing.
        let (more, follow) = match spot.is_no_file() {
            true => (0, Follow::Texts),
            false => (libc::O_NOFOLLOW, Follow::Nothing),
        };
        lookup::open(&spot.parent, spot.last()?, hold | more, 0, follow)
    }

    /// Resolves a path that has already been copied.
    pub(crate) fn find_text(
        &self,
        from: i32,
        mut text: Text,
        links: LastLink,
    ) -> Result<FoundFile> {
        if text.length == 0 {
            return Err(Errno::ENOENT);
        }
        let mut start = match text.bytes().first() {
            Some(b'/') => None,
            Some(_) | None => Some(self.start(from)?),
        };
        for _ in 0..MAX_LINKS {
            let spot = spot_from(start, text.bytes(), Follow::Texts)?;
            if is_procfs(&spot.parent)? {
                return self.own_descriptor(text.bytes()).map(FoundFile::Descriptor);
            }
            if spot.is_no_file() || links == LastLink::Stay {
                return Ok(FoundFile::Spot(spot));
            }
            let mut buffer = [0; MAX_PATH_BYTES];
            text = match lookup::read_link(&spot.parent, spot.last()?, &mut buffer) {
                Ok(content) => Text::new(content)?,
                // Not a link, or missing: the call itself returns the right errno.
                Err(_) => return Ok(FoundFile::Spot(spot)),
            };
            start = (text.bytes().first() != Some(&b'/')).then_some(spot.parent);
        }
        Err(Errno::ELOOP)
    }

    /// Parses a path of one of the caller's descriptors, such as `/dev/fd/63`.
    fn own_descriptor(&self, path: &[u8]) -> Result<u32> {
        let (process, number) = descriptor_of(path)?;
        let is_callers = process
            .is_none_or(|process| self.status().is_ok_and(|status| status.process == process));
        if is_callers { number } else { Err(Errno::EACCES) }
    }
}

/// Parses the path of a descriptor in /proc: returns the process, or `None` for the caller, and the
/// number.
///
/// # Errors
/// EACCES: the path is that of another entry.
pub fn descriptor_of(path: &[u8]) -> Result<(Option<i32>, Result<u32>)> {
    let path = std::str::from_utf8(path).map_err(|_| Errno::EACCES)?;
    let (directory, number) = path.rsplit_once('/').ok_or(Errno::EACCES)?;
    let process = match directory {
        "/proc/self/fd" | "/proc/thread-self/fd" | "/dev/fd" => None,
        other => {
            let process = other.strip_prefix("/proc/").and_then(|s| s.strip_suffix("/fd"));
            Some(process.and_then(|number| number.parse().ok()).ok_or(Errno::EACCES)?)
        }
    };
    Ok((process, number.parse().map_err(|_| Errno::ENOENT)))
}

/// Returns the number of the pseudo-terminal in a line of `/proc/<pid>/stat` (proc_pid_stat(5),
/// `tty_nr`).
fn terminal_in(stat: &[u8]) -> Option<u32> {
    /// Major number of the slaves of pseudo-terminals (Documentation/admin-guide/devices.txt).
    const SLAVES: u32 = 136;
    // The program's name comes before, and may have blanks and parentheses.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let after = std::str::from_utf8(stat.get(end..)?).ok()?;
    // After the name: state, parent, process group, session, terminal.
    let device = after.split_ascii_whitespace().nth(5)?.parse::<u32>().ok()?;
    let device = libc::dev_t::from(device);
    (libc::major(device) == SLAVES).then(|| libc::minor(device))
}

/// Fields of a thread's status that mediated calls depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub umask: u32,
    /// The thread group, which getpid(2) returns.
    pub process: i32,
}

/// Opens the directory of a path's last part; a relative path begins at `start`.
fn spot_from(start: Option<OwnedFd>, path: &[u8], follow: Follow) -> Result<Spot> {
    let (directory, last) = split(path);
    let last = Text::new(last)?;
    let parent = match (start, directory.is_empty()) {
        (Some(start), true) => start,
        (Some(start), false) => hold(start.as_fd(), directory, follow)?,
        (None, _) => hold(AT_FDCWD, directory, follow)?,
    };
    Ok(Spot { parent, last })
}

/// Splits a path into its directory and its last part with the trailing slashes.
#[must_use]
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = trimmed(path).len();
    let before = path.get(..end).unwrap_or_default();
    let cut = before.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    // A path of slashes only is the root, which has no name.
    // Both positions lie within the path, so that the split succeeds.
    path.split_at_checked(if end == 0 { path.len() } else { cut }).unwrap_or_default()
}

fn hold(from: BorrowedFd<'_>, directory: &[u8], follow: Follow) -> Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    lookup::open(from, Text::new(directory)?.as_c()?, flags, 0, follow)
}

/// Returns true if a directory is on a procfs, where paths differ between processes.
fn is_procfs(directory: impl AsFd) -> Result<bool> {
    Ok(fstatfs(directory)?.filesystem_type() == PROC_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terminal_of_a_process_is_read_behind_its_name() {
        let of = |line: &str| terminal_in(line.as_bytes());
        assert_eq!(of("7 (bash) S 1 7 7 34816 7 4194304 0"), Some(0));
        assert_eq!(of("7 (a) S 1 2 3 34833) S 1 7 7 34831 7 0"), Some(15));
        assert_eq!(of("7 (bash) S 1 7 7 1083436 7 0"), Some(300), "beyond eight bits");
        // No terminal, a console, a serial line, a master, a line that is cut off.
        for none in ["7 (b) S 1 7 7 0 -1", "7 (b) S 1 7 7 1025 7", "7 (b) S 1 7 7 1088 7"] {
            assert_eq!(of(none), None, "{none}");
        }
        for none in ["7 (b) S 1 7 7 32768 7", "7 (b) S 1 7 7", "7 b S 1 7 7 34816", ""] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
