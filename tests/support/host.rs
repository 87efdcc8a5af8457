//! Remains of a server on the host: compares the host before and after, and expects no difference.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use sys::process::{open_pidfd, signal};

use crate::support::{Caller, Check, Failed, equal, holds, patience, proc_file, status};

/// In the name of every file that the programs of these tests make in their private /tmp and /dev/shm.
pub const MARK: &str = "left-by-a-cell-";
/// Host ids of cells, as the built-in configuration has them.
const CELL_IDS: std::ops::Range<u32> = 2_000_000_000..2_000_065_536;

/// Mounts, shared memory and files, where a server could have made some.
#[derive(Debug, PartialEq, Eq)]
pub struct Host {
    mounts: BTreeSet<String>,
    namespaces_held: usize,
    shared: Vec<PathBuf>,
    system_v: Vec<String>,
    files: Vec<PathBuf>,
}

fn listing(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    all.sort();
    all
}

impl Host {
    /// Records what belongs to this caller or to cofferdam now.
    pub fn now(caller: &Caller) -> Result<Self, Failed> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let home = caller.home.display().to_string();
        let ours = |line: &&str| line.contains("cofferdam") || line.contains(&home);
        let marked = |path: &PathBuf| path.display().to_string().contains(MARK);
        let public = ["/dev/shm", "/tmp"].map(|directory| listing(Path::new(directory)));
        let mut system_v = Vec::new();
        for kind in ["shm", "sem", "msg"] {
            let table = std::fs::read_to_string(format!("/proc/sysvipc/{kind}"))?;
            // Objects with ids that only cells have. Other tests may run under the ordinary user's.
            let of_cells = |line: &&str| {
                let mut ids = line.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
                ids.any(|id| CELL_IDS.contains(&id))
            };
            system_v.extend(table.lines().skip(1).filter(of_cells).map(str::to_owned));
        }
        Ok(Self {
            mounts: mounts.lines().filter(ours).map(str::to_owned).collect(),
            // A namespace outlives its processes where its file is mounted somewhere.
            namespaces_held: mounts.lines().filter(|line| line.contains(" nsfs ")).count(),
            shared: public.into_iter().flatten().filter(marked).collect(),
            system_v,
            files: listing(&caller.home),
        })
    }
}

/// Processes and control groups of one server, as they were seen while it ran.
#[derive(Debug, Default)]
pub struct Seen {
    processes: BTreeSet<(u32, String)>,
    groups: BTreeSet<PathBuf>,
}

/// When a process started: with its pid it names one process for good.
fn started(pid: u32) -> Option<String> {
    let stat = String::from_utf8(proc_file(pid, "stat").ok()?).ok()?;
    let (_, after) = stat.rsplit_once(") ")?;
    after.split(' ').nth(19).map(str::to_owned)
}

impl Seen {
    /// Notes a process and all below it.
    pub fn look(&mut self, root: u32) {
        self.note(root);
        below(root).into_iter().for_each(|pid| self.note(pid));
    }

    fn note(&mut self, pid: u32) {
        let Some(start) = started(pid) else { return };
        self.processes.insert((pid, start));
        let groups = proc_file(pid, "cgroup").unwrap_or_default();
        for line in String::from_utf8_lossy(&groups).lines() {
            let mut parts = line.splitn(3, ':');
            if let (Some(_), Some(name), Some(path)) = (parts.next(), parts.next(), parts.next())
                && path.contains("/cofferdam-")
            {
                let tree = Path::new("/sys/fs/cgroup").join(name);
                self.groups.insert(tree.join(path.trim_start_matches('/')));
            }
        }
    }

    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// No process of them is left.
    pub fn gone(&self) -> Check {
        let alive = |(pid, start): &&(u32, String)| {
            let same = started(*pid).as_ref() == Some(start);
            same && status(*pid).is_ok_and(|status| !status.get("State").starts_with('Z'))
        };
        let end = Instant::now() + patience();
        while self.processes.iter().any(|one| alive(&one)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left: Vec<_> = self.processes.iter().filter(alive).collect();
        holds("no process is left", &left, left.is_empty())
    }

    /// No control group of them is left. A server that was killed could not remove its own: the
    /// next one that starts does.
    pub fn groups_gone(&self, caller: &Caller) -> Check {
        // A start has to have its turn at the number of the killed server, where others run too.
        let end = Instant::now() + patience();
        while self.groups_left() > 0 && Instant::now() < end {
            equal("the next", caller.run(&[], &["true"])?.code, 0)?;
        }
        equal("control groups", self.groups_left(), 0)
    }

    pub fn groups_left(&self) -> usize {
        self.groups.iter().filter(|group| group.exists()).count()
    }
}

/// Kills one process below `root`: never another that has its pid meanwhile.
pub fn kill_below(root: u32, choice: u64) -> bool {
    let below = below(root);
    let count = u64::try_from(below.len()).unwrap_or(0);
    let Some(victim) = usize::try_from(choice % count.max(1)).ok().and_then(|at| below.get(at))
    else {
        return false;
    };
    let Some(pidfd) = i32::try_from(*victim).ok().and_then(|pid| open_pidfd(pid).ok()) else {
        return false;
    };
    // Held now: if it is still below the root, it is the one that was meant.
    is_below(*victim, root) && signal(&pidfd, Signal::SIGKILL).is_ok()
}

/// Every process below `root`, from one look at the whole of /proc.
fn below(root: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut below = vec![root];
    let mut grown = true;
    while grown {
        let count = below.len();
        parents.retain(|(pid, parent)| {
            let is_below = below.contains(parent);
            if is_below {
                below.push(*pid);
            }
            !is_below
        });
        grown = below.len() > count;
    }
    below.split_off(1)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = String::from_utf8(proc_file(pid, "stat").ok()?).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Returns whether a process was started by `root`, or by one that was.
pub fn is_below(mut pid: u32, root: u32) -> bool {
    for _ in 0..16 {
        match parent(pid) {
            Some(parent) if parent == root => return true,
            Some(parent) if parent > 1 => pid = parent,
            Some(_) | None => return false,
        }
    }
    false
}
