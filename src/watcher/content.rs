//! Content of a watched file, as far as it is told apart from another.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use project::ProjectDirectory;
use sha2::{Digest, Sha256};

use crate::watches::parents;

/// Bytes of a file up to which its content is compared, and not its times.
const COMPARED_BYTES: u64 = 1 << 20;

/// Content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// There is no regular file.
    Absent,
    Compared([u8; 32]),
    /// Length, and time of the last change in seconds and nanoseconds.
    Long(u64, i64, i64),
}

impl Content {
    /// Looks at a file of the project, following no link.
    pub(crate) fn of(directory: &ProjectDirectory, path: &str) -> Self {
        let Ok(file) = directory.file(path) else { return Self::Absent };
        Self::of_file(file).unwrap_or(Self::Absent)
    }

    fn of_file(file: OwnedFd) -> std::io::Result<Self> {
        let file = File::from(file);
        let found = file.metadata()?;
        if !found.is_file() {
            return Ok(Self::Absent);
        }
        let mut bytes = Vec::new();
        if found.len() <= COMPARED_BYTES {
            (&file).take(COMPARED_BYTES + 1).read_to_end(&mut bytes)?;
            if u64::try_from(bytes.len()).is_ok_and(|read| read <= COMPARED_BYTES) {
                return Ok(Self::Compared(Sha256::digest(&bytes).into()));
            }
        }
        let found = file.metadata()?;
        Ok(Self::Long(found.len(), found.mtime(), found.mtime_nsec()))
    }
}

/// Returns true if a file can have become another since a time in nanoseconds since the epoch, by itself or by a folder on
/// the way to it. Nobody but the kernel sets what is looked at.
pub(crate) fn may_have_changed(directory: &ProjectDirectory, path: &str, since: u64) -> bool {
    let is_later = |found: OwnedFd| match File::from(found).metadata() {
        Ok(found) => {
            let (seconds, rest) = (found.ctime(), found.ctime_nsec());
            let whole = i128::from(seconds) * 1_000_000_000 + i128::from(rest);
            whole >= i128::from(since)
        }
        Err(_) => true,
    };
    since != u64::MAX
        && (directory.file(path).is_ok_and(is_later)
            || parents(path).chain(["."]).any(|at| directory.folder(at).is_ok_and(is_later)))
}
