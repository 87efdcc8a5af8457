//! Granted directories and sockets as the cells of one key have them.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::stat::fstat;

use super::error::GrantError;
use super::granted::{Granted, Kind, attributes};
use super::idmapped::{SlotIds, show_as};
use super::protect::{self, GuardedPaths};
use super::sockets::SocketGrant;
use model::job::{Access, Workspace};
use model::receipt::Tier;
use sys::mount::{Reach, clone_held, set_attributes};

/// The parts of the host that the cells of one key have besides what their profile lists.
#[derive(Debug)]
pub(crate) struct KeyGrant {
    pub workspace: Workspace,
    /// Empty unless the workspace is a granted one.
    pub directories: Vec<PathGrant>,
    pub sockets: Vec<SocketGrant>,
}

/// A granted directory or file, with what `main` prepared for it.
#[derive(Debug)]
pub(crate) struct PathGrant {
    pub granted: Granted,
    pub kind: Kind,
    /// Files in it that the host obeys, as `main` found them.
    pub found: Rc<GuardedPaths>,
    /// As root: one idmapped mount for each slot, made in the host's namespace. Else empty.
    pub by_slot: Vec<OwnedFd>,
}

/// Prepares the directories of one granted set: as root each gets one idmapped mount for every slot, so that the
/// cell's own host id owns what the directory's owner owns (mount_setattr(2), "ID-mapped mounts"). One that lies within
/// another in the cell comes after it, which would cover it otherwise, and the directories on the way to it stay where
/// they are: a cell that renamed one would leave the next without a place for the grant.
pub(crate) fn grants(
    granted: &[Granted],
    looked: &[Rc<GuardedPaths>],
    ids: SlotIds,
) -> Result<Vec<PathGrant>, GrantError> {
    let mut all: Vec<(&Granted, &Rc<GuardedPaths>)> = granted.iter().zip(looked).collect();
    all.sort_by_key(|(granted, _)| granted.cell.components().count());
    for (inner, _) in &all {
        let others = all.iter().rev().filter(|(outer, _)| outer.cell != inner.cell);
        let mut around = others
            .filter_map(|(outer, _)| Some((outer, inner.cell.strip_prefix(&outer.cell).ok()?)));
        if let Some((nearest, place)) = around.next() {
            check_way(&nearest.host, place, ids)?;
        }
    }
    let with_pins = |(outer, found): (&Granted, &Rc<GuardedPaths>)| {
        let within = granted.iter().filter_map(|inner| inner.cell.strip_prefix(&outer.cell).ok());
        let found = found.with_places(within.filter(|place| !place.as_os_str().is_empty()));
        grant(outer, &Rc::new(found), ids)
    };
    all.into_iter().map(with_pins).collect()
}

/// Checks the names on the way to a grant within another. A cell could lead a link elsewhere, and the grant with it. What
/// is missing is made for an ordinary user; root's hand makes nothing in a directory of somebody's.
fn check_way(outer: &Path, place: &Path, ids: SlotIds) -> Result<(), GrantError> {
    let mut path = outer.to_owned();
    for name in place.components() {
        path.push(name);
        match path.symlink_metadata() {
            Ok(found) if found.is_symlink() => return Err(GrantError::Link { path }),
            Err(error) if error.kind() == ErrorKind::NotFound && ids != SlotIds::Shared => {
                return Err(GrantError::NoPlace { path: outer.join(place) });
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Looks at what the host obeys in every directory of each granted set, once for all profiles and
/// cells. Cells of the lower tier write to none.
pub(crate) fn look(
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
    found: &Rc<GuardedPaths>,
    ids: SlotIds,
) -> Result<PathGrant, GrantError> {
    let failed = |errno| GrantError::held(&granted.host, errno);
    let held = granted.hold().map_err(failed)?;
    let status = fstat(&held).map_err(failed)?;
    let kind = match status.st_mode & libc::S_IFMT {
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFREG => Kind::File,
        // A socket would reach the service that listens at it.
        _ => return Err(GrantError::Special { path: granted.host.clone() }),
    };
    let owner = (status.st_uid, status.st_gid);
    let by_slot = ids.mounts(|host_id| idmapped(&held, owner, granted.access, host_id));
    let by_slot =
        by_slot.map_err(|errno| GrantError::IdMapped { path: granted.host.clone(), errno })?;
    Ok(PathGrant { granted: granted.clone(), kind, found: Rc::clone(found), by_slot })
}

fn idmapped(
    held: &OwnedFd,
    owner: (u32, u32),
    access: Access,
    host_id: u32,
) -> Result<OwnedFd, Errno> {
    let tree = clone_held(held)?;
    show_as(&tree, owner, host_id)?;
    set_attributes(&tree, attributes(access), Reach::Recursive)?;
    Ok(tree)
}
