//! Asks the kernel for routes, to find out which addresses are the host's own (rtnetlink(7)).

use std::cell::Cell;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use model::egress::never;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    socket,
};

/// How the host would send to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Sent to another machine.
    Remote,
    /// An address of the host itself, or a broadcast or multicast address.
    Own,
    /// No route, for this reason.
    None(Errno),
}

/// The kernel's routing table, queried over a netlink socket.
#[derive(Debug)]
pub(crate) struct Routes {
    socket: OwnedFd,
    /// Sequence number of the last question.
    sequence: Cell<u32>,
}

// From linux/rtnetlink.h and linux/netlink.h.
const RTM_GETROUTE: u16 = 26;
const RTM_NEWROUTE: u16 = 24;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
const RTN_UNICAST: u8 = 1;
/// Sizes of nlmsghdr and of rtmsg.
const HEADER: usize = 16;
/// Offset of `nlmsg_seq` in a message.
const SEQUENCE_AT: usize = 8;
/// Offset of `rtm_type` in an answer.
const TYPE_AT: usize = HEADER + 7;

impl Routes {
    /// Opens the socket. It can only query: the gateway has no capability in the host's network
    /// namespace.
    ///
    /// # Errors
    /// The errno of socket(2) or connect(2).
    pub(crate) fn open() -> Result<Self, Errno> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        connect(socket.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self { socket, sequence: Cell::default() })
    }

    /// Returns the route to an address. An IPv6 address that embeds an IPv4 address of the host
    /// counts as the host's own: a translator would route its packets back.
    ///
    /// # Errors
    /// The errno of a failed query; the caller must assume that the route leads to the host.
    pub(crate) fn route_to(&self, address: IpAddr) -> Result<Route, Errno> {
        let meant = never::meant(address);
        match (meant != address).then(|| self.query(meant)).transpose()? {
            Some(Route::Own) => Ok(Route::Own),
            Some(Route::Remote | Route::None(_)) | None => self.query(address),
        }
    }

    /// Queries the route to one address as it is spelt.
    ///
    /// # Errors
    /// The errno of a failed query, or EPROTO for an answer that cannot be parsed.
    fn query(&self, address: IpAddr) -> Result<Route, Errno> {
        let number = self.sequence.get().wrapping_add(1);
        self.sequence.set(number);
        send(self.socket.as_raw_fd(), &question(address, number), MsgFlags::empty())?;
        let mut answer = [0; 1_024];
        loop {
            let length = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            let answer = answer.get(..length).unwrap_or_default();
            // Skips the answer to an earlier query that failed midway: it is about another address.
            if sequence_of(answer).ok_or(Errno::EPROTO)? == number {
                return read(answer).ok_or(Errno::EPROTO);
            }
        }
    }
}

impl AsFd for Routes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the sequence number in an answer.
fn sequence_of(answer: &[u8]) -> Option<u32> {
    let field = answer.get(SEQUENCE_AT..SEQUENCE_AT + 4)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

/// Returns the message that asks for the route to an address.
fn question(address: IpAddr, number: u32) -> Vec<u8> {
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    let (family, octets, bits) = match address {
        IpAddr::V4(v4) => (AF_INET, v4.octets().to_vec(), 32),
        IpAddr::V6(v6) => (AF_INET6, v6.octets().to_vec(), 128_u8),
    };
    let attribute = u16::try_from(octets.len().saturating_add(4)).unwrap_or(u16::MAX);
    let length = u32::from(attribute).saturating_add(28);
    let mut message = length.to_ne_bytes().to_vec();
    for field in [RTM_GETROUTE, NLM_F_REQUEST] {
        message.extend_from_slice(&field.to_ne_bytes());
    }
    // nlmsg_seq, and nlmsg_pid 0: the kernel knows the sender.
    for field in [number, 0] {
        message.extend_from_slice(&field.to_ne_bytes());
    }
    // struct rtmsg: family and prefix length of the destination; the other fields are zero.
    message.extend_from_slice(&[family, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&attribute.to_ne_bytes());
    message.extend_from_slice(&RTA_DST.to_ne_bytes());
    message.extend_from_slice(&octets);
    message
}

/// Parses an answer.
fn read(answer: &[u8]) -> Option<Route> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    match kind {
        RTM_NEWROUTE if *answer.get(TYPE_AT)? == RTN_UNICAST => Some(Route::Remote),
        RTM_NEWROUTE => Some(Route::Own),
        NLMSG_ERROR => {
            let errno = i32::from_ne_bytes(answer.get(HEADER..HEADER + 4)?.try_into().ok()?);
            Some(Route::None(Errno::from_raw(errno.checked_neg()?)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_host_are_found_to_be_its_own() {
        let routes = Routes::open().expect("a socket");
        for local in ["127.0.0.1", "127.9.9.9", "::1"] {
            let address = local.parse().expect("an address");
            assert_eq!(routes.query(address), Ok(Route::Own), "{local}");
        }
        let other = "203.0.113.77".parse().expect("an address");
        let route = routes.query(other).expect("an answer");
        assert!(matches!(route, Route::Remote | Route::None(Errno::ENETUNREACH)), "{route:?}");
    }

    #[test]
    fn an_answer_to_an_earlier_question_is_dropped() {
        let routes = Routes::open().expect("a socket");
        let loopback = "127.0.0.1".parse().expect("an address");
        // The answer to this query is never read.
        let earlier = question(loopback, routes.sequence.get());
        send(routes.socket.as_raw_fd(), &earlier, MsgFlags::empty()).expect("asked");
        let other = "203.0.113.77".parse().expect("an address");
        let route = routes.query(other).expect("an answer");
        assert!(matches!(route, Route::Remote | Route::None(Errno::ENETUNREACH)), "{route:?}");
        assert_eq!(routes.query(loopback), Ok(Route::Own));
    }

    #[test]
    fn a_truncated_answer_is_refused() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[0; 20]), None);
    }
}
