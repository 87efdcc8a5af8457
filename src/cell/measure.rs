//! Measures a cell from outside before it gets a job: only properties that can be observed count.
//!
//! All values come from `/proc/<pid>` of the future program, as the kernel shows it to the
//! supervisor. A value that differs from what the floor demands refuses the cell.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::readlinkat;

use super::Design;
use super::ids::{HostIds, Supplementary};
use super::limits::{open_files, process_count};
use super::mounts::HIDDEN;
use super::proc::SUBSET;
use super::proc_files::{Fields, read_all, read_bytes};
use super::report::{Probes, raw};
use model::core_dumps::{self, CoreHandler};
use model::profile::ProcView;
use model::receipt::{Measured, NetworkOrigin, Probed};

/// Namespaces that must not be the operator's.
pub const NAMESPACES: [&str; 7] = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
/// A namespace that some kernels do not have.
const TIME: &str = "time";

/// Namespaces, ids and groups on the operator's side, recorded by `main` before any namespace was
/// entered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// Inodes of the operator's namespaces, in the order of [`NAMESPACES`], for example
    /// `net:[4026531840]`.
    pub namespaces: Vec<String>,
    /// Inode of the time namespace, if the kernel has these.
    pub time: Option<String>,
    /// Host ids of the uids and gids that the supervisor sees.
    pub uids: HostIds,
    pub gids: HostIds,
    /// Supplementary groups as host ids.
    pub supplementary_groups: Vec<u32>,
}

/// Reason for refusing a cell: the observed and the expected value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnfitCell(pub String);

impl From<Errno> for UnfitCell {
    fn from(errno: Errno) -> Self {
        Self(format!("/proc of the payload cannot be read: {errno}"))
    }
}

pub(super) fn demand(holds: bool, what: impl FnOnce() -> String) -> Result<(), UnfitCell> {
    if holds { Ok(()) } else { Err(UnfitCell(what())) }
}

/// Measures the process whose procfs directory is `process`.
///
/// # Errors
/// The first value that differs from what the floor demands.
pub fn payload(
    process: impl AsFd,
    design: &Design,
    operator: &Operator,
) -> Result<Measured, UnfitCell> {
    let status = Fields::read(&process, "status")?;
    let capabilities_empty = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"].iter().all(|set| {
        status.get(set).chars().all(|digit| digit == '0') && !status.get(set).is_empty()
    });
    demand(capabilities_empty, || "a capability set is not empty".to_owned())?;
    let no_new_privs = status.get("NoNewPrivs") == "1";
    demand(no_new_privs, || "no_new_privs is not set".to_owned())?;
    demand(status.get("Seccomp") == "2", || "no system call filter is loaded".to_owned())?;
    let seccomp_filters: u32 = status.get("Seccomp_filters").parse().unwrap_or(0);
    // The supervisor's and the profile's filter; kernels before 5.9 do not count them.
    demand(seccomp_filters >= 2, || format!("{seccomp_filters} filters where 2 belong"))?;
    let host_uid = one_id(status.get("Uid"), &operator.uids)?;
    let host_gid = one_id(status.get("Gid"), &operator.gids)?;
    demand(host_uid != 0 && host_gid != 0, || "the payload has host id 0".to_owned())?;
    let supplementary_groups = groups(status.get("Groups"), host_gid, operator)?;
    let dropped = design.ids.supplementary() == Supplementary::Dropped;
    demand(!dropped || supplementary_groups.is_empty(), || {
        format!("supplementary groups were left: {supplementary_groups:?}")
    })?;
    let namespaces = namespaces(&process, operator)?;
    let mounts = mounts(&process, design)?;
    let [processes, files, file_size] = limits(&process, design)?;
    Ok(Measured {
        seccomp_filters,
        no_new_privs,
        capabilities_empty,
        host_uid,
        supplementary_groups,
        namespaces,
        network_namespace: Some(NetworkOrigin::Fresh),
        mounts,
        processes,
        open_files: files,
        file_size,
        interfaces: design.network.as_ref().map(|_| interfaces(&process)).transpose()?,
    })
}

/// Returns the interfaces of the cell's network namespace (proc_pid_net(5)). It must have the link
/// to the gateway, and no interface of the host.
fn interfaces(process: impl AsFd) -> Result<Vec<String>, UnfitCell> {
    let table = read_all(&process, "net/dev")?;
    let names = interface_names(&table);
    let is_present = |name: &&str| names.iter().any(|one| one == name);
    demand(LINK.iter().all(is_present), || format!("interfaces {names:?} where {LINK:?} belong"))?;
    let other = names.iter().find(|name| !LINK.contains(&name.as_str()) && !is_fallback(name));
    demand(other.is_none(), || format!("an interface {other:?} that is not the cell's"))?;
    Ok(names)
}

/// Loopback, the cell's end of the link, and the end that the gateway reads.
const LINK: [&str; 3] = ["lo", "eth0", "out"];
/// Tunnels that some modules make in each new namespace (net.core.fb_tunnels_only_for_init_net).
/// They are down, and no program of a cell can bring them up.
const FALLBACKS: [&str; 10] = [
    "tunl0",
    "gre0",
    "gretap0",
    "erspan0",
    "ip_vti0",
    "ip6_vti0",
    "sit0",
    "ip6tnl0",
    "ip6gre0",
    "ip6erspan0",
];

fn is_fallback(name: &str) -> bool {
    FALLBACKS.contains(&name)
}

/// Parses the names in a table of interfaces: two header lines, then `name: numbers`.
fn interface_names(table: &str) -> Vec<String> {
    let named = table.lines().skip(2).filter_map(|line| line.split_once(':'));
    named.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Translates the four equal ids of a `Uid:` or `Gid:` line to the host's. The supervisor sees ids
/// through its user namespace.
fn one_id(line: &str, known: &HostIds) -> Result<u32, UnfitCell> {
    let ids: Vec<u32> = line.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect();
    match ids.as_slice() {
        [real, effective, saved, filesystem]
            if real == effective && effective == saved && saved == filesystem =>
        {
            known.host_id(*real).ok_or_else(|| UnfitCell("an id outside the map".to_owned()))
        }
        _ => Err(UnfitCell(format!("ids differ: {line}"))),
    }
}

/// Returns the host ids of a `Groups:` line, without the primary group.
///
/// A group that the supervisor's map lacks is shown as the overflow id, and cannot be identified.
/// If there are as many of these as groups of the operator that the map lacks, they must be the
/// same groups: an ordinary user wrote the map, setgroups(2) is denied for good, and the list can
/// only be the inherited one.
pub(super) fn groups(line: &str, primary: u32, operator: &Operator) -> Result<Vec<u32>, UnfitCell> {
    let shown: Vec<u32> = line.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect();
    let known = shown.iter().filter_map(|id| operator.gids.host_id(*id));
    let mut host_ids: Vec<u32> = known.filter(|id| *id != primary).collect();
    let unnamed = shown.iter().filter(|id| operator.gids.host_id(**id).is_none()).count();
    if unnamed > 0 {
        let named = |id: &&u32| !operator.gids.names(**id);
        let inherited: Vec<u32> =
            operator.supplementary_groups.iter().filter(named).copied().collect();
        demand(inherited.len() == unnamed, || {
            format!("{unnamed} unknown supplementary groups where {} belong", inherited.len())
        })?;
        host_ids.extend(inherited);
    }
    host_ids.sort_unstable();
    Ok(host_ids)
}

fn namespaces(process: impl AsFd, operator: &Operator) -> Result<Vec<String>, UnfitCell> {
    let mut names = Vec::new();
    for (name, operators) in NAMESPACES.iter().zip(&operator.namespaces) {
        let inode = readlinkat(&process, format!("ns/{name}").as_str())?;
        demand(inode.to_str() != Some(operators), || {
            format!("the {name} namespace is the operator's")
        })?;
        names.push((*name).to_owned());
    }
    demand(names.len() == NAMESPACES.len(), || "the operator's namespaces are unknown".to_owned())?;
    names.extend(own_time(process, operator)?);
    Ok(names)
}

/// Returns the name of the time namespace, unless it is the operator's.
fn own_time(process: impl AsFd, operator: &Operator) -> Result<Option<String>, UnfitCell> {
    let Some(operators) = &operator.time else { return Ok(None) };
    let inode = readlinkat(&process, format!("ns/{TIME}").as_str())?;
    Ok((inode.to_str() != Some(operators)).then(|| TIME.to_owned()))
}

impl Operator {
    /// Returns the time namespace of this process.
    #[must_use]
    pub fn time() -> Option<String> {
        let link = std::fs::read_link(format!("/proc/self/ns/{TIME}")).ok()?;
        Some(link.to_string_lossy().into_owned())
    }
}

/// Returns true for a mount point of the cell that is meant to be writable.
fn is_writable_mount(point: &[u8], design: &Design) -> bool {
    matches!(point, b"/tmp" | b"/dev/shm" | b"/workspace")
        || design.writable.iter().any(|path| {
            // Mounts that guard parts of a granted directory lie below it.
            let path = escaped(path);
            let rest = point.strip_prefix(path.as_slice());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        })
}

/// Escapes a path as mountinfo does (proc_pid_mountinfo(5)): blanks and backslashes in octal. Other
/// bytes are unchanged, as a name need not be UTF-8.
fn escaped(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes().iter();
    bytes
        .flat_map(|byte| match byte {
            b' ' => b"\\040".as_slice(),
            b'\t' => b"\\011",
            b'\n' => b"\\012",
            b'\\' => b"\\134",
            other => std::slice::from_ref(other),
        })
        .copied()
        .collect()
}

fn mounts(process: impl AsFd, design: &Design) -> Result<u32, UnfitCell> {
    let table = read_bytes(&process, "mountinfo")?;
    let mut count = 0;
    let mut covered = false;
    let mut proc = Proc::default();
    for line in table.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let unknown = || UnfitCell("mountinfo has an unknown shape".to_owned());
        let mut words = line.split(|byte| *byte == b' ');
        let id = words.next().ok_or_else(unknown)?;
        let parent = words.next().ok_or_else(unknown)?;
        let point = words.nth(2).ok_or_else(unknown)?;
        let options = words.next().ok_or_else(unknown)?;
        if point == b"/proc" {
            proc.add(id, parent, words.next_back().ok_or_else(unknown)?);
        }
        let demand = |holds: bool, what: &str| {
            demand(holds, || format!("{} is not {what}", String::from_utf8_lossy(point)))
        };
        let has = |option: &[u8]| options.split(|byte| *byte == b',').any(|word| word == option);
        demand(has(b"nosuid"), "nosuid")?;
        // The devices are bound one by one; no other can be created in their place.
        demand(has(b"nodev") || point.starts_with(b"/dev/"), "nodev")?;
        // The cell's procfs may be writable: entries that could do harm are hidden.
        covered |= point == b"/tmp";
        let hidden = point.starts_with(HIDDEN.as_bytes());
        let writable = is_writable_mount(point, design) || point == b"/proc" || hidden;
        demand(has(b"ro") || writable, "read-only")?;
        count += 1;
    }
    // The hidden store lies under /tmp, and a mount on /tmp makes it unreachable.
    demand(covered, || "/tmp is not the cell's own".to_owned())?;
    let shows_less = design.profile.proc == ProcView::None || proc.is_limited;
    demand(shows_less, || "/proc shows more than processes".to_owned())?;
    Ok(count)
}

/// The topmost mount at `/proc`.
#[derive(Default)]
struct Proc<'a> {
    id: &'a [u8],
    /// True if it shows only processes.
    is_limited: bool,
}

impl<'a> Proc<'a> {
    /// Adds the next mount at `/proc`, with the options of its filesystem.
    fn add(&mut self, id: &'a [u8], parent: &[u8], options: &[u8]) {
        if self.id.is_empty() || self.id == parent {
            let mut options = options.split(|byte| *byte == b',');
            let is_limited = options.any(|option| option == SUBSET.as_bytes());
            *self = Self { id, is_limited };
        }
    }
}

fn limits(process: impl AsFd, design: &Design) -> Result<[u64; 3], UnfitCell> {
    let (processes, files, file_size) = hard_limits(process, design)?;
    let max = process_count(&design.profile.limits);
    // Lower if the operator's limit is lower.
    demand(processes <= max, || format!("Max processes is above {max}"))?;
    Ok([processes, files, file_size])
}

/// Returns the hard limits on processes, open files and file size, after checking the last two.
pub(super) fn hard_limits(
    process: impl AsFd,
    design: &Design,
) -> Result<(u64, u64, u64), UnfitCell> {
    let table = read_all(&process, "limits")?;
    // Columns are at fixed positions: name, soft limit, hard limit, unit (proc_pid_limits(5)).
    let hard = |name: &str| {
        table
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
    };
    let within = |name: &str, max: u64| {
        let seen = hard(name).filter(|seen| *seen <= max);
        seen.ok_or_else(|| UnfitCell(format!("{name} is above {max}")))
    };
    let limits = &design.profile.limits;
    let files = u64::from(open_files(limits, &design.profile.exec));
    core_limits(&process, &table)?;
    let processes = within("Max processes", u64::MAX)?;
    Ok((processes, within("Max open files", files)?, within("Max file size", limits.file_size)?))
}

/// Checks that a crash of the process starts no program of the host, by its core file limit.
fn core_limits(process: impl AsFd, table: &str) -> Result<(), UnfitCell> {
    let line = table.lines().find_map(|line| line.strip_prefix("Max core file size"));
    let words = line.unwrap_or_default().split_ascii_whitespace().take(2);
    let seen: Vec<&str> = words.collect();
    let [soft, hard] =
        [seen.first(), seen.get(1)].map(|word| word.and_then(|word| word.parse().ok()));
    // The pattern may have changed since the supervisor started.
    let may_have = |(soft, hard)| {
        (soft, hard) == (core_dumps::LIMIT, core_dumps::LIMIT)
            || handler_of(process).may_have(soft, hard)
    };
    demand(soft.zip(hard).is_some_and(may_have), || {
        format!("the limit of core files is {}, and not 1 1", seen.join(" "))
    })
}

/// Reads the core dump handler from the procfs that contains this process.
fn handler_of(process: impl AsFd) -> CoreHandler {
    match read_bytes(process, "../sys/kernel/core_pattern") {
        Ok(pattern) => CoreHandler::of_pattern(&pattern),
        Err(_) => CoreHandler::Unknown,
    }
}

/// Checks the results of the payload's probes.
///
/// # Errors
/// A probe that succeeded, or failed with an unexpected errno.
pub fn probes(probes: Probes, design: &Design) -> Result<Probed, UnfitCell> {
    let met = |what: &str, errno: i32, wanted: Errno| {
        demand(errno == raw(wanted), || {
            let got = if errno == 0 {
                "was let through".to_owned()
            } else {
                format!("met {:?}", Errno::from_raw(errno))
            };
            format!("{what} {got} where {wanted:?} belongs")
        })?;
        Ok::<_, UnfitCell>(format!("{wanted:?}"))
    };
    let guarded_name = match (design.guards_names(), probes.names) {
        (false, _) => "not guarded".to_owned(),
        (true, None) => return Err(UnfitCell("the guard of names was not tried".to_owned())),
        (true, Some((refused, there))) => {
            demand(there != raw(Errno::EACCES), || {
                "the workspace's mode keeps its own user out: chmod u+rwx on the host".to_owned()
            })?;
            // EPERM here: init cannot read the arguments of the call (kernel.yama.ptrace_scope
            // above 1).
            met("a directory that is there already", there, Errno::EEXIST)?;
            met("a guarded name", refused, Errno::EPERM)?
        }
    };
    Ok(Probed {
        guarded_name,
        landlock_path: met("the canary file", probes.canary, Errno::EACCES)?,
        new_namespace: met("a new user namespace", probes.namespace, Errno::EPERM)?,
        packet_socket: met("a packet socket", probes.packet, Errno::EPERM)?,
    })
}

#[cfg(test)]
#[path = "measure_tests.rs"]
mod tests;
