//! The owner of a directory of the host: a review by root acts there with the owner's rights.
//!
//! The owner can replace every name in the directory at any time. If root's rights were in force
//! then, a name that was replaced in time could lead root to a file that the owner may not touch.
//! With the owner's ids the kernel grants what the owner could do alone.

use nix::errno::Errno;
use nix::sys::stat::FileStat;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use cell::file_ids::FileIds;
use model::accounts;

/// Group of an owner without an account in a directory of the group root.
const NO_GROUP: u32 = 65534;

/// Ids of a directory's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Owner {
    uid: u32,
    /// The owner's primary group. Without an account, the directory's group, unless it is root's.
    gid: u32,
}

impl Owner {
    /// Returns the owner of a file.
    pub(crate) fn of(status: &FileStat) -> Self {
        let gid = match status.st_uid {
            0 => 0,
            uid => accounts::primary_group(uid).unwrap_or_else(|| group_of(status)),
        };
        Self { uid: status.st_uid, gid }
    }

    pub(crate) fn has(self, status: &FileStat) -> bool {
        status.st_uid == self.uid
    }

    /// Returns the ids for a program that root starts in the owner's place; `None` if it has this
    /// process's.
    pub(crate) fn ids(self) -> Option<(u32, u32)> {
        (geteuid().is_root() && self.uid != 0).then_some((self.uid, self.gid))
    }

    /// Returns the user that owns what is made in [`Self::during`].
    pub(crate) fn maker(self) -> u32 {
        if geteuid().is_root() { self.uid } else { geteuid().as_raw() }
    }

    /// Calls a function that acts on files of the directory. If root calls it, the calling thread has
    /// the owner's ids for files and no capability over files meanwhile (capabilities(7), "Effect of
    /// user ID changes"); the process must have no other thread. Other users keep their rights.
    ///
    /// # Errors
    /// EPERM: the ids cannot be taken, and the function was not called; or they cannot be given back.
    pub(crate) fn during<T, E: From<Errno>>(
        self,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if !geteuid().is_root() || self.uid == 0 {
            return act();
        }
        FileIds { uid: self.uid, gid: self.gid, supplementary: Vec::new() }.during(act)
    }
}

/// Returns the group of a directory, for a process that acts in its owner's place: never root's.
pub(crate) fn group_of(status: &FileStat) -> u32 {
    if status.st_gid == 0 { NO_GROUP } else { status.st_gid }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn roots_acts_have_the_rights_of_the_owner_alone() -> std::io::Result<()> {
        if !geteuid().is_root() {
            return Ok(());
        }
        let held = tempfile::tempdir()?;
        std::fs::set_permissions(held.path(), PermissionsExt::from_mode(0o777))?;
        let closed = held.path().join("closed");
        std::fs::write(&closed, "root's\n")?;
        std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o600))?;
        let owner = Owner { uid: 12345, gid: 23456 };
        let made = held.path().join("made");
        let (read, given) = owner.during(|| {
            std::fs::write(&made, "").map_err(|error| cell::errno_of(&error))?;
            let read = std::fs::read(&closed).map_err(|error| cell::errno_of(&error));
            let given = nix::unistd::chown(&made, Some(nix::unistd::Uid::from_raw(0)), None);
            Ok::<_, Errno>((read, given))
        })?;
        assert_eq!(read, Err(Errno::EACCES));
        assert_eq!(given, Err(Errno::EPERM));
        let status = made.metadata()?;
        assert_eq!((status.uid(), status.gid()), (12345, 23456));
        // Root has its rights again.
        assert_eq!(std::fs::read(&closed)?, b"root's\n");
        Ok(())
    }
}
