//! Instances of epoll: a cell may have a few, since the kernel counts their watches for the host's user.
//!
//! Init makes each instance, has an instance of its own watch it, without an event to wait for, and keeps no
//! copy. With the last descriptor of an instance the kernel takes it off that list (epoll(7)), which
//! `/proc/self/fdinfo` shows. So the living instances are counted, in whichever process they are.

use std::cell::{Cell, OnceCell};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::stat::Mode;
use nix::unistd::read;
use syscalls::Sysno;

use super::guard::NameGuard;
use super::handlers::{CallError, Handlers, Response};
use sys::Result;

/// Instances that may live at once in a cell. A process of node has four or five, and ends where it gets none:
/// a test runner with its workers takes some dozens.
pub const MOST: usize = 64;

/// The system calls by which init makes and counts instances.
pub const CALLS: [Sysno; 5] =
    [Sysno::epoll_create1, Sysno::epoll_ctl, Sysno::openat, Sysno::read, Sysno::fchdir];

/// The instances of a cell.
#[derive(Debug, Default)]
pub struct Instances {
    /// Init's own instance, which watches all others; made with the first.
    all: OnceCell<Epoll>,
    /// Upper bound of the living ones: those of the last count, and those made since.
    at_most: Cell<usize>,
}

/// Serves epoll_create(2), whose size means nothing.
pub(crate) fn create_sized(
    handlers: &Handlers<'_>,
    size: i32,
) -> std::result::Result<Response, CallError> {
    if size <= 0 {
        return Err(CallError::Errno(Errno::EINVAL));
    }
    create(handlers, 0)
}

/// Serves epoll_create1(2).
///
/// # Errors
/// EMFILE: the cell has as many as it may.
pub fn create(handlers: &Handlers<'_>, flags: i32) -> std::result::Result<Response, CallError> {
    if flags & !libc::EPOLL_CLOEXEC != 0 {
        return Err(CallError::Errno(Errno::EINVAL));
    }
    let instances = &handlers.instances;
    if instances.at_most.get() >= MOST {
        instances.at_most.set(instances.living(&handlers.name_guard)?);
    }
    if instances.at_most.get() >= MOST {
        return Err(CallError::Errno(Errno::EMFILE));
    }
    let instance = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let nothing = EpollEvent::new(EpollFlags::empty(), 0);
    instances.all()?.add(&instance.0, nothing)?;
    instances.at_most.update(|count| count + 1);
    Ok(Response::Descriptor(instance.0, flags))
}

impl Instances {
    fn all(&self) -> Result<&Epoll> {
        if self.all.get().is_none() {
            let all = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            // Set here only: init has one thread.
            return Ok(self.all.get_or_init(|| all));
        }
        self.all.get().ok_or(Errno::EBADF)
    }

    /// Counts the living instances.
    ///
    /// # Errors
    /// EPERM: the kernel shows more than that many instances can have.
    fn living(&self, name_guard: &NameGuard<'_>) -> Result<usize> {
        let mut entry = [0; 64];
        let number = self.all()?.0.as_raw_fd();
        let entry = name_guard.own().entry(&mut entry, format_args!("fdinfo/{number}"))?;
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let shown = openat(&name_guard.proc, entry, flags, Mode::empty())?;
        // A line of at most 100 bytes for each.
        let mut buffer = [0; 16384];
        let mut length = 0;
        loop {
            match read(&shown, buffer.get_mut(length..).unwrap_or_default())? {
                0 if length == buffer.len() => return Err(Errno::EPERM),
                0 => break,
                more => length += more,
            }
        }
        Ok(watched_files(buffer.get(..length).unwrap_or_default()))
    }
}

/// Returns the number of files that an instance watches, from its `/proc/PID/fdinfo` (proc(5)).
#[must_use]
pub fn watched_files(fdinfo: &[u8]) -> usize {
    fdinfo.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"tfd:")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_shows_what_an_instance_watches_and_no_more_once_it_is_gone() -> Result<()> {
        let all = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let counted = || {
            let path = format!("/proc/self/fdinfo/{}", all.0.as_raw_fd());
            watched_files(&std::fs::read(path).unwrap_or_default())
        };
        let mut instances = Vec::new();
        for count in 0..MOST {
            assert_eq!(counted(), count);
            let instance = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            all.add(&instance.0, EpollEvent::new(EpollFlags::empty(), 0))?;
            instances.push(instance);
        }
        let copies: Vec<_> = instances.iter().map(|one| one.0.try_clone()).collect();
        drop(instances);
        assert_eq!(counted(), MOST, "a copy keeps an instance");
        drop(copies);
        assert_eq!(counted(), 0);
        Ok(())
    }
}
