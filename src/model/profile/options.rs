//! Socket options that a cell may set, level by level, each with its reason (setsockopt(2)).
//!
//! An allow-list: an option that a newer kernel adds is refused until it is listed. Left out:
//! filters and protocol modules, which are programs for the kernel; headers made by the program
//! (IP_OPTIONS, IPV6_RTHDR and similar), which the kernel has to parse; IPV6_ADDRFORM, which
//! changes the kind of a socket; congestion control, repair, signatures, IPsec, netfilter.

use super::condition::{All, Op, Probe, Test, Verdict, within};
use crate::receipt::MemoryHold;

const SOCKET: u32 = 1;
const IP: u32 = 0;
const TCP: u32 = 6;
const UDP: u32 = 17;
const IPV6: u32 = 41;
const NETLINK: u32 = 270;

/// Options of SOL_SOCKET up to SO_INQ (84). Left out:
/// - SO_ATTACH_FILTER (26), SO_ATTACH_BPF (50) and the two of SO_REUSEPORT (51, 52): programs for
///   the kernel;
/// - SO_BUSY_POLL (46), SO_PREFER_BUSY_POLL (69), SO_BUSY_POLL_BUDGET (70): make the kernel spin
///   for a device, and cells have no devices;
/// - SO_ZEROCOPY (60) and device memory (78 to 80): lend pages to a socket, as splice(2) does;
/// - SO_TXTIME (61): packets wait in a queue for their time;
/// - SO_RESERVE_MEM (73): memory of a control group, set aside.
const OF_SOCKETS: &[(u32, u32)] =
    &[(0, 12), (14, 25), (27, 45), (47, 49), (53, 59), (62, 68), (71, 72), (74, 77), (81, 84)];

/// Same, without the options that set how much a socket may hold: [`SIZES`].
const OF_SOCKETS_NOT_SIZES: &[(u32, u32)] = &[
    (0, 6),
    (9, 12),
    (14, 25),
    (27, 31),
    (34, 45),
    (47, 49),
    (53, 59),
    (62, 68),
    (71, 72),
    (74, 77),
    (81, 84),
];

/// SO_SNDBUF and SO_RCVBUF; SO_SNDBUFFORCE and SO_RCVBUFFORCE.
const SIZES: &[(u32, u32)] = &[(7, 8), (32, 33)];

/// SO_LINGER. Setting it succeeds without effect: the last close of a socket would wait for the other
/// end, and init may have a copy of the socket when its program is killed. Init would then neither
/// answer calls nor hold memory for as long.
const LINGER: &[(u32, u32)] = &[(13, 13)];

/// Options of IP (ip(7)).
const OF_IP: &[(u32, u32)] = &[
    (1, 2),   // IP_TOS, IP_TTL: ssh, QUIC, ping libraries
    (8, 8),   // IP_PKTINFO: name servers answer from the address that was asked
    (10, 13), // IP_MTU_DISCOVER, IP_RECVERR, IP_RECVTTL, IP_RECVTOS: name resolvers, QUIC
    (15, 15), // IP_FREEBIND: load balancers
    (21, 21), // IP_MINTTL: routing daemons' tests
    (24, 24), // IP_BIND_ADDRESS_NO_PORT: proxies
    (32, 36), // IP_MULTICAST_IF, _TTL, _LOOP, IP_ADD_MEMBERSHIP, IP_DROP_MEMBERSHIP: mDNS, cluster tests
    (39, 40), // IP_ADD_SOURCE_MEMBERSHIP and its end: Java, libuv
    (42, 42), // MCAST_JOIN_GROUP: the same by any family
    (45, 47), // MCAST_LEAVE_GROUP, MCAST_JOIN_SOURCE_GROUP, MCAST_LEAVE_SOURCE_GROUP
    (49, 49), // IP_MULTICAST_ALL: mDNS
];

/// Options of IPv6 (ipv6(7)).
const OF_IPV6: &[(u32, u32)] = &[
    (16, 21), // hop limits, multicast interface and loop, IPV6_JOIN_GROUP, IPV6_LEAVE_GROUP
    (23, 23), // IPV6_MTU_DISCOVER: QUIC
    (25, 26), // IPV6_RECVERR, IPV6_V6ONLY: resolvers; every server of both families
    (29, 29), // IPV6_MULTICAST_ALL: mDNS
    (42, 42), // MCAST_JOIN_GROUP
    (45, 47), // MCAST_LEAVE_GROUP, MCAST_JOIN_SOURCE_GROUP, MCAST_LEAVE_SOURCE_GROUP
    (49, 49), // IPV6_RECVPKTINFO: name servers
    (51, 51), // IPV6_RECVHOPLIMIT
    (62, 62), // IPV6_DONTFRAG: QUIC
    (66, 67), // IPV6_RECVTCLASS, IPV6_TCLASS: ssh, QUIC
    (78, 78), // IPV6_FREEBIND
];

/// Options of TCP (tcp(7)).
const OF_TCP: &[(u32, u32)] = &[
    (1, 10), // TCP_NODELAY, segment size, cork, keep-alive, SYN count, linger, deferred accept, window clamp
    (12, 12), // TCP_QUICKACK: proxies, databases
    (18, 18), // TCP_USER_TIMEOUT: gRPC, databases
    (23, 23), // TCP_FASTOPEN: servers
    (25, 25), // TCP_NOTSENT_LOWAT: HTTP/2 servers
    (30, 30), // TCP_FASTOPEN_CONNECT: curl
    (36, 36), // TCP_INQ
];

/// UDP_SEGMENT and UDP_GRO, as QUIC uses them; not encapsulation.
const OF_UDP: &[(u32, u32)] = &[(103, 104)];

/// Options of netlink (netlink(7)). Left out: NETLINK_LISTEN_ALL_NSID, which is about other
/// namespaces, and options about broadcasts and lost messages.
const OF_NETLINK: &[(u32, u32)] = &[
    (1, 2),   // NETLINK_ADD_MEMBERSHIP, NETLINK_DROP_MEMBERSHIP: watchers of addresses, as bind(2)
    (10, 12), // NETLINK_CAP_ACK, NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK: ip(8), libraries
];

/// Returns the verdict on setsockopt(2) under any profile.
///
/// Without a memory cgroup, a socket holds its default at most: setting another size succeeds
/// without effect, as on a kernel whose limit was reached.
pub(super) fn verdict(memory: MemoryHold) -> Verdict {
    let (allowed, ignored) = match memory {
        MemoryHold::CgroupV1 | MemoryHold::CgroupV2 => (OF_SOCKETS, &[][..]),
        MemoryHold::BestEffort => (OF_SOCKETS_NOT_SIZES, SIZES),
    };
    let when = at(SOCKET, LINGER).chain(at(SOCKET, ignored)).collect();
    Verdict::AllowOrProbe(any(allowed), Probe { when, errno: 0 })
}

fn any(of_sockets: &'static [(u32, u32)]) -> Vec<All> {
    let levels = [
        (SOCKET, of_sockets),
        (TCP, OF_TCP),
        (IPV6, OF_IPV6),
        (IP, OF_IP),
        (UDP, OF_UDP),
        (NETLINK, OF_NETLINK),
    ];
    levels.into_iter().flat_map(|(level, options)| at(level, options)).collect()
}

/// Returns tests for the level and each range of its options.
fn at(level: u32, options: &'static [(u32, u32)]) -> impl Iterator<Item = All> {
    options.iter().map(move |range| {
        let mut tests = vec![Test::low(1, Op::Eq, level)];
        tests.extend(within(2, *range));
        tests
    })
}
