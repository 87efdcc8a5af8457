//! Identifies the content of a watched file, to find out whether it changed.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use sha2::{Digest, Sha256};

use crate::ProjectDirectory;
use crate::tree::parents;

/// Size in bytes up to which the content is compared; of a larger file the times are.
const MAX_COMPARED_BYTES: u64 = 1 << 20;

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
    /// Reads the content of a file in the project, without following links.
    pub(crate) fn read(directory: &ProjectDirectory, path: &str) -> Self {
        let Ok(file) = directory.file(path) else { return Self::Absent };
        Self::read_file(file).unwrap_or(Self::Absent)
    }

    fn read_file(file: OwnedFd) -> std::io::Result<Self> {
        let file = File::from(file);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Ok(Self::Absent);
        }
        let mut bytes = Vec::new();
        if metadata.len() <= MAX_COMPARED_BYTES {
            (&file).take(MAX_COMPARED_BYTES + 1).read_to_end(&mut bytes)?;
            if u64::try_from(bytes.len()).is_ok_and(|read| read <= MAX_COMPARED_BYTES) {
                return Ok(Self::Compared(Sha256::digest(&bytes).into()));
            }
        }
        let metadata = file.metadata()?;
        Ok(Self::Long(metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    }
}

/// Returns true if a file may have changed since a time in nanoseconds since the epoch, either
/// itself or a folder on the way to it. Compares change times, which only the kernel sets.
pub(crate) fn may_have_changed(directory: &ProjectDirectory, path: &str, since: u64) -> bool {
    let is_later = |file: OwnedFd| match File::from(file).metadata() {
        Ok(metadata) => {
            let seconds = metadata.ctime();
            let rest = metadata.ctime_nsec();
            let whole = i128::from(seconds) * 1_000_000_000 + i128::from(rest);
            whole >= i128::from(since)
        }
        Err(_) => true,
    };
    since != u64::MAX
        && (directory.file(path).is_ok_and(is_later)
            || parents(path).chain(["."]).any(|at| directory.folder(at).is_ok_and(is_later)))
}
