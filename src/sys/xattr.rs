//! Extended attributes (xattr(7)): those of users, and access lists.

use std::ffi::CStr;
use std::os::fd::AsFd;

use nix::errno::Errno;
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};

use super::{Result, errno};

/// Reads an attribute of an open file into `buffer`. Returns the value; `None` if the file or its
/// filesystem has no such attribute.
///
/// # Errors
/// ERANGE if the value is longer than the buffer.
pub fn get<'b>(file: impl AsFd, name: &CStr, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>> {
    match fgetxattr(file, name, &mut *buffer).map_err(errno) {
        Ok(length) => Ok(buffer.get(..length)),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Sets an attribute of an open file.
///
/// # Errors
/// The errno of fsetxattr(2).
pub fn set(file: impl AsFd, name: &CStr, value: &[u8]) -> Result<()> {
    fsetxattr(file, name, value, XattrFlags::empty()).map_err(errno)
}

/// Sets an attribute of an open file, and removes it again.
///
/// # Errors
/// EOPNOTSUPP if the filesystem has no such attributes.
pub fn try_one(file: impl AsFd, name: &CStr) -> Result<()> {
    fsetxattr(&file, name, b"y", XattrFlags::empty()).map_err(errno)?;
    fremovexattr(&file, name).map_err(errno)
}

/// Removes an attribute of an open file, if it has it.
///
/// # Errors
/// The errno of fremovexattr(2).
pub fn remove(file: impl AsFd, name: &CStr) -> Result<()> {
    match fremovexattr(file, name).map_err(errno) {
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(()),
        done => done,
    }
}
