//! Prevents connections to sockets of the host in a grant.
//!
//! A read-only mount does not prevent connect(2), and Landlock (up to ABI 7) has no right for it.
//! So if a cell has a directory of the host, init connects for it, on private copies of the address
//! and of the socket, and accepts a path only to a socket in a private directory of the cell.
//! Datagrams carry an address in memory that no filter can read: such cells have no datagram
//! sockets with paths.
//!
//! bind(2) makes a name. If names are guarded, init binds too, in the directory that it has
//! checked.

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
use super::handlers::{CallError, Handlers, Response, kind_of};
use super::paths::{FoundFile, LastLink, Spot, TargetThread, Text};
use super::pending::Retry;
use model::profile::calls::number;
use model::profile::condition::Verdict;
use sys::lookup::{self, Follow};
use sys::{Result, interrupt, process, remote, socket};

/// The system calls by which init binds for others, in addition to those for connecting and for
/// names.
pub(crate) const BINDING: [Sysno; 1] = [Sysno::bind];
/// The system calls by which init connects for others, in addition to those of every init.
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

/// Removes connect(2) from `verdicts`, so that the filter notifies the listener of it, and datagram
/// sockets, which need no connect; with `guarded` names also bind(2). Does nothing if the cell has
/// no sockets with paths.
///
/// # Errors
/// ENOTSUP: the guard does not support one of these verdicts.
pub fn take(verdicts: &mut BTreeMap<u32, Verdict>, guarded: bool) -> Result<Vec<MediatedCall>> {
    let socket = number("socket").and_then(|number| verdicts.get(&number));
    let has = |kind| socket.is_some_and(|socket| socket.allows(kind));
    if ![STREAM, DATAGRAM, SEQUENCED].iter().any(has) {
        return Ok(Vec::new());
    }
    without(verdicts, "socket", &[DATAGRAM]);
    without(verdicts, "socketpair", &[DATAGRAM]);
    let mut mediated = calls::take(verdicts, CallGroup::Connect)?;
    if guarded {
        mediated.extend(calls::take(verdicts, CallGroup::Bind)?);
    }
    Ok(mediated)
}

/// Removes all sockets with paths, in cells whose init cannot check them.
pub fn close(verdicts: &mut BTreeMap<u32, Verdict>) {
    without(verdicts, "socket", &[STREAM, DATAGRAM, SEQUENCED]);
    without(verdicts, "socketpair", &[DATAGRAM]);
}

/// Removes the alternatives that allow one of these kinds.
fn without(verdicts: &mut BTreeMap<u32, Verdict>, call: &str, kinds: &[[u64; 6]]) {
    let Some(number) = number(call) else { return };
    match verdicts.get_mut(&number) {
        Some(Verdict::AllowIf(any) | Verdict::AllowOrProbe(any, _)) => {
            any.retain(|all| !kinds.iter().any(|kind| all.iter().all(|test| test.holds(kind))))
        }
        // Without conditions no single kind can be removed: the whole call is refused.
        Some(verdict @ Verdict::Allow) => *verdict = Verdict::Errno(libc::EPERM),
        Some(Verdict::Errno(_) | Verdict::Answered) | None => {}
    }
    if let Some(Verdict::AllowIf(any)) = verdicts.get(&number)
        && any.is_empty()
    {
        verdicts.remove(&number);
    }
}

/// Arguments of connect(2) or bind(2): the caller's number of the socket, and the location of its
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketArguments {
    pub socket: i32,
    pub address: u64,
    pub length: i32,
}

impl SocketArguments {
    #[must_use]
    pub fn from_registers(&[socket, address, length, ..]: &[u64; 6]) -> Self {
        Self { socket: int(socket), address, length: int(length) }
    }

    /// Takes a copy of the caller's socket.
    fn take_socket(self, target: TargetThread<'_>) -> Result<OwnedFd> {
        let number = u32::try_from(self.socket).map_err(|_| Errno::EBADF)?;
        process::take_descriptor(process::open_pidfd(target.status()?.process)?, number)
    }
}

/// Time limit for a connect that blocks because the program cleared O_NONBLOCK meanwhile: init
/// shares the socket's flags with the program.
const MAX_CONNECT_TIME: Duration = Duration::from_millis(1);
/// Maximum length of an address in the kernel (sockaddr_storage).
const MAX_ADDRESS_BYTES: usize = 128;
/// Maximum length of an address with a path (sockaddr_un), and of the family that precedes it.
const MAX_UNIX_BYTES: usize = 110;
const FAMILY_BYTES: usize = 2;

/// Copy of an address of the caller.
#[derive(Debug, Clone)]
pub struct Address {
    bytes: [u8; MAX_ADDRESS_BYTES],
    length: usize,
}

impl Address {
    fn read_from(target: TargetThread<'_>, wanted: SocketArguments) -> Result<Self> {
        let length = usize::try_from(wanted.length).map_err(|_| Errno::EINVAL)?;
        let mut address = Self { bytes: [0; MAX_ADDRESS_BYTES], length };
        let room = address.bytes.get_mut(..length).ok_or(Errno::EINVAL)?;
        if !room.is_empty() && remote::read(target.pid, wanted.address, room)? < length {
            return Err(Errno::EFAULT);
        }
        Ok(address)
    }

    /// Makes an address from bytes.
    ///
    /// # Errors
    /// EINVAL: longer than the kernel allows.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut address = Self { bytes: [0; MAX_ADDRESS_BYTES], length: bytes.len() };
        address.bytes.get_mut(..bytes.len()).ok_or(Errno::EINVAL)?.copy_from_slice(bytes);
        Ok(address)
    }

    /// Makes the address of a path in the file system.
    ///
    /// # Errors
    /// EINVAL: longer than such an address allows (unix(7)).
    fn from_path(path: &[u8]) -> Result<Self> {
        let family = libc::sa_family_t::try_from(libc::AF_UNIX).map_err(|_| Errno::EINVAL)?;
        let length = FAMILY_BYTES + path.len() + 1;
        let mut address =
            Self { bytes: [0; MAX_ADDRESS_BYTES], length: length.min(MAX_UNIX_BYTES) };
        let (start, rest) = address.bytes.split_at_mut(FAMILY_BYTES);
        start.copy_from_slice(&family.to_ne_bytes());
        let room =
            rest.get_mut(..path.len()).filter(|_| path.len() <= MAX_UNIX_BYTES - FAMILY_BYTES);
        room.ok_or(Errno::EINVAL)?.copy_from_slice(path);
        Ok(address)
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Returns true for the address of a unix socket (unix(7)), or one without a family.
    fn is_local(&self) -> bool {
        let local = [libc::AF_UNIX, libc::AF_UNSPEC].map(libc::sa_family_t::try_from);
        let family = self.bytes().first_chunk().copied().map(libc::sa_family_t::from_ne_bytes);
        family.is_none_or(|family| local.contains(&Ok(family)))
    }

    /// Returns the path in the address, up to its NUL (unix(7)). `None` for another family, for an
    /// abstract socket and for an unnamed one.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        let (family, path) = self.bytes().split_at_checked(FAMILY_BYTES)?;
        let is_unix = family == libc::sa_family_t::try_from(libc::AF_UNIX).ok()?.to_ne_bytes();
        let path = path.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())?;
        is_unix.then_some(path)
    }

    /// Returns the address of a held file, as a path relative to the procfs, the current directory.
    fn from_held(held: &OwnedFd) -> Result<Self> {
        let mut address = Self { bytes: [0; MAX_ADDRESS_BYTES], length: 0 };
        let family = libc::sa_family_t::try_from(libc::AF_UNIX).map_err(|_| Errno::EINVAL)?;
        let mut rest = address.bytes.as_mut_slice();
        let written = rest
            .write_all(&family.to_ne_bytes())
            .and_then(|()| write!(rest, "self/fd/{}\0", held.as_raw_fd()));
        written.map_err(|_| Errno::ENAMETOOLONG)?;
        address.length = MAX_ADDRESS_BYTES - rest.len();
        Ok(address)
    }
}

/// A socket that is being connected, and its target address.
#[derive(Debug)]
pub struct Connecting {
    socket: OwnedFd,
    address: Address,
    #[expect(dead_code, reason = "the address names it by its number, so it must stay open")]
    held: Option<OwnedFd>,
    /// End of the caller's waiting time, if it has set one (socket(7), SO_SNDTIMEO).
    pub(super) deadline: Option<Instant>,
}

impl Connecting {
    /// Returns the socket if it becomes writable once the network has answered. `None` for a unix
    /// socket, which waits for room in the backlog of another socket of the cell.
    pub(super) fn waited(&self) -> Option<BorrowedFd<'_>> {
        (!self.address.is_local()).then(|| self.socket.as_fd())
    }

    /// Returns the errno for a caller whose time limit has passed (connect(2)).
    pub(super) fn late_errno(&self) -> Errno {
        if self.address.is_local() { Errno::EAGAIN } else { Errno::EINPROGRESS }
    }

    fn read_deadline(&mut self) -> Result<()> {
        let time = getsockopt(&self.socket, sockopt::SendTimeout)?;
        let seconds = u64::try_from(time.tv_sec()).unwrap_or_default();
        // The kernel returns no negative time.
        let micros = u64::try_from(time.tv_usec()).unwrap_or_default();
        let time = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
        self.deadline = Instant::now().checked_add(time).filter(|_| !time.is_zero());
        Ok(())
    }

    /// Tries to connect without blocking. `Ok(false)`: the caller has to wait.
    ///
    /// # Errors
    /// EINTR: the program changed the socket, so that init would have blocked. Otherwise the errno
    /// of connect(2).
    pub(crate) fn try_connect(&self) -> Result<bool> {
        let set = OFlag::from_bits_retain(fcntl(&self.socket, FcntlArg::F_GETFL)?);
        if set.contains(OFlag::O_NONBLOCK) {
            return self.connect().map(|()| true);
        }
        fcntl(&self.socket, FcntlArg::F_SETFL(set | OFlag::O_NONBLOCK))?;
        let result = match self.connect() {
            // On a loopback the connection is complete as soon as it was begun.
            Err(Errno::EINPROGRESS) => self.connect(),
            result => result,
        };
        fcntl(&self.socket, FcntlArg::F_SETFL(set))?;
        match result {
            Ok(()) => Ok(true),
            Err(Errno::EAGAIN | Errno::EINPROGRESS | Errno::EALREADY) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    fn connect(&self) -> Result<()> {
        interrupt::within(MAX_CONNECT_TIME, || socket::connect(&self.socket, self.address.bytes()))
    }
}

/// Connects for the caller, except to a socket in a directory of the host.
pub fn connected(
    caller: &TargetCall<'_>,
    name_guard: &NameGuard<'_>,
    wanted: SocketArguments,
) -> std::result::Result<Response, CallError> {
    let target = caller.target;
    let socket = wanted.take_socket(target)?;
    let address = Address::read_from(target, wanted)?;
    let (address, held_socket) = match address.path() {
        Some(path) => {
            let held_socket = check_socket(target, name_guard, Text::new(path)?)?;
            (Address::from_held(&held_socket)?, Some(held_socket))
        }
        None => (address, None),
    };
    caller.still_waits()?;
    let mut connecting = Connecting { socket, address, held: held_socket, deadline: None };
    if connecting.try_connect()? {
        return Ok(Response::Value(0));
    }
    connecting.read_deadline()?;
    Ok(Response::Later(Retry::Connection(connecting)))
}

/// Opens the socket that a path leads to, if its directory is private to the cell.
fn check_socket(
    target: TargetThread<'_>,
    name_guard: &NameGuard<'_>,
    path: Text,
) -> std::result::Result<OwnedFd, CallError> {
    let from = libc::AT_FDCWD;
    let spot = match target.find_text(from, path, LastLink::Follow)? {
        FoundFile::Spot(spot) => spot,
        // The directory of a descriptor's file is not known.
        FoundFile::Descriptor(_) => return Err(CallError::Errno(Errno::EACCES)),
    };
    if spot.is_no_file() {
        return Err(CallError::Errno(Errno::ECONNREFUSED));
    }
    if !name_guard.is_private(&spot.parent)? {
        return Err(match kind_of(&spot)? {
            Some(SFlag::S_IFSOCK) => CallError::Guarded,
            Some(_) => CallError::Errno(Errno::ECONNREFUSED),
            None => CallError::Errno(Errno::ENOENT),
        });
    }
    hold_socket(&spot).map_err(CallError::Errno)
}

fn hold_socket(spot: &Spot) -> Result<OwnedFd> {
    let hold = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let held = lookup::open(&spot.parent, spot.last()?, hold, 0, Follow::Nothing)?;
    match SFlag::from_bits_truncate(fstat(&held)?.st_mode & libc::S_IFMT) {
        SFlag::S_IFSOCK => Ok(held),
        _ => Err(Errno::ECONNREFUSED),
    }
}

/// Binds for the caller, unless the host obeys the name.
///
/// getsockname(2) returns the caller's address if the path leads without links into a private
/// filesystem of the cell. In all other directories another process could replace a part of the
/// path by a link: there the socket is bound to the bare name in the directory that was checked.
pub fn bound(
    handlers: &Handlers<'_>,
    caller: &TargetCall<'_>,
    wanted: SocketArguments,
) -> std::result::Result<Response, CallError> {
    let target = caller.target;
    let name_guard = &handlers.name_guard;
    let socket = wanted.take_socket(target)?;
    let address = Address::read_from(target, wanted)?;
    let Some(path) = address.path() else {
        caller.still_waits()?;
        socket::bind(&socket, address.bytes())?;
        return Ok(Response::Value(0));
    };
    let spot = target.spot_of_text(libc::AT_FDCWD, &Text::new(path)?)?;
    let no_file = spot.is_no_file();
    if no_file || name_guard.is_guarded(&spot)? {
        return Err(match kind_of(&spot.without_slashes()?)? {
            Some(_) => CallError::Errno(Errno::EADDRINUSE),
            // With a trailing slash it would be a directory.
            None if no_file => CallError::Errno(Errno::ENOENT),
            None => CallError::Guarded,
        });
    }
    let from = target.start_of(path)?;
    let is_direct =
        name_guard.is_alone(&spot.parent)? && name_guard.leads_straight(&from, path, &spot)?;
    caller.lend_umask()?;
    caller.still_waits()?;
    if is_direct {
        bind_from(name_guard, &from, &socket, address.bytes())?;
    } else {
        bind_from(name_guard, &spot.parent, &socket, Address::from_path(spot.name())?.bytes())?;
    }
    Ok(Response::Value(0))
}

/// Binds with `from` as the current directory.
fn bind_from(
    name_guard: &NameGuard<'_>,
    from: &OwnedFd,
    socket: &OwnedFd,
    address: &[u8],
) -> Result<()> {
    fchdir(from)?;
    let result = socket::bind(socket, address);
    if fchdir(&name_guard.proc).is_err() {
        // Init names its files by paths relative to this directory: from another one they would
        // name other files.
        process::exit_now(1);
    }
    result
}
