//! The ids with which the calling thread uses files: root takes those of another user for a while.
//!
//! With a user's ids the kernel grants what that user could do alone, whichever file a path leads to
//! by the time it is opened.

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, getgroups, setfsgid, setfsuid, setgroups};

/// A user's ids for files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileIds {
    pub uid: u32,
    pub gid: u32,
    pub supplementary: Vec<u32>,
}

impl FileIds {
    /// Calls a function with these ids and no capability over files (capabilities(7), "Effect of user
    /// ID changes"). Root must call it, in a process that has no other thread.
    ///
    /// # Errors
    /// EPERM: the ids cannot be taken, and the function was not called; or they cannot be given back.
    pub fn during<T, E: From<Errno>>(&self, act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let taken = TakenIds::take(self)?;
        let done = if is_in_force(self.uid, self.gid) { act() } else { Err(Errno::EPERM.into()) };
        taken.give_back()?;
        done
    }
}

/// The ids that were in force before another user's were taken.
struct TakenIds {
    uid: Uid,
    gid: Gid,
    /// `None` once all are given back.
    groups: Option<Vec<Gid>>,
}

impl TakenIds {
    fn take(ids: &FileIds) -> Result<Self, Errno> {
        let refused = |_| Errno::EPERM;
        let before = getgroups().map_err(refused)?;
        let groups: Vec<Gid> = ids.supplementary.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups).map_err(refused)?;
        let gid = setfsgid(Gid::from_raw(ids.gid));
        let uid = setfsuid(Uid::from_raw(ids.uid));
        Ok(Self { uid, gid, groups: Some(before) })
    }

    fn give_back(mut self) -> Result<(), Errno> {
        self.restore()
    }

    fn restore(&mut self) -> Result<(), Errno> {
        let Some(groups) = self.groups.take() else { return Ok(()) };
        setfsuid(self.uid);
        setfsgid(self.gid);
        setgroups(&groups).map_err(|_| Errno::EPERM)?;
        match is_in_force(self.uid.as_raw(), self.gid.as_raw()) {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }
}

impl Drop for TakenIds {
    /// Gives the ids back after a panic. Nothing may act with a part of them.
    fn drop(&mut self) {
        if self.restore().is_err() {
            std::process::abort();
        }
    }
}

/// Returns true if the calling thread has these ids for files. Each call with an invalid id changes
/// nothing and returns the id in force (setfsuid(2)).
fn is_in_force(uid: u32, gid: u32) -> bool {
    setfsuid(Uid::from_raw(u32::MAX)).as_raw() == uid
        && setfsgid(Gid::from_raw(u32::MAX)).as_raw() == gid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_given_back_after_a_panic() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        // Groups are those of the whole process, with its other tests.
        let groups = getgroups().expect("it has groups");
        let supplementary = groups.iter().map(|group| group.as_raw()).collect();
        let ids = FileIds { uid: 64_321, gid: 64_322, supplementary };
        let result = std::panic::catch_unwind(|| {
            ids.during(|| -> Result<(), Errno> {
                assert!(!is_in_force(64_321, 64_322), "a panic with the user's ids");
                Ok(())
            })
        });
        assert!(result.is_err(), "the ids were taken");
        assert!(is_in_force(0, 0));
        assert_eq!(getgroups(), Ok(groups));
        // The control: without a panic the result is that of the function.
        assert_eq!(ids.during(|| Err::<(), _>(Errno::ENOENT)), Err(Errno::ENOENT));
        assert!(is_in_force(0, 0));
    }
}
