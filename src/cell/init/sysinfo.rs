//! sysinfo(2), answered by init: the kernel's answer tells of the host.

use std::os::fd::OwnedFd;

use crate::Clocks;
use crate::size::age;
use sys::{Result, memory, notify};

/// Answers sysinfo(2) with what the cell has. A caller that ended meanwhile may have left its number
/// to another: of the same cell, so that what is written there harms nobody else.
pub fn answer(
    listener: &OwnedFd,
    asked: notify::Notification,
    memory: u64,
    clocks: Clocks,
) -> Result<()> {
    let [address, ..] = asked.arguments;
    let uptime = age(clocks)?.tv_sec();
    match memory::write_sysinfo(asked.pid, address, memory, uptime) {
        Ok(()) => notify::succeed(listener, asked),
        // EFAULT: not memory of the caller's. EPERM: the caller has made itself untraceable, or
        // the host forbids all tracing (Yama).
        Err(errno) => notify::refuse(listener, asked, errno),
    }
}
