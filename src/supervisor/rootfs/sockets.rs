//! Granted sockets, from the host to the templates.
//!
//! Main has checked each file and holds it open. The mounted file must be the same one: a file that
//! has replaced it since is refused.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::fstat;
use nix::unistd::chown;

use super::detached::{directories, relative, stand_in};
use super::error::{DuringBuild, GrantError, TemplateError};
use super::granted::Kind;
use super::idmapped::{OwnerMaps, SlotIds};
use cell::ids::CellIds;
use cell::slot::Slot;
use cell::sockets::{self, Sockets};
use cell::{c_path, errno_of};
use model::profile::{Profile, SocketName, UnixSockets};
use sys::mount::{Reach, attach, attribute, clone_tree, set_attributes};

/// Mount attributes that prevent every change to the socket; connecting is not a change.
const ATTRIBUTES: u64 =
    attribute::RDONLY | attribute::NOSUID | attribute::NODEV | attribute::NOEXEC;

/// Only directories and empty files, a few per cell.
const OPTIONS: &str = "size=1m,mode=0755";

/// A socket of the host for cells of the profiles that use it.
#[derive(Debug, Clone)]
pub struct Socket {
    pub name: SocketName,
    /// Path with all links resolved.
    pub host: PathBuf,
    /// The checked file: while it is open, no other file can have its inode number.
    pub held: Arc<OwnedFd>,
}

/// A socket for the cells of a key.
#[derive(Debug)]
pub(crate) struct SocketGrant {
    socket: Socket,
    /// For root, one id-mapped mount per slot, made in the host's namespace. Otherwise empty.
    by_slot: Vec<OwnedFd>,
}

/// Prepares the sockets for one key of `profile`; an empty list if it uses no sockets.
pub(crate) fn grants(
    sockets: &[Socket],
    profile: &Profile,
    ids: SlotIds,
) -> Result<Vec<SocketGrant>, GrantError> {
    let taken = sockets.iter().filter(|_| profile.unix_sockets == UnixSockets::Private);
    let mut maps = OwnerMaps::default();
    let grant = |socket: &Socket| {
        let failed = |errno| GrantError::Socket { name: socket.name.clone(), errno };
        let host_ids = ids.host_ids().map_err(failed)?;
        let by_slot = host_ids.iter().map(|host_id| mapped(socket, *host_id, &mut maps));
        let by_slot = by_slot.collect::<Result<Vec<OwnedFd>, Errno>>().map_err(failed)?;
        Ok(SocketGrant { socket: socket.clone(), by_slot })
    };
    taken.map(grant).collect()
}

/// Makes a mount of a socket whose owner is `host_id`.
fn mapped(socket: &Socket, host_id: u32, maps: &mut OwnerMaps) -> Result<OwnedFd, Errno> {
    let tree = detached(socket)?;
    let owner = fstat(&tree)?;
    maps.show_as(&tree, (owner.st_uid, owner.st_gid), host_id, 0)?;
    set_attributes(&tree, ATTRIBUTES, Reach::One)?;
    Ok(tree)
}

/// Makes a detached mount, and checks that it is the file that is held.
fn detached(socket: &Socket) -> Result<OwnedFd, Errno> {
    let tree = clone_tree(&c_path(&socket.host)?)?;
    let identity = |file: &OwnedFd| fstat(file).map(|status| (status.st_dev, status.st_ino));
    if identity(&tree)? == identity(&socket.held)? { Ok(tree) } else { Err(Errno::ESTALE) }
}

/// Takes the mounts of the sockets if every cell has the operator's id, while the host's mounts are
/// visible.
pub(crate) fn take(grants: &[SocketGrant]) -> Result<Vec<OwnedFd>, TemplateError> {
    let shared = grants.iter().filter(|grant| grant.by_slot.is_empty());
    let take = |grant: &SocketGrant| {
        let here = |errno| TemplateError::Path { path: cell_path(&grant.socket.name), errno };
        let tree = detached(&grant.socket).map_err(here)?;
        set_attributes(&tree, ATTRIBUTES, Reach::One).map_err(here)?;
        Ok(tree)
    };
    shared.map(take).collect()
}

/// Makes the store, which contains a directory of sockets for each id.
///
/// The store is a separate filesystem, so that init can distinguish granted sockets from those in a
/// granted directory (`cell::mediate::sockets`).
pub(crate) fn place(
    grants: &[SocketGrant],
    taken: Vec<OwnedFd>,
    ids: CellIds,
) -> Result<Sockets, TemplateError> {
    if grants.is_empty() {
        return Ok(Sockets::None);
    }
    let store = relative(Path::new(sockets::STORE));
    directories(&store).during("making the store of sockets")?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("tmpfs"), &store, Some("tmpfs"), flags, Some(OPTIONS))
        .during("mounting the store of sockets")?;
    let placed = fill(grants, taken, ids)?;
    let flags = flags | MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, &store, None::<&str>, flags, None::<&str>)
        .during("making the store of sockets read-only")?;
    Ok(placed)
}

fn fill(
    grants: &[SocketGrant],
    taken: Vec<OwnedFd>,
    ids: CellIds,
) -> Result<Sockets, TemplateError> {
    let Some(first) = grants.first() else { return Ok(Sockets::None) };
    if first.by_slot.is_empty() {
        directory(Sockets::Shared, Slot::new(0), 0).during("making the directory of sockets")?;
        for (grant, tree) in grants.iter().zip(taken) {
            attached(tree, Sockets::Shared, Slot::new(0), &grant.socket.name)?;
        }
        return Ok(Sockets::Shared);
    }
    for slot in Slot::all().take(first.by_slot.len()) {
        let made = ids.of_slot(slot).and_then(|owner| directory(Sockets::BySlot, slot, owner));
        made.during("making the directory of sockets")?;
    }
    for grant in grants {
        for (tree, slot) in grant.by_slot.iter().zip(Slot::all()) {
            attached(tree, Sockets::BySlot, slot, &grant.socket.name)?;
        }
    }
    Ok(Sockets::BySlot)
}

/// Makes a directory that only the cell in `slot` can enter, whose id here is `owner`.
fn directory(which: Sockets, slot: Slot, owner: u32) -> Result<(), Errno> {
    let here = here(which, slot)?;
    directories(&here).map_err(|error| errno_of(&error))?;
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(&here, mode).map_err(|error| errno_of(&error))?;
    chown(&here, Some(owner.into()), Some(owner.into()))
}

/// Mounts a socket in the directory of `slot`.
fn attached(
    tree: impl AsFd,
    which: Sockets,
    slot: Slot,
    name: &SocketName,
) -> Result<(), TemplateError> {
    let failed = |errno| TemplateError::Path { path: cell_path(name), errno };
    let here = here(which, slot).map_err(failed)?.join(name.file());
    stand_in(&here, Kind::File).map_err(|error| failed(errno_of(&error)))?;
    attach(tree, &c_path(&here).map_err(failed)?).map_err(failed)
}

/// Returns the directory of `slot`, relative to the stage.
fn here(which: Sockets, slot: Slot) -> Result<PathBuf, Errno> {
    let mut buffer = [0; 64];
    let path = which.path(&mut buffer, slot)?.ok_or(Errno::EINVAL)?;
    Ok(relative(Path::new(path.to_str().map_err(|_| Errno::EINVAL)?)))
}

/// Returns the path in the cell, for reports to a client, which must not learn the host's.
fn cell_path(name: &SocketName) -> PathBuf {
    Path::new(model::profile::SOCKETS_DIRECTORY).join(name.file())
}
