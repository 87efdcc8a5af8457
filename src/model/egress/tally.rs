//! What a call did with its network, as the gateway counted it.

use serde::{Deserialize, Serialize};

/// Most rows of a tally, and most of its denials: what is left out is counted.
pub const TALLY_ROWS: usize = 100;

/// The connections of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Connections and flows that were opened.
    pub connections: u64,
    /// Questions for names that were sent to a resolver of the host. Their bytes and those of the answers are among
    /// `sent` and `received`, and in no row.
    pub questions: u64,
    /// Bytes of payload that the cell sent.
    pub sent: u64,
    /// Bytes of payload that it received.
    pub received: u64,
    /// At most [`TALLY_ROWS`].
    pub rows: Vec<TallyRow>,
    /// At most [`TALLY_ROWS`].
    pub denied: Vec<Denied>,
    /// Destinations, allowed and denied, that have no row.
    pub more: u64,
    /// True if the gateway did not answer in time, or what the call had sent was still on its way: the numbers are too low.
    pub incomplete: bool,
    /// In a session, from its second call on, what all its calls did.
    pub session: Option<SessionUse>,
    /// Connections and denials that have no line of their own in the audit log: there were too many at once.
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
    /// Attempts that were refused.
    pub denied: u64,
    /// Bytes that connections of earlier calls sent since those calls were told; no tally has them.
    pub earlier_sent: u64,
    /// Bytes that they received.
    pub earlier_received: u64,
}

impl Tally {
    /// Leaves out half of the longer list, and counts it.
    pub fn halve(&mut self) {
        let left_out = if self.rows.len() > self.denied.len() {
            self.rows.drain(self.rows.len() / 2..).count()
        } else {
            self.denied.drain(self.denied.len() / 2..).count()
        };
        self.more = self.more.saturating_add(u64::try_from(left_out).unwrap_or(u64::MAX));
    }

    /// Returns true if the call, and connections of earlier ones meanwhile, did nothing with the network.
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
    /// Name or address with the port, as `pypi.org:443`, `[fd12::1]:22`; an address alone for ICMP.
    pub to: String,
    /// Id of the rule; the class's name where the class allowed it.
    pub rule: String,
    pub connections: u64,
    pub sent: u64,
    pub received: u64,
}

/// Attempts that were refused for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    /// As in [`TallyRow::to`]; a name alone where it was not resolved; a method and URL for a request.
    pub to: String,
    pub why: String,
    pub count: u64,
    /// The rule that would allow it, as [`grant`] writes it; `None` where none can.
    pub grant: Option<String>,
}

/// One connection or flow, told when it closes: a line of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    pub protocol: Protocol,
    /// Name that the cell resolved, if it reached the address by one.
    pub name: Option<String>,
    pub address: std::net::SocketAddr,
    /// Id of the rule; the class's name where the class allowed it, nothing where nothing did.
    pub rule: Option<String>,
    pub sent: u64,
    pub received: u64,
    pub milliseconds: u64,
    pub end: ConnectionEnd,
    /// Method and path, without the query, of a request that was read; of a question for a name [`QUESTION`] and its
    /// type.
    pub request: Option<String>,
}

/// Begin of [`Connection::request`] for a question that was sent to a resolver of the host.
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
    /// It was opened, and closed by either side.
    Relayed,
    /// No rule allows it.
    Denied,
    /// The remote side refused it.
    Refused,
    /// No route leads there.
    Unreachable,
    /// Nobody answered.
    Timeout,
    /// A limit of the profile ended it.
    Limit,
}

/// Writes the rule that would allow a host, or a network, on some port; `port` is nothing for ICMP.
pub fn grant(to: &str, port: Option<u16>) -> String {
    let (key, to) = match to.parse::<std::net::IpAddr>() {
        Ok(_) => ("nets", to),
        Err(_) => ("hosts", to),
    };
    match port {
        Some(port) => format!("[[egress]] {key} = [\"{to}\"], ports = [{port}]"),
        None => format!("[[egress]] {key} = [\"{to}\"], protocols = [\"icmp\"]"),
    }
}

#[cfg(test)]
mod tests {
    use super::grant;

    #[test]
    fn a_grant_names_a_host_or_an_address() {
        assert_eq!(
            grant("pypi.org", Some(443)),
            "[[egress]] hosts = [\"pypi.org\"], ports = [443]"
        );
        assert_eq!(grant("10.0.0.1", Some(22)), "[[egress]] nets = [\"10.0.0.1\"], ports = [22]");
        assert_eq!(
            grant("fd12::1", None),
            "[[egress]] nets = [\"fd12::1\"], protocols = [\"icmp\"]"
        );
    }
}
