//! The control group of a container (version 2), which its processes leave for a leaf so that it can be divided.
//!
//! In a cgroup namespace the container's own group is what is mounted. It has all processes of the container in it, and a
//! group with processes gives no controller to its children (cgroups(7), "no internal processes"). The limits that the
//! engine has set on it hold as before: they are above the leaf.

use std::collections::BTreeSet;
use std::fs;
use std::io::Result;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{AccessFlags, SysconfVar, access, sysconf};

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
    let is_new = made(&leaf)?;
    let mut moves = Moves::begun()?;
    let divided = moves.empty(root, &leaf).and_then(|()| put(&control, WANTED));
    if divided.is_err() {
        moves.undo(&leaf, root)?;
        if is_new {
            // EBUSY: another instance has moved processes there, which are its own to move back.
            fs::remove_dir(&leaf).unwrap_or_default();
        }
    }
    divided
}

/// One process, told from a later one with its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    pid: u32,
    /// Clock ticks since the machine has booted.
    start: u64,
}

/// Processes that were moved from one group to another, so that they alone are moved back.
#[derive(Debug)]
struct Moves {
    moved: BTreeSet<Process>,
    /// No process that is older was made by a moved one.
    begun: u64,
}

impl Moves {
    fn begun() -> Result<Self> {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
        let ticks = sysconf(SysconfVar::CLK_TCK)?.ok_or(Errno::ENOSYS)?;
        let [seconds, nanoseconds, ticks] =
            [now.tv_sec(), now.tv_nsec(), ticks].map(|value| u64::try_from(value).unwrap_or(0));
        let begun = seconds * ticks + nanoseconds * ticks / 1_000_000_000;
        Ok(Self { moved: BTreeSet::new(), begun })
    }

    /// Moves every process of one group into another.
    fn empty(&mut self, from: &Path, to: &Path) -> Result<()> {
        for _ in 0..ROUNDS {
            let members = members(from)?;
            if members.is_empty() {
                return Ok(());
            }
            // A process of an outer pid namespace, which cannot be named here. Written, it would be this one.
            if members.contains(&0) {
                return Err(Errno::EXDEV.into());
            }
            for pid in members {
                let start = stat(pid).map(|(_, start)| start);
                match put(to.join("cgroup.procs"), pid.to_string()) {
                    // It has ended.
                    Err(error) if errno_of(&error) == Errno::ESRCH => {}
                    result => result?,
                }
                self.moved.extend(start.map(|start| Process { pid, start }));
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Moves those back that are still there, and what they have forked since.
    fn undo(&self, from: &Path, to: &Path) -> Result<()> {
        for _ in 0..ROUNDS {
            let ours: Vec<u32> =
                members(from)?.into_iter().filter(|pid| self.includes(*pid)).collect();
            if ours.is_empty() {
                return Ok(());
            }
            for pid in ours {
                match put(to.join("cgroup.procs"), pid.to_string()) {
                    Err(error) if errno_of(&error) == Errno::ESRCH => {}
                    result => result?,
                }
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Returns true for a process that was moved, or that was forked by one after that.
    fn includes(&self, pid: u32) -> bool {
        let mut next = pid;
        while let Some((parent, start)) = stat(next) {
            if self.moved.contains(&Process { pid: next, start }) {
                return true;
            }
            if start < self.begun {
                return false;
            }
            next = parent;
        }
        false
    }
}

/// Returns the processes of a group; 0 is one that has no id here.
fn members(group: &Path) -> Result<Vec<u32>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    text.lines().map(|pid| pid.parse().map_err(|_| Errno::EINVAL.into())).collect()
}

/// Returns the parent of a process and the time of its start (proc_pid_stat(5)); `None` where it has ended.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name may have anything in it.
    let (_, fields) = text.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(1);
    Some((fields.next()?.parse().ok()?, fields.nth(17)?.parse().ok()?))
}

/// Makes a directory, or takes the one that is there. Returns true if it was made.
fn made(directory: &Path) -> Result<bool> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        made => Ok(made.is_ok()),
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

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Duration;

    use super::*;

    /// A process that waits; it is ended with its value.
    struct Waiting(Child);

    impl Waiting {
        fn start() -> Result<Self> {
            Command::new("sleep").arg("60").spawn().map(Self)
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            self.0.kill().unwrap_or_default();
            self.0.wait().map(drop).unwrap_or_default();
        }
    }

    #[test]
    fn what_was_moved_and_its_children_since_are_moved_back_and_nothing_else() -> Result<()> {
        let before = Waiting::start()?;
        // Two ticks of the clock by which the kernel tells when a process has started.
        std::thread::sleep(Duration::from_millis(20));
        let mut moves = Moves::begun()?;
        let after = Waiting::start()?;
        let own = std::process::id();
        let [before, after] = [before.0.id(), after.0.id()];
        let all = [own, before, after, 1];
        assert_eq!(all.map(|pid| moves.includes(pid)), [false; 4]);
        let (_, start) = stat(own).ok_or(Errno::ESRCH)?;
        moves.moved.insert(Process { pid: own, start: start - 1 });
        assert_eq!(all.map(|pid| moves.includes(pid)), [false; 4], "an older process with its id");
        moves.moved.insert(Process { pid: own, start });
        assert_eq!(all.map(|pid| moves.includes(pid)), [true, false, true, false]);
        Ok(())
    }
}
