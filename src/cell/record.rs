//! Records paths that a command names and its cell does not have, for `profile learn`.
//!
//! Only if the operator asks for it, never for a caller. It grants nothing: init is notified only of calls that
//! the filter has already found to be allowed, by their numbers and registers, and lets the kernel execute
//! each. No call is decided by a path read here. The program can change the path while it is read; the only
//! result is a suggestion to a person.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{Pid, write};

use model::call::PATH_BYTES;
use model::profile::calls;
use model::profile::condition::Verdict;
use sys::Result;
use sys::notify::Notification;

/// Most bytes of a record; what comes later is left out, and that is said.
pub const MOST_BYTES: usize = 512 << 10;
/// Memory is read up to the next multiple of this: what lies behind may not be mapped.
const PAGE: usize = 4096;
/// Paths below these are the cell's own.
const OWN: [&[u8]; 4] = [b"/proc", b"/dev", b"/tmp", b"/workspace"];

/// Access that a call asks for with its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Only whether it is there and what it is.
    Look,
    Open,
    Execute,
}

impl How {
    fn byte(self) -> u8 {
        match self {
            Self::Look => b'l',
            Self::Open => b'o',
            Self::Execute => b'x',
        }
    }
}

/// Stands in a record for what no longer had room.
const MORE: u8 = b'm';

/// A call that names a path, and the argument that points to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathCall {
    pub number: u32,
    argument: usize,
    how: How,
}

const PATH_CALLS: [(&str, usize, How); 18] = [
    ("open", 0, How::Open),
    ("openat", 1, How::Open),
    ("openat2", 1, How::Open),
    ("execve", 0, How::Execute),
    ("execveat", 1, How::Execute),
    ("stat", 0, How::Look),
    ("lstat", 0, How::Look),
    ("newfstatat", 1, How::Look),
    ("fstatat", 1, How::Look),
    ("statx", 1, How::Look),
    ("access", 0, How::Look),
    ("faccessat", 1, How::Look),
    ("faccessat2", 1, How::Look),
    ("readlink", 0, How::Look),
    ("readlinkat", 1, How::Look),
    ("chdir", 0, How::Look),
    ("statfs", 0, How::Look),
    ("getxattr", 0, How::Look),
];

/// Returns the calls that can be recorded: those that the filter lets through, if only sometimes.
pub fn path_calls(verdicts: &BTreeMap<u32, Verdict>) -> Vec<PathCall> {
    let known = PATH_CALLS.into_iter().filter_map(|(name, argument, how)| {
        Some(PathCall { number: calls::number(name)?, argument, how })
    });
    let passes = |call: &PathCall| match verdicts.get(&call.number) {
        Some(Verdict::Allow | Verdict::AllowIf(_)) => true,
        Some(Verdict::AllowOrProbe(..) | Verdict::Errno(_) | Verdict::Answered) | None => false,
    };
    known.filter(passes).collect()
}

/// Init's side: what was seen, written down as it is seen.
#[derive(Debug)]
pub struct Recorder<'a> {
    file: BorrowedFd<'a>,
    seen: BTreeSet<Vec<u8>>,
    bytes: usize,
}

impl<'a> Recorder<'a> {
    pub fn new(file: &'a impl AsFd) -> Self {
        Self { file: file.as_fd(), seen: BTreeSet::new(), bytes: 0 }
    }

    /// Writes down the path of a call, if the cell does not have it.
    pub fn note(&mut self, call: &PathCall, notification: &Notification) -> Result<()> {
        let address = notification.arguments.get(call.argument).copied().unwrap_or_default();
        let Some(path) = path_of(notification.pid, address) else { return Ok(()) };
        let own = |place: &&[u8]| {
            path.strip_prefix(*place).is_some_and(|rest| rest.first().is_none_or(|b| *b == b'/'))
        };
        // Relative paths start at /workspace, which the cell has.
        if path.first() != Some(&b'/') || OWN.iter().any(own) || is_here(&path) {
            return Ok(());
        }
        let line = [&[call.how.byte()], path.as_slice(), &[0]].concat();
        if self.bytes >= MOST_BYTES || !self.seen.insert(line.clone()) {
            return Ok(());
        }
        self.bytes += line.len();
        let line = if self.bytes < MOST_BYTES { line } else { vec![MORE, 0] };
        write(self.file, &line).map(drop)
    }
}

/// Returns true if the path exists in the cell: init's root is the payload's.
fn is_here(path: &[u8]) -> bool {
    let Ok(path) = CString::new(path) else { return true };
    !matches!(nix::sys::stat::stat(path.as_c_str()), Err(Errno::ENOENT | Errno::ENOTDIR))
}

/// Returns the string at an address of a process of the cell; `None` where it cannot be read or is no path.
fn path_of(pid: i32, address: u64) -> Option<Vec<u8>> {
    let mut path = Vec::new();
    let mut base = usize::try_from(address).ok().filter(|address| *address != 0)?;
    while path.len() <= PATH_BYTES {
        let mut buffer = [0; PAGE];
        let room = PAGE - base % PAGE;
        let remote = [RemoteIoVec { base, len: room }];
        let local = buffer.get_mut(..room)?;
        let read = process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(local)], &remote);
        let chunk = buffer.get(..read.ok().filter(|read| *read > 0)?)?;
        if let Some(end) = chunk.iter().position(|byte| *byte == 0) {
            path.extend_from_slice(chunk.get(..end)?);
            return Some(path).filter(|path| !path.is_empty() && path.len() <= PATH_BYTES);
        }
        path.extend_from_slice(chunk);
        base += chunk.len();
    }
    None
}

/// A record as it is read back.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Each path once, with the most that was wanted of it.
    pub paths: BTreeMap<Vec<u8>, How>,
    /// True if there was no room for more paths.
    pub cut: bool,
}

/// Reads a record. It is not trusted, since the program can influence it: any bytes give some record.
pub fn read(bytes: &[u8]) -> Recorded {
    let mut recorded = Recorded::default();
    for line in bytes.split(|byte| *byte == 0) {
        let Some((kind, path)) = line.split_first() else { continue };
        let how = match *kind {
            b'l' => How::Look,
            b'o' => How::Open,
            b'x' => How::Execute,
            _ => {
                recorded.cut = true;
                continue;
            }
        };
        let most = recorded.paths.entry(path.to_vec()).or_insert(how);
        *most = how.max(*most);
    }
    recorded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_the_filter_lets_through_are_recorded() {
        let number = |name: &str| calls::number(name).unwrap_or(u32::MAX);
        let verdicts = BTreeMap::from([
            (number("openat"), Verdict::Allow),
            (number("execveat"), Verdict::AllowIf(Vec::new())),
            (number("statx"), Verdict::Errno(libc::EPERM)),
            (number("read"), Verdict::Allow),
        ]);
        let found = path_calls(&verdicts);
        let call = |name, how| PathCall { number: number(name), argument: 1, how };
        assert_eq!(found, [call("openat", How::Open), call("execveat", How::Execute)]);
    }

    #[test]
    fn a_record_is_read_back_with_the_most_that_was_wanted() {
        let recorded = read(b"l/opt/a\0o/opt/a\0l/opt/b\0m\0");
        let paths = [(b"/opt/a".to_vec(), How::Open), (b"/opt/b".to_vec(), How::Look)];
        assert_eq!(recorded, Recorded { paths: paths.into(), cut: true });
        assert_eq!(read(b""), Recorded::default());
    }

    #[test]
    fn a_string_is_read_from_memory_over_a_page_and_not_past_its_end() {
        let pid = std::process::id().try_into().unwrap_or(0);
        let text = CString::new("/x".repeat(2000)).unwrap_or_default();
        let address = u64::try_from(text.as_ptr().addr()).unwrap_or(0);
        assert_eq!(path_of(pid, address).as_deref(), Some(text.to_bytes()));
        assert_eq!(path_of(pid, 0), None);
        assert_eq!(path_of(pid, 8), None, "nothing is mapped there");
    }
}
