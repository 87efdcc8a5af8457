//! The size of a layer, measured when a start takes it: one that is too large gets no more cells.
//!
//! Nothing holds a layer to a size while cells write to it. The kernel has quotas for users and for
//! projects, and setting either takes a capability over the whole filesystem; a filesystem in a file
//! needs a mount that only root can make; and a tmpfs, which has limits for anyone, is gone with the
//! machine. RLIMIT_FSIZE bounds each file. So what cells write within one start is bounded by the
//! filesystem alone, and this keeps a layer from growing over many starts.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, openat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, fstatat};

use super::files::{DIRECTORY, is_kind};
use cell::removal::open_with_access;

/// Unit of `st_blocks` (inode(7)).
const BLOCK_BYTES: u64 = 512;
/// Maximum number of bytes of the names that are held: a layer with more counts as one with too many files.
const MAX_NAME_BYTES: usize = 64 << 20;

/// The limits of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerLimits {
    pub bytes: u64,
    pub files: u32,
}

/// A limit that a layer is above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Excess {
    Bytes,
    Files,
}

/// A directory that the walk is in.
struct Level {
    /// Device and inode number.
    file: (u64, u64),
    /// Subdirectories that are still to be looked at.
    names: Vec<CString>,
    /// The mode that a cell gave it, by which it could not be listed.
    closed: Option<Mode>,
}

struct Walk {
    limits: LayerLimits,
    bytes: u64,
    files: u64,
    /// Files with several names that were counted.
    linked: HashSet<u64>,
    name_bytes: usize,
}

/// Measures the directory with the changes of a layer that no cell uses. Stops at the limit, and holds
/// two descriptors however deep it is.
///
/// # Errors
/// The errno of a directory that cannot be read. ESTALE: a directory was moved meanwhile.
pub(super) fn excess(upper: &OwnedFd, limits: LayerLimits) -> Result<Option<Excess>, Errno> {
    let mut walk = Walk { limits, bytes: 0, files: 0, linked: HashSet::new(), name_bytes: 0 };
    let mut here = openat(upper, ".", DIRECTORY, Mode::empty())?;
    let mut levels = vec![walk.level(&here, None)?];
    while let Some(level) = levels.last_mut() {
        // What was opened on the way is closed again.
        if walk.excess().is_some() {
            level.names.clear();
        }
        if let Some(name) = level.names.pop() {
            walk.name_bytes -= name.as_bytes().len();
            let closed = opened(&here, &name)?;
            here = openat(&here, name.as_c_str(), DIRECTORY, Mode::empty())?;
            levels.push(walk.level(&here, closed)?);
            continue;
        }
        let closed = level.closed;
        levels.pop();
        let Some(above) = levels.last() else { break };
        let parent = openat(&here, "..", DIRECTORY, Mode::empty())?;
        if file(&fstat(&parent)?) != above.file {
            return Err(Errno::ESTALE);
        }
        if let Some(mode) = closed {
            fchmod(&here, mode)?;
        }
        here = parent;
    }
    Ok(walk.excess())
}

/// Makes a directory readable if its owner has no right to it. Returns the mode that it had then.
fn opened(parent: &OwnedFd, name: &CStr) -> Result<Option<Mode>, Errno> {
    let status = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let mode = Mode::from_bits_truncate(status.st_mode);
    if mode.contains(Mode::S_IRUSR | Mode::S_IXUSR) {
        return Ok(None);
    }
    open_with_access(parent, name)?;
    Ok(Some(mode))
}

fn file(status: &FileStat) -> (u64, u64) {
    (status.st_dev, status.st_ino)
}

impl Walk {
    fn excess(&self) -> Option<Excess> {
        if self.bytes > self.limits.bytes {
            return Some(Excess::Bytes);
        }
        let is_above = self.files > self.limits.files.into() || self.name_bytes > MAX_NAME_BYTES;
        is_above.then_some(Excess::Files)
    }

    /// Counts what is in a directory, up to the limit.
    fn level(&mut self, directory: &OwnedFd, closed: Option<Mode>) -> Result<Level, Errno> {
        let file = file(&fstat(directory)?);
        let mut level = Level { file, names: Vec::new(), closed };
        for entry in Dir::openat(directory, ".", DIRECTORY, Mode::empty())?.into_iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.excess().is_some() {
                break;
            }
            let status = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            self.files += 1;
            if is_kind(&status, libc::S_IFDIR) {
                self.name_bytes += name.to_bytes().len();
                level.names.push(name.to_owned());
            } else if status.st_nlink > 1 && !self.linked.insert(status.st_ino) {
                continue;
            }
            let blocks = u64::try_from(status.st_blocks).unwrap_or_default();
            self.bytes = self.bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES));
        }
        Ok(level)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use nix::sys::stat::mkdirat;

    use super::*;

    const ENOUGH: LayerLimits = LayerLimits { bytes: 1 << 30, files: 1000 };

    fn open(path: &std::path::Path) -> std::io::Result<OwnedFd> {
        File::open(path).map(OwnedFd::from)
    }

    #[test]
    fn each_limit_is_found_and_a_file_with_two_names_counts_once() -> std::io::Result<()> {
        let upper = tempfile::tempdir()?;
        let path = |name: &str| upper.path().join(name);
        fs::create_dir_all(path("a/b/c"))?;
        fs::write(path("a/b/file"), vec![1; 256 << 10])?;
        fs::hard_link(path("a/b/file"), path("a/link"))?;
        let held = open(upper.path())?;
        let with = |bytes, files| excess(&held, LayerLimits { bytes, files });
        assert_eq!(with(1 << 30, 5), Ok(None));
        assert_eq!(with(1 << 30, 4), Ok(Some(Excess::Files)));
        assert_eq!(with(255 << 10, 5), Ok(Some(Excess::Bytes)));
        // Directories take a block or none.
        assert_eq!(with(300 << 10, 5), Ok(None));
        // A hole takes no space.
        File::create(path("hole"))?.set_len(1 << 40)?;
        assert_eq!(with(300 << 10, 6), Ok(None));
        Ok(())
    }

    #[test]
    fn a_tree_of_any_depth_and_mode_is_counted() -> std::io::Result<()> {
        let upper = tempfile::tempdir()?;
        let held = open(upper.path())?;
        let mut deepest = held.try_clone()?;
        // More levels than descriptors.
        for _ in 0..3000 {
            mkdirat(&deepest, "n", Mode::S_IRWXU)?;
            deepest = openat(&deepest, "n", DIRECTORY, Mode::empty())?;
        }
        let all = LayerLimits { files: 3000, ..ENOUGH };
        assert_eq!(excess(&held, all), Ok(None));
        assert_eq!(excess(&held, LayerLimits { files: 2999, ..all }), Ok(Some(Excess::Files)));
        cell::removal::remove_all(&held, "")?;
        let closed = upper.path().join("closed");
        fs::create_dir(&closed)?;
        fs::write(closed.join("file"), "")?;
        fs::set_permissions(&closed, Permissions::from_mode(0o000))?;
        for (files, found) in [(1, Some(Excess::Files)), (2, None)] {
            assert_eq!(excess(&held, LayerLimits { files, ..all }), Ok(found));
            assert_eq!(closed.metadata()?.permissions().mode() & 0o777, 0);
        }
        Ok(())
    }
}
