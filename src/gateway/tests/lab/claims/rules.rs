//! Claims about classes, rules, and the narrowing of calls.

use model::egress::Only;

use super::Claim;
use crate::world::{ANY, LIST, Lab, PRIVATE};

pub(super) const ALL: &[Claim] = &[
    ("the_never_list_holds_in_every_class_and_spelling", never),
    ("ports_of_mail_and_dns_need_a_rule_that_names_them", named_ports),
    ("class_private_reaches_private_networks_and_no_others", private),
    ("a_call_is_narrowed_to_its_target_and_never_widened", narrowed),
    ("nmap_sees_the_same_states_as_bare", nmap),
];

fn never(lab: &Lab) {
    let any = lab.cell(ANY);
    assert_eq!(any.connect("203.0.113.20", 7), "ok");
    for address in [
        "169.254.169.254",
        "203.0.113.1",
        "10.77.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "240.0.0.1",
        "10.0.2.2",
        "198.18.0.1",
    ] {
        assert_eq!(any.connect(address, 80), "EHOSTUNREACH", "{address}");
    }
    for address in [
        "2001:db8::1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::1",
        "2001:0:7f00:1::1",
        "fd00:ec2::254",
        "::ffff:0:7f00:1",
        "fd00::2",
        // An IPv4 address of the host, behind a NAT64 prefix that has a route.
        "64:ff9b::203.0.113.1",
    ] {
        assert_eq!(any.connect(address, 80), "EACCES", "{address}");
    }
    let denied = any.tally(1).denied;
    assert!(
        denied.iter().all(|denied| denied.grant.is_none() || denied.to.starts_with("198.18")),
        "{denied:?}"
    );
}

fn named_ports(lab: &Lab) {
    let any = lab.cell(ANY);
    for port in [25, 53, 853] {
        assert_eq!(any.connect("203.0.113.53", port), "EHOSTUNREACH", "{port}");
    }
    let list = lab.cell(LIST);
    // A range of ports does not name port 53.
    assert_eq!(list.connect("203.0.113.20", 53), "EHOSTUNREACH");
    assert_eq!(list.connect("203.0.113.20", 54), "ECONNREFUSED");
}

fn private(lab: &Lab) {
    let cell = lab.cell(PRIVATE);
    assert_eq!(cell.connect("10.77.0.10", 80), "ok");
    assert_eq!(cell.connect("203.0.113.20", 7), "EHOSTUNREACH");
    assert_eq!(cell.run("dig +short web.test"), "");
}

fn narrowed(lab: &Lab) {
    let cell = lab.cell(LIST);
    let only = |hosts: &[&str], nets: &[&str], ports: &[&str]| {
        Some(Only {
            hosts: hosts.iter().map(|host| host.parse().expect("a host")).collect(),
            nets: nets.iter().map(|net| net.parse().expect("a net")).collect(),
            ports: ports.iter().map(|ports| ports.parse().expect("ports")).collect(),
            ..Only::default()
        })
    };
    cell.begin(2, only(&[], &["203.0.113.20"], &["7"]));
    assert_eq!(cell.connect("203.0.113.20", 7), "ok");
    assert_eq!(cell.connect("203.0.113.20", 80), "EHOSTUNREACH");
    assert_eq!(cell.connect("2001:db8::20", 7), "EACCES");
    cell.begin(3, only(&["web.test"], &[], &[]));
    assert_eq!(cell.run("curl -sS http://web.test/"), "hello web.test 0\n");
    assert_eq!(cell.connect("203.0.113.20", 7), "EHOSTUNREACH");
    assert_eq!(cell.run("dig +short a.wild.test"), "");
    // Hosts that the profile does not allow stay denied.
    cell.begin(4, only(&["other.test"], &["203.0.113.10"], &[]));
    assert_eq!(cell.run("dig +short other.test"), "");
    assert_eq!(cell.connect("203.0.113.10", 9000), "EHOSTUNREACH");
    // A name does not reach beyond the networks of the call, and a call without rules reaches
    // nothing.
    let confined = |within: &str| Only {
        hosts: vec!["web.test".parse().expect("a host")],
        within: vec![within.parse().expect("a net")],
        ..Only::default()
    };
    cell.begin(6, Some(confined("10.0.0.0/8")));
    assert_eq!(cell.connect("203.0.113.20", 80), "EHOSTUNREACH");
    cell.begin(7, Some(confined("203.0.113.0/24")));
    assert_eq!(cell.run("curl -sS -4 http://web.test/"), "hello web.test 0\n");
    cell.begin(8, Some(Only { rules: Some(Vec::new()), ..Only::default() }));
    assert_eq!(cell.connect("203.0.113.20", 80), "EHOSTUNREACH");
    cell.begin(5, None);
    assert_eq!(cell.connect("203.0.113.20", 80), "ok");
}

fn nmap(lab: &Lab) {
    let cell = lab.cell(LIST);
    let ports = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("/tcp"));
        lines
            .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    let inside = cell.run("nmap -n -Pn -sT -p 1-1000 203.0.113.20");
    // Ports 25 and 53 in the range need a rule that names them.
    assert_eq!(
        ports(&inside),
        [
            "7/tcp open",
            "22/tcp open",
            "25/tcp filtered",
            "53/tcp filtered",
            "80/tcp open",
            "443/tcp open",
            "853/tcp filtered"
        ],
        "{inside}"
    );
    assert!(
        inside.contains("993 closed tcp ports") || inside.contains("Not shown: 993 closed"),
        "{inside}"
    );
}
