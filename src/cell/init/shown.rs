//! The end of a call as the session's shell shows it: by the files that it holds open while it waits for the next call.
//!
//! Init looks, not the supervisor, which serves all cells: what a descriptor is costs the kernel as much time as the
//! program wants where its text in `/proc/PID/fdinfo` is read (watches, locks, files of an epoll instance), and a file of
//! a grant may be on a filesystem that does not answer. fstat(2) of `/proc/PID/fd/N` makes no text, opens nothing, and
//! leaves no copy of the descriptor whose close would be this process's.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat};

use super::Init;
use crate::dying::is_dying;
use crate::errno_of;
use crate::files::Then;
use crate::measure::read_lossy;
use crate::report::{FoundMarks, FromInit, InputFile, ShellLook, ShownState, raw};
use sys::Result;

/// Descriptors that are looked at: where bash, sh and zsh have the files first, then where fish may have put them.
const SHOWN: [i32; 32] = [
    4, 5, 6, 0, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27,
    28, 29, 30, 31, 32, 33,
];

/// Microseconds of a clock tick of procfs: USER_HZ is 100 on every architecture that this is built for.
const TICK: u64 = 10_000;

impl Init<'_> {
    /// Reports whether the shell shows the end of a call, and the counters if it does.
    pub(super) fn look_at_shell(&mut self, look: &ShellLook) -> Result<()> {
        let state = match self.shell_state(look) {
            Ok(state) => state,
            Err(errno) => ShownState::Unseen { errno: raw(errno) },
        };
        self.tell(FromInit::Shown { number: look.number, shell: state })?;
        match state {
            ShownState::Runs { .. } | ShownState::Unseen { .. } => Ok(()),
            ShownState::Over { .. } => {
                self.drop_input(look.input);
                match &mut self.files {
                    Some(files) => {
                        files.begin(Then::Count);
                        Ok(())
                    }
                    None => self.count(),
                }
            }
        }
    }

    /// Opens the directory of the shell in a procfs.
    fn shell_in_procfs(&self) -> Result<OwnedFd> {
        match &self.shell_directory {
            Some(directory) => directory.try_clone().map_err(|error| errno_of(&error)),
            None => {
                let path = format!("/proc/{}", self.payload);
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                openat(AT_FDCWD, path.as_str(), flags, Mode::empty())
            }
        }
    }

    /// Returns the microseconds that the shell, and all that it has waited for, have computed: in user mode and in the
    /// kernel (proc_pid_stat(5)), in whole ticks.
    ///
    /// Init reads it: a reader that meets the end of a process takes its memory down in its stead.
    pub(super) fn shell_time(&self) -> (u64, u64) {
        let stat = self.shell_in_procfs().and_then(|shell| read_lossy(&shell, "stat"));
        let stat = stat.unwrap_or_default();
        // The name in field 2 may hold anything: count from its last bracket.
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        let micros = |number: usize| {
            let field = fields.split_ascii_whitespace().nth(number - 3);
            let ticks = field.and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
            ticks.saturating_mul(TICK)
        };
        (micros(14).saturating_add(micros(16)), micros(15).saturating_add(micros(17)))
    }

    /// Returns whether the shell is on its way out. One that cannot be seen is not known to be kept.
    pub(super) fn is_shell_ending(&self) -> bool {
        let looked = self.shell_in_procfs().and_then(|shell| is_dying(&shell, "."));
        looked.unwrap_or(true)
    }

    fn shell_state(&self, look: &ShellLook) -> Result<ShownState> {
        let shell = match self.shell_in_procfs() {
            Ok(shell) => shell,
            // It has ended, and is reaped in this turn.
            Err(Errno::ENOENT) => return Ok(ShownState::Runs { has_input: false }),
            Err(errno) => return Err(errno),
        };
        let first = shown_by(&shell, look)?;
        match first {
            ShownState::Runs { has_input: false } => shown_by(&shell, look),
            // Once more: nothing rings again where one system call failed as if the shell had no such file.
            ShownState::Runs { has_input: true } => match shown_by(&shell, look)? {
                ShownState::Runs { .. } => Ok(first),
                second @ (ShownState::Over { .. } | ShownState::Unseen { .. }) => Ok(second),
            },
            ShownState::Over { .. } | ShownState::Unseen { .. } => Ok(first),
        }
    }
}

/// Returns what the descriptors of a shell, whose directory in a procfs this is, show of a call.
fn shown_by(shell: &OwnedFd, look: &ShellLook) -> Result<ShownState> {
    let mut found = FoundMarks::default();
    let mut has_input = false;
    for descriptor in SHOWN {
        let path = format!("fd/{descriptor}");
        let file = match fstatat(shell.as_fd(), path.as_str(), AtFlags::empty()) {
            Ok(file) => InputFile { device: file.st_dev, inode: file.st_ino },
            // The shell has made itself unreadable.
            Err(errno @ (Errno::EACCES | Errno::EPERM)) => return Err(errno),
            // Not open, or a file that does not answer: not of the mailbox.
            Err(_) => continue,
        };
        has_input |= Some(file) == look.input;
        found.add(&look.marks, file.device, file.inode);
        if let Some(status) = found.status() {
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
        let (lines, sixteen, one) = (file("run.7")?, file("sixteens.2")?, file("ones.3")?);
        let mut digits = Digits::default();
        digits.sixteens[2] = inode(&sixteen)?;
        digits.ones[3] = inode(&one)?;
        let device = lines.metadata()?.dev();
        let marks = Marks { device, lines: inode(&lines)?, digits };
        let mut found = FoundMarks::default();
        for file in [&sixteen, &one] {
            found.add(&marks, device, inode(file)?);
        }
        assert_eq!(found.status(), None, "the lines are not held");
        found.add(&marks, device + 1, marks.lines);
        assert_eq!(found.status(), None, "the inode of another filesystem");
        found.add(&marks, device, marks.lines);
        assert_eq!(found.status(), Some(0x23));
        Ok(())
    }
}
