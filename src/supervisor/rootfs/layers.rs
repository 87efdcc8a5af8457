//! Layers: granted directories that cells change only in an overlay above them (overlayfs).
//!
//! Each layer is mounted once, and the mount is shown at every path and in every template that has
//! the grant: two mounts of one upper directory would corrupt it. The kernel keeps the credentials
//! of the mounting process, the supervisor, for its own access to both directories (overlayfs,
//! "Permission model"). They reach no further than the supervisor's user namespace.
//!
//! For root both directories get id-mapped mounts, which only `main` can make. All cells with the
//! layer have one host id then, as an overlay itself cannot be id-mapped.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::sys::statvfs::{FsFlags, fstatvfs};

use super::error::{GrantError, STAGE};
use super::granted::{Granted, LayerDirectory};
use super::grants::KeyGrant;
use super::host_mounts;
use super::idmapped::{OwnerMaps, SlotIds, show_with_supervisor};
use super::slot_mounts::SlotMounts;
use cell::c_path;
use sys::mount::{Filesystem, attach, attribute, clone_held, new_filesystem};

/// Names in the directory of a layer.
const UPPER: &str = "upper";
const WORK: &str = "work";

/// A layer that is to be mounted.
#[derive(Debug)]
pub(crate) struct UnmountedLayer {
    granted: Granted,
    directory: LayerDirectory,
    /// Id-mapped mounts for root.
    mapped: Option<Layers>,
}

/// The directories that an overlay is made of.
#[derive(Debug)]
struct Layers {
    lower: OwnedFd,
    /// The directory with `upper` and `work`.
    layer: OwnedFd,
}

/// Finds the layers among the granted sets, each once, and makes the mounts that only `main` can.
///
/// # Errors
/// A directory that was replaced, that has mounts below it, or that cannot be mapped.
pub(crate) fn prepare(
    sets: &[Vec<Granted>],
    ids: SlotIds,
) -> Result<Vec<UnmountedLayer>, GrantError> {
    let mut all: Vec<UnmountedLayer> = Vec::new();
    for granted in sets.iter().flatten() {
        let Some(directory) = &granted.layer else { continue };
        if all.iter().any(|layer| layer.directory == *directory) {
            continue;
        }
        if host_mounts::are_below(&granted.host) {
            return Err(GrantError::MountsBelow { path: granted.host.clone() });
        }
        let mapped = mapped(granted, directory, ids).map_err(|errno| {
            match [Errno::ESTALE, Errno::ELOOP].contains(&errno) {
                true => GrantError::held(&granted.host, errno),
                false => GrantError::IdMapped { path: granted.host.clone(), errno },
            }
        })?;
        let granted = granted.clone();
        all.push(UnmountedLayer { directory: directory.clone(), granted, mapped });
    }
    Ok(all)
}

fn mapped(
    granted: &Granted,
    directory: &LayerDirectory,
    ids: SlotIds,
) -> Result<Option<Layers>, Errno> {
    let SlotIds::One { host_id, supervisor } = ids else { return Ok(None) };
    let lower = granted.hold()?;
    let owner = owner(&lower)?;
    let lower = clone_held(&lower)?;
    OwnerMaps::default().show_as(&lower, owner, host_id, 0)?;
    let layer = directory.hold()?;
    let owner = self::owner(&layer)?;
    let layer = clone_held(&layer)?;
    // The kernel makes work files in it by the id of the process that mounts the overlay.
    show_with_supervisor(&layer, owner, host_id, supervisor)?;
    Ok(Some(Layers { lower, layer }))
}

fn owner(held: &OwnedFd) -> Result<(u32, u32), Errno> {
    fstat(held).map(|status| (status.st_uid, status.st_gid))
}

/// Mounts the layers, and gives each grant of one a copy of the mount. The caller is in the
/// supervisor's first mount namespace, before any template is built from it.
///
/// # Errors
/// The directory that cannot be shown through a layer.
pub(crate) fn mount<'k>(
    layers: Vec<UnmountedLayer>,
    keys: impl Iterator<Item = &'k mut KeyGrant>,
) -> Result<(), (PathBuf, Errno)> {
    if layers.is_empty() {
        return Ok(());
    }
    let mut grants: Vec<_> = keys.flat_map(|key| &mut key.directories).collect();
    // All of them are held before the stage hides anything.
    let hold = |UnmountedLayer { granted, directory, mapped }: UnmountedLayer| {
        let failed = |errno| (granted.host.clone(), errno);
        let is_mapped = mapped.is_some();
        let layers = match mapped {
            Some(layers) => layers,
            None => {
                let lower = granted.hold().map_err(failed)?;
                Layers { lower, layer: directory.hold().map_err(failed)? }
            }
        };
        Ok((granted, directory, layers, is_mapped))
    };
    let held = layers.into_iter().map(hold).collect::<Result<Vec<_>, (PathBuf, Errno)>>()?;
    let first = held.first().map(|(granted, ..)| granted.host.clone()).unwrap_or_default();
    let stage = Stage::enter().map_err(|errno| (first.clone(), errno))?;
    for (granted, directory, layers, is_mapped) in held {
        let failed = |errno| (granted.host.clone(), errno);
        let overlay = stage.overlay(layers, directory.is_frozen).map_err(failed)?;
        for grant in &mut grants {
            if grant.granted.layer.as_ref() == Some(&directory) {
                let copy = clone_held(&overlay).map_err(failed)?;
                match is_mapped {
                    // Attached with the other mounts of such cells, in the order of their paths.
                    true => grant.by_slot = SlotMounts::one(copy),
                    false => grant.overlay = Some(copy),
                }
            }
        }
    }
    stage.leave().map_err(|errno| (first, errno))
}

/// A filesystem over [`STAGE`] in which mounts are attached for a moment: the kernel makes an
/// overlay, and copies a mount, only of mounts that are attached in the namespace of the caller.
struct Stage(OwnedFd);

impl Stage {
    fn enter() -> Result<Self, Errno> {
        let filesystem = new_filesystem(c"tmpfs", attribute::NOSUID | attribute::NODEV)?;
        attach(&filesystem, &c_path(Path::new(STAGE))?)?;
        Ok(Self(filesystem))
    }

    /// Makes a directory, and attaches a mount there.
    fn attach(&self, tree: &OwnedFd) -> Result<(), Errno> {
        let name = CString::new(tree.as_raw_fd().to_string()).map_err(|_| Errno::EINVAL)?;
        mkdirat(&self.0, name.as_c_str(), Mode::S_IRWXU)?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let place = openat(&self.0, name.as_c_str(), flags, Mode::empty())?;
        sys::mount::attach_held(tree, place)
    }

    /// Mounts an overlay, and attaches it. All copies of a mount have its attributes, so that cells only
    /// read a frozen layer.
    fn overlay(&self, Layers { lower, layer }: Layers, is_frozen: bool) -> Result<OwnedFd, Errno> {
        // Mounts of main are detached; those that the supervisor holds are in its namespace.
        for tree in [&lower, &layer] {
            match self.attach(tree) {
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let open = |name: &str| openat(&layer, name, flags, Mode::empty());
        let upper = open(UPPER)?;
        let work = open(WORK)?;
        let filesystem = overlay_of(&lower, &upper, &work)?;
        let host = fstatvfs(&lower)?.flags();
        let noexec = if host.contains(FsFlags::ST_NOEXEC) { attribute::NOEXEC } else { 0 };
        let readonly = if is_frozen { attribute::RDONLY } else { 0 };
        let overlay = filesystem.mount(attribute::NOSUID | attribute::NODEV | noexec | readonly)?;
        // Where the kernel cannot prepare the work directory, it mounts the overlay read-only.
        if fstatvfs(&overlay)?.flags().contains(FsFlags::ST_RDONLY) != is_frozen {
            return Err(Errno::EROFS);
        }
        self.attach(&overlay)?;
        Ok(overlay)
    }

    fn leave(self) -> Result<(), Errno> {
        umount2(STAGE, MntFlags::MNT_DETACH)
    }
}

/// Time for the kernel to free the overlay of an earlier cell.
const MAX_FREE_WAIT: Duration = Duration::from_secs(5);
const FREE_PAUSE: Duration = Duration::from_millis(1);

/// Creates an overlay that can be mounted. Waits while the kernel still frees the last one over the same directories:
/// the lock of the layer keeps other cells away, but the kernel frees the mounts of ended processes after their end,
/// and reports no event for it.
fn overlay_of(lower: &OwnedFd, upper: &OwnedFd, work: &OwnedFd) -> Result<Filesystem, Errno> {
    let began = Instant::now();
    loop {
        match new_overlay(lower, upper, work) {
            Err(Errno::EBUSY) if began.elapsed() < MAX_FREE_WAIT => std::thread::sleep(FREE_PAUSE),
            created => return created,
        }
    }
}

fn new_overlay(lower: &OwnedFd, upper: &OwnedFd, work: &OwnedFd) -> Result<Filesystem, Errno> {
    let filesystem = Filesystem::open(c"overlay")?;
    let by_descriptor =
        |held: &OwnedFd| c_path(Path::new(&format!("/proc/self/fd/{}", held.as_raw_fd())));
    filesystem.set_to(c"lowerdir", &by_descriptor(lower)?)?;
    filesystem.set_to(c"upperdir", &by_descriptor(upper)?)?;
    filesystem.set_to(c"workdir", &by_descriptor(work)?)?;
    // Without privilege on the host, and without a name by which a cell could forge a mark: the
    // kernel keeps `user.overlay.*` from the users of the mount.
    filesystem.set(c"userxattr")?;
    // The kernel refuses a second such mount over the same upper directory (EBUSY). Its index, which
    // keeps hard links whole, takes a capability that only root has (ovl_can_decode_fh).
    filesystem.set_to(c"index", c"on")?;
    // One device number for all files.
    filesystem.set_to(c"xino", c"on")?;
    filesystem.create()?;
    Ok(filesystem)
}
