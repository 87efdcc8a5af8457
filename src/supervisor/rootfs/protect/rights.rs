//! The rights with which a scan looks up what files of other users name.
//!
//! A configuration, a `.git` file or a link can name any path of the host. If root looked up with its
//! own rights what another user wrote, that user would learn from what is guarded what only root can
//! read. So root takes the ids of the author for it. Other users have their own rights for all files.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::sys::prctl;

use cell::file_ids::FileIds;
use model::accounts;
use sys::process::{self, Dumpable};

/// Group of a user without an account.
const NO_GROUP: u32 = 65534;
/// Owner of files whose owner has no id in this user namespace (user_namespaces(7)); also that of a
/// user, `nobody`, where the namespace has the id.
const OVERFLOW: u32 = 65534;

/// Whose rights a lookup has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rights {
    /// Those of this process.
    #[default]
    Own,
    /// Those of this user, which root takes.
    Of(u32),
}

impl Rights {
    /// Returns the rights for what is named by something that has these and is named by `other`.
    pub(crate) fn at_most(self, other: Self) -> Self {
        match self {
            Self::Own => other,
            // That of another user gives nothing back.
            Self::Of(_) => self,
        }
    }
}

/// The users whose files were found.
#[derive(Debug, Default)]
pub(crate) struct Users {
    user: OnceCell<u32>,
    /// True if this user namespace has the overflow id, or if its ids are not known.
    has_overflow: OnceCell<bool>,
    known: RefCell<BTreeMap<u32, FileIds>>,
    /// True if a lookup with another user's rights was refused.
    is_refused: Cell<bool>,
    /// Those of the lookup that is being made.
    acting: Cell<Rights>,
}

impl Users {
    /// Returns the user of this process.
    pub(crate) fn user(&self) -> u32 {
        *self.user.get_or_init(|| nix::unistd::geteuid().as_raw())
    }

    /// Returns the rights for what a file of this owner names, which was itself found with `rights`.
    pub(crate) fn rights_of(&self, rights: Rights, owner: u32) -> Rights {
        match self.user() == 0 && owner != 0 && !self.is_unmapped(owner) {
            true => rights.at_most(Rights::Of(owner)),
            false => rights,
        }
    }

    /// Returns true if an owner has no id in this user namespace. Its root has no more rights to the
    /// files of such a user, perhaps the host's root, than any other user has.
    ///
    /// Where the namespace has the overflow id, an owner with it may be either: it counts as the user,
    /// so that root takes fewer rights. It also does where the ids are not known. Rights that cannot
    /// be taken are refused, and that is reported.
    fn is_unmapped(&self, owner: u32) -> bool {
        let read = || {
            let map = std::fs::read_to_string("/proc/self/uid_map");
            map.map_or(true, |map| has_overflow(&map))
        };
        owner == OVERFLOW && !*self.has_overflow.get_or_init(read)
    }

    /// Makes a lookup with these rights.
    ///
    /// # Errors
    /// That of the lookup. EPERM: the rights cannot be taken.
    pub(crate) fn with<T>(
        &self,
        rights: Rights,
        look_up: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Rights::Of(uid) = rights else { return look_up() };
        let before = self.acting.replace(rights);
        let done = self.as_user(uid, look_up);
        self.acting.set(before);
        if matches!(done, Err(Errno::EACCES | Errno::EPERM)) {
            self.is_refused.set(true);
        }
        done
    }

    /// Returns the rights of the lookup that is being made.
    pub(crate) fn acting(&self) -> Rights {
        self.acting.get()
    }

    /// Returns true if a lookup was refused since the last call: root could have followed the path.
    pub(crate) fn take_refused(&self) -> bool {
        self.is_refused.take()
    }

    fn as_user<T>(&self, uid: u32, look_up: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let mut known = self.known.borrow_mut();
        if known.is_empty() && !process::ids_limit_capabilities()? {
            return Err(Errno::EPERM);
        }
        let ids = known.entry(uid).or_insert_with(|| FileIds {
            uid,
            gid: accounts::primary_group(uid).unwrap_or(NO_GROUP),
            supplementary: accounts::supplementary_groups(uid),
        });
        // The kernel resets both when the ids change.
        let is_dumpable = prctl::get_dumpable()?;
        let death_signal = prctl::get_pdeathsig()?;
        let done = ids.during(look_up);
        let dumpable = if is_dumpable { process::set_dumpable(Dumpable::Yes) } else { Ok(()) };
        prctl::set_pdeathsig(death_signal)?;
        dumpable?;
        done
    }
}

/// Returns true if a map of ids has the overflow id (user_namespaces(7)).
fn has_overflow(map: &str) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let first = numbers.next().and_then(Result::ok);
        let length = numbers.nth(1).and_then(Result::ok);
        let offset = first.and_then(|first| OVERFLOW.checked_sub(first));
        offset.zip(length).is_some_and(|(offset, length)| offset < length)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_with_the_overflow_id_is_a_user_where_the_namespace_has_that_id() {
        let rights_in = |map: &str| {
            let users = Users { user: OnceCell::from(0), ..Users::default() };
            assert_eq!(users.has_overflow.set(has_overflow(map)), Ok(()));
            users.rights_of(Rights::Own, OVERFLOW)
        };
        for map in ["0 1000 1", "0 100000 65534", "65535 0 10", ""] {
            assert_eq!(rights_in(map), Rights::Own, "{map}");
        }
        for map in ["0 0 4294967295", "0 100000 65536", "0 1000 1\n1 100000 65536"] {
            assert_eq!(rights_in(map), Rights::Of(OVERFLOW), "{map}");
        }
    }

    #[test]
    fn rights_are_never_given_back() {
        let user = Rights::Of(64_321);
        assert_eq!(Rights::Own.at_most(user), user);
        assert_eq!(user.at_most(Rights::Own), user);
        assert_eq!(user.at_most(Rights::Of(64_322)), user);
        assert_eq!(Rights::Own.at_most(Rights::Own), Rights::Own);
        let users = Users::default();
        assert_eq!(users.rights_of(user, 0), user);
        assert_eq!(users.rights_of(Rights::Own, 0), Rights::Own);
        let of_others = if users.user() == 0 { user } else { Rights::Own };
        assert_eq!(users.rights_of(Rights::Own, 64_321), of_others);
    }
}
