//! How much a TCP connection of a cell may hold, where no control group counts it.
//!
//! What all sockets of TCP hold has a bound for the whole machine alone (`tcp_mem`), which one cell could use
//! up. So each network namespace gets bounds of its own for one socket, and init's watch charges
//! the sockets that there are.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::write;

use super::ProcKind;
use model::profile::{Family, Profile};
use model::receipt::MemoryHold;
use sys::Result;

/// Bytes that a socket may hold at least, at first and at most (tcp(7)). Most is what the kernel gives other sockets
/// when nobody changed that: enough for some of loopback's large segments.
const BOUNDS: [(&str, &[u8]); 2] = [
    ("sys/net/ipv4/tcp_rmem", b"4096 131072 212992"),
    ("sys/net/ipv4/tcp_wmem", b"4096 16384 212992"),
];

/// Returns whether cells of `profile` can have connections that nothing counts.
pub(crate) fn are_unheld(profile: &Profile, memory: MemoryHold) -> bool {
    let speaks_tcp = [Family::Inet, Family::Inet6].iter().any(|it| profile.families.contains(it));
    memory == MemoryHold::BestEffort && profile.egress.class.has_loopback() && speaks_tcp
}

/// Bounds the sockets of the caller's network namespace by the procfs `proc`. Needs CAP_NET_ADMIN in it.
///
/// In a container whose /proc is read-only this cannot be: connections may hold what the host allows then.
///
/// # Errors
/// The errno of open(2) or write(2).
pub fn bound(proc: impl AsFd, kind: ProcKind) -> Result<()> {
    for (path, bounds) in BOUNDS {
        let opened = openat(&proc, path, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty());
        match (opened, kind) {
            (Ok(file), ProcKind::Own | ProcKind::Outer) => write(&file, bounds).map(drop)?,
            (Err(Errno::EROFS), ProcKind::Outer) => {}
            (Err(errno), ProcKind::Own | ProcKind::Outer) => return Err(errno),
        }
    }
    Ok(())
}
