//! Holds the only `unsafe` code of the program: system calls that no safe wrapper offers.
//!
//! Each function is one call with typed arguments, returns the errno unchanged, and keeps no state.
//! Calls of rustix, nix, caps, landlock and rlimit are used where they exist and do not allocate,
//! because many of these functions run between clone and exec. Written here, as no such crate has
//! them: clone3, kcmp, tgkill, mount_setattr, close_range, execveat, wait4 and waitid with resource
//! usage, prlimit of another process without setting it, seccomp with a listener and its ioctls,
//! the signal of a descriptor (fcntl), and receiving socket messages into a caller's buffer (nix
//! allocates for their control data).
#![allow(unsafe_code, reason = "this crate exists to hold it; every block names its invariant")]
#![allow(clippy::as_conversions, reason = "widths of the kernel's ABI; each cast is between them")]
#![deny(unreachable_pub)]

pub mod apart;
pub mod bpf;
pub mod exec;
pub mod fork;
pub mod identity;
pub mod interrupt;
pub mod lookup;
pub mod memory;
pub mod mount;
pub mod net;
pub mod note;
pub mod notify;
pub mod process;
pub mod remote;
pub mod rtnetlink;
pub mod sharing;
pub mod signals;
pub mod socket;
pub mod terminal;
pub mod watch;
pub mod xattr;

use nix::errno::Errno;

/// The result of a system call: a value, or the errno.
pub type Result<T> = std::result::Result<T, Errno>;

/// Converts the errno of rustix to that of nix, which the rest of the program uses.
fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// Turns the result of syscall(2) into a value or the errno.
fn check(result: libc::c_long) -> Result<libc::c_long> {
    Errno::result(result)
}

/// Returns the number of an errno.
pub fn raw(errno: Errno) -> i32 {
    errno as i32
}
