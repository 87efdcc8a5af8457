//! Watches of inotify(7), by the descriptor of an instance that another process made.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::fs::inotify::{self, WatchFlags};

use super::{Result, errno};

/// Adds a watch (inotify_add_watch(2)) and returns its number.
pub fn add(instance: impl AsFd, path: &CStr, mask: u32) -> Result<i32> {
    inotify::add_watch(instance, path, WatchFlags::from_bits_retain(mask)).map_err(errno)
}
