//! Targets that a tool may be pointed at. A word that names another target is refused early.
//!
//! The name of a host does not determine its address. The profile decides what a cell reaches at
//! the time of the connection.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::egress::{HostPattern, Net};

/// Maximum number of addresses in a network, unless the file says otherwise: the default of the
/// reference implementation.
const LARGEST: u128 = 1024;

/// Targets that a word of the kinds `host`, `cidr`, `target` and `url` may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetReach {
    pub within: TargetPlaces,
    /// Maximum number of addresses in a network.
    pub largest: u128,
}

/// Names and networks of a [`TargetReach`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetPlaces {
    /// Private networks (RFC 1918, RFC 4193) and `*.lab.internal`.
    Private,
    /// Exactly these hosts and networks.
    Listed { hosts: Vec<HostPattern>, nets: Vec<Net> },
    /// Any target.
    Any,
}

/// A network with more addresses than the tool accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLarge {
    /// Number of addresses in the network.
    pub size: u128,
    pub most: u128,
    /// Shortest prefix that the tool accepts.
    pub prefix: u8,
}

impl Default for TargetReach {
    fn default() -> Self {
        Self { within: TargetPlaces::Private, largest: LARGEST }
    }
}

/// Private networks (RFC 1918, RFC 4193).
pub(super) const PRIVATE: [Net; 4] = [
    Net::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8),
    Net::new(IpAddr::V4(Ipv4Addr::new(172, 16, 0, 0)), 12),
    Net::new(IpAddr::V4(Ipv4Addr::new(192, 168, 0, 0)), 16),
    Net::new(IpAddr::V6(Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0)), 7),
];
/// Suffix of the names in a laboratory, as in the reference implementation.
const LAB: &str = ".lab.internal";

impl TargetPlaces {
    /// Checks an address.
    pub(crate) fn address(&self, address: IpAddr) -> Result<(), String> {
        self.network(&Net::new(address, 128))
    }

    /// Checks a network. All of its addresses must be within these targets.
    pub(crate) fn network(&self, net: &Net) -> Result<(), String> {
        let inside = match self {
            Self::Any => true,
            Self::Private => PRIVATE.iter().any(|private| private.covers(net)),
            Self::Listed { nets, .. } => nets.iter().any(|listed| listed.covers(net)),
        };
        if inside { Ok(()) } else { Err(self.refusal()) }
    }

    /// Checks a name.
    pub(crate) fn name(&self, name: &str) -> Result<(), String> {
        let lower = name.to_ascii_lowercase();
        let inside = match self {
            Self::Any => true,
            Self::Private => lower.strip_suffix(LAB).is_some_and(|label| !label.is_empty()),
            Self::Listed { hosts, .. } => hosts.iter().any(|host| host.matches(&lower)),
        };
        if inside { Ok(()) } else { Err(self.refusal()) }
    }

    fn refusal(&self) -> String {
        match self {
            Self::Any => String::new(),
            Self::Private => {
                "is neither in a private network (RFC 1918, fc00::/7) nor below lab.internal"
                    .to_owned()
            }
            Self::Listed { hosts, nets } => {
                let hosts = hosts.iter().map(ToString::to_string);
                let all: Vec<String> = hosts.chain(nets.iter().map(ToString::to_string)).collect();
                format!("is not within {}", all.join(", "))
            }
        }
    }
}

impl TargetReach {
    /// Returns the size of a network that is too large.
    pub(crate) fn too_large(&self, net: &Net) -> Option<TooLarge> {
        let bits: u8 = if net.first().is_ipv4() { 32 } else { 128 };
        let free = u32::from(bits - net.prefix());
        let size = 1u128.checked_shl(free).unwrap_or(u128::MAX);
        let prefix = bits.saturating_sub(u8::try_from(self.largest.max(1).ilog2()).unwrap_or(0));
        (size > self.largest).then_some(TooLarge { size, most: self.largest, prefix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn private_targets_are_within_by_default_and_others_are_not() {
        let within = TargetReach::default().within;
        for (text, inside) in [
            ("10.1.2.3", true),
            ("172.31.255.255", true),
            ("192.168.1.1", true),
            ("fd12::1", true),
            ("8.8.8.8", false),
            ("172.32.0.1", false),
            ("100.64.0.1", false),
            ("2001:db8::1", false),
            ("127.0.0.1", false),
            ("::ffff:10.0.0.1", false),
        ] {
            let address: IpAddr = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(within.address(address).is_ok(), inside, "{text}");
        }
        for (name, inside) in [
            ("a.lab.internal", true),
            ("A.B.LAB.internal", true),
            ("lab.internal", false),
            ("xlab.internal", false),
            ("a.lab.internal.example.org", false),
            ("example.org", false),
        ] {
            assert_eq!(within.name(name).is_ok(), inside, "{name}");
        }
    }

    #[test]
    fn a_network_is_within_as_a_whole_and_its_size_is_bounded() {
        let reach = TargetReach::default();
        assert_eq!(reach.within.network(&net("10.0.0.0/8")), Ok(()));
        assert!(reach.within.network(&Net::new(Ipv4Addr::new(8, 0, 0, 0).into(), 6)).is_err());
        assert_eq!(reach.too_large(&net("10.0.0.0/22")), None);
        let large = TooLarge { size: 2048, most: 1024, prefix: 22 };
        assert_eq!(reach.too_large(&net("10.0.0.0/21")), Some(large));
        let huge = reach.too_large(&net("fd00::/8")).map(|large| large.prefix);
        assert_eq!(huge, Some(118));
    }
}
