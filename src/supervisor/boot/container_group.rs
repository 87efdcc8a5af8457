//! The control group of a container (version 2), which its processes leave for a leaf so that it can be divided.
//!
//! In a cgroup namespace the container's own group is what is mounted. It has all processes of the container in it, and a
//! group with processes gives no controller to its children (cgroups(7), "no internal processes"). The limits that the
//! engine has set on it hold as before: they are above the leaf.

use std::fs;
use std::io::Result;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, access};

use super::control_files::{enable, own_cgroup, put};
use cell::cgroup::{Parent, ProcessorShares};
use cell::errno_of;

/// Leaf for all processes of the container that are not cofferdam's.
const LEAF: &str = "cofferdam-container";
/// Beginning of the name of an instance's group; its pid follows. Root's instances have numbers instead.
const INSTANCE: &str = "cofferdam-pid";
/// Most rounds of moving: processes fork while they are moved.
const ROUNDS: u32 = 32;

/// Returns true if what is mounted at `root` is a group below the host's: the host's own root has no type.
fn is_container(root: &Path) -> bool {
    let own = own_cgroup("").is_some_and(|own| own.starts_with('/') && !own.contains("/.."));
    own && root.join("cgroup.type").exists()
}

/// Has `root` give the controllers of memory and processes to its children; in a container after every process in it has
/// been moved into a leaf, where that is in the way.
///
/// # Errors
/// Of the kernel; the processes are where they were then.
pub(super) fn divide(root: &Path) -> Result<()> {
    const WANTED: &str = "+memory +pids";
    let control = root.join("cgroup.subtree_control");
    match put(&control, WANTED) {
        Err(error) if errno_of(&error) == Errno::EBUSY && is_container(root) => {}
        result => return result,
    }
    let leaf = root.join(LEAF);
    made(&leaf)?;
    let divided = moved(root, &leaf).and_then(|()| put(&control, WANTED));
    if divided.is_err() {
        moved(&leaf, root)?;
        fs::remove_dir(&leaf)?;
    }
    divided
}

/// Moves every process of one group into another.
fn moved(from: &Path, to: &Path) -> Result<()> {
    for _ in 0..ROUNDS {
        let members = fs::read_to_string(from.join("cgroup.procs"))?;
        if members.is_empty() {
            return Ok(());
        }
        for pid in members.lines() {
            // A process of an outer pid namespace, which cannot be named here. Written, it would be this one.
            if pid == "0" {
                return Err(Errno::EXDEV.into());
            }
            match put(to.join("cgroup.procs"), pid) {
                // It has ended.
                Err(error) if errno_of(&error) == Errno::ESRCH => {}
                result => result?,
            }
        }
    }
    Err(Errno::EBUSY.into())
}

/// Makes a directory, or takes the one that is there.
fn made(directory: &Path) -> Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Makes a group for this process and its cells in the container's, where an ordinary user may write to that.
pub(super) fn of_user(root: &Path) -> Option<Parent> {
    let control = root.join("cgroup.subtree_control");
    if !is_container(root) || access(&control, AccessFlags::W_OK).is_err() {
        return None;
    }
    sweep(root);
    divide(root).ok()?;
    // Where the container has no share of the processors to give on, cells have none either.
    put(&control, "+cpu").unwrap_or_default();
    let group = root.join(format!("{INSTANCE}{}", std::process::id()));
    let (directory, processors) = arranged(&group).ok()?;
    Some(Parent::V2 { directory, processors })
}

/// Makes the group of this instance, with this process in a leaf of it: the supervisor is cloned from it.
fn arranged(group: &Path) -> Result<(OwnedFd, ProcessorShares)> {
    let leaf = group.join("supervisor");
    made(group)?;
    made(&leaf)?;
    let processors = enable(group)?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(group, flags, Mode::empty())?;
    put(leaf.join("cgroup.procs"), "0")?;
    Ok((directory, processors))
}

/// Removes the groups of instances that have ended. A group with a process in it cannot be removed.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(INSTANCE)) else {
            continue;
        };
        if Path::new("/proc").join(pid).exists() {
            continue;
        }
        for group in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            fs::remove_dir(group.path()).unwrap_or_default();
        }
        fs::remove_dir(entry.path()).unwrap_or_default();
    }
}
