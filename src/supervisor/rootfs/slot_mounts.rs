//! The id-mapped mounts of a grant, one for each slot, for cells whose host ids differ.
//!
//! `main` makes that of the first slot, which shows whether the grant's filesystem permits such mounts. A child of it makes
//! the others and sends them to the supervisor, so that a client need not wait for them: with tool chains they are some
//! hundreds. All of them show the directory that `main` holds open, whatever replaces it at its path.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;

use super::idmapped::OwnerMaps;
use cell::report::raw;
use sys::mount::clone_held;
use sys::socket::{self, MAX_FDS, PacketWait};

/// Text of a packet with mounts. A packet without any has the number of the error for which there are no more.
const MOUNTS: &[u8] = b"mounts";

/// The mounts of a grant, in the order of slots. Empty if all cells have the operator's id.
#[derive(Debug, Default)]
pub(crate) struct SlotMounts {
    made: Vec<OwnedFd>,
    later: Option<LaterMounts>,
}

/// Mounts that are still to be made.
#[derive(Debug)]
struct LaterMounts {
    /// The granted directory or file.
    source: OwnedFd,
    owner: (u32, u32),
    attributes: u64,
    host_ids: Vec<u32>,
}

impl SlotMounts {
    /// Makes the mount for the first of these host ids, and keeps what the others need.
    ///
    /// # Errors
    /// EPERM: the caller has no rights over this filesystem. EINVAL: the filesystem does not support id-mapped mounts.
    pub(crate) fn begin(
        source: OwnedFd,
        owner: (u32, u32),
        attributes: u64,
        mut host_ids: Vec<u32>,
        maps: &mut OwnerMaps,
    ) -> Result<Self, Errno> {
        if host_ids.is_empty() {
            return Ok(Self::default());
        }
        let first = host_ids.remove(0);
        let later = LaterMounts { source, owner, attributes, host_ids };
        let made = vec![later.mount(first, maps)?];
        Ok(Self { made, later: Some(later).filter(|later| !later.host_ids.is_empty()) })
    }

    /// Makes the list of the only mount of cells that share one host id.
    pub(crate) fn one(mount: OwnedFd) -> Self {
        Self { made: vec![mount], later: None }
    }

    /// Returns the mounts that were made.
    pub(crate) fn made(&self) -> &[OwnedFd] {
        &self.made
    }

    /// Returns the number of mounts, including those that are still to be made.
    pub(crate) fn count(&self) -> usize {
        self.made.len() + self.later.as_ref().map_or(0, |later| later.host_ids.len())
    }

    /// Returns true if some are still to be made.
    pub(crate) fn are_due(&self) -> bool {
        self.later.is_some()
    }

    /// Takes the mounts that were still to be made, and closes the grant itself.
    fn receive(&mut self, from: &OwnedFd) -> Result<(), Errno> {
        let count = self.count();
        self.later = None;
        while self.made.len() < count {
            let mut text = [0; 8];
            let received = socket::receive(from, &mut text, PacketWait::Yes)?;
            let text = text.get(..received.bytes).unwrap_or_default();
            if text != MOUNTS || received.cut {
                return Err(failure(text));
            }
            self.made.extend(received.fds.into_iter().flatten());
        }
        if self.made.len() == count { Ok(()) } else { Err(Errno::EBADMSG) }
    }
}

impl LaterMounts {
    fn mount(&self, host_id: u32, maps: &mut OwnerMaps) -> Result<OwnedFd, Errno> {
        let tree = clone_held(&self.source)?;
        maps.show_as(&tree, self.owner, host_id, self.attributes)?;
        Ok(tree)
    }

    fn send(&self, to: &OwnedFd, maps: &mut OwnerMaps) -> Result<(), Errno> {
        maps.prepare(self.owner, &self.host_ids)?;
        for ids in self.host_ids.chunks(MAX_FDS) {
            let mounts = ids.iter().map(|id| self.mount(*id, maps));
            let mounts = mounts.collect::<Result<Vec<OwnedFd>, Errno>>()?;
            let fds: Vec<BorrowedFd> = mounts.iter().map(AsFd::as_fd).collect();
            socket::send(to, MOUNTS, &fds)?;
        }
        Ok(())
    }
}

/// Returns the error that a packet without mounts reports; EPIPE if the other end was closed.
fn failure(text: &[u8]) -> Errno {
    match text.try_into() {
        Ok(number) => Errno::from_raw(i32::from_ne_bytes(number)),
        Err(_) if text.is_empty() => Errno::EPIPE,
        Err(_) => Errno::EBADMSG,
    }
}

/// Makes the mounts that are still to be made, and sends them in the order of the grants. If that fails, sends the reason.
///
/// # Errors
/// The errno of the step, after it was sent, or of sendmsg(2): the supervisor has ended.
pub(crate) fn send<'m>(
    mut grants: impl Iterator<Item = &'m SlotMounts>,
    to: &OwnedFd,
) -> Result<(), Errno> {
    let mut maps = OwnerMaps::default();
    let sent = grants.try_for_each(|mounts| match &mounts.later {
        Some(later) => later.send(to, &mut maps),
        None => Ok(()),
    });
    sent.or_else(|errno| {
        socket::send(to, &raw(errno).to_ne_bytes(), &[])?;
        Err(errno)
    })
}

/// Receives the mounts that [`send`] makes.
///
/// # Errors
/// The reason why they could not be made; EPIPE: the process that makes them has ended.
pub(crate) fn receive<'m>(
    mut grants: impl Iterator<Item = &'m mut SlotMounts>,
    from: &OwnedFd,
) -> Result<(), Errno> {
    grants.try_for_each(|mounts| mounts.receive(from))
}
