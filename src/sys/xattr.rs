//! Extended attributes of users, and file handles (xattr(7), name_to_handle_at(2)).

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};

use super::{Result, check, errno};

/// Longest handle that a filesystem makes (MAX_HANDLE_SZ).
const MAX_HANDLE_BYTES: usize = 128;

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

/// Sets an attribute of an open file, and removes it again.
///
/// # Errors
/// EOPNOTSUPP if the filesystem has no such attributes.
pub fn try_one(file: impl AsFd, name: &CStr) -> Result<()> {
    fsetxattr(&file, name, b"y", XattrFlags::empty()).map_err(errno)?;
    fremovexattr(&file, name).map_err(errno)
}

#[repr(C)]
struct FileHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; MAX_HANDLE_BYTES],
}

/// Returns the type and the bytes of the handle of an open file, which identify it on its
/// filesystem also after its inode number was used again.
///
/// # Errors
/// EOPNOTSUPP if the filesystem has no handles.
pub fn file_handle(file: impl AsFd) -> Result<(i32, Vec<u8>)> {
    let mut handle = FileHandle {
        bytes: MAX_HANDLE_BYTES as libc::c_uint,
        kind: 0,
        handle: [0; MAX_HANDLE_BYTES],
    };
    let mut mount: libc::c_int = 0;
    // SAFETY: the path is a C string, `handle` has room for the number of bytes that it states, and
    // both outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_fd().as_raw_fd(),
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    })?;
    let length = usize::try_from(handle.bytes).unwrap_or(MAX_HANDLE_BYTES);
    let bytes = handle.handle.get(..length).ok_or(Errno::EOVERFLOW)?;
    Ok((handle.kind, bytes.to_vec()))
}
