//! The memory of a cell's private filesystems.

use nix::sys::statfs::statfs;

/// Bytes charged for each inode in use of a tmpfs: the inode and its name. The kernel counts extended
/// attributes as inodes too, a KiB as one (tmpfs(5), Linux 6.6 and later), and uses at most twice as
/// much memory for them.
const BYTES_PER_INODE: u64 = 1024;

/// Returns the bytes of files and inodes in the cell's private filesystems, which are memory too.
pub(super) fn private_files() -> u64 {
    ["/tmp", "/dev/shm", "/workspace"]
        .into_iter()
        .filter_map(|path| {
            let filesystem = statfs(path).ok()?;
            // A granted directory is on a disk: only tmpfs is memory.
            if filesystem.filesystem_type() != nix::sys::statfs::TMPFS_MAGIC {
                return None;
            }
            let used = filesystem.blocks().saturating_sub(filesystem.blocks_free());
            let size = u64::try_from(filesystem.block_size()).ok()?;
            let inodes = filesystem.files().saturating_sub(filesystem.files_free());
            Some(used.saturating_mul(size).saturating_add(inodes.saturating_mul(BYTES_PER_INODE)))
        })
        .sum()
}
