//! Limits the number of epoll instances per cell, because the kernel counts their watches for the
//! host's user.
//!
//! Init makes each instance, adds it to an instance that only init holds, without requesting any
//! events, and closes its copy. When the last descriptor of an instance is closed, the kernel
//! removes it from init's instance (epoll(7)). `/proc/self/fdinfo` lists the remaining ones,
//! whichever processes hold them.

use std::cell::{Cell, OnceCell};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::stat::Mode;
use nix::unistd::read;
use syscalls::Sysno;

use super::guard::NameGuard;
use super::response::{CallError, Response};
use sys::Result;

/// Maximum number of live instances in a cell. A node process needs four or five and exits if it
/// gets none; a test runner with its workers needs some dozens.
pub const MAX_INSTANCES: usize = 64;

/// The system calls by which init makes and counts instances.
pub const CALLS: [Sysno; 5] =
    [Sysno::epoll_create1, Sysno::epoll_ctl, Sysno::openat, Sysno::read, Sysno::fchdir];

/// The instances of a cell.
#[derive(Debug, Default)]
pub struct Instances {
    /// Init's instance, which watches all others; made with the first of them.
    all: OnceCell<Epoll>,
    /// Upper bound of the live instances: the last count, plus those made since.
    at_most: Cell<usize>,
}

/// Serves epoll_create(2), whose size argument has no meaning.
pub(crate) fn create_sized(
    instances: &Instances,
    name_guard: &NameGuard<'_>,
    size: i32,
) -> std::result::Result<Response, CallError> {
    if size <= 0 {
        return Err(CallError::Errno(Errno::EINVAL));
    }
    create(instances, name_guard, 0)
}

/// Serves epoll_create1(2).
///
/// # Errors
/// EMFILE: the cell already has the maximum number of instances.
pub(crate) fn create(
    instances: &Instances,
    name_guard: &NameGuard<'_>,
    flags: i32,
) -> std::result::Result<Response, CallError> {
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return Err(CallError::Errno(Errno::EINVAL));
    }
    if instances.at_most.get() >= MAX_INSTANCES {
        instances.at_most.set(instances.living(name_guard)?);
    }
    if instances.at_most.get() >= MAX_INSTANCES {
        return Err(CallError::Errno(Errno::EMFILE));
    }
    let instance = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let no_events = EpollEvent::new(EpollFlags::empty(), 0);
    instances.all()?.add(&instance.0, no_events)?;
    instances.at_most.update(|count| count + 1);
    Ok(Response::Descriptor(instance.0, flags))
}

impl Instances {
    fn all(&self) -> Result<&Epoll> {
        if self.all.get().is_none() {
            let all = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            // `get_or_init` cannot lose a race: init has one thread.
            return Ok(self.all.get_or_init(|| all));
        }
        self.all.get().ok_or(Errno::EBADF)
    }

    /// Counts the live instances.
    ///
    /// # Errors
    /// EPERM: the list is longer than the maximum number of instances can make it.
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
    fn fdinfo_lists_instances_until_their_last_copy_is_closed() -> Result<()> {
        let all = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let counted = || {
            let path = format!("/proc/self/fdinfo/{}", all.0.as_raw_fd());
            watched_files(&std::fs::read(path).unwrap_or_default())
        };
        let mut instances = Vec::new();
        for count in 0..MAX_INSTANCES {
            assert_eq!(counted(), count);
            let instance = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            all.add(&instance.0, EpollEvent::new(EpollFlags::empty(), 0))?;
            instances.push(instance);
        }
        let copies: Vec<_> = instances.iter().map(|one| one.0.try_clone()).collect();
        drop(instances);
        assert_eq!(counted(), MAX_INSTANCES, "a copy keeps an instance");
        drop(copies);
        assert_eq!(counted(), 0);
        Ok(())
    }
}
