//! Counts the files of one kind that a cell holds, whichever of its processes hold them.
//!
//! Init makes each such file, adds it to an epoll instance that only init holds, without requesting
//! any events, and closes its copy. When the last descriptor of a file is closed, the kernel removes
//! it from init's instance (epoll(7)). `/proc/self/fdinfo` lists the remaining ones.

use std::cell::{Cell, OnceCell};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::stat::Mode;
use nix::unistd::read;
use syscalls::Sysno;

use super::guard::NameGuard;
use sys::Result;

/// Maximum number of files of one kind that are counted: the list of more would not fit into the
/// buffer that it is read into.
pub const MAX_COUNTED: usize = 64;

/// The system calls by which init counts files.
pub(super) const CALLS: [Sysno; 5] =
    [Sysno::epoll_create1, Sysno::epoll_ctl, Sysno::openat, Sysno::read, Sysno::fchdir];

/// The living files of one kind.
#[derive(Debug, Default)]
pub struct CountedFiles {
    /// Init's instance, which watches the files; made with the first of them.
    all: OnceCell<Epoll>,
    /// Upper bound of the living files: the last count, plus those made since.
    at_most: Cell<usize>,
}

impl CountedFiles {
    /// Returns true if the cell holds fewer than [`MAX_COUNTED`] files.
    pub(super) fn has_room(&self, name_guard: &NameGuard<'_>) -> Result<bool> {
        if self.at_most.get() >= MAX_COUNTED {
            self.at_most.set(self.living(name_guard)?);
        }
        Ok(self.at_most.get() < MAX_COUNTED)
    }

    /// Counts a file from now on, until its last descriptor is closed.
    pub(super) fn add(&self, file: impl AsFd) -> Result<()> {
        let no_events = EpollEvent::new(EpollFlags::empty(), 0);
        self.all()?.add(file, no_events)?;
        self.at_most.update(|count| count + 1);
        Ok(())
    }

    fn all(&self) -> Result<&Epoll> {
        if self.all.get().is_none() {
            let all = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            // `get_or_init` cannot lose a race: init has one thread.
            return Ok(self.all.get_or_init(|| all));
        }
        self.all.get().ok_or(Errno::EBADF)
    }

    /// Counts the living files.
    ///
    /// # Errors
    /// EPERM: the list is longer than the maximum number of files can make it.
    fn living(&self, name_guard: &NameGuard<'_>) -> Result<usize> {
        let mut entry = [0; 64];
        let number = self.all()?.0.as_raw_fd();
        let entry = name_guard.init_thread().entry(&mut entry, format_args!("fdinfo/{number}"))?;
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let shown = openat(&name_guard.proc, entry, flags, Mode::empty())?;
        // At most 100 bytes per line.
        let mut buffer = [0; 16384];
        let mut length = 0;
        loop {
            match read(&shown, buffer.get_mut(length..).unwrap_or_default())? {
                // An empty rest means that the buffer is full, which the next read reports as 0 bytes.
                0 if length == buffer.len() => return Err(Errno::EPERM),
                0 => break,
                more => length += more,
            }
        }
        Ok(watched_files(buffer.get(..length).unwrap_or_default()))
    }
}

/// Returns the number of files that an instance watches, given its `/proc/PID/fdinfo` (proc(5)).
#[must_use]
pub fn watched_files(fdinfo: &[u8]) -> usize {
    fdinfo.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"tfd:")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fdinfo_lists_files_until_their_last_copy_is_closed() -> Result<()> {
        let all = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let counted = || {
            let path = format!("/proc/self/fdinfo/{}", all.0.as_raw_fd());
            watched_files(&std::fs::read(path).unwrap_or_default())
        };
        let mut files = Vec::new();
        for count in 0..MAX_COUNTED {
            assert_eq!(counted(), count);
            let instance = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            all.add(&instance.0, EpollEvent::new(EpollFlags::empty(), 0))?;
            files.push(instance);
        }
        let copies: Vec<_> = files.iter().map(|one| one.0.try_clone()).collect();
        drop(files);
        assert_eq!(counted(), MAX_COUNTED, "a copy keeps a file");
        drop(copies);
        assert_eq!(counted(), 0);
        Ok(())
    }
}
