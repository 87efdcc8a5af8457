//! The streams of a started call: pipes whose other ends are in the cell.

use std::os::fd::AsFd;

use nix::errno::Errno;
use tokio::net::unix::pipe;
use tokio::sync::{oneshot, watch};

use super::{Control, Running};
use model::call::Stdin;
use model::outcome::{Ended, Failure, Waits, in_words};
use model::receipt::Receipt;
use model::wire::StdinKind;
use sys::socket::Received;

impl Running {
    /// Takes the streams that came with the start of a call.
    pub(super) fn take(
        stdin: StdinKind,
        receipt: Receipt,
        turn: u64,
        received: Received,
        control: Control,
        ended: oneshot::Receiver<Ended>,
        input: watch::Receiver<(u32, Waits)>,
    ) -> Result<Self, Failure> {
        // Created first: if a stream is missing, the call is cancelled, as its output could not be
        // read.
        let guard = CancelOnDrop(control.clone());
        if received.cut {
            // This process has reached its descriptor limit (unix(7), MSG_CTRUNC).
            let step = "receiving the program's streams".to_owned();
            return Err(Failure::Setup { step, errno: sys::raw(Errno::EMFILE) });
        }
        let mut fds = received.fds.into_iter().flatten();
        let missing = || Failure::Refused { why: "a stream is missing".to_owned() };
        // For example if the user's epoll watches are used up.
        let io = |error: std::io::Error| match error.raw_os_error() {
            Some(errno) => {
                let step = "listening to the program's streams".to_owned();
                Failure::Setup { step, errno }
            }
            None => Failure::Refused { why: in_words(&error) },
        };
        let mut next = || fds.next().ok_or_else(missing);
        // A terminal's master is read and written like a pipe, though it is not one.
        let (stdin, stdout) = match stdin {
            StdinKind::Pipe => {
                (Some(pipe::Sender::from_owned_fd(next()?)), pipe::Receiver::from_owned_fd(next()?))
            }
            StdinKind::Terminal => (
                Some(pipe::Sender::from_owned_fd_unchecked(next()?)),
                pipe::Receiver::from_owned_fd_unchecked(next()?),
            ),
            StdinKind::Empty | StdinKind::Bytes => (None, pipe::Receiver::from_owned_fd(next()?)),
        };
        let stdin = stdin.transpose().map_err(io)?;
        let stdout = stdout.map_err(io)?;
        let stderr = pipe::Receiver::from_owned_fd(next()?).map_err(io)?;
        Ok(Self { receipt, turn, stdin, stdout, stderr, control, ended, input, guard })
    }
}

/// Checks that this process has descriptors left for the streams of a job: otherwise the job must
/// not start, as its streams could not be received.
///
/// # Errors
/// The error of fcntl(2) for one more descriptor.
pub(super) fn have_room(any: impl AsFd, stdin: &Stdin) -> std::io::Result<()> {
    let streams = match stdin {
        Stdin::Empty | Stdin::Bytes(_) => 2,
        Stdin::Pipe(_) | Stdin::Terminal(_) => 3,
    };
    let taken = (0..streams).map(|_| any.as_fd().try_clone_to_owned());
    taken.collect::<std::io::Result<Vec<_>>>().map(drop)
}

/// Cancels a call when it is dropped.
#[derive(Debug)]
pub struct CancelOnDrop(pub(super) Control);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
