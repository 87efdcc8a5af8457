//! Checks that the host has enough resources to spare for an attack that runs without a sandbox.
//!
//! Each attack stops by itself once it has reached its goal. A host without these resources and a
//! reserve would still be harmed by that.

use std::path::Path;

use super::corpus::{Attack, Class};

const MIB: u64 = 1024 * 1024;
/// An attack takes at most 1 GiB of memory; the rest is for other processes of the host.
const MIN_MEMORY: u64 = 2048 * MIB;
/// An attack writes at most 400 MiB, and two may do so at a time.
const MIN_DISK_BYTES: u64 = 2048 * MIB;
/// An attack makes at most a hundred thousand names.
const MIN_INODES: u64 = 250_000;

/// Returns the resource that the host lacks for this attack, if any.
pub(crate) fn short_of(probe: &Attack, directory: &Path) -> Option<String> {
    if probe.class != Class::Resource {
        return None;
    }
    let memory = available_memory().is_none_or(|free| free < MIN_MEMORY);
    let room = nix::sys::statvfs::statvfs(directory).ok();
    let (bytes, names) = room.map_or((true, true), |room| {
        let bytes = room.blocks_available().saturating_mul(room.fragment_size());
        // Filesystems without a file limit report 0 files.
        let names = room.files() > 0 && room.files_available() < MIN_INODES;
        (bytes < MIN_DISK_BYTES, names)
    });
    let short = [(memory, "memory"), (bytes, "room on disk"), (names, "room for names")];
    let (_, what) = short.into_iter().find(|(is_short, _)| *is_short)?;
    Some(format!("not run: the host has too little {what} to spare"))
}

fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib = line.split_whitespace().next()?.parse::<u64>().ok()?;
    Some(kib.saturating_mul(1024))
}
