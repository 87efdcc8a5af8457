//! A network for attacks on cells with egress: servers in a network namespace, and another from which they are reached.
//!
//! The process that runs a command here enters namespaces of its own first, with the rights of an ordinary user, so nothing
//! of it touches the machine's network. The cell's gateway stands in the near namespace, as on a host; the servers in the far
//! one write down who came and what they read, which is what counts for a verdict.

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
use sys::rtnetlink::{self, RouteRequests, attribute, link};

/// Index of the only link in each of the two namespaces: that of loopback is 1.
const LINK: u32 = 2;
const INET: u8 = 2;
const UP: u32 = 1;
/// Addresses of the near namespace, which are the host's own for the gateway there.
const NEAR: [(Ipv4Addr, u8); 3] = [
    (Ipv4Addr::new(203, 0, 113, 1), 24),
    (Ipv4Addr::new(10, 77, 0, 1), 24),
    (Ipv4Addr::new(169, 254, 1, 1), 16),
];
/// A server that rules name.
const WEB: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
/// A host of an operator's own network.
const PRIVATE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 20);
/// The service that tells machines in a cloud who they are.
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
/// Ports of TCP on which each far address answers, and of UDP.
const PORTS: [u16; 5] = [25, 53, 80, 81, 443];
const DATAGRAM_PORTS: [u16; 2] = [53, 80];
/// Port on which nobody answers.
const CLOSED_PORT: u16 = 9;
/// Port on which the near namespace answers.
const OWN_PORT: u16 = 8_080;
/// Bytes of a connection that are looked at.
const LOOKED_AT: usize = 4_096;
/// Last line of a record: all that anybody sent stands before it.
pub(crate) const WHOLE: &str = "whole";
/// First byte of TLS (RFC 8446, 5.1: a handshake).
const HANDSHAKE: u8 = 0x16;

/// The record of who came and what was read: a line each.
#[derive(Debug, Clone)]
struct Visits(Arc<Mutex<File>>);

impl Visits {
    fn note(&self, line: &str) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A line that is lost is an attack that is not seen: it ends the lab, which is no verdict.
        if writeln!(file, "{line}").is_err() {
            lost();
        }
    }
}

/// Runs a command in the near namespace, and records in a file who came to the servers. Returns the command's exit code
/// once all processes that it made have ended and the servers have read what they sent; the record then ends with the
/// line `whole`.
/// Needs a caller with one thread.
///
/// # Errors
/// A namespace, link or server that cannot be made: the kernel may have no veth.
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
    // What the command leaves, a gateway that is ending among it, comes to this process, which waits for it.
    set_child_subreaper(true)?;
    pass_by()?;
    let status = command.args(rest).status()?;
    await_all()?;
    pass_by()?;
    drop(closing);
    for thread in here.threads.into_iter().chain(far_threads) {
        thread.join().map_err(|_| io::Error::other("a server has panicked"))?;
    }
    visits.note(WHOLE);
    use std::os::unix::process::ExitStatusExt;
    Ok(status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1))
}

/// Goes the way to each address of the far side and back, without a visit. After it no datagram waits for the answer of
/// ARP, and what was sent before has come.
fn pass_by() -> io::Result<()> {
    for (address, _) in FAR {
        match TcpStream::connect((address, CLOSED_PORT)) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Ok(_) => return Err(io::Error::other("somebody answers on a closed port")),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits for every process below this one: then nobody is left who could send anything.
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
/// An empty configuration, where an ordinary user runs this.
const CONFIG: &str = "/cofferdam-lab";

/// Enters the near namespace, with a resolver that is the lab's.
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
        own_root()?;
    }
    let mut resolver = tempfile::NamedTempFile::new()?;
    writeln!(resolver, "nameserver {RESOLVER}")?;
    let place = std::fs::canonicalize("/etc/resolv.conf")?;
    mount(Some(resolver.path()), &place, NONE, MsFlags::MS_BIND, NONE)?;
    sys::net::loopback_up()?;
    Ok(())
}

const NONE: Option<&str> = None;

/// Makes a root that shows the same directories, and is this user's: that of the host has no owner in this namespace, and
/// a configuration below it could be anybody's.
fn own_root() -> io::Result<()> {
    let root = new_filesystem(c"tmpfs", attribute::NOSUID | attribute::NODEV)?;
    let place = tempfile::tempdir()?;
    let target = CString::new(place.path().as_os_str().as_bytes())?;
    attach(root.as_fd(), &target)?;
    // Not among what is bound below it.
    mount(NONE, place.path(), NONE, MsFlags::MS_UNBINDABLE, NONE)?;
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

/// Makes a link between this namespace and another, and this end's addresses.
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
    addressed(&NEAR)
}

/// Brings the link of this namespace up, with addresses.
fn addressed(addresses: &[(Ipv4Addr, u8)]) -> io::Result<()> {
    let mut requests = RouteRequests::default();
    requests.set_link(&link(LINK, UP, UP));
    for (address, bits) in addresses {
        requests.new_address(LINK, INET, *bits, &address.octets());
    }
    requests.send(&rtnetlink::open()?)?;
    Ok(())
}

/// Enters the far namespace and starts the servers in it. The threads that it starts stay there.
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
    addressed(&FAR)?;
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

/// The servers of a namespace, a thread each.
struct Servers {
    visits: Visits,
    /// End of a pipe that hangs up once nobody is left who could send anything. The servers then take what has come, and end.
    over: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    /// Answers each connection with a word, as HTTP/1 would.
    fn answer_streams(&mut self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let visits = self.visits.clone();
        let over = Arc::clone(&self.over);
        self.threads.push(thread::spawn(move || {
            let mut connections = Vec::new();
            let mut is_over = false;
            while !is_over {
                is_over = wait_for(listener.as_fd(), &over);
                while let Some((stream, _)) = came(listener.accept()) {
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

    /// Answers questions for addresses.
    fn answer_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let own = socket.local_addr()?;
        let visits = self.visits.clone();
        let over = Arc::clone(&self.over);
        self.threads.push(thread::spawn(move || {
            let asked = AtomicUsize::new(0);
            let mut buffer = [0; LOOKED_AT];
            let mut is_over = false;
            while !is_over {
                is_over = wait_for(socket.as_fd(), &over);
                while let Some((length, from)) = came(socket.recv_from(&mut buffer)) {
                    let question = buffer.get(..length).unwrap_or_default();
                    match question_name(question).filter(|_| own.ip() == RESOLVER) {
                        Some(name) => {
                            visits.note(&format!("dns {name}"));
                            let address = address_of(&name, &asked);
                            answer_question(&socket, from, question, address);
                        }
                        None => visits.note(&format!("udp {own}")),
                    }
                }
            }
        }));
        Ok(())
    }
}

/// Ends the lab: a visit that is lost is an attack that is not seen.
fn lost() -> ! {
    std::process::exit(1);
}

/// Waits until something may have come, or nothing more will. Returns true in the second case.
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

/// Returns what has come, if anything has.
fn came<T>(result: io::Result<T>) -> Option<T> {
    match result {
        Ok(came) => Some(came),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(_) => lost(),
    }
}

/// Answers a connection once it has a request or TLS, and reads it to its end.
fn answer_stream(mut stream: TcpStream, visits: &Visits) {
    let Ok(own) = stream.local_addr() else { lost() };
    visits.note(&format!("tcp {own}"));
    let mut seen = Vec::new();
    let mut part = [0; 1_024];
    let mut answered = false;
    while let Ok(length @ 1..) = stream.read(&mut part) {
        let part = part.get(..length).unwrap_or_default();
        visits.note(&format!("data {own} {}", printable(part)));
        seen.extend_from_slice(part);
        let is_request = seen.windows(4).any(|four| four == b"\r\n\r\n");
        if !answered && (is_request || seen.first() == Some(&HANDSHAKE)) {
            answered = true;
            let answer: &[u8] = match is_request {
                true => b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n",
                false => b"hello\n",
            };
            // Whoever asked may be gone.
            stream.write_all(answer).unwrap_or_default();
        }
        if seen.len() > LOOKED_AT {
            return;
        }
    }
}

/// Writes what may be text on one line.
fn printable(bytes: &[u8]) -> String {
    let shown = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { ' ' };
    bytes.iter().map(shown).collect()
}

/// Returns the address of a name. That of `turn.lab` is another at its second question, which is an attack: a name that is
/// bound anew.
fn address_of(name: &str, asked: &AtomicUsize) -> Option<Ipv4Addr> {
    match name {
        "web.lab" => Some(WEB),
        "other.lab" => Some(Ipv4Addr::new(203, 0, 113, 20)),
        "tenant.wild.lab" => Some(PRIVATE),
        "meta.lab" => Some(METADATA),
        "own.lab" => Some(NEAR_ADDRESS),
        "turn.lab" if asked.fetch_add(1, Ordering::Relaxed) == 0 => Some(WEB),
        "turn.lab" => Some(METADATA),
        _ => None,
    }
}

/// Returns the name in the first question of a message (RFC 1035, 4.1), if it asks for an IPv4 address; of any other type
/// the name with the type.
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

/// Answers a question with an address that may not be kept, or with none.
fn answer_question(socket: &UdpSocket, to: SocketAddr, question: &[u8], address: Option<Ipv4Addr>) {
    let Some(end) = question.get(12..).and_then(|rest| rest.iter().position(|byte| *byte == 0))
    else {
        return;
    };
    // The head, the name, its type and class; of other questions nothing.
    let Some(asked) = question.get(..12 + end + 5) else { return };
    let mut answer = asked.to_vec();
    let counts = [0x81, 0x80, 0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0];
    for (to, from) in answer.iter_mut().skip(2).zip(counts) {
        *to = from;
    }
    if let Some(address) = address {
        // The name of the question again, an address of the Internet, for no time, in four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    socket.send_to(&answer, to).map(drop).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_and_a_name_is_bound_anew() {
        let mut message = vec![0; 12];
        message.extend(b"\x03WEB\x03lab\x00\x00\x01\x00\x01");
        assert_eq!(question_name(&message).as_deref(), Some("web.lab"));
        let kind = message.len() - 3;
        if let Some(byte) = message.get_mut(kind) {
            *byte = 65;
        }
        assert_eq!(question_name(&message).as_deref(), Some("web.lab type 65"));
        assert_eq!(question_name(message.get(..15).expect("a head")), None);
        let asked = AtomicUsize::new(0);
        let twice = [address_of("turn.lab", &asked), address_of("turn.lab", &asked)];
        assert_eq!(twice, [Some(WEB), Some(METADATA)]);
    }
}
