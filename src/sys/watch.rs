//! Adds watches to an inotify(7) instance that another process made.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::fs::inotify::{self, WatchFlags};

use super::{Result, errno};

/// Adds a watch (inotify_add_watch(2)) and returns its descriptor.
pub fn add(instance: impl AsFd, path: &CStr, mask: u32) -> Result<i32> {
    inotify::add_watch(instance, path, WatchFlags::from_bits_retain(mask)).map_err(errno)
}
