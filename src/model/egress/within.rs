//! Compares two networks: finds the rules of one that reach nothing beyond the other.
//!
//! *Invariant:* a rule is left out in doubt. Each returned rule is within one rule of the other
//! network, or within its class.

use super::never::{NAMED_PORTS, PRIVATE};
use super::{Egress, EgressRule, NetworkClass, PortRange};

impl Egress {
    /// Returns the ids of the rules that reach no more than `other` does with the rules in
    /// `granted`, or with all of its rules and its class if that is `None`. Returns `None` if the
    /// whole network is within the other.
    pub fn rules_within(&self, other: &Self, granted: Option<&[String]>) -> Option<Vec<String>> {
        let may_use = |rule: &&EgressRule| granted.is_none_or(|ids| ids.contains(&rule.id));
        let usable: Vec<&EgressRule> = other.rules.iter().filter(may_use).collect();
        let class = if granted.is_none() { other.class } else { NetworkClass::AllowList };
        // A class that reaches private addresses lets names below a wildcard lead there.
        let is_wider = self.class > other.class;
        let is_within = |rule: &&EgressRule| {
            is_within_class(rule, class)
                || usable.iter().any(|one| is_within_rule(rule, one, is_wider))
        };
        let within: Vec<&EgressRule> = self.rules.iter().filter(is_within).collect();
        let is_whole = within.len() == self.rules.len() && self.class <= class;
        (!is_whole).then(|| within.into_iter().map(|rule| rule.id.clone()).collect())
    }
}

/// Returns true if the class allows all that the rule does.
fn is_within_class(rule: &EgressRule, class: NetworkClass) -> bool {
    let is_private = |net| PRIVATE.iter().any(|private| private.covers(net));
    let names = |ports: &PortRange| NAMED_PORTS.iter().any(|port| ports.names(*port));
    let reaches = match class {
        NetworkClass::Any => true,
        NetworkClass::Private => rule.hosts.is_empty(),
        NetworkClass::None | NetworkClass::Loopback | NetworkClass::AllowList => false,
    };
    reaches
        && rule.secret.is_none()
        && rule.nets.iter().all(is_private)
        && !rule.ports.iter().any(names)
}

/// Returns true if `other` allows all that the rule does, with the same requests and at least the
/// same secret.
fn is_within_rule(rule: &EgressRule, other: &EgressRule, is_wider: bool) -> bool {
    let has_host = |host| other.hosts.contains(host);
    let has_net = |net| other.nets.iter().any(|one| one.covers(net));
    let has_ports = |ports: &PortRange| {
        let named = NAMED_PORTS.iter().find(|port| ports.names(**port));
        other.ports.iter().any(|one| match named {
            Some(port) => one.names(*port),
            None => one.covers(*ports),
        })
    };
    let needed = rule.protocols;
    let allowed = other.protocols;
    rule.hosts.iter().all(|host| has_host(host) && (!is_wider || host.exact().is_some()))
        && rule.nets.iter().all(has_net)
        && rule.ports.iter().all(has_ports)
        && (allowed.tcp || !needed.tcp)
        && (allowed.udp || !needed.udp)
        && (allowed.icmp || !needed.icmp)
        && (other.http.is_empty() || other.http == rule.http)
        && (rule.secret.is_none() || rule.secret == other.secret)
}

#[cfg(test)]
mod tests {
    use super::super::{EgressLimits, Protocols};
    use super::*;

    fn rule(id: &str, nets: &[&str], ports: &[u16]) -> EgressRule {
        EgressRule {
            id: id.to_owned(),
            hosts: Vec::new(),
            nets: nets.iter().map(|net| net.parse().expect("a network")).collect(),
            ports: ports.iter().map(|port| PortRange::one(*port)).collect(),
            protocols: Protocols::TCP,
            http: Vec::new(),
            secret: None,
            why: "for this test".to_owned(),
        }
    }

    fn egress(class: NetworkClass, rules: Vec<EgressRule>) -> Egress {
        Egress { class, rules, limits: EgressLimits::default() }
    }

    #[test]
    fn a_rule_is_left_out_where_it_reaches_more() {
        let list = NetworkClass::AllowList;
        let tool = egress(list, vec![rule("lab", &["10.77.0.0/24"], &[80])]);
        let of = |own: EgressRule| egress(list, vec![own]).rules_within(&tool, None);
        assert_eq!(of(rule("same", &["10.77.0.0/24"], &[80])), None);
        assert_eq!(of(rule("less", &["10.77.0.8/29"], &[80])), None);
        let with = |change: fn(&mut EgressRule)| {
            let mut own = rule("more", &["10.77.0.0/24"], &[80]);
            change(&mut own);
            of(own)
        };
        let changes: [fn(&mut EgressRule); 4] = [
            |own| own.nets = vec!["10.77.0.0/16".parse().expect("a network")],
            |own| own.ports.push(PortRange::one(22)),
            |own| own.protocols = Protocols::ALL,
            |own| own.hosts.push("example.org".parse().expect("a name")),
        ];
        for change in changes {
            assert_eq!(with(change), Some(Vec::new()));
        }
        let two =
            vec![rule("lab", &["10.77.0.0/24"], &[80]), rule("more", &["10.78.0.0/24"], &[80])];
        assert_eq!(egress(list, two).rules_within(&tool, None), Some(vec!["lab".to_owned()]));
    }

    #[test]
    fn a_class_counts_where_no_rules_are_named() {
        let list = NetworkClass::AllowList;
        let private = NetworkClass::Private;
        let any = NetworkClass::Any;
        let lab = || vec![rule("lab", &["10.77.0.0/24"], &[80])];
        assert_eq!(egress(list, lab()).rules_within(&egress(private, Vec::new()), None), None);
        assert_eq!(egress(private, lab()).rules_within(&egress(any, Vec::new()), None), None);
        let of_lab = Some(vec!["lab".to_owned()]);
        assert_eq!(egress(any, lab()).rules_within(&egress(private, Vec::new()), None), of_lab);
        // The policy leaves this client one rule of the tool's network, or no rule.
        let granted = [String::from("lab")];
        assert_eq!(egress(any, lab()).rules_within(&egress(any, lab()), Some(&granted)), of_lab);
        let none = Some(Vec::new());
        assert_eq!(egress(any, lab()).rules_within(&egress(any, lab()), Some(&[])), none);
        assert_eq!(egress(list, lab()).rules_within(&egress(list, lab()), Some(&[])), none);
    }
}
