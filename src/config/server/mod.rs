//! `cofferdam.toml`: every value of the server, each with where it came from.

pub mod certificates;
pub mod clients;
pub mod commands;
pub mod exec;
pub mod http;
pub mod jwt;
pub mod nested;
pub mod projects;
mod secrets;
pub mod settings;

use std::collections::BTreeSet;

use self::commands::CommandSettings;
use self::exec::ExecSettings;
use self::http::HttpSettings;
use self::nested::{SocketPaths, SocketSettings};
use self::projects::ProjectKeys;
use self::secrets::SecretSettings;
use self::settings::{
    AbsolutePath, AnySize, AnyTime, BytesValue, CountValue, File, FlagValue, Kind, NamesValue,
    Optional, Setting, Settings, ShownLine, WholeValue, settings,
};
use crate::document::{
    Document, FileKey, Form, Item, KeyTable, Mistake, Read, ReadError, parsed, text,
};
use crate::policy::group::ToolGroup;
use crate::profile::toolchains::ToolchainChoice;
use model::defaults;
use model::units::Size;

/// First host uid for cells of a server started as root. Above the ranges of /etc/subuid (from
/// 100,000) and of systemd's containers (to 1,879,048,191), below 2^31.
pub(crate) const UID_BASE: u32 = 2_000_000_000;
/// How many host uids follow: one for each cell alive.
pub(crate) const UID_COUNT: u32 = 65_536;
/// Lowest `uid_base`: below are users of the machine.
const UID_BASE_MIN: u32 = 65_536;
/// Maximum number of rotated files of the audit log.
pub const MAX_LOG_FILES: u32 = 1000;
/// Cells kept ready for each profile.
pub const WARM: u32 = 8;

words! {
    /// When the user's service manager is asked for a scope with delegation, if there is no control
    /// group without one.
    pub enum ScopeRule {
        /// Servers, and other commands with a limit on memory.
        Auto = "auto",
        /// Every command that starts cells.
        Always = "always",
        /// No command at all.
        Off = "off",
    }
}

words! {
    /// What happens to calls while the audit log cannot be written.
    pub enum OnError {
        /// Calls run; replies and the server's log report that lines are lost.
        Continue = "continue",
        /// Calls are refused until a line can be written again.
        Stop = "stop",
    }
}

words! {
    /// Network namespaces of cells that run one call and have no egress.
    pub enum CellNetworks {
        /// A namespace is used again if no program has made a socket in it.
        Untouched = "untouched",
        /// Each cell has a new one.
        Fresh = "fresh",
    }
}

settings! {
/// The server's configuration, every value resolved.
pub struct Config {
    /// Calls at once, and the host uids of their cells.
    server {
        /// Calls that run at once.
        ///
        /// Default: twice the number of processors, at least 4. Example: `4`.
        concurrency: CountValue = 1,
        /// Calls that may wait; a further one is answered with an error.
        ///
        /// Default: `256`. Example: `32`.
        queue: CountValue = defaults::QUEUE,
        /// First host uid of the cells of a server that was started as root; at least 65536. No
        /// other program may use the range.
        ///
        /// Default: `2000000000`. Example: `1900000000`.
        uid_base: WholeValue<0, { u32::MAX }> = UID_BASE,
        /// Number of host uids, starting at `uid_base`: one for each living cell.
        ///
        /// Default: `65536`. Example: `4096`.
        uid_count: CountValue = UID_COUNT,
        /// Destinations that cells with a workspace may reach: `HOST:PORT`, `NET:PORT` or the name
        /// of a preset. `--egress` adds to them; a rule of the policy can restrict a call further.
        ///
        /// Default: `[]`. Example: `["python", "api.example.org:443"]`.
        egress: Destinations = Vec::new(),
    }
    /// Cells that are started before a call needs them.
    pool {
        /// Cells kept ready for each profile; with `0` each call waits for its cell to start.
        ///
        /// Default: `8`. Example: `2`.
        warm: WholeValue<0, { u32::MAX }> = WARM,
    }
    /// How cells are made.
    cells {
        /// Network namespaces of cells that run one call and have no egress.
        ///
        /// Default: `"untouched"`. Example: `"fresh"`.
        cell_networks "net": CellNetworks = CellNetworks::Untouched,
    }
    /// Limits of all cells together; the limits of one cell are in its profile.
    limits {
        /// Living cells, including those that wait for a call.
        ///
        /// Default: the sum of `server.concurrency`, `sessions.most` and twice `pool.warm`.
        /// Example: `20`.
        cells: CountValue = 0,
        /// Memory of all cells.
        ///
        /// Default: `1G` for each of `server.concurrency` and `sessions.most`. Example: `"4G"`.
        memory: AnySize = 0,
        /// Private files of all cells in `/workspace`, `/tmp` and `/dev/shm`, which are kept in
        /// memory.
        ///
        /// Default: `576M` for each of `server.concurrency` and `sessions.most`, at least half of
        /// `memory`. Example: `"2G"`.
        tmpfs: AnySize = 0,
        /// Processes and threads of all cells.
        ///
        /// Default: `256` for each of `server.concurrency` and `sessions.most`. Example: `1024`.
        processes: CountValue = 0,
        /// Commands that ask systemd for a control group that limits memory, if an ordinary user
        /// has no such group.
        ///
        /// Default: `"auto"`. Example: `"off"`.
        scope: ScopeRule = ScopeRule::Auto,
    }
    /// Shells that persist between calls.
    sessions {
        /// Maximum number of sessions.
        ///
        /// Default: `8`. Example: `2`.
        sessions "most": CountValue = defaults::SESSIONS,
        /// Time after which an unused session is closed.
        ///
        /// Default: `"1800s"`. Example: `"10m"`.
        session_idle "idle": AnyTime = defaults::SESSION_IDLE,
        /// Time that a call waits for its command. The command then continues as a job, because
        /// clients give up after about a minute.
        ///
        /// Default: `"45s"`. Example: `"20s"`.
        session_yield "yield": AnyTime = defaults::SESSION_YIELD,
    }
    exec => exec: ExecSettings {}
    /// Parts of the operator's git configuration that cells get.
    git {
        /// Give cells your `user.name` and `user.email` if a directory they may write to is a
        /// repository, so that `git commit` works.
        ///
        /// Default: `true`. Example: `false`.
        git_identity "identity": FlagValue = true,
        /// Give cells the part of the workspace's repository that lies elsewhere, if the workspace
        /// is a linked worktree, a submodule or a subdirectory.
        ///
        /// Default: `true`. Example: `false`.
        git_elsewhere "elsewhere": FlagValue = true,
    }
    /// Tool chains in your home directory that cells can read.
    toolchains {
        /// Tool chains for cells with a workspace of the host: `auto` for all installed ones,
        /// `none`, or names separated by commas. `--toolchains` overrides it.
        ///
        /// Default: `"auto"`. Example: `"rust,nvm"`.
        toolchains "grant": ToolchainChoice = ToolchainChoice::Auto,
        /// Size of the cache that the cells of one workspace share; `none` for no cache. It is
        /// measured once an hour, and emptied at the next start if it was larger.
        ///
        /// Default: `"4G"`. Example: `"none"`.
        cache: CacheSize = defaults::CACHE,
    }
    /// Names of files that programs of the host run or obey, such as `.git/hooks` and `.vscode`.
    /// Cells cannot create or change them in a directory that is granted for writing.
    guard {
        /// Names of files or directories, in addition to those that cofferdam knows; `--unguarded`
        /// applies to them too.
        ///
        /// Default: `[]`. Example: `["lefthook.yml", ".mytool"]`.
        guard_names "names": GuardedFileNames = BTreeSet::new(),
    }
    /// Changes that `--cow` keeps apart from a directory, until `cofferdam review` applies them.
    workspace {
        /// Days after which a layer is removed, with the changes in it, if no start has used it and
        /// nothing in it has changed. Looked at by each start with `--cow`; at most 36500.
        ///
        /// Default: layers are kept until you discard them. Example: `90`.
        workspace_keep "keep": Optional<WholeValue<1, 36_500>> = None,
        /// Space on the disk that a layer may take. A start with `--cow` is refused if the layer has
        /// more; cells that run already are not stopped.
        ///
        /// Default: `"16G"`. Example: `"4G"`.
        layer_bytes: BytesValue<1, { u64::MAX }> = defaults::LAYER_BYTES,
        /// Number of files and directories that a layer may have, looked at by the same starts.
        ///
        /// Default: `1000000`. Example: `200000`.
        layer_files: CountValue = defaults::LAYER_FILES,
    }
    /// Tools that callers see. The policy must also allow each of them.
    tools {
        /// Groups of tools that are listed; tools without a group always are.
        ///
        /// Default: `["calc", "shell"]`. Example: `["calc", "shell", "files"]`.
        tools_groups "groups": ToolGroups = ToolGroup::shown_by_default(),
        /// Tools that are not offered, even if their group is listed and the policy allows them.
        ///
        /// Default: `[]`. Example: `["calculate_plot"]`.
        tools_off "off": NamesValue = BTreeSet::new(),
        /// Names of the `[[tool]]` tables that are offered; no other is.
        ///
        /// Default: `[]`. Example: `["cli_jq"]`.
        tools_on "on": NamesValue = BTreeSet::new(),
        /// List in each reply the files that the command changed in the workspace.
        ///
        /// Default: `true`. Example: `false`.
        files_changed: FlagValue = true,
    }
    commands => commands: CommandSettings {}
    /// Audit log: one line of JSON for each decision and each end of a call, chained by hashes.
    audit {
        /// Absolute path of the log. Its directory is created if it does not exist, and must belong
        /// to the same user.
        ///
        /// Default: no log. Example: `"/var/lib/cofferdam/audit/audit.jsonl"`.
        audit_file "file": Optional<AbsolutePath> = None,
        /// Size at which the file is rotated; at least 64K.
        ///
        /// Default: `"64M"`. Example: `"16M"`.
        audit_max_bytes "max_bytes": LogBytes = 64 << 20,
        /// Rotated files that are kept; at most 1000.
        ///
        /// Default: `5`. Example: `12`.
        audit_keep "keep": LogFiles = 5,
        /// What happens to calls while the log cannot be written.
        ///
        /// Default: `"continue"`. Example: `"stop"`.
        audit_on_error "on_error": OnError = OnError::Continue,
    }
    /// Sockets of the host that cells may connect to, if their profile has `unix_sockets`.
    nested {
        /// Absolute path of each socket by its name; in cells it is `/tmp/mcp-sockets/NAME.sock`. A
        /// name consists of at most 32 lower-case letters, digits and dashes.
        ///
        /// Default: `{}`. Example: `{ skills = "/run/user/1000/skills.sock" }`.
        nested_sockets "sockets": SocketPaths = SocketSettings::new(),
    }
    project => project: ProjectKeys {}
    http => http: HttpSettings {}
    secret => secrets: Setting<SecretSettings> {}
}
}

impl Config {
    /// Reads the values of `document` over the defaults.
    ///
    /// # Errors
    /// When the file has a mistake.
    pub fn parse(document: Option<&Document>, cores: u32) -> Result<Self, Mistake> {
        let Some(document) = document else {
            let config = Self::read(None).map_err(|error| Document::new("", "").unfit(error));
            return config.map(|config| config.with_computed(cores));
        };
        let config = document.open(|root| {
            let table = root.table()?;
            table.only(&["schema"], Self::SECTIONS)?;
            table.key::<i64>(root, "schema", None)?;
            let file = File { document, root };
            let config = Self::read(Some(file))?;
            config.check_uids(file)?;
            config.http.check(file)?;
            Ok(Self { exec: config.exec.clone().in_order_of(file)?, ..config })
        });
        config.map(|config| config.with_computed(cores))
    }

    /// Sets the defaults that depend on the machine and on other values: a server that may run more
    /// at once may use more.
    fn with_computed(mut self, cores: u32) -> Self {
        self.concurrency.set_default(defaults::concurrency(cores));
        // The shell of a session holds what a call may have for as long as it lives.
        let running = self.concurrency.value.saturating_add(self.sessions.value);
        self.cells.set_default(running.saturating_add(self.warm.value.saturating_mul(2)));
        self.memory.set_default(u64::from(running).saturating_mul(defaults::MEMORY));
        // BytesValue of the private filesystems of as many cells as may run, by the default sizes; at least
        // half the memory.
        let private = defaults::WORKSPACE_BYTES + defaults::TMP_BYTES + defaults::SHM_BYTES;
        let private = u64::from(running).saturating_mul(private);
        self.tmpfs.set_default(private.max(self.memory.value / 2));
        self.processes.set_default(running.saturating_mul(defaults::PROCESSES));
        self
    }

    /// Checks the range of host uids: above the machine's users, and with an end that is a uid.
    fn check_uids(&self, file: File<'_>) -> Result<(), ReadError> {
        let place = file.value("server", "uid_base").or_else(|| file.value("server", "uid_count"));
        let error = |message: String| Err(place.unwrap_or(file.root).error(message));
        if self.uid_base.value < UID_BASE_MIN {
            return error(format!(
                "`uid_base` is {UID_BASE_MIN} at least: below are users of the machine"
            ));
        }
        // The last value, all ones, means "no uid" (setresuid(2)).
        match self.uid_base.value.checked_add(self.uid_count.value) {
            Some(_) => Ok(()),
            None => error("`uid_base` and `uid_count` together go beyond the last uid".to_owned()),
        }
    }

    /// Returns every value with its source, in the order of the file's sections.
    #[must_use]
    pub fn shown(&self) -> Vec<ShownLine> {
        let mut lines = Vec::new();
        self.show(&mut lines);
        lines
    }
}

/// Returns the keys of the server's file.
pub(crate) fn keys() -> KeyTable {
    let mut keys = vec![FileKey {
        name: "schema",
        comment: "Version of the file's form. Example: `1`.",
        is_required: true,
        form: i64::form(),
    }];
    Config::keys(&mut keys);
    let comment =
        "The server: how much it runs at once, over all cells together, and what it offers.";
    KeyTable { comment, keys }
}

/// Lets enums of [`words!`] be kinds of settings.
macro_rules! word_kinds {
    ($($name:ident)*) => { $(
        impl Kind for $name {
            type Value = Self;
            type Written = Self;

            fn read(item: Item<'_>) -> Result<Self, ReadError> {
                Read::read(item)
            }

            fn show(word: &Self) -> String {
                word.name().to_owned()
            }
        }
    )* };
}

word_kinds!(CellNetworks ScopeRule OnError);

impl Kind for ToolchainChoice {
    type Value = Self;
    type Written = String;

    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        parsed(item)
    }

    fn show(choice: &Self) -> String {
        choice.to_string()
    }
}

/// Destinations of all cells with a workspace.
pub struct Destinations;

impl Kind for Destinations {
    type Value = Vec<String>;
    type Written = Vec<String>;

    fn read(item: Item<'_>) -> Result<Vec<String>, ReadError> {
        let words = Vec::<String>::read(item)?;
        match words.iter().find_map(|word| crate::profile::egress::word(word).err()) {
            Some(error) => Err(item.error(error.to_string())),
            None => Ok(words),
        }
    }

    fn show(words: &Vec<String>) -> String {
        words.join(", ")
    }
}

/// Size of a cache in bytes: 0 for no cache.
pub struct CacheSize;

impl Kind for CacheSize {
    type Value = u64;
    type Written = String;

    fn read(item: Item<'_>) -> Result<u64, ReadError> {
        match text(item)? {
            "none" => Ok(0),
            size => match size.parse() {
                Ok(Size(bytes)) => Ok(bytes),
                Err(error) => Err(item.error(format!("{error}, or `none`"))),
            },
        }
    }

    fn show(bytes: &u64) -> String {
        match bytes {
            0 => "none".to_owned(),
            bytes => Size(*bytes).to_string(),
        }
    }
}

/// Names that a file can have: each is one part of a path.
pub struct GuardedFileNames;

impl Kind for GuardedFileNames {
    type Value = BTreeSet<String>;
    type Written = BTreeSet<String>;

    fn read(item: Item<'_>) -> Result<BTreeSet<String>, ReadError> {
        let name = |item: Item<'_>| {
            let name = text(item)?;
            match name {
                "" | "." | ".." => Err(item.error(format!("`{name}` is not a name of a file"))),
                _ if name.contains(['/', '\0']) => Err(item.error(format!(
                    "`{name}` is not one name: a path is guarded by one of its parts"
                ))),
                _ if name.len() > 255 => Err(item.error("a name of a file has at most 255 bytes")),
                _ => Ok(name.to_owned()),
            }
        };
        item.items()?.map(name).collect()
    }

    fn show(names: &BTreeSet<String>) -> String {
        NamesValue::show(names)
    }
}

/// Groups of tools.
pub struct ToolGroups;

impl Kind for ToolGroups {
    type Value = BTreeSet<ToolGroup>;
    type Written = BTreeSet<ToolGroup>;

    fn read(item: Item<'_>) -> Result<BTreeSet<ToolGroup>, ReadError> {
        BTreeSet::read(item)
    }

    fn show(groups: &BTreeSet<ToolGroup>) -> String {
        groups.iter().map(|group| group.name()).collect::<Vec<_>>().join(", ")
    }
}

/// Size of a file of the log, with room for some dozens of calls: a smaller one would be rotated
/// after every few.
pub struct LogBytes;

impl Kind for LogBytes {
    type Value = u64;
    type Written = Size;

    fn read(item: Item<'_>) -> Result<u64, ReadError> {
        const MIN: Size = Size(64 << 10);
        match Size::read(item)? {
            size if size < MIN => Err(item.error(format!("a file of the log has {MIN} at least"))),
            size => Ok(size.0),
        }
    }

    fn show(bytes: &u64) -> String {
        AnySize::show(bytes)
    }
}

/// Number of rotated files, at most as many as `cofferdam audit` looks for; each rotation renames
/// them all.
pub struct LogFiles;

impl Kind for LogFiles {
    type Value = u32;
    type Written = u32;

    fn read(item: Item<'_>) -> Result<u32, ReadError> {
        match CountValue::read(item)? {
            files if files > MAX_LOG_FILES => {
                Err(item.error(format!("at most {MAX_LOG_FILES} rotated files are kept")))
            }
            files => Ok(files),
        }
    }

    fn show(files: &u32) -> String {
        files.to_string()
    }

    fn form() -> Form {
        WholeValue::<1, MAX_LOG_FILES>::form()
    }
}
