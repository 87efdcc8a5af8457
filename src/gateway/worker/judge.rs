//! Judges which destinations a cell may reach, and by which rule.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use model::egress::never::{self, NAMED_PORTS};
use model::egress::{Egress, EgressRule, HostPattern, NetworkClass, Only, Protocol, grant};

use super::packet::{CELL, GATEWAY, RESOLVER};
use crate::refusal::NetworkRefusal;

/// Maximum number of addresses whose names are remembered.
pub(crate) const MAX_PINS: usize = 4_096;
/// Maximum number of names per address.
const MAX_NAMES: usize = 64;

/// A destination that may be reached, and what allows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// Rules that allow the address by a name that the cell resolved.
    pub named: Vec<Named>,
    /// Id of the rule by address, or name of the class, that allows the address whatever name is
    /// used.
    pub open: Option<String>,
}

/// A rule, and those of its names that were resolved to the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// Index of the rule in the profile.
    pub rule: usize,
    pub id: String,
    pub names: Vec<String>,
}

impl Allowed {
    /// Returns the id of the rule to count under before a host name has been read.
    pub(crate) fn rule(&self) -> &str {
        let named = self.named.first().map(|named| named.id.as_str());
        named.or(self.open.as_deref()).unwrap_or_default()
    }

    /// Returns the name that the cell most likely used.
    pub(crate) fn name(&self) -> Option<&str> {
        self.named.first()?.names.first().map(String::as_str)
    }
}

/// A decision on a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Allowed(Allowed),
    Refused(NetworkRefusal),
}

/// Rules of a profile, the narrowing of a call, and the names that the cell resolved.
#[derive(Debug)]
pub(crate) struct Judge {
    egress: Arc<Egress>,
    pub(crate) only: Option<Only>,
    pins: Pins,
}

impl Judge {
    pub(crate) fn new(egress: Arc<Egress>) -> Self {
        Self { egress, only: None, pins: Pins::default() }
    }

    /// Judges a destination; `port` is `None` for an echo request. The gateway judges again when it
    /// is asked for a socket, and checks the host's own addresses.
    pub(crate) fn decide(&self, protocol: Protocol, to: IpAddr, port: Option<u16>) -> Decision {
        if let Some(reason) = out_of_reach(to) {
            return refused(reason, None);
        }
        match self.allowed(self.only.as_ref(), protocol, to, port) {
            Some(allowed) => Decision::Allowed(allowed),
            None => self.no_rule(protocol, to, port),
        }
    }

    fn no_rule(&self, protocol: Protocol, to: IpAddr, port: Option<u16>) -> Decision {
        // The profile allows it but the call is narrowed, so another rule would not help.
        if self.only.is_some() && self.allowed(None, protocol, to, port).is_some() {
            let reason = match within(self.only.as_ref(), to) {
                true => "not what this call may reach",
                false => "an address outside the networks that this call may reach",
            };
            return refused(reason.to_owned(), None);
        }
        let name = self.pins.names(to).first().cloned();
        let to = name.unwrap_or_else(|| to.to_string());
        refused("no rule".to_owned(), Some(grant(&to, protocol, port)))
    }

    fn allowed(
        &self,
        only: Option<&Only>,
        protocol: Protocol,
        to: IpAddr,
        port: Option<u16>,
    ) -> Option<Allowed> {
        if !within(only, to) || !port_in_call(only, port) {
            return None;
        }
        let usable: Vec<_> = usable(&self.egress, only, protocol, port).collect();
        let named = if never::only_by_net(to) { Vec::new() } else { self.named(only, &usable, to) };
        let by_address = address_in_call(only, to);
        let net = usable.iter().find(|(_, rule)| rule.nets.iter().any(|net| net.contains(to)));
        let open = net
            .map(|(_, rule)| rule.id.clone())
            .or_else(|| by_class(self.egress.class, only, to, port));
        let open = open.filter(|_| by_address);
        (open.is_some() || !named.is_empty()).then_some(Allowed { named, open })
    }

    /// Returns the rules that name the address, with those names that the call may use.
    fn named(
        &self,
        only: Option<&Only>,
        usable: &[(usize, &EgressRule)],
        to: IpAddr,
    ) -> Vec<Named> {
        let names = self.pins.names(to);
        let named_by = |(index, rule): &(usize, &EgressRule)| {
            let matches = |name: &&String| names_address(self.egress.class, rule, name, to);
            let names = names.iter().filter(matches);
            let names: Vec<_> = names
                .filter(|name| name_in_call(only, name) || listed(only, to))
                .cloned()
                .collect();
            (!names.is_empty()).then(|| Named { rule: *index, id: rule.id.clone(), names })
        };
        usable.iter().filter_map(named_by).collect()
    }

    /// Decides whether a name, in lower case and without a trailing dot, may be resolved.
    pub(crate) fn resolves(&self, name: &str) -> Result<(), NetworkRefusal> {
        if let Some(reason) = never::name(name) {
            return Err(NetworkRefusal::new(format!("never reached: {reason}")));
        }
        let only = self.only.as_ref();
        let usable = self.egress.rules.iter().filter(|rule| in_call(only, &rule.id));
        let by_rule = usable.clone().any(|rule| names(rule, name));
        let any =
            self.egress.class == NetworkClass::Any && only.is_none_or(|only| only.rules.is_none());
        if (by_rule || any) && name_in_call(only, name) {
            return Ok(());
        }
        if only.is_some() && (any || self.egress.rules.iter().any(|rule| names(rule, name))) {
            return Err(NetworkRefusal::new("not what this call may reach"));
        }
        let port = Some(443);
        Err(NetworkRefusal {
            reason: "no rule has this name".to_owned(),
            grant: Some(grant(name, Protocol::Tcp, port)),
        })
    }

    /// Decides whether an address may be returned for a name that may be resolved. The caller has
    /// left out addresses of the host.
    ///
    /// A private address is returned for a name that a rule spells out, whose owner the operator
    /// chose. Below a wildcard the name may be a tenant's, who could point the cell at the
    /// operator's network.
    pub(crate) fn may_disclose(&self, name: &str, address: IpAddr) -> bool {
        if never::never(address).is_some() {
            return false;
        }
        let mut rules = self.egress.rules.iter();
        if rules.any(|rule| rule.nets.iter().any(|net| net.contains(address))) {
            return true;
        }
        if never::only_by_net(address) {
            return false;
        }
        let mut hosts = self.egress.rules.iter().flat_map(|rule| &rule.hosts);
        let exact = hosts.any(|host| host.exact().is_some_and(|exact| exact == name));
        match self.egress.class {
            NetworkClass::Any | NetworkClass::Private => true,
            NetworkClass::None | NetworkClass::Loopback | NetworkClass::AllowList => {
                exact || !never::is_private(address)
            }
        }
    }

    /// Remembers that this address was returned for a name.
    pub(crate) fn pin(&mut self, address: IpAddr, name: &str) {
        self.pins.add(address, name);
    }

    /// Returns how a destination is shown in reports.
    pub(crate) fn shown(&self, to: SocketAddr) -> String {
        match self.pins.names(to.ip()).first() {
            Some(name) => format!("{name}:{}", to.port()),
            None => to.to_string(),
        }
    }

    pub(crate) fn rule(&self, index: usize) -> Option<&EgressRule> {
        self.egress.rules.get(index)
    }
}

/// Returns the reason if no cell may ever reach an address.
fn out_of_reach(to: IpAddr) -> Option<String> {
    if let Some(reason) = never::never(to) {
        return Some(format!("never reached: {reason}"));
    }
    let is_gateway = CELL.contains(&to) || GATEWAY.contains(&to) || RESOLVER.contains(&to);
    is_gateway.then(|| "the gateway itself".to_owned())
}

/// Judges a destination without knowing which names the cell resolved: for the gateway, whose
/// worker may have been taken over. Allows at least what an honest worker's judge allows.
///
/// # Errors
/// The reason for the refusal.
pub(crate) fn could_reach(
    egress: &Egress,
    only: Option<&Only>,
    protocol: Protocol,
    to: IpAddr,
    port: Option<u16>,
) -> Result<(), String> {
    if let Some(reason) = out_of_reach(to) {
        return Err(reason);
    }
    let no = || "no rule".to_owned();
    if !within(only, to) || !port_in_call(only, port) {
        return Err(no());
    }
    let by_address = address_in_call(only, to);
    let by_name = only.is_none_or(|only| !only.hosts.is_empty()) || by_address;
    let allows = |rule: &EgressRule| {
        let named = by_name
            && !never::only_by_net(to)
            && rule.hosts.iter().any(|host| host_has_address(egress.class, host, to));
        named || (by_address && rule.nets.iter().any(|net| net.contains(to)))
    };
    let by_rule = usable(egress, only, protocol, port).any(|(_, rule)| allows(rule));
    let by_class = by_address && by_class(egress.class, only, to, port).is_some();
    if by_rule || by_class { Ok(()) } else { Err(no()) }
}

/// Returns the rules that a call may use for a protocol and port, with their indexes.
fn usable<'a>(
    egress: &'a Egress,
    only: Option<&'a Only>,
    protocol: Protocol,
    port: Option<u16>,
) -> impl Iterator<Item = (usize, &'a EgressRule)> {
    let rules = egress.rules.iter().enumerate();
    rules.filter(move |(_, rule)| in_call(only, &rule.id) && takes(rule, protocol, port))
}

/// Returns true if the call may use the port.
fn port_in_call(only: Option<&Only>, port: Option<u16>) -> bool {
    let ports = only.map(|only| only.ports.as_slice()).unwrap_or_default();
    ports.is_empty() || port.is_none_or(|port| ports.iter().any(|range| range.contains(port)))
}

/// Returns the name of the class if it reaches the address without a rule.
fn by_class(
    class: NetworkClass,
    only: Option<&Only>,
    to: IpAddr,
    port: Option<u16>,
) -> Option<String> {
    let rules_only = only.is_some_and(|only| only.rules.is_some());
    let needs_rule = port.is_some_and(|port| NAMED_PORTS.contains(&port));
    if rules_only || needs_rule || never::only_by_net(to) {
        return None;
    }
    let reaches = match class {
        NetworkClass::Any => true,
        NetworkClass::Private => never::is_private(to),
        NetworkClass::None | NetworkClass::Loopback | NetworkClass::AllowList => false,
    };
    reaches.then(|| class.name().to_owned())
}

fn refused(reason: String, grant: Option<String>) -> Decision {
    Decision::Refused(NetworkRefusal { reason, grant })
}

/// Returns true if the rule is for this protocol and port.
fn takes(rule: &EgressRule, protocol: Protocol, port: Option<u16>) -> bool {
    let protocol = match protocol {
        Protocol::Tcp => rule.protocols.tcp,
        Protocol::Udp => rule.protocols.udp,
        Protocol::Icmp => rule.protocols.icmp,
    };
    protocol
        && port.is_none_or(|port| {
            rule.ports.iter().any(|range| {
                if NAMED_PORTS.contains(&port) { range.names(port) } else { range.contains(port) }
            })
        })
}

/// Returns true if the rule allows an address by a name that was resolved to it.
fn names_address(class: NetworkClass, rule: &EgressRule, name: &str, to: IpAddr) -> bool {
    rule.hosts.iter().any(|host| host.matches(name) && host_has_address(class, host, to))
}

/// Returns true if a name of the pattern may be resolved to an address.
///
/// A private address needs a name that the rule spells out: below a wildcard a tenant could point
/// the cell at the operator's network. Another rule that has the address on other ports makes no
/// difference. Classes that reach private addresses anyway allow it.
fn host_has_address(class: NetworkClass, host: &HostPattern, to: IpAddr) -> bool {
    let is_private = match class {
        NetworkClass::Private | NetworkClass::Any => false,
        NetworkClass::None | NetworkClass::Loopback | NetworkClass::AllowList => {
            never::is_private(to)
        }
    };
    host.exact().is_some() || !is_private
}

/// Returns true if a host pattern of the rule matches a name.
fn names(rule: &EgressRule, name: &str) -> bool {
    rule.hosts.iter().any(|host| host.matches(name))
}

/// Returns true if the call may use the rule.
fn in_call(only: Option<&Only>, rule: &str) -> bool {
    let rules = only.and_then(|only| only.rules.as_ref());
    rules.is_none_or(|rules| rules.iter().any(|id| id == rule))
}

/// Returns true if the call may reach this name, whatever its address.
fn name_in_call(only: Option<&Only>, name: &str) -> bool {
    only.is_none_or(|only| {
        (only.hosts.is_empty() && only.nets.is_empty())
            || only.hosts.iter().any(|host| host.matches(name))
    })
}

/// Returns true if the address is in the networks that the call is confined to, whatever its name.
fn within(only: Option<&Only>, address: IpAddr) -> bool {
    let Some(only) = only else { return true };
    let is_excluded = only.is_public && (never::is_private(address) || never::only_by_net(address));
    let is_inside = only.within.is_empty() || only.within.iter().any(|net| net.contains(address));
    is_inside && !is_excluded
}

/// Returns true if the call lists the address among its networks.
fn listed(only: Option<&Only>, address: IpAddr) -> bool {
    only.is_some_and(|only| only.nets.iter().any(|net| net.contains(address)))
}

/// Returns true if the call may reach this address, whatever its name.
fn address_in_call(only: Option<&Only>, address: IpAddr) -> bool {
    only.is_none_or(|only| only.hosts.is_empty() && only.nets.is_empty()) || listed(only, address)
}

/// Names that the cell resolved, by address, remembered while the cell lives.
#[derive(Debug, Default)]
struct Pins(HashMap<IpAddr, Vec<String>>);

impl Pins {
    fn add(&mut self, address: IpAddr, name: &str) {
        if self.0.len() >= MAX_PINS && !self.0.contains_key(&address) {
            return;
        }
        let names = self.0.entry(address).or_default();
        if names.len() < MAX_NAMES && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }

    fn names(&self, address: IpAddr) -> &[String] {
        self.0.get(&address).map_or(&[], Vec::as_slice)
    }
}
