//! Renames files without ever moving a directory.

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::SFlag;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::handlers::look;
use super::paths::Spot;
use sys::Result;

/// Renames what is no directory, and cannot be made one between a look and the act: a directory has no
/// second name, and no call that removes a file removes one.
pub fn rename_file(from: &Spot, to: &Spot) -> Result<()> {
    let link = || linkat(&from.parent, from.last()?, &to.parent, to.last()?, AtFlags::empty());
    match link() {
        Ok(()) => {}
        // A directory, or a filesystem without links.
        Err(Errno::EPERM) => return Err(Errno::EXDEV),
        Err(Errno::EEXIST) if look(to)? == Some(SFlag::S_IFDIR) => return Err(Errno::EISDIR),
        Err(Errno::EEXIST) => {
            unlinkat(&to.parent, to.last()?, UnlinkatFlags::NoRemoveDir)?;
            link()?;
        }
        Err(errno) => return Err(errno),
    }
    unlinkat(&from.parent, from.last()?, UnlinkatFlags::NoRemoveDir)
}
