//! The kernel's counters of a cell's network link, which show that a cell has sent nothing.
//!
//! If nothing was sent, the gateway has nothing to report about a call, and its end is answered
//! without asking the gateway. This saves a round trip for every call that could use a network and
//! does not.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::uio::pread;

use cell::network::LINK;

/// Maximum bytes that are read: three links need about 600.
const MAX_TABLE_BYTES: usize = 4_096;
/// Number of counters of a link, eight in each direction (proc_pid_net(5)).
const COUNTERS: usize = 16;

/// `net/dev` of a process in a cell. Held open, it shows the cell's network namespace even after
/// the process has ended.
#[derive(Debug)]
pub(crate) struct LinkCounters(OwnedFd);

impl LinkCounters {
    /// Opens the counters of a process, given its procfs directory.
    ///
    /// # Errors
    /// The errno of openat(2).
    pub(crate) fn open(process: &OwnedFd) -> Result<Self, Errno> {
        openat(process, "net/dev", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map(Self)
    }

    /// Returns true if the cell's link has never sent a packet; false also if the counters cannot
    /// be read.
    pub(crate) fn is_silent(&self) -> bool {
        let mut text = [0; MAX_TABLE_BYTES];
        let length = pread(&self.0, &mut text, 0).unwrap_or_default();
        text.get(..length).is_some_and(says_silent)
    }
}

/// Parses a table of links: returns true if the cells' link is in it and all its send counters are
/// 0.
fn says_silent(table: &[u8]) -> bool {
    let Ok(table) = std::str::from_utf8(table) else { return false };
    let is_link_silent = |line: &str| {
        let counters = line.trim_start().strip_prefix(LINK)?.strip_prefix(':')?;
        let counters: Vec<&str> = counters.split_ascii_whitespace().collect();
        let sent = counters.get(COUNTERS / 2..).filter(|_| counters.len() == COUNTERS)?;
        Some(sent.iter().all(|counter| *counter == "0"))
    };
    table.lines().find_map(is_link_silent).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
        lo:     840      10    0    0    0     0          0         0      840      10    0    0    0     0       0          0\n";

    fn table(link: &str) -> String {
        format!(
            "{HEAD}{link}\n   out:       0       0    0    0    0     0          0         0 \
             0       0    0    0    0     0       0          0\n"
        )
    }

    #[test]
    fn only_a_link_that_sent_nothing_at_all_is_silent() {
        let silent = |link: &str| says_silent(table(link).as_bytes());
        assert!(silent(
            "  eth0:     120       2    0    0    0     0          0         0 0 0 0 0 0 0 0 0"
        ));
        // Any counter matters: bytes, packets, errors, drops.
        for index in 8..16 {
            let mut counters = ["0"; 16];
            if let Some(counter) = counters.get_mut(index) {
                *counter = "1";
            }
            assert!(!silent(&format!("  eth0: {}", counters.join(" "))), "{index}");
        }
        // A table that is truncated, lacks the link, or is malformed.
        assert!(!silent("  eth0: 0 0 0 0 0 0 0 0 0 0 0"));
        assert!(!silent("  eth1: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"));
        assert!(!silent("  eth0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"));
        assert!(!says_silent(b"\xff"));
        assert!(!says_silent(b""));
    }

    #[test]
    fn counters_are_read_from_the_kernel_each_time() {
        let process = nix::fcntl::open("/proc/self", OFlag::O_PATH, Mode::empty());
        let counters = LinkCounters::open(&process.expect("procfs")).expect("counters");
        let mut first = [0; MAX_TABLE_BYTES];
        let read = pread(&counters.0, &mut first, 0).expect("a table");
        assert!(read > HEAD.len() / 2);
        assert_eq!(pread(&counters.0, &mut [0; MAX_TABLE_BYTES], 0).map(|more| more > 0), Ok(true));
    }
}
