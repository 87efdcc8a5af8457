//! The result of `sandbox_rules`: the effective profile, limits and grants, so that an agent can
//! read its permissions.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use crate::report::changes::name;
use model::call::{ENV_BYTES, MAX_TIMEOUT, SCRIPT_BYTES, STDIN_BYTES};
use model::defaults::{GIB, KIB, MIB};
use model::egress::{Egress, NetworkClass};
use model::job::Access;
use model::profile::{Exec, Family, ProcView, Profile, SOCKETS_DIRECTORY};
use model::receipt::{MemoryHold, Tier};

/// The rules in force for `bash`, and the calculator's time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Rules {
    pub profile: String,
    pub description: String,
    #[schemars(with = "String")]
    pub tier: Tier,
    // Mechanism that enforces the memory limit.
    #[schemars(with = "String")]
    pub memory_held_by: MemoryHold,
    pub network: String,
    pub workspace: String,
    // Host paths that a cell has read-only, as the cell sees them.
    pub read_only_paths: Vec<String>,
    pub programs: String,
    pub proc: String,
    pub socket_families: Vec<String>,
    // Sockets of the host, where the cell has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(skip)]
    pub granted_sockets: Vec<String>,
    // Variables that every command has. Its shell adds further ones, such as PWD.
    pub env: BTreeMap<String, String>,
    pub limits: RuleLimits,
    // Instructions for getting more.
    pub to_change: String,
}

/// Limits of one call, in the units of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(description = "")]
pub struct RuleLimits {
    pub timeout_s: u64,
    pub most_timeout_s: u64,
    pub calculator_timeout_s: u64,
    pub cpu_s: u64,
    pub memory_bytes: u64,
    pub processes: u32,
    pub open_files: u32,
    pub file_size_bytes: u64,
    pub workspace_bytes: u64,
    pub tmp_bytes: u64,
    pub shm_bytes: u64,
    pub inodes: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    pub command_bytes: usize,
    pub stdin_bytes: usize,
    pub env_bytes: usize,
}

/// A `/workspace` that ends with its session.
const PRIVATE_WORKSPACE: &str = "/workspace is private to a session and lasts as long as it does";

/// Describes `/workspace` in one line for an agent: private, or granted with this access.
fn workspace_text(granted: Option<Access>) -> &'static str {
    match granted {
        None => PRIVATE_WORKSPACE,
        Some(Access::ReadOnly) => "/workspace is a directory of the host, read-only",
        Some(Access::ReadWrite | Access::Repository) => {
            "/workspace is a directory of the host; changes are kept; names that the host \
             obeys (.git, .envrc, .vscode, .idea, .claude, .mcp.json) cannot be made there: \
             make new repositories in /tmp"
        }
        Some(Access::Layer) => {
            "/workspace shows a directory of the host through a layer: changes are kept in the \
             layer, any name can be made, and the host's files have not changed until a person \
             applies the changes (cofferdam review)"
        }
        Some(Access::Unguarded | Access::Cache) => {
            "/workspace is a directory of the host; changes are kept"
        }
    }
}

impl Rules {
    /// Returns true if files of `/workspace` end with the session.
    #[must_use]
    pub fn has_private_workspace(&self) -> bool {
        self.workspace.starts_with(PRIVATE_WORKSPACE)
    }

    /// Derives the rules from the profile of `bash`, and from the access to the directory that is
    /// granted as `/workspace`, if one is.
    pub fn of(
        profile: &Profile,
        granted: Option<Access>,
        tier: Tier,
        memory: MemoryHold,
        calculator: Duration,
    ) -> Self {
        let paths = profile.paths.iter().map(|path| path.cell.display().to_string()).collect();
        Self {
            profile: profile.name.to_string(),
            description: profile.description.clone(),
            tier,
            memory_held_by: memory,
            network: network(&profile.egress),
            workspace: if profile.workspace {
                workspace_text(granted).to_owned()
            } else {
                "no /workspace".to_owned()
            },
            read_only_paths: paths,
            programs: match &profile.exec {
                Exec::Any => "any program in the cell".to_owned(),
                Exec::Only(path) => format!("only {}", path.display()),
            },
            proc: match profile.proc {
                ProcView::Own => "its own /proc".to_owned(),
                ProcView::None => "no /proc".to_owned(),
            },
            socket_families: profile.families.iter().map(|f| family(*f).to_owned()).collect(),
            granted_sockets: profile
                .granted_sockets
                .iter()
                .map(|name| format!("{SOCKETS_DIRECTORY}/{}", name.file()))
                .collect(),
            env: environment(profile),
            limits: RuleLimits::of(profile, calculator),
            to_change: "only the operator can, by configuration; no call can".to_owned(),
        }
    }
}

/// Describes the network of a cell in one line for an agent: class, and what its rules reach.
fn network(egress: &Egress) -> String {
    let beyond = match egress.class {
        NetworkClass::None => return "none".to_owned(),
        NetworkClass::Loopback => return "its own loopback; nothing outside the cell".to_owned(),
        NetworkClass::AllowList => "its own loopback",
        NetworkClass::Private => "its own loopback, addresses of private networks",
        NetworkClass::Any => {
            "its own loopback, and every address but the host's own and clouds' metadata"
        }
    };
    let rules: Vec<String> = egress.rules.iter().map(ToString::to_string).collect();
    match (egress.class, rules.is_empty()) {
        (NetworkClass::AllowList, true) => {
            format!("{beyond}; no rule names anything outside the cell")
        }
        (_, true) => beyond.to_owned(),
        (_, false) => format!("{beyond}, and by a gateway only: {}", rules.join("; ")),
    }
}

/// The environment of a profile's cells, without what differs between them: in the lower tier, HOME.
fn environment(profile: &Profile) -> BTreeMap<String, String> {
    let shown = |name: &str| profile.tier == Tier::Full || name != "HOME";
    let all = profile.environment().into_iter().filter(|(name, _)| shown(name));
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

impl Rules {
    /// Adds the paths that the operator granted for reading.
    #[must_use]
    pub(crate) fn with_readable(mut self, paths: &[PathBuf]) -> Self {
        let paths: Vec<String> =
            paths.iter().map(|path| name(path.as_os_str().as_bytes())).collect();
        if !paths.is_empty() {
            self.workspace.push_str(&format!("; granted for reading: {}", paths.join(", ")));
            self.read_only_paths.extend(paths);
        }
        self
    }

    /// Sets the default time limit, where it is less than the maximum.
    #[must_use]
    pub(crate) fn with_default_timeout(mut self, seconds: Option<f64>) -> Self {
        let default = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        if let Some(default) = default {
            self.limits.timeout_s = default.as_secs().max(1).min(self.limits.most_timeout_s);
        }
        self
    }

    /// Formats the rules as lines for a model.
    pub fn text(&self) -> String {
        let listed = |list: &[String]| match list.is_empty() {
            true => "none".to_owned(),
            false => list.join(", "),
        };
        let env = self.env.iter().map(|(name, value)| format!("{name}={value}"));
        let env: Vec<String> = env.collect();
        let rows = [
            ("profile", format!("{} ({})", self.profile, self.description)),
            ("network", self.network.clone()),
            ("workspace", self.workspace.clone()),
            ("read-only paths", listed(&self.read_only_paths)),
            ("programs", self.programs.clone()),
            ("/proc", self.proc.clone()),
            ("socket families", listed(&self.socket_families)),
            ("sockets outside the cell", listed(&self.granted_sockets)),
            ("environment", listed(&env)),
            ("tier", tier(self.tier).to_owned()),
            ("memory is held by", held(self.memory_held_by).to_owned()),
            ("to change it", self.to_change.clone()),
        ];
        let mut text =
            "What a command may do here. Each session of bash has a cell of its own, and \
            each call of another tool.\n"
                .to_owned();
        push_rows(&mut text, &rows);
        text.push_str("\nLimits of one call:\n");
        push_rows(&mut text, &self.limits.rows());
        text
    }
}

fn push_rows(text: &mut String, rows: &[(&str, String)]) {
    for (name, value) in rows {
        text.push_str(&format!("- {name}: {value}\n"));
    }
}

fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Full => "namespaces, Landlock and seccomp",
        Tier::Bare => "Landlock and seccomp, without namespaces: weaker, by the operator's choice",
    }
}

fn held(memory: MemoryHold) -> &'static str {
    match memory {
        MemoryHold::CgroupV2 => "cgroup v2",
        MemoryHold::CgroupV1 => "cgroup v1",
        MemoryHold::BestEffort => "a watchdog, best-effort",
    }
}

/// Formats a size: `1 GiB`, `64 KiB`, `1000 bytes`.
fn size(bytes: u64) -> String {
    let units = [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}

fn length(bytes: usize) -> String {
    size(u64::try_from(bytes).unwrap_or(u64::MAX))
}

impl RuleLimits {
    fn time(&self) -> String {
        if self.timeout_s == self.most_timeout_s {
            return format!("{} s; less can be asked for", self.timeout_s);
        }
        format!("{} s; up to {} s can be asked for", self.timeout_s, self.most_timeout_s)
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![
            ("time", self.time()),
            ("time of a calculation", format!("{} s", self.calculator_timeout_s)),
            ("processor time", format!("{} s", self.cpu_s)),
            ("memory", size(self.memory_bytes)),
            ("processes and threads", self.processes.to_string()),
            ("open files of a process", self.open_files.to_string()),
            ("largest file", size(self.file_size_bytes)),
            ("/workspace, when none is granted", size(self.workspace_bytes)),
            ("/tmp", size(self.tmp_bytes)),
            ("/dev/shm", size(self.shm_bytes)),
            ("files and directories in each", self.inodes.to_string()),
            ("command", length(self.command_bytes)),
            ("standard input", length(self.stdin_bytes)),
            ("environment", length(self.env_bytes)),
        ];
        if let Some(output) = self.output_bytes {
            rows.push(("output at which a call is ended", size(output)));
        }
        rows
    }

    fn of(profile: &Profile, calculator: Duration) -> Self {
        let limits = &profile.limits;
        Self {
            timeout_s: limits.wall.as_secs(),
            most_timeout_s: limits.wall.min(MAX_TIMEOUT).as_secs(),
            calculator_timeout_s: calculator.as_secs(),
            cpu_s: limits.cpu.as_secs(),
            memory_bytes: limits.memory,
            processes: limits.processes,
            open_files: limits.open_files,
            file_size_bytes: limits.file_size,
            workspace_bytes: limits.workspace_bytes,
            tmp_bytes: limits.tmp_bytes,
            shm_bytes: limits.shm_bytes,
            inodes: limits.inodes,
            output_bytes: limits.output,
            command_bytes: SCRIPT_BYTES,
            stdin_bytes: STDIN_BYTES,
            env_bytes: ENV_BYTES,
        }
    }
}

fn family(family: Family) -> &'static str {
    match family {
        Family::Unix => "unix",
        Family::Inet => "inet",
        Family::Inet6 => "inet6",
    }
}
