//! The kernel's counters of a cell's network link, by which the supervisor knows that a cell has sent nothing.
//!
//! A call in such a cell has nothing that the gateway could tell of it, so its end is told without asking: that is a
//! round trip less for every call that has a network and does not use it.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::uio::pread;

use cell::network::LINK;

/// Bytes that are read: three links have some 600.
const ROOM: usize = 4_096;
/// Counters of a link, eight of each way (proc_pid_net(5)).
const COUNTERS: usize = 16;

/// `net/dev` of a process of a cell, held open: it shows the cell's network namespace, whatever becomes of the process.
#[derive(Debug)]
pub(crate) struct LinkCounters(OwnedFd);

impl LinkCounters {
    /// Opens the counters of a process, by its directory in procfs.
    ///
    /// # Errors
    /// The errno of openat(2).
    pub(crate) fn open(process: &OwnedFd) -> Result<Self, Errno> {
        openat(process, "net/dev", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()).map(Self)
    }

    /// Returns true if the cell's link has never sent anything. False also where the counters cannot be read.
    pub(crate) fn is_silent(&self) -> bool {
        let mut text = [0; ROOM];
        let length = pread(&self.0, &mut text, 0).unwrap_or_default();
        text.get(..length).is_some_and(says_silent)
    }
}

/// Reads a table of links: true if that of cells is in it, and all its counters of sending are 0.
fn says_silent(table: &[u8]) -> bool {
    let Ok(table) = std::str::from_utf8(table) else { return false };
    let of_link = |line: &str| {
        let counters = line.trim_start().strip_prefix(LINK)?.strip_prefix(':')?;
        let counters: Vec<&str> = counters.split_ascii_whitespace().collect();
        let sent = counters.get(COUNTERS / 2..).filter(|_| counters.len() == COUNTERS)?;
        Some(sent.iter().all(|counter| *counter == "0"))
    };
    table.lines().find_map(of_link).unwrap_or(false)
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
        // Whatever the counter: bytes, packets, errors, drops.
        for place in 8..16 {
            let mut counters = ["0"; 16];
            if let Some(counter) = counters.get_mut(place) {
                *counter = "1";
            }
            assert!(!silent(&format!("  eth0: {}", counters.join(" "))), "{place}");
        }
        // A table that is cut, has no such link, or is none.
        assert!(!silent("  eth0: 0 0 0 0 0 0 0 0 0 0 0"));
        assert!(!silent("  eth1: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"));
        assert!(!silent("  eth0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"));
        assert!(!says_silent(b"\xff"));
        assert!(!says_silent(b""));
    }

    #[test]
    fn counters_are_read_anew_each_time() {
        let process = nix::fcntl::open("/proc/self", OFlag::O_PATH, Mode::empty());
        let counters = LinkCounters::open(&process.expect("procfs")).expect("counters");
        let mut first = [0; ROOM];
        let read = pread(&counters.0, &mut first, 0).expect("a table");
        assert!(read > HEAD.len() / 2);
        assert_eq!(pread(&counters.0, &mut [0; ROOM], 0).map(|more| more > 0), Ok(true));
    }
}
