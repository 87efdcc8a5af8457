//! Makes and connects the sockets that workers ask for, after judging each destination.
//!
//! A worker parses bytes of cells and servers and may be taken over by them; the gateway parses
//! neither. So a worker may not call socket(2), connect(2), or sendto(2) with an address: it asks
//! the gateway, which returns a connected socket. One thing cannot be checked here: for which name
//! an address was resolved, as only a worker reads DNS answers.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use model::egress::frames::{MAX_ADDRESSES, SocketAnswer, SocketRequest};
use model::egress::{Egress, Only, Protocol};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, connect, setsockopt,
    socket, sockopt,
};

use crate::routes::{Route, Routes};
use crate::worker::judge;

/// Makes sockets for workers.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) routes: Routes,
    resolvers: Vec<SocketAddr>,
}

/// An answer and the socket that is sent along with it.
pub(crate) type AnswerWithSocket = (SocketAnswer, Option<OwnedFd>);

impl Connector {
    /// Opens the routing socket.
    ///
    /// # Errors
    /// The errno of the call that failed.
    pub(crate) fn new(resolvers: Vec<SocketAddr>) -> Result<Self, Errno> {
        Ok(Self { routes: Routes::open()?, resolvers })
    }

    /// Answers a request of a worker whose cell has this network, narrowed to what the current call
    /// may reach.
    pub(crate) fn answer(
        &self,
        egress: &Egress,
        only: Option<&Only>,
        request: SocketRequest,
    ) -> AnswerWithSocket {
        match request {
            // Otherwise rules for IPv6 would judge it while the kernel connects to the embedded
            // IPv4 address (ipv6(7)).
            SocketRequest::Destination { to: SocketAddr::V6(to), .. }
                if to.ip().to_ipv4_mapped().is_some() =>
            {
                refused("an IPv4 address in the spelling of IPv6")
            }
            SocketRequest::Destination { protocol, to } => {
                let port = (protocol != Protocol::Icmp).then_some(to.port());
                match judge::could_reach(egress, only, protocol, to.ip(), port) {
                    Ok(()) => self.routed(protocol, to),
                    Err(reason) => refused(&reason),
                }
            }
            SocketRequest::Resolver { protocol, index } => {
                let resolver = self.resolvers.get(usize::from(index));
                match resolver.filter(|_| protocol != Protocol::Icmp) {
                    Some(resolver) => make_socket(protocol, *resolver),
                    None => refused("no resolver"),
                }
            }
            SocketRequest::Own { addresses } => {
                let is_own = |address| match self.routes.route_to(address) {
                    Ok(Route::Remote | Route::None(_)) => false,
                    // If the query fails, the route may lead to the host.
                    Ok(Route::Own) | Err(_) => true,
                };
                let own = addresses.into_iter().take(MAX_ADDRESSES).map(is_own).collect();
                (SocketAnswer::Own { own }, None)
            }
        }
    }

    /// Makes a socket to a destination whose route leads to another machine. Called after the rules
    /// allow the destination, so that a refusal does not reveal which addresses are the host's.
    fn routed(&self, protocol: Protocol, to: SocketAddr) -> AnswerWithSocket {
        match self.routes.route_to(to.ip()) {
            Ok(Route::Remote) => make_socket(protocol, to),
            Ok(Route::Own) => refused("never reached: an address of this host"),
            Ok(Route::None(errno)) => (SocketAnswer::NoRoute { errno: sys::raw(errno) }, None),
            Err(_) => refused("the host's routes cannot be read"),
        }
    }
}

fn refused(reason: &str) -> AnswerWithSocket {
    (SocketAnswer::Refused { why: reason.to_owned() }, None)
}

fn make_socket(protocol: Protocol, to: SocketAddr) -> AnswerWithSocket {
    match open_connected(protocol, to) {
        Ok(socket) => (SocketAnswer::Socket, Some(socket)),
        Err(errno) => (SocketAnswer::Failed { errno: sys::raw(errno) }, None),
    }
}

/// Opens a socket and connects it. There is no bind(2): the kernel chooses the local address and
/// port. The socket does not block, so a TCP connection may still be in progress; UDP and ICMP
/// sockets report errors (IP_RECVERR).
fn open_connected(protocol: Protocol, to: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let (kind, number) = match (protocol, to) {
        (Protocol::Tcp, _) => (SockType::Stream, SockProtocol::Tcp),
        (Protocol::Udp, _) => (SockType::Datagram, SockProtocol::Udp),
        (Protocol::Icmp, SocketAddr::V4(_)) => (SockType::Datagram, SockProtocol::Icmp),
        (Protocol::Icmp, SocketAddr::V6(_)) => (SockType::Datagram, SockProtocol::IcmpV6),
    };
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, number)?;
    match (protocol, to) {
        (Protocol::Tcp, _) => setsockopt(&socket, sockopt::TcpNoDelay, &true)?,
        (Protocol::Udp | Protocol::Icmp, SocketAddr::V4(_)) => {
            setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
        }
        (Protocol::Udp | Protocol::Icmp, SocketAddr::V6(_)) => {
            setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
        }
    }
    let number = socket.as_fd().as_raw_fd();
    let began = match to {
        SocketAddr::V4(to) => connect(number, &SockaddrIn::from(to)),
        SocketAddr::V6(to) => connect(number, &SockaddrIn6::from(to)),
    };
    match began {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use model::egress::{EgressRule, NetworkClass, Protocols};

    use super::*;

    fn rule(hosts: &[&str], nets: &[&str], protocols: Protocols) -> EgressRule {
        EgressRule {
            id: "lab".to_owned(),
            hosts: hosts.iter().map(|host| host.parse().expect("a host")).collect(),
            nets: nets.iter().map(|net| net.parse().expect("a net")).collect(),
            ports: vec!["80".parse().expect("a port")],
            protocols,
            http: Vec::new(),
            secret: None,
            why: String::new(),
        }
    }

    fn egress(rule: EgressRule) -> Egress {
        Egress { class: NetworkClass::AllowList, rules: vec![rule], ..Egress::default() }
    }

    fn answer_to(
        egress: &Egress,
        only: Option<&Only>,
        protocol: Protocol,
        to: &str,
    ) -> SocketAnswer {
        let connector = Connector::new(Vec::new()).expect("a socket");
        let to = to.parse().expect("an address");
        connector.answer(egress, only, SocketRequest::Destination { protocol, to }).0
    }

    /// Returns true if the worker may reach the destination: this machine may lack a route to it.
    fn lets_out(answer: &SocketAnswer) -> bool {
        match answer {
            SocketAnswer::Socket | SocketAnswer::NoRoute { .. } | SocketAnswer::Failed { .. } => {
                true
            }
            SocketAnswer::Refused { .. } | SocketAnswer::Own { .. } => false,
        }
    }

    #[test]
    fn a_compromised_worker_reaches_only_what_a_rule_could_mean() {
        let by_net = egress(rule(&[], &["203.0.113.0/24"], Protocols::TCP));
        assert!(lets_out(&answer_to(&by_net, None, Protocol::Tcp, "203.0.113.7:80")));
        for (protocol, to) in [
            (Protocol::Tcp, "203.0.113.7:81"),
            (Protocol::Tcp, "203.0.112.7:80"),
            (Protocol::Udp, "203.0.113.7:80"),
            (Protocol::Icmp, "203.0.113.7:0"),
            (Protocol::Tcp, "127.0.0.1:80"),
            (Protocol::Tcp, "169.254.169.254:80"),
            (Protocol::Tcp, "[::ffff:127.0.0.1]:80"),
            (Protocol::Udp, "10.0.2.3:53"),
        ] {
            let answer = answer_to(&by_net, None, protocol, to);
            assert!(!lets_out(&answer), "{protocol:?} {to}: {answer:?}");
        }
        // A rule by name allows any address, as only the worker knows what the name was resolved
        // to. A private address is allowed if the rule spells the name out, and refused below a
        // wildcard.
        let by_name = egress(rule(&["a.org"], &[], Protocols::TCP));
        for to in ["203.0.113.7:80", "10.1.2.3:80", "192.168.1.1:80", "[fd12::1]:80"] {
            assert!(lets_out(&answer_to(&by_name, None, Protocol::Tcp, to)), "{to}");
        }
        for to in ["10.1.2.3:81", "100.64.1.1:80", "169.254.169.254:80", "127.0.0.1:80"] {
            assert!(!lets_out(&answer_to(&by_name, None, Protocol::Tcp, to)), "{to}");
        }
        let below = egress(rule(&["*.a.org"], &[], Protocols::TCP));
        assert!(lets_out(&answer_to(&below, None, Protocol::Tcp, "203.0.113.7:80")));
        for to in ["10.1.2.3:80", "192.168.1.1:80", "100.64.1.1:80"] {
            assert!(!lets_out(&answer_to(&below, None, Protocol::Tcp, to)), "{to}");
        }
    }

    #[test]
    fn no_rule_for_ipv6_reaches_an_ipv4_address() {
        let mut every = rule(&[], &["::/0"], Protocols::TCP);
        every.protocols.udp = true;
        let any = Egress { class: NetworkClass::Any, ..Egress::default() };
        for egress in [egress(every), any] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                // Positive control: each of them reaches a native IPv6 address.
                let native = answer_to(&egress, None, protocol, "[2001:db8::7]:80");
                assert!(lets_out(&native), "{protocol:?}: {native:?}");
                for to in ["[::ffff:10.1.2.3]:80", "[::ffff:203.0.113.7]:80"] {
                    let answer = answer_to(&egress, None, protocol, to);
                    assert!(!lets_out(&answer), "{protocol:?} {to}: {answer:?}");
                }
            }
        }
    }

    #[test]
    fn a_narrowed_call_narrows_its_worker() {
        let by_net = egress(rule(&[], &["203.0.113.0/24"], Protocols::TCP));
        let narrowed = |only: Only| {
            let to = "203.0.113.7:80";
            assert!(lets_out(&answer_to(&by_net, None, Protocol::Tcp, to)));
            lets_out(&answer_to(&by_net, Some(&only), Protocol::Tcp, to))
        };
        let nets = |net: &str| vec![net.parse().expect("a net")];
        assert!(narrowed(Only::default()));
        assert!(narrowed(Only { nets: nets("203.0.113.7"), ..Only::default() }));
        for only in [
            Only { rules: Some(Vec::new()), ..Only::default() },
            Only { nets: nets("203.0.113.8"), ..Only::default() },
            Only { within: nets("203.0.112.0/24"), ..Only::default() },
            Only { ports: vec!["81".parse().expect("a port")], ..Only::default() },
            Only { hosts: vec!["a.org".parse().expect("a host")], ..Only::default() },
        ] {
            assert!(!narrowed(only.clone()), "{only}");
        }
    }

    #[test]
    fn an_address_of_the_host_is_its_own_in_each_class() {
        let any = Egress { class: NetworkClass::Any, ..Egress::default() };
        let connector = Connector::new(Vec::new()).expect("a socket");
        let addresses = ["127.0.0.1", "203.0.113.7", "::ffff:127.0.0.1"];
        let addresses = addresses.map(|one| one.parse().expect("an address")).to_vec();
        let (answer, _) = connector.answer(&any, None, SocketRequest::Own { addresses });
        assert_eq!(answer, SocketAnswer::Own { own: vec![true, false, true] });
        let (answer, socket) = connector.answer(
            &any,
            None,
            SocketRequest::Resolver { protocol: Protocol::Udp, index: 0 },
        );
        assert!(matches!(answer, SocketAnswer::Refused { .. }) && socket.is_none());
    }
}
