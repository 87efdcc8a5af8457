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
        let refused = |_| Errno::EPERM;
        let before = getgroups().map_err(refused)?;
        let groups: Vec<Gid> = self.supplementary.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups).map_err(refused)?;
        let gid = setfsgid(Gid::from_raw(self.gid));
        let uid = setfsuid(Uid::from_raw(self.uid));
        let done = if is_in_force(self.uid, self.gid) { act() } else { Err(Errno::EPERM.into()) };
        setfsuid(uid);
        setfsgid(gid);
        setgroups(&before).map_err(refused)?;
        if !is_in_force(uid.as_raw(), gid.as_raw()) {
            return Err(Errno::EPERM.into());
        }
        done
    }
}

/// Returns true if the calling thread has these ids for files. Each call with an invalid id changes
/// nothing and returns the id in force (setfsuid(2)).
fn is_in_force(uid: u32, gid: u32) -> bool {
    setfsuid(Uid::from_raw(u32::MAX)).as_raw() == uid
        && setfsgid(Gid::from_raw(u32::MAX)).as_raw() == gid
}
