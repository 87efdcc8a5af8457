//! Answers sysinfo(2) with the cell's size: the kernel's answer shows the host's.

use std::os::fd::BorrowedFd;

use crate::Clocks;
use crate::size::age;
use sys::{Result, memory, notify};

/// Writes the answer into the caller's memory. If the caller has ended meanwhile, its pid may belong to another
/// process, of the same cell: the write harms no other cell.
pub(crate) fn answer(
    listener: BorrowedFd<'_>,
    asked: notify::Notification,
    memory: u64,
    clocks: Clocks,
) -> Result<()> {
    let [address, ..] = asked.arguments;
    let uptime = age(clocks)?.tv_sec();
    match memory::write_sysinfo(asked.pid, address, memory, uptime) {
        Ok(()) => notify::succeed(listener, asked),
        // EFAULT: not memory of the caller's. EPERM: the caller has made itself untraceable, or the host
        // forbids all tracing (Yama).
        Err(errno) => notify::refuse(listener, asked, errno),
    }
}
