//! The network of a profile: from `network`, `[[egress]]` and `[egress_limits]`, and from words of
//! the command line.

use std::collections::BTreeSet;

use toml::Spanned;

use super::layer::Layer;
use super::requests;
use super::schema::{Written, WrittenEgress, WrittenPorts, WrittenProtocol};
use crate::document::{Document, Mistake};
use model::egress::{
    Egress, EgressLimits, EgressRule, HostPattern, InvalidNet, Net, NetworkClass, PortRange,
    Protocols,
};
use model::profile::Family;
use model::profile::name::is_dashed_word;

/// Maximum number of rules per profile; a cell's connections are compared with them one by one.
const MAX_RULES: usize = 256;

/// Resolves the network of a chain of profiles, the furthest ancestor first.
///
/// Names and networks in `never` are refused here. The gateway checks per connection that a port of
/// `NAMED_PORTS` is named by itself, and that an address in `only_by_net` is reached by a network
/// only.
pub(super) fn resolve(
    chain: &[&Layer<'_>],
    families: &BTreeSet<Family>,
) -> Result<Egress, Mistake> {
    let network =
        chain.iter().rev().find_map(|layer| Some((layer, layer.written.network.as_ref()?)));
    let class = network.map_or(NetworkClass::None, |(_, network)| *network.class.get_ref());
    let mut rules: Vec<EgressRule> = Vec::new();
    for layer in chain {
        for written in &layer.written.egress {
            let rule = rule(layer.document, written)?;
            check_class(layer, written, class)?;
            match rules.iter_mut().find(|earlier| earlier.id == rule.id) {
                Some(earlier) => *earlier = rule,
                None => rules.push(rule),
            }
            if rules.len() > MAX_RULES {
                let message = format!("a profile has at most {MAX_RULES} rules of egress");
                return Err(layer.document.mistake(written.id.span(), message));
            }
        }
    }
    if let Some((layer, network)) = network
        && class.has_egress()
        && !families.iter().any(|family| matches!(family, Family::Inet | Family::Inet6))
    {
        let message = format!("class `{}` is of no use without sockets of `inet`", class.name());
        let hint = "add `inet` and `inet6` to `sockets = { families = […] }`";
        return Err(layer.document.mistake(network.class.span(), message).with_hint(hint));
    }
    if let (Err((message, hint)), Some((layer, network))) =
        (requests::check_all(&rules, class), network)
    {
        return Err(layer.document.mistake(network.class.span(), message).with_hint(hint));
    }
    Ok(Egress { class, rules, limits: limits(chain)? })
}

/// Checks that cells of the class can reach a network.
fn check_class(
    layer: &Layer<'_>,
    written: &WrittenEgress,
    class: NetworkClass,
) -> Result<(), Mistake> {
    if class.has_egress() {
        return Ok(());
    }
    let message = format!("`[[egress]]` means nothing where `network.class` is `{}`", class.name());
    let hint = "set `network = { class = \"allow-list\", why = … }`, or take the rule out";
    Err(layer.document.mistake(written.id.span(), message).with_hint(hint))
}

fn rule(document: &Document, written: &WrittenEgress) -> Result<EgressRule, Mistake> {
    let mistake = |span, message: String| document.mistake(span, message);
    let id = written.id.get_ref();
    if !is_dashed_word(id, 64) {
        let message = format!("`{}` is no name of a rule", id.escape_default());
        let hint = "write lower-case letters, digits and dashes, 64 at most";
        return Err(mistake(written.id.span(), message).with_hint(hint));
    }
    if written.hosts.is_empty() && written.nets.is_empty() {
        let message = format!("rule `{id}` names no destination");
        let hint = "list names under `hosts`, or networks under `nets`";
        return Err(mistake(written.id.span(), message).with_hint(hint));
    }
    let hosts = written.hosts.iter().map(|text| parsed::<HostPattern>(document, text));
    let nets = written.nets.iter().map(|text| parsed::<Net>(document, text));
    let ports = written.ports.iter().map(|ports| range(document, ports));
    let rule = EgressRule {
        id: id.clone(),
        hosts: hosts.collect::<Result<_, _>>()?,
        nets: nets.collect::<Result<_, _>>()?,
        ports: ports.collect::<Result<_, _>>()?,
        protocols: protocols(document, written)?,
        http: requests::http(document, &written.http)?,
        secret: written
            .secret
            .as_ref()
            .map(|secret| requests::secret(document, secret))
            .transpose()?,
        why: written.why.as_str().to_owned(),
    };
    requests::check(document, written, &rule)?;
    match (rule.protocols.has_ports(), rule.ports.is_empty()) {
        (true, true) => {
            let message = format!("rule `{id}` names no port");
            let hint = "list them: `ports = [443]`; all are \"1-65535\"";
            Err(mistake(written.id.span(), message).with_hint(hint))
        }
        (false, false) => {
            let message = format!("rule `{id}` has ports, which `icmp` has not");
            Err(mistake(written.id.span(), message).with_hint("take `ports` out, or add `tcp`"))
        }
        (true, false) | (false, true) => Ok(rule),
    }
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    document: &Document,
    text: &Spanned<String>,
) -> Result<T, Mistake> {
    text.get_ref().parse().map_err(|error: T::Err| document.mistake(text.span(), error.to_string()))
}

fn range(document: &Document, ports: &Spanned<WrittenPorts>) -> Result<PortRange, Mistake> {
    let text = match ports.get_ref() {
        WrittenPorts::One(port) => port.to_string(),
        WrittenPorts::Range(text) => text.clone(),
    };
    text.parse::<PortRange>().map_err(|error| document.mistake(ports.span(), error.to_string()))
}

fn protocols(document: &Document, written: &WrittenEgress) -> Result<Protocols, Mistake> {
    let Some(listed) = &written.protocols else { return Ok(Protocols::TCP) };
    if listed.get_ref().is_empty() {
        let message = "`protocols` is empty";
        return Err(document.mistake(listed.span(), message).with_hint("leave it out for `tcp`"));
    }
    let has = |protocol| listed.get_ref().contains(&protocol);
    Ok(Protocols {
        tcp: has(WrittenProtocol::Tcp),
        udp: has(WrittenProtocol::Udp),
        icmp: has(WrittenProtocol::Icmp),
    })
}

fn limits(chain: &[&Layer<'_>]) -> Result<EgressLimits, Mistake> {
    let last = |pick: fn(&Written) -> Option<u64>| {
        chain.iter().rev().find_map(|layer| pick(&layer.written))
    };
    let mut limits = EgressLimits {
        sent: last(|written| written.egress_limits.sent.map(|size| size.0)),
        received: last(|written| written.egress_limits.received.map(|size| size.0)),
        rate: last(|written| written.egress_limits.rate.map(|size| size.0)),
        session_sent: last(|written| written.egress_limits.session_sent.map(|size| size.0)),
        session_received: last(|written| written.egress_limits.session_received.map(|size| size.0)),
        ..EgressLimits::default()
    };
    for layer in chain {
        if let Some(connections) = &layer.written.egress_limits.connections {
            let max = EgressLimits::CONNECTIONS;
            if !(1..=max).contains(connections.get_ref()) {
                let message = format!("`connections` is from 1 to {max}");
                return Err(layer.document.mistake(connections.span(), message));
            }
            limits.connections = *connections.get_ref();
        }
    }
    Ok(limits)
}

/// Why a word of `--egress` was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEgress {
    #[error(
        "`{word}` is neither a destination nor a preset; write pypi.org:443, 10.20.0.0/16:22, or one of {presets}"
    )]
    Unknown { word: String, presets: String },
    #[error("`{0}` is no name of a host with a port; write api.example.org:443")]
    NoHost(String),
    #[error(transparent)]
    Host(#[from] model::egress::InvalidHost),
    #[error(transparent)]
    Net(#[from] model::egress::InvalidNet),
    #[error(transparent)]
    Ports(#[from] model::egress::InvalidPorts),
}

/// Parses one word of `--egress`: the name of a preset, or `HOST:PORT`, `NET:PORT`, `[IPV6]:PORT`;
/// ports as in `ports`, separated by commas.
///
/// # Errors
/// The word is neither.
pub fn word(word: &str) -> Result<Vec<EgressRule>, InvalidEgress> {
    if let Some(preset) = presets().iter().find(|preset| preset.name == word) {
        return Ok(preset.rules.clone());
    }
    let unknown = || InvalidEgress::Unknown {
        word: word.chars().take(80).flat_map(char::escape_default).collect(),
        presets: presets().iter().map(|preset| preset.name.as_str()).collect::<Vec<_>>().join(", "),
    };
    let (destination, ports) =
        word.rsplit_once(':').filter(|_| !word.contains("//")).ok_or_else(unknown)?;
    let ports = ports.split(',').map(str::parse).collect::<Result<Vec<PortRange>, _>>()?;
    let destination = match destination.strip_prefix('[') {
        Some(inner) => inner.replacen(']', "", 1),
        // More colons: an IPv6 address whose last part was split off as a port.
        None if destination.contains(':') && !destination.contains('/') => return Err(unknown()),
        None => destination.to_owned(),
    };
    let (hosts, nets) = match destination.parse::<Net>() {
        Ok(net) => (Vec::new(), vec![net]),
        Err(InvalidNet::NotANet(_)) if !destination.contains('/') => {
            (vec![destination.parse()?], Vec::new())
        }
        Err(error) => return Err(error.into()),
    };
    Ok(vec![EgressRule {
        id: word.to_owned(),
        hosts,
        nets,
        ports,
        protocols: Protocols::TCP,
        http: Vec::new(),
        secret: None,
        why: "named by the operator at start".to_owned(),
    }])
}

/// Parses `HOST:PORT` for a destination that is reached by its name only.
///
/// # Errors
/// The word is a preset, an address or a network, or [`word`] refuses it.
pub fn host(word: &str) -> Result<EgressRule, InvalidEgress> {
    let is_host = |rule: &EgressRule| !rule.hosts.is_empty() && rule.id == word;
    let shown = || word.chars().take(80).flat_map(char::escape_default).collect();
    let rule = self::word(word)?.into_iter().next().filter(is_host);
    rule.ok_or_else(|| InvalidEgress::NoHost(shown()))
}

/// Returns the word of `--egress` that allows a destination, `HOST:PORT` or a name alone, for HTTPS: the preset
/// that has it, else the destination. `None` if no word allows it.
pub fn word_for(destination: &str) -> Option<String> {
    let split =
        destination.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port): (&str, u16) = split.unwrap_or((destination, 443));
    let has = |rule: &EgressRule| {
        rule.hosts.iter().any(|pattern| pattern.matches(host))
            && rule.ports.iter().any(|range| range.contains(port))
    };
    if let Some(preset) = presets().iter().find(|preset| preset.rules.iter().any(has)) {
        return Some(preset.name.clone());
    }
    let written = format!("{host}:{port}");
    word(&written).is_ok().then_some(written)
}

/// A named list of rules, for `--egress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preset {
    pub name: String,
    pub why: String,
    pub rules: Vec<EgressRule>,
}

/// The shipped presets: the files in `sandbox-profiles/egress/`.
const PRESETS: [(&str, &str); 6] = [
    ("cargo", include_str!("../sandbox-profiles/egress/cargo.toml")),
    ("debian", include_str!("../sandbox-profiles/egress/debian.toml")),
    ("git-https", include_str!("../sandbox-profiles/egress/git-https.toml")),
    ("go", include_str!("../sandbox-profiles/egress/go.toml")),
    ("npm", include_str!("../sandbox-profiles/egress/npm.toml")),
    ("python", include_str!("../sandbox-profiles/egress/python.toml")),
];

table! {
    /// A preset file.
    struct WrittenPreset {
        _schema "schema": i64,
        why: String,
        egress: Vec<WrittenEgress>,
    }
}

/// Returns the presets that `--egress` accepts. An unreadable one is left out; the tests read all
/// of them.
pub(crate) fn presets() -> &'static [Preset] {
    static ALL: std::sync::OnceLock<Vec<Preset>> = std::sync::OnceLock::new();
    ALL.get_or_init(|| PRESETS.iter().filter_map(|(name, text)| preset(name, text).ok()).collect())
}

fn preset(name: &str, text: &'static str) -> Result<Preset, Mistake> {
    let document = Document::shipped(&format!("sandbox-profiles/egress/{name}.toml"), text);
    let written: WrittenPreset = document.read()?;
    let rules = written.egress.iter().map(|written| rule(&document, written));
    Ok(Preset { name: name.to_owned(), why: written.why, rules: rules.collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_for_a_destination_is_a_preset_or_the_destination() {
        for (destination, expected) in [
            ("pypi.org", Some("python")),
            ("pypi.org:443", Some("python")),
            ("pypi.org:22", Some("pypi.org:22")),
            ("deb.debian.org:80", Some("debian")),
            ("example.org", Some("example.org:443")),
            ("192.0.2.1:22", Some("192.0.2.1:22")),
            ("[2001:db8::1]:22", Some("[2001:db8::1]:22")),
            ("printer.local:443", None),
            ("169.254.169.254:80", None),
            ("a b:443", None),
        ] {
            assert_eq!(word_for(destination).as_deref(), expected, "{destination}");
            assert!(expected.is_none_or(|it| word(it).is_ok()), "{destination}");
        }
    }

    #[test]
    fn every_shipped_preset_is_valid_and_gives_reasons() {
        for (name, text) in PRESETS {
            let preset = preset(name, text).unwrap_or_else(|mistake| panic!("{mistake}"));
            assert!(!preset.why.is_empty() && !preset.rules.is_empty(), "{name}");
            assert!(preset.rules.iter().all(|rule| !rule.why.trim().is_empty()), "{name}");
        }
        assert_eq!(presets().len(), PRESETS.len());
    }

    #[test]
    fn words_of_the_command_line_are_destinations_or_presets() {
        let described = |text: &str| match word(text) {
            Ok(rules) => rules
                .iter()
                .map(|rule| {
                    let destinations = rule.hosts.iter().map(ToString::to_string);
                    let destinations =
                        destinations.chain(rule.nets.iter().map(ToString::to_string));
                    let ports: Vec<_> = rule.ports.iter().map(ToString::to_string).collect();
                    format!("{} {}", destinations.collect::<Vec<_>>().join(","), ports.join(","))
                })
                .collect::<Vec<_>>()
                .join("; "),
            Err(error) => error.to_string(),
        };
        assert_eq!(described("pypi.org:443"), "pypi.org 443");
        assert_eq!(described("*.a.b:80,8000-8010"), "*.a.b 80,8000-8010");
        assert_eq!(described("10.20.0.0/16:22"), "10.20.0.0/16 22");
        assert_eq!(described("10.0.0.1:22"), "10.0.0.1/32 22");
        assert_eq!(described("[fd12::1]:22"), "fd12::1/128 22");
        assert_eq!(described("fd12::/48:22"), "fd12::/48 22");
        assert_eq!(described("python"), "pypi.org,files.pythonhosted.org 443");
        for (text, said) in [
            ("pypi.org", "one of cargo, debian, git-https, go, npm, python"),
            ("fd12::1", "neither a destination nor a preset"),
            ("https://pypi.org", "neither"),
            ("pypi.org:https", "is not a port"),
            ("localhost:80", "never reached"),
            ("127.0.0.1:80", "never reached"),
            ("*.com:80", "top-level"),
            ("", "neither"),
        ] {
            assert!(described(text).contains(said), "{text}: {}", described(text));
        }
    }
}
