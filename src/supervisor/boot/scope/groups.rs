//! The control groups of a scope: what its unit's limits are, and how the groups of cells come below it.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use crate::boot::control_files::{enable, own_cgroup, put};
use cell::cgroup::ProcessorShares;
use model::outcome::in_words;

/// Mount point of version 2.
const ROOT: &str = "/sys/fs/cgroup";

/// The narrowest limits of a unit and of all that it is in, as systemd's properties have them; `None` where
/// there is none. A process that goes into a scope leaves its unit, and must not leave these.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UnitLimits {
    pub memory_max: Option<u64>,
    pub memory_high: Option<u64>,
    pub swap_max: Option<u64>,
    pub tasks_max: Option<u64>,
    /// Microseconds of processor time a second.
    pub cpu_quota: Option<u64>,
}

impl UnitLimits {
    /// Reads those of the group at `path`, as `/proc/self/cgroup` has it, below the mount `root`.
    pub(crate) fn of(root: &Path, path: &str) -> Self {
        let mut limits = Self::default();
        let relative = Path::new(path.trim_start_matches('/'));
        if relative.components().any(|part| part == Component::ParentDir) {
            return limits;
        }
        for group in relative.ancestors() {
            limits.narrow(&root.join(group));
        }
        limits
    }

    fn narrow(&mut self, group: &Path) {
        let read = |file: &str| fs::read_to_string(group.join(file)).ok();
        // "max", or bytes.
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let least = |held: &mut Option<u64>, found: Option<u64>| {
            *held = held.iter().copied().chain(found).min();
        };
        least(&mut self.memory_max, number("memory.max"));
        least(&mut self.memory_high, number("memory.high"));
        least(&mut self.swap_max, number("memory.swap.max"));
        least(&mut self.tasks_max, number("pids.max"));
        let quota = read("cpu.max").and_then(|text| {
            let mut words = text.split_ascii_whitespace();
            let quota = words.next()?;
            let period = words.next()?;
            let quota = quota.parse::<u64>().ok()?;
            let period = period.parse::<u64>().ok()?;
            quota.checked_mul(1_000_000)?.checked_div(period)
        });
        least(&mut self.cpu_quota, quota);
    }

    /// The properties that set them, all of the type `t`.
    pub(crate) fn properties(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("MemoryMax", self.memory_max),
            ("MemoryHigh", self.memory_high),
            ("MemorySwapMax", self.swap_max),
            ("TasksMax", self.tasks_max),
            ("CPUQuotaPerSecUSec", self.cpu_quota),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

/// Makes room for the groups of cells in the scope `unit`, in which the process `pid` is: that goes into a leaf,
/// as a group with processes in it gives no controller to its children (cgroups(7)).
///
/// # Errors
/// What stands in the way, in words.
pub(crate) fn arrange(unit: &str, pid: i32) -> Result<(OwnedFd, ProcessorShares), String> {
    let table = fs::read_to_string(format!("/proc/{pid}/cgroup"));
    let table = table.map_err(|error| format!("its group cannot be read: {}", in_words(&error)))?;
    // Looked at, whatever the manager said: nothing is written in a group that is not ours.
    let path = table.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = path.filter(|path| path.rsplit('/').next() == Some(unit));
    let scope = Path::new(ROOT).join(path.ok_or("the supervisor is not in its scope")?);
    let failed = |what: &str, error: &std::io::Error| format!("{what}: {}", in_words(error));
    let leaf = scope.join("supervisor");
    fs::create_dir(&leaf).map_err(|error| failed("the scope is not delegated", &error))?;
    put(leaf.join("cgroup.procs"), pid.to_string())
        .map_err(|error| failed("the supervisor cannot be moved in its scope", &error))?;
    let processors = enable(&scope)
        .map_err(|error| failed("the scope has no controllers of memory and processes", &error))?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = open(&scope, flags, Mode::empty())
        .map_err(|errno| format!("the scope cannot be opened: {errno}"))?;
    Ok((directory, processors))
}

/// Returns whether version 2 is what is mounted, with the controller of memory.
pub(crate) fn unified() -> bool {
    fs::read_to_string(Path::new(ROOT).join("cgroup.controllers"))
        .is_ok_and(|text| text.split_ascii_whitespace().any(|name| name == "memory"))
}

/// The limits of the unit that this process is in.
pub(crate) fn own_limits() -> UnitLimits {
    let own = own_cgroup("");
    own.map(|path| UnitLimits::of(Path::new(ROOT), &path)).unwrap_or_default()
}
