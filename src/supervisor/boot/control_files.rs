//! Reads and writes files of control groups for `main`.

use std::fs::{self, File};
use std::path::Path;

use cell::cgroup::ProcessorShares;

/// Enables the memory and pids controllers for groups below `directory`, and the cpu controller if
/// it is delegated.
pub(super) fn enable(directory: &Path) -> std::io::Result<ProcessorShares> {
    let control = directory.join("cgroup.subtree_control");
    put(&control, "+memory +pids")?;
    Ok(put(&control, "+cpu").map_or(ProcessorShares::NotOurs, |()| ProcessorShares::Shared))
}

/// Writes to an existing control file. Creating it would only make an ordinary file.
pub(super) fn put(file: impl AsRef<Path>, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    use std::io::Write;
    File::options().write(true).open(file)?.write_all(text.as_ref())
}

/// Returns the cgroup of this process for one entry of `/proc/self/cgroup` (cgroups(7)).
pub(super) fn own_cgroup(controller: &str) -> Option<String> {
    let table = fs::read_to_string("/proc/self/cgroup").ok()?;
    table.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let _hierarchy = parts.next()?;
        let names = parts.next()?;
        let path = parts.next()?;
        names.split(',').any(|name| name == controller).then(|| path.to_owned())
    })
}
