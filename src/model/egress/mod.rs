//! The network that a profile grants its cells, and the frames between supervisor and gateway.
//!
//! `host` and `net` parse rules, `never` lists the addresses and names that no rule reaches,
//! `frames` has the messages, and `within` compares two networks. *Invariant:* plain data and rules
//! over it: no I/O, no TOML.

pub mod frames;
mod host;
mod net;
pub mod never;
mod parse_net;
mod path;
mod placeholder;
mod tally;
mod within;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use host::{HostPattern, InvalidHost};
pub use net::{InvalidPorts, Net, PortRange};
pub use parse_net::InvalidNet;
pub use path::{PathPattern, RequestPath};
pub use placeholder::{placeholder, placeholder_mark};
pub use tally::{
    Connection, ConnectionEnd, Denied, Protocol, QUESTION, SessionUse, TALLY_ROWS, Tally, TallyRow,
    grant,
};

/// Command by which the operator of the host allows echo requests.
pub const ECHO_REMEDY: &str = "sysctl -w net.ipv4.ping_group_range='0 2147483647'";

/// The network class of a profile: the key `network.class`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkClass {
    /// Not even loopback.
    #[default]
    None,
    /// Loopback only.
    Loopback,
    /// Loopback, and destinations of the profile's rules.
    AllowList,
    /// Loopback, private networks (RFC 1918, RFC 4193), and destinations of the rules.
    Private,
    /// Loopback, and every address that [`mod@never`] does not list.
    Any,
}

impl NetworkClass {
    /// Returns its name, the value of the profile key `network.class`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Loopback => "loopback",
            Self::AllowList => "allow-list",
            Self::Private => "private",
            Self::Any => "any",
        }
    }

    /// Returns true if cells of this class have a loopback interface.
    pub fn has_loopback(self) -> bool {
        self != Self::None
    }

    /// Returns true if cells of this class reach a network through the gateway.
    pub fn has_egress(self) -> bool {
        match self {
            Self::None | Self::Loopback => false,
            Self::AllowList | Self::Private | Self::Any => true,
        }
    }
}

/// The network of a profile: class, rules and limits. The gateway has one for each profile.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Egress {
    pub class: NetworkClass,
    pub rules: Vec<EgressRule>,
    pub limits: EgressLimits,
}

/// Formats on one line: `10.0.0.1/32 port 80, 443`.
impl fmt::Display for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nothing() {
            return f.write_str("nothing");
        }
        let hosts = self.hosts.iter().map(ToString::to_string);
        let to: Vec<String> = hosts.chain(self.nets.iter().map(ToString::to_string)).collect();
        f.write_str(if to.is_empty() { "any destination" } else { "" })?;
        f.write_str(&to.join(", "))?;
        if !self.ports.is_empty() {
            let ports: Vec<String> = self.ports.iter().map(ToString::to_string).collect();
            write!(f, " port {}", ports.join(", "))?;
        }
        if self.is_public {
            f.write_str(", public addresses alone")?;
        }
        match &self.rules {
            Some(rules) => write!(f, " by {}", rules.join(", ")),
            None => Ok(()),
        }
    }
}

impl Egress {
    /// Returns true if cells can reach the named host by HTTPS.
    pub fn reaches(&self, name: &str) -> bool {
        let has = |rule: &EgressRule| {
            rule.hosts.iter().any(|host| host.matches(name))
                && rule.ports.iter().any(|ports| ports.contains(443))
        };
        self.class == NetworkClass::Any || self.rules.iter().any(has)
    }

    /// Returns what remains for a call that may only use these rules.
    #[must_use]
    pub fn narrowed(mut self, rules: &[String]) -> Self {
        if self.class.has_egress() {
            self.class = NetworkClass::AllowList;
            self.rules.retain(|rule| rules.contains(&rule.id));
        }
        self
    }
}

/// One `[[egress]]` table of a profile: which destinations may be reached, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRule {
    /// Name of the rule in replies, in the audit log and in policies.
    pub id: String,
    /// Names that cells may resolve and reach.
    pub hosts: Vec<HostPattern>,
    /// Networks whose addresses cells may reach.
    pub nets: Vec<Net>,
    /// TCP and UDP ports. Empty only if the rule is for ICMP alone.
    pub ports: Vec<PortRange>,
    pub protocols: Protocols,
    /// Allowed HTTP requests; empty means that connections are relayed without reading requests.
    pub http: Vec<HttpRule>,
    /// Credential that the gateway puts into requests to these hosts.
    pub secret: Option<SecretUse>,
    pub why: String,
}

impl EgressRule {
    /// Returns true if the gateway intercepts the requests to these hosts, which ends their TLS.
    pub fn intercepts(&self) -> bool {
        !self.http.is_empty() || self.secret.is_some()
    }
}

/// Formats on one line: `pypi.org, files.pythonhosted.org port 443`.
impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.hosts.iter().map(ToString::to_string);
        let to: Vec<String> = hosts.chain(self.nets.iter().map(ToString::to_string)).collect();
        write!(f, "{}", to.join(", "))?;
        if !self.ports.is_empty() {
            let ports: Vec<String> = self.ports.iter().map(ToString::to_string).collect();
            write!(f, " port {}", ports.join(", "))?;
        }
        if self.protocols != Protocols::TCP {
            write!(f, " ({})", self.protocols.names().join(", "))?;
        }
        if self.intercepts() { f.write_str(", whose requests are read") } else { Ok(()) }
    }
}

/// Protocols that a rule allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protocols {
    pub tcp: bool,
    pub udp: bool,
    /// ICMP and ICMPv6 echo requests and replies.
    pub icmp: bool,
}

impl Protocols {
    pub const TCP: Self = Self { tcp: true, udp: false, icmp: false };
    pub const ALL: Self = Self { tcp: true, udp: true, icmp: true };

    /// Returns true if one of the protocols has ports.
    pub fn has_ports(self) -> bool {
        self.tcp || self.udp
    }

    /// Returns their names, the values of the key `protocols`.
    pub fn names(self) -> Vec<&'static str> {
        let all = [(self.tcp, "tcp"), (self.udp, "udp"), (self.icmp, "icmp")];
        all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
    }
}

/// HTTP requests that a rule allows: any of the methods with any of the paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRule {
    /// Upper case, as in the request line.
    pub methods: Vec<String>,
    /// Globs that begin with `/`; `*` stands for one segment, `**` for any number of them.
    pub paths: Vec<String>,
}

/// How a rule uses a secret: the cell has a placeholder, which the gateway replaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretUse {
    /// Name of a `[[secret]]` of the server.
    pub name: String,
    /// Name of the header whose value is replaced, in lower case.
    pub header: String,
    pub form: SecretForm,
    /// Environment variable of the cell that holds the placeholder.
    pub env: String,
}

/// Where the host stores a secret, which only the gateway reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    File(std::path::PathBuf),
    /// A systemd credential, by name.
    Credential(String),
    /// A variable of the server's environment.
    Env(String),
}

/// The form of a header's value around a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretForm {
    /// `Basic`, with the secret as the password (RFC 7617).
    Basic,
    /// `Bearer`, then the secret (RFC 6750).
    Bearer,
    /// The secret alone.
    Plain,
}

/// Network limits of a call: `[egress_limits]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressLimits {
    /// Connections and flows that are open at the same time.
    pub connections: u32,
    /// Maximum number of bytes that a call may send; `None` means no limit.
    pub sent: Option<u64>,
    /// Maximum number of bytes that a call may receive; `None` means no limit.
    pub received: Option<u64>,
    /// Bytes per second in both directions together; `None` means no limit.
    pub rate: Option<u64>,
    /// Maximum number of bytes that all calls of a session may send; `None` means no limit.
    pub session_sent: Option<u64>,
    /// Maximum number of bytes that all calls of a session may receive; `None` means no limit.
    pub session_received: Option<u64>,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self {
            connections: Self::CONNECTIONS,
            sent: None,
            received: None,
            rate: None,
            session_sent: None,
            session_received: None,
        }
    }
}

impl EgressLimits {
    /// Maximum and default number of simultaneous connections of a profile.
    pub const CONNECTIONS: u32 = 256;
}

/// Restricts the network of one call within its profile. Each non-empty list must match.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Only {
    /// Ids of the rules that may be used; `None` means all, and the profile's class.
    pub rules: Option<Vec<String>>,
    /// Hosts, of which one must match the destination unless a network does.
    pub hosts: Vec<HostPattern>,
    /// Networks, of which one must match the destination unless a host does.
    pub nets: Vec<Net>,
    pub ports: Vec<PortRange>,
    /// Networks that must contain the address, whatever its name.
    pub within: Vec<Net>,
    /// True if private addresses are excluded, whatever rule or name allows them.
    pub is_public: bool,
}

impl Only {
    /// Maximum number of entries of each list, so that it fits a frame.
    pub const MAX_ENTRIES: usize = 128;

    /// Returns true if the call may use no network at all.
    fn is_nothing(&self) -> bool {
        self.rules.as_ref().is_some_and(Vec::is_empty)
    }

    /// Returns true if each list has at most [`Self::MAX_ENTRIES`] entries and the ids are short
    /// enough.
    pub fn is_bounded(&self) -> bool {
        let rules = self.rules.as_deref().unwrap_or_default();
        let longest = [rules.len(), self.hosts.len(), self.nets.len()].into_iter();
        longest
            .chain([self.ports.len(), self.within.len()])
            .all(|length| length <= Self::MAX_ENTRIES)
            && rules.iter().map(String::len).sum::<usize>() <= 16 << 10
    }
}
