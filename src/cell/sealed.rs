//! Shows host directories through read-only overlays, so that a cell cannot reach other processes
//! through files in them.
//!
//! connect(2) works on a read-only mount too. An overlay has separate inodes: the kernel finds no
//! listener behind a socket (ECONNREFUSED), no other end behind a FIFO, and inotify does not see
//! activity of the host. Advisory locks apply to the overlay's inodes, so that they cannot block
//! programs of the host. An overlay costs 3 us per opened file, and a third more for a walk over a
//! tree. So it is not used for `/usr` and similar directories, where only root can make a socket.

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

/// Directories that the distribution installs. `doctor` lists sockets in them.
const SYSTEM: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc"];
/// A subdirectory of these where other software is installed, along with its sockets.
pub const LOCAL: &str = "/usr/local";

/// How long a change in a host directory may stay invisible to a cell, unless a program uses the
/// directory.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time in milliseconds that a call waits for a refresh.
const MAX_WAIT_MS: u8 = 5;

/// Returns true if a host path is shown as an overlay if it is a directory.
pub fn is_sealed(host: &Path) -> bool {
    host.starts_with(LOCAL) || !SYSTEM.iter().any(|tree| host.starts_with(tree))
}

/// Makes a detached, read-only overlay of `directory` above `beneath`. The kernel requires two
/// layers: `beneath` is an empty directory, or one whose files `directory` replaces.
///
/// # Errors
/// EINVAL: mounts lie below the directory, or its filesystem does not support overlays. ENODEV: the
/// kernel has no overlayfs.
pub fn overlay(directory: &OwnedFd, beneath: &OwnedFd) -> Result<(Filesystem, OwnedFd), Errno> {
    let filesystem = Filesystem::open(c"overlay")?;
    // By descriptor: a path may contain the characters that separate layers, and appears in
    // mountinfo.
    let lower =
        format!("/proc/self/fd/{}:/proc/self/fd/{}", directory.as_raw_fd(), beneath.as_raw_fd());
    filesystem.set_to(c"lowerdir", &c_path(Path::new(&lower))?)?;
    // The same device number for all files, as in other filesystems: `find -xdev` and `du -x`
    // depend on it.
    filesystem.set_to(c"xino", c"on")?;
    filesystem.set(c"ro")?;
    filesystem.create()?;
    let mount = filesystem.mount(attributes(directory)?)?;
    Ok((filesystem, mount))
}

/// Returns the attributes of the mount, at least as strict as the host's.
fn attributes(directory: impl AsFd) -> Result<u64, Errno> {
    let host = fstatvfs(directory)?.flags();
    let noexec = if host.contains(FsFlags::ST_NOEXEC) { attribute::NOEXEC } else { 0 };
    Ok(attribute::RDONLY | attribute::NOSUID | attribute::NODEV | noexec)
}

/// The overlays of a template.
#[derive(Debug)]
pub struct Overlays {
    profile: Vec<Filesystem>,
    grants: Vec<Filesystem>,
    /// Time of the last refresh.
    refreshed: Cell<Instant>,
    /// The process that refreshes the overlays, until it is reaped.
    refresher: RefCell<Option<Child>>,
}

impl Overlays {
    pub fn new(profile: Vec<Filesystem>, grants: Vec<Filesystem>) -> Self {
        let refreshed = Cell::new(Instant::now());
        Self { profile, grants, refreshed, refresher: RefCell::new(None) }
    }

    /// Returns when a running call needs a refresh: its program may wait for a file in a granted
    /// directory, but not for software that the host installs.
    pub fn next_refresh(&self) -> Option<Instant> {
        (!self.grants.is_empty()).then(|| self.refreshed.get() + REFRESH_INTERVAL)
    }

    /// Begins to look names up again, if that was not done within `REFRESH_INTERVAL`, without
    /// waiting. An overlay treats its layers as constant: a missing name would stay missing.
    ///
    /// The kernel drops all names that cells have looked up, which takes 70 ms for 140,000 of them,
    /// and a cell can look up very many. So a separate process does it.
    ///
    /// # Errors
    /// The errno of clone3(2) or waitid(2).
    pub fn begin_refresh(&self, now: Instant) -> Result<(), Errno> {
        let are_none = self.profile.is_empty() && self.grants.is_empty();
        if are_none || now.duration_since(self.refreshed.get()) < REFRESH_INTERVAL {
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
            self.all().filter_map(|overlay| overlay.as_raw_fd().try_into().ok()).collect();
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

    /// Makes software visible to a call that the host installed, removed or replaced: waits for the
    /// refresh that was begun, at most `MAX_WAIT_MS`. A longer refresh ends later.
    ///
    /// # Errors
    /// The errno of poll(2) or waitid(2).
    pub fn end_refresh(&self) -> Result<(), Errno> {
        let mut refresher = self.refresher.borrow_mut();
        let Some(child) = refresher.as_ref() else { return Ok(()) };
        let mut end = [PollFd::new(child.pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut end, MAX_WAIT_MS)?;
        if process::collect(&child.pidfd)?.is_some() {
            *refresher = None;
        }
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &Filesystem> {
        self.profile.iter().chain(&self.grants)
    }

    fn drop_names(&self) -> Result<(), Errno> {
        self.all().try_for_each(|overlay| {
            // Set for each reconfiguration: an overlay without a writable layer must not become
            // writable.
            overlay.set(c"ro")?;
            overlay.reconfigure()
        })
    }
}

/// Closes every descriptor except `kept`, which is sorted. The reader of a pipe would otherwise
/// wait until this process ends.
pub fn close_others(kept: &[u32]) -> Result<(), Errno> {
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
    fn only_directories_of_the_distribution_are_shown_without_an_overlay() {
        for path in ["/usr", "/usr/lib/x", "/bin", "/lib64", "/etc/ssl/certs"] {
            assert!(!is_sealed(Path::new(path)), "{path}");
        }
        for path in ["/usr/local", "/usr/local/go", "/opt", "/nix/store", "/home/a", "/usrx", "/"] {
            assert!(is_sealed(Path::new(path)), "{path}");
        }
    }
}
