//! Contents of the log lines. Every length is bounded, and values of environment variables are left
//! out.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::chain::sha256;
use config::policy::{Denial, Grant, Principal};
use model::call::{Call, Stdin, ToolName};
use model::egress::{Connection, ConnectionEnd, Protocol};
use model::job::Limits;
use model::outcome::{DeniedBy, DeniedCall, Ended, Failure, Outcome};
use model::profile::calls;
use model::receipt::Receipt;

/// Maximum number of characters kept of a command; its hash and length stand for the rest.
const MAX_START: usize = 200;
/// Maximum number of characters of a reason, which may quote long text of a caller.
const MAX_REASON: usize = 300;
/// Maximum number of environment variables and denied system calls that are listed.
const MAX_LISTED: usize = 64;

/// A call as requested, before the decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallRecord {
    pub call: String,
    /// The client that made the call.
    principal: String,
    pub tool: ToolName,
    command: Text,
    /// The id that the caller gave the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    /// A script's positional parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Text>,
    cwd: Option<String>,
    stdin_bytes: Option<usize>,
    /// Hash of the standard input, which holds a calculator's expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdin_sha256: Option<String>,
    /// Names of variables; every value is `***`.
    env: BTreeMap<String, &'static str>,
    env_count: usize,
}

/// A text as hash, length and escaped beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Text {
    sha256: String,
    bytes: usize,
    start: String,
}

impl CallRecord {
    pub fn new(id: String, principal: &Principal, call: &Call) -> Self {
        // The script itself is recorded; the words that make bash read it are always the same.
        let command = match &call.script {
            Some(script) => Text::new(&String::from_utf8_lossy(script.as_bytes())),
            None => Text::words(call.argv.words()),
        };
        // Skips bash, -c, the words that read the script, and `$0`.
        let parameters = call.script.as_ref().and_then(|_| call.argv.words().get(4..));
        let names = call.env.iter().map(|(name, _)| (cut(name, MAX_REASON), "***"));
        Self {
            call: id,
            principal: name(principal),
            tool: call.tool.clone(),
            command,
            correlation_id: call.correlation.as_ref().map(|id| cut(id.as_str(), MAX_REASON)),
            parameters: parameters.map(Text::words),
            cwd: call.cwd.as_ref().map(|cwd| cut(cwd.as_str(), MAX_REASON)),
            stdin_bytes: match &call.stdin {
                Stdin::Empty => Some(0),
                Stdin::Bytes(bytes) => Some(bytes.len()),
                // More may be written later.
                Stdin::Pipe(_) | Stdin::Terminal(_) => None,
            },
            stdin_sha256: match &call.stdin {
                Stdin::Bytes(bytes) => Some(sha256(bytes)),
                Stdin::Pipe(first) | Stdin::Terminal(first) if !first.is_empty() => {
                    Some(sha256(first))
                }
                Stdin::Empty | Stdin::Pipe(_) | Stdin::Terminal(_) => None,
            },
            env: names.take(MAX_LISTED).collect(),
            env_count: call.env.iter().count(),
        }
    }
}

impl Text {
    fn new(text: &str) -> Self {
        Self { sha256: sha256(text.as_bytes()), bytes: text.len(), start: cut(text, MAX_START) }
    }

    /// Hashes the words as in memory, each followed by a NUL; shows them separated by spaces.
    fn words(words: &[String]) -> Self {
        let whole: String = words.iter().flat_map(|word| [word.as_str(), "\0"]).collect();
        Self { start: cut(&words.join(" "), MAX_START), ..Self::new(&whole) }
    }
}

/// Returns at most `max_characters` characters, with control characters escaped.
fn cut(text: &str, max_characters: usize) -> String {
    text.chars().take(max_characters).flat_map(char::escape_debug).collect()
}

/// The limits of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct LimitFields {
    wall_ms: u64,
    cpu_ms: u64,
    memory: u64,
    processes: u32,
    file_size: u64,
    tmpfs: u64,
    output: Option<u64>,
}

impl LimitFields {
    fn new(limits: &Limits) -> Self {
        Self {
            wall_ms: millis(limits.wall),
            cpu_ms: millis(limits.cpu),
            memory: limits.memory,
            processes: limits.processes,
            file_size: limits.file_size,
            tmpfs: limits.tmpfs(),
            output: limits.output,
        }
    }
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Record {
    Decision(Box<Decision>),
    Outcome(Box<Ending>),
    Connection(Box<ConnectionEntry>),
    /// A call with invalid arguments, about which nothing was decided.
    Invalid {
        principal: String,
        tool: String,
        why: String,
    },
    /// A request to read, write to or end a job of a session.
    Job {
        principal: String,
        tool: &'static str,
        job: String,
        decision: &'static str,
        rule: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// Length of the text written to the job.
        #[serde(skip_serializing_if = "Option::is_none")]
        input_bytes: Option<usize>,
        #[serde(skip_serializing_if = "Option::is_none")]
        input_sha256: Option<String>,
    },
    /// Lines before this one could not be written.
    Gap {
        lost: u64,
        why: String,
    },
    /// The line before this one is a fragment left by a crash or a full disk.
    Fragment {
        bytes: usize,
        sha256: String,
    },
}

/// The decision about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Decision {
    #[serde(flatten)]
    request: CallRecord,
    decision: &'static str,
    rule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<LimitFields>,
    clamped: bool,
}

impl Record {
    pub(crate) fn invalid(principal: &Principal, tool: &str, why: &str) -> Self {
        Self::Invalid {
            principal: name(principal),
            tool: cut(tool, MAX_REASON),
            why: cut(why, MAX_REASON),
        }
    }

    /// Records a request about `job`, with the rule that allows it.
    pub(crate) fn job(
        principal: &Principal,
        tool: &'static str,
        job: &str,
        input: Option<&str>,
        rule: &str,
    ) -> Self {
        Self::Job {
            principal: name(principal),
            tool,
            job: cut(job, MAX_REASON),
            decision: "granted",
            rule: cut(rule, MAX_REASON),
            why: None,
            input_bytes: input.map(str::len),
            input_sha256: input.map(|input| sha256(input.as_bytes())),
        }
    }

    pub(crate) fn no_job(
        principal: &Principal,
        tool: &'static str,
        job: &str,
        denial: &Denial,
    ) -> Self {
        Self::Job {
            principal: name(principal),
            tool,
            job: cut(job, MAX_REASON),
            decision: "denied",
            rule: cut(&denial.rule, MAX_REASON),
            why: Some(cut(&denial.why, MAX_REASON)),
            input_bytes: None,
            input_sha256: None,
        }
    }
}

/// Returns a client's name for a log line.
fn name(principal: &Principal) -> String {
    cut(principal.name(), MAX_REASON)
}

impl Decision {
    pub(crate) fn granted(request: CallRecord, grant: &Grant) -> Self {
        let job = grant.job();
        let request = CallRecord { cwd: Some(cut(job.cwd.as_str(), MAX_REASON)), ..request };
        Self {
            request,
            decision: "granted",
            rule: cut(grant.rule(), MAX_REASON),
            why: None,
            profile: Some(job.profile.to_string()),
            limits: Some(LimitFields::new(&job.limits)),
            clamped: grant.clamped(),
        }
    }

    pub(crate) fn denied(request: CallRecord, denial: &Denial) -> Self {
        Self {
            request,
            decision: "denied",
            rule: cut(&denial.rule, MAX_REASON),
            why: Some(cut(&denial.why, MAX_REASON)),
            profile: None,
            limits: None,
            clamped: false,
        }
    }
}

/// A connection of a call, when it closed or was denied. Its request has a method and a path, but
/// no query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ConnectionEntry {
    call: String,
    tool: ToolName,
    protocol: Protocol,
    address: String,
    /// Name that the cell resolved to the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The egress rule, or the network class.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    verdict: ConnectionEnd,
    sent: u64,
    received: u64,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
}

impl ConnectionEntry {
    pub(crate) fn new(call: String, tool: ToolName, connection: &Connection) -> Self {
        let short = |text: &Option<String>| text.as_ref().map(|text| cut(text, MAX_REASON));
        Self {
            call,
            tool,
            protocol: connection.protocol,
            address: match connection.protocol {
                Protocol::Icmp => connection.address.ip().to_string(),
                Protocol::Tcp | Protocol::Udp => connection.address.to_string(),
            },
            name: short(&connection.name),
            rule: short(&connection.rule),
            verdict: connection.end,
            sent: connection.sent,
            received: connection.received,
            duration_ms: connection.milliseconds,
            request: short(&connection.request),
        }
    }
}

/// How a granted call ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Ending {
    call: String,
    tool: ToolName,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageFields>,
    denials: BTreeMap<String, u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<ReceiptFields>,
    /// Number of connections and denials of the call that have no log line.
    #[serde(skip_serializing_if = "Option::is_none")]
    connections_unlisted: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct UsageFields {
    wall_ms: u64,
    user_ms: u64,
    system_ms: u64,
    peak_memory: u64,
    built_us: u128,
}

/// The parts of a receipt that differ from call to call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ReceiptFields {
    profile: String,
    tier: model::receipt::Tier,
    host_uid: u32,
    seccomp_filters: u32,
    landlock_abi: u32,
    memory: model::receipt::MemoryHold,
    workspace: String,
}

impl Ending {
    pub(crate) fn new(
        call: String,
        tool: ToolName,
        duration: Duration,
        ended: &Ended,
        receipt: Option<&Receipt>,
    ) -> Self {
        let bare = Self::refused(call, tool, duration, "", String::new());
        let bare = Self { why: None, ..bare };
        let named = match &ended.outcome {
            Outcome::Exited { code } => Self { outcome: "exited", exit_code: Some(*code), ..bare },
            Outcome::Signaled { signal } => {
                Self { outcome: "signaled", signal: Some(*signal), ..bare }
            }
            Outcome::Timeout => Self { outcome: "timeout", ..bare },
            Outcome::Limit(kind) => Self { outcome: "limit", limit: Some(kind.name()), ..bare },
            Outcome::Cancelled => Self { outcome: "cancelled", ..bare },
            Outcome::Failed(failure) => {
                Self { outcome: "failed", why: Some(reason(failure)), ..bare }
            }
        };
        let denials = ended.denials.iter().take(MAX_LISTED);
        Self {
            usage: Some(UsageFields {
                wall_ms: millis(ended.usage.wall),
                user_ms: millis(ended.usage.user),
                system_ms: millis(ended.usage.system),
                peak_memory: ended.usage.peak_memory,
                built_us: ended.timings.built.as_micros(),
            }),
            denials: denials.map(|denied| (denied_name(denied), denied.count)).collect(),
            receipt: receipt.map(ReceiptFields::new),
            connections_unlisted: ended
                .network
                .as_ref()
                .map(|network| network.unlisted)
                .filter(|unlisted| *unlisted > 0),
            ..named
        }
    }

    /// Makes the record of a granted call that did not run; only the reason is known.
    pub(crate) fn refused(
        call: String,
        tool: ToolName,
        duration: Duration,
        outcome: &'static str,
        why: String,
    ) -> Self {
        Self {
            call,
            tool,
            outcome,
            exit_code: None,
            signal: None,
            limit: None,
            why: Some(cut(&why, MAX_REASON)),
            duration_ms: millis(duration),
            usage: None,
            denials: BTreeMap::new(),
            receipt: None,
            connections_unlisted: None,
        }
    }
}

impl ReceiptFields {
    fn new(receipt: &Receipt) -> Self {
        Self {
            profile: receipt.profile.clone(),
            tier: receipt.tier,
            host_uid: receipt.measured.host_uid,
            seccomp_filters: receipt.measured.seccomp_filters,
            landlock_abi: receipt.configured.landlock_abi,
            memory: receipt.configured.memory,
            workspace: cut(&receipt.configured.workspace, MAX_REASON),
        }
    }
}

fn reason(failure: &Failure) -> String {
    cut(&failure.to_string(), MAX_REASON)
}

/// Returns the name of a denied call for a log line; a denial by the name guard says so.
fn denied_name(denied: &DeniedCall) -> String {
    let call = calls::name(denied.number);
    match &denied.by {
        DeniedBy::Filter => call,
        DeniedBy::NameGuard if call == "connect" => "connect to a socket of the host".to_owned(),
        DeniedBy::NameGuard if call == "inotify_add_watch" => {
            "inotify_add_watch on what is not the cell's".to_owned()
        }
        DeniedBy::NameGuard if call == "socket" => "socket for datagrams of unix".to_owned(),
        DeniedBy::NameGuard if call.contains("chmod") => format!("{call} with a set-group-id bit"),
        DeniedBy::NameGuard | DeniedBy::RepositoryGuard { .. } | DeniedBy::ConfigurationGuard => {
            format!("{call} of a guarded name")
        }
        DeniedBy::UnreadableProgram => format!("{call} of an unreadable program"),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
