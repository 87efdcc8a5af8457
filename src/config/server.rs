//! `cofferdam.toml`: every value of the server, each with where it came from.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::commands::{CommandSettings, WrittenCommands};
use super::exec::{ExecSettings, WrittenExec};
use super::http::{self, HttpSettings};
use super::nested;
use super::projects::{ProjectKeys, WrittenProject};
use super::secrets;
use audit::OnError;
use audit::read::MAX_ROTATED as AUDIT_FILES;
use model::defaults;
use model::units::{Size, Time};
use policy::group::ToolGroup;
use profile::document::{Document, Mistake};
use profile::toolchains::ToolchainChoice;

/// First host uid for cells of a server started as root. Above the ranges of /etc/subuid (from
/// 100,000) and of systemd's containers (to 1,879,048,191), below 2^31.
pub(crate) const UID_BASE: u32 = 2_000_000_000;
/// How many host uids follow: one for each cell alive.
pub(crate) const UID_COUNT: u32 = 65_536;
/// Lowest `uid_base`: below are users of the machine.
const UID_BASE_MIN: u32 = 65_536;
/// Cells kept ready for each profile.
pub const WARM: u32 = 8;

/// A value in force and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    pub source: ValueSource,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    /// Compiled in, or computed from the machine.
    Default,
    /// Written at this line of this file.
    File { file: String, line: usize },
    /// Typed for this flag, or in this variable of the environment.
    Said(&'static str),
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::Said(by) => f.write_str(by),
        }
    }
}

/// When the user's service manager is asked for a scope with delegation, where no control group is had without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScopeRule {
    /// By a server, and by other commands where a limit on memory was asked for.
    Auto,
    /// By every command that makes cells.
    Always,
    /// By no command.
    Off,
}

/// The server's configuration, every value resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Calls that run at once.
    pub concurrency: Setting<u32>,
    /// Calls that wait; one more is refused.
    pub queue: Setting<u32>,
    /// Host uids for cells when started as root: the first, and how many.
    pub uid_base: Setting<u32>,
    pub uid_count: Setting<u32>,
    /// Cells kept ready for each profile.
    pub warm: Setting<u32>,
    /// Caps over all cells: their number, and their bytes of memory, bytes of tmpfs, and processes together.
    pub cells: Setting<u32>,
    pub memory: Setting<u64>,
    pub tmpfs: Setting<u64>,
    pub processes: Setting<u32>,
    /// When an ordinary user's cells are to be held by a scope of systemd's.
    pub scope: Setting<ScopeRule>,
    /// Sessions at once, and how long one is kept that nobody uses.
    pub sessions: Setting<u32>,
    pub session_idle: Setting<Duration>,
    /// How long a call waits for its command before that becomes a job: below the minute after
    /// which clients give up.
    pub session_yield: Setting<Duration>,
    /// Settings of `bash_exec`.
    pub exec: ExecSettings,
    /// True if cells with a writable repository have the operator's name and address for commits.
    pub git_identity: Setting<bool>,
    /// Tool chains that cells with a workspace have where the command line names none.
    pub toolchains: Setting<ToolchainChoice>,
    /// Bytes that a workspace's cache may have at the start of cofferdam; none is kept if it is 0.
    pub cache: Setting<u64>,
    /// Names that are guarded in granted directories, besides those that cofferdam knows.
    pub guard_names: Setting<BTreeSet<String>>,
    /// Groups of tools that are shown.
    pub tools_groups: Setting<BTreeSet<ToolGroup>>,
    /// Tools that are not offered at all, whatever the policy says.
    pub tools_off: Setting<BTreeSet<String>>,
    /// Tools that are offered only where they are named: the declared commands. The policy must allow them too.
    pub tools_on: Setting<BTreeSet<String>>,
    /// Settings of the declared commands.
    pub commands: CommandSettings,
    /// True if replies report the files that changed in the workspace.
    pub files_changed: Setting<bool>,
    /// File to which one line per call is appended; `None`: no audit file.
    pub audit_file: Setting<Option<PathBuf>>,
    /// Bytes before it is rotated, how many rotated files are kept, and what happens to calls
    /// while it cannot be written.
    pub audit_max_bytes: Setting<u64>,
    pub audit_keep: Setting<u32>,
    pub audit_on_error: Setting<OnError>,
    /// Sockets of the host, by the names that cells have them under.
    pub nested_sockets: Setting<nested::SocketSettings>,
    /// Destinations that cells with a workspace of a server reach, as `serve --egress` has them.
    pub egress: Setting<Vec<String>>,
    /// Secrets that rules of egress may use: their names and places.
    pub secrets: Setting<Vec<(String, model::egress::SecretSource)>>,
    /// Settings of `serve --project`.
    pub project: ProjectKeys,
    /// Listener of `serve --http`.
    pub http: HttpSettings,
}

/// One line of `cofferdam config show`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownLine {
    /// The key as `cofferdam.toml` has it, such as `server.queue`.
    pub key: &'static str,
    pub value: String,
    pub source: ValueSource,
}

/// The server: how much it runs at once, over all cells together, and what it offers.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// Version of the file's form. Example: `1`.
    #[serde(rename = "schema")]
    _schema: i64,
    /// Calls at once, and the host uids of their cells.
    #[serde(default)]
    server: WrittenServer,
    /// Cells that are ready before a call comes.
    #[serde(default)]
    pool: WrittenPool,
    /// Caps over all cells together; those of one cell are in its profile.
    #[serde(default)]
    limits: WrittenLimits,
    /// Shells that last from call to call.
    #[serde(default)]
    sessions: WrittenSessions,
    /// Settings of `bash_exec`.
    #[serde(default)]
    exec: WrittenExec,
    /// Parts of the operator's git configuration that cells have.
    #[serde(default)]
    git: WrittenGit,
    /// Tool chains of your home that cells have read-only.
    #[serde(default)]
    toolchains: WrittenToolchains,
    /// Names that the host obeys in a granted directory.
    #[serde(default)]
    guard: WrittenGuard,
    /// Tools that callers see.
    #[serde(default)]
    tools: WrittenTools,
    /// Settings of command-line tools, where neither a call nor the tool's own file says otherwise.
    #[serde(default)]
    commands: WrittenCommands,
    /// Audit log: a line for each decision and each end of a call.
    #[serde(default)]
    audit: WrittenAudit,
    /// Sockets of the host that cells may connect to.
    #[serde(default)]
    nested: nested::Written,
    /// Settings of `serve --project`.
    #[serde(default)]
    project: WrittenProject,
    /// Listener of `serve --http`.
    #[serde(default)]
    http: http::Written,
    /// Secrets that rules of egress put in requests.
    #[serde(default)]
    secret: Vec<secrets::Written>,
}

/// Calls at once, and the host uids of their cells.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenServer {
    /// Calls that run at once.
    ///
    /// Default: twice the processors, 4 at least. Example: `4`.
    concurrency: Option<Spanned<u32>>,
    /// Calls that wait for their turn; one more is answered with an error.
    ///
    /// Default: `256`. Example: `32`.
    queue: Option<Spanned<u32>>,
    /// First host uid of cells, for a server that was started as root: no other program may use the range. 65536 at
    /// least.
    ///
    /// Default: `2000000000`. Example: `1900000000`.
    uid_base: Option<Spanned<u32>>,
    /// Number of host uids from `uid_base` on: one for each cell alive.
    ///
    /// Default: `65536`. Example: `4096`.
    uid_count: Option<Spanned<u32>>,
    /// Destinations that the cells of `serve` reach where they have a workspace: `HOST:PORT`, `NET:PORT` or the name of
    /// a preset. `--egress` adds to them; a policy's rule can leave a call fewer.
    ///
    /// Default: `[]`. Example: `["python", "api.example.org:443"]`.
    egress: Option<Spanned<Vec<String>>>,
}

/// Cells that are ready before a call comes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPool {
    /// Cells kept ready for each profile; with `0` each call waits until its cell is built.
    ///
    /// Default: `8`. Example: `2`.
    warm: Option<Spanned<u32>>,
}

/// Caps over all cells together; those of one cell are in its profile.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLimits {
    /// Cells alive at once, those that wait for a call included.
    ///
    /// Default: `server.concurrency`, `sessions.most` and twice `pool.warm` together. Example: `20`.
    cells: Option<Spanned<u32>>,
    /// Memory of all cells.
    ///
    /// Default: `1G` for each of `server.concurrency` and `sessions.most`. Example: `"4G"`.
    memory: Option<Spanned<Size>>,
    /// Private files of all cells, which are in memory: `/workspace`, `/tmp` and `/dev/shm`.
    ///
    /// Default: `576M` for each of `server.concurrency` and `sessions.most`, half of `memory` at least.
    /// Example: `"2G"`.
    tmpfs: Option<Spanned<Size>>,
    /// Processes and threads of all cells.
    ///
    /// Default: `256` for each of `server.concurrency` and `sessions.most`. Example: `1024`.
    processes: Option<Spanned<u32>>,
    /// Commands for which systemd is asked for a control group that holds memory, where an ordinary user has none.
    ///
    /// Default: `"auto"`. Example: `"off"`.
    scope: Option<Spanned<ScopeRule>>,
}

/// Shells that last from call to call.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSessions {
    /// Sessions at once.
    ///
    /// Default: `8`. Example: `2`.
    most: Option<Spanned<u32>>,
    /// Time after which a session that nobody uses is ended.
    ///
    /// Default: `"1800s"`. Example: `"10m"`.
    idle: Option<Spanned<Time>>,
    /// Time that a call waits for its command before the command goes on as a job; clients give up after a
    /// minute or so.
    ///
    /// Default: `"45s"`. Example: `"20s"`.
    #[serde(rename = "yield")]
    yield_after: Option<Spanned<Time>>,
}

/// Parts of the operator's git configuration that cells have.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenGit {
    /// Give cells your `user.name` and `user.email` where a directory that they may write to is a repository, so that
    /// `git commit` works.
    ///
    /// Default: `true`. Example: `false`.
    identity: Option<Spanned<bool>>,
}

/// Tool chains of your home that cells have read-only.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenToolchains {
    /// Tool chains for cells with a workspace of the host: `auto` for all that are found, `none`, or names with commas
    /// between them. `--toolchains` goes before it.
    ///
    /// Default: `"auto"`. Example: `"rust,nvm"`.
    grant: Option<Spanned<ToolchainChoice>>,
    /// Size of the cache that the cells of one workspace share: it is measured once an hour, and the next start
    /// empties it if it had more; `none` for no cache.
    ///
    /// Default: `"4G"`. Example: `"none"`.
    cache: Option<Spanned<CacheSize>>,
}

/// Size of a cache in bytes: 0 for none.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct CacheSize(u64);

impl TryFrom<String> for CacheSize {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "none" => Ok(Self(0)),
            size => match size.parse() {
                Ok(Size(bytes)) => Ok(Self(bytes)),
                Err(error) => Err(format!("{error}, or `none`")),
            },
        }
    }
}

/// Names that a program of yours runs or obeys by itself, wherever they lie in a directory that is granted for writing:
/// cells can neither make nor change what has one, as with `.git/hooks` and `.vscode`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenGuard {
    /// Names of files or directories, besides those that cofferdam knows; `--unguarded` lifts them too.
    ///
    /// Default: `[]`. Example: `["lefthook.yml", ".mytool"]`.
    names: Option<Spanned<BTreeSet<GuardedName>>>,
}

/// A name that a file can have: one part of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct GuardedName(String);

impl TryFrom<String> for GuardedName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match name.as_str() {
            "" | "." | ".." => Err(format!("`{name}` is not a name of a file")),
            _ if name.contains(['/', '\0']) => {
                Err(format!("`{name}` is not one name: a path is guarded by one of its parts"))
            }
            _ if name.len() > 255 => Err("a name of a file has at most 255 bytes".to_owned()),
            _ => Ok(Self(name)),
        }
    }
}

/// Tools that callers see. The policy must allow each of them too.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTools {
    /// Groups of tools that are shown; tools of no group always are.
    ///
    /// Default: `["calc", "shell"]`. Example: `["calc", "shell", "files"]`.
    groups: Option<Spanned<BTreeSet<ToolGroup>>>,
    /// Tools that are not offered, whatever their group and the policy say.
    ///
    /// Default: `[]`. Example: `["calculate_plot"]`.
    off: Option<Spanned<BTreeSet<String>>>,
    /// Tools of a `[[tool]]` that are offered: none of them is without its name here.
    ///
    /// Default: `[]`. Example: `["cli_jq"]`.
    on: Option<Spanned<BTreeSet<String>>>,
    /// Report in each reply of the files that the command changed in the workspace.
    ///
    /// Default: `true`. Example: `false`.
    files_changed: Option<Spanned<bool>>,
}

/// Audit log: a line of JSON for each decision and each end of a call, chained by hashes.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAudit {
    /// Absolute path of the log; its directory is made if need be, and must be nobody else's.
    ///
    /// Default: no log. Example: `"/var/lib/cofferdam/audit/audit.jsonl"`.
    file: Option<Spanned<PathBuf>>,
    /// Size at which the file is rotated; 64K at least.
    ///
    /// Default: `"64M"`. Example: `"16M"`.
    max_bytes: Option<Spanned<Size>>,
    /// Rotated files that are kept; 1000 at most.
    ///
    /// Default: `5`. Example: `12`.
    keep: Option<Spanned<u32>>,
    /// Treatment of calls while the log cannot be written.
    ///
    /// Default: `"continue"`. Example: `"stop"`.
    on_error: Option<Spanned<OnError>>,
}

/// Turns written values into settings, with the file at hand for lines and mistakes.
pub(super) struct Reader<'d> {
    pub document: &'d Document,
}

impl Reader<'_> {
    pub(super) fn mistake(&self, span: Range<usize>, what: impl Into<String>) -> Mistake {
        self.document.mistake(span, what)
    }

    pub(super) fn set<W: Clone, T>(
        &self,
        written: Option<&Spanned<W>>,
        default: T,
        convert: impl FnOnce(W) -> T,
    ) -> Setting<T> {
        match written {
            None => Setting { value: default, source: ValueSource::Default },
            Some(written) => Setting {
                value: convert(written.get_ref().clone()),
                source: ValueSource::File {
                    file: self.document.file.clone(),
                    line: self.document.mistake(written.span(), "").line,
                },
            },
        }
    }

    /// Reads a count that must be above zero.
    pub(super) fn count(
        &self,
        written: Option<&Spanned<u32>>,
        default: u32,
    ) -> Result<Setting<u32>, Mistake> {
        match written.filter(|written| *written.get_ref() == 0) {
            Some(zero) => Err(self.document.mistake(zero.span(), "must be above zero")),
            None => Ok(self.set(written, default, |count| count)),
        }
    }
}

impl Config {
    /// Reads the values of `document` over the defaults.
    ///
    /// # Errors
    /// When the file has a mistake.
    pub fn parse(document: Option<&Document>, cores: u32) -> Result<Self, Mistake> {
        let empty = Document::new("", "");
        let (reader, written) = match document {
            Some(document) => (Reader { document }, document.read::<Written>()?),
            None => (Reader { document: &empty }, Written::default()),
        };
        let Written { server, pool, limits, sessions, tools, audit, .. } = &written;
        let (uid_base, uid_count) = uids(&reader, server)?;
        let concurrency =
            reader.count(server.concurrency.as_ref(), defaults::concurrency(cores))?;
        let warm = reader.set(pool.warm.as_ref(), WARM, |warm| warm);
        // Computed from what is in force: a server told to run more at once may use more.
        let most = reader.count(sessions.most.as_ref(), defaults::SESSIONS)?;
        let idle = reader.set(sessions.idle.as_ref(), defaults::SESSION_IDLE, |time| time.0);
        // The shell of a session holds what a call may have for as long as it lives.
        let running = concurrency.value.saturating_add(most.value);
        let cells = running.saturating_add(warm.value.saturating_mul(2));
        let memory = u64::from(running).saturating_mul(defaults::MEMORY);
        let memory = reader.set(limits.memory.as_ref(), memory, |size| size.0);
        // Bytes of the private filesystems of as many cells as may run, by the default sizes; at least
        // half the memory.
        let private = defaults::WORKSPACE_BYTES + defaults::TMP_BYTES + defaults::SHM_BYTES;
        let private = u64::from(running).saturating_mul(private).max(memory.value / 2);
        let processes = running.saturating_mul(defaults::PROCESSES);
        let groups = tools.groups.as_ref();
        let wait = sessions.yield_after.as_ref();
        Ok(Self {
            queue: reader.count(server.queue.as_ref(), defaults::QUEUE)?,
            uid_base,
            uid_count,
            warm,
            cells: reader.count(limits.cells.as_ref(), cells)?,
            tmpfs: reader.set(limits.tmpfs.as_ref(), private, |size| size.0),
            memory,
            processes: reader.count(limits.processes.as_ref(), processes)?,
            scope: reader.set(limits.scope.as_ref(), ScopeRule::Auto, |rule| rule),
            sessions: most,
            session_idle: idle,
            session_yield: reader.set(wait, defaults::SESSION_YIELD, |time| time.0),
            exec: ExecSettings::parse(&reader, &written.exec)?,
            git_identity: reader.set(written.git.identity.as_ref(), true, |given| given),
            toolchains: toolchains(&reader, &written.toolchains),
            cache: reader.set(written.toolchains.cache.as_ref(), defaults::CACHE, |size| size.0),
            guard_names: guard_names(&reader, &written.guard),
            tools_groups: reader.set(groups, ToolGroup::shown_by_default(), |named| named),
            tools_off: reader.set(tools.off.as_ref(), BTreeSet::new(), |names| names),
            tools_on: reader.set(tools.on.as_ref(), BTreeSet::new(), |names| names),
            files_changed: reader.set(tools.files_changed.as_ref(), true, |told| told),
            commands: CommandSettings::parse(&reader, &written.commands)?,
            audit_file: audit_file(&reader, audit)?,
            audit_max_bytes: audit_max_bytes(&reader, audit)?,
            audit_keep: audit_keep(&reader, audit)?,
            audit_on_error: reader.set(audit.on_error.as_ref(), OnError::Continue, |what| what),
            nested_sockets: nested::sockets(&reader, &written.nested)?,
            egress: egress(&reader, server)?,
            secrets: secrets::secrets(&reader, &written.secret)?,
            project: ProjectKeys::parse(&reader, &written.project)?,
            http: HttpSettings::parse(&reader, &written.http)?,
            concurrency,
        })
    }

    /// Returns every value with its source, in the order of the file's sections.
    #[must_use]
    pub fn shown(&self) -> Vec<ShownLine> {
        fn shown<T>(key: &'static str, of: &Setting<T>, text: impl Fn(&T) -> String) -> ShownLine {
            ShownLine { key, value: text(&of.value), source: of.source.clone() }
        }
        let count = |key, setting| shown(key, setting, u32::to_string);
        let size = |key, setting| shown(key, setting, |bytes| Size(*bytes).to_string());
        let names = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
        let path = |path: &Option<PathBuf>| {
            path.as_ref().map_or(String::new(), |p| p.display().to_string())
        };
        let mut all = vec![
            count("server.concurrency", &self.concurrency),
            count("server.queue", &self.queue),
            count("server.uid_base", &self.uid_base),
            count("server.uid_count", &self.uid_count),
            shown("server.egress", &self.egress, |words| words.join(", ")),
            count("pool.warm", &self.warm),
            count("limits.cells", &self.cells),
            size("limits.memory", &self.memory),
            size("limits.tmpfs", &self.tmpfs),
            count("limits.processes", &self.processes),
            shown("limits.scope", &self.scope, |rule| format!("{rule:?}").to_lowercase()),
            count("sessions.most", &self.sessions),
            shown("sessions.idle", &self.session_idle, |time| Time(*time).to_string()),
            shown("sessions.yield", &self.session_yield, |time| Time(*time).to_string()),
        ];
        all.extend(self.exec.shown());
        all.extend([
            shown("git.identity", &self.git_identity, bool::to_string),
            shown("toolchains.grant", &self.toolchains, ToolchainChoice::to_string),
            shown("toolchains.cache", &self.cache, |bytes| match bytes {
                0 => "none".to_owned(),
                bytes => Size(*bytes).to_string(),
            }),
            shown("guard.names", &self.guard_names, names),
            shown("tools.groups", &self.tools_groups, |groups| {
                groups.iter().map(|group| group.name()).collect::<Vec<_>>().join(", ")
            }),
            shown("tools.off", &self.tools_off, names),
            shown("tools.on", &self.tools_on, names),
            shown("tools.files_changed", &self.files_changed, bool::to_string),
        ]);
        all.extend(self.commands.shown());
        all.extend([
            shown("audit.file", &self.audit_file, path),
            size("audit.max_bytes", &self.audit_max_bytes),
            count("audit.keep", &self.audit_keep),
            shown("audit.on_error", &self.audit_on_error, |what| {
                format!("{what:?}").to_lowercase()
            }),
            shown("nested.sockets", &self.nested_sockets, nested::text),
        ]);
        all.extend(self.project.shown());
        all.extend(self.http.shown());
        all.push(shown("secret", &self.secrets, secrets::text));
        all
    }
}

/// Reads a range of host uids: above the machine's users, and with an end that is a uid.
fn uids(
    reader: &Reader<'_>,
    server: &WrittenServer,
) -> Result<(Setting<u32>, Setting<u32>), Mistake> {
    let base = reader.set(server.uid_base.as_ref(), UID_BASE, |base| base);
    let count = reader.count(server.uid_count.as_ref(), UID_COUNT)?;
    let span =
        [&server.uid_base, &server.uid_count].into_iter().flatten().next().map(Spanned::span);
    let mistake = |message: String| Err(reader.document.mistake(span.unwrap_or(0..0), message));
    if base.value < UID_BASE_MIN {
        return mistake(format!(
            "`uid_base` is {UID_BASE_MIN} at least: below are users of the machine"
        ));
    }
    // The last value, all ones, means "no uid" (setresuid(2)).
    if base.value.checked_add(count.value).is_none() {
        return mistake("`uid_base` and `uid_count` together go beyond the last uid".to_owned());
    }
    Ok((base, count))
}

/// Reads the destinations of all cells with a workspace.
fn egress(reader: &Reader<'_>, server: &WrittenServer) -> Result<Setting<Vec<String>>, Mistake> {
    let words = server.egress.as_ref();
    let wrong = words.and_then(|words| {
        let mut all = words.get_ref().iter().map(|word| profile::egress::word(word));
        all.find_map(Result::err).map(|error| reader.mistake(words.span(), error.to_string()))
    });
    match wrong {
        Some(mistake) => Err(mistake),
        None => Ok(reader.set(words, Vec::new(), |words| words)),
    }
}

/// Reads the choice of tool chains.
fn toolchains(reader: &Reader<'_>, written: &WrittenToolchains) -> Setting<ToolchainChoice> {
    reader.set(written.grant.as_ref(), ToolchainChoice::Auto, |choice| choice)
}

/// Reads the names that are guarded besides those that cofferdam knows.
fn guard_names(reader: &Reader<'_>, written: &WrittenGuard) -> Setting<BTreeSet<String>> {
    let texts = |names: BTreeSet<GuardedName>| names.into_iter().map(|name| name.0).collect();
    reader.set(written.names.as_ref(), BTreeSet::new(), texts)
}

fn audit_file(
    reader: &Reader<'_>,
    audit: &WrittenAudit,
) -> Result<Setting<Option<PathBuf>>, Mistake> {
    match audit.file.as_ref().filter(|file| !file.get_ref().is_absolute()) {
        Some(file) => Err(reader.document.mistake(file.span(), "a path must be absolute")),
        None => Ok(reader.set(audit.file.as_ref(), None, Some)),
    }
}

/// Reads the size of a file, with room for some dozens of calls: a smaller one would turn over with every few.
fn audit_max_bytes(reader: &Reader<'_>, audit: &WrittenAudit) -> Result<Setting<u64>, Mistake> {
    const LEAST: Size = Size(64 << 10);
    match audit.max_bytes.as_ref().filter(|size| *size.get_ref() < LEAST) {
        Some(small) => {
            let what = format!("a file of the log has {LEAST} at least");
            Err(reader.document.mistake(small.span(), what))
        }
        None => Ok(reader.set(audit.max_bytes.as_ref(), 64 << 20, |size| size.0)),
    }
}

/// Reads the number of files, at most as many as `cofferdam audit` looks for; each rotation renames them all.
fn audit_keep(reader: &Reader<'_>, audit: &WrittenAudit) -> Result<Setting<u32>, Mistake> {
    match audit.keep.as_ref().filter(|keep| *keep.get_ref() > AUDIT_FILES) {
        Some(many) => {
            let what = format!("at most {AUDIT_FILES} rotated files are kept");
            Err(reader.document.mistake(many.span(), what))
        }
        None => reader.count(audit.keep.as_ref(), 5),
    }
}
