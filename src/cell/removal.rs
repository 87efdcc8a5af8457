//! Removes files that cells have written: relative to held directories, without following links.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use sys::Result;

/// Maximum number of names that are read at a time.
const MAX_NAMES: usize = 10_000;

/// Returns the names in a directory, and whether each may be a subdirectory.
fn names(directory: impl AsFd) -> Result<Vec<(std::ffi::CString, bool)>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let list = Dir::openat(directory, ".", flags, Mode::empty())?;
    let mut names = Vec::new();
    // Limited, because a cell may have made more names than fit in memory.
    for entry in list.into_iter().take(MAX_NAMES) {
        let entry = entry?;
        let name = entry.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push((name, matches!(entry.file_type(), Some(Type::Directory) | None)));
        }
    }
    Ok(names)
}

/// Opens a directory (O_PATH) and sets a mode that lets its owner use it, whatever mode a cell gave
/// it.
///
/// # Errors
/// ENOTDIR: not a directory, or a link to one.
pub fn open_with_access(parent: impl AsFd, name: &CStr) -> Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = openat(parent, name, flags, Mode::empty())?;
    // By descriptor: another file may have taken the name meanwhile.
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    fchmodat(AT_FDCWD, path.as_str(), Mode::S_IRWXU, FchmodatFlags::FollowSymlink)?;
    Ok(directory)
}

/// Removes all entries of the directory `store` whose names begin with `prefix`. Recursion is never
/// deeper than one level: subdirectories are moved up into the store and removed later,
/// however deep the tree is.
///
/// # Errors
/// The errno of a file that cannot be removed.
pub fn remove_all(store: &OwnedFd, prefix: &str) -> Result<()> {
    let mut counter = 0_u64;
    loop {
        let mut all = names(store)?;
        all.retain(|(name, _)| name.to_bytes().starts_with(prefix.as_bytes()));
        if all.is_empty() {
            return Ok(());
        }
        for (name, may_be_directory) in all {
            let file = unlinkat(store, name.as_c_str(), UnlinkatFlags::NoRemoveDir);
            match file {
                Ok(()) => continue,
                Err(Errno::EISDIR) if may_be_directory => {}
                Err(errno) => return Err(errno),
            }
            open_with_access(store, &name)?;
            empty(store, &name, prefix, &mut counter)?;
        }
    }
}

/// Moves a directory to an unused name in a store, which begins with `prefix`. `counter` is the
/// number of the last attempt.
///
/// # Errors
/// The errno of renameat(2).
pub fn put_aside(
    parent: impl AsFd,
    name: &CStr,
    store: &OwnedFd,
    prefix: &str,
    counter: &mut u64,
) -> Result<()> {
    loop {
        *counter += 1;
        let aside = format!("{prefix}{}-{counter}", std::process::id());
        match renameat(&parent, name, store, aside.as_str()) {
            // Left by an earlier process with the same pid.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            other => return other,
        }
    }
}

/// Empties one directory of the store and removes it; its subdirectories move up into the store.
fn empty(store: &OwnedFd, name: &CStr, prefix: &str, counter: &mut u64) -> Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let directory = openat(store, name, flags, Mode::empty())?;
    loop {
        let all = names(&directory)?;
        if all.is_empty() {
            return unlinkat(store, name, UnlinkatFlags::RemoveDir);
        }
        for (entry, _) in all {
            match unlinkat(&directory, entry.as_c_str(), UnlinkatFlags::NoRemoveDir) {
                Ok(()) => continue,
                Err(Errno::EISDIR) => {}
                Err(errno) => return Err(errno),
            }
            // Moving a directory writes to it, because `..` changes.
            open_with_access(&directory, &entry)?;
            put_aside(&directory, &entry, store, prefix, counter)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_an_earlier_process_with_the_same_pid_are_removed() {
        let store = tempfile::tempdir().expect("a directory");
        let path = |name: &str| store.path().join(name);
        let left = format!("gone-{}-1/left", std::process::id());
        for name in [left.as_str(), "gone-other/deep/deeper/deepest", "kept/file"] {
            std::fs::create_dir_all(path(name)).expect("directories");
        }
        let held = OwnedFd::from(std::fs::File::open(store.path()).expect("the directory"));
        put_aside(&held, c"kept", &held, "gone-", &mut 0).expect("a name that is free");
        assert!(path(&left).is_dir() && !path("kept").exists());
        std::fs::create_dir(path("stays")).expect("a directory");
        remove_all(&held, "gone-").expect("their removal");
        let names: Vec<_> = std::fs::read_dir(store.path()).expect("names").flatten().collect();
        assert_eq!(names.iter().map(std::fs::DirEntry::file_name).collect::<Vec<_>>(), ["stays"]);
    }
}
