//! New versions of files with paths (`records`), which git writes to `index.lock` and renames.
//!
//! Git on the host renames what it has written. So a cell must not have that file open, nor give it another name: only
//! a file of this name that the cell has made itself can be opened for writing.

use std::cell::RefCell;
use std::os::fd::OwnedFd;

use nix::fcntl::OFlag;
use nix::sys::stat::fstat;

use super::guard::NameGuard;
use super::paths::Spot;
use sys::Result;
use sys::lookup::{self, Follow};

/// Maximum number of files that are held. Of more, the oldest can no longer be opened for writing.
const MAX_HELD: usize = 8;

/// Files with the name of a new version that programs of the cell have made. They are held, so that
/// no filesystem gives their inode numbers to other files.
#[derive(Debug, Default)]
pub(crate) struct OwnLocks {
    held: RefCell<Vec<OwnedFd>>,
}

impl OwnLocks {
    /// Notes a file that a program of the cell has made.
    pub(crate) fn note(&self, name_guard: &NameGuard<'_>, file: &OwnedFd) -> Result<()> {
        let file = name_guard.open_held(file, OFlag::O_PATH | OFlag::O_CLOEXEC)?;
        let mut held = self.held.borrow_mut();
        // Those without a name are of no more use.
        held.retain(|file| fstat(file).is_ok_and(|status| status.st_nlink > 0));
        if held.len() == MAX_HELD {
            held.remove(0);
        }
        held.push(file);
        Ok(())
    }

    /// Returns the file of this name, if a program of the cell has made it.
    pub(crate) fn find(&self, spot: &Spot) -> Result<Option<OwnedFd>> {
        let found = hold(spot)?;
        let there = fstat(&found)?;
        let is_found = |own: &OwnedFd| {
            fstat(own).is_ok_and(|own| (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino))
        };
        let is_own = self.held.borrow().iter().any(is_found);
        Ok(is_own.then_some(found))
    }
}

/// Holds the file of this name.
pub(crate) fn hold(spot: &Spot) -> Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    lookup::open(&spot.parent, spot.last()?, flags, 0, Follow::Nothing)
}
