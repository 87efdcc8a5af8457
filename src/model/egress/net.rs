//! Networks and ports in rules.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An IPv4 or IPv6 network in CIDR notation; without `/` a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Net {
    /// First address: all bits after the prefix are zero.
    first: IpAddr,
    prefix: u8,
}

impl Net {
    /// Makes the network of the first `prefix` bits of an address. A longer prefix than the address
    /// means the address.
    pub const fn new(address: IpAddr, prefix: u8) -> Self {
        match address {
            IpAddr::V4(v4) => {
                let prefix = if prefix > 32 { 32 } else { prefix };
                let first = Ipv4Addr::from_bits(v4.to_bits() & mask_v4(prefix));
                Self { first: IpAddr::V4(first), prefix }
            }
            IpAddr::V6(v6) => {
                let prefix = if prefix > 128 { 128 } else { prefix };
                let first = Ipv6Addr::from_bits(v6.to_bits() & mask_v6(prefix));
                Self { first: IpAddr::V6(first), prefix }
            }
        }
    }

    /// Returns true for an address in the network. No IPv6 network contains an IPv4 address, mapped
    /// or not.
    pub const fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(v4)) => {
                v4.to_bits() & mask_v4(self.prefix) == first.to_bits()
            }
            (IpAddr::V6(first), IpAddr::V6(v6)) => {
                v6.to_bits() & mask_v6(self.prefix) == first.to_bits()
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// Returns true if every address of `other` is in this network.
    pub const fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.first)
    }

    /// Returns its first address.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// Returns the length of its prefix in bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }
}

const fn mask_v4(prefix: u8) -> u32 {
    match prefix {
        0 => 0,
        1..=32 => u32::MAX << (32 - prefix),
        33.. => u32::MAX,
    }
}

const fn mask_v6(prefix: u8) -> u128 {
    match prefix {
        0 => 0,
        1..=128 => u128::MAX << (128 - prefix),
        129.. => u128::MAX,
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

impl From<Net> for String {
    fn from(net: Net) -> Self {
        net.to_string()
    }
}

/// Ports from `first` to `last`, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// Why a port range is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a port; write 443 or \"1-1024\", each from 1 to 65535")]
pub struct InvalidPorts(pub String);

impl PortRange {
    /// Makes a range of one port.
    pub const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Returns true if the range is exactly this port: ports of [`super::never::NAMED_PORTS`] are only
    /// allowed that way.
    pub const fn names(self, port: u16) -> bool {
        self.first == port && self.last == port
    }

    /// Returns true if the range contains every port of `other`.
    pub const fn covers(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

impl FromStr for PortRange {
    type Err = InvalidPorts;

    fn from_str(text: &str) -> Result<Self, InvalidPorts> {
        let invalid =
            || InvalidPorts(text.chars().take(40).flat_map(char::escape_default).collect());
        let port = |text: &str| match text.parse::<u16>() {
            Ok(port) if port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
            Ok(_) | Err(_) => Err(invalid()),
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = Self { first: port(first)?, last: port(last)? };
        if range.first > range.last { Err(invalid()) } else { Ok(range) }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_network_holds_its_addresses_and_no_others() {
        let lab = net("10.20.0.0/16");
        assert!(lab.contains(ip("10.20.255.255")) && !lab.contains(ip("10.21.0.0")));
        let six = net("fd12::/48");
        assert!(six.contains(ip("fd12::ffff:1")) && !six.contains(ip("fd12:0:1::")));
        assert!(net("0.0.0.0/0").contains(ip("255.1.2.3")));
        assert!(!net("::/0").contains(ip("1.2.3.4")) && !net("0.0.0.0/0").contains(ip("::1")));
        assert_eq!(net("10.20.0.7").to_string(), "10.20.0.7/32");
        assert!(lab.covers(&net("10.20.3.0/24")) && !net("10.20.3.0/24").covers(&lab));
    }

    #[test]
    fn ports_are_one_or_a_range() {
        let ports =
            |text: &str| text.parse::<PortRange>().ok().map(|range| (range.first, range.last));
        assert_eq!(ports("443"), Some((443, 443)));
        assert_eq!(ports("1-1024"), Some((1, 1024)));
        for text in ["", "0", "65536", "5-4", "-5", "5-", "+5", "1-2-3", "a"] {
            assert_eq!(ports(text), None, "{text}");
        }
        let range = PortRange { first: 1, last: 1024 };
        assert!(range.contains(25) && !range.names(25) && PortRange::one(25).names(25));
        assert!(range.covers(PortRange::one(25)) && !PortRange::one(25).covers(range));
    }
}
