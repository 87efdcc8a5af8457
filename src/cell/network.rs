//! The cell's side of its network: a veth pair inside its network namespace, and a packet socket on
//! the far end of the pair, which the gateway receives.
//!
//! The cell has no part of the host's network: both ends belong to the cell, and packets leave it
//! only through the socket, which is read outside. All netlink messages are built before the clone,
//! so that only system calls remain afterwards.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::Mode;
use nix::unistd::write;

use super::ProcKind;
use super::ids::AGENT;
use sys::bpf::Instruction;
use sys::rtnetlink::{self, AddressScope, RouteRequests, attribute, link};
use sys::{Result, net};

/// Addresses of the gateway's resolver, for the cells' resolv.conf.
pub const RESOLVERS: [&str; 2] = ["10.0.2.3", "fd00::3"];

/// Name of the cell's end of the link.
pub const LINK: &str = "eth0";
/// Index of `lo` in every namespace.
const LOOPBACK: u32 = 1;
/// Index of the cell's end: a new namespace has no other interface than `lo`.
const NEAR: u32 = 2;
/// Index of `out`, the end with the packet socket.
const FAR: u32 = 3;
/// Largest packet that the pair passes, in bytes.
const MTU: u32 = 65_535;
const NEAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x0f];
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

// Constants of netdevice(7) and address_families(7).
const UP: u32 = 1;
const NO_ARP: u32 = 0x80;
const INET: u8 = 2;
const INET6: u8 = 10;

/// Netlink messages that bring up the loopback of a cell without egress and with sockets of the
/// internet, built before the clone.
///
/// The loopback gets a second address. The C library takes 127.0.0.1 alone for no IPv4 at all, and
/// would resolve not even `localhost` to it where a program asks with AI_ADDRCONFIG for IPv4
/// (getaddrinfo(3)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopbackPlan(RouteRequests);

impl LoopbackPlan {
    /// Builds the messages.
    pub fn new() -> Self {
        let mut requests = RouteRequests::default();
        // First, as the kernel gives 127.0.0.1 only to a loopback without an address.
        requests.set_link(&link(LOOPBACK, UP, UP));
        requests.new_address(LOOPBACK, INET, 8, AddressScope::Host, &[127, 0, 1, 1]);
        Self(requests)
    }

    /// Brings up the loopback of the caller's namespace. Needs CAP_NET_ADMIN there.
    ///
    /// # Errors
    /// The errno of the first failed call.
    pub(crate) fn make(&self) -> Result<()> {
        match rtnetlink::open() {
            Ok(route) => self.0.send(&route),
            // A filter of the host leaves netlink out, for programs in the cell too.
            Err(Errno::EAFNOSUPPORT | Errno::EPERM | Errno::EACCES) => net::loopback_up(),
            Err(errno) => Err(errno),
        }
    }
}

impl Default for LoopbackPlan {
    fn default() -> Self {
        Self::new()
    }
}

/// Netlink messages that make the network of a cell, built before the clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkPlan {
    /// The pair and its IPv4 addresses.
    links: RouteRequests,
    /// IPv6 addresses, which the host may not support.
    inet6: RouteRequests,
    filter: Vec<Instruction>,
}

impl NetworkPlan {
    /// Builds the messages for cells with egress.
    pub fn new() -> Self {
        let mut links = RouteRequests::default();
        links.new_link(&pair());
        links.set_link(&without_link_local(NEAR));
        links.set_link(&without_link_local(FAR));
        // Only once both ends exist: an end without a peer cannot be set up (ENOTCONN).
        links.set_link(&link(FAR, UP, UP));
        links.set_link(&link(NEAR, UP, UP));
        links.new_address(NEAR, INET, 24, AddressScope::Global, &[10, 0, 2, 15]);
        links.new_default_route(NEAR, INET, &[10, 0, 2, 2]);
        let mut inet6 = RouteRequests::default();
        inet6.new_address(NEAR, INET6, 64, AddressScope::Global, &v6(0x15));
        inet6.new_default_route(NEAR, INET6, &v6(2));
        Self { links, inet6, filter: filter() }
    }

    /// Makes the network in the caller's namespace, and returns the packet socket on its far end.
    /// Needs CAP_NET_ADMIN and CAP_NET_RAW there.
    ///
    /// # Errors
    /// The errno of the first failed call: EOPNOTSUPP if the kernel has no veth.
    pub(crate) fn make(&self, proc: impl AsFd, kind: ProcKind) -> Result<OwnedFd> {
        self.make_links()?;
        allow_ping(proc, kind)?;
        self.packets()
    }

    /// Tries out the kernel features in the caller's namespace, which is discarded afterwards: for
    /// `doctor`.
    ///
    /// # Errors
    /// The errors of `Self::make`.
    pub fn attempt(&self) -> Result<()> {
        self.make_links()?;
        self.packets().map(drop)
    }

    fn make_links(&self) -> Result<()> {
        let route = rtnetlink::open()?;
        self.links.send(&route)?;
        match self.inet6.send(&route) {
            // No IPv6 in the kernel, or disabled: the cell has only IPv4.
            Ok(())
            | Err(Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP | Errno::EACCES | Errno::ENODEV) => {
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    fn packets(&self) -> Result<OwnedFd> {
        let packets = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        // Without a protocol, so that no packet arrives before the filter is attached; bind(2) sets
        // it.
        let packets = socket(AddressFamily::Packet, SockType::Raw, packets, None)?;
        net::prepare_packet_socket(&packets, &self.filter)?;
        sys::socket::bind(&packets, &packet_address())?;
        Ok(packets)
    }
}

impl Default for NetworkPlan {
    fn default() -> Self {
        Self::new()
    }
}

/// Builds one end of the pair, with name, size and address.
fn end(index: u32, name: &str, mac: [u8; 6]) -> Vec<u8> {
    const ADDRESS: u16 = 1;
    const NAME: u16 = 3;
    const LARGEST: u16 = 4;
    const SENDING_QUEUES: u16 = 31;
    const RECEIVING_QUEUES: u16 = 32;
    let mut body = link(index, NO_ARP, NO_ARP);
    attribute(&mut body, NAME, &[name.as_bytes(), b"\0"].concat());
    // One queue per direction: the default is one per processor, and each is an object in sysfs.
    attribute(&mut body, SENDING_QUEUES, &1_u32.to_ne_bytes());
    attribute(&mut body, RECEIVING_QUEUES, &1_u32.to_ne_bytes());
    attribute(&mut body, LARGEST, &MTU.to_ne_bytes());
    attribute(&mut body, ADDRESS, &mac);
    body
}

fn pair() -> Vec<u8> {
    const LINK_INFO: u16 = 18;
    const INFO_KIND: u16 = 1;
    const INFO_DATA: u16 = 2;
    const PEER: u16 = 1;
    let mut body = end(NEAR, LINK, NEAR_MAC);
    let mut info = Vec::new();
    let mut peer = Vec::new();
    attribute(&mut peer, PEER, &end(FAR, "out", FAR_MAC));
    attribute(&mut info, INFO_KIND, b"veth\0");
    attribute(&mut info, INFO_DATA, &peer);
    attribute(&mut body, LINK_INFO, &info);
    body
}

/// Disables automatic IPv6 addresses and router discovery on the link.
fn without_link_local(index: u32) -> Vec<u8> {
    const BY_FAMILY: u16 = 26;
    const GENERATION: u16 = 8;
    const NONE: u8 = 1;
    let mut body = link(index, 0, 0);
    let mut families = Vec::new();
    let mut inet6 = Vec::new();
    attribute(&mut inet6, GENERATION, &[NONE]);
    attribute(&mut families, u16::from(INET6), &inet6);
    attribute(&mut body, BY_FAMILY, &families);
    body
}

/// Makes an address in fd00::/64.
fn v6(last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    let [first, .., end] = &mut address;
    *first = 0xfd;
    *end = last;
    address
}

/// Makes a sockaddr_ll for every protocol at the far end (packet(7)).
fn packet_address() -> [u8; 20] {
    let mut address = [0; 20];
    let all = 3_u16.to_be_bytes();
    let family = 17_u16.to_ne_bytes();
    let parts = family.into_iter().chain(all).chain(FAR.to_ne_bytes());
    address.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    address
}

/// Allows the cell's only group to make ping sockets (icmp(7)). In a container whose /proc is
/// read-only this fails silently, and ping does not work there.
fn allow_ping(proc: impl AsFd, kind: ProcKind) -> Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    match (openat(&proc, "sys/net/ipv4/ping_group_range", flags, Mode::empty()), kind) {
        (Ok(file), _) => {
            const { assert!(AGENT == 1000) };
            write(&file, b"1000 1000").map(drop)
        }
        (Err(Errno::EROFS), ProcKind::Outer) => Ok(()),
        (Err(errno), ProcKind::Own | ProcKind::Outer) => Err(errno),
    }
}

/// Passes complete TCP, UDP and echo request frames to a single host, so that the gateway never has
/// to parse anything else.
fn filter() -> Vec<Instruction> {
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE_AFTER: u16 = 0x50;
    const LENGTH_TO_X: u16 = 0xb1;
    const EQUAL: u16 = 0x15;
    const AT_LEAST: u16 = 0x35;
    const ANY_BIT: u16 = 0x45;
    const RETURN: u16 = 0x06;
    let step = |code, yes, no, k| Instruction { code, jt: yes, jf: no, k };
    vec![
        // 0: drop frames with a multicast MAC address
        step(LOAD_BYTE, 0, 0, 0),
        step(ANY_BIT, 23, 0, 1),
        step(LOAD_HALF, 0, 0, 12),
        step(EQUAL, 12, 0, 0x86dd),
        step(EQUAL, 0, 20, 0x0800),
        // 5: IPv4: no multicast, no fragment
        step(LOAD_BYTE, 0, 0, 30),
        step(AT_LEAST, 18, 0, 224),
        step(LOAD_HALF, 0, 0, 20),
        step(ANY_BIT, 16, 0, 0x3fff),
        step(LOAD_BYTE, 0, 0, 23),
        step(EQUAL, 13, 0, 6),
        step(EQUAL, 12, 0, 17),
        step(EQUAL, 0, 12, 1),
        step(LENGTH_TO_X, 0, 0, 14),
        step(LOAD_BYTE_AFTER, 0, 0, 14),
        step(EQUAL, 8, 9, 8),
        // 16: IPv6, without extension headers
        step(LOAD_BYTE, 0, 0, 38),
        step(EQUAL, 7, 0, 0xff),
        step(LOAD_BYTE, 0, 0, 20),
        step(EQUAL, 4, 0, 6),
        step(EQUAL, 3, 0, 17),
        step(EQUAL, 0, 3, 58),
        step(LOAD_BYTE, 0, 0, 54),
        step(EQUAL, 0, 1, 128),
        // 24: pass, 25: drop
        step(RETURN, 0, 0, 0x4_0000),
        step(RETURN, 0, 0, 0),
    ]
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "frames of a known length")]
mod tests {
    use super::*;

    /// Interprets a program of the few instructions that [`filter`] uses; 0 drops the frame.
    fn run(program: &[Instruction], frame: &[u8]) -> u32 {
        let mut accumulator = 0_u32;
        let mut index = 0_usize;
        let mut counter = 0_usize;
        let byte = |at: usize| frame.get(at).copied().map(u32::from);
        loop {
            let step = program.get(counter).expect("a program ends with a return");
            let at = usize::try_from(step.k).expect("an offset");
            counter += 1;
            let loaded = match step.code {
                0x30 => byte(at),
                0x28 => byte(at).zip(byte(at + 1)).map(|(high, low)| (high << 8) | low),
                0x50 => byte(at + index),
                0xb1 => {
                    let Some(value) = byte(at) else { return 0 };
                    index = usize::try_from((value & 0xf) * 4).expect("a length");
                    continue;
                }
                0x06 => return step.k,
                code => {
                    let holds = match code {
                        0x15 => accumulator == step.k,
                        0x35 => accumulator >= step.k,
                        0x45 => accumulator & step.k != 0,
                        code => panic!("no such instruction: {code:#x}"),
                    };
                    counter += usize::from(if holds { step.jt } else { step.jf });
                    continue;
                }
            };
            // A load beyond the frame ends the program and drops the frame (bpf(4)).
            let Some(value) = loaded else { return 0 };
            accumulator = value;
        }
    }

    /// Builds an IPv4 frame whose header has this many words.
    fn v4(destination: u8, fragment: u16, protocol: u8, words: u8, first: u8) -> Vec<u8> {
        let mut frame = vec![0; 14];
        frame[12..14].copy_from_slice(&[8, 0]);
        let mut header = vec![0; usize::from(words) * 4];
        header[0] = 0x40 | words;
        header[6..8].copy_from_slice(&fragment.to_be_bytes());
        header[9] = protocol;
        header[16] = destination;
        frame.extend(header);
        frame.extend([first, 0, 0, 0]);
        frame
    }

    fn v6(destination: u8, next: u8, first: u8) -> Vec<u8> {
        let mut frame = vec![0; 14];
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        let mut header = [0; 40];
        header[6] = next;
        header[24] = destination;
        frame.extend(header);
        frame.extend([first, 0, 0, 0]);
        frame
    }

    #[test]
    fn only_complete_frames_to_a_single_host_pass() {
        let program = filter();
        let passes = |frame: &[u8]| run(&program, frame) != 0;
        for frame in [
            v4(10, 0, 6, 5, 0),
            v4(10, 0x4000, 6, 5, 0),
            v4(223, 0, 17, 5, 0),
            v4(10, 0, 1, 5, 8),
            v4(10, 0, 1, 15, 8),
            v6(0x20, 6, 0),
            v6(0xfd, 17, 0),
            v6(0x20, 58, 128),
        ] {
            assert!(passes(&frame), "{frame:?}");
        }
        let mut group = v4(10, 0, 6, 5, 0);
        group[0] = 1;
        let mut arp = v4(10, 0, 6, 5, 0);
        arp[12..14].copy_from_slice(&[8, 6]);
        let [fragments, last] = [0x2000, 0x0001].map(|fragment| v4(10, fragment, 17, 5, 0));
        for frame in [
            group,
            arp,
            fragments,
            last,
            v4(224, 0, 17, 5, 0),
            v4(255, 0, 17, 5, 0),
            v4(10, 0, 1, 5, 0),
            v4(10, 0, 1, 5, 13),
            v4(10, 0, 132, 5, 0),
            v4(10, 0, 41, 5, 0),
            v6(0xff, 17, 0),
            v6(0x20, 58, 135),
            v6(0x20, 44, 0),
            v6(0x20, 0, 0),
            Vec::new(),
            vec![0; 14],
        ] {
            assert!(!passes(&frame), "{frame:?}");
        }
    }
}
