//! Tests of the memory watch, on a procfs made of files.

use std::fs;

use super::*;

const MIB: u64 = 1 << 20;
/// Above all that the filesystems of the machine that runs this may hold.
const LIMIT: u64 = 1 << 50;

/// A procfs of files: one process, which is this one, with mappings that take several looks to count.
struct Procfs(tempfile::TempDir);

impl Procfs {
    fn new(size: u64) -> std::io::Result<Self> {
        let procfs = Self(tempfile::tempdir()?);
        let process = procfs.0.path().join(std::process::id().to_string());
        fs::create_dir(&process)?;
        let status = format!("VmSize: {} kB\nFDSize: 64\nPPid: 1\nThreads: 1\n", size >> 10);
        fs::write(process.join("status"), status)?;
        // Without the end of a line, so that it takes time and counts as nothing.
        fs::File::create(process.join("maps"))?.set_len(1 << 30)?;
        procfs.host(16 << 30, 100 * MIB)?;
        Ok(procfs)
    }

    /// Sets the host's memory: `available` of 16 GiB, and the kernel's objects.
    fn host(&self, available: u64, slab: u64) -> std::io::Result<()> {
        let total = (16_u64 << 30) >> 10;
        let available = available >> 10;
        let slab = slab >> 10;
        let text =
            format!("MemTotal: {total} kB\nMemAvailable: {available} kB\nSUnreclaim: {slab} kB\n");
        fs::write(self.0.path().join("meminfo"), text)
    }

    fn watch(&self) -> std::io::Result<Watch> {
        let mut watch = Watch::new(fs::File::open(self.0.path())?.into(), LIMIT, None, None);
        watch.start(LIMIT);
        Ok(watch)
    }
}

fn look(watch: &mut Watch) -> std::io::Result<Option<OverLimit>> {
    watch.exceeded(Instant::now()).map_err(std::io::Error::from)
}

#[test]
fn a_full_host_is_distinguished_from_an_exceeded_limit() -> std::io::Result<()> {
    let procfs = Procfs::new(MIB)?;
    assert_eq!(look(&mut procfs.watch()?)?, None);
    procfs.host(MIB, 100 * MIB)?;
    assert_eq!(look(&mut procfs.watch()?)?, Some(OverLimit::HostMemory));
    let mut watch = procfs.watch()?;
    watch.limit = 0;
    watch.shared = SharedMemory::default();
    procfs.host(16 << 30, 1 << 40)?;
    assert_eq!(look(&mut watch)?, Some(OverLimit::Memory));
    Ok(())
}

/// Makes a process whose first thread has ended, with `threads` that are in no list.
fn without_first_thread(threads: u32) -> std::io::Result<Procfs> {
    let procfs = Procfs::new(MIB)?;
    let process = procfs.0.path().join(std::process::id().to_string());
    let status = format!("FDSize: 64\nPPid: 1\nThreads: {threads}\n");
    fs::write(process.join("status"), status)?;
    fs::create_dir(process.join("task"))?;
    Ok(procfs)
}

#[test]
fn a_process_whose_memory_cannot_be_read_ends_the_cell_and_gives_nothing_back()
-> std::io::Result<()> {
    let procfs = without_first_thread(2)?;
    let mut watch = procfs.watch()?;
    assert_eq!(watch.shared_objects()?, None);
    for _ in 0..MAX_UNCLEAR {
        assert_eq!(look(&mut watch)?, None);
    }
    assert_eq!(look(&mut watch)?, Some(OverLimit::Memory));
    // The control: a process that has ended, and its parent has not waited for it.
    let procfs = without_first_thread(1)?;
    let mut watch = procfs.watch()?;
    assert_eq!(watch.shared_objects()?, Some(std::collections::BTreeSet::new()));
    for _ in 0..=MAX_UNCLEAR {
        assert_eq!(look(&mut watch)?, None);
    }
    Ok(())
}

impl Procfs {
    fn process(&self) -> std::path::PathBuf {
        self.0.path().join(std::process::id().to_string())
    }

    /// Rewrites the status of the process, and makes a thread of each number in `threads` that ends: a flag of
    /// the kernel shows it.
    fn ends(&self, state: char, threads: &[u32]) -> std::io::Result<()> {
        let count = threads.len().max(1);
        let status = format!("State:\t{state}\nFDSize: 0\nPPid: 1\nThreads: {count}\n");
        let task = self.process().join("task");
        if task.exists() {
            fs::remove_dir_all(&task)?;
        }
        for thread in threads {
            let directory = task.join(thread.to_string());
            fs::create_dir_all(&directory)?;
            fs::write(directory.join("status"), &status)?;
            fs::write(directory.join("stat"), format!("{thread} (a) b) R 1 1 1 0 -1 4 0\n"))?;
        }
        fs::write(self.process().join("status"), status)
    }
}

/// Makes a watch that has seen half of a MiB of the process.
fn with_memory(procfs: &Procfs) -> std::io::Result<Watch> {
    let status = "State:\tR\nVmSize: 1024 kB\nRssAnon: 512 kB\nFDSize: 64\nThreads: 2\n";
    fs::write(procfs.process().join("status"), status)?;
    let mut watch = procfs.watch()?;
    look(&mut watch)?;
    Ok(watch)
}

/// Bytes that a look charges for processes, and the processes whose memory it could not read.
fn recalled(watch: &mut Watch) -> std::io::Result<(u64, usize)> {
    let Listing { mut seen, mut unclear } =
        watch.procfs.processes().map_err(std::io::Error::from)?;
    unclear.extend(watch.recall(&mut seen, Instant::now()));
    Ok((seen.iter().map(|seen| seen.resident).sum(), unclear.len()))
}

#[test]
fn an_ending_process_counts_until_its_memory_is_free_and_ends_no_cell() -> std::io::Result<()> {
    let procfs = Procfs::new(MIB)?;
    let mut watch = with_memory(&procfs)?;
    for threads in [&[7, 8, 9][..], &[7, 9], &[7], &[]] {
        procfs.ends('R', threads)?;
        for _ in 0..=MAX_UNCLEAR {
            assert_eq!(look(&mut watch)?, None, "{threads:?}");
            assert_eq!(recalled(&mut watch)?, (MIB / 2, 0), "{threads:?}");
        }
    }
    procfs.ends('Z', &[])?;
    assert_eq!(recalled(&mut watch)?, (0, 0), "free");
    Ok(())
}

#[test]
fn a_process_that_makes_threads_does_not_end() -> std::io::Result<()> {
    let procfs = Procfs::new(MIB)?;
    let mut watch = with_memory(&procfs)?;
    procfs.ends('R', &[7, 8])?;
    assert_eq!(recalled(&mut watch)?, (MIB / 2, 0));
    for thread in 9..=9 + MAX_UNCLEAR {
        // Taken for an end each time, with a thread that was not there before.
        procfs.ends('R', &[7, thread])?;
        let ended = look(&mut watch)?.is_some();
        assert_eq!(ended, thread == 9 + MAX_UNCLEAR, "{thread}");
    }
    // More than a list shows.
    let mut watch = with_memory(&procfs)?;
    procfs.ends('R', &[7, 8])?;
    let status = "State:\tZ\nFDSize: 0\nPPid: 1\nThreads: 3\n";
    fs::write(procfs.process().join("status"), status)?;
    assert_eq!(recalled(&mut watch)?.1, 1);
    // The control: a thread that lives is no end.
    procfs.ends('R', &[7, 8])?;
    assert_eq!(recalled(&mut watch)?.1, 0);
    fs::write(procfs.process().join("task/8/stat"), "8 (a) R 1 1 1 0 -1 0 0\n")?;
    assert_eq!(recalled(&mut watch)?.1, 1);
    // Nor is one that waits for SIGTERM; one that waits for SIGKILL ends.
    let status = |set: &str| format!("State:\tS\nSigPnd:\t{set}\nShdPnd:\t0\nThreads: 2\n");
    for (set, unclear) in [("0000000000004000", 1), ("0000000000000100", 0)] {
        fs::write(procfs.process().join("task/8/status"), status(set))?;
        assert_eq!(recalled(&mut watch)?.1, unclear, "{set}");
    }
    Ok(())
}

#[test]
fn an_ending_process_counts_by_what_it_shared_with_no_other() -> std::io::Result<()> {
    let procfs = Procfs::new(MIB)?;
    let mut watch = with_memory(&procfs)?;
    fs::write(procfs.process().join("smaps_rollup"), "Pss: 300 kB\nPrivate_Dirty: 100 kB\n")?;
    let seen = watch.procfs.processes().map_err(std::io::Error::from)?.seen;
    assert_eq!(watch.with_shares(0, &seen), 300 << 10);
    procfs.ends('R', &[])?;
    let Listing { mut seen, .. } = watch.procfs.processes().map_err(std::io::Error::from)?;
    watch.recall(&mut seen, Instant::now());
    assert_eq!(watch.with_shares(0, &seen), 100 << 10);
    Ok(())
}

/// Makes another process, of which half a MiB is in memory.
fn another(procfs: &Procfs, shares: &str) -> std::io::Result<()> {
    let other = procfs.0.path().join("1");
    fs::create_dir(&other)?;
    fs::write(other.join("smaps_rollup"), shares)?;
    let status = "State:\tR\nVmSize: 1024 kB\nRssAnon: 512 kB\nFDSize: 64\nThreads: 1\n";
    fs::write(other.join("status"), status)
}

/// Bytes that a look at a time charges by shares.
fn shared_at(watch: &mut Watch, now: Instant) -> std::io::Result<u64> {
    let Listing { mut seen, .. } = watch.procfs.processes().map_err(std::io::Error::from)?;
    watch.recall(&mut seen, now);
    Ok(watch.with_shares(0, &seen))
}

#[test]
fn a_process_whose_shares_cannot_be_read_counts_whole_while_it_ends() -> std::io::Result<()> {
    let procfs = Procfs::new(MIB)?;
    another(&procfs, "Pss: 512 kB\nPrivate_Dirty: 512 kB\n")?;
    // The first has no smaps_rollup, as one that is not dumpable.
    let mut watch = with_memory(&procfs)?;
    watch.limit = 64 * MIB;
    let now = Instant::now();
    assert_eq!(shared_at(&mut watch, now)?, MIB, "the control: while both live");
    procfs.ends('R', &[])?;
    assert_eq!(shared_at(&mut watch, now)?, MIB);
    Ok(())
}

#[test]
fn an_end_that_lasts_counts_by_its_share_or_else_whole() -> std::io::Result<()> {
    for (share, early, late) in
        [(Some("Pss: 300 kB\nPrivate_Dirty: 100 kB\n"), 100, 300), (None, 0, 512)]
    {
        let procfs = Procfs::new(MIB)?;
        let mut watch = with_memory(&procfs)?;
        watch.limit = 64 * MIB;
        let now = Instant::now();
        if let Some(share) = share {
            fs::write(procfs.process().join("smaps_rollup"), share)?;
            assert_eq!(shared_at(&mut watch, now)?, 300 << 10);
        }
        // The other process may have the same pages.
        another(&procfs, "Pss: 0 kB\n")?;
        procfs.ends('R', &[])?;
        for (after, charged) in [(Duration::ZERO, early), (END_PATIENCE, late)] {
            let bytes = shared_at(&mut watch, now + after)?;
            assert_eq!(bytes, charged << 10, "{share:?} {after:?}");
        }
    }
    Ok(())
}

#[test]
fn a_process_is_charged_when_the_thread_that_showed_it_has_ended() -> std::io::Result<()> {
    let procfs = Procfs::new(MIB)?;
    let process = procfs.0.path().join(std::process::id().to_string());
    let status = "VmSize: 1024 kB\nRssAnon: 512 kB\nFDSize: 64\nPPid: 1\nThreads: 2\n";
    fs::write(process.join("status"), status)?;
    let watch = procfs.watch()?;
    let mut listing = watch.procfs.processes()?;
    for seen in &mut listing.seen {
        seen.process.directory.push_str("/task/1");
    }
    let charged: Vec<u64> =
        listing.seen.iter().map(|seen| watch.by_share(seen, &[]).counted).collect();
    assert_eq!(charged, [MIB / 2]);
    Ok(())
}

#[test]
fn pages_that_a_process_shares_are_looked_at_unless_its_page_tables_take_too_long()
-> std::io::Result<()> {
    let procfs = Procfs::new(MIB)?;
    let process = procfs.0.path().join(std::process::id().to_string());
    fs::write(process.join("smaps_rollup"), "Pss: 16 kB\nSwapPss: 0 kB\n")?;
    for (tables, charged) in [(1024, 1024 + 16), (1028, 4096 + 1028)] {
        let status = format!(
            "VmSize: 8192 kB\nRssShmem: 4096 kB\nVmPTE: {tables} kB\nFDSize: 64\nPPid: 1\nThreads: 1\n"
        );
        fs::write(process.join("status"), status)?;
        let mut watch = procfs.watch()?;
        watch.limit = 64 * MIB;
        let listing = watch.procfs.processes()?;
        let seen: Vec<u64> =
            listing.seen.iter().map(|seen| watch.by_share(seen, &listing.seen).counted).collect();
        assert_eq!(seen, [charged << 10], "{tables} kB of page tables");
    }
    Ok(())
}

/// Returns the bytes that an unfinished look charges after the host's kernel grew by a GiB.
fn charged(size: u64) -> std::io::Result<u64> {
    let procfs = Procfs::new(size)?;
    let mut watch = procfs.watch()?;
    look(&mut watch)?;
    let before = watch.peak();
    procfs.host(16 << 30, 1124 * MIB)?;
    look(&mut watch)?;
    assert!(watch.next.is_some_and(|next| next <= Instant::now()), "it is behind");
    Ok(watch.peak() - before)
}

#[test]
fn memory_taken_by_a_neighbour_is_charged_up_to_the_mappings_of_a_cell() -> std::io::Result<()> {
    // 100 pages can be 100 mappings.
    assert!(charged(100 << 12)? < 2 * MIB);
    // The control: this one may have made all of it, as far as is known.
    assert!(charged(1 << 40)? > 10 * MIB);
    Ok(())
}

#[test]
fn ancestors_that_no_look_has_found_are_charged_up_to_what_the_host_has_more() -> std::io::Result<()>
{
    let procfs = Procfs::new(MIB)?;
    fs::remove_dir_all(procfs.process())?;
    another(&procfs, "")?;
    let mut watch = procfs.watch()?;
    look(&mut watch)?;
    // An orphan, which has not executed a program.
    let flags = procfs.process().join("task").join(std::process::id().to_string());
    fs::create_dir_all(&flags)?;
    fs::write(flags.join("stat"), "1 (a) S 1 1 1 0 -1 64 0\n")?;
    let status = "State:\tS\nVmSize: 8192 kB\nFDSize: 64\nPPid: 1\nThreads: 1\n";
    fs::write(procfs.process().join("status"), status)?;
    fs::write(procfs.process().join("maps"), "a\n".repeat(1000))?;
    while watch.next.is_none_or(|next| next <= Instant::now())
        || watch.mappings.count_of(this_process()) < 1000
    {
        look(&mut watch)?;
    }
    let counted = watch.mappings.bytes();
    let unseen = watch.mappings.possible_links();
    assert!(unseen > MIB, "{unseen}");
    for (grown, charged) in [(0, 0), (MIB, MIB), (unseen, unseen), (1 << 40, unseen)] {
        let slab = 100 * MIB + counted + grown;
        let bytes = watch.mapping_bytes(Progress::Done, &[], slab) - counted;
        assert_eq!(bytes, charged, "{grown}");
    }
    Ok(())
}

fn this_process() -> i32 {
    i32::try_from(std::process::id()).unwrap_or_default()
}
