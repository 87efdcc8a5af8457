//! The receipt of a call: which protections were measured, probed or configured.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::core_dumps::{self, CoreHandler};
use crate::egress::Egress;

/// The protections of one cell. Made by the supervisor before the job is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub profile: String,
    pub tier: Tier,
    pub measured: Measured,
    pub probed: Probed,
    pub configured: Configured,
}

/// The set of mechanisms that confine the cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tier {
    /// Namespaces, Landlock, seccomp, limits, no capabilities: the default.
    #[default]
    #[serde(rename = "namespaces+landlock+seccomp")]
    Full,
    /// Only Landlock, seccomp and limits: for hosts that refuse user namespaces, and only if the
    /// operator requests it by name.
    #[serde(rename = "landlock+seccomp")]
    Bare,
}

impl Tier {
    /// Returns its name, as in receipts and as the operator types it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "namespaces+landlock+seccomp",
            Self::Bare => "landlock+seccomp",
        }
    }
}

impl std::str::FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Full, Self::Bare];
        known.into_iter().find(|tier| tier.name() == text).ok_or_else(|| {
            let names = known.map(Self::name).join(" and ");
            format!("no tier `{text}`; there are {names}")
        })
    }
}

/// Namespaces that [`Tier::Bare`] shares with the host, and what follows from each.
const SHARED: [(&str, &str); 8] = [
    ("user", "no ids of its own: cells have the id of their supervisor"),
    ("mnt", "no root of its own: names, sizes and owners of the host's files can be asked for"),
    ("pid", "no pid namespace: that processes of the host are there can be asked"),
    ("net", "no network namespace: no socket can be made but pairs"),
    ("ipc", "no ipc namespace: System V and POSIX objects are refused"),
    ("uts", "the host's name is shown"),
    ("cgroup", "the host's control groups are shown where they can be read"),
    ("time", "no time namespace: clocks tell how long the host runs"),
];
/// Further protections that [`Tier::Bare`] lacks.
const UNBOUNDED: [&str; 3] = [
    "no /proc of its own, and none to read",
    "files are bounded one by one and not in sum: they are on a disk of the host",
    "modes, owners, times and attributes of files cannot be changed",
];

/// Separates a workspace's description from its paths that are not fully guarded.
pub const NOT_IN_FULL: &str = "; not guarded in full: ";

impl Receipt {
    /// Returns the paths in granted directories that are guarded by name only or not at all, and
    /// why.
    #[must_use]
    pub fn unguarded(&self) -> Option<&str> {
        let (_, notes) = self.configured.workspace.split_once(NOT_IN_FULL)?;
        Some(notes)
    }

    /// Returns the protections that the cell lacks: those of [`Tier::Full`], by the namespaces that
    /// it was measured not to have, and protection against a socket as crash handler.
    #[must_use]
    pub fn lacks(&self) -> Vec<&'static str> {
        let has = |name: &str| self.measured.namespaces.iter().any(|one| one == name);
        let shared = SHARED.iter().filter(|(name, _)| !has(name)).map(|(_, what)| *what);
        let mut lacks: Vec<&str> = match self.tier {
            Tier::Full => Vec::new(),
            Tier::Bare => shared.chain(UNBOUNDED).collect(),
        };
        if self.configured.core_handler == CoreHandler::Socket {
            lacks.push(core_dumps::SOCKET_NOTE);
        }
        lacks
    }
}

/// Read from outside the cell in `/proc/<pid>` of the payload, before the job (proc_pid_status(5)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Number of filters that the kernel counts, with `Seccomp: 2`.
    pub seccomp_filters: u32,
    pub no_new_privs: bool,
    /// True if all five capability sets were empty.
    pub capabilities_empty: bool,
    /// The payload's user id on the host, which is not 0.
    pub host_uid: u32,
    /// Supplementary groups kept from the operator, as host ids; an unprivileged supervisor cannot
    /// drop them.
    pub supplementary_groups: Vec<u32>,
    /// Namespaces whose inode differs from the operator's. `time` is missing if the kernel has no
    /// time namespaces; clocks then show the host's uptime.
    pub namespaces: Vec<String>,
    /// Origin of the network namespace; `None` in a tier without one.
    pub network_namespace: Option<NetworkOrigin>,
    /// Number of mounts in the cell, each read-only, nosuid or private to the cell.
    pub mounts: u32,
    /// Limits as shown in `/proc/<pid>/limits`: processes (including init), open files, file size.
    /// A job may lower them after this check; those are configured.
    pub processes: u64,
    pub open_files: u64,
    pub file_size: u64,
    /// Network interfaces of a cell with egress: loopback, and both ends of the link to the
    /// gateway.
    pub interfaces: Option<Vec<String>>,
}

/// Origin of a cell's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkOrigin {
    /// No cell had it before.
    Fresh,
    /// Cells had it before, and no program of theirs made a socket.
    Untouched,
}

/// Tried by the future payload itself, and refused with the expected errno.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// A file that could be opened before Landlock was enabled and not after.
    pub landlock_path: String,
    pub new_namespace: String,
    pub packet_socket: String,
    /// A guarded name, tried in a writable grant; `not guarded` without one.
    pub guarded_name: String,
}

/// Set up successfully, but not checked from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configured {
    pub landlock_abi: u32,
    pub network: String,
    pub proc: String,
    pub memory: MemoryHold,
    pub memory_bytes: u64,
    /// Process limit of the job, which is lowered just before exec.
    pub processes: u32,
    pub workspace: String,
    /// Names of the host's sockets that the cell may connect to.
    pub unix_sockets: String,
    pub host_name: String,
    /// The host's crash handler, as it was when the supervisor started.
    pub core_handler: CoreHandler,
    /// Egress rules of the cell.
    pub egress: Option<EgressReceipt>,
}

/// The network that the gateway gives a cell with egress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressReceipt {
    /// Ids of the rules.
    pub rules: Vec<String>,
    /// Hosts whose requests are intercepted.
    pub intercepted: Vec<String>,
    /// Names of the secrets that are put in, never their values.
    pub secrets: Vec<String>,
}

impl EgressReceipt {
    /// Returns the egress part of a receipt; `None` without egress.
    #[must_use]
    pub fn new(egress: &Egress) -> Option<Self> {
        let sorted = |names: BTreeSet<String>| names.into_iter().collect();
        let read = egress.rules.iter().filter(|rule| rule.intercepts());
        let hosts = read.flat_map(|rule| &rule.hosts).map(ToString::to_string);
        let secrets =
            egress.rules.iter().filter_map(|rule| Some(rule.secret.as_ref()?.name.clone()));
        egress.class.has_egress().then(|| Self {
            rules: egress.rules.iter().map(|rule| rule.id.clone()).collect(),
            intercepted: sorted(hosts.collect()),
            secrets: sorted(secrets.collect()),
        })
    }
}

/// How the memory limit of a cell is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryHold {
    #[serde(rename = "cgroup v2")]
    CgroupV2,
    #[serde(rename = "cgroup v1")]
    CgroupV1,
    /// RLIMIT_DATA, tmpfs limits and a watchdog: not a bound in every case; SECURITY.md has the
    /// figures.
    #[serde(rename = "best-effort")]
    BestEffort,
}
