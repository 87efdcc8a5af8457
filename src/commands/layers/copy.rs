//! Copies of a layer's files: a cell chose their size, so that holes stay holes, and a copy ends before
//! it fills the filesystem of the host.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{Whence, ftruncate, lseek};

use cell::errno_of;

/// Space that an apply leaves on the filesystem of the host.
const MIN_FREE_BYTES: u64 = 64 << 20;
/// Part of a small filesystem that it leaves instead.
const MIN_FREE_PART: u64 = 20;

/// Bytes that an apply may write.
#[derive(Debug)]
pub(crate) struct Space(u64);

impl Space {
    /// Measures the filesystem of a directory.
    ///
    /// # Errors
    /// The errno of fstatfs(2).
    pub(crate) fn of(directory: &OwnedFd) -> Result<Self, Errno> {
        let status = fstatvfs(directory)?;
        let bytes = |blocks: u64| blocks.saturating_mul(status.fragment_size());
        let reserve = MIN_FREE_BYTES.min(bytes(status.blocks()) / MIN_FREE_PART);
        Ok(Self(bytes(status.blocks_available()).saturating_sub(reserve)))
    }

    /// # Errors
    /// ENOSPC: more than is left.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), Errno> {
        self.0 = self.0.checked_sub(bytes).ok_or(Errno::ENOSPC)?;
        Ok(())
    }
}

/// Copies the first `size` bytes of a file to an empty one.
///
/// # Errors
/// ENOSPC: no space is left. ESTALE: the file became shorter.
pub(crate) fn copy(
    mut from: &File,
    mut to: &File,
    size: i64,
    space: &mut Space,
) -> Result<(), Errno> {
    let mut end = 0;
    while end < size {
        let start = match lseek(from, end, Whence::SeekData) {
            Ok(start) if start < size => start,
            // The rest is a hole.
            Ok(_) | Err(Errno::ENXIO) => break,
            Err(errno) => return Err(errno),
        };
        end = lseek(from, start, Whence::SeekHole)?.min(size);
        let length = u64::try_from(end - start).map_err(|_| Errno::EINVAL)?;
        let start = u64::try_from(start).map_err(|_| Errno::EINVAL)?;
        space.take(length)?;
        let mut copied = || {
            from.seek(SeekFrom::Start(start))?;
            to.seek(SeekFrom::Start(start))?;
            std::io::copy(&mut from.take(length), &mut to)
        };
        if copied().map_err(|error| errno_of(&error))? != length {
            return Err(Errno::ESTALE);
        }
    }
    ftruncate(to, size)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn file(directory: &tempfile::TempDir, name: &str) -> std::io::Result<File> {
        let path = directory.path().join(name);
        File::options().read(true).write(true).create_new(true).open(path)
    }

    #[test]
    fn holes_stay_holes_and_the_contents_are_equal() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let size = 64 << 30;
        for (number, parts) in
            [&[][..], &[0], &[1 << 20, 5 << 30], &[size - 4]].into_iter().enumerate()
        {
            let mut from = file(&directory, &format!("from{number}"))?;
            for at in parts {
                from.seek(SeekFrom::Start(*at))?;
                from.write_all(b"text")?;
            }
            from.set_len(size)?;
            let to = file(&directory, &format!("to{number}"))?;
            copy(&from, &to, 64 << 30, &mut Space(1 << 20))?;
            assert_eq!(to.metadata()?.len(), size);
            assert!(to.metadata()?.blocks() <= 64, "{number}: {}", to.metadata()?.blocks());
            for at in parts {
                let mut bytes = [0; 4];
                (&to).seek(SeekFrom::Start(*at))?;
                (&to).read_exact(&mut bytes)?;
                assert_eq!(&bytes, b"text", "{number} at {at}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_copy_ends_before_the_filesystem_is_full() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let mut from = file(&directory, "from")?;
        from.write_all(&[1; 64 << 10])?;
        let to = file(&directory, "to")?;
        let copied = copy(&from, &to, 64 << 10, &mut Space(64 << 10));
        assert_eq!((copied, to.metadata()?.len()), (Ok(()), 64 << 10));
        let refused = file(&directory, "refused")?;
        let copied = copy(&from, &refused, 64 << 10, &mut Space((64 << 10) - 1));
        assert_eq!((copied, refused.metadata()?.len()), (Err(Errno::ENOSPC), 0));
        Ok(())
    }
}
