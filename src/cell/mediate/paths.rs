//! Where a call's path leads: looked up by init as the caller would, from what the caller holds.
//!
//! The text is copied once and never looked at again in the caller's memory. Directories are held
//! by descriptor, and what is done in them is done by one name that no symbolic link stands behind.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use super::calls::PathArgument;
use sys::lookup::{self, Follow};
use sys::{Result, remote};

/// Bytes of a path with its NUL, as the kernel takes it.
const PATH: usize = 4096;
/// Symbolic links that one lookup follows (path_resolution(7)).
const LINKS: usize = 40;

/// A path or a name, ended by NUL.
#[derive(Clone)]
pub struct Text {
    bytes: [u8; PATH],
    length: usize,
}

impl Text {
    /// # Errors
    /// ENAMETOOLONG: there is no room for it and a NUL.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let mut text = Self { bytes: [0; PATH], length: bytes.len() };
        let room = text.bytes.get_mut(..bytes.len()).filter(|room| room.len() < PATH);
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

/// A place for a name: the directory, held, and the path's last part, slashes after it included.
pub struct Spot {
    pub parent: OwnedFd,
    last: Text,
}

impl Spot {
    /// The spot of an absolute path of ours.
    pub fn at(path: &[u8]) -> Result<Self> {
        spot_from(None, path)
    }

    /// The path's last part as a call takes it.
    ///
    /// # Errors
    /// ENAMETOOLONG, which a part of a path that was taken cannot be.
    pub fn last(&self) -> Result<&CStr> {
        // Of the root nothing is left: it is its own directory.
        if self.last.bytes().is_empty() { Ok(c".") } else { self.last.as_c() }
    }

    /// The name itself.
    pub fn name(&self) -> &[u8] {
        trimmed(self.last.bytes())
    }

    /// The same place, by the name itself.
    pub fn without_slashes(self) -> Result<Self> {
        let last = Text::new(self.name())?;
        Ok(Self { parent: self.parent, last })
    }

    /// Whether the path ends in what no call can make a file of: nothing, `.`, `..`, or a slash.
    pub fn is_no_file(&self) -> bool {
        self.name().len() != self.last.length || matches!(self.name(), b"" | b"." | b"..")
    }
}

fn trimmed(part: &[u8]) -> &[u8] {
    let end = part.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
    part.get(..end).unwrap_or_default()
}

/// What the last part of a path is, links behind it followed.
#[expect(clippy::large_enum_variant, reason = "lives for one call, and init does not allocate")]
pub enum Found {
    Spot(Spot),
    /// One of the caller's own descriptors, by its name in /proc.
    Descriptor(u32),
}

/// Whether a symbolic link that a path ends in is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Follow,
    Stay,
}

/// The thread that waits, and the procfs of its pid namespace.
#[derive(Debug, Clone, Copy)]
pub struct TargetThread<'a> {
    pub proc: BorrowedFd<'a>,
    pub pid: i32,
}

const HOLD: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC);

impl TargetThread<'_> {
    /// Copies a NUL-terminated text out of the caller's memory.
    pub fn text(&self, address: u64) -> Result<Text> {
        let mut bytes = [0; PATH];
        let read = remote::read(self.pid, address, &mut bytes)?;
        let got = bytes.get(..read).unwrap_or_default();
        match got.iter().position(|byte| *byte == 0) {
            Some(length) => Ok(Text { bytes, length }),
            None if read == PATH => Err(Errno::ENAMETOOLONG),
            None => Err(Errno::EFAULT),
        }
    }

    /// Opens something of the caller's in /proc.
    fn own(&self, what: std::fmt::Arguments<'_>, flags: OFlag) -> Result<OwnedFd> {
        let mut buffer = [0; 64];
        openat(self.proc, self.entry(&mut buffer, what)?, flags, Mode::empty())
    }

    /// The path of something of the caller's, from the procfs.
    pub fn entry<'b>(
        &self,
        buffer: &'b mut [u8; 64],
        what: std::fmt::Arguments<'_>,
    ) -> Result<&'b CStr> {
        let mut rest = buffer.as_mut_slice();
        write!(rest, "{}/{what}\0", self.pid).map_err(|_| Errno::ENAMETOOLONG)?;
        CStr::from_bytes_until_nul(buffer).map_err(|_| Errno::ENAMETOOLONG)
    }

    /// Holds what one of the caller's descriptors is open on.
    pub fn descriptor(&self, number: u32, flags: OFlag) -> Result<OwnedFd> {
        self.own(format_args!("fd/{number}"), flags)
    }

    /// Holds where a relative path starts.
    fn start(&self, from: i32) -> Result<OwnedFd> {
        if from == libc::AT_FDCWD {
            return self.own(format_args!("cwd"), HOLD);
        }
        let number = u32::try_from(from).map_err(|_| Errno::EBADF)?;
        let held = self.descriptor(number, HOLD);
        held.map_err(|errno| if errno == Errno::ENOENT { Errno::EBADF } else { errno })
    }

    /// Umask and process id, as `/proc/<pid>/status` tells them.
    pub fn status(&self) -> Result<Status> {
        let file = self.own(format_args!("status"), OFlag::O_RDONLY | OFlag::O_CLOEXEC)?;
        let mut buffer = [0; 512];
        let length = nix::unistd::read(file, &mut buffer)?;
        let text = buffer.get(..length).unwrap_or_default();
        // The name comes before both, with its line feeds escaped (proc_pid_status(5)).
        let field = |name: &[u8]| {
            let mut lines = text.split(|byte| *byte == b'\n');
            let value = lines.find_map(|line| line.strip_prefix(name))?;
            std::str::from_utf8(value).ok().map(str::trim)
        };
        let umask = field(b"Umask:").and_then(|octal| u32::from_str_radix(octal, 8).ok());
        let process = field(b"Tgid:").and_then(|number| number.parse().ok());
        umask.zip(process).map(|(umask, process)| Status { umask, process }).ok_or(Errno::EPERM)
    }

    /// Where the name lies that a call makes: the last part is not followed.
    pub fn spot(&self, named: PathArgument) -> Result<Spot> {
        self.spot_of(named.from, &self.text(named.text)?)
    }

    /// The same for a path that was copied already.
    pub fn spot_of(&self, from: i32, text: &Text) -> Result<Spot> {
        if text.length == 0 {
            return Err(Errno::ENOENT);
        }
        let start = match text.bytes().first() {
            Some(b'/') => None,
            Some(_) | None => Some(self.start(from)?),
        };
        spot_from(start, text.bytes())
    }

    /// Holds where a path starts, from the caller's current directory.
    pub fn start_of(&self, path: &[u8]) -> Result<OwnedFd> {
        match path.first() {
            Some(b'/') => openat(AT_FDCWD, c"/", HOLD, Mode::empty()),
            Some(_) | None => self.start(libc::AT_FDCWD),
        }
    }

    /// Where a path leads; links behind its last part are followed where `links` says so.
    ///
    /// # Errors
    /// EACCES: into a procfs, where `self` would be init; only the caller's own descriptors can be
    /// reached there.
    pub fn find(&self, named: PathArgument, links: Links) -> Result<Found> {
        self.led(named.from, self.text(named.text)?, links)
    }

    /// The same for a path that was copied already.
    pub fn led(&self, from: i32, mut text: Text, links: Links) -> Result<Found> {
        if text.length == 0 {
            return Err(Errno::ENOENT);
        }
        let mut start = match text.bytes().first() {
            Some(b'/') => None,
            Some(_) | None => Some(self.start(from)?),
        };
        for _ in 0..LINKS {
            let spot = spot_from(start, text.bytes())?;
            if is_procfs(&spot.parent)? {
                return self.own_descriptor(text.bytes()).map(Found::Descriptor);
            }
            if spot.is_no_file() || links == Links::Stay {
                return Ok(Found::Spot(spot));
            }
            let mut buffer = [0; PATH];
            text = match lookup::read_link(&spot.parent, spot.last()?, &mut buffer) {
                Ok(content) => Text::new(content)?,
                // No link, or nothing at all; what else is wrong with it, the call itself tells.
                Err(_) => return Ok(Found::Spot(spot)),
            };
            start = (text.bytes().first() != Some(&b'/')).then_some(spot.parent);
        }
        Err(Errno::ELOOP)
    }

    /// The number in the ways to write a descriptor of one's own, such as `/dev/fd/63`.
    fn own_descriptor(&self, path: &[u8]) -> Result<u32> {
        let (process, number) = descriptor_of(path)?;
        let is_own = process
            .is_none_or(|process| self.status().is_ok_and(|status| status.process == process));
        if is_own { number } else { Err(Errno::EACCES) }
    }
}

/// The process and the number in a path of a descriptor in /proc; no process where it is the caller's own.
///
/// # Errors
/// EACCES: it is the path of something else.
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

/// What of a thread's status a call depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub umask: u32,
    /// Its thread group: what it calls its own process id.
    pub process: i32,
}

/// Holds the directory of a path's last part; `start` is where a relative path begins.
fn spot_from(start: Option<OwnedFd>, path: &[u8]) -> Result<Spot> {
    let (directory, last) = split(path);
    let last = Text::new(last)?;
    let parent = match (start, directory.is_empty()) {
        (Some(start), true) => start,
        (Some(start), false) => hold(start.as_fd(), directory)?,
        (None, _) => hold(AT_FDCWD, directory)?,
    };
    Ok(Spot { parent, last })
}

/// The directory of a path, and its last part with the slashes after it.
#[must_use]
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = trimmed(path).len();
    let before = path.get(..end).unwrap_or_default();
    let cut = before.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    // Of nothing but slashes, the root is the directory and no name is left.
    path.split_at_checked(if end == 0 { path.len() } else { cut }).unwrap_or_default()
}

fn hold(from: BorrowedFd<'_>, directory: &[u8]) -> Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    lookup::open(from, Text::new(directory)?.as_c()?, flags, 0, Follow::Texts)
}

/// Whether a directory is of a procfs, where paths mean something else to each process.
fn is_procfs(directory: impl AsFd) -> Result<bool> {
    Ok(fstatfs(directory)?.filesystem_type() == PROC_SUPER_MAGIC)
}
