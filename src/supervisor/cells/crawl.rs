//! Detects cells that thrash: almost all of their memory is in use, and the kernel reclaims the
//! pages of their programs as fast as they are read back.
//!
//! Without swap the kernel kills no process for lack of memory while it can still drop file pages,
//! and program code consists of such pages. A thrashing cell then reads its code from disk again
//! and again until its time limit. Counters of its control group distinguish this from a program
//! that reads large files: there are few file pages, many more than these were dropped and read
//! again shortly after (`workingset_refault_file`), and processes waited for pages of mapped files
//! (`pgmajfault`). Nearly the whole limit of the cell is in use as well: if a parent group or the
//! host is short of memory instead, the kernel takes pages from cells that use little, and these
//! are not at fault.
//!
//! One kind of program looks the same but makes progress: it reads a mapped file in order and at
//! full speed while other data fill almost all of its memory. It is ended too, as it would be with
//! slightly less memory.

use std::time::{Duration, Instant};

use cell::cgroup::{ControlGroup, Reclaim};

/// Time between two checks, each of which takes some microseconds.
const INTERVAL: Duration = Duration::from_secs(1);
/// Minimum number of times that a thrashing cell replaces all its file pages per interval; 25 were
/// measured. A program that reads files from a fast disk through a larger cache replaces them once.
const MIN_TURNOVERS: u64 = 2;
/// Minimum number of waits for mapped pages per interval; 230 were measured.
const MIN_WAITS: u64 = 20;
/// In a thrashing cell file pages take at most this fraction of the memory limit: an eighth; a
/// tenth was measured. With more, a program reads files at random and makes progress.
const MAX_FILE_SHARE_DIVISOR: u64 = 8;
/// In a thrashing cell at most this fraction of the memory limit is free, or the amount that the
/// kernel reserves for its per-processor caches. 1/300 was measured.
const MAX_FREE_DIVISOR: u64 = 32;
const PER_CPU_RESERVE: u64 = 1 << 20;
/// Number of consecutive positive checks after which a cell is ended.
const MAX_CONSECUTIVE: u32 = 15;

/// Checks one cell while it runs a call.
#[derive(Debug, Default)]
pub(crate) struct CrawlWatch {
    next: Option<Instant>,
    /// Memory limit of the cell in bytes.
    limit: u64,
    last: Option<Reclaim>,
    /// Number of consecutive checks that found it thrashing.
    consecutive: u32,
}

impl CrawlWatch {
    /// Starts with a call that may use `limit` bytes of memory.
    pub(crate) fn begin(&mut self, now: Instant, limit: u64) {
        *self = Self { next: Some(now + INTERVAL), limit, ..Self::default() };
    }

    /// Ends the checks, as the call is being ended.
    pub(crate) fn end(&mut self) {
        self.next = None;
    }

    /// Returns when the next check is due.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.next
    }

    /// Checks the cell if that is due. Returns true if it has thrashed for long enough to be ended.
    pub(crate) fn check(&mut self, group: Option<&ControlGroup>, now: Instant) -> bool {
        if self.next.is_none_or(|next| next > now) {
            return false;
        }
        // Without a group no limit causes reclaim.
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
            now.used.saturating_add((self.limit / MAX_FREE_DIVISOR).max(PER_CPU_RESERVE))
                >= self.limit
                && waits >= MIN_WAITS
                && now.file_bytes <= self.limit / MAX_FILE_SHARE_DIVISOR
                && again >= now.file_pages().max(1).saturating_mul(MIN_TURNOVERS)
        });
        self.consecutive = if crawls { self.consecutive.saturating_add(1) } else { 0 };
        self.consecutive >= MAX_CONSECUTIVE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Growth of the counters per check; no growth at every `pause`-th check.
    #[derive(Clone, Copy)]
    struct Rates {
        read_again: u64,
        waits: u64,
        pause: u64,
    }

    /// Returns the number of checks, out of 60, after which a cell with these increments per check
    /// is ended.
    fn ended(read_again: u64, waits: u64, pause: u64, limit: u64) -> Option<u64> {
        ended_at(limit, limit, Rates { read_again, waits, pause })
    }

    /// Like [`ended`], with this many bytes in use.
    fn ended_at(limit: u64, used: u64, rates: Rates) -> Option<u64> {
        let Rates { read_again, waits, pause } = rates;
        let mut watch = CrawlWatch { limit, ..CrawlWatch::default() };
        let mut now = Reclaim { file_bytes: 6000 << 12, used, ..Reclaim::default() };
        (1..=60).find(|check| {
            if pause == 0 || check % pause != 0 {
                now.read_again += read_again;
                now.waits += waits;
            }
            watch.take(now)
        })
    }

    #[test]
    fn only_a_cell_that_reads_its_programs_again_and_again_is_ended() {
        let limit = 256 << 20;
        // The measured values.
        assert_eq!(ended(170_000, 230, 0, limit), Some(u64::from(MAX_CONSECUTIVE) + 1));
        // A slow disk.
        assert_eq!(ended(12_000, 20, 0, limit), Some(u64::from(MAX_CONSECUTIVE) + 1));
        // A program that reads a file at random, with a third of the memory for its pages.
        assert_eq!(ended(170_000, 20_000, 0, 72 << 20), None);
        // A file that is read twice, programs that are read once, an idle cell, and one that makes
        // progress in between.
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
    fn a_cell_that_loses_pages_to_others_is_not_ended() {
        let limit = 256 << 20;
        let crawling = Rates { read_again: 170_000, waits: 230, pause: 0 };
        assert_eq!(ended_at(limit, limit, crawling), Some(u64::from(MAX_CONSECUTIVE) + 1));
        assert_eq!(ended_at(limit, 22 << 20, crawling), None);
        assert_eq!(ended_at(limit, limit / 10 * 9, crawling), None);
    }
}
