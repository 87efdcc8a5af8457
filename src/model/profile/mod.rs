//! A profile as the supervisor and the cell have it: how a call is confined, every value absolute and
//! bounded.
//!
//! `floor` has the answer to every system call under a profile: what `arguments` may be given, what
//! `never` is allowed, and what the lower `tier` refuses. The crate `profile` makes profiles of files.
//!
//! *Invariant:* plain data and rules over it: nothing here does I/O or reads TOML.

mod arguments;
pub mod calls;
pub mod condition;
pub mod floor;
pub mod never;
mod options;
mod sockets;
pub mod tier;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

pub use arguments::HELD_DESCRIPTOR;
pub use sockets::{SOCKETS_DIRECTORY, SocketName, UnixSockets};

use crate::call::{Argv, Cwd, Env};
use crate::egress::{Egress, EgressRule, NetworkClass};
use crate::job::{Limits, ProfileName};
use crate::receipt::Tier;

/// A profile with every value absolute and bounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    pub name: ProfileName,
    pub description: String,
    /// Paths of the host in the cell, read-only.
    pub paths: Vec<HostPath>,
    pub exec: Exec,
    /// Program that a pooled cell has executed before its job comes.
    pub ahead: Option<Ahead>,
    /// True if the cell has a `/workspace`.
    pub workspace: bool,
    pub proc: ProcView,
    /// Network of its cells, beyond their own loopback by the gateway.
    pub egress: Egress,
    pub families: BTreeSet<Family>,
    /// Which sockets of the host a cell may connect to.
    pub unix_sockets: UnixSockets,
    /// Those that the operator named at start; none where the key above says so.
    pub granted_sockets: Vec<SocketName>,
    /// Numbers of the system calls that are allowed; `floor` adds conditions to some.
    pub calls: BTreeSet<u32>,
    /// Numbers of calls refused with EPERM and not counted: probes that programs make and do without.
    pub quiet: BTreeSet<u32>,
    /// Variables in addition to those of every cell.
    pub env: BTreeMap<String, String>,
    pub limits: Limits,
    pub requires: Requires,
    /// By what its cells are held: the operator's word, never a file's.
    pub tier: Tier,
    /// Terminal of its only call, for an operator who sits at one; never a file's word.
    pub terminal: Option<TerminalSize>,
    /// Author of commits, in the cell's `/etc/gitconfig` beside a granted directory.
    pub git_identity: Option<GitIdentity>,
    /// Files with functions for the scripts of a project, below [`SCRIPTS`]; never a file's word.
    pub script_sdk: &'static [(&'static str, &'static str)],
    /// Files in [`TRUST`] by which cells trust the gateway's authority, by their names; never a file's word.
    pub trust: Vec<(&'static str, Arc<[u8]>)>,
}

/// Directory of the certificates that cells trust where the gateway reads their requests.
pub const TRUST: &str = "/etc/cofferdam-trust";

/// Directory of the functions for a project's scripts in a cell.
pub const SCRIPTS: &str = "/etc/cofferdam";
/// Directory of the programs that scripts of a project have beside the host's.
pub const SCRIPT_PROGRAMS: &str = "/etc/cofferdam/bin";

/// Name and address for commits, as git's `user.name` and `user.email` have them.
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

/// Value of a variable that leads to downloads of the operator's, which cells cannot add to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadedVariable {
    /// Host of the registry that they are from.
    pub registry: &'static str,
    pub value: String,
}

/// Additions of the operator, on the command line, to every profile with a `/workspace`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProfileAdditions {
    /// Variables of the environment.
    pub env: BTreeMap<String, String>,
    /// Variables that lead to what the operator has downloaded, by their names: for cells that do not reach the registry.
    pub downloaded: BTreeMap<String, DownloadedVariable>,
    /// Bytes of memory of one cell, in place of the profile's.
    pub memory: Option<u64>,
    /// Destinations outside of the cell, in addition to the profile's.
    pub egress: Vec<EgressRule>,
    /// Least class of network of those with sockets for one.
    pub network: NetworkClass,
}

/// The host name of every cell.
pub const HOST_NAME: &str = "cofferdam";
/// The directories in which a cell looks for programs, unless its profile or the call says otherwise.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The environment of every cell, built from nothing; profile and caller add to it.
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
    /// Returns the variables that every program of its cells has; a call adds its own.
    pub fn environment(&self) -> BTreeMap<&str, &str> {
        let mut all = BTreeMap::from(ENVIRONMENT);
        all.extend(self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        all
    }

    /// Applies the operator's additions, where the profile has a `/workspace`.
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

    /// Adds rules of egress, and what the profile lacks for them to mean anything: the class, and sockets.
    pub fn add_egress(&mut self, rules: &[EgressRule]) {
        if rules.is_empty() {
            return;
        }
        self.egress.class = self.egress.class.max(NetworkClass::AllowList);
        self.egress.rules.extend_from_slice(rules);
        self.families.extend([Family::Inet, Family::Inet6]);
    }

    /// Returns true if a session can use the profile: a shell starts programs.
    pub fn can_hold_a_shell(&self) -> bool {
        self.workspace && self.exec == Exec::Any && self.tier == Tier::Full
    }

    /// Makes the profile of a tool that no rule allows: nothing in it, no limit above zero.
    pub fn nothing() -> Self {
        Self {
            name: ProfileName::none(),
            description: String::new(),
            paths: Vec::new(),
            exec: Exec::Any,
            ahead: None,
            workspace: false,
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
            git_identity: None,
            script_sdk: &[],
            trust: Vec::new(),
        }
    }
}

/// A command of which every job of the profile differs in its input alone, or is another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ahead {
    pub argv: Argv,
    pub env: Env,
}

impl Ahead {
    /// Returns the directory it starts in: a profile with such a program has no `/workspace`.
    pub fn cwd(&self) -> Cwd {
        Cwd::tmp()
    }
}

/// A host path that a cell has, always read-only, nosuid and nodev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPath {
    /// Absolute, as the host has it.
    pub host: PathBuf,
    /// Absolute, as the cell sees it.
    pub cell: PathBuf,
    pub kind: PathKind,
    /// Use of the profile on a host without the path: possible, or refused.
    pub presence: Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// A file, or a directory with all beneath it.
    Tree,
    /// A program: its file, its interpreter (ld.so) and the shared libraries it needs, and no more.
    Program,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Required,
    Optional,
}

/// Programs that a cell may execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exec {
    /// Any program in the cell.
    Any,
    /// This one program, once, by a held descriptor: no other exec and no fork after it.
    Only(PathBuf),
}

/// Contents of `/proc` in the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcView {
    /// A procfs of the cell's own pid namespace, the host's facts absent or replaced.
    Own,
    /// Nothing: the profile runs where a container forbids a procfs of its own.
    None,
}

impl ProcView {
    /// Returns the word of the profile key `proc`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::None => "none",
        }
    }
}

/// Socket families a profile may grant (socket(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Sockets of one machine (unix(7)).
    Unix,
    /// IPv4 (ip(7)).
    Inet,
    /// IPv6 (ipv6(7)).
    Inet6,
}

impl Family {
    /// Returns the word of the profile key `sockets`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Inet => "inet",
            Self::Inet6 => "inet6",
        }
    }
}

/// Features of the host without which the profile is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requires {
    /// Lowest Landlock ABI (2 at least).
    pub landlock_abi: u32,
    /// True if a cgroup must bound the memory.
    pub memory_cgroup: bool,
}
