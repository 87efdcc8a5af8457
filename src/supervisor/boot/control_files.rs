//! Files of control groups as `main` reads and writes them.

use std::fs::{self, File};
use std::path::Path;

use cell::cgroup::ProcessorShares;

/// Has the groups below `directory` hold memory and processes, and share out the processors where that
/// is ours to say: not every delegation has that controller.
pub(super) fn enable(directory: &Path) -> std::io::Result<ProcessorShares> {
    let control = directory.join("cgroup.subtree_control");
    put(&control, "+memory +pids")?;
    Ok(put(&control, "+cpu").map_or(ProcessorShares::NotOurs, |()| ProcessorShares::Shared))
}

/// Writes to a control file, which must be there: made anew it would be a file that controls nothing.
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
