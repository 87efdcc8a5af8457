//! Limits the memory of a cell's TCP sockets where no control group accounts for it.
//!
//! The kernel limits the memory of all TCP sockets only for the whole machine (`tcp_mem`), and one
//! cell could use that up. So each network namespace gets limits for a single socket, and init's
//! memory watch charges every open socket.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::write;

use super::ProcKind;
use model::profile::{Family, Profile};
use model::receipt::MemoryHold;
use sys::Result;

/// Minimum, default and maximum buffer size of a socket, in bytes (tcp(7)). The maximum is the
/// kernel's default for other sockets (`net.core.rmem_max`): enough for some of loopback's large
/// segments.
const BOUNDS: [(&str, &[u8]); 2] = [
    ("sys/net/ipv4/tcp_rmem", b"4096 131072 212992"),
    ("sys/net/ipv4/tcp_wmem", b"4096 16384 212992"),
];

/// Returns true if cells of `profile` can open connections whose memory no control group counts.
pub(crate) fn are_unheld(profile: &Profile, memory: MemoryHold) -> bool {
    let speaks_tcp =
        [Family::Inet, Family::Inet6].iter().any(|family| profile.families.contains(family));
    memory == MemoryHold::BestEffort && profile.egress.class.has_loopback() && speaks_tcp
}

/// Limits the sockets of the caller's network namespace through the procfs `proc`. Needs
/// CAP_NET_ADMIN there.
///
/// In a container whose /proc is read-only this fails silently: the host's limits then apply.
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
