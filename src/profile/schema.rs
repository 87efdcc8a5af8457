//! A profile as its TOML file has it. Every table that grants something has a `why`.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::{Family, Network, ProcView, UnixSockets};
use model::units::{Processors, Size, Time};

/// One file of `sandbox-profiles/`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    #[serde(rename = "schema")]
    _schema: i64,
    pub name: Spanned<String>,
    pub description: String,
    /// The profile that this one adds to.
    pub extends: Option<Spanned<String>>,
    /// Programs that may be executed. A profile without it can only be extended.
    pub exec: Option<WrittenExec>,
    /// How a cell that waits executes it before its job is there.
    pub ahead: Option<WrittenAhead>,
    pub workspace: Option<WrittenWorkspace>,
    pub proc: Option<WrittenProc>,
    pub network: Option<WrittenNetwork>,
    pub sockets: Option<WrittenSockets>,
    pub unix_sockets: Option<WrittenUnixSockets>,
    #[serde(default, rename = "path")]
    pub paths: Vec<WrittenPath>,
    #[serde(default)]
    pub syscalls: Vec<WrittenCalls>,
    /// Calls refused with EPERM and not counted.
    #[serde(default)]
    pub quiet: Vec<WrittenCalls>,
    pub env: Option<WrittenEnv>,
    #[serde(default)]
    pub limits: WrittenLimits,
    #[serde(default)]
    pub requires: WrittenRequires,
}

/// `exec = { program = "any" | "/absolute/path", why = "…" }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenExec {
    pub program: Spanned<String>,
    pub why: Spanned<String>,
}

/// `ahead = { argv = ["bc", "-q"], env = { NAME = "value" }, why = "…" }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenAhead {
    pub argv: Spanned<Vec<String>>,
    #[serde(default)]
    pub env: BTreeMap<String, Spanned<String>>,
    pub why: Spanned<String>,
}

/// `workspace = { why = "…" }`: its presence is the grant.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenWorkspace {
    pub why: Spanned<String>,
}

/// `proc = { view = "own", why = "…" }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenProc {
    pub view: ProcView,
    pub why: Spanned<String>,
}

/// `network = { class = "loopback", why = "…" }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenNetwork {
    pub class: Network,
    pub why: Spanned<String>,
}

/// `sockets = { families = ["unix"], why = "…" }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenSockets {
    pub families: Vec<Family>,
    pub why: Spanned<String>,
}

/// `unix_sockets = { class = "private", why = "…" }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenUnixSockets {
    pub class: UnixSockets,
    pub why: Spanned<String>,
}

/// `[[path]]`: something of the host that the cell has, read-only.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenPath {
    pub host: Spanned<String>,
    /// Path in the cell; the same path when absent.
    pub cell: Option<Spanned<String>>,
    /// Only the program, its interpreter and the libraries it needs.
    #[serde(default)]
    pub program: bool,
    /// A host without it can still use the profile.
    #[serde(default)]
    pub optional: bool,
    pub why: Spanned<String>,
}

/// `[[syscalls]]` and `[[quiet]]`: calls that share a reason.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenCalls {
    pub names: Vec<Spanned<String>>,
    pub why: Spanned<String>,
}

/// `[env]`: variables on top of the floor's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenEnv {
    pub set: BTreeMap<String, Spanned<String>>,
    pub why: Spanned<String>,
}

/// `[limits]`: what is absent comes from the extended profile, then from the defaults.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenLimits {
    pub timeout: Option<Spanned<Time>>,
    pub cpu: Option<Spanned<Time>>,
    pub processors: Option<Spanned<Processors>>,
    pub memory: Option<Spanned<Size>>,
    pub processes: Option<Spanned<u32>>,
    pub open_files: Option<Spanned<u32>>,
    pub file_size: Option<Spanned<Size>>,
    pub workspace: Option<Spanned<Size>>,
    pub tmp: Option<Spanned<Size>>,
    pub shm: Option<Spanned<Size>>,
    pub inodes: Option<Spanned<u32>>,
    pub output: Option<Spanned<Size>>,
}

/// `[requires]`: what must be there, or the profile is refused.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenRequires {
    pub landlock_abi: Option<Spanned<u32>>,
    pub memory_cgroup: Option<bool>,
}

impl Written {
    /// Returns every reason the file gives, for the check that none is blank.
    pub(super) fn whys(&self) -> impl Iterator<Item = &Spanned<String>> {
        let keys = [
            self.exec.as_ref().map(|exec| &exec.why),
            self.ahead.as_ref().map(|ahead| &ahead.why),
            self.workspace.as_ref().map(|workspace| &workspace.why),
            self.proc.as_ref().map(|proc| &proc.why),
            self.network.as_ref().map(|network| &network.why),
            self.sockets.as_ref().map(|sockets| &sockets.why),
            self.unix_sockets.as_ref().map(|sockets| &sockets.why),
            self.env.as_ref().map(|env| &env.why),
        ];
        let lists = self.syscalls.iter().chain(&self.quiet).map(|calls| &calls.why);
        keys.into_iter().flatten().chain(self.paths.iter().map(|path| &path.why)).chain(lists)
    }
}
