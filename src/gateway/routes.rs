//! The host's routes: which addresses are its own (rtnetlink(7)).

use std::cell::Cell;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use model::egress::never;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, connect, recv, send,
    socket,
};

/// Kind of route by which the host would send to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// To another machine.
    Onwards,
    /// The address is the host's own, or stands for many.
    Own,
    /// There is none.
    None(Errno),
}

/// The kernel's routing table, asked over a socket.
#[derive(Debug)]
pub(crate) struct Routes {
    socket: OwnedFd,
    /// Number of the last question.
    asked: Cell<u32>,
}

// From linux/rtnetlink.h and linux/netlink.h.
const RTM_GETROUTE: u16 = 26;
const RTM_NEWROUTE: u16 = 24;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
const RTN_UNICAST: u8 = 1;
/// Bytes of nlmsghdr, and of rtmsg.
const HEADER: usize = 16;
/// Place of `nlmsg_seq` in a message.
const SEQUENCE_AT: usize = 8;
/// Place of `rtm_type` in an answer.
const TYPE_AT: usize = HEADER + 7;

impl Routes {
    /// Opens the socket, which only asks: the gateway has no capability in the host's network.
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
        Ok(Self { socket, asked: Cell::default() })
    }

    /// Returns the route to an address; the host's own address is its own in each spelling of IPv6 too, whose packets a
    /// translator would bring back.
    ///
    /// # Errors
    /// As of a question to the kernel: the route may lead to the host then.
    pub(crate) fn of(&self, address: IpAddr) -> Result<Route, Errno> {
        let meant = never::meant(address);
        match (meant != address).then(|| self.to(meant)).transpose()? {
            Some(Route::Own) => Ok(Route::Own),
            Some(Route::Onwards | Route::None(_)) | None => self.to(address),
        }
    }

    /// Returns the route to an address.
    ///
    /// # Errors
    /// The errno of a question that could not be asked, or EPROTO for an answer that is none.
    fn to(&self, address: IpAddr) -> Result<Route, Errno> {
        let number = self.asked.get().wrapping_add(1);
        self.asked.set(number);
        send(self.socket.as_raw_fd(), &question(address, number), MsgFlags::empty())?;
        let mut answer = [0; 1_024];
        loop {
            let length = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
            let answer = answer.get(..length).unwrap_or_default();
            // One to an earlier question, whose asking failed midway, would say the route of another address.
            if sequence(answer).ok_or(Errno::EPROTO)? == number {
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

/// Returns the number of the question that this answers.
fn sequence(answer: &[u8]) -> Option<u32> {
    let field = answer.get(SEQUENCE_AT..SEQUENCE_AT + 4)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

/// Returns the message that asks for the route to an address, with the number of the question.
fn question(address: IpAddr, number: u32) -> Vec<u8> {
    let (family, octets, bits) = match address {
        IpAddr::V4(v4) => (2_u8, v4.octets().to_vec(), 32_u8),
        IpAddr::V6(v6) => (10, v6.octets().to_vec(), 128),
    };
    let attribute = u16::try_from(octets.len().saturating_add(4)).unwrap_or(u16::MAX);
    let length = u32::from(attribute).saturating_add(28);
    let mut message = length.to_ne_bytes().to_vec();
    for field in [RTM_GETROUTE, NLM_F_REQUEST] {
        message.extend_from_slice(&field.to_ne_bytes());
    }
    // From nobody in particular.
    for field in [number, 0] {
        message.extend_from_slice(&field.to_ne_bytes());
    }
    // struct rtmsg: family and length of the destination; the rest is not asked for.
    message.extend_from_slice(&[family, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&attribute.to_ne_bytes());
    message.extend_from_slice(&RTA_DST.to_ne_bytes());
    message.extend_from_slice(&octets);
    message
}

/// Reads an answer.
fn read(answer: &[u8]) -> Option<Route> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    match kind {
        RTM_NEWROUTE if *answer.get(TYPE_AT)? == RTN_UNICAST => Some(Route::Onwards),
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
    fn addresses_of_the_host_are_its_own_and_others_are_not() {
        let routes = Routes::open().expect("a socket");
        for own in ["127.0.0.1", "127.9.9.9", "::1"] {
            let address = own.parse().expect("an address");
            assert_eq!(routes.to(address), Ok(Route::Own), "{own}");
        }
        let other = "203.0.113.77".parse().expect("an address");
        let route = routes.to(other).expect("an answer");
        assert!(matches!(route, Route::Onwards | Route::None(Errno::ENETUNREACH)), "{route:?}");
    }

    #[test]
    fn an_answer_to_an_earlier_question_is_dropped() {
        let routes = Routes::open().expect("a socket");
        let loopback = "127.0.0.1".parse().expect("an address");
        // Its answer is never read.
        let earlier = question(loopback, routes.asked.get());
        send(routes.socket.as_raw_fd(), &earlier, MsgFlags::empty()).expect("asked");
        let other = "203.0.113.77".parse().expect("an address");
        let route = routes.to(other).expect("an answer");
        assert!(matches!(route, Route::Onwards | Route::None(Errno::ENETUNREACH)), "{route:?}");
        assert_eq!(routes.to(loopback), Ok(Route::Own));
    }

    #[test]
    fn an_answer_that_is_cut_is_none() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[0; 20]), None);
    }
}
