//! Granted directories and sockets as the cells of one key have them.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use nix::sys::stat::fstat;

use super::error::GrantError;
use super::granted::{Granted, Kind, attributes};
use super::idmapped::{OwnerMaps, SlotIds};
use super::protect::{self, GuardedPaths};
use super::sockets::SocketGrant;
use model::job::{Access, Workspace};
use model::receipt::Tier;
use sys::mount::clone_held;

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
    /// True if cells see an overlay of it: `run` as root. A server has 250 slots, and as many overlays would make its
    /// start take 50 ms longer and a call 80 ms. An overlay shows nothing that is mounted below.
    pub is_layer: bool,
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
    let mut maps = OwnerMaps::default();
    let with_pins = |(outer, found): (&Granted, &Rc<GuardedPaths>)| {
        let within = granted.iter().filter_map(|inner| inner.cell.strip_prefix(&outer.cell).ok());
        let found = found.with_places(within.filter(|place| !place.as_os_str().is_empty()));
        grant(outer, &Rc::new(found), ids, &mut maps)
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
    maps: &mut OwnerMaps,
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
    let by_slot = ids.mounts(|host_id| {
        let tree = clone_held(&held)?;
        maps.show_as(&tree, owner, host_id, attributes(granted.access))?;
        Ok(tree)
    });
    let by_slot =
        by_slot.map_err(|errno| GrantError::IdMapped { path: granted.host.clone(), errno })?;
    let is_layer = granted.access == Access::ReadOnly
        && kind == Kind::Directory
        && by_slot.len() == 1
        && !has_mounts_below(&granted.host);
    Ok(PathGrant { granted: granted.clone(), kind, found: Rc::clone(found), by_slot, is_layer })
}

/// Returns whether something is mounted below a directory, or whether that cannot be read.
fn has_mounts_below(directory: &Path) -> bool {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return true };
    let points = table.split(|byte| *byte == b'\n').filter_map(mount_point);
    points.into_iter().any(|point| {
        Path::new(OsStr::from_bytes(&point))
            .strip_prefix(directory)
            .is_ok_and(|below| !below.as_os_str().is_empty())
    })
}

/// Returns the mount point of a line of mountinfo, where blanks and backslashes are in octal (proc_pid_mountinfo(5)).
fn mount_point(line: &[u8]) -> Option<Vec<u8>> {
    let mut point = Vec::new();
    let mut bytes = line.split(|byte| *byte == b' ').nth(4)?;
    while let Some((first, rest)) = bytes.split_first() {
        let octal = match rest {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                Some((a & 7) << 6 | (b & 7) << 3 | (c & 7))
            }
            _ => None,
        };
        point.push(octal.unwrap_or(*first));
        bytes = if octal.is_some() { rest.get(3..)? } else { rest };
    }
    Some(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_read_with_its_blanks_and_any_bytes() {
        let line = b"36 35 98:0 / /mnt/a\\040b\\134\xff\\x rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount_point(line).as_deref(), Some(&b"/mnt/a b\\\xff\\x"[..]));
        assert_eq!(mount_point(b"36 35 98:0 /"), None);
    }

    #[test]
    fn what_is_mounted_below_the_root_is_found() {
        assert!(has_mounts_below(Path::new("/")));
        assert!(!has_mounts_below(Path::new("/proc/self")));
    }
}
