//! Parses and builds packets as the packet socket has them: a virtio header, an Ethernet header,
//! then IPv4 or IPv6.
//!
//! Everything that a cell sends is parsed here first. A packet that is not plain TCP, UDP or an
//! echo request from the cell's own address is dropped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket, checksum};

/// Bytes of `struct virtio_net_hdr` (virtio_net.h), which PACKET_VNET_HDR puts before each frame.
pub(crate) const VNET: usize = 10;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// EtherTypes of IPv4 and IPv6.
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// Bytes before the IP header.
pub(crate) const HEAD: usize = VNET + ETHERNET;
/// Largest IP packet, which is the MTU of the link.
pub(crate) const MTU: usize = 65_535;

/// Addresses of the link that every cell has.
pub(crate) const CELL: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 2, 15)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x15)),
];
pub(crate) const GATEWAY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
];
pub(crate) const RESOLVER: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3)),
];

/// Returns the address of the pair that has the family of `like`.
pub(crate) fn of_family(pair: [IpAddr; 2], like: IpAddr) -> IpAddr {
    let [v4, v6] = pair;
    if like.is_ipv4() { v4 } else { v6 }
}

// VIRTIO_NET_HDR_* (virtio_net.h).
const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// A packet that a cell sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Time to live, or hop limit.
    pub hops: u8,
    pub body: Body,
    /// Range of the IP packet within the frame.
    pub ip: Range<usize>,
    /// The sender's hardware address, to which answers are sent.
    pub mac: [u8; 6],
}

/// Contents of a packet; payloads are ranges of the frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    Tcp {
        source: u16,
        destination: u16,
        /// True for the first segment of a connection.
        opens: bool,
        resets: bool,
    },
    Udp {
        source: u16,
        destination: u16,
        payload: Range<usize>,
        /// Size of each datagram where the kernel left several together (UDP_SEGMENT).
        segment: usize,
    },
    Echo {
        ident: u16,
        sequence: u16,
        payload: Range<usize>,
    },
}

fn two_bytes(bytes: &[u8], at: usize) -> Option<[u8; 2]> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok()
}

/// Parses a frame. Returns `None` for a packet that cells may not send.
pub(crate) fn parse(frame: &[u8]) -> Option<Packet> {
    let offload = *frame.get(1)? & !GSO_ECN;
    let segment = usize::from(u16::from_ne_bytes(two_bytes(frame, 4)?));
    let mac: [u8; 6] = frame.get(VNET + 6..VNET + 12)?.try_into().ok()?;
    let kind = two_bytes(frame, VNET + 12)?;
    let ip = frame.get(HEAD..)?;
    let (source, destination, hops, protocol, header, total) = match kind {
        IPV4 => {
            let packet = Ipv4Packet::new_checked(ip).ok()?;
            if packet.version() != 4 || packet.more_frags() || packet.frag_offset() != 0 {
                return None;
            }
            let header = usize::from(packet.header_len());
            let source = packet.src_addr().into();
            let destination = packet.dst_addr().into();
            let total = usize::from(packet.total_len());
            (source, destination, packet.hop_limit(), packet.next_header(), header, total)
        }
        IPV6 => {
            let packet = Ipv6Packet::new_checked(ip).ok()?;
            if packet.version() != 6 {
                return None;
            }
            let source = packet.src_addr().into();
            let destination = packet.dst_addr().into();
            let header = packet.header_len();
            let total = packet.total_len();
            (source, destination, packet.hop_limit(), packet.next_header(), header, total)
        }
        _ => return None,
    };
    if !CELL.contains(&source) {
        return None;
    }
    let start = HEAD.checked_add(header)?;
    let end = HEAD.checked_add(total)?;
    let body = body(frame, start..end, protocol, source, offload, segment)?;
    Some(Packet { source, destination, hops, body, ip: HEAD..end, mac })
}

/// Parses the part after the IP header.
fn body(
    frame: &[u8],
    within: Range<usize>,
    protocol: IpProtocol,
    source: IpAddr,
    offload: u8,
    segment: usize,
) -> Option<Body> {
    let bytes = frame.get(within.clone())?;
    let segmented = match (protocol, offload) {
        (IpProtocol::Tcp, GSO_NONE | GSO_TCPV4 | GSO_TCPV6) | (_, GSO_NONE) => false,
        (IpProtocol::Udp, GSO_UDP) if segment > 0 => true,
        _ => return None,
    };
    match (protocol, source.is_ipv4()) {
        (IpProtocol::Tcp, _) => {
            let tcp = TcpPacket::new_checked(bytes).ok()?;
            Some(Body::Tcp {
                source: tcp.src_port(),
                destination: tcp.dst_port(),
                opens: tcp.syn() && !tcp.ack() && !tcp.rst() && !tcp.fin(),
                resets: tcp.rst(),
            })
        }
        (IpProtocol::Udp, _) => {
            let (source, destination, length) = if segmented {
                // The length field covers all the datagrams together, or is zero.
                let port = |at| two_bytes(bytes, at).map(u16::from_be_bytes);
                (port(0)?, port(2)?, bytes.len())
            } else {
                let udp = UdpPacket::new_checked(bytes).ok()?;
                (udp.src_port(), udp.dst_port(), usize::from(udp.len()))
            };
            let start = within.start.checked_add(8)?;
            let payload = start..within.start.checked_add(length)?;
            let segment = if segmented { segment } else { payload.len() };
            (payload.start <= payload.end).then_some(Body::Udp {
                source,
                destination,
                payload,
                segment,
            })
        }
        (IpProtocol::Icmp, true) | (IpProtocol::Icmpv6, false) => {
            let request = if source.is_ipv4() { 8 } else { 128 };
            if bytes.get(..2)? != [request, 0] {
                return None;
            }
            let ident = u16::from_be_bytes(two_bytes(bytes, 4)?);
            let sequence = u16::from_be_bytes(two_bytes(bytes, 6)?);
            let start = within.start.checked_add(8)?;
            (start <= within.end).then_some(Body::Echo {
                ident,
                sequence,
                payload: start..within.end,
            })
        }
        _ => None,
    }
}

/// Replaces addresses and ports in a packet that was parsed before, between those of the stack and
/// those that the cell knows. Transport checksums are left: neither side checks them.
pub(crate) fn rewrite(
    ip: &mut [u8],
    from: Option<SocketAddr>,
    to: Option<SocketAddr>,
) -> Option<()> {
    let header = match ip.first()? >> 4 {
        4 => {
            let mut packet = Ipv4Packet::new_checked(&mut *ip).ok()?;
            if let Some(IpAddr::V4(address)) = from.map(|from| from.ip()) {
                packet.set_src_addr(address);
            }
            if let Some(IpAddr::V4(address)) = to.map(|to| to.ip()) {
                packet.set_dst_addr(address);
            }
            packet.fill_checksum();
            usize::from(packet.header_len())
        }
        _ => {
            let mut packet = Ipv6Packet::new_checked(&mut *ip).ok()?;
            if let Some(IpAddr::V6(address)) = from.map(|from| from.ip()) {
                packet.set_src_addr(address);
            }
            if let Some(IpAddr::V6(address)) = to.map(|to| to.ip()) {
                packet.set_dst_addr(address);
            }
            packet.header_len()
        }
    };
    let mut tcp = TcpPacket::new_checked(ip.get_mut(header..)?).ok()?;
    if let Some(from) = from {
        tcp.set_src_port(from.port());
    }
    if let Some(to) = to {
        tcp.set_dst_port(to.port());
    }
    Some(())
}

/// State of the transport checksum of an outgoing packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sum {
    /// Filled in.
    There,
    /// Left out: the kernel takes the packet as one between its own programs.
    LeftOut,
}

/// Writes the headers before an IP packet that begins at [`HEAD`] of `frame`.
pub(crate) fn front(frame: &mut [u8], mac: [u8; 6], sum: Sum) -> Option<()> {
    let (version, header) = match frame.get(HEAD)? >> 4 {
        4 => (IPV4, usize::from(frame.get(HEAD)? & 15).checked_mul(4)?),
        _ => (IPV6, 40),
    };
    let start = u16::try_from(ETHERNET.checked_add(header)?).ok()?.to_ne_bytes();
    frame.get_mut(..HEAD)?.fill(0);
    if sum == Sum::LeftOut {
        // Where the TCP header begins after the Ethernet header, and where in it the checksum is.
        *frame.first_mut()? = NEEDS_CHECKSUM;
        frame.get_mut(6..8)?.copy_from_slice(&start);
        frame.get_mut(8..10)?.copy_from_slice(&16_u16.to_ne_bytes());
    }
    frame.get_mut(VNET..VNET + 6)?.copy_from_slice(&mac);
    // The address of this side; bit 2 of the first byte marks it as locally administered.
    frame.get_mut(VNET + 6..VNET + 12)?.copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame.get_mut(VNET + 12..HEAD)?.copy_from_slice(&version);
    Some(())
}

/// Builds a frame with an IP packet of `protocol` around `payload`, and fills in the checksum at
/// `sum_at`.
fn built(
    source: IpAddr,
    destination: IpAddr,
    protocol: IpProtocol,
    payload: &[u8],
    sum_at: usize,
) -> Option<Vec<u8>> {
    let header = if source.is_ipv4() { 20 } else { 40 };
    let mut frame = vec![0; HEAD.checked_add(header)?];
    frame.extend_from_slice(payload);
    let ip = frame.get_mut(HEAD..)?;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let total = u16::try_from(ip.len()).ok()?;
            let mut packet = Ipv4Packet::new_unchecked(&mut *ip);
            packet.set_version(4);
            packet.set_header_len(20);
            packet.set_total_len(total);
            packet.set_hop_limit(64);
            packet.set_next_header(protocol);
            packet.set_src_addr(source);
            packet.set_dst_addr(destination);
            packet.fill_checksum();
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let length = u16::try_from(payload.len()).ok()?;
            let mut packet = Ipv6Packet::new_unchecked(&mut *ip);
            packet.set_version(6);
            packet.set_payload_len(length);
            packet.set_hop_limit(64);
            packet.set_next_header(protocol);
            packet.set_src_addr(source);
            packet.set_dst_addr(destination);
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    }
    let body = ip.get_mut(header..)?;
    body.get_mut(sum_at..sum_at.checked_add(2)?)?.fill(0);
    let mut sums = vec![checksum::data(body)];
    // Only the checksum of ICMP over IPv4 does not cover the addresses.
    if protocol != IpProtocol::Icmp {
        let length = u32::try_from(body.len()).ok()?;
        sums.push(checksum::pseudo_header(&source.into(), &destination.into(), protocol, length));
    }
    let sum = match !checksum::combine(&sums) {
        // Zero means "no checksum" (RFC 768).
        0 => 0xffff,
        sum => sum,
    };
    body.get_mut(sum_at..sum_at.checked_add(2)?)?.copy_from_slice(&sum.to_be_bytes());
    Some(frame)
}

/// Builds a datagram.
pub(crate) fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(payload.len().checked_add(8)?).ok()?;
    let mut udp = Vec::with_capacity(payload.len().checked_add(8)?);
    for field in [from.port(), to.port(), length, 0] {
        udp.extend_from_slice(&field.to_be_bytes());
    }
    udp.extend_from_slice(payload);
    built(from.ip(), to.ip(), IpProtocol::Udp, &udp, 6)
}

/// Builds an ICMP or ICMPv6 message, by the family of the addresses. `message` begins with type and
/// code.
pub(crate) fn icmp(from: IpAddr, to: IpAddr, message: &[u8]) -> Option<Vec<u8>> {
    let protocol = if from.is_ipv4() { IpProtocol::Icmp } else { IpProtocol::Icmpv6 };
    built(from, to, protocol, message, 2)
}

/// Builds an echo message: a request or a reply by `kind`.
pub(crate) fn echo_message(kind: u8, ident: u16, sequence: u16, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend_from_slice(&ident.to_be_bytes());
    message.extend_from_slice(&sequence.to_be_bytes());
    message.extend_from_slice(payload);
    message
}

/// Why a packet was not delivered, as reported to the sender's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undelivered {
    /// Forbidden by an administrator.
    Denied,
    NoNetwork,
    NoHost,
}

impl Undelivered {
    /// Returns type and code (RFC 792, RFC 1812, RFC 4443).
    fn codes(self, v4: bool) -> [u8; 2] {
        match (self, v4) {
            (Self::Denied, true) => [3, 13],
            (Self::NoNetwork, true) => [3, 0],
            (Self::NoHost, true) => [3, 1],
            (Self::Denied, false) => [1, 1],
            (Self::NoNetwork, false) => [1, 0],
            (Self::NoHost, false) => [1, 3],
        }
    }
}

/// Builds the error about a packet of the cell, `quoted` from its IP header on.
pub(crate) fn undelivered(quoted: &[u8], to: IpAddr, reason: Undelivered) -> Option<Vec<u8>> {
    let [kind, code] = reason.codes(to.is_ipv4());
    error(of_family(GATEWAY, to), to, [kind, code, 0, 0, 0, 0, 0, 0], quoted)
}

/// Builds an ICMP error from `from`, whose first eight bytes are `start`.
pub(crate) fn error(from: IpAddr, to: IpAddr, start: [u8; 8], quoted: &[u8]) -> Option<Vec<u8>> {
    // Maximum length that an error may quote (RFC 1812, 4.3.2.3; RFC 4443, 2.4).
    let max_quoted = if to.is_ipv4() { 548 } else { 1_232 };
    let mut message = start.to_vec();
    message.extend_from_slice(quoted.get(..max_quoted).unwrap_or(quoted));
    icmp(from, to, &message)
}

/// Builds the segment with which a closed port answers (RFC 9293, 3.10.7.1).
pub(crate) fn reset(ip: &[u8], packet: &Packet) -> Option<Vec<u8>> {
    let header = packet_header(ip)?;
    let segment = TcpPacket::new_checked(ip.get(header..)?).ok()?;
    if segment.rst() {
        return None;
    }
    let mut bytes = [0; 20];
    let mut answer = TcpPacket::new_unchecked(&mut bytes);
    answer.set_src_port(segment.dst_port());
    answer.set_dst_port(segment.src_port());
    answer.set_header_len(20);
    answer.set_rst(true);
    if segment.ack() {
        answer.set_seq_number(segment.ack_number());
    } else {
        answer.set_ack(true);
        answer.set_ack_number(segment.seq_number() + segment.segment_len());
    }
    built(packet.destination, packet.source, IpProtocol::Tcp, &bytes, 16)
}

/// Returns the length of a packet's IP header.
fn packet_header(ip: &[u8]) -> Option<usize> {
    match ip.first()? >> 4 {
        4 => Some(usize::from(ip.first()? & 15).checked_mul(4)?),
        _ => Some(40),
    }
}
