//! Raw system calls with any arguments: what a compromised front end can try.
#![expect(unsafe_code, reason = "the attack itself; no product code can do this")]

use nix::errno::Errno;

/// syscall(2). In a confined process only what its filter allows happens at all.
pub fn call(number: u64, [a, b, c, d, e, f]: [u64; 6]) -> Result<i64, Errno> {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    // SAFETY: not safe by design: the process that makes this call exists to be damaged by it, and its state
    // is checked from outside.
    Errno::result(unsafe { libc::syscall(number, a, b, c, d, e, f) })
}
