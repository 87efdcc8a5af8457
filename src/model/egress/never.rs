//! Addresses and names that no cell may reach, whatever its rules say: the host, its link, and
//! cloud services that hand out credentials.
//!
//! An IPv6 address that stands for an IPv4 one (mapped, compatible, translated, 6to4, NAT64,
//! Teredo, ISATAP) is judged by that one. In addition to this list, the gateway refuses all
//! addresses of the host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::net::Net;

/// Ports that a rule must name one by one: mail, and DNS resolvers other than the gateway's.
pub const NAMED_PORTS: [u16; 3] = [25, 53, 853];

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Net {
    Net::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix)
}

const fn v6(start: [u16; 2], end: u16, prefix: u8) -> Net {
    let [a, b] = start;
    Net::new(IpAddr::V6(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, end)), prefix)
}

/// The networks, each with its description.
const NETS: [(Net, &str); 20] = [
    (v4(0, 0, 0, 0, 8), "the host itself"),
    (v4(127, 0, 0, 0, 8), "loopback"),
    (v4(169, 254, 0, 0, 16), "link-local, and clouds' metadata"),
    (v4(192, 0, 0, 0, 24), "protocol assignments, and a cloud's metadata"),
    (v4(100, 100, 100, 200, 32), "a cloud's metadata"),
    (v4(168, 63, 129, 16, 32), "a cloud's metadata"),
    (v4(224, 0, 0, 0, 4), "multicast"),
    (v4(240, 0, 0, 0, 4), "reserved, and broadcast"),
    (v6([0, 0], 0, 128), "the host itself"),
    (v6([0, 0], 1, 128), "loopback"),
    (v6([0xfe80, 0], 0, 10), "link-local"),
    (v6([0xfec0, 0], 0, 10), "site-local"),
    (v6([0xff00, 0], 0, 8), "multicast"),
    (v6([0xfd00, 0x0ec2], 0, 32), "a cloud's metadata"),
    (v6([0xfd00, 0x0042], 0x0042, 128), "a cloud's metadata"),
    (v6([0xfd20, 0x00ce], 0x0254, 128), "a cloud's metadata"),
    // The network defines the form of these addresses (RFC 8215), so the IPv4 address in them
    // cannot be extracted.
    (LOCAL_NAT64, "a local translation of IPv4"),
    (v6([0x0100, 0], 0, 64), "discarded"),
    (v6([0x5f00, 0], 0, 16), "segment routing"),
    (v6([0x2001, 0x0010], 0, 28), "identifiers, not addresses"),
];

const LOCAL_NAT64: Net = Net::new(IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0)), 48);

/// IPv6 networks that embed IPv4 addresses.
const TRANSLATIONS: [Net; 6] = [
    Net::new(IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0)), 96),
    Net::new(IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0)), 96),
    v6([0x64, 0xff9b], 0, 96),
    v6([0x2002, 0], 0, 16),
    v6([0x2001, 0], 0, 32),
    // Compatible addresses, which include :: and ::1.
    v6([0, 0], 0, 96),
];

/// Networks that only `nets` of a rule may allow, neither a name nor a class: carriers' and
/// benchmarks'.
const ONLY_BY_NET: [Net; 2] = [v4(100, 64, 0, 0, 10), v4(198, 18, 0, 0, 15)];

/// Networks of the class `private` (RFC 1918, RFC 4193).
pub(super) const PRIVATE: [Net; 4] =
    [v4(10, 0, 0, 0, 8), v4(172, 16, 0, 0, 12), v4(192, 168, 0, 0, 16), v6([0xfc00, 0], 0, 7)];

/// Returns the reason if no cell may reach the address. The host's own addresses are not known
/// here.
pub fn never(address: IpAddr) -> Option<&'static str> {
    listed(address)
        .or_else(|| meanings(address).into_iter().flatten().find_map(|v4| listed(v4.into())))
}

fn listed(address: IpAddr) -> Option<&'static str> {
    NETS.iter().find(|(net, _)| net.contains(address)).map(|(_, reason)| *reason)
}

/// Returns the reason if no address of the network may be reached.
pub fn net(net: &Net) -> Option<&'static str> {
    NETS.iter().find(|(never, _)| never.covers(net)).map(|(_, reason)| *reason)
}

/// Returns true for a network of addresses that stand for IPv4 addresses.
pub(super) fn is_translation(net: &Net) -> bool {
    self::net(net).is_none() && TRANSLATIONS.iter().any(|translation| translation.covers(net))
}

/// Returns the effective address: for an IPv6 address that maps or translates an IPv4 one, the
/// latter.
pub fn meant(address: IpAddr) -> IpAddr {
    match meanings(address) {
        [Some(v4), _] => v4.into(),
        [None, _] => address,
    }
}

/// Returns true if only `nets` of a rule may allow the address.
pub fn only_by_net(address: IpAddr) -> bool {
    let address = meant(address);
    ONLY_BY_NET.iter().any(|net| net.contains(address))
}

/// Returns true for an address of a private network, which the class `private` reaches.
pub fn is_private(address: IpAddr) -> bool {
    let address = meant(address);
    never(address).is_none() && PRIVATE.iter().any(|net| net.contains(address))
}

/// Returns the IPv4 addresses within an IPv6 one; the first is where its packets are sent. Teredo
/// also has its server's.
fn meanings(address: IpAddr) -> [Option<Ipv4Addr>; 2] {
    let IpAddr::V6(v6) = address else { return [None, None] };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let join = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Some(Ipv4Addr::new(a, b, c, d))
    };
    match [a, b, c, d, e, f] {
        // :: and ::1 stand for themselves.
        [0, 0, 0, 0, 0, 0] if g == 0 && h <= 1 => [None, None],
        [0, 0, 0, 0, 0, 0 | 0xffff] | [0, 0, 0, 0, 0xffff, 0] | [0x64, 0xff9b, 0, 0, 0, 0] => {
            [join(g, h), None]
        }
        [0x2002, high, low, ..] => [join(high, low), None],
        [0x2001, 0, high, low, ..] => [join(!g, !h), join(high, low)],
        // ISATAP (RFC 5214): the interface part of the address.
        [_, _, _, _, 0 | 0x0200, 0x5efe] => [join(g, h), None],
        _ => [None, None],
    }
}

/// Returns the reason if no cell may resolve the name, given in lower case without a trailing dot.
pub fn name(name: &str) -> Option<&'static str> {
    let top = name.rsplit('.').next().unwrap_or(name);
    match (name, top) {
        (_, "localhost" | "localdomain") => Some("the host itself"),
        (_, "local") => Some("names of the local link (mDNS)"),
        ("metadata.google.internal" | "metadata.goog" | "instance-data.ec2.internal", _) => {
            Some("a cloud's metadata")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> Option<&'static str> {
        never(text.parse().unwrap_or_else(|error| panic!("{text}: {error}")))
    }

    #[test]
    fn each_listed_address_is_refused_in_every_spelling_of_it() {
        let listed = [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "192.0.0.192",
            "100.100.100.200",
            "168.63.129.16",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
        ];
        for text in listed {
            let v4: Ipv4Addr = text.parse().unwrap_or_else(|error| panic!("{error}"));
            let a = v4.to_bits() >> 16;
            let b = v4.to_bits() & 0xffff;
            let na = a ^ 0xffff;
            let nb = b ^ 0xffff;
            let spellings = [
                text.to_owned(),
                format!("::ffff:{text}"),
                format!("::ffff:0:{text}"),
                format!("64:ff9b::{text}"),
                format!("2002:{a:x}:{b:x}::1"),
                format!("2001:0:1:2:0:0:{na:x}:{nb:x}"),
                format!("2001:0:{a:x}:{b:x}::1:2"),
                format!("2a00::5efe:{text}"),
                format!("2a00::200:5efe:{text}"),
            ];
            for spelling in spellings {
                assert!(why(&spelling).is_some(), "{spelling}");
            }
        }
        // Compatible addresses; ::1 itself is loopback of IPv6.
        for text in ["::127.0.0.1", "::169.254.169.254", "::", "::1"] {
            assert!(why(text).is_some(), "{text}");
        }
    }

    #[test]
    fn listed_addresses_of_ipv6_are_refused() {
        for text in [
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "ff0e::1",
            "fd00:ec2::254",
            "fd00:ec2:1::1",
            "fd00:42::42",
            "fd20:ce::254",
            "64:ff9b:1::a00:1",
            "64:ff9b:1:ffff::1",
            "100::1",
            "5f00::1",
            "2001:1f::1",
        ] {
            assert!(why(text).is_some(), "{text}");
        }
    }

    #[test]
    fn neighbours_of_the_list_are_not_on_it() {
        for text in [
            "1.0.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "169.255.0.1",
            "192.0.1.1",
            "100.100.100.199",
            "168.63.129.17",
            "223.255.255.255",
            "10.0.0.1",
            "192.168.1.1",
            "fd00:ec3::1",
            "fd00:42::43",
            "fd20:ce::253",
            "fe00::1",
            "2606:4700::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
            "2001:0:808:808:0:0:f7f7:f7f7",
            "2001:db8::1",
            "2001:20::1",
            "64:ff9b:2::1",
            "2a00::5eff:127.0.0.1",
        ] {
            assert_eq!(why(text), None, "{text}");
        }
    }

    #[test]
    fn an_embedded_address_is_judged_by_the_inner_one() {
        let meant =
            |text: &str| meant(text.parse().unwrap_or_else(|error| panic!("{error}"))).to_string();
        assert_eq!(meant("::ffff:8.8.8.8"), "8.8.8.8");
        assert_eq!(meant("64:ff9b::8.8.4.4"), "8.8.4.4");
        assert_eq!(meant("2606:4700::1"), "2606:4700::1");
        assert_eq!(meant("8.8.8.8"), "8.8.8.8");
    }

    #[test]
    fn private_and_carriers_networks_are_distinguished() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap_or_else(|error| panic!("{error}")) };
        for text in ["10.1.2.3", "172.31.0.1", "192.168.0.1", "fd12::1", "::ffff:10.0.0.1"] {
            assert!(is_private(ip(text)), "{text}");
        }
        for text in ["172.32.0.1", "8.8.8.8", "100.64.0.1", "fd00:ec2::254", "2606:4700::1"] {
            assert!(!is_private(ip(text)), "{text}");
        }
        for text in ["100.64.0.1", "100.127.255.255", "198.18.0.1", "198.19.255.255"] {
            assert!(only_by_net(ip(text)), "{text}");
        }
        assert!(!only_by_net(ip("100.128.0.1")) && !only_by_net(ip("198.20.0.1")));
    }

    #[test]
    fn names_of_the_host_and_of_metadata_are_refused() {
        for text in ["localhost", "a.localhost", "printer.local", "metadata.google.internal"] {
            assert!(name(text).is_some(), "{text}");
        }
        for text in ["localhost.example.org", "local.example.org", "google.internal", "example.org"]
        {
            assert_eq!(name(text), None, "{text}");
        }
    }
}
