//! Records of an apply in the directory of a layer: each has the version of its form, and one that
//! this version cannot read is kept as it is.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::files::{read_file, write_file};

/// Version of the journal and of the record of a staging directory.
pub(super) const VERSION: u8 = 1;
/// Longest journal, and list of applied files.
const MAX_BYTES: usize = 256 << 20;
pub(super) const MAX_BYTES_READ: u64 = 256 << 20;

/// Why an interrupted apply cannot be ended. The layer and its journal are kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stopped {
    #[error("{0}")]
    Errno(#[from] Errno),
    #[error("its journal was written by another version of cofferdam: use that version")]
    OtherVersion,
    #[error("its journal cannot be read")]
    Damaged,
    #[error(
        "its files were in `{0}` of the directory, which is missing or was replaced: put it back, or \
         discard the layer"
    )]
    StagingLost(String),
}

/// A version of a file, before the rest of it is read.
#[derive(Deserialize)]
struct Versioned {
    version: u8,
}

/// Reads a file that has a version; `None` if it is missing.
pub(super) fn read<T: for<'a> Deserialize<'a>>(
    layer: &OwnedFd,
    name: &str,
    max_bytes: u64,
) -> Result<Option<T>, Stopped> {
    let bytes = match read_file(layer, name, max_bytes) {
        Err(Errno::ENOENT) => return Ok(None),
        Err(Errno::EFBIG) => return Err(Stopped::Damaged),
        bytes => bytes?,
    };
    let Versioned { version } = serde_json::from_slice(&bytes).map_err(|_| Stopped::Damaged)?;
    if version != VERSION {
        return Err(Stopped::OtherVersion);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|_| Stopped::Damaged)
}

pub(super) fn write(layer: &OwnedFd, name: &str, value: &impl Serialize) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(value).map_err(|_| Errno::EINVAL)?;
    // What is written can be read again.
    if bytes.len() > MAX_BYTES { Err(Errno::EFBIG) } else { write_file(layer, name, &bytes) }
}
