//! The filter's verdict on every system call: the profile's list, and conditions that no profile
//! can relax. Does no I/O: the compiler in `cell/seccomp` turns the verdicts into BPF.

use std::collections::BTreeMap;

use super::arguments;
use super::calls::{name, number};
use super::condition::Verdict;
use super::never::{
    ABSENT, FORKS, LENDS_PAGES, NEEDS_MEMORY_CGROUP, NEVER, ON_REQUEST, RefusedGroup,
    WITHOUT_EFFECT, keyed, reason,
};
use super::{Exec, Profile, tier};
use crate::receipt::{MemoryHold, Tier};

/// The call that a cell's init answers if the profile lists it: the kernel would reveal memory,
/// load and uptime of the host, and the C library sizes programs by it (sysinfo(2)).
pub const ANSWERED: &str = "sysinfo";

/// The call that a cell's init decides if it would make shared memory without a file and no control
/// group bounds the memory.
pub const SHARES: &str = "mmap";

/// The call that makes System V shared memory. A cell's init decides it if the profile lists the
/// call and no control group bounds the memory.
const SEGMENTS: &str = "shmget";

/// Returns the number of the call by which init is asked for System V shared memory; `None` if the
/// profile does not allow such memory, or a control group bounds it.
#[must_use]
pub fn asked_for_segments(profile: &Profile, memory: MemoryHold) -> Option<u32> {
    let is_listed = |call: &u32| profile.calls.contains(call);
    match (profile.tier, memory) {
        (Tier::Full, MemoryHold::BestEffort) => number(SEGMENTS).filter(is_listed),
        // Without an IPC namespace it is refused.
        (Tier::Bare, _) | (_, MemoryHold::CgroupV1 | MemoryHold::CgroupV2) => None,
    }
}

/// The call, and its option, by which a process becomes the parent of orphans. A cell's init decides it if
/// the profile lists the call and no control group bounds the memory.
pub const SUBREAPER: (&str, u32) = ("prctl", arguments::SUBREAPER);

/// Returns the verdict on each call that has one. Calls without one are denied and counted.
#[must_use]
pub fn verdicts(profile: &Profile, memory: MemoryHold) -> BTreeMap<u32, Verdict> {
    let mut verdicts: BTreeMap<u32, Verdict> = BTreeMap::new();
    for call in &profile.quiet {
        verdicts.insert(*call, Verdict::Errno(libc::EPERM));
    }
    for call in &profile.calls {
        match granted(&name(*call), profile, memory) {
            Some(verdict) => verdicts.insert(*call, verdict),
            // Removed from the quiet calls too: a denial of what was requested is reported.
            None => verdicts.remove(call),
        };
    }
    for (call, verdict) in arguments::exec(&profile.exec) {
        insert(&mut verdicts, call, verdict);
    }
    for (call, verdict) in arguments::sockets(&profile.families, profile.egress.class) {
        insert(&mut verdicts, call, verdict);
    }
    if profile.tier == Tier::Bare {
        tier::without_sockets(profile, &mut verdicts);
        tier::without_attributes(&mut verdicts);
    }
    for absent in ABSENT.iter().flat_map(|group| group.names) {
        insert(&mut verdicts, absent, Verdict::Errno(libc::ENOSYS));
    }
    for ignored in without_effect() {
        insert(&mut verdicts, ignored, Verdict::Errno(0));
    }
    verdicts
}

fn insert(verdicts: &mut BTreeMap<u32, Verdict>, call: &str, verdict: Verdict) {
    if let Some(call) = number(call) {
        verdicts.insert(call, verdict);
    }
}

/// Returns the verdict on a call that the profile lists; `None` if the floor denies it
/// nevertheless.
///
/// `resolve` has refused such names already. The floor does not rely on that, as a `Profile` can be
/// made in other ways.
fn granted(call: &str, profile: &Profile, memory: MemoryHold) -> Option<Verdict> {
    // A number without a name has not been reviewed.
    if number(call).is_none() || reason(call).is_some() || keyed(call).is_some() {
        return None;
    }
    if tier::reason(profile.tier, call).is_some() {
        return None;
    }
    if memory == MemoryHold::BestEffort && NEEDS_MEMORY_CGROUP.contains(&call) {
        return None;
    }
    if matches!(profile.exec, Exec::Only(_)) && FORKS.contains(&call) {
        return None;
    }
    if call == ANSWERED {
        return Some(Verdict::Answered);
    }
    if memory == MemoryHold::BestEffort
        && LENDS_PAGES.contains(&call)
        && !profile.families.is_empty()
    {
        return Some(Verdict::Errno(libc::EINVAL));
    }
    let narrowed =
        tier::condition(profile.tier, call).or_else(|| arguments::condition(call, memory));
    Some(narrowed.unwrap_or(Verdict::Allow))
}

/// Returns the verdict on a call that every cell needs, whatever its profile lists.
#[must_use]
pub fn conditioned(call: &str, memory: MemoryHold) -> Verdict {
    arguments::condition(call, memory).unwrap_or(Verdict::Allow)
}

/// The key that lets a cell execute any program, and so start processes.
pub const EXEC_ANY: &str = "exec = { program = \"any\" }";

/// Advice before a program gets processes: many libraries start a thread per processor, but work
/// without.
const ONE_THREAD: &str = "where a library only starts threads (BLAS, OpenMP), \
    [env] set = { OPENBLAS_NUM_THREADS = \"1\", OMP_NUM_THREADS = \"1\" } or the program's own setting is enough; \
    where it needs processes,";

/// The change of a profile that would allow a denied call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grantable {
    /// This line in the profile.
    Key(String),
    /// This line in the profile, and any program: a profile with a single program may not fork.
    CallAndExec(String),
    /// A memory cgroup for the cells, and this line if the profile lacks it.
    MemoryCgroup(Option<String>),
    /// No change: the call is allowed, but not with these arguments.
    Arguments(&'static str),
    /// No change, for this reason.
    Never(&'static str),
}

impl Grantable {
    /// Returns the grant for a reply; `None` if there is no grant.
    #[must_use]
    pub fn grant(&self) -> Option<String> {
        match self {
            Self::Key(line) => Some(line.clone()),
            Self::CallAndExec(line) if line.contains("\"clone\"") => {
                Some(format!("{ONE_THREAD} {EXEC_ANY} and {line}"))
            }
            Self::CallAndExec(line) => Some(format!("{EXEC_ANY} and {line}")),
            Self::MemoryCgroup(None) => Some("a memory cgroup for the cells".to_owned()),
            Self::MemoryCgroup(Some(line)) => Some(format!("{line}, and a memory cgroup")),
            Self::Arguments(_) | Self::Never(_) => None,
        }
    }

    /// Returns why there is no grant.
    #[must_use]
    pub fn reason_for_none(&self) -> Option<&'static str> {
        match self {
            Self::Key(_) | Self::CallAndExec(_) | Self::MemoryCgroup(_) => None,
            Self::Arguments(reason) | Self::Never(reason) => Some(reason),
        }
    }
}

/// Returns the change of the profile that would allow a denied call.
#[must_use]
pub fn grant_for(call: u32, profile: &Profile) -> Grantable {
    let name = name(call);
    if let Some(reason) = reason(&name) {
        return Grantable::Never(reason);
    }
    if let Some(reason) = tier::reason(profile.tier, &name) {
        return Grantable::Never(reason);
    }
    if number(&name).is_none() {
        return Grantable::Never("this version does not know the call");
    }
    match keyed(&name) {
        Some("exec") => return Grantable::Key(EXEC_ANY.to_owned()),
        Some(_) => return sockets_grant(profile),
        None => {}
    }
    let line = format!("[[syscalls]] names = [\"{name}\"]");
    let listed = profile.calls.contains(&call);
    if matches!(profile.exec, Exec::Only(_)) && FORKS.contains(&name.as_str()) {
        return match listed {
            true => Grantable::Key(EXEC_ANY.to_owned()),
            false => Grantable::CallAndExec(line),
        };
    }
    if NEEDS_MEMORY_CGROUP.contains(&name.as_str()) {
        return Grantable::MemoryCgroup((!listed).then_some(line));
    }
    match tier::narrowed(profile.tier, &name).or_else(|| arguments::refused(&name)) {
        Some(why) if listed => Grantable::Arguments(why),
        _ => Grantable::Key(line),
    }
}

/// Returns the change for a denied `socket`: its family is not granted yet, or never can be.
fn sockets_grant(profile: &Profile) -> Grantable {
    let missing: Vec<String> = arguments::FAMILIES
        .iter()
        .filter(|(family, ..)| !profile.families.contains(family))
        .map(|(_, name, _)| format!("\"{name}\""))
        .collect();
    if missing.is_empty() {
        return Grantable::Arguments(
            "only stream and datagram sockets of unix, inet and inet6 exist",
        );
    }
    Grantable::Key(format!("sockets = {{ families = [{}] }}", missing.join(", ")))
}

/// Returns the floor's condition on an allowed call in words, if it has one.
#[must_use]
pub fn condition(call: &str) -> Option<&'static str> {
    match call {
        "execveat" => Some("the profile's one program, once, by its held descriptor"),
        "socket" | "socketpair" => Some(
            "stream, datagram and sequenced-packet sockets of the granted families; with inet or inet6 also route netlink, which asks for the cell's interfaces and changes nothing",
        ),
        SHARES => Some(
            "without a control group, shared memory without a file is ENOMEM beyond the cell's limit",
        ),
        SEGMENTS => {
            Some("without a control group, a new segment is ENOSPC beyond the cell's limit")
        }
        ANSWERED => Some("answered with the cell's own memory; load and uptime are made up"),
        _ if without_effect().any(|name| name == call) => {
            Some("answered 0 without effect in every profile")
        }
        _ if needs_memory_cgroup(call) => {
            Some("only where a memory cgroup holds the cell's memory")
        }
        _ => arguments::refused(call),
    }
}

/// Returns true if a call is only allowed when a cgroup bounds the cell's memory.
#[must_use]
pub fn needs_memory_cgroup(call: &str) -> bool {
    NEEDS_MEMORY_CGROUP.contains(&call)
}

/// Returns the calls that no profile grants, in groups that share a reason, each with its errno.
pub fn never() -> impl Iterator<Item = (RefusedGroup, i32)> {
    let denied = NEVER.iter().map(|group| (*group, libc::EPERM));
    denied.chain(ABSENT.iter().map(|group| (*group, libc::ENOSYS)))
}

/// Returns the calls that every profile answers with 0, and the kernel does not execute.
pub fn without_effect() -> impl Iterator<Item = &'static str> {
    WITHOUT_EFFECT.iter().flat_map(|group| group.names.iter().copied())
}

/// Returns the risk of granting a call that no shipped profile grants.
#[must_use]
pub fn caution(call: &str) -> Option<&'static str> {
    ON_REQUEST.iter().find(|group| group.names.contains(&call)).map(|group| group.why)
}

/// Returns every call that the floor classifies by name, outside the shipped profiles.
pub fn classified() -> impl Iterator<Item = &'static str> {
    let groups = NEVER.iter().chain(ABSENT).chain(ON_REQUEST).chain(WITHOUT_EFFECT);
    let groups = groups.flat_map(|group| group.names);
    let keyed = super::never::KEYED.iter().flat_map(|(_, names)| names.iter());
    groups.chain(keyed).copied()
}
