//! The only `unsafe` of the program: system calls that no safe wrapper offers.
//!
//! Each function is one call with its arguments typed, returns the errno as it
//! is, and keeps no state. What a safe crate already offers (nix, caps, landlock,
//! rlimit) is not repeated here.
#![allow(unsafe_code, reason = "this crate exists to hold it; every block names its invariant")]
#![allow(clippy::as_conversions, reason = "widths of the kernel's ABI; each cast is between them")]

pub mod bpf;
pub mod exec;
pub mod fork;
pub mod interrupt;
pub mod lookup;
pub mod memory;
pub mod mount;
pub mod net;
pub mod notify;
pub mod process;
pub mod remote;
pub mod sharing;
pub mod signals;
pub mod socket;
pub mod terminal;
pub mod watch;

use nix::errno::Errno;

/// The errno of a system call that failed.
pub type Result<T> = std::result::Result<T, Errno>;

/// Turns the raw result of syscall(2) into a value or the errno.
fn check(result: libc::c_long) -> Result<libc::c_long> {
    Errno::result(result)
}

/// The number of an errno.
pub fn raw(errno: Errno) -> i32 {
    errno as i32
}
