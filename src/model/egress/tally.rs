//! Network use of a call, as counted by the gateway.

use serde::{Deserialize, Serialize};

/// Maximum number of rows and of denials in a tally; the rest is only counted.
pub const TALLY_ROWS: usize = 100;

/// The connections of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Connections and flows that were opened.
    pub connections: u64,
    /// DNS questions that were sent to a resolver of the host. Their bytes and those of the answers
    /// count in `sent` and `received`, but in no row.
    pub questions: u64,
    /// Payload bytes that the cell sent.
    pub sent: u64,
    /// Payload bytes that the cell received.
    pub received: u64,
    /// At most [`TALLY_ROWS`] rows.
    pub rows: Vec<TallyRow>,
    /// At most [`TALLY_ROWS`] denials.
    pub denied: Vec<Denied>,
    /// Destinations, allowed and denied, that have no row.
    pub more: u64,
    /// True if the gateway did not answer in time, or data of the call was still unsent: the
    /// numbers are too low.
    pub incomplete: bool,
    /// Sums over all calls of the session, from its second call on.
    pub session: Option<SessionUse>,
    /// Connections and denials without a line in the audit log, as there were too many at once.
    pub unlisted: u64,
}

/// The connections of a session: sums over all its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SessionUse {
    pub connections: u64,
    /// Bytes of payload.
    pub sent: u64,
    /// Bytes of payload.
    pub received: u64,
    /// Attempts that were denied.
    pub denied: u64,
    /// Bytes that connections of earlier calls sent after the tallies of those calls; no tally has
    /// them.
    pub earlier_sent: u64,
    /// Bytes that those connections received.
    pub earlier_received: u64,
}

impl Tally {
    /// Drops half of the longer list, and counts what was dropped.
    pub fn halve(&mut self) {
        let left_out = if self.rows.len() > self.denied.len() {
            self.rows.drain(self.rows.len() / 2..).count()
        } else {
            self.denied.drain(self.denied.len() / 2..).count()
        };
        self.more = self.more.saturating_add(u64::try_from(left_out).unwrap_or(u64::MAX));
    }

    /// Returns true if neither the call nor connections of earlier calls used the network.
    pub fn is_empty(&self) -> bool {
        let earlier =
            |session: SessionUse| session.earlier_sent > 0 || session.earlier_received > 0;
        !self.session.is_some_and(earlier)
            && Self { session: None, ..self.clone() } == Self::default()
    }
}

/// The connections to one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TallyRow {
    /// Name or address with the port, such as `pypi.org:443` or `[fd12::1]:22`; only the address
    /// for ICMP.
    pub to: String,
    /// Id of the rule, or the name of the class that allowed it.
    pub rule: String,
    pub connections: u64,
    pub sent: u64,
    pub received: u64,
}

/// Attempts that were denied for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    /// Destination as in [`TallyRow::to`]; only a name if it was not resolved; method and URL for a request.
    pub to: String,
    pub why: String,
    pub count: u64,
    /// A rule that would allow it, as written by [`grant`]; `None` if no rule can.
    pub grant: Option<String>,
}

/// One connection or flow, reported when it closes: a line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    pub protocol: Protocol,
    /// Name that the cell resolved, if it reached the address by one.
    pub name: Option<String>,
    pub address: std::net::SocketAddr,
    /// Id of the rule, or the name of the class that allowed it; `None` if it was denied.
    pub rule: Option<String>,
    pub sent: u64,
    pub received: u64,
    pub milliseconds: u64,
    pub end: ConnectionEnd,
    /// Method and path without the query for an intercepted request; [`QUESTION`] and the record
    /// type for a DNS question.
    pub request: Option<String>,
}

/// Prefix of [`Connection::request`] for a DNS question to a resolver of the host.
pub const QUESTION: &str = "question ";

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
    Icmp,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionEnd {
    /// Opened, and closed by either side.
    Relayed,
    /// No rule allows it.
    Denied,
    /// The remote side refused it.
    Refused,
    /// There is no route to the destination.
    Unreachable,
    /// There was no answer.
    Timeout,
    /// A limit of the profile ended it.
    Limit,
}

/// Returns a rule that would allow a host or network on a port of a protocol; `port` is `None` for
/// ICMP.
pub fn grant(to: &str, protocol: Protocol, port: Option<u16>) -> String {
    let key = match to.parse::<std::net::IpAddr>() {
        Ok(_) => "nets",
        Err(_) => "hosts",
    };
    let ports = port.map(|port| format!(", ports = [{port}]")).unwrap_or_default();
    let protocols = match protocol {
        // The default of a rule.
        Protocol::Tcp => "",
        Protocol::Udp => ", protocols = [\"udp\"]",
        Protocol::Icmp => ", protocols = [\"icmp\"]",
    };
    format!("[[egress]] {key} = [\"{to}\"]{ports}{protocols}")
}

#[cfg(test)]
mod tests {
    use super::{Protocol, grant};

    #[test]
    fn a_grant_names_a_host_or_an_address_and_a_protocol() {
        for (to, protocol, port, expected) in [
            ("pypi.org", Protocol::Tcp, Some(443), r#"hosts = ["pypi.org"], ports = [443]"#),
            ("10.0.0.1", Protocol::Tcp, Some(22), r#"nets = ["10.0.0.1"], ports = [22]"#),
            (
                "9.9.9.9",
                Protocol::Udp,
                Some(123),
                r#"nets = ["9.9.9.9"], ports = [123], protocols = ["udp"]"#,
            ),
            ("fd12::1", Protocol::Icmp, None, r#"nets = ["fd12::1"], protocols = ["icmp"]"#),
        ] {
            assert_eq!(grant(to, protocol, port), format!("[[egress]] {expected}"));
        }
    }
}
