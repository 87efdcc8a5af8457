//! The walls around gateway and workers: an empty root, no capability, Landlock, and filters of system calls.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use model::egress::{Egress, NetworkClass};
use model::profile::condition::{Op, Test, Verdict, Width};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rlimit::Resource;
use syscalls::Sysno;

use cell::seccomp::{Action, compile_for_ours, number};
use cell::{caps, landlock};
use sys::bpf::{self, Instruction};
use sys::mount::{attach, attribute, new_filesystem, pivot_here};
use sys::process::{self, Dumpable};

/// Most memory of a worker's own, in bytes: buffers of all the connections it can have.
const WORKER_BYTES: u64 = 256 << 20;
/// Steps of priority by which a worker gives way to others.
const NICE: i32 = 5;
/// Most ports for which Landlock gets a rule each; a profile with more is held by the judge alone.
const PORTS: usize = 4_096;

/// Calls of both: waiting, packets and frames, memory, time, the runtime.
const COMMON: [Sysno; 42] = [
    Sysno::ppoll,
    Sysno::read,
    Sysno::write,
    Sysno::readv,
    Sysno::writev,
    Sysno::recvmsg,
    Sysno::recvfrom,
    Sysno::close,
    Sysno::shutdown,
    Sysno::connect,
    Sysno::getsockopt,
    Sysno::getsockname,
    Sysno::getpeername,
    Sysno::epoll_create1,
    Sysno::epoll_ctl,
    Sysno::epoll_pwait,
    Sysno::epoll_pwait2,
    Sysno::eventfd2,
    Sysno::futex,
    Sysno::mmap,
    Sysno::munmap,
    Sysno::mremap,
    Sysno::madvise,
    Sysno::brk,
    Sysno::rt_sigaction,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigreturn,
    Sysno::sigaltstack,
    Sysno::set_robust_list,
    Sysno::rseq,
    Sysno::sched_getaffinity,
    Sysno::sched_yield,
    Sysno::getrandom,
    Sysno::clock_gettime,
    Sysno::clock_nanosleep,
    Sysno::getpid,
    Sysno::gettid,
    Sysno::restart_syscall,
    Sysno::exit,
    Sysno::exit_group,
    Sysno::fcntl,
    Sysno::ioctl,
];

/// Older names of the same calls.
#[cfg(target_arch = "x86_64")]
const OLDER: [Sysno; 2] = [Sysno::epoll_wait, Sysno::poll];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [Sysno; 0] = [];

/// Calls of the gateway alone: forking and reaping workers, and what a worker does before its own filter.
const GATEWAY: [Sysno; 10] = [
    Sysno::close_range,
    Sysno::socketpair,
    Sysno::waitid,
    Sysno::pidfd_send_signal,
    Sysno::prctl,
    Sysno::prlimit64,
    Sysno::setpriority,
    Sysno::getpriority,
    Sysno::seccomp,
    Sysno::landlock_restrict_self,
];

/// Calls that make a Landlock ruleset, which a worker's ports need.
const LANDLOCK: [Sysno; 2] = [Sysno::landlock_create_ruleset, Sysno::landlock_add_rule];

fn unsigned(value: i32) -> u64 {
    u64::from(value.unsigned_abs())
}

fn test(argument: u8, op: Op, value: u64) -> Test {
    Test { argument, width: Width::Low32, op, value }
}

/// Protocols of sockets: the domain's own, TCP, UDP, and echo. Not SCTP or MPTCP, which Landlock does not know.
const PROTOCOLS: [i32; 5] = [
    0,
    nix::libc::IPPROTO_TCP,
    nix::libc::IPPROTO_UDP,
    nix::libc::IPPROTO_ICMP,
    nix::libc::IPPROTO_ICMPV6,
];

/// Alternatives that allow the sockets of the Internet's two domains, as streams and datagrams.
fn internet() -> Vec<Vec<Test>> {
    use nix::libc;
    let flags = u64::from(u32::MAX) & !unsigned(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let mut all = Vec::new();
    for domain in [libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            all.extend(PROTOCOLS.map(|protocol| {
                vec![
                    test(0, Op::Eq, unsigned(domain)),
                    test(1, Op::MaskedEq(flags), unsigned(kind)),
                    test(2, Op::Eq, unsigned(protocol)),
                ]
            }));
        }
    }
    all
}

/// Options of sockets that a worker sets, by level: what the runtime and flows need.
fn options() -> Verdict {
    use nix::libc;
    let all = [
        (libc::SOL_SOCKET, libc::SO_LINGER),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY),
        (libc::IPPROTO_IP, libc::IP_TTL),
        (libc::IPPROTO_IP, libc::IP_RECVERR),
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    ];
    let one = |(level, name): (i32, i32)| {
        vec![test(1, Op::Eq, unsigned(level)), test(2, Op::Eq, unsigned(name))]
    };
    Verdict::AllowIf(all.map(one).into_iter().collect())
}

/// Allows a call that sends, whose flags are its argument `at`, with those that the runtime, flows and frames need.
///
/// Not MSG_FASTOPEN, which connects a stream without connect(2), where Landlock does not look at the port (tcp(7)).
fn sending(at: u8) -> Verdict {
    let flags = nix::libc::MSG_NOSIGNAL | nix::libc::MSG_DONTWAIT;
    let others = u64::from(u32::MAX) & !unsigned(flags);
    Verdict::AllowIf(vec![vec![test(at, Op::MaskedEq(others), 0)]])
}

/// Verdicts that both filters have on calls with arguments.
fn conditional() -> [(Sysno, Verdict); 6] {
    use nix::libc;
    let fcntls =
        [libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC];
    let fcntl = fcntls.map(|operation| vec![test(1, Op::Eq, unsigned(operation))]);
    [
        (Sysno::fcntl, Verdict::AllowIf(fcntl.into_iter().collect())),
        (Sysno::ioctl, Verdict::AllowIf(vec![vec![test(1, Op::Eq, libc::FIONBIO)]])),
        (Sysno::setsockopt, options()),
        (Sysno::sendto, sending(3)),
        (Sysno::sendmsg, sending(2)),
        // The flags of clone3 are behind a pointer, where no filter sees them.
        (Sysno::clone3, Verdict::Errno(libc::ENOSYS)),
    ]
}

/// Returns every call of the gateway and of its workers, whatever is checked about its arguments.
pub fn calls() -> impl Iterator<Item = Sysno> {
    let checked = [Sysno::clone, Sysno::socket, Sysno::setsockopt];
    COMMON.into_iter().chain(OLDER).chain(GATEWAY).chain(LANDLOCK).chain(checked)
}

/// Compiles the filter of the gateway, which its workers inherit.
///
/// # Errors
/// E2BIG: the filter itself is wrong.
pub(crate) fn gateway_filter() -> Result<Vec<Instruction>, Errno> {
    use nix::libc;
    let plain = COMMON.into_iter().chain(OLDER).chain(GATEWAY).chain(LANDLOCK);
    let mut verdicts: BTreeMap<u32, Verdict> =
        plain.map(|call| (number(call), Verdict::Allow)).collect();
    verdicts.extend(conditional().map(|(call, verdict)| (number(call), verdict)));
    let fork = unsigned(libc::CLONE_PIDFD | libc::SIGCHLD);
    let mut sockets = internet();
    // For the routes, which only tell.
    sockets.push(vec![
        test(0, Op::Eq, unsigned(libc::AF_NETLINK)),
        test(2, Op::Eq, unsigned(libc::NETLINK_ROUTE)),
    ]);
    verdicts
        .insert(number(Sysno::clone), Verdict::AllowIf(vec![vec![Test::full(0, Op::Eq, fork)]]));
    verdicts.insert(number(Sysno::socket), Verdict::AllowIf(sockets));
    compile_for_ours(&verdicts, Action::Errno(libc::EPERM))
}

/// Compiles the filter of a worker: no process, no thread, no listener, no file.
///
/// # Errors
/// E2BIG: the filter itself is wrong.
pub(crate) fn worker_filter() -> Result<Vec<Instruction>, Errno> {
    use nix::libc;
    let plain = COMMON.into_iter().chain(OLDER);
    let mut verdicts: BTreeMap<u32, Verdict> =
        plain.map(|call| (number(call), Verdict::Allow)).collect();
    verdicts.extend(conditional().map(|(call, verdict)| (number(call), verdict)));
    verdicts.insert(number(Sysno::socket), Verdict::AllowIf(internet()));
    compile_for_ours(&verdicts, Action::Errno(libc::EPERM))
}

/// Confines the gateway, in namespaces of its own and with one thread. The ids are taken already.
///
/// # Errors
/// The errno of the step that failed; the process must not go on then.
pub(crate) fn gateway() -> Result<(), Errno> {
    process::set_dumpable(Dumpable::No)?;
    process::set_no_new_privs()?;
    empty_root()?;
    limit(Resource::CORE, 0)?;
    limit(Resource::FSIZE, 0)?;
    caps::drop_bounding(&[])?;
    process::lock_securebits()?;
    caps::clear_current()?;
    let abi = landlock::kernel_abi();
    if abi > 0 {
        landlock::network_client(abi, None)?.restrict()?;
    }
    bpf::load(&gateway_filter()?)
}

/// Confines a worker further, to the ports of its profile. Its runtime exists, and it has one thread.
///
/// # Errors
/// As [`gateway`].
pub(crate) fn worker(ports: Option<&[u16]>) -> Result<(), Errno> {
    process::give_way(NICE)?;
    limit(Resource::DATA, WORKER_BYTES)?;
    let abi = landlock::kernel_abi();
    if abi > 0 {
        landlock::network_client(abi, ports)?.restrict()?;
    }
    bpf::load(&worker_filter()?)
}

fn limit(resource: Resource, value: u64) -> Result<(), Errno> {
    resource.set(value, value).map_err(|error| cell::errno_of(&error))
}

/// Makes an empty file system the root, which nothing can be written to.
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

/// Returns the TCP ports that a worker of the profile may connect to: those of its rules, and its resolvers'.
/// Nothing where the class reaches every port, or there are too many.
pub(crate) fn ports(egress: &Egress, resolvers: &[std::net::SocketAddr]) -> Option<Vec<u16>> {
    match egress.class {
        NetworkClass::Any | NetworkClass::Private => return None,
        NetworkClass::None | NetworkClass::Loopback | NetworkClass::AllowList => {}
    }
    let rules = egress.rules.iter().filter(|rule| rule.protocols.tcp);
    let ranges = rules.flat_map(|rule| &rule.ports);
    let mut ports: Vec<u16> = resolvers.iter().map(std::net::SocketAddr::port).collect();
    for range in ranges {
        ports.extend(range.first..=range.last);
        ports.sort_unstable();
        ports.dedup();
        if ports.len() > PORTS {
            return None;
        }
    }
    Some(ports)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::os::fd::AsRawFd;

    use nix::libc;
    use nix::sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, bind, connect,
        sendto, socket,
    };
    use sys::process::Side;

    use super::*;

    /// Runs `act` in a child, and returns the errnos that it returns, 0 for none.
    fn in_child(act: impl FnOnce() -> Vec<Result<(), Errno>>) -> Vec<i32> {
        let (read, write) = nix::unistd::pipe().expect("a pipe");
        match sys::fork::fork().expect("a child") {
            Side::Child => {
                let results = act().into_iter();
                let bytes: Vec<u8> = results
                    .flat_map(|result| result.err().map_or(0, sys::raw).to_ne_bytes())
                    .collect();
                let written = nix::unistd::write(&write, &bytes);
                process::exit_now(i32::from(written.is_err()));
            }
            Side::Parent(child) => {
                drop(write);
                let mut bytes = [0; 256];
                let length = nix::unistd::read(&read, &mut bytes).expect("its results");
                process::wait(&child.pidfd).expect("its end");
                let (numbers, _) = bytes.get(..length).expect("read").as_chunks::<4>();
                numbers.iter().map(|number| i32::from_ne_bytes(*number)).collect()
            }
        }
    }

    fn made(
        domain: AddressFamily,
        kind: SockType,
        protocol: Option<SockProtocol>,
    ) -> Result<(), Errno> {
        socket(domain, kind, SockFlag::empty(), protocol).map(drop)
    }

    fn connected(port: u16) -> Result<(), Errno> {
        let stream = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?;
        connect(stream.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port))
    }

    /// Opens a connection to the port by the first bytes that are sent (tcp(7), MSG_FASTOPEN), not by connect(2).
    fn opened_by_sending(port: u16) -> Result<(), Errno> {
        let stream = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?;
        let to = SockaddrIn::new(127, 0, 0, 1, port);
        sendto(stream.as_raw_fd(), b"x", &to, MsgFlags::from_bits_retain(libc::MSG_FASTOPEN))
            .map(drop)
    }

    /// What a worker that was taken over would try.
    fn attempts() -> Vec<Result<(), Errno>> {
        let bound = || {
            let stream = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?;
            bind(stream.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0))
        };
        let forked = || match sys::fork::fork()? {
            Side::Child => process::exit_now(0),
            Side::Parent(child) => process::wait(&child.pidfd),
        };
        let opened = || {
            let flags = nix::fcntl::OFlag::O_RDONLY;
            nix::fcntl::open("/", flags, nix::sys::stat::Mode::empty()).map(drop)
        };
        vec![
            connected(9),
            connected(10),
            bound(),
            forked(),
            opened(),
            made(AddressFamily::Unix, SockType::Stream, None),
            made(AddressFamily::Netlink, SockType::Raw, Some(SockProtocol::NetlinkRoute)),
            made(AddressFamily::Inet, SockType::Datagram, Some(SockProtocol::Udp)),
            made(AddressFamily::Inet, SockType::SeqPacket, None),
            nix::sys::signal::kill(nix::unistd::getppid(), None),
            opened_by_sending(10),
        ]
    }

    #[test]
    fn a_worker_connects_to_its_ports_and_has_no_file_process_or_listener() {
        let refused = libc::ECONNREFUSED;
        // Unconfined, each of them works, but for the two ports where nobody listens and the kind that is none.
        let bare = in_child(attempts);
        assert_eq!(bare, [refused, refused, 0, 0, 0, 0, 0, 0, libc::ESOCKTNOSUPPORT, 0, refused]);
        let confined = in_child(|| {
            let walls = process::set_no_new_privs().and_then(|()| worker(Some(&[9])));
            if walls.is_err() { vec![walls] } else { attempts() }
        });
        let no = libc::EPERM;
        let other_port = if landlock::kernel_abi() >= 4 { libc::EACCES } else { refused };
        assert_eq!(confined, [refused, other_port, no, no, no, no, no, 0, no, no, no]);
    }

    #[test]
    fn ports_are_those_of_the_rules_and_the_resolvers() {
        let resolvers: [SocketAddr; 1] = ["192.0.2.1:53".parse().expect("an address")];
        let mut egress = Egress { class: NetworkClass::AllowList, ..Egress::default() };
        assert_eq!(ports(&egress, &resolvers), Some(vec![53]));
        egress.class = NetworkClass::Any;
        assert_eq!(ports(&egress, &resolvers), None);
    }
}
