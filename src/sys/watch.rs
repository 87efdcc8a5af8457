//! Watches of inotify(7), by the descriptor of an instance that another process made.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use super::Result;

/// inotify_add_watch(2); the watch's number.
pub fn add(instance: impl AsFd, path: &CStr, mask: u32) -> Result<i32> {
    let number = instance.as_fd().as_raw_fd();
    // SAFETY: `path` is NUL-terminated and outlives the call.
    Errno::result(unsafe { libc::inotify_add_watch(number, path.as_ptr(), mask) })
}
