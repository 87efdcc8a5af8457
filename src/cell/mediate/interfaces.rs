//! Opens the sockets by which programs ask for the network interfaces, addresses and routes of their
//! cell: route netlink (rtnetlink(7)), the only kind of netlink that a cell has.
//!
//! Without a capability the kernel lets such a socket ask and not change, in the network namespace in
//! which it was made. Init makes each one, for three reasons:
//!
//! - Some answers are about the whole machine, such as the number of its neighbours. A filter on the
//!   socket, which the program cannot remove, cuts every answer of another kind than [`PASSED`] down
//!   to its header, so that a program which waits for one gets an error and does not hang.
//! - The answers that a program leaves unread are in no account of a control group. So a cell has at
//!   most [`MAX_COUNTED`](super::counted::MAX_COUNTED) of these sockets.
//! - One call can send many requests, which the kernel answers without a pause. The send buffer, which
//!   bounds a message, is as small as the kernel allows.

use nix::errno::Errno;
use nix::sys::socket::{SockFlag, SockType};
use syscalls::Sysno;

use super::handlers::Handlers;
use super::response::{CallError, Response};
use model::profile::condition::{Op, Test, Verdict};
use sys::bpf::Instruction;
use sys::rtnetlink::{self, HEADER};

/// The system calls by which init makes and counts these sockets. The filter of init allows the first
/// two for this alone (`seccomp::init_filter`).
pub(super) const CALLS: [Sysno; 7] = [
    Sysno::socket,
    Sysno::setsockopt,
    Sysno::epoll_create1,
    Sysno::epoll_ctl,
    Sysno::openat,
    Sysno::read,
    Sysno::fchdir,
];

/// Sockets of the families inet and inet6, as arguments of socket(2).
const INET: [[u64; 6]; 2] = [[2, 1, 0, 0, 0, 0], [10, 1, 0, 0, 0, 0]];

/// Kinds of messages that a program receives whole: errors, the end of a list, and new and removed
/// links, addresses, routes, neighbours and rules (linux/netlink.h, linux/rtnetlink.h).
const PASSED: [u16; 12] = [2, 3, 16, 17, 20, 21, 24, 25, 28, 29, 32, 33];

/// Makes the filter notify init of route netlink, given the verdict on socket(2). Returns the verdict
/// on the calls that init serves; `None` if the profile has no sockets of the internet.
pub(super) fn take(verdict: &mut Verdict) -> Option<Verdict> {
    if !INET.iter().any(|kind| verdict.allows(kind)) {
        return None;
    }
    // Without mediation, the question is answered as by a kernel without netlink.
    let Verdict::AllowOrProbe(others, _) = verdict else { return None };
    *verdict = Verdict::AllowIf(std::mem::take(others));
    Some(Verdict::AllowIf([libc::SOCK_RAW, libc::SOCK_DGRAM].map(route_netlink).into()))
}

/// Returns the tests for socket(2) of route netlink. The kernel makes no difference between the two
/// types, and programs use both.
fn route_netlink(kind: i32) -> Vec<Test> {
    let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).cast_unsigned();
    vec![
        Test::low(0, Op::Eq, libc::AF_NETLINK.cast_unsigned()),
        Test::besides(1, flags, kind.cast_unsigned()),
        Test::low(2, Op::Eq, libc::NETLINK_ROUTE.cast_unsigned()),
    ]
}

/// Serves socket(2) of route netlink; `kind` is the type with its flags.
///
/// # Errors
/// ENOBUFS: the cell already has the maximum number of these sockets.
pub(super) fn open(handlers: &Handlers<'_>, kind: i32) -> std::result::Result<Response, CallError> {
    if !handlers.route_sockets.has_room(&handlers.name_guard)? {
        return Err(CallError::Errno(Errno::ENOBUFS));
    }
    let is_raw = kind & 0xf == libc::SOCK_RAW;
    let socket = rtnetlink::open_filtered(
        if is_raw { SockType::Raw } else { SockType::Datagram },
        SockFlag::from_bits_truncate(kind & libc::SOCK_NONBLOCK),
        &filter(),
    )?;
    handlers.route_sockets.add(&socket)?;
    Ok(Response::Descriptor(socket, kind & libc::SOCK_CLOEXEC))
}

/// Passes messages whose first part is of a kind in [`PASSED`], and cuts others down to the header.
/// The kernel never mixes kinds in one message, but for the end of a list.
fn filter() -> Vec<Instruction> {
    const LOAD_HALF: u16 = 0x28;
    const EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// Offset of the kind, which is in the byte order of the machine. A filter loads big-endian.
    const KIND: u32 = 4;
    let step = |code, yes, k| Instruction { code, jt: yes, jf: 0, k };
    let mut program = vec![step(LOAD_HALF, 0, KIND)];
    program.extend(
        (1..=12).rev().zip(PASSED).map(|(skip, kind)| step(EQUAL, skip, u32::from(kind.to_be()))),
    );
    program.extend([step(RETURN, 0, HEADER), step(RETURN, 0, u32::MAX)]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::profile::condition::Probe;

    /// Returns the number of bytes that the filter leaves of a message of this kind.
    fn left(kind: u16) -> u32 {
        let program = filter();
        let mut counter = 1;
        loop {
            let step = program.get(counter).expect("a program ends with a return");
            if step.code == 0x06 {
                return step.k;
            }
            let is_equal = step.k == u32::from(kind.to_be());
            counter += 1 + usize::from(if is_equal { step.jt } else { step.jf });
        }
    }

    #[test]
    fn only_listed_answers_arrive_whole() {
        let whole: Vec<u16> = (0..=u16::MAX).filter(|kind| left(*kind) == u32::MAX).collect();
        assert_eq!(whole, PASSED);
        // The parameters of neighbour tables, which count the neighbours of the machine, and the
        // numbers of other namespaces.
        assert_eq!([64, 88].map(left), [HEADER, HEADER]);
    }

    #[test]
    fn init_is_asked_about_route_netlink_where_the_profile_has_the_internet() {
        let probe = || Probe { when: vec![route_netlink(libc::SOCK_RAW)], errno: 97 };
        let allows = |family| vec![vec![Test::low(0, Op::Eq, family)]];
        let mut unix = Verdict::AllowOrProbe(allows(1), probe());
        assert_eq!(take(&mut unix), None);
        assert_eq!(unix.quiet(&[16, 3, 0, 0, 0, 0]), Some(97), "answered as before");
        let mut inet = Verdict::AllowOrProbe(allows(2), probe());
        let asked = take(&mut inet).expect("a profile with the internet");
        for kind in [3, 2, 3 | 0o2_000_000, 2 | 0o4_000, 3 | 1 << 40] {
            let arguments = [16, kind, 0, 0, 0, 0];
            assert!(asked.allows(&arguments), "{kind:#o}");
            assert!(!inet.allows(&arguments) && inet.quiet(&arguments).is_none(), "{kind:#o}");
        }
        // Other protocols, types and families: packets, Bluetooth.
        for arguments in (1..64).map(|protocol| [16, 3, protocol, 0, 0, 0]) {
            assert!(!asked.allows(&arguments));
        }
        for arguments in [[16, 1, 0], [16, 5, 0], [17, 3, 0], [31, 3, 0], [2, 3, 0], [1, 2, 0]] {
            let [family, kind, protocol] = arguments;
            assert!(!asked.allows(&[family, kind, protocol, 0, 0, 0]));
        }
    }
}
