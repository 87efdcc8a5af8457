//! Grants shared memory without a file (MAP_SHARED with MAP_ANONYMOUS, mmap(2)) up to the cell's limit.
//!
//! The pages remain until the last mapping of any part of the memory is gone. A process is not charged for pages
//! that it has dropped (MADV_DONTNEED, munmap(2) of other parts). So the filter notifies init of each such
//! mapping, and a grant counts in full until no process of the cell maps any part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::read;

use super::Watch;
use super::processes::{Listing, Look};
use sys::Result;

pub(super) const PAGE: u64 = 4096;
/// Maximum number of unsettled grants; a look must settle them before there can be more.
const MAX_GRANTS: usize = 4096;
/// Maximum processor time of a look at all mappings; a look that takes longer frees nothing.
const BUDGET: Duration = Duration::from_millis(20);
/// Maximum number of looks in a row that free nothing, before the next one has to wait.
const MAX_FRUITLESS: u32 = 8;
/// Maximum number of looks that match a grant with its object, before the next one has to wait.
const MAX_MATCHING: u32 = 256;
/// Waiting time as a multiple of the duration of the last look.
const REST_FACTOR: u32 = 10;
/// Bytes that are read at a time.
const BLOCK: usize = 1 << 16;

/// The granted shared memory that may still exist.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    /// Bytes of each object that was mapped at the last look, by inode; at least those granted for it.
    mapped: BTreeMap<u64, u64>,
    granted: Vec<Reservation>,
    /// Bytes of the largest grant ever.
    largest: u64,
    /// Looks in a row that freed nothing.
    fruitless: u32,
    /// Time before which no look for room is allowed.
    next_for_room: Option<Instant>,
    /// Looks that matched a grant with its object.
    matching: u32,
    /// Time before which no such look is allowed.
    next_matching: Option<Instant>,
}

/// A grant whose object no look has seen yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reservation {
    /// The thread that was allowed to continue.
    pub thread: i32,
    pub bytes: u64,
}

impl Watch {
    /// Grants `length` bytes of shared memory to a thread, if the cell has room for them.
    pub(in super::super) fn grants(&mut self, thread: i32, length: u64) -> Result<bool> {
        let bytes = length.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let limit = self.limit.saturating_sub(self.segment_bytes()?);
        let began = Instant::now();
        let for_room = !self.shared.has_room(bytes, limit);
        if bytes <= limit && self.shared.wants_look(thread, for_room, began) {
            // Before the look: a thread that has left the call by now has made its object.
            let granted = self.shared.threads();
            let is_done =
                |other: &i32| *other == thread || self.is_elsewhere(*other, libc::SYS_mmap);
            let done: BTreeSet<i32> = granted.into_iter().filter(is_done).collect();
            let mapped = self.shared_objects()?;
            let has_more = mapped.is_some_and(|mapped| self.shared.settle(&mapped, &done));
            self.shared.looked(for_room, has_more, began.elapsed());
        }
        Ok(self.shared.grant(thread, bytes, limit))
    }

    /// Returns the inodes of shared memory without a file that processes of the cell have mapped.
    ///
    /// Returns `None` if the list may be incomplete: a process cannot be read, one was made meanwhile, or
    /// reading takes too long.
    pub(super) fn shared_objects(&self) -> Result<Option<BTreeSet<u64>>> {
        let until = processor_time()? + BUDGET;
        let pids = |listing: &Listing| -> BTreeSet<i32> {
            listing.seen.iter().map(|process| process.process.pid).collect()
        };
        let before = self.procfs.processes()?;
        let mut objects = BTreeSet::new();
        for process in &before.seen {
            // A process that hides threads may look like an exiting one.
            if process.ending.as_ref().is_some_and(|ending| ending.threads.len() > 1) {
                return Ok(None);
            }
            // Init shares nothing; an exiting process has no memory any more.
            if process.process.pid == 1 || process.process.size == 0 {
                continue;
            }
            match self.objects_of(process.process.pid, &process.process.directory, until) {
                Some(more) => objects.extend(more),
                None => return Ok(None),
            }
        }
        // A process that ended before it was read may have a child with the same mappings.
        let after = self.procfs.processes()?;
        let is_certain = before.unclear.is_empty()
            && after.unclear.is_empty()
            && pids(&after).is_subset(&pids(&before));
        Ok(is_certain.then_some(objects))
    }

    /// Returns the inodes of one process; none if it has ended.
    fn objects_of(&self, pid: i32, directory: &str, until: Duration) -> Option<Vec<u64>> {
        let text = self.maps(directory, until)?;
        // A process with memory has mappings: either it has ended, or only the thread that was read has.
        if text.is_empty() && !self.has_ended(pid) {
            return None;
        }
        Some(text.split(|byte| *byte == b'\n').filter_map(shared_object).collect())
    }

    /// Reads the mappings of a process or thread; empty if it has ended. Returns `None` if reading is refused
    /// or takes too long.
    fn maps(&self, directory: &str, until: Duration) -> Option<Vec<u8>> {
        let path = format!("{directory}/maps");
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let file = match openat(&self.procfs.proc, path.as_str(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::ENOENT | Errno::ESRCH) => return Some(Vec::new()),
            Err(_) => return None,
        };
        let mut text = Vec::new();
        let mut length = 0_usize;
        loop {
            if processor_time().ok()? >= until {
                return None;
            }
            text.resize(length.saturating_add(BLOCK), 0);
            match read(&file, text.get_mut(length..)?) {
                Ok(0) | Err(Errno::ESRCH) => break,
                Ok(more) => length = length.saturating_add(more),
                Err(_) => return None,
            }
        }
        text.truncate(length);
        Some(text)
    }

    /// Returns true if no thread of a process has memory any more.
    fn has_ended(&self, pid: i32) -> bool {
        match self.procfs.status(pid, &pid.to_string()) {
            Look::Seen(seen) => seen.process.size == 0 && seen.threads < 2,
            Look::Gone => true,
            Look::Unclear => false,
        }
    }

    /// Returns true if a thread has left the call that it was granted: it has ended, or waits in another
    /// call.
    pub(super) fn is_elsewhere(&self, thread: i32, call: i64) -> bool {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let path = format!("{thread}/syscall");
        match openat(&self.procfs.proc, path.as_str(), flags, Mode::empty()) {
            Err(errno) => errno == Errno::ENOENT || errno == Errno::ESRCH,
            Ok(file) => {
                let mut buffer = [0; 32];
                let length = match read(&file, &mut buffer) {
                    Ok(length) => length,
                    Err(errno) => return errno == Errno::ESRCH,
                };
                let text = buffer.get(..length).unwrap_or_default();
                let number = text.split(|byte| *byte == b' ').next().unwrap_or_default();
                let number = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
                // A running thread may not have finished the call yet.
                number.is_some_and(|number: i64| number != call)
            }
        }
    }
}

/// Returns the processor time of init. Unlike wall time it does not grow while other processes run.
pub(super) fn processor_time() -> Result<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from)
}

/// Returns the inode of shared memory without a file, given a line of `/proc/PID/maps` (proc(5)).
fn shared_object(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?;
    // The kernel's name, and the form of a name that a program has chosen (PR_SET_VMA).
    let is_shared = line.ends_with(" /dev/zero (deleted)") || line.contains(" [anon_shmem:");
    let inode = line.split_ascii_whitespace().nth(4).filter(|_| is_shared)?;
    inode.parse().ok()
}

impl SharedMemory {
    fn has_room(&self, bytes: u64, limit: u64) -> bool {
        self.sum().saturating_add(bytes) <= limit && self.granted.len() < MAX_GRANTS
    }

    /// Returns true if a look is useful now: to find room, or to match the only grant with its object, which
    /// the requesting thread has made by now.
    fn wants_look(&self, thread: i32, for_room: bool, now: Instant) -> bool {
        let is_alone = matches!(self.granted.as_slice(), [one] if one.thread == thread);
        let next = if for_room { self.next_for_room } else { self.next_matching };
        (for_room || is_alone) && next.is_none_or(|next| next <= now)
    }

    /// Decides when the next look may be taken: other calls of the cell wait while init looks.
    fn looked(&mut self, for_room: bool, has_more: bool, took: Duration) {
        let later = Instant::now() + took.saturating_mul(REST_FACTOR);
        if for_room {
            self.fruitless = if has_more { 0 } else { self.fruitless.saturating_add(1) };
            self.next_for_room = (self.fruitless > MAX_FRUITLESS).then_some(later);
        } else {
            self.matching = self.matching.saturating_add(1);
            self.next_matching = (self.matching > MAX_MATCHING).then_some(later);
        }
    }

    /// Returns the threads that have grants.
    fn threads(&self) -> BTreeSet<i32> {
        self.granted.iter().map(|granted| granted.thread).collect()
    }

    fn grant(&mut self, thread: i32, bytes: u64, limit: u64) -> bool {
        let has_room = self.has_room(bytes, limit);
        if has_room {
            self.granted.push(Reservation { thread, bytes });
            self.largest = self.largest.max(bytes);
        }
        has_room
    }

    /// Removes objects that are not mapped any more, and grants of threads that are `done`. Returns true if
    /// that makes room.
    ///
    /// A new object counts as large as the largest grant that it can have come from.
    fn settle(&mut self, mapped: &BTreeSet<u64>, done: &BTreeSet<i32>) -> bool {
        let before = self.sum();
        self.mapped.retain(|inode, _| mapped.contains(inode));
        let mut sizes: Vec<u64> = self.granted.iter().map(|granted| granted.bytes).collect();
        sizes.sort_unstable();
        for inode in mapped {
            self.mapped.entry(*inode).or_insert_with(|| sizes.pop().unwrap_or(self.largest));
        }
        self.granted.retain(|granted| !done.contains(&granted.thread));
        self.sum() < before
    }

    /// Returns the bytes of all grants and objects.
    pub(super) fn sum(&self) -> u64 {
        let granted = self.granted.iter().map(|granted| granted.bytes);
        self.mapped.values().copied().chain(granted).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 64 << 20;
    const MIB: u64 = 1 << 20;

    fn all() -> BTreeSet<i32> {
        BTreeSet::from([2])
    }

    fn with(sizes: &[u64]) -> SharedMemory {
        let mut shared = SharedMemory::default();
        for bytes in sizes {
            assert!(shared.grant(2, *bytes, LIMIT));
        }
        shared
    }

    #[test]
    fn what_no_process_has_mapped_is_given_back_and_the_rest_is_not() {
        let mut shared = with(&[40 * MIB, 20 * MIB]);
        assert!(!shared.grant(2, 8 * MIB, LIMIT));
        shared.settle(&BTreeSet::from([7, 8]), &all());
        assert!(!shared.grant(2, 8 * MIB, LIMIT), "both are there");
        shared.settle(&BTreeSet::new(), &all());
        assert!(shared.grant(2, LIMIT, LIMIT));
    }

    #[test]
    fn an_object_counts_as_the_largest_that_it_can_be() {
        let mut shared = with(&[40 * MIB, 4096]);
        shared.settle(&BTreeSet::from([7]), &all());
        assert_eq!(shared.mapped, BTreeMap::from([(7, 40 * MIB)]));
        // One that no grant is left for.
        shared.settle(&BTreeSet::from([8]), &all());
        assert_eq!(shared.mapped, BTreeMap::from([(8, 40 * MIB)]));
    }

    #[test]
    fn a_grant_of_a_thread_that_may_be_on_its_way_stays() {
        let mut shared = with(&[40 * MIB]);
        shared.settle(&BTreeSet::new(), &BTreeSet::new());
        assert!(!shared.grant(2, 40 * MIB, LIMIT));
        shared.settle(&BTreeSet::from([7]), &BTreeSet::new());
        shared.settle(&BTreeSet::from([7]), &all());
        assert_eq!(shared.mapped, BTreeMap::from([(7, 40 * MIB)]), "not given back with it");
    }

    #[test]
    fn small_grants_without_end_are_looked_at() {
        let mut shared = with(&[4096; MAX_GRANTS]);
        assert!(!shared.grant(2, 4096, LIMIT));
        shared.settle(&BTreeSet::from([7]), &all());
        assert!(shared.grant(2, 4096, LIMIT));
    }

    #[test]
    fn a_single_grant_is_matched_with_its_object() {
        let mut shared = with(&[40 * MIB]);
        assert!(shared.settle(&BTreeSet::new(), &all()), "given back");
        assert!(shared.grant(2, 4096, LIMIT));
        let now = Instant::now();
        assert!(shared.wants_look(2, false, now) && !shared.wants_look(3, false, now));
        assert!(!shared.settle(&BTreeSet::from([7]), &all()));
        assert_eq!(shared.mapped, BTreeMap::from([(7, 4096)]), "not the largest ever");
    }

    #[test]
    fn looks_that_give_nothing_back_have_to_wait_at_last() {
        let mut shared = with(&[40 * MIB]);
        let took = Duration::from_secs(1);
        for _ in 0..MAX_FRUITLESS {
            shared.looked(true, false, took);
            assert!(shared.wants_look(2, true, Instant::now()));
        }
        shared.looked(true, false, took);
        let now = Instant::now();
        assert!(
            !shared.wants_look(2, true, now)
                && shared.wants_look(2, true, now + took * REST_FACTOR)
        );
        shared.looked(true, true, took);
        assert!(shared.wants_look(2, true, Instant::now()), "one gave back");
    }

    #[test]
    fn shared_memory_is_known_by_either_of_its_names() {
        let line = |name: &str| {
            shared_object(format!("7f00-7f10 rw-s 00000000 00:01 1055   {name}").as_bytes())
        };
        assert_eq!(line("/dev/zero (deleted)"), Some(1055));
        assert_eq!(line("[anon_shmem:mine]"), Some(1055));
        assert_eq!(line("/tmp/a"), None);
        assert_eq!(line(""), None);
    }
}
