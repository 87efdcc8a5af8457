//! Hosts and ports that a command looked for under a profile and did not reach, as rules of egress to complete.
//!
//! The gateway reports them, which parses what cells send. So each is parsed as the destination of a rule, and is a comment
//! if that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::commands::format::plain;
use model::egress::{Denied, HostPattern, Net, NetworkClass, Tally};

/// Port for a name that was not resolved: the program made no connection from which a port is known.
const DEFAULT_PORT: u16 = 443;

/// Destinations that were refused.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NetworkRefusals {
    /// Class of the profile itself.
    class: NetworkClass,
    destinations: BTreeMap<Destination, Attempts>,
    /// Destinations that no rule can allow, each with the reason.
    never: Vec<(String, String)>,
}

/// Name or address of a destination.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Destination {
    Host(HostPattern),
    Net(Net),
}

/// Refused attempts to reach one destination.
#[derive(Debug, Default, PartialEq, Eq)]
struct Attempts {
    ports: BTreeSet<u16>,
    /// True if an echo request was sent.
    echo: bool,
    /// True if the name was not resolved.
    guessed: bool,
    times: u64,
}

impl NetworkRefusals {
    /// Sorts the refusals that the gateway reported, for a profile of this class.
    pub(crate) fn new(tally: Option<&Tally>, class: NetworkClass) -> Self {
        let mut all = Self { class, ..Self::default() };
        for denied in tally.map(|tally| tally.denied.as_slice()).unwrap_or_default() {
            match destination(denied) {
                Some((to, port)) => all.destinations.entry(to).or_default().add(port, denied.count),
                None => all.never.push((plain(&denied.to), plain(&denied.why))),
            }
        }
        all
    }

    /// Returns true if there is no destination that a profile could grant.
    pub(crate) fn is_empty(&self) -> bool {
        self.destinations.is_empty()
    }

    /// Formats the class of network, if the profile has no egress. Keys come before tables.
    pub(crate) fn key(&self) -> String {
        if self.is_empty() || self.class.has_egress() {
            return String::new();
        }
        "\n# hosts outside of the cell\nnetwork = { class = \"allow-list\", why = \"\" }\n"
            .to_owned()
    }

    /// Formats a rule for each destination, without its reason.
    pub(crate) fn tables(&self) -> String {
        self.destinations.iter().map(|(to, attempts)| attempts.table(to)).collect()
    }

    /// Formats the destinations that no rule can allow.
    pub(crate) fn comments(&self) -> String {
        let lines = self.never.iter().map(|(to, why)| format!("# {to}: {why}\n"));
        let lines: String = lines.collect();
        if lines.is_empty() {
            lines
        } else {
            format!("\n# Not reached, and no rule changes that:\n{lines}")
        }
    }
}

/// Returns the destination and the port of a refusal that a rule could lift. `None` for other refusals.
fn destination(denied: &Denied) -> Option<(Destination, Port)> {
    denied.grant.as_ref()?;
    let net = |address: IpAddr| address.to_string().parse().ok().map(Destination::Net);
    if let Ok(to) = denied.to.parse::<SocketAddr>() {
        return Some((net(to.ip())?, Port::Number(to.port())));
    }
    if let Ok(to) = denied.to.parse::<IpAddr>() {
        return Some((net(to)?, Port::Echo));
    }
    let (name, port) = match denied.to.rsplit_once(':') {
        Some((name, port)) => (name, Port::Number(port.parse().ok()?)),
        None => (denied.to.as_str(), Port::Unknown),
    };
    Some((Destination::Host(name.parse().ok()?), port))
}

/// Port of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    Number(u16),
    /// An echo request, which has no port.
    Echo,
    /// The name was not resolved.
    Unknown,
}

impl Attempts {
    fn add(&mut self, port: Port, times: u64) {
        self.times = self.times.saturating_add(times);
        match port {
            Port::Number(port) => drop(self.ports.insert(port)),
            Port::Echo => self.echo = true,
            Port::Unknown => self.guessed = true,
        }
    }

    fn table(&self, to: &Destination) -> String {
        let (key, text) = match to {
            Destination::Host(host) => ("hosts", host.to_string()),
            Destination::Net(net) => ("nets", net.to_string()),
        };
        let times =
            if self.times == 1 { "once".to_owned() } else { format!("{} times", self.times) };
        let mut ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        let guess = match ports.is_empty() && self.guessed {
            true => {
                ports.push(DEFAULT_PORT.to_string());
                "; the name was not resolved, so the port is a guess"
            }
            false => "",
        };
        let mut table = format!(
            "\n# {text}, refused {times}{guess}\n[[egress]]\nid = \"{}\"\n{key} = [\"{text}\"]\n",
            id(&text)
        );
        match (ports.is_empty(), self.echo) {
            (true, _) => table.push_str("protocols = [\"icmp\"]\n"),
            (false, echo) => {
                table.push_str(&format!("ports = [{}]\n", ports.join(", ")));
                if echo {
                    table.push_str("protocols = [\"tcp\", \"icmp\"]\n");
                }
            }
        }
        table.push_str("why = \"\"\n");
        table
    }
}

/// Returns an id of a rule for a destination.
fn id(text: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let id: String = text.chars().map(letter).take(64).collect();
    id.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::document::Document;
    use config::profile::{Profiles, shipped};

    fn refused(to: &str, grant: bool) -> Denied {
        let grant = grant.then(|| "[[egress]] …".to_owned());
        Denied { to: to.to_owned(), why: "no rule".to_owned(), count: 1, grant }
    }

    #[test]
    fn destinations_that_a_rule_can_allow_are_rules_and_others_are_comments() {
        let denied = [
            refused("api.example.org", true),
            refused("web.example.org:80", true),
            refused("web.example.org:8080", true),
            refused("[fd12::1]:22", true),
            refused("10.0.0.1", true),
            refused("169.254.169.254:80", false),
            // From a worker that its cell has taken over.
            refused("x\"]\nhosts = [\"*\"", true),
        ];
        let tally = Tally { denied: denied.to_vec(), ..Tally::default() };
        let learned = NetworkRefusals::new(Some(&tally), NetworkClass::Loopback);
        let head = "schema = 1\nname = \"a\"\nextends = \"bash\"\ndescription = \"d\"\n";
        let text = format!("{head}{}{}", learned.key(), learned.tables());
        for part in [
            "hosts = [\"api.example.org\"]\nports = [443]\n",
            "hosts = [\"web.example.org\"]\nports = [80, 8080]\n",
            "nets = [\"fd12::1/128\"]\nports = [22]\n",
            "nets = [\"10.0.0.1/32\"]\nprotocols = [\"icmp\"]\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(learned.comments().contains("# 169.254.169.254:80: no rule\n"));
        assert!(!text.contains('*'), "{text}");
        let loaded = |text: &str| {
            let document = Document::new("a.toml", text);
            Profiles::parse(&shipped(), &[document]).map(drop).map_err(|error| error.to_string())
        };
        assert!(loaded(&text).is_err_and(|error| error.contains("`why` is blank")));
        assert_eq!(loaded(&text.replace("why = \"\"", "why = \"a reason\"")), Ok(()));
    }

    #[test]
    fn a_command_without_refused_connections_needs_no_network() {
        let learned = NetworkRefusals::new(None, NetworkClass::Loopback);
        assert!(learned.is_empty() && learned.key().is_empty() && learned.comments().is_empty());
    }
}
