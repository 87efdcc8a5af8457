//! Mounts of the host, and whether the filesystems behind them answer.
//!
//! A cell, or an archive that was unpacked, can have written the paths of which a start looks up
//! where they lead. A lookup on a network filesystem whose server is gone lasts for ever, so a
//! process of which only the end is awaited makes the first one.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::fstat;

use sys::fork::fork;
use sys::lookup::{self, Follow};
use sys::process::{self, Side};

/// Milliseconds for a lookup on a filesystem that may not answer. A server on another continent
/// answers in half of it.
const MAX_LOOKUP_MS: u16 = 500;
/// Milliseconds for the end of a process that was killed: one that the kernel cannot interrupt
/// stays until the filesystem answers or this process ends.
const MAX_END_MS: u16 = 100;

/// Filesystems whose data are on this machine, so that a lookup ends (`/proc/filesystems`).
const LOCAL: [&str; 33] = [
    "bcachefs",
    "binfmt_misc",
    "bpf",
    "btrfs",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hugetlbfs",
    "iso9660",
    "jfs",
    "mqueue",
    "nsfs",
    "ntfs3",
    "overlay",
    "proc",
    "ramfs",
    "securityfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "vfat",
    "xfs",
    "zfs",
];

/// A mount in a line of mountinfo (proc_pid_mountinfo(5)).
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    is_local: bool,
}

/// The mounts of this process, read when the first is asked for.
#[derive(Debug, Default)]
pub(crate) struct HostMounts {
    mounts: OnceCell<Vec<Mount>>,
    /// Paths that a filesystem which may not answer has answered for.
    answered: RefCell<BTreeSet<PathBuf>>,
    /// Mount points of those that did not answer.
    silent: RefCell<BTreeSet<PathBuf>>,
}

impl HostMounts {
    /// Returns once a lookup of `path`, absolute and without links, will end.
    ///
    /// # Errors
    /// ETIMEDOUT if the filesystem there does not answer.
    pub(crate) fn await_answer(&self, path: &Path) -> Result<(), Errno> {
        let mounts = self.mounts.get_or_init(mounts);
        // A mount can be covered by a later one at a shorter path, so each around the path counts.
        let remote =
            mounts.iter().filter(|mount| !mount.is_local && path.starts_with(&mount.point));
        let Some(mount) = remote.max_by_key(|mount| mount.point.as_os_str().len()) else {
            return Ok(());
        };
        if self.answered.borrow().contains(path) {
            return Ok(());
        }
        if !self.silent.borrow().contains(&mount.point) && is_looked_up(path)? {
            self.answered.borrow_mut().insert(path.to_owned());
            return Ok(());
        }
        self.silent.borrow_mut().insert(mount.point.clone());
        Err(Errno::ETIMEDOUT)
    }
}

/// Looks a path up in a process. Returns false if that takes too long.
fn is_looked_up(path: &Path) -> Result<bool, Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let flags = libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let parent = nix::unistd::getpid();
    let child = match fork()? {
        Side::Child => {
            // The parent kills one that takes too long, unless it is killed itself.
            let tied = process::set_death_signal(Signal::SIGKILL);
            if tied.is_err() || nix::unistd::getppid() != parent {
                process::exit_now(1);
            }
            let opened = lookup::open(AT_FDCWD, &path, flags, 0, Follow::Nothing);
            // An open can be answered from memory, and only the status by the server.
            let status = opened.and_then(|opened| fstat(&opened));
            process::exit_now(i32::from(status.is_err()))
        }
        Side::Parent(child) => child,
    };
    let has_ended = |milliseconds: u16| {
        let mut ended = [PollFd::new(child.pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut ended, PollTimeout::from(milliseconds)).is_ok_and(|count| count > 0)
    };
    let answers = has_ended(MAX_LOOKUP_MS);
    if !answers {
        process::signal(&child.pidfd, Signal::SIGKILL)?;
    }
    if answers || has_ended(MAX_END_MS) {
        process::wait(&child.pidfd)?;
    }
    Ok(answers)
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
        Err(_) => vec![Mount { point: PathBuf::from("/"), is_local: false }],
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
    let is_local = LOCAL.iter().any(|local| kind == Some(local.as_bytes()));
    Some(Mount { point: PathBuf::from(OsStr::from_bytes(&point)), is_local })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_parsed_with_blanks_and_arbitrary_bytes() {
        let line = b"36 35 98:0 / /mnt/a\\040b\\134\xff\\x rw,noatime master:1 - ext3 /dev/root rw";
        let point = PathBuf::from(OsStr::from_bytes(b"/mnt/a b\\\xff\\x"));
        assert_eq!(mount(line), Some(Mount { point, is_local: true }));
        let remote = mount(b"36 35 0:9 / /mnt rw - nfs4 server:/ rw");
        assert_eq!(remote.map(|mount| mount.is_local), Some(false));
        let unknown = mount(b"36 35 0:9 / /mnt rw");
        assert_eq!(unknown.map(|mount| mount.is_local), Some(false));
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
        let fixed = vec![Mount { point: PathBuf::from("/"), is_local: false }];
        assert_eq!(mounts.mounts.set(fixed), Ok(()));
        assert_eq!(mounts.await_answer(Path::new("/usr/missing")), Ok(()));
        assert!(mounts.silent.borrow().is_empty());
        mounts.silent.borrow_mut().insert(PathBuf::from("/"));
        assert_eq!(mounts.await_answer(Path::new("/usr/missing")), Ok(()));
        assert_eq!(mounts.await_answer(Path::new("/usr")), Err(Errno::ETIMEDOUT));
    }
}
