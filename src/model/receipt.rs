//! The protection of a call, in three words used exactly: measured, probed, configured.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::core_dumps::{self, CoreHandler};
use crate::egress::Egress;

/// The protection of one cell. Made by the supervisor before the job is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub profile: String,
    pub tier: Tier,
    pub measured: Measured,
    pub probed: Probed,
    pub configured: Configured,
}

/// Which set of mechanisms holds the cell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tier {
    /// Namespaces, Landlock, seccomp, limits, no capabilities: the floor.
    #[default]
    #[serde(rename = "namespaces+landlock+seccomp")]
    Full,
    /// Landlock, seccomp and limits alone: for where user namespaces are refused, and only where the
    /// operator asks for it by name.
    #[serde(rename = "landlock+seccomp")]
    Bare,
}

impl Tier {
    /// Its name, as receipts have it and as the operator types it.
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

/// Namespaces that the tier [`Tier::Bare`] shares with the host, and what follows from each.
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
/// Further protections that this tier lacks.
const UNBOUNDED: [&str; 3] = [
    "no /proc of its own, and none to read",
    "files are bounded one by one and not in sum: they are on a disk of the host",
    "modes, owners, times and attributes of files cannot be changed",
];

/// Stands before what of a workspace is not guarded in full.
pub const NOT_IN_FULL: &str = "; not guarded in full: ";

impl Receipt {
    /// Places in granted directories that are guarded by their names alone or not at all, and why.
    #[must_use]
    pub fn unguarded(&self) -> Option<&str> {
        let (_, notes) = self.configured.workspace.split_once(NOT_IN_FULL)?;
        Some(notes)
    }

    /// Returns the protections that the cell lacks: those of the tier [`Tier::Full`], by the namespaces that it was measured
    /// not to have, and one that no cell has where crashes are handed to a socket.
    #[must_use]
    pub fn lacks(&self) -> Vec<&'static str> {
        let own = |name: &str| self.measured.namespaces.iter().any(|one| one == name);
        let shared = SHARED.iter().filter(|(name, _)| !own(name)).map(|(_, what)| *what);
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

/// Seen from outside the cell in `/proc/<pid>` of the payload, before the job (proc_pid_status(5)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// `Seccomp: 2`, and how many filters the kernel counts.
    pub seccomp_filters: u32,
    pub no_new_privs: bool,
    /// True if all five capability sets were empty.
    pub capabilities_empty: bool,
    /// The payload's user id as the host sees it, and that it is not 0.
    pub host_uid: u32,
    /// Supplementary groups kept from the operator, as host ids; unprivileged, they cannot be dropped.
    pub supplementary_groups: Vec<u32>,
    /// Namespaces whose inode differs from the operator's; `time` is among them where the kernel has such,
    /// and where not, clocks tell how long the host runs.
    pub namespaces: Vec<String>,
    /// Mounts in the cell, and that each is read-only, nosuid or the cell's own.
    pub mounts: u32,
    /// Limits as `/proc/<pid>/limits` showed them: processes (init is counted), open files, file
    /// size. A job's own lower limits come after this look: those are configured.
    pub processes: u64,
    pub open_files: u64,
    pub file_size: u64,
    /// Network interfaces of a cell with egress: its loopback, and both ends of its link to the gateway.
    pub interfaces: Option<Vec<String>>,
}

/// Tried by the payload-to-be itself, and refused with the expected errno.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// A file that could be opened before Landlock and not after.
    pub landlock_path: String,
    pub new_namespace: String,
    pub packet_socket: String,
    /// A name that the host obeys, made in a writable grant; `not guarded` where there is none.
    pub guarded_name: String,
}

/// Set up and returned success, but not looked at from outside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configured {
    pub landlock_abi: u32,
    pub network: String,
    pub proc: String,
    pub memory: MemoryHold,
    pub memory_bytes: u64,
    /// Processes of the job, which lowers its limit itself just before exec.
    pub processes: u32,
    pub workspace: String,
    /// Names of the sockets of the host that it may connect to.
    pub unix_sockets: String,
    pub host_name: String,
    /// Taker of the memory of a process that crashes, as it was when the supervisor began.
    pub core_handler: CoreHandler,
    /// Rules of a cell with egress.
    pub egress: Option<EgressReceipt>,
}

/// The network that a cell with egress has by the gateway, in names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressReceipt {
    /// Ids of the rules.
    pub rules: Vec<String>,
    /// Hosts whose requests the gateway reads.
    pub intercepted: Vec<String>,
    /// Names of the secrets that it puts in, never their values.
    pub secrets: Vec<String>,
}

impl EgressReceipt {
    /// Returns that of a profile's network; nothing where it has no egress.
    #[must_use]
    pub fn of(egress: &Egress) -> Option<Self> {
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

/// How the memory limit of a cell is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryHold {
    #[serde(rename = "cgroup v2")]
    CgroupV2,
    #[serde(rename = "cgroup v1")]
    CgroupV1,
    /// RLIMIT_DATA, tmpfs caps and a watchdog: no bound in every case; SECURITY.md has the figures.
    #[serde(rename = "best-effort")]
    BestEffort,
}
