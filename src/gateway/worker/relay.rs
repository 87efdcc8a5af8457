//! Moves the bytes of a connection both ways, within the limits of its call.

use std::io;

use model::egress::ConnectionEnd;
use tokio::net::TcpStream;

use super::account::{Allowance, Direction, Entry};
use super::stack::{CellStream, Ready, lock};
use super::traffic::CellTraffic;

/// The two sides of a connection, and where its bytes count.
pub(super) struct Relay<'a> {
    pub traffic: &'a CellTraffic,
    pub cell: &'a CellStream,
    pub host: &'a TcpStream,
    pub entry: &'a Entry,
}

impl Relay<'_> {
    /// Moves bytes both ways until both sides have closed or a limit is reached.
    pub(super) async fn run(&self, sent: &mut u64, received: &mut u64) -> ConnectionEnd {
        let both = async { tokio::try_join!(self.to_host(sent), self.to_cell(received)) };
        let result = tokio::select! {
            biased;
            result = both => result,
            // Both directions may be waiting for the server only.
            () = self.cell.reset() => Err(RelayError::Reset),
        };
        match result {
            Ok(_) => ConnectionEnd::Relayed,
            Err(RelayError::Limit) => {
                self.cut();
                ConnectionEnd::Limit
            }
            Err(RelayError::Reset) => {
                self.cut();
                ConnectionEnd::Relayed
            }
        }
    }

    async fn to_host(&self, count: &mut u64) -> Result<(), RelayError> {
        while self.cell.readable().await? == Ready::Yes {
            self.wait_for_allowance(Direction::Sent).await?;
            self.host.writable().await?;
            let moved = self.transfer(Direction::Sent, |max_bytes| {
                self.cell.receive(|bytes| {
                    let length = bytes.len().min(max_bytes);
                    let result = self.host.try_write(bytes.get(..length).unwrap_or_default());
                    (*result.as_ref().unwrap_or(&0), result)
                })
            })?;
            *count = count.saturating_add(moved.bytes());
        }
        shut_down(self.host);
        // The program may be gone; a cell that waits for nothing would never send a reset by
        // itself.
        self.cell.enable_keep_alive();
        Ok(())
    }

    async fn to_cell(&self, count: &mut u64) -> Result<(), RelayError> {
        loop {
            self.wait_for_allowance(Direction::Received).await?;
            self.host.readable().await?;
            self.cell.writable().await?;
            let moved = self.transfer(Direction::Received, |max_bytes| {
                self.cell.send(|room| {
                    let length = room.len().min(max_bytes);
                    let result = self.host.try_read(room.get_mut(..length).unwrap_or_default());
                    (*result.as_ref().unwrap_or(&0), result)
                })
            })?;
            if moved == Moved::Bytes(0) {
                break;
            }
            *count = count.saturating_add(moved.bytes());
        }
        self.cell.finish();
        // Half closed: the cell may keep sending.
        Ok(())
    }

    /// Moves as many bytes as the call may move now, and counts them. `transfer` is a plain closure
    /// so that it cannot await: otherwise each connection of the call could move the same bytes of
    /// its limits.
    fn transfer(
        &self,
        direction: Direction,
        try_move: impl FnOnce(usize) -> io::Result<io::Result<usize>>,
    ) -> Result<Moved, RelayError> {
        let allowance = lock(&self.traffic.account).allowance(self.entry.call, direction);
        let max_bytes = match allowance {
            Allowance::Bytes(bytes) => bytes,
            // The caller waits before the next try.
            Allowance::Wait(_) => return Ok(Moved::Later),
            Allowance::Over => return Err(RelayError::Limit),
        };
        match try_move(max_bytes)? {
            Ok(bytes) => {
                lock(&self.traffic.account).count_moved(self.entry, direction, bytes);
                Ok(Moved::Bytes(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Moved::Later),
            Err(_) => Err(RelayError::Reset),
        }
    }

    /// Waits until bytes may be moved.
    async fn wait_for_allowance(&self, direction: Direction) -> Result<(), RelayError> {
        loop {
            let allowance = lock(&self.traffic.account).allowance(self.entry.call, direction);
            match allowance {
                Allowance::Bytes(_) => return Ok(()),
                Allowance::Wait(time) => tokio::time::sleep(time).await,
                Allowance::Over => return Err(RelayError::Limit),
            }
        }
    }

    /// Closes both sides with a reset.
    fn cut(&self) {
        self.cell.abort();
        // On failure closing the socket sends FIN or RST anyway.
        nix::sys::socket::setsockopt(
            self.host,
            nix::sys::socket::sockopt::Linger,
            &nix::libc::linger { l_onoff: 1, l_linger: 0 },
        )
        .unwrap_or_default();
    }
}

/// Number of bytes moved, or `Later` if the other side or the rate had no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Bytes(usize),
    Later,
}

impl Moved {
    fn bytes(self) -> u64 {
        match self {
            Self::Bytes(bytes) => u64::try_from(bytes).unwrap_or(u64::MAX),
            Self::Later => 0,
        }
    }
}

/// Why a relay ended before both sides had closed.
#[derive(Debug)]
enum RelayError {
    Reset,
    Limit,
}

impl From<io::Error> for RelayError {
    fn from(_: io::Error) -> Self {
        Self::Reset
    }
}

/// Signals to the server that no more bytes come. Fails only if the server has closed already.
fn shut_down(host: &TcpStream) {
    use std::os::fd::AsRawFd;
    nix::sys::socket::shutdown(host.as_raw_fd(), nix::sys::socket::Shutdown::Write)
        .unwrap_or_default();
}
