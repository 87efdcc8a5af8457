//! A profile as its TOML file has it. Every table that grants something has a `why`.
//!
//! The comments of these fields are the reference of keys, and the descriptions in the JSON Schema.

use std::collections::BTreeMap;

use toml::Spanned;

use crate::document::{Content, Form, Item, Read, ReadError, Reason};

use model::egress::{NetworkClass, SecretForm};
use model::profile::{Family, ProcView, UnixSockets};
use model::units::{Processors, Size, Time};

table! {
    /// A profile: what a cell gets in addition to the minimal sandbox. No profile can weaken the
    /// sandbox itself.
    pub(super) struct Written {
        /// Version of the file format. Example: `1`.
        _schema "schema": i64,
        /// Name that policies and `--profile` use: lower-case letters, digits and dashes. Example:
        /// `"node"`.
        pub name: Spanned<String>,
        /// One line that `profile list` prints. Example: `"bash, and node from /opt"`.
        pub description: String,
        /// Profile that this one extends. It gets everything that the other one grants.
        ///
        /// Default: none. Example: `"bash"`.
        pub extends: Option<Spanned<String>>,
        /// Programs that may be executed. A profile that neither has nor inherits it can only be
        /// extended.
        pub exec: Option<WrittenExec>,
        /// Program that a waiting cell starts before a call arrives.
        pub ahead: Option<WrittenAhead>,
        /// Directory `/workspace`.
        pub workspace: Option<WrittenWorkspace>,
        /// Files in `/etc` that are as a package shipped them.
        pub packaged_etc: Option<WrittenPackagedEtc>,
        /// Filesystem `/proc` of the cell.
        pub proc: Option<WrittenProc>,
        /// Network of the cell.
        pub network: Option<WrittenNetwork>,
        /// Destinations that the cell may reach, in addition to those of the extended profile.
        pub egress "egress": Vec<WrittenEgress> = Vec::new(),
        /// Network limits of one call. An absent key has the value of the extended profile, else
        /// the default.
        pub egress_limits: WrittenEgressLimits = WrittenEgressLimits::default(),
        /// Families of sockets that programs may create.
        pub sockets: Option<WrittenSockets>,
        /// Sockets of the host that cells may connect to.
        pub unix_sockets: Option<WrittenUnixSockets>,
        /// Files and directories of the host, read-only.
        pub paths "path": Vec<WrittenPath> = Vec::new(),
        /// System calls that are allowed, in addition to those of the extended profile.
        pub syscalls: Vec<WrittenCalls> = Vec::new(),
        /// System calls that are refused with EPERM and not reported as denials, because programs
        /// try them and work without them.
        pub quiet: Vec<WrittenCalls> = Vec::new(),
        /// Variables of the environment, in addition to those of every cell.
        pub env: Option<WrittenEnv>,
        /// Limits of one cell.
        pub limits: WrittenLimits = WrittenLimits::default(),
        /// Features of the machine without which the profile is refused.
        pub requires: WrittenRequires = WrittenRequires::default(),
    }
}

table! {
    /// Programs that may be executed.
    pub(super) struct WrittenExec {
        /// `any`, or the absolute path of the only program of the cell, which a `[[path]]` must
        /// grant. That program cannot start another one. Example: `"any"`.
        pub program: Spanned<String>,
        /// Reason for the grant. Example: `"a shell runs programs"`.
        pub why: Reason,
    }
}

table! {
    /// Program that a waiting cell starts before a call arrives, for profiles with one program and
    /// no workspace. A later `exec` without `ahead` removes it.
    pub(super) struct WrittenAhead {
        /// Program and its arguments. A call with exactly these gets a cell that waits with the
        /// program. Example: `["bc", "-l", "-q"]`.
        pub argv: Spanned<Vec<String>>,
        /// Variables of the program, which the call must have too.
        ///
        /// Default: `{}`. Example: `{ BC_LINE_LENGTH = "0" }`.
        pub env: BTreeMap<String, Spanned<String>> = BTreeMap::new(),
        /// Reason for the grant. Example: `"its start is most of a short call"`.
        pub why: Reason,
    }
}

table! {
    /// Directory `/workspace`: a private one, or a granted directory of the host. Without this
    /// table there is no `/workspace`.
    pub(super) struct WrittenWorkspace {
        /// Reason for the grant. Example: `"a place for the work"`.
        pub why: Reason,
    }
}

table! {
    /// Copies of the host's files in `/etc` that every user can read and that have not changed
    /// since a package of Debian's installed them, by the digests of dpkg. Files that you or a
    /// package's script wrote or changed are not in the cell. Without this table `/etc` has only the files of
    /// `[[path]]` and those that cofferdam creates.
    pub(super) struct WrittenPackagedEtc {
        /// Reason for the grant. Example: `"programs read their configuration"`.
        pub why: Reason,
    }
}

table! {
    /// Filesystem `/proc` of the cell. Without this table there is no `/proc`.
    pub(super) struct WrittenProc {
        /// Contents of `/proc`. Example: `"own"`.
        pub view: ProcView,
        /// Reason for the grant. Example: `"ps and language runtimes read it"`.
        pub why: Reason,
    }
}

table! {
    /// Network of the cell, always separate from the host's. Without this table there is no
    /// network.
    pub(super) struct WrittenNetwork {
        /// Destinations that the cell can reach. Example: `"loopback"`.
        pub class: Spanned<NetworkClass>,
        /// Reason for the grant. Example: `"tests start local servers"`.
        pub why: Reason,
    }
}

table! {
    /// Destinations that a cell may reach, for the classes `allow-list`, `private` and `any`. The
    /// gateway, a process outside of the cell, makes the connections. No rule can reach the host
    /// itself, link-local addresses or a cloud's metadata service.
    pub(super) struct WrittenEgress {
        /// Name of the rule in replies, in the audit log and in policies: lower-case letters,
        /// digits and dashes. A later rule replaces an earlier one with the same name. Example:
        /// `"pypi"`.
        pub id: Spanned<String>,
        /// Names that may be resolved and reached: full names, or `*.` and at least two labels for
        /// all names below.
        ///
        /// Default: `[]`. Example: `["pypi.org", "*.pythonhosted.org"]`.
        pub hosts: Vec<Spanned<String>> = Vec::new(),
        /// Networks, or single addresses, that may be reached.
        ///
        /// Default: `[]`. Example: `["10.20.0.0/16", "fd12::/48"]`.
        pub nets: Vec<Spanned<String>> = Vec::new(),
        /// Ports and ranges of ports of TCP and UDP. Ports 25, 53 and 853 must be listed
        /// individually; ranges do not include them.
        ///
        /// Default: `[]`, which is for `icmp` only. Example: `[443, "8000-8100"]`.
        pub ports: Vec<Spanned<WrittenPorts>> = Vec::new(),
        /// Protocols: `tcp`, `udp` and `icmp`, which means echo requests (ping).
        ///
        /// Default: `["tcp"]`. Example: `["tcp", "udp", "icmp"]`.
        pub protocols: Option<Spanned<Vec<WrittenProtocol>>>,
        /// Allowed requests. The gateway then terminates TLS for these hosts with a certificate
        /// authority that cells trust, and checks the method and path of each request. Only for the
        /// class `allow-list`.
        ///
        /// Default: connections are relayed without reading them.
        pub http: Vec<WrittenHttp> = Vec::new(),
        /// Credential that the gateway adds to requests to these hosts. Cells never get it. Needs
        /// `http`.
        ///
        /// Default: none.
        pub secret: Option<WrittenSecretUse>,
        /// Reason for the grant. Example: `"install packages"`.
        pub why: Reason,
    }
}

table! {
    /// Allowed requests: one of the methods with one of the paths.
    pub(super) struct WrittenHttp {
        /// Methods, in capitals. `CONNECT` and `TRACE` are never allowed. Example: `["GET", "HEAD"]`.
        pub methods: Spanned<Vec<Spanned<String>>>,
        /// Paths, decoded and without a query. `*` matches any text within one segment, `**` any
        /// number of segments. Example: `["/simple/**", "/*/*/git-upload-pack"]`.
        pub paths: Spanned<Vec<Spanned<String>>>,
    }
}

table! {
    /// Use of a secret: the cell's variable holds a placeholder, and the gateway replaces it in one
    /// header.
    pub(super) struct WrittenSecretUse {
        /// Name of a `[[secret]]` of the server. Example: `"github"`.
        pub name: Spanned<String>,
        /// Name of the only header in which the placeholder is replaced. Example: `"authorization"`.
        pub header: Spanned<String>,
        /// Form of the header's value. Example: `"basic"`.
        pub form: Spanned<SecretForm>,
        /// Variable of the cell that holds the placeholder. Example: `"GH_TOKEN"`.
        pub env: Spanned<String>,
    }
}

/// One port, or a range of them.
#[derive(Debug, Clone)]
pub(super) enum WrittenPorts {
    One(u16),
    Range(String),
}

impl Read for WrittenPorts {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        match item.content()? {
            Content::Whole(number) => u16::try_from(number).ok().map(Self::One),
            Content::Text(text) => Some(Self::Range(text.to_owned())),
            Content::Fraction(_)
            | Content::Flag(_)
            | Content::Date
            | Content::List(_)
            | Content::Table(_) => None,
        }
        .ok_or_else(|| item.error("write a port, such as 443, or a range, such as \"8000-8100\""))
    }

    fn form() -> Form {
        let rule = r#""type": ["integer", "string"], "minimum": 0, "maximum": 65535"#;
        Form::plain("port, or text", rule)
    }
}

words! {
    for ProcView {
        /// The processes of the cell, without facts of the host.
        Own = "own",
        /// No `/proc`: for containers in which none can be mounted.
        None = "none",
    }
}

words! {
    for Family {
        /// Local sockets (unix(7)).
        Unix = "unix",
        /// IPv4 (ip(7)).
        Inet = "inet",
        /// IPv6 (ipv6(7)).
        Inet6 = "inet6",
    }
}

words! {
    for UnixSockets {
        /// No socket of the host.
        None = "none",
        /// The named sockets, and only those, in a private directory of the cell.
        Private = "private",
    }
}

words! {
    for NetworkClass {
        /// No network, not even loopback.
        None = "none",
        /// The loopback interface of the cell.
        Loopback = "loopback",
        /// Loopback, and the destinations of the `[[egress]]` rules.
        AllowList = "allow-list",
        /// Loopback, private networks (RFC 1918, RFC 4193), and the destinations of the rules.
        Private = "private",
        /// Loopback, and every address except those of the host and of a cloud's metadata service.
        Any = "any",
    }
}

words! {
    for SecretForm {
        /// `Basic`, with the secret as the password (RFC 7617).
        Basic = "basic",
        /// `Bearer`, then the secret (RFC 6750).
        Bearer = "bearer",
        /// The secret alone.
        Plain = "plain",
    }
}

words! {
    /// One word of `protocols`.
    pub(super) enum WrittenProtocol {
        /// Connections (tcp(7)).
        Tcp = "tcp",
        /// Datagrams (udp(7)).
        Udp = "udp",
        /// Echo requests and their answers, of both versions of IP (icmp(7)).
        Icmp = "icmp",
    }
}

table! {
    /// Network limits of one call.
    #[derive(Default)]
    pub(super) struct WrittenEgressLimits {
        /// Connections that are open at the same time; at most 256.
        ///
        /// Default: `256`. Example: `64`.
        pub connections: Option<Spanned<u32>>,
        /// Bytes that a call may send.
        ///
        /// Default: no limit. Example: `"64M"`.
        pub sent: Option<Size>,
        /// Bytes that a call may receive.
        ///
        /// Default: no limit. Example: `"2G"`.
        pub received: Option<Size>,
        /// Bytes per second in both directions together.
        ///
        /// Default: no limit. Example: `"20M"`.
        pub rate: Option<Size>,
        /// Bytes that all calls of a session together may send. `sent` limits each of them.
        ///
        /// Default: no limit. Example: `"256M"`.
        pub session_sent: Option<Size>,
        /// Bytes that all calls of a session together may receive.
        ///
        /// Default: no limit. Example: `"8G"`.
        pub session_received: Option<Size>,
    }
}

table! {
    /// Families of sockets that programs may create, in addition to those of the extended profile.
    pub(super) struct WrittenSockets {
        /// Families of socket(2). Example: `["unix", "inet"]`.
        pub families: Vec<Family>,
        /// Reason for the grant. Example: `"clients are tested against local servers"`.
        pub why: Reason,
    }
}

table! {
    /// Sockets of the host that cells may connect to. `[nested]` of the server or `run --socket`
    /// names them. Needs the family `unix` in `sockets`.
    pub(super) struct WrittenUnixSockets {
        /// Sockets that cells may connect to. Example: `"private"`.
        pub class: UnixSockets,
        /// Reason for the grant. Example: `"the agent's own tools listen there"`.
        pub why: Spanned<Reason>,
    }
}

table! {
    /// File or directory of the host that the cell can read.
    pub(super) struct WrittenPath {
        /// Path on the host, absolute or with `~/` for your home directory. Refused are `/proc`,
        /// `/sys`, `/dev`, `/run`, `/var/run` and everything below them, and the whole of `/`,
        /// `/etc`, `/home`, `/root`, `/var` and `/tmp`. Example: `"/opt/node"`.
        pub host: Spanned<String>,
        /// Absolute path in the cell, outside of `/proc`, `/sys`, `/dev`, `/run`, `/tmp` and
        /// `/workspace`, and not a file that cofferdam creates in `/etc`.
        ///
        /// Default: the path on the host. Example: `"/usr/lib/node"`.
        pub cell: Option<Spanned<String>>,
        /// Grant only the program's file, its interpreter and the libraries that it needs.
        ///
        /// Default: `false`. Example: `true`.
        pub program: bool = false,
        /// Allow the profile on a host without this path.
        ///
        /// Default: `false`. Example: `true`.
        pub optional: bool = false,
        /// Reason for the grant. Example: `"the tool chain"`.
        pub why: Reason,
    }
}

table! {
    /// System calls that share a reason.
    pub(super) struct WrittenCalls {
        /// Names of system calls, as in syscalls(2). Calls of another architecture are accepted and
        /// ignored. Example: `["io_setup", "io_submit"]`.
        pub names: Vec<Spanned<String>>,
        /// Reason for the grant, or for not reporting the calls. Example: `"the database uses
        /// asynchronous I/O"`.
        pub why: Reason,
    }
}

table! {
    /// Variables of the environment, in addition to those of every cell. Names that change what
    /// programs load are refused.
    pub(super) struct WrittenEnv {
        /// Values by name. Example: `{ PATH = "/opt/node/bin:/usr/bin:/bin" }`.
        pub set: BTreeMap<String, Spanned<String>>,
        /// Reason for the grant. Example: `"so that node is found"`.
        pub why: Reason,
    }
}

table! {
    /// Limits of one cell. An absent key has the value of the extended profile, else the default.
    #[derive(Default)]
    pub(super) struct WrittenLimits {
        /// Wall time of a call; at most one hour.
        ///
        /// Default: `"600s"`. Example: `"2m"`.
        pub timeout: Option<Spanned<Time>>,
        /// Processor time of one process; at most one hour.
        ///
        /// Default: `"3600s"`. Example: `"5m"`.
        pub cpu: Option<Spanned<Time>>,
        /// Processors that a cell may use at the same time. Needs cgroup v2 with the `cpu`
        /// controller.
        ///
        /// Default: all processors. Example: `1.5`.
        pub processors: Option<Spanned<Processors>>,
        /// Memory of the cell, including its private files; at least 8M.
        ///
        /// Default: `"1G"`. Example: `"2G"`.
        pub memory: Option<Spanned<Size>>,
        /// Processes and threads of the cell.
        ///
        /// Default: `256`. Example: `512`.
        pub processes: Option<Spanned<u32>>,
        /// Open files of one process; at most 1000 if `exec` names one program, which is then the
        /// default.
        ///
        /// Default: `1024`. Example: `256`.
        pub open_files: Option<Spanned<u32>>,
        /// Size of the largest file that may be written.
        ///
        /// Default: `"512M"`. Example: `"64M"`.
        pub file_size: Option<Spanned<Size>>,
        /// Size of a private `/workspace`. It and `tmp` may have at most half of `memory`.
        ///
        /// Default: `"384M"`. Example: `"256M"`.
        pub workspace: Option<Spanned<Size>>,
        /// Size of `/tmp`.
        ///
        /// Default: `"128M"`. Example: `"64M"`.
        pub tmp: Option<Spanned<Size>>,
        /// Size of `/dev/shm`. It, `tmp` and `workspace` may have at most three quarters of
        /// `memory`.
        ///
        /// Default: `"64M"`. Example: `"16M"`.
        pub shm: Option<Spanned<Size>>,
        /// Files and directories in each of these three.
        ///
        /// Default: `100000`. Example: `20000`.
        pub inodes: Option<Spanned<u32>>,
        /// Total output of both streams at which a call is ended.
        ///
        /// Default: `"256M"`. Example: `"16M"`.
        pub output: Option<Spanned<Size>>,
    }
}

table! {
    /// Features of the machine without which the profile is refused.
    #[derive(Default)]
    pub(super) struct WrittenRequires {
        /// Lowest Landlock ABI, as `cofferdam doctor` shows it.
        ///
        /// Default: `2`. Example: `4`.
        pub landlock_abi: Option<Spanned<u32>>,
        /// Require a control group that limits memory; otherwise the limit is best-effort.
        ///
        /// Default: `false`. Example: `true`.
        pub memory_cgroup: Option<bool>,
    }
}
