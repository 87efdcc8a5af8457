//! A rename that can move no directory.

use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::fstatat;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::names::{OWN, Renames};
use super::paths::{Spot, Text};
use sys::Result;

/// Other inits that may have the same name at the same time, at most.
const TRIES: i64 = 16;

/// Renames what is no directory, or with [`Renames::Regular`] a regular file alone, and cannot be made one between a look and the act: a directory has no second name.
///
/// The second name is one that no cell may make, beside the first; what is at the new name is replaced in one step, and
/// kept where anything fails before.
pub(crate) fn rename_file(from: &Spot, to: &Spot, kinds: Renames) -> Result<()> {
    let is_one_file = || -> Result<bool> {
        let (one, other) = (status(from)?, status(to)?);
        Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
    };
    match is_one_file() {
        // Two names of one file stay, as for rename(2).
        Ok(true) => return Ok(()),
        Ok(false) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    let second = second_name(from)?;
    // Looked at by a name that no cell can give to another file.
    let kind = fstatat(&from.parent, second.as_c()?, AtFlags::AT_SYMLINK_NOFOLLOW)
        .map(|found| found.st_mode & libc::S_IFMT);
    if kinds == Renames::Regular && kind != Ok(libc::S_IFREG) {
        unlinkat(&from.parent, second.as_c()?, UnlinkatFlags::NoRemoveDir)?;
        return Err(Errno::EXDEV);
    }
    let renamed = renameat(&from.parent, second.as_c()?, &to.parent, to.last()?);
    // Still there where it failed, and where the file got the new name meanwhile.
    let removed = unlinkat(&from.parent, second.as_c()?, UnlinkatFlags::NoRemoveDir);
    renamed?;
    match removed {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    unlinkat(&from.parent, from.last()?, UnlinkatFlags::NoRemoveDir)
}

fn status(spot: &Spot) -> Result<libc::stat> {
    fstatat(&spot.parent, spot.last()?, AtFlags::AT_SYMLINK_NOFOLLOW)
}

/// Gives a file a second name beside its first.
///
/// # Errors
/// EXDEV: a directory, or a filesystem without links.
fn second_name(from: &Spot) -> Result<Text> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    for turn in 0..TRIES {
        let number = now.tv_nsec().saturating_add(turn);
        let name = Text::new(format!("{OWN}{}-{number}", now.tv_sec()).as_bytes())?;
        match linkat(&from.parent, from.last()?, &from.parent, name.as_c()?, AtFlags::empty()) {
            Ok(()) => return Ok(name),
            Err(Errno::EPERM) => return Err(Errno::EXDEV),
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
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
    fn what_is_replaced_is_there_at_every_moment() -> Outcome {
        let place = tempfile::tempdir()?;
        let (from, to) = (place.path().join("from"), place.path().join("to"));
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
        assert_eq!(names(place.path())?, ["to"]);
        Ok(())
    }

    #[test]
    fn what_cannot_be_replaced_is_kept_and_nothing_is_left() -> Outcome {
        let place = tempfile::tempdir()?;
        let path = |name: &str| place.path().join(name);
        fs::write(path("file"), "kept")?;
        fs::hard_link(path("file"), path("same"))?;
        fs::create_dir(path("directory"))?;
        assert_eq!(rename(&path("file"), &path("directory")), Err(Errno::EISDIR));
        assert_eq!(rename(&path("directory"), &path("file")), Err(Errno::EXDEV));
        assert_eq!(rename(&path("directory"), &path("new")), Err(Errno::EXDEV));
        assert_eq!(rename(&path("none"), &path("file")), Err(Errno::ENOENT));
        assert_eq!(rename(&path("file"), &path("same")), Ok(()));
        assert_eq!(names(place.path())?, ["directory", "file", "same"]);
        assert_eq!(fs::read_to_string(path("same"))?, "kept");
        Ok(())
    }

    #[test]
    fn a_link_is_renamed_and_not_what_it_leads_to() -> Outcome {
        let place = tempfile::tempdir()?;
        let path = |name: &str| place.path().join(name);
        std::os::unix::fs::symlink("nowhere", path("link"))?;
        assert_eq!(rename(&path("link"), &path("new")), Ok(()));
        assert_eq!(fs::read_link(path("new"))?, Path::new("nowhere"));
        Ok(())
    }
}
