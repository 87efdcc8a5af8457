//! Answers sysinfo(2) with the cell's size, as the kernel would show the host's.

use std::os::fd::BorrowedFd;

use crate::Clocks;
use crate::size::age;
use sys::{Result, memory, notify};

/// Writes the answer into the caller's memory. If the caller has ended meanwhile, its pid may
/// belong to another process of the same cell; other cells cannot be affected.
pub(crate) fn answer(
    listener: BorrowedFd<'_>,
    call: notify::Notification,
    memory: u64,
    clocks: Clocks,
) -> Result<()> {
    let [address, ..] = call.arguments;
    let uptime = age(clocks)?.tv_sec();
    match memory::write_sysinfo(call.pid, address, memory, uptime) {
        Ok(()) => notify::succeed(listener, call),
        // EFAULT: not mapped by the caller. EPERM: the caller is unreadable by its mode, or the host forbids
        // all tracing (Yama).
        Err(errno) => notify::refuse(listener, call, errno),
    }
}
