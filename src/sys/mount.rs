//! Mounts: the calls of the new mount API.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    open_tree,
};

use super::lookup::{self, Follow};
use super::{Result, check, errno};

/// Makes a detached copy of the mount at `path` and of all mounts below it (open_tree(2) with OPEN_TREE_CLONE).
///
/// # Errors
/// ELOOP if the path has a symbolic link, perhaps created since the path was resolved.
pub fn clone_tree(path: &CStr) -> Result<OwnedFd> {
    clone_held(open_resolved(path)?)
}

/// Makes a detached copy of the mount at `path`, without the mounts below it.
///
/// # Errors
/// EINVAL if a mount below it must not be removed from it (mount_namespaces(7)).
pub fn clone_one(path: &CStr) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(open_resolved(path)?, c"", flags).map_err(errno)
}

/// Makes a detached copy of the mount of an open file, and of all mounts below it.
pub fn clone_held(opened: impl AsFd) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(opened, c"", flags).map_err(errno)
}

/// Opens a path without symbolic links with O_PATH.
pub fn open_resolved(path: &CStr) -> Result<OwnedFd> {
    lookup::open(CWD, path, libc::O_PATH | libc::O_CLOEXEC, 0, Follow::Nothing)
}

/// Attaches the detached mount `tree` at `target` (move_mount(2)).
pub fn attach(tree: impl AsFd, target: &CStr) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(tree, c"", CWD, target, flags).map_err(errno)
}

/// Attaches the detached mount `tree` at the file or directory that `target` is open on: no path is
/// looked up.
pub fn attach_held(tree: impl AsFd, target: impl AsFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, c"", target, c"", flags).map_err(errno)
}

/// Attributes of mounts (mount_setattr(2)).
pub mod attribute {
    pub const RDONLY: u64 = 0x1;
    pub const NOSUID: u64 = 0x2;
    pub const NODEV: u64 = 0x4;
    pub const NOEXEC: u64 = 0x8;
    pub(crate) const IDMAP: u64 = 0x10_0000;
}

/// The mounts to which a change of attributes applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    One,
    Recursive,
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets `attributes` on the mount whose root `mount` is open on (mount_setattr(2)).
pub fn set_attributes(mount: impl AsFd, attributes: u64, reach: Reach) -> Result<()> {
    change(mount, MountAttr { set: attributes, clear: 0, propagation: 0, userns_fd: 0 }, reach)
}

/// Maps the file owners in `mount` by the id maps of the user namespace `userns` (MOUNT_ATTR_IDMAP), and sets
/// `attributes` on it.
pub fn set_idmap(mount: impl AsFd, userns: impl AsFd, attributes: u64, reach: Reach) -> Result<()> {
    let userns_fd = userns.as_fd().as_raw_fd() as u64;
    let set = attribute::IDMAP | attributes;
    let attr = MountAttr { set, clear: 0, propagation: 0, userns_fd };
    change(mount, attr, reach)
}

fn change(mount: impl AsFd, attr: MountAttr, reach: Reach) -> Result<()> {
    let mut flags = libc::AT_EMPTY_PATH as u32;
    if reach == Reach::Recursive {
        flags |= libc::AT_RECURSIVE as u32;
    }
    // SAFETY: `attr` is a complete mount_attr of the size passed, and outlives the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Creates a filesystem of type `kind` and a detached mount of it (fsopen(2), fsconfig(2),
/// fsmount(2)).
pub fn new_filesystem(kind: &CStr, attributes: u64) -> Result<OwnedFd> {
    let filesystem = Filesystem::open(kind)?;
    filesystem.create()?;
    filesystem.mount(attributes)
}

/// A filesystem context: being configured, or created (fsopen(2)).
#[derive(Debug)]
pub struct Filesystem(OwnedFd);

impl AsRawFd for Filesystem {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Filesystem {
    /// Opens the configuration of a new filesystem of type `kind`.
    pub fn open(kind: &CStr) -> Result<Self> {
        fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map(Self).map_err(errno)
    }

    /// Sets an option without a value, such as `ro`.
    pub fn set(&self, option: &CStr) -> Result<()> {
        fsconfig_set_flag(&self.0, option).map_err(errno)
    }

    /// Sets an option to a value.
    pub fn set_to(&self, option: &CStr, value: &CStr) -> Result<()> {
        fsconfig_set_string(&self.0, option, value).map_err(errno)
    }

    /// Creates the filesystem.
    pub fn create(&self) -> Result<()> {
        fsconfig_create(&self.0).map_err(errno)
    }

    /// Applies the options to a mounted filesystem. The kernel also drops all unused names in it
    /// from its cache (`reconfigure_super`).
    pub fn reconfigure(&self) -> Result<()> {
        fsconfig_reconfigure(&self.0).map_err(errno)
    }

    /// Makes a detached mount of the created filesystem.
    ///
    /// # Errors
    /// EINVAL if an attribute is not one of fsmount(2).
    pub fn mount(&self, attributes: u64) -> Result<OwnedFd> {
        let attributes = u32::try_from(attributes).map_err(|_| Errno::EINVAL)?;
        let attributes = MountAttrFlags::from_bits_retain(attributes);
        fsmount(&self.0, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(errno)
    }
}

/// Returns the id of the mount that a path is on, as in mountinfo; a symbolic link at its end is
/// not followed (statx(2), STATX_MNT_ID).
///
/// # Errors
/// ENOTSUP if the kernel is older than 5.8.
pub fn mount_id(path: &CStr) -> Result<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let status = statx(CWD, path, flags, StatxFlags::MNT_ID).map_err(errno)?;
    if status.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        Err(Errno::ENOTSUP)
    } else {
        Ok(status.stx_mnt_id)
    }
}

/// Returns the device and the mount id of an open file (statx(2), STATX_MNT_ID).
///
/// # Errors
/// ENOTSUP if the kernel is older than 5.8.
pub fn device_and_mount(file: impl AsFd) -> Result<(u64, u64)> {
    // Neither changes while the file is open, so a network filesystem need not ask its server.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let status = statx(file, c"", flags, StatxFlags::MNT_ID).map_err(errno)?;
    if status.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(Errno::ENOTSUP);
    }
    Ok((libc::makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_mnt_id))
}

/// Makes the current directory the root, with the old root stacked on it. The caller then unmounts "."
/// (pivot_root(2), `pivot_root(".", ".")`).
pub fn pivot_here() -> Result<()> {
    nix::unistd::pivot_root(c".", c".")
}
