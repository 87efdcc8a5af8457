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
//!   most [`MAX_COUNTED`](super::counted::MAX_COUNTED) of these sockets, and their buffers keep their
//!   sizes: where a control group lets programs set those of other sockets, init does it for them.
//! - One call can send many requests, which the kernel answers without a pause. The send buffer, which
//!   bounds a message, is as small as the kernel allows.

use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::sys::socket::{SockFlag, SockType};
use syscalls::Sysno;

use super::address::SocketArguments;
use super::caller::TargetCall;
use super::handlers::Handlers;
use super::response::{CallError, Response};
use model::profile::calls::number;
use model::profile::condition::{Op, Test, Verdict};
use sys::bpf::Instruction;
use sys::rtnetlink::{self, HEADER};
use sys::{net, remote};

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

/// The system calls by which init sets the sizes of buffers, on a copy of the caller's socket.
pub(super) const SIZE_CALLS: [Sysno; 6] = [
    Sysno::process_vm_readv,
    Sysno::pidfd_open,
    Sysno::pidfd_getfd,
    Sysno::openat,
    Sysno::getsockopt,
    Sysno::setsockopt,
];

/// Sockets of the families inet and inet6, as arguments of socket(2).
const INET: [[u64; 6]; 2] = [[2, 1, 0, 0, 0, 0], [10, 1, 0, 0, 0, 0]];

/// Kinds of messages that a program receives whole: errors, the end of a list, and new and removed
/// links, addresses, routes, neighbours and rules (linux/netlink.h, linux/rtnetlink.h).
const PASSED: [u16; 12] = [2, 3, 16, 17, 20, 21, 24, 25, 28, 29, 32, 33];

/// Returns true if a profile with these verdicts has sockets of the internet, and so an answer to the
/// question for its interfaces.
pub(super) fn are_answered(verdicts: &BTreeMap<u32, Verdict>) -> bool {
    let socket = number("socket").and_then(|number| verdicts.get(&number));
    socket.is_some_and(|socket| INET.iter().any(|kind| socket.allows(kind)))
}

/// Makes the filter notify init of route netlink, given the verdict on socket(2). Returns the verdict
/// on the calls that init serves.
pub(super) fn take(verdict: &mut Verdict) -> Option<Verdict> {
    // Without mediation, the question is answered as by a kernel without netlink.
    let Verdict::AllowOrProbe(others, _) = verdict else { return None };
    *verdict = Verdict::AllowIf(std::mem::take(others));
    Some(Verdict::AllowIf([libc::SOCK_RAW, libc::SOCK_DGRAM].map(route_netlink).into()))
}

/// Makes the filter notify init of the sizes of buffers, given the verdict on setsockopt(2). Returns
/// the verdict on the calls that init serves; `None` if setting a size is refused or has no effect.
pub(super) fn take_sizes(verdict: &mut Verdict) -> Option<Verdict> {
    let level = libc::SOL_SOCKET.cast_unsigned();
    let [send, receive] = [libc::SO_SNDBUF, libc::SO_RCVBUF].map(i32::cast_unsigned);
    let sizes = [send, receive].map(|option| [0, u64::from(level), u64::from(option), 0, 0, 0]);
    if !sizes.iter().all(|size| verdict.allows(size)) {
        return None;
    }
    let (Verdict::AllowIf(any) | Verdict::AllowOrProbe(any, _)) = verdict else { return None };
    let (about, mut others): (Vec<_>, Vec<_>) = std::mem::take(any)
        .into_iter()
        .partition(|all| sizes.iter().any(|size| all.iter().all(|test| test.holds(size))));
    const { assert!(libc::SO_SNDBUF + 1 == libc::SO_RCVBUF) };
    for all in about {
        for other in [Test::low(2, Op::Le, send - 1), Test::low(2, Op::Ge, receive + 1)] {
            others.push(all.iter().copied().chain([other]).collect());
        }
    }
    *any = others;
    let level = Test::low(1, Op::Eq, level);
    Some(Verdict::AllowIf(
        [send, receive].map(|option| vec![level, Test::low(2, Op::Eq, option)]).into(),
    ))
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

/// Serves setsockopt(2) of SO_SNDBUF and SO_RCVBUF. A socket of netlink keeps its size, and the call
/// succeeds without effect, as on a kernel whose limit was reached. So does a call of a program that
/// cannot be looked into, because its socket is not known.
pub(super) fn set_size(
    caller: &TargetCall<'_>,
    option: i32,
    value: SocketArguments,
) -> std::result::Result<Response, CallError> {
    let socket = match value.take_socket(caller.target) {
        Err(Errno::EPERM | Errno::EACCES) => return Ok(Response::Done),
        socket => socket?,
    };
    let mut size = [0; 4];
    if usize::try_from(value.length).is_ok_and(|length| length < size.len()) || value.length < 0 {
        return Err(CallError::Errno(Errno::EINVAL));
    }
    if remote::read(caller.target.pid, value.address, &mut size)? < size.len() {
        return Err(CallError::Errno(Errno::EFAULT));
    }
    caller.still_waits()?;
    if net::family(&socket)? != libc::AF_NETLINK {
        net::set_size(&socket, option, i32::from_ne_bytes(size))?;
    }
    Ok(Response::Done)
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
    fn init_is_asked_about_sizes_of_buffers_and_no_other_option() {
        let options = || {
            let level = Test::low(1, Op::Eq, 1);
            let below = vec![level, Test::low(2, Op::Le, 25)];
            let other = vec![Test::low(1, Op::Eq, 6), Test::low(2, Op::Le, 10)];
            Verdict::AllowIf(vec![below, other])
        };
        let mut left = options();
        let asked = take_sizes(&mut left).expect("sizes that a program may set");
        for (level, option) in (0..8).flat_map(|level| (0..40).map(move |option| (level, option))) {
            let arguments = [3, level, option, 0, 4, 0];
            let is_size = level == 1 && (option == 7 || option == 8);
            assert_eq!(asked.allows(&arguments), is_size, "{level} {option}");
            let kept = options().allows(&arguments) && !is_size;
            assert_eq!(left.allows(&arguments), kept, "{level} {option}");
        }
        let mut refused = Verdict::AllowIf(vec![vec![Test::low(1, Op::Eq, 6)]]);
        assert_eq!(take_sizes(&mut refused), None);
        let probe = Probe { when: vec![vec![Test::low(2, Op::Eq, 7)]], errno: 0 };
        let mut ignored = Verdict::AllowOrProbe(vec![vec![Test::low(2, Op::Eq, 3)]], probe);
        assert_eq!(take_sizes(&mut ignored), None);
    }

    #[test]
    fn init_is_asked_about_route_netlink_where_the_profile_has_the_internet() {
        let probe = || Probe { when: vec![route_netlink(libc::SOCK_RAW)], errno: 97 };
        let allows = |family| vec![vec![Test::low(0, Op::Eq, family)]];
        let socket = number("socket").expect("a call");
        for (family, answered) in [(1, false), (2, true), (10, true)] {
            let verdict = Verdict::AllowOrProbe(allows(family), probe());
            assert_eq!(verdict.quiet(&[16, 3, 0, 0, 0, 0]), Some(97), "before it is taken");
            assert_eq!(are_answered(&BTreeMap::from([(socket, verdict)])), answered, "{family}");
        }
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
