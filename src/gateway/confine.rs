//! The sandbox of the gateway and its workers: an empty root, no capabilities, Landlock, and
//! seccomp filters.

use std::os::fd::AsFd;

use model::core_dumps;
use model::profile::condition::{Op, Test, Verdict};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rlimit::Resource;
use syscalls::Sysno;

use cell::confine::{BASE, Filter, enclose, int, limit, narrow, one_of, unsigned};
use cell::{StepFailed, caps, landlock};
use sys::mount::{attach, attribute, new_filesystem, pivot_here};
use sys::process::{self, Dumpable};

/// Maximum size of a worker's data segment in bytes: buffers of all the connections it can have.
const MAX_WORKER_BYTES: u64 = 256 << 20;
/// Nice value added to a worker, so that it yields to other processes.
const NICE: i32 = 5;

/// Calls of both gateway and workers in addition to [`BASE`]: waiting, packets and frames, the runtime.
const COMMON: [Sysno; 25] = [
    Sysno::ppoll,
    Sysno::read,
    Sysno::write,
    Sysno::readv,
    Sysno::writev,
    Sysno::recvmsg,
    Sysno::recvfrom,
    Sysno::shutdown,
    Sysno::getsockopt,
    Sysno::getsockname,
    Sysno::getpeername,
    Sysno::epoll_create1,
    Sysno::epoll_ctl,
    Sysno::epoll_pwait,
    Sysno::epoll_pwait2,
    Sysno::eventfd2,
    Sysno::set_robust_list,
    Sysno::rseq,
    Sysno::sched_getaffinity,
    Sysno::sched_yield,
    Sysno::clock_nanosleep,
    Sysno::gettid,
    Sysno::exit,
    Sysno::fcntl,
    Sysno::ioctl,
];

/// Older names of the same calls.
#[cfg(target_arch = "x86_64")]
const OLDER: [Sysno; 2] = [Sysno::epoll_wait, Sysno::poll];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [Sysno; 0] = [];

/// Calls of the gateway only: connecting sockets, forking and reaping workers, and the setup of a
/// worker before it loads its filter.
const GATEWAY: [Sysno; 10] = [
    Sysno::connect,
    Sysno::close_range,
    Sysno::socketpair,
    Sysno::waitid,
    Sysno::pidfd_send_signal,
    Sysno::prctl,
    Sysno::setpriority,
    Sysno::getpriority,
    Sysno::seccomp,
    Sysno::landlock_restrict_self,
];

/// Calls that create a Landlock ruleset, for the port rules of a worker.
const LANDLOCK: [Sysno; 2] = [Sysno::landlock_create_ruleset, Sysno::landlock_add_rule];

/// Allowed socket protocols: the domain's default, TCP, UDP, and ICMP echo. Neither SCTP nor MPTCP:
/// Landlock does not check their ports.
const PROTOCOLS: [i32; 5] = [
    0,
    nix::libc::IPPROTO_TCP,
    nix::libc::IPPROTO_UDP,
    nix::libc::IPPROTO_ICMP,
    nix::libc::IPPROTO_ICMPV6,
];

/// Returns argument tests that allow stream and datagram sockets of IPv4 and IPv6.
fn internet() -> Vec<Vec<Test>> {
    use nix::libc;
    let flags = u64::from(u32::MAX) & !unsigned(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let mut alternatives = Vec::new();
    for domain in [libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            alternatives.extend(PROTOCOLS.map(|protocol| {
                vec![
                    int(0, Op::Eq, unsigned(domain)),
                    int(1, Op::MaskedEq(flags), unsigned(kind)),
                    int(2, Op::Eq, unsigned(protocol)),
                ]
            }));
        }
    }
    alternatives
}

/// Options that a worker sets on its sockets: closing with a reset, and the time to live of
/// packets.
const WORKER_OPTIONS: [(i32, i32); 3] = {
    use nix::libc;
    [
        (libc::SOL_SOCKET, libc::SO_LINGER),
        (libc::IPPROTO_IP, libc::IP_TTL),
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    ]
};

/// Options that the gateway sets on sockets for workers, and on its links to them.
const GATEWAY_OPTIONS: [(i32, i32); 4] = {
    use nix::libc;
    [
        (libc::SOL_SOCKET, libc::SO_SNDBUF),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        (libc::IPPROTO_IP, libc::IP_RECVERR),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    ]
};

/// Allows setsockopt(2) for these levels and options only.
fn options(allowed: impl IntoIterator<Item = (i32, i32)>) -> Verdict {
    let tests = |(level, name): (i32, i32)| {
        vec![int(1, Op::Eq, unsigned(level)), int(2, Op::Eq, unsigned(name))]
    };
    Verdict::AllowIf(allowed.into_iter().map(tests).collect())
}

/// Allows a sending call, with flags in argument `argument`, if only flags of the runtime, flows
/// and frames are set.
///
/// MSG_FASTOPEN is denied: it connects a stream without connect(2), and Landlock does not check the
/// port (tcp(7)).
fn sending(argument: u8) -> Verdict {
    let flags = nix::libc::MSG_NOSIGNAL | nix::libc::MSG_DONTWAIT;
    let others = u64::from(u32::MAX) & !unsigned(flags);
    Verdict::AllowIf(vec![vec![int(argument, Op::MaskedEq(others), 0)]])
}

/// Verdicts on call arguments that both filters share.
fn conditional() -> [(Sysno, Verdict); 3] {
    use nix::libc;
    let fcntls =
        [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC];
    [
        (Sysno::fcntl, one_of(1, fcntls.map(unsigned))),
        (Sysno::ioctl, one_of(1, [libc::FIONBIO])),
        // The flags of clone3(2) are behind a pointer, which no filter can read.
        (Sysno::clone3, Verdict::Errno(libc::ENOSYS)),
    ]
}

/// Returns every call that the gateway or its workers may use, including those with checked
/// arguments.
pub fn calls() -> impl Iterator<Item = Sysno> {
    let checked = [
        Sysno::prlimit64,
        Sysno::clone,
        Sysno::socket,
        Sysno::setsockopt,
        Sysno::sendto,
        Sysno::sendmsg,
    ];
    let plain = BASE.into_iter().chain(COMMON).chain(OLDER).chain(GATEWAY).chain(LANDLOCK);
    plain.chain(checked)
}

/// Returns the filter of the gateway, which its workers inherit.
fn gateway_filter() -> Filter {
    use nix::libc;
    let plain = COMMON.into_iter().chain(OLDER).chain(GATEWAY).chain(LANDLOCK);
    let fork = unsigned(libc::CLONE_PIDFD | libc::SIGCHLD);
    let mut sockets = internet();
    // For the routing socket, which only queries.
    sockets.push(vec![
        int(0, Op::Eq, unsigned(libc::AF_NETLINK)),
        int(2, Op::Eq, unsigned(libc::NETLINK_ROUTE)),
    ]);
    Filter::of_calls(plain).with(conditional()).with([
        (Sysno::clone, Verdict::AllowIf(vec![vec![Test::full(0, Op::Eq, fork)]])),
        (Sysno::socket, Verdict::AllowIf(sockets)),
        (Sysno::prlimit64, Verdict::AllowIf(core_dumps::prlimit64_but_cores())),
        // The worker's options too: its filter can only narrow the inherited one.
        (Sysno::setsockopt, options(GATEWAY_OPTIONS.into_iter().chain(WORKER_OPTIONS))),
        (Sysno::sendto, sending(3)),
        (Sysno::sendmsg, sending(2)),
    ])
}

/// Returns the filter of a worker: no process, thread, listener, file or new socket. A worker
/// cannot connect a socket nor send to an address of its choice; sendmsg(2) is denied because its
/// address is behind a pointer.
fn worker_filter() -> Filter {
    let plain = COMMON.into_iter().chain(OLDER);
    let mut no_address = vec![Test::full(4, Op::Eq, 0)];
    if let Verdict::AllowIf(flags) = sending(3) {
        no_address.extend(flags.into_iter().flatten());
    }
    Filter::of_calls(plain).with(conditional()).with([
        (Sysno::setsockopt, options(WORKER_OPTIONS)),
        (Sysno::sendto, Verdict::AllowIf(vec![no_address])),
    ])
}

/// Confines the gateway, which has its namespaces and one thread. Its ids are set already.
///
/// # Errors
/// The errno of the step that failed; the process must then exit.
pub(crate) fn gateway() -> Result<(), Errno> {
    process::set_dumpable(Dumpable::No)?;
    process::set_no_new_privs()?;
    empty_root()?;
    limit(Resource::FSIZE, 0)?;
    // Whatever its id: the gateway has every capability in its namespace.
    caps::drop_bounding(&[])?;
    process::lock_securebits()?;
    enclose(|abi| landlock::network_client(abi, None), &gateway_filter())
        .map_err(|StepFailed { errno, .. }| errno)
}

/// Confines a worker further, to at most `descriptors` descriptors. Its runtime exists, and it has
/// one thread.
///
/// # Errors
/// Same as [`gateway`].
pub(crate) fn worker(descriptors: u64) -> Result<(), Errno> {
    process::give_way(NICE)?;
    limit(Resource::DATA, MAX_WORKER_BYTES)?;
    limit(Resource::NOFILE, descriptors)?;
    // No port may be connected to.
    narrow(|abi| landlock::network_client(abi, Some(&[])), &worker_filter())
        .map_err(|StepFailed { errno, .. }| errno)
}

/// Makes an empty read-only file system the root.
fn empty_root() -> Result<(), Errno> {
    const NONE: Option<&str> = None;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    let attributes = attribute::NOSUID | attribute::NODEV | attribute::NOEXEC | attribute::RDONLY;
    let root = new_filesystem(c"tmpfs", attributes)?;
    attach(root.as_fd(), c"/proc")?;
    nix::unistd::fchdir(&root)?;
    pivot_here()?;
    umount2(".", MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd};

    use nix::libc;
    use nix::sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, bind, connect,
        sendto, socket,
    };
    use sys::bpf::Instruction;
    use sys::process::Side;

    use super::*;
    use crate::child::in_child;

    /// Returns the length of a program, and a hash of its instructions (FNV-1a).
    fn fingerprint(program: &[Instruction]) -> (usize, u64) {
        let bytes = program.iter().flat_map(|instruction| {
            let Instruction { code, jt, jf, k } = *instruction;
            code.to_le_bytes().into_iter().chain([jt, jf]).chain(k.to_le_bytes())
        });
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (program.len(), hash)
    }

    /// A change of a filter is a change of a wall: it must be intended, and the numbers here then change
    /// with it.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_filters_are_compiled_to_known_programs() {
        let gateway = gateway_filter().compile().expect("it compiles");
        let worker = worker_filter().compile().expect("it compiles");
        assert_eq!(fingerprint(&gateway), (288, 15_277_199_884_654_447_228));
        assert_eq!(fingerprint(&worker), (101, 369_152_227_876_870_998));
    }

    fn made(
        domain: AddressFamily,
        kind: SockType,
        protocol: Option<SockProtocol>,
    ) -> Result<(), Errno> {
        socket(domain, kind, SockFlag::empty(), protocol).map(drop)
    }

    /// Tries everything that a compromised worker would try with the sockets it was given.
    fn attempts(stream: &OwnedFd, datagrams: &OwnedFd) -> Vec<Result<(), Errno>> {
        let nowhere = SockaddrIn::new(127, 0, 0, 1, 9);
        let bound = || bind(stream.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0));
        let forked = || match sys::fork::fork()? {
            Side::Child => process::exit_now(0),
            Side::Parent(child) => process::wait(&child.pidfd),
        };
        let opened = || {
            let flags = nix::fcntl::OFlag::O_RDONLY;
            nix::fcntl::open("/", flags, nix::sys::stat::Mode::empty()).map(drop)
        };
        let udp = datagrams.as_raw_fd();
        let flags = MsgFlags::empty();
        let part = [std::io::IoSlice::new(b"x")];
        vec![
            connect(stream.as_raw_fd(), &nowhere),
            connect(udp, &nowhere),
            sendto(udp, b"x", &nowhere, flags).map(drop),
            nix::sys::socket::sendmsg(udp, &part, &[], flags, Some(&nowhere)).map(drop),
            sendto(
                stream.as_raw_fd(),
                b"x",
                &nowhere,
                MsgFlags::from_bits_retain(libc::MSG_FASTOPEN),
            )
            .map(drop),
            bound(),
            forked(),
            opened(),
            made(AddressFamily::Unix, SockType::Stream, None),
            made(AddressFamily::Netlink, SockType::Raw, Some(SockProtocol::NetlinkRoute)),
            made(AddressFamily::Inet, SockType::Stream, None),
            made(AddressFamily::Inet, SockType::Datagram, Some(SockProtocol::Udp)),
            nix::sys::signal::kill(nix::unistd::getppid(), None),
            nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::ReuseAddr, &true),
            // Calls that a worker needs.
            nix::sys::socket::send(udp, b"x", MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL)
                .map(drop),
            nix::sys::socket::setsockopt(datagrams, nix::sys::socket::sockopt::Ipv4Ttl, &9),
        ]
    }

    #[test]
    fn a_worker_is_held_to_its_descriptor_limit() {
        let copies = |limit: u64| {
            in_child(|| {
                let walls = process::set_no_new_privs().and_then(|()| worker(limit));
                let stdin = std::io::stdin();
                let copy = || stdin.as_fd().try_clone_to_owned();
                let copies: Result<Vec<OwnedFd>, _> = (0..100).map(|_| copy()).collect();
                vec![walls, copies.map(drop).map_err(|error| cell::errno_of(&error))]
            })
        };
        assert_eq!(copies(900), [0, 0]);
        assert_eq!(copies(64), [0, libc::EMFILE]);
    }

    #[test]
    fn a_worker_has_only_the_sockets_it_was_given() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let stream = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
        // Connected to a socket that is never read, so that no error comes back.
        let far = socket(AddressFamily::Inet, SockType::Datagram, flags, None).expect("a socket");
        bind(far.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("a port");
        let address: SockaddrIn = nix::sys::socket::getsockname(far.as_raw_fd()).expect("its port");
        let made = || {
            let near = socket(AddressFamily::Inet, SockType::Datagram, flags, None).expect("one");
            connect(near.as_raw_fd(), &address).expect("connected");
            near
        };
        let refused = libc::ECONNREFUSED;
        let no = libc::EPERM;
        // Unconfined, each works except for connections to the closed port; bytes sent there leave
        // an error behind.
        let near = made();
        let bare = in_child(|| attempts(&stream, &near));
        assert_eq!(bare.get(..5), Some(&[refused, 0, 0, refused, refused][..]));
        assert_eq!(bare.get(5..14), Some(&[0; 9][..]));
        let near = made();
        let confined = in_child(|| {
            let walls = process::set_no_new_privs().and_then(|()| worker(1_024));
            if walls.is_err() { vec![walls] } else { attempts(&stream, &near) }
        });
        assert_eq!(confined, [no, no, no, no, no, no, no, no, no, no, no, no, no, no, 0, 0]);
    }
}
