//! A network for attacks on cells with egress: servers in one network namespace, and a second one
//! from which they are reached.
//!
//! The process that runs a command here first enters separate namespaces, with the rights of an
//! ordinary user, so that the machine's network is not affected. The cell's gateway runs in the
//! near namespace, as on a host. The servers in the far one record their visitors and the data they
//! read, which decide the verdict.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::wait;
use nix::unistd::pipe2;
use sys::mount::{attach, attribute, new_filesystem, pivot_here};
use sys::rtnetlink::{self, AddressScope, RouteRequests, attribute, link};

/// Index of the only link in each of the two namespaces; loopback has 1.
const LINK: u32 = 2;
const INET: u8 = 2;
const UP: u32 = 1;
/// Addresses of the near namespace, which are the host's from the gateway's point of view.
const NEAR: [(Ipv4Addr, u8); 3] = [
    (Ipv4Addr::new(203, 0, 113, 1), 24),
    (Ipv4Addr::new(10, 77, 0, 1), 24),
    (Ipv4Addr::new(169, 254, 1, 1), 16),
];
/// A server that rules name.
const WEB: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
/// A host in a private network of an operator.
const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 20);
/// The metadata service of cloud machines.
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const RESOLVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 53);
/// Addresses of the far namespace; 203.0.113.20 is a server that no rule names.
const FAR: [(Ipv4Addr, u8); 5] = [
    (WEB, 24),
    (Ipv4Addr::new(203, 0, 113, 20), 24),
    (RESOLVER, 24),
    (PRIVATE, 24),
    (METADATA, 16),
];
/// TCP and UDP ports on which each far address answers.
const PORTS: [u16; 5] = [25, 53, 80, 81, 443];
const DATAGRAM_PORTS: [u16; 2] = [53, 80];
/// A port on which no server listens.
const CLOSED_PORT: u16 = 9;
/// A port on which the near namespace answers.
const OWN_PORT: u16 = 8_080;
/// Maximum bytes of a connection that are read.
const MAX_READ: usize = 4_096;
/// Last line of a record; every visit is recorded before it.
pub(crate) const WHOLE: &str = "whole";
/// First byte of TLS (RFC 8446, 5.1: a handshake).
const HANDSHAKE: u8 = 0x16;

/// The record of visitors and of the data they sent, one line each.
#[derive(Debug, Clone)]
struct Visits(Arc<Mutex<File>>);

impl Visits {
    fn record(&self, line: &str) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A lost line could hide a successful attack: end the lab, so that there is no verdict.
        if writeln!(file, "{line}").is_err() {
            lost();
        }
    }
}

/// Runs a command in the near namespace, and records the visitors of the servers in a file. Returns
/// the command's exit code once all its processes have ended and the servers have read everything
/// that they sent; the record then ends with the line `whole`. Requires a single-threaded caller.
///
/// # Errors
/// A namespace, link or server cannot be made, for example because the kernel has no veth.
pub fn run(record: &Path, words: &[String]) -> io::Result<i32> {
    let (program, rest) =
        words.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let file = File::options().create(true).append(true).open(record)?;
    let visits = Visits(Arc::new(Mutex::new(file)));
    enter()?;
    let (made, near) = mpsc::channel();
    let (linked, far) = mpsc::channel();
    let (ready, served) = mpsc::channel();
    let (over, closing) = pipe2(OFlag::O_CLOEXEC)?;
    let mut here = Servers { visits: visits.clone(), over: Arc::new(over), threads: Vec::new() };
    let mut there =
        Servers { over: Arc::clone(&here.over), visits: visits.clone(), threads: Vec::new() };
    thread::spawn(move || {
        let outcome = far_side(&made, &far, &mut there).map(|()| there.threads);
        // Fails if the near side has given up already.
        ready.send(outcome).unwrap_or_default();
    });
    let gone = |_| io::Error::other("the servers have ended");
    join(&near.recv().map_err(gone)??)?;
    linked.send(()).map_err(|_| io::Error::other("the servers have ended"))?;
    let far_threads = served.recv().map_err(gone)??;
    here.answer_streams(TcpListener::bind((NEAR_ADDRESS, OWN_PORT))?)?;
    let mut command = Command::new(program);
    if !nix::unistd::geteuid().is_root() {
        command.env("COFFERDAM_CONFIG", CONFIG);
    }
    // Orphans of the command, such as a gateway that is ending, become children of this process,
    // which waits for them.
    set_child_subreaper(true)?;
    flush_links()?;
    let status = command.args(rest).status()?;
    await_all()?;
    flush_links()?;
    drop(closing);
    for thread in here.threads.into_iter().chain(far_threads) {
        thread.join().map_err(|_| io::Error::other("a server has panicked"))?;
    }
    visits.record(WHOLE);
    use std::os::unix::process::ExitStatusExt;
    Ok(status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1))
}

/// Sends a packet to each address of the far side and waits for the answer. Afterwards no datagram
/// waits for ARP, and everything sent before has arrived.
fn flush_links() -> io::Result<()> {
    for (address, _) in FAR {
        match TcpStream::connect((address, CLOSED_PORT)) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Ok(_) => return Err(io::Error::other("a server answers on a closed port")),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until every child process has ended, so that no process is left that could send data.
fn await_all() -> io::Result<()> {
    loop {
        match wait() {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::ECHILD) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

const NEAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// An empty configuration, for runs by an ordinary user.
const CONFIG: &str = "/cofferdam-lab";

/// Enters the near namespace, with the lab's resolver.
fn enter() -> io::Result<()> {
    let user = nix::unistd::geteuid();
    let group = nix::unistd::getegid();
    let mut namespaces = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
    if !user.is_root() {
        namespaces |= CloneFlags::CLONE_NEWUSER;
    }
    unshare(namespaces)?;
    if !user.is_root() {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    }
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    if !user.is_root() {
        make_root()?;
    }
    let mut resolver = tempfile::NamedTempFile::new()?;
    writeln!(resolver, "nameserver {RESOLVER}")?;
    let target = std::fs::canonicalize(RESOLVERS)
        .map_err(|error| io::Error::new(error.kind(), format!("{RESOLVERS}: {error}")))?;
    mount(Some(resolver.path()), &target, NONE, MsFlags::MS_BIND, NONE)?;
    sys::net::loopback_up()?;
    Ok(())
}

/// Absent in a container without a network.
const RESOLVERS: &str = "/etc/resolv.conf";
const NONE: Option<&str> = None;

/// Makes a root with the same directories that this user owns: the owner of the host's root is not
/// mapped in this namespace, and a configuration below it could belong to any user.
fn make_root() -> io::Result<()> {
    let root = new_filesystem(c"tmpfs", attribute::NOSUID | attribute::NODEV)?;
    let mount_point = tempfile::tempdir()?;
    let target = CString::new(mount_point.path().as_os_str().as_bytes())?;
    attach(root.as_fd(), &target)?;
    // Excluded from the bind mounts below it.
    mount(NONE, mount_point.path(), NONE, MsFlags::MS_UNBINDABLE, NONE)?;
    nix::unistd::fchdir(&root)?;
    for entry in std::fs::read_dir("/")? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let name = entry.file_name();
        if kind.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(entry.path())?, &name)?;
        } else if kind.is_dir() {
            std::fs::create_dir(&name)?;
            let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(&entry.path()), Path::new(&name), NONE, flags, NONE)?;
        }
    }
    std::fs::create_dir(Path::new(CONFIG).file_name().unwrap_or_default())?;
    pivot_here()?;
    umount2(".", MntFlags::MNT_DETACH)?;
    nix::unistd::chdir("/")?;
    mount(NONE, "/", NONE, MsFlags::MS_PRIVATE, NONE)?;
    Ok(())
}

/// Makes a link between this namespace and another one, and adds the addresses of this end.
fn join(other: &File) -> io::Result<()> {
    const LINK_INFO: u16 = 18;
    const INFO_KIND: u16 = 1;
    const INFO_DATA: u16 = 2;
    const PEER: u16 = 1;
    const NAME: u16 = 3;
    const NAMESPACE: u16 = 28;
    let mut body = link(LINK, 0, 0);
    let mut peer = link(LINK, 0, 0);
    attribute(&mut body, NAME, b"near\0");
    attribute(&mut peer, NAME, b"far\0");
    attribute(&mut peer, NAMESPACE, &other.as_raw_fd().to_ne_bytes());
    let mut info = Vec::new();
    let mut data = Vec::new();
    attribute(&mut data, PEER, &peer);
    attribute(&mut info, INFO_KIND, b"veth\0");
    attribute(&mut info, INFO_DATA, &data);
    attribute(&mut body, LINK_INFO, &info);
    let mut requests = RouteRequests::default();
    requests.new_link(&body);
    requests.send(&rtnetlink::open()?)?;
    add_addresses(&NEAR)
}

/// Brings up the link of this namespace and adds addresses.
fn add_addresses(addresses: &[(Ipv4Addr, u8)]) -> io::Result<()> {
    let mut requests = RouteRequests::default();
    requests.set_link(&link(LINK, UP, UP));
    for (address, bits) in addresses {
        requests.new_address(LINK, INET, *bits, AddressScope::Global, &address.octets());
    }
    requests.send(&rtnetlink::open()?)?;
    Ok(())
}

/// Enters the far namespace and starts the servers in it. Their threads stay there.
fn far_side(
    made: &mpsc::Sender<io::Result<File>>,
    linked: &mpsc::Receiver<()>,
    servers: &mut Servers,
) -> io::Result<()> {
    let entered = unshare(CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
    let namespace = entered.and_then(|()| File::open("/proc/thread-self/ns/net"));
    made.send(namespace).map_err(|_| io::ErrorKind::BrokenPipe)?;
    linked.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
    sys::net::loopback_up()?;
    add_addresses(&FAR)?;
    for port in PORTS {
        servers.answer_streams(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?)?;
    }
    for port in DATAGRAM_PORTS {
        for (address, _) in FAR {
            servers.answer_datagrams(UdpSocket::bind((address, port))?)?;
        }
    }
    Ok(())
}

/// The servers of a namespace, one thread each.
struct Servers {
    visits: Visits,
    /// A pipe that hangs up once no process is left that could send data. The servers then read the
    /// remaining data and exit.
    over: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    /// Answers each connection with a short text, like HTTP/1.
    fn answer_streams(&mut self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let visits = self.visits.clone();
        let over = Arc::clone(&self.over);
        self.threads.push(thread::spawn(move || {
            let mut connections = Vec::new();
            let mut is_over = false;
            while !is_over {
                is_over = wait_for(listener.as_fd(), &over);
                while let Some((stream, _)) = received(listener.accept()) {
                    let visits = visits.clone();
                    connections.push(thread::spawn(move || answer_stream(stream, &visits)));
                }
            }
            connections
                .into_iter()
                .for_each(|connection| connection.join().unwrap_or_else(|_| lost()));
        }));
        Ok(())
    }

    /// Answers DNS questions for addresses.
    fn answer_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        let visits = self.visits.clone();
        let over = Arc::clone(&self.over);
        self.threads.push(thread::spawn(move || {
            let questions = AtomicUsize::new(0);
            let mut buffer = [0; MAX_READ];
            let mut is_over = false;
            while !is_over {
                is_over = wait_for(socket.as_fd(), &over);
                while let Some((length, from)) = received(socket.recv_from(&mut buffer)) {
                    let question = buffer.get(..length).unwrap_or_default();
                    match question_name(question).filter(|_| local.ip() == RESOLVER) {
                        Some(name) => {
                            visits.record(&format!("dns {name}"));
                            let address = address_of(&name, &questions);
                            answer_question(&socket, from, question, address);
                        }
                        None => visits.record(&format!("udp {local}")),
                    }
                }
            }
        }));
        Ok(())
    }
}

/// Ends the lab, because a lost visit could hide a successful attack.
fn lost() -> ! {
    std::process::exit(1);
}

/// Waits until data arrive or no more can come. Returns true in the second case.
fn wait_for(socket: BorrowedFd<'_>, over: &OwnedFd) -> bool {
    let fds = [socket, over.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let mut fds = fds;
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(_) => lost(),
    }
    let [_, over] = fds;
    over.any().unwrap_or(false)
}

/// Returns the result of a non-blocking call; `None` if it would block.
fn received<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(_) => lost(),
    }
}

/// Answers a connection once it has sent a request or TLS, and reads it to its end.
fn answer_stream(mut stream: TcpStream, visits: &Visits) {
    let Ok(local) = stream.local_addr() else { lost() };
    visits.record(&format!("tcp {local}"));
    let mut seen = Vec::new();
    let mut part = [0; 1_024];
    let mut answered = false;
    while let Ok(length @ 1..) = stream.read(&mut part) {
        let part = part.get(..length).unwrap_or_default();
        visits.record(&format!("data {local} {}", printable(part)));
        seen.extend_from_slice(part);
        let is_request = seen.windows(4).any(|four| four == b"\r\n\r\n");
        if !answered && (is_request || seen.first() == Some(&HANDSHAKE)) {
            answered = true;
            let answer: &[u8] = match is_request {
                true => b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n",
                false => b"hello\n",
            };
            // Fails if the client has disconnected.
            stream.write_all(answer).unwrap_or_default();
        }
        if seen.len() > MAX_READ {
            return;
        }
    }
}

/// Replaces everything except visible ASCII by blanks, so that the text fits on one line.
fn printable(bytes: &[u8]) -> String {
    let shown = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { ' ' };
    bytes.iter().map(shown).collect()
}

/// Returns the address of a name. `turn.lab` gets another address at its second question, which is
/// a DNS rebinding attack.
fn address_of(name: &str, questions: &AtomicUsize) -> Option<Ipv4Addr> {
    match name {
        "web.lab" => Some(WEB),
        "other.lab" => Some(Ipv4Addr::new(203, 0, 113, 20)),
        "tenant.wild.lab" => Some(PRIVATE),
        "meta.lab" => Some(METADATA),
        "own.lab" => Some(NEAR_ADDRESS),
        "turn.lab" if questions.fetch_add(1, Ordering::Relaxed) == 0 => Some(WEB),
        "turn.lab" => Some(METADATA),
        _ => None,
    }
}

/// Returns the name in the first question of a message (RFC 1035, 4.1); with the type, unless it
/// asks for an IPv4 address.
fn question_name(message: &[u8]) -> Option<String> {
    let mut rest = message.get(12..)?;
    let mut labels = Vec::new();
    loop {
        let (length, after) = rest.split_first()?;
        let (label, after) = after.split_at_checked(usize::from(*length))?;
        rest = after;
        if label.is_empty() {
            break;
        }
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
    }
    let kind = u16::from_be_bytes(rest.get(..2)?.try_into().ok()?);
    let name = labels.join(".");
    Some(if kind == 1 { name } else { format!("{name} type {kind}") })
}

/// Answers a question, if possible with an address that must not be cached.
fn answer_question(socket: &UdpSocket, to: SocketAddr, question: &[u8], address: Option<Ipv4Addr>) {
    let Some(end) = question.get(12..).and_then(|rest| rest.iter().position(|byte| *byte == 0))
    else {
        return;
    };
    // The header, the name, its type and class; other questions are dropped.
    let Some(question_part) = question.get(..12 + end + 5) else { return };
    let mut answer = question_part.to_vec();
    let counts = [0x81, 0x80, 0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0];
    for (to, from) in answer.iter_mut().skip(2).zip(counts) {
        *to = from;
    }
    if let Some(address) = address {
        // A pointer to the question's name, type A, class IN, TTL 0, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    // A lost answer looks like a timeout to the client, which may ask again.
    socket.send_to(&answer, to).map(drop).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_parsed_and_a_name_is_rebound() {
        let mut message = vec![0; 12];
        message.extend(b"\x03WEB\x03lab\x00\x00\x01\x00\x01");
        assert_eq!(question_name(&message).as_deref(), Some("web.lab"));
        let kind = message.len() - 3;
        if let Some(byte) = message.get_mut(kind) {
            *byte = 65;
        }
        assert_eq!(question_name(&message).as_deref(), Some("web.lab type 65"));
        assert_eq!(question_name(message.get(..15).expect("a head")), None);
        let questions = AtomicUsize::new(0);
        let twice = [address_of("turn.lab", &questions), address_of("turn.lab", &questions)];
        assert_eq!(twice, [Some(WEB), Some(METADATA)]);
    }
}
