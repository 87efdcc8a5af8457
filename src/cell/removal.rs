//! Removal of what cells have written: beneath a held directory, following no link.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use sys::Result;

/// Returns the names in a directory, and whether each may be a directory itself.
fn names(directory: impl AsFd) -> Result<Vec<(std::ffi::CString, bool)>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let list = Dir::openat(directory, ".", flags, Mode::empty())?;
    let mut found = Vec::new();
    // So many at a time: a cell may have made more than there is memory for.
    for entry in list.into_iter().take(10_000) {
        let entry = entry?;
        let name = entry.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            found.push((name, matches!(entry.file_type(), Some(Type::Directory) | None)));
        }
    }
    Ok(found)
}

/// Holds a directory (O_PATH) and gives it a mode by which its own user can use it, whatever a cell gave it.
///
/// # Errors
/// ENOTDIR: it is none, or a link to one.
pub fn opened_up(parent: impl AsFd, name: &CStr) -> Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let held = openat(parent, name, flags, Mode::empty())?;
    // By its descriptor: another file may come to its name meanwhile.
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    fchmodat(AT_FDCWD, path.as_str(), Mode::S_IRWXU, FchmodatFlags::FollowSymlink)?;
    Ok(held)
}

/// Removes all in the directory `store` whose name begins with `prefix`. A tree is never descended more than one
/// level: directories in it are moved up and wait for their turn, however deep it is.
///
/// # Errors
/// The errno of a file that cannot be removed.
pub fn remove_all(store: &OwnedFd, prefix: &str) -> Result<()> {
    let mut moved = 0_u64;
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
            opened_up(store, &name)?;
            empty(store, &name, prefix, &mut moved)?;
        }
    }
}

/// Moves a directory to a new name in a store, which begins with `prefix`. `moved` counts the names that were tried.
///
/// # Errors
/// The errno of renameat(2).
pub fn put_aside(
    (parent, name): (impl AsFd, &CStr),
    (store, prefix): (&OwnedFd, &str),
    moved: &mut u64,
) -> Result<()> {
    loop {
        *moved += 1;
        let aside = format!("{prefix}{}-{moved}", std::process::id());
        match renameat(&parent, name, store, aside.as_str()) {
            // Left by a process that was ended, and had the same id.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            other => return other,
        }
    }
}

/// Empties one directory of the store and removes it; directories in it go up into the store.
fn empty(store: &OwnedFd, name: &CStr, prefix: &str, moved: &mut u64) -> Result<()> {
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
            // Moving a directory writes to it (its `..`).
            opened_up(&directory, &entry)?;
            put_aside((&directory, &entry), (store, prefix), moved)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_ended_process_of_the_same_id_left_is_removed_too() {
        let store = tempfile::tempdir().expect("a directory");
        let path = |name: &str| store.path().join(name);
        let left = format!("gone-{}-1/left", std::process::id());
        for name in [left.as_str(), "gone-other/deep/deeper/deepest", "kept/file"] {
            std::fs::create_dir_all(path(name)).expect("directories");
        }
        let held = OwnedFd::from(std::fs::File::open(store.path()).expect("the directory"));
        put_aside((&held, c"kept"), (&held, "gone-"), &mut 0).expect("a name that is free");
        assert!(path(&left).is_dir() && !path("kept").exists());
        std::fs::create_dir(path("stays")).expect("a directory");
        remove_all(&held, "gone-").expect("their removal");
        let names: Vec<_> = std::fs::read_dir(store.path()).expect("names").flatten().collect();
        assert_eq!(names.iter().map(std::fs::DirEntry::file_name).collect::<Vec<_>>(), ["stays"]);
    }
}
