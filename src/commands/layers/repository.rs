//! Directories that git takes for a repository's by what is in them, whatever their name: bare
//! repositories, those of submodules and linked worktrees, and what `--separate-git-dir` makes.
//!
//! Such a directory is one unit. Git reads its parts together, so that one that is applied, changed
//! or removed in part would be another repository, or a broken one.

use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::files::{c_name, look};
use cell::mediate::names::{self, COMMONDIR, GITDIR, HEAD};

/// Names in a repository's directory in addition to `HEAD` (git's is_git_directory). One of them is
/// enough here, as the others may come later.
const SIGNS: [&str; 4] = [OBJECTS, REFS, COMMONDIR, GITDIR];
const OBJECTS: &str = "objects";
const REFS: &str = "refs";

/// Returns true if a directory has a `HEAD`.
pub(crate) fn has_head(directory: &OwnedFd) -> Result<bool, Errno> {
    has(directory, HEAD)
}

/// Returns true if a name next to a `HEAD` would make the directory a repository's.
pub(crate) fn is_sign(name: &[u8]) -> bool {
    SIGNS.iter().any(|sign| names::may_be(name, sign))
}

/// Returns true if a directory may be that of a repository.
pub(crate) fn is_repository(directory: &OwnedFd) -> Result<bool, Errno> {
    Ok(has_head(directory)? && has_sign(directory)?)
}

/// Returns true if the `HEAD` in a directory of a layer would make it a repository's, with other names
/// there or with those that the host has in the directory.
pub(crate) fn becomes_repository(upper: &OwnedFd, host: &OwnedFd) -> Result<bool, Errno> {
    Ok(has_head(upper)? && (has_sign(upper)? || has_sign(host)?))
}

fn has_sign(directory: &OwnedFd) -> Result<bool, Errno> {
    for sign in SIGNS {
        if has(directory, sign)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn has(directory: &OwnedFd, name: &str) -> Result<bool, Errno> {
    match look(directory, &c_name(name.as_bytes())?) {
        Ok(seen) => Ok(seen.is_some()),
        // A directory that may be listed but not searched.
        Err(Errno::EACCES) => Ok(true),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_repository_is_known_by_its_content() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        for (names, expected) in [
            (&["HEAD", "objects", "refs"][..], true),
            (&["HEAD", "commondir", "gitdir"], true),
            (&["HEAD", "refs"], true),
            (&["objects", "refs", "config"], false),
            (&["HEAD", "README"], false),
        ] {
            let directory = root.path().join(names.concat());
            fs::create_dir(&directory)?;
            for name in names {
                fs::write(directory.join(name), "")?;
            }
            let held = OwnedFd::from(File::open(&directory)?);
            assert_eq!(is_repository(&held), Ok(expected), "{names:?}");
        }
        Ok(())
    }
}
