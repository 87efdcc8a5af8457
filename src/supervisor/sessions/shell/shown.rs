//! The end of a call as its shell shows it: by the files that it holds open while it waits for the next call.
//!
//! Any process of the cell can write to the report of a call, and read and write what the shell can. None can open a
//! file in the shell: that would take ptrace(2), pidfd_getfd(2) or its memory, which no cell has. The shell opens these
//! files before it rings and closes them when the supervisor opens the gate of the next call, so they are there for
//! each look that its own ring leads to.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::readlinkat;

use super::Shell;
use crate::sessions::mailbox::{FoundMarks, PendingCall};
use cell::measure;
use cell::mounts::MAILBOX;

/// Descriptors that are looked at: where bash, sh and zsh have the files first, then where fish may have put them.
const SHOWN: [i32; 32] = [
    4, 5, 6, 0, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27,
    28, 29, 30, 31, 32, 33,
];

/// The end of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShownEnd {
    pub status: u8,
    /// The shell's directory, as the kernel has it.
    pub cwd: String,
}

impl Shell {
    /// Returns the end of a call, if the shell shows it.
    ///
    /// # Errors
    /// The shell cannot be looked at.
    pub(super) fn shown_end(&self, pending: &PendingCall) -> Result<Option<ShownEnd>, Errno> {
        let mut found = FoundMarks::default();
        for descriptor in SHOWN {
            let Some(inode) = self.inode(descriptor)? else { continue };
            found.add(&pending.marks, inode);
            if let Some(status) = found.status() {
                return Ok(self.directory()?.map(|cwd| ShownEnd { status, cwd }));
            }
        }
        Ok(None)
    }

    /// Returns true if the shell has the input of a call open.
    ///
    /// # Errors
    /// The shell cannot be looked at.
    pub(super) fn has_input(&self, pending: &PendingCall) -> Result<bool, Errno> {
        let Some(input) = pending.input_file else { return Ok(false) };
        for descriptor in SHOWN {
            if self.inode(descriptor)? == Some(input.inode) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the inode in the mailbox behind a descriptor of the shell (`/proc/PID/fdinfo`): none if it is no file of
    /// the mailbox, or the shell has ended. The kernel makes the text of what it holds, so nothing in the cell can hold this up. The directory `fd`
    /// is closed to the supervisor where it has another uid.
    fn inode(&self, descriptor: i32) -> Result<Option<u64>, Errno> {
        match measure::read_lossy(&self.process, &format!("fdinfo/{descriptor}")) {
            Ok(text) => {
                let (mount, inode) = file(&text).ok_or(Errno::ENODATA)?;
                Ok((mount == self.mount).then_some(inode))
            }
            Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Returns the directory of the shell, unless it has ended.
    fn directory(&self) -> Result<Option<String>, Errno> {
        match readlinkat(&self.process, "cwd") {
            Ok(path) => Ok(Some(path.to_string_lossy().into_owned())),
            Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
            // Its path is longer than a page.
            Err(Errno::ENAMETOOLONG) => Ok(Some(String::new())),
            Err(errno) => Err(errno),
        }
    }
}

/// Returns the number of the mount at which a process has its mailbox.
pub(super) fn mailbox_mount(process: &OwnedFd) -> Result<u64, Errno> {
    mount_at(&measure::read_lossy(process, "mountinfo")?, MAILBOX).ok_or(Errno::ENODATA)
}

/// Returns the number of the mount at this place, as `mountinfo` has it (proc_pid_mountinfo(5)).
fn mount_at(mounts: &str, place: &str) -> Option<u64> {
    mounts.lines().rev().find_map(|line| {
        let mut words = line.split(' ');
        let number = words.next()?;
        (words.nth(3)? == place).then(|| number.parse().ok())?
    })
}

/// Returns the mount and the inode that a text of `fdinfo` names (proc_pid_fdinfo(5)).
fn file(text: &str) -> Option<(u64, u64)> {
    let number = |name| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((number("mnt_id:")?, number("ino:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_mount_and_an_inode() {
        let held = "pos:\t0\nflags:\t02100000\nmnt_id:\t94\nino:\t17\n";
        assert_eq!(file(held), Some((94, 17)));
        assert_eq!(file("pos:\t0\nflags:\t02100000\nmnt_id:\t94\n"), None);
        assert_eq!(file(""), None);
    }

    #[test]
    fn the_last_mount_at_a_place_counts() {
        let mounts = "90 1 0:1 / / ro - tmpfs t rw\n94 90 0:2 /shown /dev/session ro - tmpfs t rw\n\
                      95 94 0:3 / /dev/session/pts rw - devpts d rw\n96 94 0:4 / /dev/session ro - tmpfs t rw\n";
        assert_eq!(mount_at(mounts, "/dev/session"), Some(96));
        assert_eq!(mount_at(mounts, "/dev/sessions"), None);
    }
}
