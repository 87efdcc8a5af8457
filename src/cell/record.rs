//! Records paths that a command names and its cell lacks, for `profile learn`.
//!
//! Enabled only by the operator, never by a client. It grants no access: init is notified only of
//! calls that the filter has already allowed, by number and registers, and lets the kernel execute
//! each of them. No decision depends on a path read here. The program can change the path while it
//! is read, which only affects a suggestion shown to a person.
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

/// Maximum bytes of a record; later paths are left out, and the record says so.
pub const MAX_RECORD_BYTES: usize = 512 << 10;
/// Memory is read up to the next multiple of this, as the following page may not be mapped.
const PAGE: usize = 4096;
/// Directories whose content is private to the cell.
const PRIVATE: [&[u8]; 4] = [b"/proc", b"/dev", b"/tmp", b"/workspace"];

/// Access that a call requests for its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathAccess {
    /// Look up its existence or metadata.
    Look,
    Open,
    Execute,
}

impl PathAccess {
    fn byte(self) -> u8 {
        match self {
            Self::Look => b'l',
            Self::Open => b'o',
            Self::Execute => b'x',
        }
    }
}

/// Entry that marks a record as incomplete.
const TRUNCATED: u8 = b'm';

/// A call with a path, and the argument that points to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathCall {
    pub number: u32,
    argument: usize,
    access: PathAccess,
}

const PATH_CALLS: [(&str, usize, PathAccess); 18] = [
    ("open", 0, PathAccess::Open),
    ("openat", 1, PathAccess::Open),
    ("openat2", 1, PathAccess::Open),
    ("execve", 0, PathAccess::Execute),
    ("execveat", 1, PathAccess::Execute),
    ("stat", 0, PathAccess::Look),
    ("lstat", 0, PathAccess::Look),
    ("newfstatat", 1, PathAccess::Look),
    ("fstatat", 1, PathAccess::Look),
    ("statx", 1, PathAccess::Look),
    ("access", 0, PathAccess::Look),
    ("faccessat", 1, PathAccess::Look),
    ("faccessat2", 1, PathAccess::Look),
    ("readlink", 0, PathAccess::Look),
    ("readlinkat", 1, PathAccess::Look),
    ("chdir", 0, PathAccess::Look),
    ("statfs", 0, PathAccess::Look),
    ("getxattr", 0, PathAccess::Look),
];

/// Returns the calls that can be recorded: those that the filter allows, at least conditionally.
pub fn path_calls(verdicts: &BTreeMap<u32, Verdict>) -> Vec<PathCall> {
    let known = PATH_CALLS.into_iter().filter_map(|(name, argument, access)| {
        Some(PathCall { number: calls::number(name)?, argument, access })
    });
    let passes = |call: &PathCall| match verdicts.get(&call.number) {
        Some(Verdict::Allow | Verdict::AllowIf(_)) => true,
        Some(Verdict::AllowOrProbe(..) | Verdict::Errno(_) | Verdict::Answered) | None => false,
    };
    known.filter(passes).collect()
}

/// Init's side: writes down each path when it is first seen.
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

    /// Writes down the path of a call, unless the cell has it.
    pub fn note(&mut self, call: &PathCall, notification: &Notification) -> Result<()> {
        let address = notification.arguments.get(call.argument).copied().unwrap_or_default();
        let Some(path) = read_path(notification.pid, address) else { return Ok(()) };
        let is_private = |directory: &&[u8]| {
            path.strip_prefix(*directory)
                .is_some_and(|rest| rest.first().is_none_or(|b| *b == b'/'))
        };
        // Relative paths start at /workspace, which the cell has.
        if path.first() != Some(&b'/') || PRIVATE.iter().any(is_private) || exists(&path) {
            return Ok(());
        }
        let line = [&[call.access.byte()], path.as_slice(), &[0]].concat();
        if self.bytes >= MAX_RECORD_BYTES || !self.seen.insert(line.clone()) {
            return Ok(());
        }
        self.bytes += line.len();
        let line = if self.bytes < MAX_RECORD_BYTES { line } else { vec![TRUNCATED, 0] };
        write(self.file, &line).map(drop)
    }
}

/// Returns true if the path exists in the cell: init and the payload have the same root.
fn exists(path: &[u8]) -> bool {
    let Ok(path) = CString::new(path) else { return true };
    !matches!(nix::sys::stat::stat(path.as_c_str()), Err(Errno::ENOENT | Errno::ENOTDIR))
}

/// Returns the string at an address of a process in the cell; `None` if it cannot be read or is not
/// a path.
fn read_path(pid: i32, address: u64) -> Option<Vec<u8>> {
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
    /// Each path once, with the strongest access that was requested.
    pub paths: BTreeMap<Vec<u8>, PathAccess>,
    /// True if some paths are missing.
    pub cut: bool,
}

/// Parses a record. Any bytes give a valid result, as the program can influence the record.
pub fn read(bytes: &[u8]) -> Recorded {
    let mut recorded = Recorded::default();
    for line in bytes.split(|byte| *byte == 0) {
        let Some((kind, path)) = line.split_first() else { continue };
        let access = match *kind {
            b'l' => PathAccess::Look,
            b'o' => PathAccess::Open,
            b'x' => PathAccess::Execute,
            _ => {
                recorded.cut = true;
                continue;
            }
        };
        let strongest = recorded.paths.entry(path.to_vec()).or_insert(access);
        *strongest = access.max(*strongest);
    }
    recorded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_the_filter_allows_are_recorded() {
        let number = |name: &str| calls::number(name).unwrap_or(u32::MAX);
        let verdicts = BTreeMap::from([
            (number("openat"), Verdict::Allow),
            (number("execveat"), Verdict::AllowIf(Vec::new())),
            (number("statx"), Verdict::Errno(libc::EPERM)),
            (number("read"), Verdict::Allow),
        ]);
        let recorded = path_calls(&verdicts);
        let call = |name, access| PathCall { number: number(name), argument: 1, access };
        assert_eq!(
            recorded,
            [call("openat", PathAccess::Open), call("execveat", PathAccess::Execute)]
        );
    }

    #[test]
    fn a_record_is_parsed_to_the_strongest_access_of_each_path() {
        let recorded = read(b"l/opt/a\0o/opt/a\0l/opt/b\0m\0");
        let paths =
            [(b"/opt/a".to_vec(), PathAccess::Open), (b"/opt/b".to_vec(), PathAccess::Look)];
        assert_eq!(recorded, Recorded { paths: paths.into(), cut: true });
        assert_eq!(read(b""), Recorded::default());
    }

    #[test]
    fn a_string_is_read_across_pages_and_not_past_its_end() {
        let pid = std::process::id().try_into().unwrap_or(0);
        let text = CString::new("/x".repeat(2000)).unwrap_or_default();
        let address = u64::try_from(text.as_ptr().addr()).unwrap_or(0);
        assert_eq!(read_path(pid, address).as_deref(), Some(text.to_bytes()));
        assert_eq!(read_path(pid, 0), None);
        assert_eq!(read_path(pid, 8), None, "nothing is mapped there");
    }
}
