//! Checks that the host has enough resources to spare for an attack that runs without a sandbox.
//!
//! Each attack stops by itself at a goal. A host that has less than that and some more would still
//! be harmed by one that reaches it.

use std::path::Path;

use super::corpus::{Attack, Class};

const MIB: u64 = 1024 * 1024;
/// The most that an attack takes of memory is 1 GiB; others of the host need the rest.
const MEMORY: u64 = 2048 * MIB;
/// The most that an attack writes is 400 MiB, two of them at a time.
const BYTES: u64 = 2048 * MIB;
/// The most names that an attack makes is a hundred thousand.
const NAMES: u64 = 250_000;

/// Returns the resource that the host has too little of for this attack, if any.
pub(crate) fn short_of(probe: &Attack, directory: &Path) -> Option<String> {
    if probe.class != Class::Resource {
        return None;
    }
    let memory = available_memory().is_none_or(|free| free < MEMORY);
    let room = nix::sys::statvfs::statvfs(directory).ok();
    let (bytes, names) = room.map_or((true, true), |room| {
        let bytes = room.blocks_available().saturating_mul(room.fragment_size());
        // Filesystems without a count of files say that they have none.
        let names = room.files() > 0 && room.files_available() < NAMES;
        (bytes < BYTES, names)
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
