//! Files of the host's `/etc` that are as a package shipped them, copied into a template.
//!
//! A file of a package is public, and so is a copy of it. The host's administrator writes the rest:
//! such a file is not copied, whatever its mode is. It is found by the digest in the databases of
//! dpkg and ucf. A file is read once: these bytes are hashed, and the same bytes are written. It is
//! never mounted, so that a later change on the host does not reach a cell.
//!
//! The digests are MD5. Someone who wants a secret to be taken for a shipped file must find a
//! second file with the digest of a given one, which is not possible for MD5 either. A package can
//! ship one of two files with the same digest, but its author has written both.
//!
//! `digests` reads the databases, and `copy` walks through `/etc`.

mod copy;
mod digests;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::detached::read_only;
use cell::c_path;
use sys::mount::open_resolved;

/// The database of dpkg, with the digests of configuration files.
const DPKG: &str = "/var/lib/dpkg/status";
/// The database of ucf, with the digests of configuration files that packages install by it.
const UCF: &str = "/var/lib/ucf/hashfile";

/// Maximum memory of the copies in a template, in KiB: a file takes whole pages.
pub(crate) const MAX_KILOBYTES: u32 = (8 << 10) + 4 * 4_000;

/// The host's `/etc` and the databases of its packages.
///
/// The supervisor cannot reach any other file of the host through these descriptors.
#[derive(Debug)]
pub(crate) struct PackageFiles {
    /// A detached, read-only mount of `/etc`.
    etc: OwnedFd,
    dpkg: Option<File>,
    ucf: Option<File>,
}

impl PackageFiles {
    /// Opens `/etc` and the databases while the host's mounts are visible. Returns `None` on a host
    /// without such a database.
    pub(crate) fn hold() -> Option<Self> {
        let dpkg = File::open(DPKG).ok();
        let ucf = File::open(UCF).ok();
        if dpkg.is_none() && ucf.is_none() {
            return None;
        }
        let held = c_path(Path::new("/etc")).and_then(|etc| open_resolved(&etc));
        match held.and_then(|held| read_only(&held)) {
            Ok(etc) => Some(Self { etc, dpkg, ucf }),
            Err(errno) => {
                tracing::warn!(%errno, "/etc cannot be held: cells have no files of packages in it");
                None
            }
        }
    }

    /// Returns the descriptors that [`Self::copy`] needs.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let databases = self.dpkg.iter().chain(&self.ucf);
        std::iter::once(self.etc.as_fd()).chain(databases.map(AsFd::as_fd))
    }

    /// Copies the unchanged files into `/etc` below `root`, except for the paths `shown`, which a
    /// cell has already. Links that lead to a copied file or to one of these paths are copied too.
    ///
    /// # Errors
    /// The errno of reading a database or of writing a file.
    pub(crate) fn copy(&self, root: &OwnedFd, shown: &[PathBuf]) -> Result<(), Errno> {
        let digests = digests::read(self.dpkg.as_ref(), self.ucf.as_ref())?;
        copy::Copier::new(root, shown, &digests).copy(&self.etc)
    }
}
