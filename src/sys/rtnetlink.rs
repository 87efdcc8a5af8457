//! Sockets of route netlink, and messages that create links, addresses and routes in a network
//! namespace (rtnetlink(7)).

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket, sockopt,
};

use super::Result;
use super::bpf::Instruction;
use super::net::attach_filter;
use super::socket::{PacketWait, receive, send};

const NEW_LINK: u16 = 16;
const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
const REQUEST_ACK: u16 = 0x5;
const CREATE_EXCLUSIVE: u16 = 0x600;
/// Size of a message header.
pub const HEADER: u32 = 16;
const HEADER_BYTES: usize = 16;

/// Requests that are sent to the kernel in one packet, and answered one by one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RouteRequests {
    bytes: Vec<u8>,
    count: usize,
}

/// Where an address is valid (rtnetlink(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressScope {
    Global,
    /// Only within the host, as the addresses of the loopback.
    Host,
}

/// Opens a socket for requests in the caller's network namespace.
///
/// # Errors
/// The errno of socket(2).
pub fn open() -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)
}

/// Opens a socket for requests of another process in the caller's network namespace. `filter` decides
/// how much of each answer arrives, and one message has as few requests as the kernel can be limited
/// to: with the smallest send buffer, 4,576 bytes.
///
/// # Errors
/// The errno of socket(2) or setsockopt(2).
pub fn open_filtered(kind: SockType, flags: SockFlag, filter: &[Instruction]) -> Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    let opened = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkRoute)?;
    attach_filter(&opened, filter)?;
    setsockopt(&opened, sockopt::SndBuf, &0)?;
    Ok(opened)
}

impl RouteRequests {
    /// Adds a request to create a link; `body` is the whole message.
    pub fn new_link(&mut self, body: &[u8]) {
        self.add(NEW_LINK, CREATE_EXCLUSIVE, body);
    }

    /// Adds a request to change a link.
    pub fn set_link(&mut self, body: &[u8]) {
        self.add(SET_LINK, 0, body);
    }

    /// Adds a request to give a link an address with a prefix of `bits`. Skips duplicate address
    /// detection: no other host is on the link.
    pub fn new_address(
        &mut self,
        index: u32,
        family: u8,
        bits: u8,
        scope: AddressScope,
        address: &[u8],
    ) {
        const ADDRESS: u16 = 1;
        const LOCAL: u16 = 2;
        const NO_DETECTION: u8 = 2;
        let scope = match scope {
            AddressScope::Global => 0,
            AddressScope::Host => 254,
        };
        let mut body = vec![family, bits, NO_DETECTION, scope];
        body.extend(index.to_ne_bytes());
        attribute(&mut body, LOCAL, address);
        attribute(&mut body, ADDRESS, address);
        self.add(NEW_ADDRESS, CREATE_EXCLUSIVE, &body);
    }

    /// Adds a default route over a link for one address family, in the main table.
    pub fn new_default_route(&mut self, index: u32, family: u8, gateway: &[u8]) {
        const OUT: u16 = 4;
        const GATEWAY: u16 = 5;
        let main = 254;
        let boot = 3;
        let unicast = 1;
        let mut body = vec![family, 0, 0, 0, main, boot, 0, unicast, 0, 0, 0, 0];
        attribute(&mut body, OUT, &index.to_ne_bytes());
        attribute(&mut body, GATEWAY, gateway);
        self.add(NEW_ROUTE, CREATE_EXCLUSIVE, &body);
    }

    fn add(&mut self, kind: u16, flags: u16, body: &[u8]) {
        let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((REQUEST_ACK | flags).to_ne_bytes());
        // Sequence number and sender pid, both unused.
        self.bytes.extend([0; 8]);
        self.bytes.extend(body);
        self.count += 1;
    }

    /// Sends all requests, without allocating.
    ///
    /// # Errors
    /// The first error among the answers, after reading all of them.
    pub fn send(&self, route: &OwnedFd) -> Result<()> {
        send(route, &self.bytes, &[])?;
        let mut first = Ok(());
        let mut room = [0; 4096];
        for _ in 0..self.count {
            let received = receive(route, &mut room, PacketWait::Yes)?;
            let answer = room.get(..received.bytes).unwrap_or_default();
            let errno =
                answer.get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|bytes| bytes.try_into().ok());
            let errno = errno.map(i32::from_ne_bytes).ok_or(Errno::EPROTO)?;
            if errno != 0 && first.is_ok() {
                first = Err(Errno::from_raw(-errno));
            }
        }
        first
    }
}

/// Appends an attribute, padded to four bytes.
pub fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Builds an ifinfomsg.
pub fn link(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(index.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(change.to_ne_bytes());
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_states_its_length() {
        let mut requests = RouteRequests::default();
        let mut body = link(2, 1, 1);
        attribute(&mut body, 3, b"eth0\0");
        requests.new_link(&body);
        requests.set_link(&link(2, 1, 1));
        requests.new_address(2, 2, 24, AddressScope::Host, &[10, 0, 2, 15]);
        requests.new_default_route(2, 10, &[0xfd; 16]);
        let mut at = 0;
        let mut seen = 0;
        while let Some(length) = requests.bytes.get(at..at + 4) {
            let length = u32::from_ne_bytes(length.try_into().expect("four bytes"));
            assert!(length.is_multiple_of(4) && length > 16, "{length}");
            at += usize::try_from(length).expect("a length");
            seen += 1;
        }
        assert_eq!((seen, requests.count, at), (4, 4, requests.bytes.len()));
    }
}
