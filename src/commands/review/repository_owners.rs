//! Who can change a repository of the host, or put another one in its place.
//!
//! Git does not check the owner of a repository that is named with `--git-dir`. What it does there is
//! decided by the configuration in it, so that a third user must have no part in either.

use std::fs::Metadata;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, fstat};

use crate::commands::format::plain;
use crate::commands::layers::rights::ACCESS;
use model::accounts;
use sys::xattr;

/// Configuration in a repository's directory.
const CONFIG: &str = "config";
/// Names the directory whose configuration git reads instead, in a linked worktree's part.
const COMMONDIR: &str = "commondir";

/// Checks that no third user has chosen the configuration of a repository, or can put another one in
/// its place. `held` is its directory, which was at `path`.
///
/// # Errors
/// The reason, with the path.
pub(super) fn check(path: &Path, held: &OwnedFd) -> Result<(), String> {
    let unseen = |_| "its repository cannot be looked at".to_owned();
    let status = fstat(held).map_err(|errno| unseen(errno.into()))?;
    let user = nix::unistd::geteuid();
    if !user.is_root() && status.st_uid != user.as_raw() {
        return Err("the repository belongs to another user".to_owned());
    }
    let owner = status.st_uid;
    for directory in path.ancestors() {
        let known = std::fs::symlink_metadata(directory).map_err(unseen)?;
        // In a sticky directory others cannot rename what is not theirs, but they can make names.
        let is_sticky = directory != path && known.mode() & libc::S_ISVTX != 0;
        let is_own = known.uid() == 0 || known.uid() == owner;
        let is_safe = (is_sticky && is_own) || is_trusted(directory, &known, owner);
        if !known.is_dir() || !is_safe {
            return Err(format!(
                "a directory around the repository is another user's, or others may write to it: {}",
                plain(&directory.display().to_string())
            ));
        }
    }
    let now = std::fs::symlink_metadata(path).map_err(unseen)?;
    if (now.dev(), now.ino()) != (status.st_dev, status.st_ino) {
        return Err("the repository was replaced meanwhile".to_owned());
    }
    // The directory is that of a main repository: a linked worktree's is not one called `.git`.
    match std::fs::symlink_metadata(path.join(COMMONDIR)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Ok(_) => {
            return Err(format!(
                "the repository takes its configuration from elsewhere: it has a `{COMMONDIR}`"
            ));
        }
        Err(error) => return Err(unseen(error)),
    }
    let config = path.join(CONFIG);
    match std::fs::symlink_metadata(&config) {
        Ok(known) if known.is_file() && is_trusted(&config, &known, owner) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Ok(_) => Err("the repository's configuration is another user's, or others may write to it"
            .to_owned()),
        Err(error) => Err(unseen(error)),
    }
}

/// Returns true if only root and this owner can change a file, or names in a directory that are theirs.
fn is_trusted(path: &Path, known: &Metadata, owner: u32) -> bool {
    let is_own = |uid: u32| uid == 0 || uid == owner;
    if !is_own(known.uid()) {
        return false;
    }
    if known.mode() & libc::S_IWOTH != 0 {
        return false;
    }
    // With an access list these bits are the most that it grants to anyone.
    known.mode() & libc::S_IWGRP == 0
        || (accounts::members(known.gid()).is_some_and(|all| all.into_iter().all(is_own))
            && !has_list(path))
}

/// Returns true unless a file is known to have no access list.
fn has_list(path: &Path) -> bool {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let Ok(file) = open(path, flags, Mode::empty()) else { return true };
    xattr::get(&file, ACCESS, &mut [0; 256]) != Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn a_repository_with_its_configuration_elsewhere_is_refused() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let git = root.path().join(".git");
        fs::create_dir(&git)?;
        let held = OwnedFd::from(File::open(&git)?);
        assert_eq!(check(&git, &held), Ok(()));
        fs::write(git.join(COMMONDIR), "../elsewhere\n")?;
        let refused = check(&git, &held);
        assert!(refused.as_ref().is_err_and(|why| why.contains("commondir")), "{refused:?}");
        Ok(())
    }

    #[test]
    fn a_repository_that_others_can_replace_or_configure_is_refused() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let around = root.path().join("a");
        let git = around.join(".git");
        fs::create_dir_all(&git)?;
        let config = git.join(CONFIG);
        fs::write(&config, "")?;
        let held = OwnedFd::from(File::open(&git)?);
        let checked = |path: &Path, mode: u32| {
            let before = fs::metadata(path)?.permissions();
            fs::set_permissions(path, Permissions::from_mode(mode))?;
            let checked = check(&git, &held);
            fs::set_permissions(path, before)?;
            Ok::<_, std::io::Error>(checked)
        };
        assert_eq!(checked(&around, 0o755)?, Ok(()));
        assert_eq!(checked(&around, 0o1777)?, Ok(()));
        let is_around = |result: &Result<(), String>| {
            result.as_ref().is_err_and(|why| why.starts_with("a directory around the repository"))
        };
        let open = checked(&around, 0o777)?;
        assert!(is_around(&open), "{open:?}");
        // Anyone could make a `commondir` in it.
        let open = checked(&git, 0o1777)?;
        assert!(is_around(&open), "{open:?}");
        assert_eq!(checked(&git, 0o1755)?, Ok(()));
        let config_of_others =
            "the repository's configuration is another user's, or others may write to it";
        assert_eq!(checked(&config, 0o646)?, Err(config_of_others.to_owned()));
        if nix::unistd::geteuid().is_root() {
            // A group of which nothing is known, and root's.
            chown(&around, None, Some(54_321))?;
            let open = checked(&around, 0o775)?;
            assert!(is_around(&open), "{open:?}");
            assert_eq!(checked(&around, 0o755)?, Ok(()));
            chown(&around, Some(54_321), None)?;
            let others = checked(&around, 0o755)?;
            assert!(is_around(&others), "{others:?}");
            chown(&around, Some(0), Some(0))?;
        }
        // Another repository at the path.
        fs::rename(&git, around.join("old"))?;
        fs::create_dir(&git)?;
        assert_eq!(check(&git, &held), Err("the repository was replaced meanwhile".to_owned()));
        Ok(())
    }
}
