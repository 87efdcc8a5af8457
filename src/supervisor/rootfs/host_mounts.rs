//! Mounts of the host, and whether the filesystems behind them answer.
//!
//! A cell, or an archive that was unpacked, can have written the paths of which a start looks up
//! where they lead. A lookup on a network filesystem whose server is gone lasts for ever, so a
//! process of which only the end is awaited makes the first one ([`bounded`]), and reads files there.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::bounded::{self, Place, ReadFile};
use cell::c_path;

/// Filesystems whose data are on this machine, so that lookups and reads end (`/proc/filesystems`).
const LOCAL: [&str; 20] = [
    "bcachefs",
    "btrfs",
    "devtmpfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hugetlbfs",
    "iso9660",
    "jfs",
    "ntfs3",
    "overlay",
    "ramfs",
    "squashfs",
    "tmpfs",
    "vfat",
    "xfs",
    "zfs",
];

/// Filesystems whose files the kernel makes up. Lookups end; a read may not, such as one of the
/// memory of a process which is on a filesystem that does not answer.
const MADE_BY_KERNEL: [&str; 13] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "efivarfs",
    "mqueue",
    "nsfs",
    "proc",
    "securityfs",
    "sysfs",
];

/// Maximum time for all answers: a filesystem that has used it up is asked no more.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Where the answers of a filesystem come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Local,
    /// A server or another program, which may not answer.
    Remote,
    Kernel,
}

/// A mount in a line of mountinfo (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    source: Source,
}

/// The mounts of this process, read when the first is asked for.
#[derive(Debug, Default)]
pub(crate) struct HostMounts {
    mounts: OnceCell<Vec<Mount>>,
    /// Paths that a filesystem which may not answer has answered for.
    answered: RefCell<BTreeSet<PathBuf>>,
    /// Mount points of those that did not answer.
    silent: RefCell<BTreeSet<PathBuf>>,
    /// Time for which all answers were awaited.
    waited: Cell<Duration>,
}

impl HostMounts {
    /// Returns once a lookup of `path`, absolute and without links, will end.
    ///
    /// # Errors
    /// ETIMEDOUT if the filesystem there does not answer.
    pub(crate) fn await_answer(&self, path: &Path) -> Result<(), Errno> {
        let Some(mount) = self.remote(path) else { return Ok(()) };
        let is_silent = self.silent.borrow().contains(&mount.point);
        if !is_silent && self.answered.borrow().contains(path) {
            return Ok(());
        }
        self.asked(mount, || bounded::look_up(&c_path(path)?))?;
        self.answered.borrow_mut().insert(path.to_owned());
        Ok(())
    }

    /// Returns where the bytes of a file at `path`, absolute and without links, come from.
    pub(crate) fn source(&self, path: &Path) -> Source {
        let around = self.around(path).map(|mount| mount.source);
        around.max().unwrap_or(Source::Remote)
    }

    /// Reads at most the first `limit` bytes of the regular file `place`, whose absolute path is
    /// `path`, without waiting for a filesystem that does not answer.
    ///
    /// # Errors
    /// ETIMEDOUT if the filesystem there does not answer. EINVAL: it is not a regular file.
    pub(crate) fn read(
        &self,
        path: &Path,
        place: Place<'_>,
        limit: usize,
    ) -> Result<ReadFile, Errno> {
        let mount = self.remote(path).ok_or(Errno::ENOENT)?;
        self.asked(mount, || bounded::read_file(place, limit))
    }

    /// Returns the mounts around a path. A mount can be covered by a later one at a shorter path, so
    /// that each of them counts.
    fn around(&self, path: &Path) -> impl Iterator<Item = &Mount> {
        let mounts = self.mounts.get_or_init(mounts);
        mounts.iter().filter(|mount| path.starts_with(&mount.point))
    }

    fn remote(&self, path: &Path) -> Option<&Mount> {
        let remote = self.around(path).filter(|mount| mount.source == Source::Remote);
        remote.max_by_key(|mount| mount.point.as_os_str().len())
    }

    /// Asks a filesystem, unless it did not answer before.
    fn asked<T>(&self, mount: &Mount, ask: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        if self.silent.borrow().contains(&mount.point) {
            return Err(Errno::ETIMEDOUT);
        }
        let start = Instant::now();
        let answer = ask();
        let waited = self.waited.get().saturating_add(start.elapsed());
        self.waited.set(waited);
        if matches!(answer, Err(Errno::ETIMEDOUT)) || waited > MAX_WAIT {
            self.silent.borrow_mut().insert(mount.point.clone());
        }
        answer
    }
}

/// Returns true if a mount lies below a directory, or if that is unknown.
pub(crate) fn are_below(directory: &Path) -> bool {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return true };
    parsed(&table).any(|mount| mount.point != directory && mount.point.starts_with(directory))
}

/// Returns the mounts; without the table, one that is asked for each path.
fn mounts() -> Vec<Mount> {
    match std::fs::read("/proc/self/mountinfo") {
        Ok(table) => parsed(&table).collect(),
        Err(_) => vec![Mount { point: PathBuf::from("/"), source: Source::Remote }],
    }
}

fn parsed(table: &[u8]) -> impl Iterator<Item = Mount> {
    table.split(|byte| *byte == b'\n').filter_map(mount)
}

/// Parses a line of mountinfo, where blanks and backslashes of the mount point are in octal.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let mut point = Vec::new();
    let mut bytes = words.nth(4)?;
    while let Some((first, rest)) = bytes.split_first() {
        let octal = match rest {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                Some((a & 7) << 6 | (b & 7) << 3 | (c & 7))
            }
            _ => None,
        };
        point.push(octal.unwrap_or(*first));
        bytes = if octal.is_some() { rest.get(3..)? } else { rest };
    }
    let kind = words.skip_while(|word| *word != b"-").nth(1);
    let is_in = |names: &[&str]| names.iter().any(|name| kind == Some(name.as_bytes()));
    let source = match (is_in(&LOCAL), is_in(&MADE_BY_KERNEL)) {
        (true, _) => Source::Local,
        (false, true) => Source::Kernel,
        (false, false) => Source::Remote,
    };
    Some(Mount { point: PathBuf::from(OsStr::from_bytes(&point)), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_parsed_with_blanks_and_arbitrary_bytes() {
        let line = b"36 35 98:0 / /mnt/a\\040b\\134\xff\\x rw,noatime master:1 - ext3 /dev/root rw";
        let point = PathBuf::from(OsStr::from_bytes(b"/mnt/a b\\\xff\\x"));
        assert_eq!(mount(line), Some(Mount { point, source: Source::Local }));
        let remote = mount(b"36 35 0:9 / /mnt rw - nfs4 server:/ rw");
        assert_eq!(remote.map(|mount| mount.source), Some(Source::Remote));
        let unknown = mount(b"36 35 0:9 / /mnt rw");
        assert_eq!(unknown.map(|mount| mount.source), Some(Source::Remote));
        assert_eq!(mount(b"36 35 98:0 /"), None);
    }

    #[test]
    fn mounts_below_a_directory_are_detected() {
        assert!(are_below(Path::new("/")));
        assert!(!are_below(Path::new("/proc/self")));
    }

    #[test]
    fn a_filesystem_that_did_not_answer_is_not_asked_again() {
        let mounts = HostMounts::default();
        let fixed = vec![Mount { point: PathBuf::from("/"), source: Source::Remote }];
        assert_eq!(mounts.mounts.set(fixed), Ok(()));
        assert_eq!(mounts.await_answer(Path::new("/usr/missing")), Ok(()));
        assert!(mounts.silent.borrow().is_empty());
        mounts.silent.borrow_mut().insert(PathBuf::from("/"));
        for path in ["/usr/missing", "/usr"] {
            assert_eq!(mounts.await_answer(Path::new(path)), Err(Errno::ETIMEDOUT));
        }
    }

    #[test]
    fn a_filesystem_that_is_slow_each_time_is_asked_no_more() {
        let mounts = HostMounts::default();
        let mount = Mount { point: PathBuf::from("/slow"), source: Source::Remote };
        assert_eq!(mounts.asked(&mount, || Ok(1)), Ok(1));
        mounts.waited.set(MAX_WAIT);
        assert_eq!(mounts.asked(&mount, || Ok(2)), Ok(2));
        assert_eq!(mounts.asked(&mount, || Ok(3)), Err(Errno::ETIMEDOUT));
    }
}
