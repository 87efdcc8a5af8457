//! Mounts: the calls of the new mount API, and openat2.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

use super::{Result, check};

/// Takes ownership of a descriptor that a call has just returned.
fn owned(raw: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(raw as libc::c_int) }
}

/// A detached copy of the mount at `path` and all beneath (open_tree(2) with OPEN_TREE_CLONE).
///
/// `path` is resolved: a symbolic link in it, put there since, is ELOOP and not followed.
pub fn clone_tree(path: &CStr) -> Result<OwnedFd> {
    clone_held(open_resolved(path)?)
}

/// The same of a mount that is held.
pub fn clone_held(opened: impl AsFd) -> Result<OwnedFd> {
    const OPEN_TREE_CLONE: u32 = 1;
    let flags = OPEN_TREE_CLONE
        | libc::O_CLOEXEC as u32
        | libc::AT_RECURSIVE as u32
        | libc::AT_EMPTY_PATH as u32;
    // SAFETY: the empty path is NUL-terminated and names `opened` itself.
    let raw = check(unsafe {
        libc::syscall(libc::SYS_open_tree, opened.as_fd().as_raw_fd(), c"".as_ptr(), flags)
    })?;
    Ok(owned(raw))
}

/// openat2(2) of a path without symbolic links, only to name it (O_PATH).
pub fn open_resolved(path: &CStr) -> Result<OwnedFd> {
    // SAFETY: open_how is plain integers, for which all zeroes is a value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: `path` is NUL-terminated, `how` is a whole open_how of the size given; both outlive
    // the call.
    let raw = check(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    })?;
    Ok(owned(raw))
}

/// move_mount(2): attaches the detached mount `tree` at `target`.
pub fn attach(tree: impl AsFd, target: &CStr) -> Result<()> {
    const MOVE_MOUNT_F_EMPTY_PATH: u32 = 4;
    // SAFETY: both paths are NUL-terminated and outlive the call; the empty one names `tree` itself.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })
    .map(drop)
}

/// Attributes of mounts (mount_setattr(2)).
pub mod attribute {
    pub const RDONLY: u64 = 0x1;
    pub const NOSUID: u64 = 0x2;
    pub const NODEV: u64 = 0x4;
    pub const NOEXEC: u64 = 0x8;
    pub const IDMAP: u64 = 0x10_0000;
}

/// Whether a change of attributes goes beneath.
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

/// mount_setattr(2): sets `attributes` on the mount that `mount` is the root of.
pub fn set_attributes(mount: impl AsFd, attributes: u64, reach: Reach) -> Result<()> {
    change(mount, MountAttr { set: attributes, clear: 0, propagation: 0, userns_fd: 0 }, reach)
}

/// mount_setattr(2) with MOUNT_ATTR_IDMAP: `mount` shows owners through the maps of `userns`.
pub fn set_idmap(mount: impl AsFd, userns: impl AsFd, reach: Reach) -> Result<()> {
    let userns_fd = userns.as_fd().as_raw_fd() as u64;
    let attr = MountAttr { set: attribute::IDMAP, clear: 0, propagation: 0, userns_fd };
    change(mount, attr, reach)
}

fn change(mount: impl AsFd, attr: MountAttr, reach: Reach) -> Result<()> {
    let mut flags = libc::AT_EMPTY_PATH as u32;
    if reach == Reach::Recursive {
        flags |= libc::AT_RECURSIVE as u32;
    }
    // SAFETY: `attr` is a whole mount_attr of the size given and outlives the call.
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

/// A detached mount of a new filesystem of kind `kind` (fsopen(2), fsconfig(2), fsmount(2)).
pub fn new_filesystem(kind: &CStr, attributes: u64) -> Result<OwnedFd> {
    let filesystem = Filesystem::open(kind)?;
    filesystem.create()?;
    filesystem.mount(attributes)
}

/// A filesystem that is being configured, or that exists (fsopen(2)).
#[derive(Debug)]
pub struct Filesystem(OwnedFd);

impl Filesystem {
    /// Opens the configuration of a new filesystem of kind `kind`.
    pub fn open(kind: &CStr) -> Result<Self> {
        const FSOPEN_CLOEXEC: u32 = 1;
        // SAFETY: `kind` is NUL-terminated and outlives the call.
        let raw = check(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })?;
        Ok(Self(owned(raw)))
    }

    /// Sets an option that has no value, such as `ro`.
    pub fn set(&self, option: &CStr) -> Result<()> {
        const FSCONFIG_SET_FLAG: u32 = 0;
        self.configure(FSCONFIG_SET_FLAG, Some(option), None)
    }

    /// Gives an option its value.
    pub fn set_to(&self, option: &CStr, value: &CStr) -> Result<()> {
        const FSCONFIG_SET_STRING: u32 = 1;
        self.configure(FSCONFIG_SET_STRING, Some(option), Some(value))
    }

    /// Makes the filesystem.
    pub fn create(&self) -> Result<()> {
        const FSCONFIG_CMD_CREATE: u32 = 6;
        self.configure(FSCONFIG_CMD_CREATE, None, None)
    }

    /// Applies the options to the filesystem once it is mounted. The kernel also forgets every name in
    /// it that nobody uses (`reconfigure_super`).
    pub fn reconfigure(&self) -> Result<()> {
        const FSCONFIG_CMD_RECONFIGURE: u32 = 7;
        self.configure(FSCONFIG_CMD_RECONFIGURE, None, None)
    }

    fn configure(&self, command: u32, key: Option<&CStr>, value: Option<&CStr>) -> Result<()> {
        let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: key and value are NUL-terminated and outlive the call, or null where the command
        // takes none; the last argument is zero for all of these commands.
        check(unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                self.0.as_raw_fd(),
                command,
                pointer(key),
                pointer(value),
                0,
            )
        })
        .map(drop)
    }

    /// A detached mount of the filesystem, once it is made.
    pub fn mount(&self, attributes: u64) -> Result<OwnedFd> {
        const FSMOUNT_CLOEXEC: u32 = 1;
        // SAFETY: takes a descriptor and numbers.
        let mount = check(unsafe {
            libc::syscall(libc::SYS_fsmount, self.0.as_raw_fd(), FSMOUNT_CLOEXEC, attributes)
        })?;
        Ok(owned(mount))
    }
}

/// The number of the mount that a path is on, as in mountinfo; a link at its end is not followed
/// (statx(2), STATX_MNT_ID).
pub fn mount_id(path: &CStr) -> Result<u64> {
    // SAFETY: statx is plain integers, for which all zeroes is a value.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    // SAFETY: `path` is NUL-terminated, `status` is a whole statx; both outlive the call.
    check(libc::c_long::from(unsafe {
        libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_MNT_ID, &raw mut status)
    }))?;
    // Before Linux 5.8 the kernel has no such field, and says so.
    if status.stx_mask & libc::STATX_MNT_ID == 0 {
        Err(Errno::ENOTSUP)
    } else {
        Ok(status.stx_mnt_id)
    }
}

/// pivot_root(2) onto the current directory, with the old root stacked on it.
/// Follow it with umount2 of "." (pivot_root(2), `pivot_root(".", ".")`).
pub fn pivot_here() -> Result<()> {
    // SAFETY: both paths are NUL-terminated constants.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) }).map(drop)
}
