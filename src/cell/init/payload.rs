//! The payload of a cell: the program of a one-shot cell, or the shell of a session, which shows the
//! end of a call by the files that it holds open while it waits for the next call.
//!
//! Init looks at these files and not the supervisor, which serves all cells. Reading `/proc/PID/fdinfo` takes
//! the kernel as long as the program wants (watches, locks, files of an epoll instance), and a file
//! of a grant may be on a filesystem that does not answer. fstat(2) of `/proc/PID/fd/N` produces no
//! text, opens no file, and leaves no copy of the descriptor that this process would have to close.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::Pid;

use crate::dying::is_dying;
use crate::errno_of;
use crate::proc_files::read_lossy;
use crate::report::{FoundMarks, InputFile, ShellLook, ShownState, raw};
use sys::Result;

/// Descriptors that are checked: first those that bash, sh and zsh use for the marks, then those
/// that fish may use.
const SHOWN: [i32; 32] = [
    4, 5, 6, 0, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27,
    28, 29, 30, 31, 32, 33,
];

/// Microseconds per clock tick in procfs: USER_HZ is 100 on all supported architectures.
const TICK: u64 = 10_000;

/// The payload, as init sees it.
#[derive(Debug)]
pub(super) struct Payload {
    pub pid: Pid,
    /// Directory in a procfs, if the supervisor has sent it.
    pub directory: Option<OwnedFd>,
}

impl Default for Payload {
    fn default() -> Self {
        Self { pid: Pid::from_raw(0), directory: None }
    }
}

impl Payload {
    /// Returns the pid as procfs and the supervisor write it.
    pub(super) fn number(&self) -> u32 {
        u32::try_from(self.pid.as_raw()).unwrap_or(u32::MAX)
    }

    /// Returns whether the descriptors of the shell show the end of a call.
    pub(super) fn shown(&self, look: &ShellLook) -> ShownState {
        self.shell_state(look).unwrap_or_else(|errno| ShownState::Unseen { errno: raw(errno) })
    }

    /// Opens its directory in a procfs.
    fn open_directory(&self) -> Result<OwnedFd> {
        match &self.directory {
            Some(directory) => directory.try_clone().map_err(|error| errno_of(&error)),
            None => {
                let path = format!("/proc/{}", self.pid);
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                openat(AT_FDCWD, path.as_str(), flags, Mode::empty())
            }
        }
    }

    /// Returns the user and system CPU time of the shell and of all children that it has waited
    /// for, in microseconds (proc_pid_stat(5)). The resolution is one tick.
    ///
    /// Init reads it: a process that reads this while another exits may have to tear down its
    /// memory in its place.
    pub(super) fn processor_time(&self) -> (u64, u64) {
        let stat = self.open_directory().and_then(|shell| read_lossy(&shell, "stat"));
        // A shell that cannot be read has ended, and is counted when it is reaped.
        let stat = stat.unwrap_or_default();
        // The name in field 2 may contain anything: count from its closing bracket.
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        let micros = |number: usize| {
            let field = fields.split_ascii_whitespace().nth(number - 3);
            let ticks = field.and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
            ticks.saturating_mul(TICK)
        };
        (micros(14).saturating_add(micros(16)), micros(15).saturating_add(micros(17)))
    }

    /// Returns true if the payload is exiting. One that cannot be read is assumed to be.
    pub(super) fn is_ending(&self) -> bool {
        let dying = self.open_directory().and_then(|shell| is_dying(&shell, "."));
        dying.unwrap_or(true)
    }

    fn shell_state(&self, look: &ShellLook) -> Result<ShownState> {
        let shell = match self.open_directory() {
            Ok(shell) => shell,
            // The shell has ended, and is reaped in this turn.
            Err(Errno::ENOENT) => return Ok(ShownState::Runs { has_input: false }),
            Err(errno) => return Err(errno),
        };
        let first = shown_by(&shell, look)?;
        match first {
            ShownState::Runs { has_input: false } => shown_by(&shell, look),
            // Checks twice: one failed fstat(2) looks like a missing file, and no other event would
            // cause a second check.
            ShownState::Runs { has_input: true } => match shown_by(&shell, look)? {
                ShownState::Runs { .. } => Ok(first),
                second @ (ShownState::Over { .. } | ShownState::Unseen { .. }) => Ok(second),
            },
            ShownState::Over { .. } | ShownState::Unseen { .. } => Ok(first),
        }
    }
}

/// Returns what the descriptors of a shell, given by its procfs directory, show of a call.
fn shown_by(shell: &OwnedFd, look: &ShellLook) -> Result<ShownState> {
    let mut marks_seen = FoundMarks::default();
    let mut has_input = false;
    for descriptor in SHOWN {
        let path = format!("fd/{descriptor}");
        let file = match fstatat(shell.as_fd(), path.as_str(), AtFlags::empty()) {
            Ok(file) => InputFile { device: file.st_dev, inode: file.st_ino },
            // The shell is not dumpable any more.
            Err(errno @ (Errno::EACCES | Errno::EPERM)) => return Err(errno),
            // Not open, or on a filesystem that does not answer: not a file of the mailbox.
            Err(_) => continue,
        };
        has_input |= Some(file) == look.input;
        marks_seen.add(&look.marks, file.device, file.inode);
        if let Some(status) = marks_seen.status() {
            return Ok(ShownState::Over { status });
        }
    }
    Ok(ShownState::Runs { has_input })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::report::{Digits, Marks};

    #[test]
    fn only_files_of_the_mailbox_end_a_call() -> std::io::Result<()> {
        let scratch = tempfile::tempdir()?;
        let file = |name: &str| File::create(scratch.path().join(name));
        let inode = |file: &File| file.metadata().map(|file| file.ino());
        let lines = file("run.7")?;
        let sixteen = file("sixteens.2")?;
        let one = file("ones.3")?;
        let mut digits = Digits::default();
        digits.sixteens[2] = inode(&sixteen)?;
        digits.ones[3] = inode(&one)?;
        let device = lines.metadata()?.dev();
        let marks = Marks { device, lines: inode(&lines)?, digits };
        let mut marks_seen = FoundMarks::default();
        for file in [&sixteen, &one] {
            marks_seen.add(&marks, device, inode(file)?);
        }
        assert_eq!(marks_seen.status(), None, "the lines are not held");
        marks_seen.add(&marks, device + 1, marks.lines);
        assert_eq!(marks_seen.status(), None, "the inode of another filesystem");
        marks_seen.add(&marks, device, marks.lines);
        assert_eq!(marks_seen.status(), Some(0x23));
        Ok(())
    }
}
