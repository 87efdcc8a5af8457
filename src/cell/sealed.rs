//! Host directories as read-only overlays: nobody is reached through a file in them.
//!
//! connect(2) takes a path on a read-only mount as well. An overlay has inodes of its own: the kernel
//! finds no listener behind a socket (ECONNREFUSED), no other end behind a FIFO, and inotify does not
//! see what the host does below. Advisory locks are those of its inodes, so they hold up no program of the host. It costs
//! 3 us for each file that is opened and a third more for a walk over a whole tree, so it is not made of `/usr` and its
//! like, where nobody but root can make a socket.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::statvfs::{FsFlags, fstatvfs};

use super::c_path;
use sys::mount::{Filesystem, attribute};
use sys::process::{self, Child, Side};

/// Trees that hold what the distribution installs. Sockets in them are told by `doctor`.
const SYSTEM: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"];
/// A directory of them where other software is installed, with its sockets.
pub const LOCAL: &str = "/usr/local";

/// How old what a cell sees of a host directory may be at most, unless a program uses it.
const STALE: Duration = Duration::from_secs(1);
/// Milliseconds for which a call waits until that is so.
const PATIENCE: u8 = 5;

/// Returns whether a host path is shown as an overlay if it is a directory.
pub fn is_sealed(host: &Path) -> bool {
    host.starts_with(LOCAL) || !SYSTEM.iter().any(|tree| host.starts_with(tree))
}

/// Makes a detached, read-only overlay of `directory`, with `beneath` below it: an empty one, because the kernel wants
/// two, or one whose files it replaces.
///
/// # Errors
/// EINVAL where mounts lie below the directory, or its filesystem cannot be one of an overlay's. ENODEV where the kernel has none.
pub fn overlay(directory: &OwnedFd, beneath: &OwnedFd) -> Result<(Filesystem, OwnedFd), Errno> {
    let filesystem = Filesystem::open(c"overlay")?;
    // By descriptor: a path may have the characters that separate layers, and is shown in mountinfo.
    let lower =
        format!("/proc/self/fd/{}:/proc/self/fd/{}", directory.as_raw_fd(), beneath.as_raw_fd());
    filesystem.set_to(c"lowerdir", &c_path(Path::new(&lower))?)?;
    // One device number for all that is in it, as in any filesystem: `find -xdev` and `du -x` rely on it.
    filesystem.set_to(c"xino", c"on")?;
    filesystem.set(c"ro")?;
    filesystem.create()?;
    let mount = filesystem.mount(attributes(directory)?)?;
    Ok((filesystem, mount))
}

/// Returns the attributes of the mount, and not less than the host's has.
fn attributes(directory: impl AsFd) -> Result<u64, Errno> {
    let host = fstatvfs(directory)?.flags();
    let noexec = if host.contains(FsFlags::ST_NOEXEC) { attribute::NOEXEC } else { 0 };
    Ok(attribute::RDONLY | attribute::NOSUID | attribute::NODEV | noexec)
}

/// The overlays of a template.
#[derive(Debug)]
pub struct Overlays {
    of_profile: Vec<Filesystem>,
    of_grants: Vec<Filesystem>,
    refreshed: Cell<Instant>,
    /// The process that refreshes them, until it has been collected.
    refresher: RefCell<Option<Child>>,
}

impl Overlays {
    pub fn new(of_profile: Vec<Filesystem>, of_grants: Vec<Filesystem>) -> Self {
        let refreshed = Cell::new(Instant::now());
        Self { of_profile, of_grants, refreshed, refresher: RefCell::new(None) }
    }

    /// Returns when names are to be looked up again while a call runs: a program waits for a file in a directory that
    /// was granted, and for no program that the host installs.
    pub fn next_refresh(&self) -> Option<Instant> {
        (!self.of_grants.is_empty()).then(|| self.refreshed.get() + STALE)
    }

    /// Begins to look names up again, if that was not done within [`STALE`]: an overlay takes its layers for
    /// unchanging, and a name that was missing once would stay so. It waits for nothing.
    ///
    /// The kernel drops all names that cells have looked up, 70 ms for 140,000 of them, and a cell can look up very
    /// many. So a process does it.
    ///
    /// # Errors
    /// The errno of clone3(2) or waitid(2).
    pub fn begin_refresh(&self, now: Instant) -> Result<(), Errno> {
        let are_none = self.of_profile.is_empty() && self.of_grants.is_empty();
        if are_none || now.duration_since(self.refreshed.get()) < STALE {
            return Ok(());
        }
        self.refreshed.set(now);
        let mut refresher = self.refresher.borrow_mut();
        if let Some(earlier) = refresher.as_ref()
            && process::collect(&earlier.pidfd)?.is_none()
        {
            return Ok(());
        }
        *refresher = None;
        let mut kept: Vec<u32> =
            self.all().filter_map(|it| it.as_raw_fd().try_into().ok()).collect();
        kept.sort_unstable();
        *refresher = match process::clone3(0, None)? {
            Side::Child => {
                let done = close_others(&kept).and_then(|()| self.drop_names());
                process::exit_now(i32::from(done.is_err()))
            }
            Side::Parent(child) => Some(child),
        };
        Ok(())
    }

    /// Lets a call see what the host installed, removed or replaced: waits for what was begun, for [`PATIENCE`] at
    /// most. What takes longer is done later.
    ///
    /// # Errors
    /// The errno of poll(2) or waitid(2).
    pub fn end_refresh(&self) -> Result<(), Errno> {
        let mut refresher = self.refresher.borrow_mut();
        let Some(child) = refresher.as_ref() else { return Ok(()) };
        let mut end = [PollFd::new(child.pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut end, PATIENCE)?;
        if process::collect(&child.pidfd)?.is_some() {
            *refresher = None;
        }
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &Filesystem> {
        self.of_profile.iter().chain(&self.of_grants)
    }

    fn drop_names(&self) -> Result<(), Errno> {
        self.all().try_for_each(|overlay| {
            // Set each time: an overlay without a writable layer is not made writable.
            overlay.set(c"ro")?;
            overlay.reconfigure()
        })
    }
}

/// Closes every descriptor but these, in ascending order: whoever reads a pipe waits until the last copy of its other
/// end is closed.
fn close_others(kept: &[u32]) -> Result<(), Errno> {
    let mut first = 0;
    for number in kept {
        if first < *number {
            process::close_range(first, number.saturating_sub(1))?;
        }
        first = number.saturating_add(1);
    }
    process::close_range(first, u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_distribution_installs_is_shown_as_it_is_and_nothing_else() {
        for path in ["/usr", "/usr/lib/x", "/bin", "/lib64", "/etc/ssl/certs"] {
            assert!(!is_sealed(Path::new(path)), "{path}");
        }
        for path in ["/usr/local", "/usr/local/go", "/opt", "/nix/store", "/home/a", "/usrx", "/"] {
            assert!(is_sealed(Path::new(path)), "{path}");
        }
    }
}
