//! Use of a call's network in replies: as lines for a model, and as fields.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::to_value;
use config::profile::egress::word_for;
use model::egress::{Denied, SessionUse, Tally, TallyRow};

/// Destinations that one line names.
const NAMED: usize = 8;

/// Formats the use of a network as lines: one of the connections, one of each denial.
pub fn lines(tally: &Tally) -> Vec<String> {
    let mut lines = Vec::new();
    let earlier = |session: SessionUse| session.earlier_sent > 0 || session.earlier_received > 0;
    if tally.connections > 0
        || tally.questions > 0
        || tally.incomplete
        || tally.session.is_some_and(earlier)
    {
        lines.push(connections(tally));
    }
    lines.extend(denials(tally));
    lines
}

/// Formats what was denied, a line each.
pub fn denials(tally: &Tally) -> impl Iterator<Item = String> {
    tally.denied.iter().map(denial)
}

fn connections(tally: &Tally) -> String {
    let named = tally.rows.iter().take(NAMED);
    let mut to: Vec<String> =
        named.map(|row| format!("{} ({})", row.to, row.connections)).collect();
    if tally.rows.len() > NAMED || tally.more > 0 {
        to.push("…".to_owned());
    }
    let s = if tally.connections == 1 { "" } else { "s" };
    let to = if to.is_empty() { String::new() } else { format!(": {}", to.join(", ")) };
    let questions = match tally.questions {
        0 => String::new(),
        1 => "; 1 question for a name".to_owned(),
        count => format!("; {count} questions for names"),
    };
    let session = tally.session.map(|session| {
        let received = size(session.received);
        let sent = size(session.sent);
        format!("; the session: {} connections, {received} in, {sent} out", session.connections)
    });
    let incomplete = if tally.incomplete { "; incomplete" } else { "" };
    format!(
        "[network: {} connection{s}, {} in, {} out{to}{questions}{}{incomplete}]",
        tally.connections,
        size(tally.received),
        size(tally.sent),
        session.unwrap_or_default()
    )
}

fn denial(denied: &Denied) -> String {
    let times = match denied.count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    };
    let grant = match grant(denied) {
        Some(grant) => format!("; the operator can grant it: {grant}"),
        None => String::new(),
    };
    // A request is a method and a URL, and names what was refused by itself.
    let connect = if denied.to.contains(' ') { "" } else { "connect " };
    format!("[denied: {connect}{}, {times}: {}{grant}]", denied.to, denied.why)
}

/// Returns what the operator can grant: a word of `--egress` if there is one, and a rule of a profile.
fn grant(denied: &Denied) -> Option<String> {
    let rule = denied.grant.as_ref()?;
    // Other grants are keys of a rule that exists. A rule of `--egress` is for TCP.
    let is_rule = rule.starts_with("[[egress]]");
    let is_tcp = rule.contains("ports = ") && !rule.contains("protocols = ");
    let word = (is_rule && is_tcp).then(|| word_for(&denied.to)).flatten();
    Some(match word {
        Some(word) => format!("--egress {word}, or {rule}"),
        None => rule.clone(),
    })
}

/// Formats a number of bytes with one decimal at most: `1.2 MiB`.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(bits, _)| bytes >> bits > 0) {
        Some((bits, name)) => {
            let tenths = (u128::from(bytes) * 10) >> bits;
            match tenths % 10 {
                0 => format!("{} {name}", tenths / 10),
                part => format!("{}.{part} {name}", tenths / 10),
            }
        }
        None => format!("{bytes} bytes"),
    }
}

/// Returns the use of a network as fields.
pub fn fields(tally: &Tally) -> Value {
    to_value(&NetworkFields::of(tally))
}

/// Use of a network; a count of zero is left out where it is usual.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(description = "")]
pub struct NetworkFields<'a> {
    connections: u64,
    sent: u64,
    received: u64,
    /// Questions for names that were forwarded.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1))]
    questions: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionSums>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<HostFields<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    denied: Vec<DeniedFields<'a>>,
    /// Destinations without a row.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1))]
    more: u64,
    #[serde(skip_serializing_if = "is_false")]
    incomplete: bool,
}

/// Sums over all calls of a session.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(description = "")]
struct SessionSums {
    connections: u64,
    sent: u64,
    received: u64,
    #[serde(skip_serializing_if = "is_zero")]
    denied: u64,
    #[serde(skip_serializing_if = "is_zero")]
    earlier_sent: u64,
    #[serde(skip_serializing_if = "is_zero")]
    earlier_received: u64,
}

/// Connections to one destination.
#[derive(Debug, Serialize, JsonSchema)]
struct HostFields<'a> {
    to: &'a str,
    rule: &'a str,
    connections: u64,
    sent: u64,
    received: u64,
}

/// Attempts that were denied for the same reason.
#[derive(Debug, Serialize, JsonSchema)]
struct DeniedFields<'a> {
    to: &'a str,
    why: &'a str,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    grant: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl<'a> NetworkFields<'a> {
    fn of(tally: &'a Tally) -> Self {
        let session = |session: SessionUse| SessionSums {
            connections: session.connections,
            sent: session.sent,
            received: session.received,
            denied: session.denied,
            earlier_sent: session.earlier_sent,
            earlier_received: session.earlier_received,
        };
        let host = |row: &'a TallyRow| HostFields {
            to: &row.to,
            rule: &row.rule,
            connections: row.connections,
            sent: row.sent,
            received: row.received,
        };
        let denied = |denied: &'a Denied| DeniedFields {
            to: &denied.to,
            why: &denied.why,
            count: denied.count,
            grant: grant(denied),
        };
        Self {
            connections: tally.connections,
            sent: tally.sent,
            received: tally.received,
            questions: tally.questions,
            session: tally.session.map(session),
            hosts: tally.rows.iter().map(host).collect(),
            denied: tally.denied.iter().map(denied).collect(),
            more: tally.more,
            incomplete: tally.incomplete,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tally() -> Tally {
        Tally {
            connections: 2,
            sent: 4_211,
            received: 1_288_000,
            rows: vec![TallyRow {
                to: "pypi.org:443".to_owned(),
                rule: "pypi".to_owned(),
                connections: 2,
                sent: 4_211,
                received: 1_288_000,
            }],
            denied: vec![Denied {
                to: "api.github.com:443".to_owned(),
                why: "no rule".to_owned(),
                count: 2,
                grant: Some("[[egress]] …".to_owned()),
            }],
            ..Tally::default()
        }
    }

    #[test]
    fn the_lines_name_hosts_bytes_and_the_grant() {
        let expected = [
            "[network: 2 connections, 1.2 MiB in, 4.1 KiB out: pypi.org:443 (2)]",
            "[denied: connect api.github.com:443, twice: no rule; the operator can grant it: [[egress]] …]",
        ];
        assert_eq!(lines(&tally()), expected);
        let lost = Tally { incomplete: true, ..Tally::default() };
        assert_eq!(lines(&lost), ["[network: 0 connections, 0 bytes in, 0 bytes out; incomplete]"]);
    }

    #[test]
    fn a_word_of_egress_is_named_for_tcp_alone() {
        let granted = |rule: &str| {
            grant(&Denied {
                to: "9.9.9.9:123".to_owned(),
                why: "no rule".to_owned(),
                count: 1,
                grant: Some(rule.to_owned()),
            })
        };
        let tcp = r#"[[egress]] nets = ["9.9.9.9"], ports = [123]"#;
        assert_eq!(granted(tcp), Some(format!("--egress 9.9.9.9:123, or {tcp}")));
        let udp = &format!("{tcp}, protocols = [\"udp\"]");
        assert_eq!(granted(udp).as_ref(), Some(udp));
    }

    #[test]
    fn a_session_has_its_sums_and_a_denied_request_is_no_connection() {
        let session = SessionUse {
            connections: 3,
            sent: 10,
            received: 2_048,
            denied: 0,
            earlier_sent: 0,
            earlier_received: 512,
        };
        let tally = Tally { session: Some(session), ..Tally::default() };
        assert!(!tally.is_empty());
        assert_eq!(
            lines(&tally),
            [
                "[network: 0 connections, 0 bytes in, 0 bytes out; the session: 3 connections, 2 KiB in, 10 bytes out]"
            ]
        );
        let expected = json!({
            "connections": 0, "sent": 0, "received": 0,
            "session": { "connections": 3, "sent": 10, "received": 2048, "earlier_received": 512 },
        });
        assert_eq!(fields(&tally), expected);
        let quiet = SessionUse { earlier_received: 0, ..session };
        assert!(Tally { session: Some(quiet), ..Tally::default() }.is_empty());
        let denied = Denied {
            to: "POST https://pypi.org/legacy/".to_owned(),
            why: "rule pypi takes GET".to_owned(),
            count: 1,
            grant: None,
        };
        let tally = Tally { denied: vec![denied], ..Tally::default() };
        assert_eq!(
            lines(&tally),
            ["[denied: POST https://pypi.org/legacy/, once: rule pypi takes GET]"]
        );
    }

    #[test]
    fn the_fields_leave_out_what_is_absent() {
        let expected = json!({
            "connections": 2, "sent": 4211, "received": 1288000,
            "hosts": [{
                "to": "pypi.org:443", "rule": "pypi", "connections": 2, "sent": 4211, "received": 1288000,
            }],
            "denied": [{ "to": "api.github.com:443", "why": "no rule", "count": 2, "grant": "[[egress]] …" }],
        });
        assert_eq!(fields(&tally()), expected);
        let lost = json!({ "connections": 0, "sent": 0, "received": 0, "incomplete": true });
        assert_eq!(fields(&Tally { incomplete: true, ..Tally::default() }), lost);
    }
}
