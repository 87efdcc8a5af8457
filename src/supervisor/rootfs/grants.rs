//! Prepares the granted directories and sockets for the cells of a key.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use nix::sys::stat::fstat;

use super::error::GrantError;
use super::granted::{Granted, Kind, attributes};
use super::host_mounts;
use super::idmapped::{OwnerMaps, SlotIds};
use super::protect::{self, GuardedPaths};
use super::slot_mounts::SlotMounts;
use super::sockets::SocketGrant;
use model::job::{Access, Workspace};
use model::receipt::Tier;

/// The parts of the host that the cells of a key get in addition to those of their profile.
#[derive(Debug)]
pub(crate) struct KeyGrant {
    pub workspace: Workspace,
    /// Empty unless the workspace is granted.
    pub directories: Vec<PathGrant>,
    pub sockets: Vec<SocketGrant>,
    /// Id of all cells in the supervisor's map, if they share a layer and would otherwise have one
    /// id each.
    pub layer_id: Option<u32>,
}

impl KeyGrant {
    /// Returns the path in the cell to which `/workspace` is a link; `None` if it is a directory.
    pub(crate) fn workspace_link(&self) -> Option<&Path> {
        let linked = self.directories.iter().find(|directory| directory.granted.is_linked);
        linked.map(|directory| directory.granted.cell.as_path())
    }
}

/// Returns the mounts by slot of all grants, in order.
pub(crate) fn slot_mounts(all: &[Vec<KeyGrant>]) -> impl Iterator<Item = &SlotMounts> {
    let directories = all.iter().flatten().flat_map(|grant| &grant.directories);
    directories.map(|directory| &directory.by_slot)
}

/// Returns the mounts by slot of all grants, in order, to be completed.
pub(crate) fn slot_mounts_mut(all: &mut [Vec<KeyGrant>]) -> impl Iterator<Item = &mut SlotMounts> {
    let directories = all.iter_mut().flatten().flat_map(|grant| &mut grant.directories);
    directories.map(|directory| &mut directory.by_slot)
}

/// A granted directory or file, with the mounts that `main` prepared for it.
#[derive(Debug)]
pub(crate) struct PathGrant {
    pub granted: Granted,
    pub kind: Kind,
    /// Files in it that the host obeys, as `main` found them.
    pub guarded: Rc<GuardedPaths>,
    /// Id-mapped mounts for root; otherwise empty.
    pub by_slot: SlotMounts,
    /// True if cells see an overlay of it: with `run` as root. For a server with 250 slots as many
    /// overlays would add 50 ms to the start and 80 ms to a call. An overlay does not show mounts
    /// below the directory.
    pub is_layer: bool,
    /// The mounted overlay of a layer, once the supervisor has made it; for root it is in `by_slot`.
    pub overlay: Option<OwnedFd>,
}

/// Prepares the directories of one granted set. For root each gets an id-mapped mount per slot, so
/// that the cell's host id owns the files of the directory's owner (mount_setattr(2), "ID-mapped
/// mounts"). A grant inside another one is mounted after it, as it would be hidden otherwise. The
/// directories on the path to it are pinned: if a cell could rename one, the next cell would lack
/// the mount point.
pub(crate) fn grants(
    granted: &[Granted],
    guarded: &[Rc<GuardedPaths>],
    ids: SlotIds,
) -> Result<Vec<PathGrant>, GrantError> {
    let mut all: Vec<(&Granted, &Rc<GuardedPaths>)> = granted.iter().zip(guarded).collect();
    all.sort_by_key(|(granted, _)| granted.cell.components().count());
    for (inner, _) in &all {
        let mut around = all.iter().rev().filter_map(|(outer, _)| {
            let path = below(&inner.cell, &outer.cell)?;
            (!path.as_os_str().is_empty()).then_some((outer, path))
        });
        if let Some((nearest, path)) = around.next() {
            check_path(&nearest.host, path, ids)?;
        }
    }
    let mut maps = OwnerMaps::default();
    let with_pins = |entry: (&Granted, &Rc<GuardedPaths>)| {
        let (outer, guarded) = entry;
        let within = granted.iter().filter_map(|inner| below(&inner.cell, &outer.cell));
        let guarded = guarded.with_pins(within.filter(|path| !path.as_os_str().is_empty()));
        grant(outer, &Rc::new(guarded), ids, &mut maps)
    };
    all.into_iter().map(with_pins).collect()
}

/// Returns the rest of a path that lies at or below another one.
fn below<'p>(path: &'p Path, directory: &Path) -> Option<&'p Path> {
    // Bytes first: taking paths apart is slow, and tool chains make some hundreds of pairs.
    let is_prefix = path.as_os_str().as_bytes().starts_with(directory.as_os_str().as_bytes());
    is_prefix.then(|| path.strip_prefix(directory).ok())?
}

/// Checks the directories on the path to a grant inside another one. A cell could use a link to
/// redirect the grant. For an ordinary user missing directories are created; root creates nothing
/// in other users' directories.
fn check_path(outer: &Path, inner: &Path, ids: SlotIds) -> Result<(), GrantError> {
    let mut path = outer.to_owned();
    for name in inner.components() {
        path.push(name);
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => return Err(GrantError::Link { path }),
            Err(error) if error.kind() == ErrorKind::NotFound && ids != SlotIds::Shared => {
                return Err(GrantError::NoPlace { path: outer.join(inner) });
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Finds the files that the host obeys in the directories of each granted set, once for all
/// profiles and cells. Not needed in the lower tier, whose cells cannot write to grants.
pub(crate) fn find_guarded(
    sets: &[Vec<Granted>],
    tier: Tier,
) -> Result<Vec<Vec<Rc<GuardedPaths>>>, GrantError> {
    let each = |granted: &Vec<Granted>| match tier {
        Tier::Full => Ok(protect::scan(granted)?.into_iter().map(Rc::new).collect()),
        Tier::Bare => Ok(vec![Rc::default(); granted.len()]),
    };
    sets.iter().map(each).collect()
}

fn grant(
    granted: &Granted,
    guarded: &Rc<GuardedPaths>,
    ids: SlotIds,
    maps: &mut OwnerMaps,
) -> Result<PathGrant, GrantError> {
    let failed = |errno| GrantError::held(&granted.host, errno);
    let held = granted.hold().map_err(failed)?;
    let status = fstat(&held).map_err(failed)?;
    let kind = match status.st_mode & libc::S_IFMT {
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFREG => Kind::File,
        // A socket would connect to its service on the host.
        _ => return Err(GrantError::Special { path: granted.host.clone() }),
    };
    let owner = (status.st_uid, status.st_gid);
    // The mounts of a layer are made by `layers`.
    let ids = if granted.access == Access::Layer { SlotIds::Shared } else { ids };
    let by_slot = ids
        .host_ids()
        .and_then(|ids| SlotMounts::begin(held, owner, attributes(granted.access), ids, maps))
        .map_err(|errno| GrantError::IdMapped { path: granted.host.clone(), errno })?;
    let is_layer = granted.access == Access::ReadOnly
        && kind == Kind::Directory
        && by_slot.count() == 1
        && !host_mounts::are_below(&granted.host);
    Ok(PathGrant {
        granted: granted.clone(),
        kind,
        guarded: Rc::clone(guarded),
        by_slot,
        is_layer,
        overlay: None,
    })
}
