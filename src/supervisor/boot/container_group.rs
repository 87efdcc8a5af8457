//! The control group of a container (version 2): moves its processes into a leaf, so that the group
//! can be divided.
//!
//! In a cgroup namespace the mounted root is the container's group. All processes of the container
//! are in it, and a group with processes cannot enable controllers for its children (cgroups(7),
//! "no internal processes"). The engine's limits still apply: they are set above the leaf.

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
/// Prefix of the name of an instance's group, followed by its pid. Root's instances have numbers
/// instead.
const INSTANCE: &str = "cofferdam-pid";
/// Maximum rounds of moving: processes may fork meanwhile.
const MAX_ROUNDS: u32 = 32;

/// Returns true if the group mounted at `root` is not the host's root group, which has no type.
fn is_container(root: &Path) -> bool {
    let is_below_root =
        own_cgroup("").is_some_and(|group| group.starts_with('/') && !group.contains("/.."));
    is_below_root && root.join("cgroup.type").exists()
}

/// Enables the memory and pids controllers for children of `root`. If processes in a container's
/// group prevent that, moves them into a leaf first.
///
/// # Errors
/// The kernel's error; the processes are then back in their group.
pub(super) fn divide(root: &Path) -> Result<()> {
    const WANTED: &str = "+memory +pids";
    let control = root.join("cgroup.subtree_control");
    match put(&control, WANTED) {
        Err(error) if errno_of(&error) == Errno::EBUSY && is_container(root) => {}
        result => return result,
    }
    let leaf = root.join(LEAF);
    let is_new = make_directory(&leaf)?;
    let mut moves = Moves::begun()?;
    let divided = moves.empty(root, &leaf).and_then(|()| put(&control, WANTED));
    if divided.is_err() {
        moves.undo(&leaf, root)?;
        if is_new {
            // EBUSY: another instance has moved processes there and will move them back itself.
            fs::remove_dir(&leaf).unwrap_or_default();
        }
    }
    divided
}

/// A process, distinguished from later ones with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    pid: u32,
    /// Clock ticks since the machine has booted.
    start: u64,
}

/// Processes that were moved from one group to another, so that only these are moved back.
#[derive(Debug)]
struct Moves {
    moved: BTreeSet<Process>,
    /// Start of the moves: no older process is a child of a moved one.
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
        for _ in 0..MAX_ROUNDS {
            let members = members(from)?;
            if members.is_empty() {
                return Ok(());
            }
            // A process of an outer pid namespace, which has no number here. Writing 0 would move
            // this process.
            if members.contains(&0) {
                return Err(Errno::EXDEV.into());
            }
            for pid in members {
                let start = stat(pid).map(|(_, start)| start);
                match put(to.join("cgroup.procs"), pid.to_string()) {
                    // The process has ended.
                    Err(error) if errno_of(&error) == Errno::ESRCH => {}
                    result => result?,
                }
                self.moved.extend(start.map(|start| Process { pid, start }));
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Moves those processes back that are still in the group, and their children since.
    fn undo(&self, from: &Path, to: &Path) -> Result<()> {
        for _ in 0..MAX_ROUNDS {
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

    /// Returns true for a moved process, or one forked by a moved one afterwards.
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

/// Returns the processes of a group; 0 stands for one of an outer pid namespace.
fn members(group: &Path) -> Result<Vec<u32>> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    text.lines().map(|pid| pid.parse().map_err(|_| Errno::EINVAL.into())).collect()
}

/// Returns the parent and the start time of a process (proc_pid_stat(5)); `None` if it has ended.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything.
    let (_, fields) = text.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(1);
    Some((fields.next()?.parse().ok()?, fields.nth(17)?.parse().ok()?))
}

/// Makes a directory unless it exists. Returns true if it was made.
fn make_directory(directory: &Path) -> Result<bool> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        result => Ok(result.is_ok()),
    }
}

/// Makes a group for this process and its cells in the container's group, if an ordinary user may
/// write to that.
pub(super) fn for_user(root: &Path) -> Option<Parent> {
    let control = root.join("cgroup.subtree_control");
    if !is_container(root) || access(&control, AccessFlags::W_OK).is_err() {
        return None;
    }
    sweep(root);
    divide(root).ok()?;
    // Fails if the container has no share of the processors; cells then have no share either.
    put(&control, "+cpu").unwrap_or_default();
    let group = root.join(format!("{INSTANCE}{}", std::process::id()));
    let (directory, processors) = make_instance_group(&group).ok()?;
    Some(Parent::V2 { directory, processors })
}

/// Makes the group of this instance and moves this process into a leaf of it: the supervisor is
/// cloned from it.
fn make_instance_group(group: &Path) -> Result<(OwnedFd, ProcessorShares)> {
    let leaf = group.join("supervisor");
    make_directory(group)?;
    make_directory(&leaf)?;
    let processors = enable(group)?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(group, flags, Mode::empty())?;
    put(leaf.join("cgroup.procs"), "0")?;
    Ok((directory, processors))
}

/// Removes the groups of instances that have ended. The kernel keeps groups with processes.
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
            // EBUSY: a process is still in it; the next start tries again.
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

    /// A child process that sleeps; killed on drop.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Result<Self> {
            Command::new("sleep").arg("60").spawn().map(Self)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            // Either fails only if the child has ended already.
            self.0.kill().unwrap_or_default();
            self.0.wait().map(drop).unwrap_or_default();
        }
    }

    #[test]
    fn only_moved_processes_and_their_later_children_are_moved_back() -> Result<()> {
        let before = Sleeper::start()?;
        // Two ticks of the clock that the kernel uses for start times.
        std::thread::sleep(Duration::from_millis(20));
        let mut moves = Moves::begun()?;
        let after = Sleeper::start()?;
        let this_process = std::process::id();
        let [before, after] = [before.0.id(), after.0.id()];
        let all = [this_process, before, after, 1];
        assert_eq!(all.map(|pid| moves.includes(pid)), [false; 4]);
        let (_, start) = stat(this_process).ok_or(Errno::ESRCH)?;
        moves.moved.insert(Process { pid: this_process, start: start - 1 });
        assert_eq!(
            all.map(|pid| moves.includes(pid)),
            [false; 4],
            "an older process with the same pid"
        );
        moves.moved.insert(Process { pid: this_process, start });
        assert_eq!(all.map(|pid| moves.includes(pid)), [true, false, true, false]);
        Ok(())
    }
}
