//! A connect that init tries for a caller, without blocking itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{getsockopt, sockopt};

use super::address::Address;
use sys::{Result, interrupt, socket};

/// Time limit for a connect that blocks because the program cleared O_NONBLOCK meanwhile: init
/// shares the socket's flags with the program.
const MAX_CONNECT_TIME: Duration = Duration::from_millis(1);
/// A socket that is being connected, and its target address.
#[derive(Debug)]
pub struct Connecting {
    pub(super) socket: OwnedFd,
    pub(super) address: Address,
    #[expect(dead_code, reason = "the address names it by its number, so it must stay open")]
    pub(super) held: Option<OwnedFd>,
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

    /// Reads the caller's time limit from its socket.
    pub(super) fn read_deadline(&mut self) -> Result<()> {
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
