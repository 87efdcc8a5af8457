//! Facts by which a file is recognised later: its filesystem, the time when it was made, and a name that
//! cannot be guessed.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, StatxFlags, fstatvfs, statx};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{Result, errno};

/// Returns the id of the filesystem of an open file (statfs(2), `f_fsid`). Unlike a device number, most
/// filesystems keep it when they are mounted again.
///
/// # Errors
/// The errno of fstatfs(2).
pub fn filesystem(file: impl AsFd) -> Result<u64> {
    fstatvfs(file).map(|status| status.f_fsid).map_err(errno)
}

/// Returns the time when an open file was made, as seconds and nanoseconds (statx(2), STATX_BTIME); `None`
/// if its filesystem does not record that.
///
/// # Errors
/// The errno of statx(2).
pub fn birth_time(file: impl AsFd) -> Result<Option<(i64, u32)>> {
    let status = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).map_err(errno)?;
    let is_known = status.stx_mask & StatxFlags::BTIME.bits() != 0;
    Ok(is_known.then_some((status.stx_btime.tv_sec, status.stx_btime.tv_nsec)))
}

/// Returns 32 hexadecimal digits from the kernel's random numbers (getrandom(2)), for a name.
///
/// # Errors
/// The errno of getrandom(2).
pub fn random_name() -> Result<String> {
    let mut bytes = [0; 16];
    // The kernel never returns fewer of up to 256 bytes.
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(errno)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
