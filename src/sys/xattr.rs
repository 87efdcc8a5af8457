//! Extended attributes (xattr(7)): those of users, and access lists.

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;

use nix::errno::Errno;
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};

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

/// Longest list of the names of a file's attributes (xattr(7)).
const MAX_NAMES: usize = 64 << 10;

/// Lists the names of the attributes of an open file; an empty list if its filesystem has no attributes.
///
/// # Errors
/// The errno of flistxattr(2), such as E2BIG if the list is longer than the kernel returns.
pub fn list(file: impl AsFd) -> Result<Vec<CString>> {
    // Most files have few.
    let mut few = [0; 256];
    let mut many = Vec::new();
    let names = match flistxattr(&file, &mut few[..]).map_err(errno) {
        Ok(length) => few.get(..length),
        Err(Errno::ERANGE) => {
            many.resize(MAX_NAMES, 0);
            let length = flistxattr(&file, &mut many[..]).map_err(errno)?;
            many.get(..length)
        }
        Err(Errno::EOPNOTSUPP) => None,
        Err(errno) => return Err(errno),
    };
    let names = names.unwrap_or_default().split_inclusive(|byte| *byte == 0);
    names
        .map(|name| Ok(CStr::from_bytes_with_nul(name).map_err(|_| Errno::EINVAL)?.to_owned()))
        .collect()
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
