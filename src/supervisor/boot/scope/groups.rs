//! The control groups of a scope: the limits of the current unit, and the layout of the cells'
//! groups.

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

/// The tightest limits of a unit and its ancestors, as systemd properties; `None` if there is no
/// limit. A process that enters a scope leaves its unit, and must not escape these limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UnitLimits {
    pub memory_max: Option<u64>,
    pub memory_high: Option<u64>,
    pub swap_max: Option<u64>,
    pub tasks_max: Option<u64>,
    /// Microseconds of processor time per second.
    pub cpu_quota: Option<u64>,
}

impl UnitLimits {
    /// Reads the limits of the group at `path`, in the form of `/proc/self/cgroup`, below the mount
    /// `root`.
    pub(crate) fn read(root: &Path, path: &str) -> Self {
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
        let tighten = |limit: &mut Option<u64>, other: Option<u64>| {
            *limit = limit.iter().copied().chain(other).min();
        };
        tighten(&mut self.memory_max, number("memory.max"));
        tighten(&mut self.memory_high, number("memory.high"));
        tighten(&mut self.swap_max, number("memory.swap.max"));
        tighten(&mut self.tasks_max, number("pids.max"));
        let quota = read("cpu.max").and_then(|text| {
            let mut words = text.split_ascii_whitespace();
            let quota = words.next()?;
            let period = words.next()?;
            let quota = quota.parse::<u64>().ok()?;
            let period = period.parse::<u64>().ok()?;
            quota.checked_mul(1_000_000)?.checked_div(period)
        });
        tighten(&mut self.cpu_quota, quota);
    }

    /// Returns the properties that set the limits; all have the type `t`.
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

/// Prepares the scope `unit` for the groups of cells. The process `pid` is in the scope and moves
/// into a leaf, because a group with processes cannot enable controllers for its children
/// (cgroups(7)).
///
/// # Errors
/// The reason why it cannot be prepared, for people.
pub(crate) fn arrange(unit: &str, pid: i32) -> Result<(OwnedFd, ProcessorShares), String> {
    let table = fs::read_to_string(format!("/proc/{pid}/cgroup"));
    let table = table.map_err(|error| format!("its group cannot be read: {}", in_words(&error)))?;
    // Checked despite the manager's answer: a group that is not ours must not be written to.
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

/// Returns true if version 2 is mounted with the memory controller.
pub(crate) fn unified() -> bool {
    fs::read_to_string(Path::new(ROOT).join("cgroup.controllers"))
        .is_ok_and(|text| text.split_ascii_whitespace().any(|name| name == "memory"))
}

/// Returns the limits of the unit of this process.
pub(crate) fn own_limits() -> UnitLimits {
    let group = own_cgroup("");
    group.map(|path| UnitLimits::read(Path::new(ROOT), &path)).unwrap_or_default()
}
