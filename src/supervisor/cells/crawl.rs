//! Finds cells that crawl: almost all of their memory is in use, and the kernel takes the pages of their programs away as
//! fast as they are read back in.
//!
//! Without swap the kernel ends nobody for want of memory while it can drop a page of a file, and the code of every
//! program is such a page. A cell then reads its own code from the disk again and again, until its time is over. Counts
//! of its control group tell that from a program that reads large files: few pages of files are there at all, many more
//! than these were dropped and read again shortly after (`workingset_refault_file`), and processes waited for a page of
//! what they have mapped (`pgmajfault`). And all but a rest of the cell's own limit is in use: where a group above it, or
//! the host, is short of memory, the kernel takes pages from cells that have little, and these are not at fault.
//!
//! One program looks the same and gets on: it reads a mapped file in order, at full speed, with almost all of its memory in
//! use for something else. It is ended too, as it would be by a little less memory.

use std::time::{Duration, Instant};

use cell::cgroup::{ControlGroup, Reclaim};

/// Time between two looks, each some microseconds long.
const INTERVAL: Duration = Duration::from_secs(1);
/// Times that the pages of files are replaced from one look to the next in a cell that crawls; 25 were measured. One that
/// reads files from a fast disk through a larger cache replaces them once.
const TURNS: u64 = 2;
/// Waits for a mapped page in that time; 230 were measured.
const WAITS: u64 = 20;
/// Part of the cell's memory that pages of files have in a cell that crawls, at most: an eighth; a tenth was measured.
/// Where they have more, a program reads files at random, and gets on.
const SHARE: u64 = 8;
/// Bytes below its limit that a cell has in use when it crawls, at most: this part of the limit, or the room that the
/// kernel keeps ready for processors. 1/300 was measured.
const REST: u64 = 32;
const READY: u64 = 1 << 20;
/// Looks in a row after which a cell that crawls is ended.
const PATIENCE: u32 = 15;

/// Looks at one cell while it has a call.
#[derive(Debug, Default)]
pub(crate) struct CrawlWatch {
    next: Option<Instant>,
    /// Bytes of the cell's memory.
    limit: u64,
    last: Option<Reclaim>,
    /// Looks in a row that found it crawling.
    found: u32,
}

impl CrawlWatch {
    /// Begins with a call, which may use this many bytes of memory.
    pub(crate) fn begin(&mut self, now: Instant, limit: u64) {
        *self = Self { next: Some(now + INTERVAL), limit, ..Self::default() };
    }

    /// Returns when the next look is due.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.next
    }

    /// Looks if it is time to. Returns true if the cell has crawled for long enough to be ended.
    pub(crate) fn look(&mut self, group: Option<&ControlGroup>, now: Instant) -> bool {
        if self.next.is_none_or(|next| next > now) {
            return false;
        }
        // Without a group nothing takes pages away.
        let Some(reclaim) = group.and_then(ControlGroup::reclaim) else {
            self.next = None;
            return false;
        };
        self.next = Some(now + INTERVAL);
        self.take(reclaim)
    }

    fn take(&mut self, now: Reclaim) -> bool {
        let crawls = self.last.replace(now).is_some_and(|last| {
            let again = now.read_again.saturating_sub(last.read_again);
            let waits = now.waits.saturating_sub(last.waits);
            now.used.saturating_add((self.limit / REST).max(READY)) >= self.limit
                && waits >= WAITS
                && now.file_bytes <= self.limit / SHARE
                && again >= now.file_pages().max(1).saturating_mul(TURNS)
        });
        self.found = if crawls { self.found.saturating_add(1) } else { 0 };
        self.found >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of looks after which a cell is ended that has so much more at each, of 60.
    fn ended(read_again: u64, waits: u64, pause: u64, limit: u64) -> Option<u64> {
        ended_at(limit, limit, (read_again, waits, pause))
    }

    /// As [`ended`], with so many bytes in use.
    fn ended_at(limit: u64, used: u64, (read_again, waits, pause): (u64, u64, u64)) -> Option<u64> {
        let mut watch = CrawlWatch { limit, ..CrawlWatch::default() };
        let mut now = Reclaim { file_bytes: 6000 << 12, used, ..Reclaim::default() };
        (1..=60).find(|look| {
            if pause == 0 || look % pause != 0 {
                now.read_again += read_again;
                now.waits += waits;
            }
            watch.take(now)
        })
    }

    #[test]
    fn a_cell_that_reads_its_programs_again_and_again_is_ended_and_no_other() {
        let limit = 256 << 20;
        // As measured.
        assert_eq!(ended(170_000, 230, 0, limit), Some(u64::from(PATIENCE) + 1));
        // A slow disk.
        assert_eq!(ended(12_000, 20, 0, limit), Some(u64::from(PATIENCE) + 1));
        // A program that reads a file at random, for which it has a third of the memory.
        assert_eq!(ended(170_000, 20_000, 0, 72 << 20), None);
        // A file that is read twice, programs that are read once, nothing at all, and one that gets on between.
        for (read_again, waits, pause) in
            [(170_000, 0, 0), (0, 230, 0), (6_000, 230, 0), (0, 0, 0), (170_000, 230, 10)]
        {
            assert_eq!(
                ended(read_again, waits, pause, limit),
                None,
                "{read_again} {waits} {pause}"
            );
        }
    }

    #[test]
    fn a_cell_whose_pages_go_to_others_is_not_ended() {
        let limit = 256 << 20;
        let crawling = (170_000, 230, 0);
        assert_eq!(ended_at(limit, limit, crawling), Some(u64::from(PATIENCE) + 1));
        assert_eq!(ended_at(limit, 22 << 20, crawling), None);
        assert_eq!(ended_at(limit, limit / 10 * 9, crawling), None);
    }
}
