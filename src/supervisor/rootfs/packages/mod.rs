//! Files of the host's `/etc` that are as a package shipped them, copied into a template.
//!
//! A configuration file with the digest in dpkg's database has the bytes of the package, which are
//! public. The host's administrator and the packages' scripts write the rest: such a file is not
//! copied, whatever its mode is. A file is read once: these bytes are hashed, and the same bytes are
//! written. It is never mounted, so that a later change on the host does not reach a cell.
//!
//! A file that a package's script handed to ucf is copied if it is as it was handed over, and a
//! package has the same bytes in `/usr` (`ucf`).
//!
//! The digests are MD5. Someone who wants a secret to be taken for a shipped file must find a
//! second file with the digest of a given one, which is not possible for MD5 either. A package can
//! ship one of two files with the same digest, but its author has written both.
//!
//! `digests` reads dpkg's database, `ucf` that of ucf, `find` walks through `/etc`, and `copy` writes what was found.

mod copy;
mod digests;
mod find;
mod ucf;

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;

use super::detached::read_only;
use cell::c_path;
use sys::mount::open_resolved;
use ucf::Ucf;

pub(crate) use copy::Copier;
pub(crate) use find::{ReadFiles, Rest};

/// The database of dpkg, with the digests of configuration files.
const DPKG: &str = "/var/lib/dpkg/status";

/// Maximum memory of the copies in a template, in KiB: a file takes whole pages.
pub(crate) const MAX_KILOBYTES: u32 = (8 << 10) + 4 * 4_000;

/// The host's `/etc` and the databases of its packages.
///
/// The supervisor cannot reach any other file of the host through these descriptors.
#[derive(Debug)]
pub(crate) struct PackageFiles {
    /// A detached, read-only mount of `/etc`.
    etc: OwnedFd,
    dpkg: File,
    ucf: Option<Ucf>,
}

impl PackageFiles {
    /// Opens `/etc` and the databases while the host's mounts are visible. Returns `None` on a host
    /// without dpkg.
    pub(crate) fn hold() -> Option<Self> {
        let dpkg = File::open(DPKG).ok()?;
        let held = c_path(Path::new("/etc")).and_then(|etc| open_resolved(&etc));
        match held.and_then(|held| read_only(&held)) {
            Ok(etc) => Some(Self { etc, dpkg, ucf: Ucf::hold() }),
            Err(errno) => {
                tracing::warn!(%errno, "/etc cannot be held: cells have no files of packages in it");
                None
            }
        }
    }

    /// Returns the mount of `/etc`.
    pub(crate) fn etc(&self) -> BorrowedFd<'_> {
        self.etc.as_fd()
    }

    /// Returns the descriptors that [`Self::find`] needs.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let of_ucf = self.ucf.iter().flat_map(Ucf::descriptors);
        [self.etc.as_fd(), self.dpkg.as_fd()].into_iter().chain(of_ucf)
    }

    /// Reads the unchanged files and the texts of links. Leaves out files and directories of `skipped`, paths that a cell
    /// has already. `write` gets what was read after each directory, and leaves what it cannot write yet. Returns the
    /// files that were not written, and the rest.
    ///
    /// # Errors
    /// The errno of reading a database; those of `write`.
    pub(crate) fn find(
        &self,
        skipped: &HashSet<Vec<u8>>,
        write: impl FnMut(&mut ReadFiles) -> Result<(), Errno>,
    ) -> Result<(ReadFiles, Rest), Errno> {
        let mut digests = digests::read(&self.dpkg)?;
        if let Some(ucf) = &self.ucf {
            digests.extend(ucf.entries()?);
        }
        find::Finder::new(skipped, &digests, write).find(&self.etc)
    }
}
