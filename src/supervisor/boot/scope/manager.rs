//! Asks the user's service manager for a transient scope, and waits for the result.
//!
//! Uses the manager's private socket `$XDG_RUNTIME_DIR/systemd/private`, otherwise the user's bus.
//! All requests are sent at once, like sd-bus does, so that there is one round trip. Reading is
//! limited in bytes and time.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::geteuid;

use super::dbus::{self, Malformed, Message, Method, Writer};
use super::groups::UnitLimits;

/// A manager's address and its protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Manager {
    /// The manager's private socket, without a bus.
    Direct(PathBuf),
    /// The user's bus.
    Bus(PathBuf),
}

/// A request for a scope with this name and one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub unit: String,
    /// Pid in the manager's pid namespace.
    pub pid: u32,
    /// Limits of the requesting unit, which the cells must not escape.
    pub limits: UnitLimits,
}

/// Why there is no scope.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Refusal {
    #[error("the service manager cannot be reached: {0}")]
    Unreachable(Errno),
    #[error("the service manager belongs to another user")]
    Stranger,
    #[error("the service manager is in another pid namespace")]
    OtherNamespace,
    #[error("the service manager did not answer in time")]
    Late,
    #[error("the service manager closed the connection")]
    Closed,
    #[error("the service manager's answer is no D-Bus message")]
    Malformed,
    #[error("the service manager refused: {0}")]
    Refused(String),
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Maximum bytes that a manager may send before its answer: signals of other units may come first.
const MAX_BYTES: usize = 1 << 20;
/// Maximum bytes of the line that answers the authentication.
const MAX_LINE_BYTES: usize = 512;
/// Maximum characters of a reported reason.
const MAX_REASON_CHARS: usize = 200;

const SYSTEMD: &str = "org.freedesktop.systemd1";
const BUS: &str = "org.freedesktop.DBus";
/// Serial of the only call whose answer matters.
const START: u32 = 3;

impl Manager {
    /// Finds the user's manager by `$XDG_RUNTIME_DIR`, otherwise in the directory that pam_systemd
    /// uses.
    pub(crate) fn find(runtime: Option<&Path>) -> Option<Self> {
        let usual = || PathBuf::from(format!("/run/user/{}", geteuid()));
        let directory =
            runtime.filter(|path| path.is_absolute()).map_or_else(usual, Path::to_owned);
        let direct = directory.join("systemd/private");
        let bus = directory.join("bus");
        if direct.exists() {
            Some(Self::Direct(direct))
        } else {
            bus.exists().then_some(Self::Bus(bus))
        }
    }

    /// Asks for the scope, and returns once the process is in it.
    ///
    /// # Errors
    /// The reason why it is not.
    pub(crate) fn ask(&self, request: &Request, deadline: Instant) -> Result<(), Refusal> {
        let (Self::Direct(path) | Self::Bus(path)) = self;
        let mut stream = open_stream(path, deadline)?;
        check_peer(&stream)?;
        let written = stream.write_all(&self.opening(request));
        written.map_err(|error| refusal_of(&error))?;
        let mut connection = Connection { stream, deadline, bytes: Vec::new(), read: 0 };
        connection.read_authentication()?;
        loop {
            let length = connection.read_message()?;
            let bytes = connection.bytes.get(..length).unwrap_or_default();
            let outcome = judge(&Message::read(bytes)?, &request.unit);
            connection.bytes.drain(..length);
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
    }

    /// Returns everything that is sent: the authentication and the request.
    fn opening(&self, request: &Request) -> Vec<u8> {
        let id: String =
            geteuid().to_string().bytes().map(|digit| format!("{digit:02x}")).collect();
        let mut bytes = format!("\0AUTH EXTERNAL {id}\r\nBEGIN\r\n").into_bytes();
        if let Self::Bus(_) = self {
            let method = |name| Method {
                destination: BUS,
                path: "/org/freedesktop/DBus",
                interface: BUS,
                name,
            };
            bytes.extend(dbus::call(1, &method("Hello"), "", &Writer::default()));
            let mut rule = Writer::default();
            rule.text(&format!(
                "type='signal',sender='{SYSTEMD}',interface='{SYSTEMD}.Manager',member='JobRemoved'"
            ));
            bytes.extend(dbus::call(2, &method("AddMatch"), "s", &rule));
        }
        let method = Method {
            destination: SYSTEMD,
            path: "/org/freedesktop/systemd1",
            interface: "org.freedesktop.systemd1.Manager",
            name: "StartTransientUnit",
        };
        bytes.extend(dbus::call(START, &method, "ssa(sv)a(sa(sv))", &body(request)));
        bytes
    }
}

/// Encodes the arguments of `StartTransientUnit` (org.freedesktop.systemd1(5)).
fn body(request: &Request) -> Writer {
    let mut body = Writer::default();
    body.text(&request.unit);
    // Fail if a unit with this name exists.
    body.text("fail");
    body.array(8, |properties| {
        let mut property = |name: &str, kind: &str, value: &dyn Fn(&mut Writer)| {
            properties.structure(|one| {
                one.text(name);
                one.signature(kind);
                value(one);
            });
        };
        property("Description", "s", &|one| one.text("cells of cofferdam"));
        property("PIDs", "au", &|one| one.array(4, |pids| pids.word(request.pid)));
        // The default slice for a user's programs since systemd 247. Older managers would use the
        // root slice, without the limits and weights that the user has set on this one
        // (systemd.special(7)).
        property("Slice", "s", &|one| one.text("app.slice"));
        property("Delegate", "b", &|one| one.word(1));
        // Remove the unit even if it failed.
        property("CollectMode", "s", &|one| one.text("inactive-or-failed"));
        // A supervisor is the init of its pid namespace and ignores SIGTERM: stopping the scope or
        // logging out must not wait for it.
        property("KillSignal", "i", &|one| one.word(9));
        for (name, value) in request.limits.properties() {
            property(name, "t", &|one| one.long(value));
        }
    });
    // No auxiliary units.
    body.array(8, |_| {});
    body
}

/// Interprets a message; `None` if it does not concern the request.
fn judge(message: &Message<'_>, unit: &str) -> Option<Result<(), Refusal>> {
    match message.kind {
        // Answers Hello, AddMatch or the request: if any of them fails, there is no scope.
        dbus::ERROR => {
            let text = message.signature.starts_with('s').then(|| message.body().text()).flatten();
            let reason = text.filter(|text| !text.is_empty()).unwrap_or(message.error);
            Some(Err(Refusal::Refused(shown(reason))))
        }
        dbus::SIGNAL if message.member == "JobRemoved" && message.signature == "uoss" => {
            let mut body = message.body();
            let read = body
                .word()
                .and_then(|_id| body.text())
                .and_then(|_job| Some((body.text()?, body.text()?)));
            match read {
                None => Some(Err(Refusal::Malformed)),
                Some((name, _)) if name != unit => None,
                Some((_, "done")) => Some(Ok(())),
                Some((_, result)) => {
                    Some(Err(Refusal::Refused(format!("its job ended as `{}`", shown(result)))))
                }
            }
        }
        _ => None,
    }
}

/// Makes a manager's text safe for a terminal, and limits its length.
fn shown(text: &str) -> String {
    text.escape_debug().take(MAX_REASON_CHARS).collect()
}

/// Connects without blocking on a listener that accepts no connection.
fn open_stream(path: &Path, deadline: Instant) -> Result<UnixStream, Refusal> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let made = socket(AddressFamily::Unix, SockType::Stream, flags, None);
    let socket = made.map_err(Refusal::Unreachable)?;
    let address = UnixAddr::new(path).map_err(Refusal::Unreachable)?;
    loop {
        let left = left(deadline)?;
        // Limits the time of connect(2) too (unix(7)).
        let micros = i64::try_from(left.as_micros()).unwrap_or(i64::MAX);
        let timeout = TimeVal::new(micros / 1_000_000, micros % 1_000_000);
        setsockopt(&socket, sockopt::SendTimeout, &timeout).map_err(Refusal::Unreachable)?;
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => return Ok(UnixStream::from(socket)),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Err(Refusal::Late),
            Err(errno) => return Err(Refusal::Unreachable(errno)),
        }
    }
}

/// Refuses a manager of another user, or one that sees other processes at our pids.
fn check_peer(stream: &UnixStream) -> Result<(), Refusal> {
    let peer =
        getsockopt(&stream.as_fd(), sockopt::PeerCredentials).map_err(Refusal::Unreachable)?;
    if peer.uid() != geteuid().as_raw() {
        return Err(Refusal::Stranger);
    }
    // The pid is 0 if the process is outside this pid namespace; a process in a nested one has
    // several pids.
    let status = std::fs::read_to_string(format!("/proc/{}/status", peer.pid()));
    let status = status.unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    match pids.map(|pids| pids.split_ascii_whitespace().count()) {
        Some(1) => Ok(()),
        Some(_) | None => Err(Refusal::OtherNamespace),
    }
}

fn left(deadline: Instant) -> Result<Duration, Refusal> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Refusal::Late) } else { Ok(left) }
}

fn refusal_of(error: &std::io::Error) -> Refusal {
    let errno = cell::errno_of(error);
    if errno == Errno::EAGAIN {
        Refusal::Late
    } else if [Errno::EPIPE, Errno::ECONNRESET].contains(&errno) {
        Refusal::Closed
    } else {
        Refusal::Unreachable(errno)
    }
}

/// A connection with the received bytes that are not yet processed.
struct Connection {
    stream: UnixStream,
    deadline: Instant,
    bytes: Vec<u8>,
    /// Bytes received in total.
    read: usize,
}

impl Connection {
    /// Waits for more bytes.
    fn more(&mut self) -> Result<(), Refusal> {
        let mut buffer = [0; 4096];
        let left = left(self.deadline)?;
        self.stream.set_read_timeout(Some(left)).map_err(|error| refusal_of(&error))?;
        let length = match self.stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            read => read.map_err(|error| refusal_of(&error))?,
        };
        if length == 0 {
            return Err(Refusal::Closed);
        }
        self.read += length;
        if self.read > MAX_BYTES {
            return Err(Refusal::Malformed);
        }
        self.bytes.extend(buffer.get(..length).unwrap_or_default());
        Ok(())
    }

    /// Reads the line that answers AUTH.
    fn read_authentication(&mut self) -> Result<(), Refusal> {
        let end = loop {
            if let Some(end) = self.bytes.windows(2).position(|two| two == b"\r\n") {
                break end;
            }
            if self.bytes.len() > MAX_LINE_BYTES {
                return Err(Refusal::Malformed);
            }
            self.more()?;
        };
        let line: Vec<u8> = self.bytes.drain(..end + 2).collect();
        if line.starts_with(b"OK ") {
            Ok(())
        } else if line.starts_with(b"REJECTED") {
            Err(Refusal::Refused("it does not take this user".to_owned()))
        } else {
            Err(Refusal::Malformed)
        }
    }

    /// Waits for a complete message and returns its length.
    fn read_message(&mut self) -> Result<usize, Refusal> {
        loop {
            match dbus::length(&self.bytes)? {
                Some(length) if length <= self.bytes.len() => return Ok(length),
                Some(_) | None => self.more()?,
            }
        }
    }
}
