//! The content of a line about a call. Every length is bounded, and no value of an environment is in it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::chain::sha256;
use model::call::{Call, Stdin, ToolName};
use model::egress::Tally;
use model::egress::{Connection, ConnectionEnd, Protocol};
use model::job::Limits;
use model::outcome::{DeniedBy, DeniedCall, Failure, Outcome, Timings, Usage};
use model::profile::calls;
use model::receipt::Receipt;
use policy::{Denial, Grant, Principal};

/// Characters of a command that are kept; its hash and length stand for the rest.
const START: usize = 200;
/// Characters of a reason: it may quote a caller's word, which may be long.
const REASON: usize = 300;
/// Names of an environment, and refused system calls, that are listed one by one.
const LISTED: usize = 64;

/// A call as it was asked for, before it was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallRecord {
    pub call: String,
    /// Client whose call it is.
    principal: String,
    pub tool: ToolName,
    command: Text,
    /// The caller's own id for the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    /// A script's positional parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Text>,
    cwd: Option<String>,
    stdin_bytes: Option<usize>,
    /// Hash of the standard input, by which a calculator gets its expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdin_sha256: Option<String>,
    /// Names; `***` for every value.
    env: BTreeMap<String, &'static str>,
    env_count: usize,
}

/// A text by its hash, its length and its beginning, escaped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Text {
    sha256: String,
    bytes: usize,
    start: String,
}

impl CallRecord {
    pub fn of(id: String, principal: &Principal, call: &Call) -> Self {
        // A script is the command; the words that make bash read it are always the same.
        let command = match &call.script {
            Some(script) => Text::of(&String::from_utf8_lossy(script.as_bytes())),
            None => Text::words(call.argv.words()),
        };
        // bash, -c, the words that read the script, and `$0` come before them.
        let parameters = call.script.as_ref().and_then(|_| call.argv.words().get(4..));
        let names = call.env.iter().map(|(name, _)| (cut(name, REASON), "***"));
        Self {
            call: id,
            principal: name(principal),
            tool: call.tool.clone(),
            command,
            correlation_id: call.correlation.as_ref().map(|id| cut(id.as_str(), REASON)),
            parameters: parameters.map(Text::words),
            cwd: call.cwd.as_ref().map(|cwd| cut(cwd.as_str(), REASON)),
            stdin_bytes: match &call.stdin {
                Stdin::Empty => Some(0),
                Stdin::Bytes(bytes) => Some(bytes.len()),
                // More may come.
                Stdin::Pipe(_) | Stdin::Terminal(_) => None,
            },
            stdin_sha256: match &call.stdin {
                Stdin::Bytes(bytes) => Some(sha256(bytes)),
                Stdin::Pipe(first) | Stdin::Terminal(first) if !first.is_empty() => {
                    Some(sha256(first))
                }
                Stdin::Empty | Stdin::Pipe(_) | Stdin::Terminal(_) => None,
            },
            env: names.take(LISTED).collect(),
            env_count: call.env.iter().count(),
        }
    }
}

impl Text {
    fn of(text: &str) -> Self {
        Self { sha256: sha256(text.as_bytes()), bytes: text.len(), start: cut(text, START) }
    }

    /// Words as they are in memory, each with a NUL after it; shown with spaces between.
    fn words(words: &[String]) -> Self {
        let whole: String = words.iter().flat_map(|word| [word.as_str(), "\0"]).collect();
        Self { start: cut(&words.join(" "), START), ..Self::of(&whole) }
    }
}

/// Returns the first `most` characters, with what a terminal would obey escaped.
fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).flat_map(char::escape_debug).collect()
}

/// Limits in force.
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
    fn of(limits: &Limits) -> Self {
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
    /// A call whose arguments were not taken: there was nothing to decide.
    Invalid {
        principal: String,
        tool: String,
        why: String,
    },
    /// A job of a session was looked at or ended, or that was refused.
    Job {
        principal: String,
        tool: &'static str,
        job: String,
        decision: &'static str,
        rule: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        why: Option<String>,
        /// Of what was written to it.
        #[serde(skip_serializing_if = "Option::is_none")]
        input_bytes: Option<usize>,
        #[serde(skip_serializing_if = "Option::is_none")]
        input_sha256: Option<String>,
    },
    /// Lines could not be written before this one.
    Gap {
        lost: u64,
        why: String,
    },
    /// The line before this one is a fragment that a crash or a full disk left.
    Fragment {
        bytes: usize,
        sha256: String,
    },
}

/// How a call was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Decision {
    #[serde(flatten)]
    asked: CallRecord,
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
        Self::Invalid { principal: name(principal), tool: cut(tool, REASON), why: cut(why, REASON) }
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
            job: cut(job, REASON),
            decision: "granted",
            rule: cut(rule, REASON),
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
            job: cut(job, REASON),
            decision: "denied",
            rule: cut(&denial.rule, REASON),
            why: Some(cut(&denial.why, REASON)),
            input_bytes: None,
            input_sha256: None,
        }
    }
}

/// Returns a client's name as a line has it.
fn name(principal: &Principal) -> String {
    cut(principal.name(), REASON)
}

impl Decision {
    pub(crate) fn granted(asked: CallRecord, grant: &Grant) -> Self {
        let job = grant.job();
        let asked = CallRecord { cwd: Some(cut(job.cwd.as_str(), REASON)), ..asked };
        Self {
            asked,
            decision: "granted",
            rule: cut(grant.rule(), REASON),
            why: None,
            profile: Some(job.profile.to_string()),
            limits: Some(LimitFields::of(&job.limits)),
            clamped: grant.clamped(),
        }
    }

    pub(crate) fn denied(asked: CallRecord, denial: &Denial) -> Self {
        Self {
            asked,
            decision: "denied",
            rule: cut(&denial.rule, REASON),
            why: Some(cut(&denial.why, REASON)),
            profile: None,
            limits: None,
            clamped: false,
        }
    }
}

/// Connection of a call, as it closed or was denied. Its request has a method and a path, and never a query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ConnectionEntry {
    call: String,
    tool: ToolName,
    protocol: Protocol,
    address: String,
    /// Name by which the cell found the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Rule of egress, or the class.
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
    pub(crate) fn of(call: String, tool: ToolName, connection: &Connection) -> Self {
        let short = |text: &Option<String>| text.as_ref().map(|text| cut(text, REASON));
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
    /// Connections and denials of the call that have no line of their own.
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

/// Of a receipt, what differs from call to call.
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

/// Facts about a call that ended.
#[derive(Debug, Clone, Copy)]
pub struct Story<'a> {
    pub outcome: &'a Outcome,
    pub usage: &'a Usage,
    pub timings: &'a Timings,
    pub denials: &'a [DeniedCall],
    pub receipt: Option<&'a Receipt>,
    /// Use of its network, if it had one.
    pub network: Option<&'a Tally>,
}

impl Ending {
    pub(crate) fn of(call: String, tool: ToolName, duration: Duration, story: &Story<'_>) -> Self {
        let bare = Self::refused(call, tool, duration, "", String::new());
        let bare = Self { why: None, ..bare };
        let named = match story.outcome {
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
        let denials = story.denials.iter().take(LISTED);
        Self {
            usage: Some(UsageFields {
                wall_ms: millis(story.usage.wall),
                user_ms: millis(story.usage.user),
                system_ms: millis(story.usage.system),
                peak_memory: story.usage.peak_memory,
                built_us: story.timings.built.as_micros(),
            }),
            denials: denials.map(|denied| (denied_name(denied), denied.count)).collect(),
            receipt: story.receipt.map(ReceiptFields::of),
            connections_unlisted: story
                .network
                .map(|network| network.unlisted)
                .filter(|unlisted| *unlisted > 0),
            ..named
        }
    }

    /// Records a granted call of which only the reason of its failure is known.
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
            why: Some(cut(&why, REASON)),
            duration_ms: millis(duration),
            usage: None,
            denials: BTreeMap::new(),
            receipt: None,
            connections_unlisted: None,
        }
    }
}

impl ReceiptFields {
    fn of(receipt: &Receipt) -> Self {
        Self {
            profile: receipt.profile.clone(),
            tier: receipt.tier,
            host_uid: receipt.measured.host_uid,
            seccomp_filters: receipt.measured.seccomp_filters,
            landlock_abi: receipt.configured.landlock_abi,
            memory: receipt.configured.memory,
            workspace: cut(&receipt.configured.workspace, REASON),
        }
    }
}

fn reason(failure: &Failure) -> String {
    cut(&failure.to_string(), REASON)
}

/// Returns a refused call as a line names it: one that was refused for a name is told apart.
fn denied_name(denied: &DeniedCall) -> String {
    let call = calls::name(denied.number);
    match denied.by {
        DeniedBy::Filter => call,
        DeniedBy::NameGuard if call == "connect" => "connect to a socket of the host".to_owned(),
        DeniedBy::NameGuard if call == "inotify_add_watch" => {
            "inotify_add_watch on what is not the cell's".to_owned()
        }
        DeniedBy::NameGuard => format!("{call} of a guarded name"),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
