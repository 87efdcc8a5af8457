//! Sockets of the host in a grant: none can be connected to.
//!
//! A read-only mount does not keep connect(2) out, and Landlock (up to ABI 7) has no right for it. So where
//! a cell has a directory of the host, init connects for it, on its own copies of the address and of
//! the socket, and follows a path only to a socket whose directory is the cell's own. A datagram takes an
//! address with it, in memory that no filter reads: such cells have no datagram sockets by path.
//!
//! bind(2) makes a name. If names are guarded, init binds too, in the directory that it has checked.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::fchdir;
use syscalls::Sysno;

use super::caller::TargetCall;
use super::calls::{self, CallGroup, MediatedCall, int};
use super::guard::NameGuard;
use super::handlers::{CallError, Handlers, Response, look};
use super::paths::{FoundFile, LastLink, Spot, TargetThread, Text};
use super::pending::Retry;
use model::profile::calls::number;
use model::profile::condition::Verdict;
use sys::lookup::{self, Follow};
use sys::{Result, interrupt, process, remote, socket};

/// The system calls by which init binds for others, besides those of connecting and of names.
pub(crate) const BINDING: [Sysno; 1] = [Sysno::bind];
/// The system calls by which init connects for others, besides those it always needs.
pub(crate) const CONNECTING: [Sysno; 11] = [
    Sysno::process_vm_readv,
    Sysno::pidfd_open,
    Sysno::pidfd_getfd,
    Sysno::openat2,
    Sysno::openat,
    Sysno::readlinkat,
    Sysno::fstatfs,
    Sysno::fchdir,
    Sysno::connect,
    Sysno::getsockopt,
    Sysno::setitimer,
];

/// Sockets of the family unix, as arguments of socket(2).
const STREAM: [u64; 6] = [1, 1, 0, 0, 0, 0];
const DATAGRAM: [u64; 6] = [1, 2, 0, 0, 0, 0];
const SEQUENCED: [u64; 6] = [1, 5, 0, 0, 0, 0];

/// Takes connect(2) out of `verdicts`, so that the filter asks the listener about it, and the datagram
/// sockets that need no connect; nothing where there are no sockets with paths. Also bind(2), where names
/// are `guarded`.
///
/// # Errors
/// ENOTSUP: a verdict on one of them that the guard does not know.
pub fn take(verdicts: &mut BTreeMap<u32, Verdict>, guarded: bool) -> Result<Vec<MediatedCall>> {
    let socket = number("socket").and_then(|number| verdicts.get(&number));
    let has = |kind| socket.is_some_and(|socket| socket.allows(kind));
    if ![STREAM, DATAGRAM, SEQUENCED].iter().any(has) {
        return Ok(Vec::new());
    }
    without(verdicts, "socket", &[DATAGRAM]);
    without(verdicts, "socketpair", &[DATAGRAM]);
    let mut watched = calls::take(verdicts, CallGroup::Connect)?;
    if guarded {
        watched.extend(calls::take(verdicts, CallGroup::Bind)?);
    }
    Ok(watched)
}

/// Takes away all sockets that have paths: where no init can judge them.
pub fn close(verdicts: &mut BTreeMap<u32, Verdict>) {
    without(verdicts, "socket", &[STREAM, DATAGRAM, SEQUENCED]);
    without(verdicts, "socketpair", &[DATAGRAM]);
}

/// Takes the alternatives away that allow one of these.
fn without(verdicts: &mut BTreeMap<u32, Verdict>, call: &str, kinds: &[[u64; 6]]) {
    let Some(number) = number(call) else { return };
    match verdicts.get_mut(&number) {
        Some(Verdict::AllowIf(any) | Verdict::AllowOrProbe(any, _)) => {
            any.retain(|all| !kinds.iter().any(|kind| all.iter().all(|test| test.holds(kind))))
        }
        // No condition to take a kind from: none at all then.
        Some(verdict @ Verdict::Allow) => *verdict = Verdict::Errno(libc::EPERM),
        Some(Verdict::Errno(_) | Verdict::Answered) | None => {}
    }
    if let Some(Verdict::AllowIf(any)) = verdicts.get(&number)
        && any.is_empty()
    {
        verdicts.remove(&number);
    }
}

/// A connect(2) or a bind(2): the caller's number of the socket, and where its address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketArguments {
    pub socket: i32,
    pub address: u64,
    pub length: i32,
}

impl SocketArguments {
    #[must_use]
    pub fn of(&[socket, address, length, ..]: &[u64; 6]) -> Self {
        Self { socket: int(socket), address, length: int(length) }
    }

    /// Takes a copy of the caller's socket.
    fn socket_of(self, target: TargetThread<'_>) -> Result<OwnedFd> {
        let number = u32::try_from(self.socket).map_err(|_| Errno::EBADF)?;
        process::take_descriptor(process::open_pidfd(target.status()?.process)?, number)
    }
}

/// How long init waits with a program that took O_NONBLOCK off the socket meanwhile: it is the program's
/// too, so the flag alone promises nothing.
const PATIENCE: Duration = Duration::from_millis(1);
/// The most that the kernel takes (sockaddr_storage).
const MOST: usize = 128;
/// The most of an address with a path, and its family before it (sockaddr_un).
const UNIX: usize = 110;
const FAMILY: usize = 2;

/// An address as the caller had it when it was copied.
#[derive(Debug, Clone)]
pub struct Address {
    bytes: [u8; MOST],
    length: usize,
}

impl Address {
    fn of(target: TargetThread<'_>, wanted: SocketArguments) -> Result<Self> {
        let length = usize::try_from(wanted.length).map_err(|_| Errno::EINVAL)?;
        let mut address = Self { bytes: [0; MOST], length };
        let room = address.bytes.get_mut(..length).ok_or(Errno::EINVAL)?;
        if !room.is_empty() && remote::read(target.pid, wanted.address, room)? < length {
            return Err(Errno::EFAULT);
        }
        Ok(address)
    }

    /// Makes an address of these bytes.
    ///
    /// # Errors
    /// EINVAL: more than the kernel takes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut address = Self { bytes: [0; MOST], length: bytes.len() };
        address.bytes.get_mut(..bytes.len()).ok_or(Errno::EINVAL)?.copy_from_slice(bytes);
        Ok(address)
    }

    /// Makes the address of a path of the file system.
    ///
    /// # Errors
    /// EINVAL: it is longer than such an address takes (unix(7)).
    fn of_path(path: &[u8]) -> Result<Self> {
        let family = libc::sa_family_t::try_from(libc::AF_UNIX).map_err(|_| Errno::EINVAL)?;
        let length = FAMILY + path.len() + 1;
        let mut address = Self { bytes: [0; MOST], length: length.min(UNIX) };
        let (start, rest) = address.bytes.split_at_mut(FAMILY);
        start.copy_from_slice(&family.to_ne_bytes());
        let room = rest.get_mut(..path.len()).filter(|_| path.len() <= UNIX - FAMILY);
        room.ok_or(Errno::EINVAL)?.copy_from_slice(path);
        Ok(address)
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Returns true for one of a socket of this machine's kernel (unix(7)), or of no family.
    fn is_local(&self) -> bool {
        let local = [libc::AF_UNIX, libc::AF_UNSPEC].map(libc::sa_family_t::try_from);
        let family = self.bytes().first_chunk().copied().map(libc::sa_family_t::from_ne_bytes);
        family.is_none_or(|family| local.contains(&Ok(family)))
    }

    /// Returns the path in it, up to its NUL (unix(7)); none of another family, of an abstract socket or of
    /// none.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        let (family, path) = self.bytes().split_at_checked(FAMILY)?;
        let is_unix = family == libc::sa_family_t::try_from(libc::AF_UNIX).ok()?.to_ne_bytes();
        let path = path.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())?;
        is_unix.then_some(path)
    }

    /// Returns the address of a file that init holds, by a path from the procfs, the current directory.
    fn of_held(held: &OwnedFd) -> Result<Self> {
        let mut address = Self { bytes: [0; MOST], length: 0 };
        let family = libc::sa_family_t::try_from(libc::AF_UNIX).map_err(|_| Errno::EINVAL)?;
        let mut rest = address.bytes.as_mut_slice();
        let written = rest
            .write_all(&family.to_ne_bytes())
            .and_then(|()| write!(rest, "self/fd/{}\0", held.as_raw_fd()));
        written.map_err(|_| Errno::ENAMETOOLONG)?;
        address.length = MOST - rest.len();
        Ok(address)
    }
}

/// A socket that connects, and what it connects to.
#[derive(Debug)]
pub struct Connecting {
    socket: OwnedFd,
    address: Address,
    #[expect(dead_code, reason = "the address names it by its number, so it must stay open")]
    held: Option<OwnedFd>,
    /// Time until which the caller waits, where it has set one (socket(7), SO_SNDTIMEO).
    pub(super) deadline: Option<Instant>,
}

impl Connecting {
    /// Returns the socket, which becomes writable once the network has answered. None where it does not: what waits
    /// for room in the backlog of a socket of the cell.
    pub(super) fn waited(&self) -> Option<BorrowedFd<'_>> {
        (!self.address.is_local()).then(|| self.socket.as_fd())
    }

    /// Returns the errno of a caller that has waited for as long as it wanted (connect(2)).
    pub(super) fn late(&self) -> Errno {
        if self.address.is_local() { Errno::EAGAIN } else { Errno::EINPROGRESS }
    }

    fn read_deadline(&mut self) -> Result<()> {
        let time = getsockopt(&self.socket, sockopt::SendTimeout)?;
        let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
        let micros = u64::try_from(time.tv_usec()).unwrap_or_default();
        let time = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
        self.deadline = Instant::now().checked_add(time).filter(|_| !time.is_zero());
        Ok(())
    }

    /// Tries to connect, without waiting. `Ok(false)`: the caller has to wait on.
    ///
    /// # Errors
    /// EINTR: the program changed the socket, so that init would have waited. Otherwise the errno of
    /// connect(2).
    pub fn tried(&self) -> Result<bool> {
        let set = OFlag::from_bits_retain(fcntl(&self.socket, FcntlArg::F_GETFL)?);
        if set.contains(OFlag::O_NONBLOCK) {
            return self.connected().map(|()| true);
        }
        fcntl(&self.socket, FcntlArg::F_SETFL(set | OFlag::O_NONBLOCK))?;
        let result = match self.connected() {
            // On a loopback it is done as soon as it is begun.
            Err(Errno::EINPROGRESS) => self.connected(),
            result => result,
        };
        fcntl(&self.socket, FcntlArg::F_SETFL(set))?;
        match result {
            Ok(()) => Ok(true),
            Err(Errno::EAGAIN | Errno::EINPROGRESS | Errno::EALREADY) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    fn connected(&self) -> Result<()> {
        interrupt::within(PATIENCE, || socket::connect(&self.socket, self.address.bytes()))
    }
}

/// Connects for the caller, unless it is to a socket in a directory of the host.
pub fn connected(
    caller: &TargetCall<'_>,
    name_guard: &NameGuard<'_>,
    wanted: SocketArguments,
) -> std::result::Result<Response, CallError> {
    let target = caller.target;
    let socket = wanted.socket_of(target)?;
    let address = Address::of(target, wanted)?;
    let (address, held) = match address.path() {
        Some(path) => {
            let held = judged(target, name_guard, Text::new(path)?)?;
            (Address::of_held(&held)?, Some(held))
        }
        None => (address, None),
    };
    caller.still_waits()?;
    let mut connecting = Connecting { socket, address, held, deadline: None };
    if connecting.tried()? {
        return Ok(Response::Value(0));
    }
    connecting.read_deadline()?;
    Ok(Response::Later(Retry::Connection(connecting)))
}

/// Holds the socket that a path leads to, if its directory is the cell's own.
fn judged(
    target: TargetThread<'_>,
    name_guard: &NameGuard<'_>,
    path: Text,
) -> std::result::Result<OwnedFd, CallError> {
    let from = libc::AT_FDCWD;
    let spot = match target.led(from, path, LastLink::Follow)? {
        FoundFile::Spot(spot) => spot,
        // Of what a descriptor holds the directory is not known.
        FoundFile::Descriptor(_) => return Err(CallError::Errno(Errno::EACCES)),
    };
    if spot.is_no_file() {
        return Err(CallError::Errno(Errno::ECONNREFUSED));
    }
    if !name_guard.is_private(&spot.parent)? {
        return Err(match look(&spot)? {
            Some(SFlag::S_IFSOCK) => CallError::Guarded,
            Some(_) => CallError::Errno(Errno::ECONNREFUSED),
            None => CallError::Errno(Errno::ENOENT),
        });
    }
    held(&spot).map_err(CallError::Errno)
}

fn held(spot: &Spot) -> Result<OwnedFd> {
    let hold = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let held = lookup::open(&spot.parent, spot.last()?, hold, 0, Follow::Nothing)?;
    match SFlag::from_bits_truncate(fstat(&held)?.st_mode & libc::S_IFMT) {
        SFlag::S_IFSOCK => Ok(held),
        _ => Err(Errno::ECONNREFUSED),
    }
}

/// Binds for the caller, unless the name is one that the host obeys.
///
/// The address that a socket tells (getsockname(2)) is the caller's where the path leads straight into one
/// of the cell's own filesystems; elsewhere, where somebody else could turn a link on the way, it is the name
/// alone, in the directory that was judged.
pub fn bound(
    handlers: &Handlers<'_>,
    caller: &TargetCall<'_>,
    wanted: SocketArguments,
) -> std::result::Result<Response, CallError> {
    let (target, name_guard) = (caller.target, &handlers.name_guard);
    let socket = wanted.socket_of(target)?;
    let address = Address::of(target, wanted)?;
    let Some(path) = address.path() else {
        caller.still_waits()?;
        socket::bind(&socket, address.bytes())?;
        return Ok(Response::Value(0));
    };
    let spot = target.spot_of(libc::AT_FDCWD, &Text::new(path)?)?;
    let no_file = spot.is_no_file();
    if no_file || name_guard.is_guarded(&spot)? {
        return Err(match look(&spot.without_slashes()?)? {
            Some(_) => CallError::Errno(Errno::EADDRINUSE),
            // With a slash behind it, it would be a directory.
            None if no_file => CallError::Errno(Errno::ENOENT),
            None => CallError::Guarded,
        });
    }
    let from = target.start_of(path)?;
    let straight =
        name_guard.is_alone(&spot.parent)? && name_guard.leads_straight(&from, path, &spot)?;
    caller.lend_umask()?;
    caller.still_waits()?;
    if straight {
        bind_from(name_guard, &from, &socket, address.bytes())?;
    } else {
        bind_from(name_guard, &spot.parent, &socket, Address::of_path(spot.name())?.bytes())?;
    }
    Ok(Response::Value(0))
}

/// Binds with a directory for the current one.
fn bind_from(
    name_guard: &NameGuard<'_>,
    from: &OwnedFd,
    socket: &OwnedFd,
    address: &[u8],
) -> Result<()> {
    fchdir(from)?;
    let result = socket::bind(socket, address);
    if fchdir(&name_guard.proc).is_err() {
        // By paths from there init names what it holds: elsewhere they would name something else.
        process::exit_now(1);
    }
    result
}
