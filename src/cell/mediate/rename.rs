//! Renames a file in such a way that no directory can be renamed by accident.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::{FileStat, fstat, fstatat};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::names::{INIT_PREFIX, Renames};
use super::paths::{Spot, Text};
use sys::lookup::{self, Follow};
use sys::{Result, mount};

/// Maximum number of attempts: other inits may choose the same name at the same time.
const MAX_ATTEMPTS: i64 = 16;

/// Renames a file that is not a directory; with [`Renames::Regular`], only a regular file. The file
/// cannot be replaced by a directory between the check and the rename, because it is renamed
/// through a second name, which directories cannot have.
///
/// No cell may make the second name, which is in the same directory as the first. The file at the
/// new name is replaced in one step, and kept if an earlier step fails.
pub(crate) fn rename_file(from: &Spot, to: &Spot, kinds: Renames) -> Result<()> {
    let is_one_file = || -> Result<bool> {
        let one = status(from)?;
        let other = status(to)?;
        Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
    };
    match is_one_file() {
        // Two names of one file both stay, as with rename(2).
        Ok(true) => return Ok(()),
        Ok(false) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    let second = second_name(from)?;
    // Checked under a name that no cell can give to another file.
    let kind = fstatat(&from.parent, second.as_c()?, AtFlags::AT_SYMLINK_NOFOLLOW)
        .map(|status| status.st_mode & libc::S_IFMT);
    if kinds == Renames::Regular && kind != Ok(libc::S_IFREG) {
        unlinkat(&from.parent, second.as_c()?, UnlinkatFlags::NoRemoveDir)?;
        return Err(Errno::EXDEV);
    }
    let renamed = renameat(&from.parent, second.as_c()?, &to.parent, to.last()?);
    // The second name remains if the rename failed, or if the file got the new name meanwhile.
    let removed = unlinkat(&from.parent, second.as_c()?, UnlinkatFlags::NoRemoveDir);
    renamed?;
    match removed {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    unlinkat(&from.parent, from.last()?, UnlinkatFlags::NoRemoveDir)
}

/// Opens a file that is to be renamed within a mount, for reading.
///
/// # Errors
/// EXDEV: a file of another mount, as with rename(2), or one that is not a regular file.
pub(crate) fn source_of(from: &Spot, to: &Spot) -> Result<(OwnedFd, FileStat)> {
    let reads = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let source = lookup::open(&from.parent, from.last()?, reads, 0, Follow::Nothing)?;
    // Init could read other files of the cell, such as its `/proc` entries.
    let (_, of_source) = mount::device_and_mount(&source)?;
    let (_, of_target) = mount::device_and_mount(&to.parent)?;
    let status = fstat(&source)?;
    if of_source == of_target && status.st_mode & libc::S_IFMT == libc::S_IFREG {
        Ok((source, status))
    } else {
        Err(Errno::EXDEV)
    }
}

fn status(spot: &Spot) -> Result<libc::stat> {
    fstatat(&spot.parent, spot.last()?, AtFlags::AT_SYMLINK_NOFOLLOW)
}

/// Gives a file a second name in the same directory.
///
/// # Errors
/// EXDEV: a directory, or a filesystem without hard links.
fn second_name(from: &Spot) -> Result<Text> {
    let link = |name: &Text| {
        linkat(&from.parent, from.last()?, &from.parent, name.as_c()?, AtFlags::empty())
    };
    match own_name(link) {
        Ok((name, ())) => Ok(name),
        Err(Errno::EPERM) => Err(Errno::EXDEV),
        Err(errno) => Err(errno),
    }
}

/// Makes an empty file that no cell can open, and returns its name and the file, open for both.
pub(crate) fn new_temporary(directory: &OwnedFd) -> Result<(Text, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    own_name(|name| lookup::open(directory, name.as_c()?, flags, 0o600, Follow::Nothing))
}

/// Makes a name that no cell can make.
fn own_name<T>(mut make: impl FnMut(&Text) -> Result<T>) -> Result<(Text, T)> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    for turn in 0..MAX_ATTEMPTS {
        let number = now.tv_nsec().saturating_add(turn);
        let name = Text::new(format!("{INIT_PREFIX}{}-{number}", now.tv_sec()).as_bytes())?;
        match make(&name) {
            Err(Errno::EEXIST) => {}
            made => return made.map(|made| (name, made)),
        }
    }
    Err(Errno::EEXIST)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

    fn rename(from: &Path, to: &Path) -> Result<()> {
        let spot = |path: &Path| Spot::at(path.as_os_str().as_bytes());
        rename_file(&spot(from)?, &spot(to)?, Renames::Files)
    }

    fn names(directory: &Path) -> std::io::Result<Vec<String>> {
        let entries = fs::read_dir(directory)?.collect::<std::io::Result<Vec<_>>>()?;
        let mut names: Vec<String> =
            entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        Ok(names)
    }

    #[test]
    fn a_replaced_name_exists_at_every_moment() -> Outcome {
        let directory = tempfile::tempdir()?;
        let from = directory.path().join("from");
        let to = directory.path().join("to");
        fs::write(&to, "old")?;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| -> Outcome {
            let looks = scope.spawn(|| {
                let mut missed = 0;
                while !over.load(Ordering::Relaxed) {
                    missed += usize::from(fs::symlink_metadata(&to).is_err());
                }
                missed
            });
            for turn in 0..3000 {
                fs::write(&from, turn.to_string())?;
                rename(&from, &to)?;
            }
            over.store(true, Ordering::Relaxed);
            assert_eq!(looks.join().map_err(|_| "a look failed")?, 0);
            Ok(())
        })?;
        assert_eq!(fs::read_to_string(&to)?, "2999");
        assert_eq!(names(directory.path())?, ["to"]);
        Ok(())
    }

    #[test]
    fn a_file_that_cannot_be_replaced_is_kept_without_leftovers() -> Outcome {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| directory.path().join(name);
        fs::write(path("file"), "kept")?;
        fs::hard_link(path("file"), path("same"))?;
        fs::create_dir(path("directory"))?;
        assert_eq!(rename(&path("file"), &path("directory")), Err(Errno::EISDIR));
        assert_eq!(rename(&path("directory"), &path("file")), Err(Errno::EXDEV));
        assert_eq!(rename(&path("directory"), &path("new")), Err(Errno::EXDEV));
        assert_eq!(rename(&path("none"), &path("file")), Err(Errno::ENOENT));
        assert_eq!(rename(&path("file"), &path("same")), Ok(()));
        assert_eq!(names(directory.path())?, ["directory", "file", "same"]);
        assert_eq!(fs::read_to_string(path("same"))?, "kept");
        Ok(())
    }

    #[test]
    fn a_link_is_renamed_and_not_its_target() -> Outcome {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| directory.path().join(name);
        std::os::unix::fs::symlink("nowhere", path("link"))?;
        assert_eq!(rename(&path("link"), &path("new")), Ok(()));
        assert_eq!(fs::read_link(path("new"))?, Path::new("nowhere"));
        Ok(())
    }
}
