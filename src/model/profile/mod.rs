//! A profile as supervisor and cell use it: how a call is confined, with every value absolute and
//! bounded.
//!
//! `floor` has the verdict on every system call under a profile: conditions on `arguments`, calls
//! that are `never` allowed, and restrictions of the lower `tier`. The crate `profile` makes
//! profiles from files.
//!
//! *Invariant:* plain data and rules over it: no I/O, no TOML.

mod arguments;
pub mod calls;
pub mod condition;
pub mod floor;
pub mod name;
pub mod never;
mod options;
mod sockets;
pub mod tier;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

pub use arguments::HELD_DESCRIPTOR;
pub use sockets::{SOCKETS_DIRECTORY, SocketName, UnixSockets};

use serde::{Deserialize, Serialize};

use crate::call::{Argv, Cwd, Env};
use crate::egress::{Egress, EgressRule, NetworkClass};
use crate::job::Limits;
use crate::receipt::Tier;
use name::ProfileName;

/// A profile with every value absolute and bounded. Its bytes have what a file can set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    pub name: ProfileName,
    pub description: String,
    /// Host paths in the cell, read-only.
    pub paths: Vec<HostPath>,
    pub exec: Exec,
    /// Program that a pooled cell executes before its job comes.
    pub ahead: Option<Ahead>,
    /// True if the cell has a `/workspace`.
    pub workspace: bool,
    /// True if its `/etc` has the host's files that are as a package shipped them.
    pub packaged_etc: bool,
    pub proc: ProcView,
    /// Network of its cells beyond loopback, through the gateway.
    pub egress: Egress,
    pub families: BTreeSet<Family>,
    /// The host sockets that a cell may connect to.
    pub unix_sockets: UnixSockets,
    /// The sockets that the operator named at start; empty if `unix_sockets` forbids them.
    #[serde(skip)]
    pub granted_sockets: Vec<SocketName>,
    /// Numbers of the allowed system calls; `floor` adds conditions to some.
    pub calls: BTreeSet<u32>,
    /// Numbers of calls refused with EPERM without counting: probes that programs can do without.
    pub quiet: BTreeSet<u32>,
    /// Variables in addition to those of every cell.
    pub env: BTreeMap<String, String>,
    pub limits: Limits,
    pub requires: Requires,
    /// The tier of its cells, set by the operator and never by a file.
    #[serde(skip)]
    pub tier: Tier,
    /// Terminal of its only call, if the operator runs one interactively; never set by a file.
    #[serde(skip)]
    pub terminal: Option<TerminalSize>,
    /// True if programs of its only call can make pseudo-terminals, as with `cofferdam run`; never
    /// set by a file. In a session programs can make them whatever this says.
    #[serde(skip)]
    pub makes_terminals: bool,
    /// Author of commits, in the cell's `/etc/gitconfig` if a directory is granted.
    #[serde(skip)]
    pub git_identity: Option<GitIdentity>,
    /// Files with functions for the scripts of a project, below [`SCRIPTS`]; never set by a file.
    #[serde(skip)]
    pub script_sdk: &'static [(&'static str, &'static str)],
    /// Files in [`TRUST`], by name, by which cells trust the gateway's authority; never set by a
    /// file.
    #[serde(skip)]
    pub trust: Vec<(&'static str, Arc<[u8]>)>,
}

/// Directory of the certificates that cells trust where the gateway intercepts requests.
pub const TRUST: &str = "/etc/cofferdam-trust";

/// Directory of functions for a project's scripts in a cell.
pub const SCRIPTS: &str = "/etc/cofferdam";
/// Directory of programs for a project's scripts, in addition to the host's.
pub const SCRIPT_PROGRAMS: &str = "/etc/cofferdam/bin";

/// Name and email address for commits, as in git's `user.name` and `user.email`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GitIdentity {
    pub name: Option<String>,
    pub email: Option<String>,
}

/// Size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// A variable that points to downloads of the operator, which cells cannot add to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadedVariable {
    /// Host of the registry that they came from.
    pub registry: &'static str,
    pub value: String,
}

/// The operator's additions on the command line to every profile with a `/workspace`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfileAdditions {
    /// Variables of the environment.
    pub env: BTreeMap<String, String>,
    /// Variables that point to downloads, by name, for cells that cannot reach the registry.
    pub downloaded: BTreeMap<String, DownloadedVariable>,
    /// Memory of one cell in bytes, instead of the profile's.
    pub memory: Option<u64>,
    /// Destinations in addition to the profile's.
    pub egress: Vec<EgressRule>,
    /// Minimum network class of profiles with Internet sockets.
    pub network: NetworkClass,
}

/// The host name of every cell.
pub const HOST_NAME: &str = "cofferdam";
/// The directories in which a cell looks for programs, unless its profile or the call sets others.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The environment of every cell; profile and caller add to it.
const ENVIRONMENT: [(&str, &str); 9] = [
    ("HOME", "/tmp/home"),
    ("HOSTNAME", HOST_NAME),
    ("LANG", "C.UTF-8"),
    ("LOGNAME", "agent"),
    ("PAGER", "cat"),
    ("PATH", PATH),
    ("SHELL", "/bin/bash"),
    ("TERM", "dumb"),
    ("USER", "agent"),
];

impl Profile {
    /// Returns the variables of every program in its cells; a call adds to them.
    pub fn environment(&self) -> BTreeMap<&str, &str> {
        let mut all = BTreeMap::from(ENVIRONMENT);
        all.extend(self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        all
    }

    /// Applies the operator's additions if the profile has a `/workspace`.
    pub fn add(&mut self, additions: &ProfileAdditions) {
        if self.workspace {
            self.env.extend(additions.env.clone());
            self.limits.memory = additions.memory.unwrap_or(self.limits.memory);
            self.add_egress(&additions.egress);
            for (name, DownloadedVariable { registry, value }) in &additions.downloaded {
                if !self.egress.reaches(registry) {
                    self.env.insert(name.clone(), value.clone());
                }
            }
            if self.families.contains(&Family::Inet) {
                self.egress.class = self.egress.class.max(additions.network);
            }
        }
    }

    /// Adds egress rules, and the class and sockets that they need.
    pub fn add_egress(&mut self, rules: &[EgressRule]) {
        if rules.is_empty() {
            return;
        }
        self.egress.class = self.egress.class.max(NetworkClass::AllowList);
        self.egress.rules.extend_from_slice(rules);
        self.families.extend([Family::Inet, Family::Inet6]);
    }

    /// Returns true if a session can use the profile, as its shell must start programs.
    pub fn can_hold_a_shell(&self) -> bool {
        self.workspace && self.exec == Exec::Any && self.tier == Tier::Full
    }

    /// Returns true if its cells have `/dev/tty`, by which a program opens its controlling terminal.
    pub fn has_tty_device(&self) -> bool {
        self.makes_terminals || self.can_hold_a_shell()
    }

    /// Returns the profile of a tool that no rule allows: empty, with all limits zero.
    pub fn nothing() -> Self {
        Self {
            name: ProfileName::none(),
            description: String::new(),
            paths: Vec::new(),
            exec: Exec::Any,
            ahead: None,
            workspace: false,
            packaged_etc: false,
            proc: ProcView::None,
            egress: Egress::default(),
            families: BTreeSet::new(),
            unix_sockets: UnixSockets::None,
            granted_sockets: Vec::new(),
            calls: BTreeSet::new(),
            quiet: BTreeSet::new(),
            env: BTreeMap::new(),
            limits: Limits::none(),
            requires: Requires { landlock_abi: 2, memory_cgroup: false },
            tier: Tier::Full,
            terminal: None,
            makes_terminals: false,
            git_identity: None,
            script_sdk: &[],
            trust: Vec::new(),
        }
    }
}

/// A command that all jobs of a profile share except for their input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ahead {
    pub argv: Argv,
    pub env: Env,
}

impl Ahead {
    /// Returns the directory where it starts: a profile with such a program has no `/workspace`.
    pub fn cwd(&self) -> Cwd {
        Cwd::tmp()
    }
}

/// A host path in the cell, always read-only, nosuid and nodev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPath {
    /// Absolute path on the host.
    pub host: PathBuf,
    /// Absolute path in the cell.
    pub cell: PathBuf,
    pub kind: PathKind,
    /// Use of the profile on a host without the path: possible, or refused.
    pub presence: Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathKind {
    /// A file, or a directory with everything below it.
    Tree,
    /// A program: only its file, its interpreter (ld.so) and the shared libraries that it needs.
    Program,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Presence {
    Required,
    Optional,
}

/// Programs that a cell may execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exec {
    /// Any program in the cell.
    Any,
    /// Only this program, once, by an open descriptor: no other exec and no fork after it.
    Only(PathBuf),
}

/// Contents of `/proc` in the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcView {
    /// A procfs of the cell's pid namespace, with host information removed or replaced.
    Own,
    /// No procfs, for profiles inside containers that forbid mounting one.
    None,
}

impl ProcView {
    /// Returns its name, the value of the profile key `proc`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::None => "none",
        }
    }
}

/// Socket families that a profile may grant (socket(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Family {
    /// Local sockets (unix(7)).
    Unix,
    /// IPv4 (ip(7)).
    Inet,
    /// IPv6 (ipv6(7)).
    Inet6,
}

impl Family {
    /// Returns its name, a value of the profile key `sockets`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Inet => "inet",
            Self::Inet6 => "inet6",
        }
    }
}

/// Features of the host that the profile requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requires {
    /// Minimum Landlock ABI (at least 2).
    pub landlock_abi: u32,
    /// True if a cgroup must bound the memory.
    pub memory_cgroup: bool,
}
