//! Standard input and output for the runtime, without a thread if the kernel can report readiness.
//!
//! A pipe without a name is opened again, so that `O_NONBLOCK` is set on a new open file description and
//! not on one that the client and its other children may share. A socket cannot be opened again;
//! there each call is made with MSG_DONTWAIT. A terminal is opened again for output, if its user may do that. Any other
//! kind uses a thread of the runtime, where a read or a write may block without blocking other tasks.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::sys::socket::{MsgFlags, SockType, getsockopt, recv, send, sockopt};
use nix::sys::stat::Mode;
use nix::sys::statfs::{FsType, fstatfs};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;

use mcp::lines::QUIET;

/// Both streams before they are registered with a runtime. Made before confinement, after which no
/// file can be opened, and after the supervisor, which must not inherit them.
#[derive(Debug)]
pub struct Streams {
    input: StreamKind,
    output: StreamKind,
}

/// Filesystem of pipes without a name (PIPEFS_MAGIC of linux/magic.h).
const PIPEFS: FsType = FsType(0x5049_5045);

/// Device of the masters of terminals (`/dev/ptmx`): opening it makes another master.
const PTMX: u64 = libc::makedev(5, 2);

/// Kind of a stream.
#[derive(Debug)]
enum StreamKind {
    Pipe(OwnedFd),
    Socket(OwnedFd),
    /// `/dev/null`: as an input, at its end from the beginning.
    Null,
    /// A terminal for output.
    Terminal(OwnedFd),
    Other,
}

impl Streams {
    /// Inspects the streams of this process.
    #[must_use]
    pub fn detect() -> Self {
        let input = StreamKind::detect(io::stdin().as_fd(), OFlag::O_RDONLY);
        let output = StreamKind::detect(io::stdout().as_fd(), OFlag::O_WRONLY);
        Self {
            input: input.unwrap_or(StreamKind::Other),
            output: output.unwrap_or(StreamKind::Other),
        }
    }

    /// Opens the streams. Must be called inside a tokio runtime.
    #[must_use]
    pub fn opened(self) -> (StdinStream, StdoutStream) {
        let input = match self.input {
            StreamKind::Pipe(fd) => pipe::Receiver::from_owned_fd(fd).map(StdinStream::Pipe),
            StreamKind::Socket(fd) => service::link::register(fd).map(StdinStream::Socket),
            StreamKind::Null => Ok(StdinStream::Null),
            StreamKind::Terminal(_) | StreamKind::Other => {
                Ok(StdinStream::Other(tokio::io::stdin()))
            }
        };
        let output = match self.output {
            StreamKind::Pipe(fd) => pipe::Sender::from_owned_fd(fd).map(StdoutStream::Pipe),
            StreamKind::Socket(fd) => service::link::register(fd).map(StdoutStream::Socket),
            StreamKind::Terminal(fd) => service::link::register(fd).map(StdoutStream::Terminal),
            StreamKind::Null | StreamKind::Other => Ok(StdoutStream::Other(tokio::io::stdout())),
        };
        // A descriptor that epoll(7) refuses is read in a thread.
        let input = input.unwrap_or_else(|_| StdinStream::Other(tokio::io::stdin()));
        (input, output.unwrap_or_else(|_| StdoutStream::Other(tokio::io::stdout())))
    }
}

impl StreamKind {
    /// Inspects a descriptor; `use_as` is the mode for opening it again.
    fn detect(fd: BorrowedFd<'_>, use_as: OFlag) -> io::Result<Self> {
        let file = File::from(fd.try_clone_to_owned()?);
        let metadata = file.metadata()?;
        // A writing end must not be opened for reading, nor the other way round. A FIFO with a name is not opened again
        // either: its last writer may have closed it, and a new reader would never see the end of file.
        let mode = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
        if mode != use_as && mode != OFlag::O_RDWR {
            return Ok(Self::Other);
        }
        if metadata.file_type().is_fifo() && fstatfs(&file)?.filesystem_type() == PIPEFS {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = use_as | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
            let reopened = File::from(open(path.as_str(), flags, Mode::empty())?);
            let status = reopened.metadata()?;
            let is_same = (status.dev(), status.ino()) == (metadata.dev(), metadata.ino());
            return Ok(if is_same { Self::Pipe(reopened.into()) } else { Self::Other });
        }
        if metadata.file_type().is_socket() {
            let stream = getsockopt(&file, sockopt::SockType)? == SockType::Stream;
            return Ok(if stream { Self::Socket(file.into()) } else { Self::Other });
        }
        if use_as == OFlag::O_WRONLY && file.is_terminal() && metadata.rdev() != PTMX {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = use_as | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
            // After su(1), the terminal belongs to another user and cannot be opened.
            let reopened = open(path.as_str(), flags, Mode::empty());
            return Ok(reopened.map_or(Self::Other, Self::Terminal));
        }
        let null = metadata.file_type().is_char_device() && metadata.rdev() == libc::makedev(1, 3);
        Ok(if null { Self::Null } else { Self::Other })
    }
}

/// Standard input.
#[derive(Debug)]
pub enum StdinStream {
    Pipe(pipe::Receiver),
    Socket(AsyncFd<OwnedFd>),
    Null,
    Other(tokio::io::Stdin),
}

/// Standard output.
#[derive(Debug)]
pub enum StdoutStream {
    Pipe(pipe::Sender),
    Socket(AsyncFd<OwnedFd>),
    Terminal(AsyncFd<OwnedFd>),
    Other(tokio::io::Stdout),
}

impl StdinStream {
    /// Returns the maximum time after which sent data is read. A thread has to be scheduled for it.
    #[must_use]
    pub fn quiet(&self) -> Duration {
        match self {
            Self::Pipe(_) | Self::Socket(_) | Self::Null => QUIET,
            Self::Other(_) => Duration::from_millis(500),
        }
    }
}

impl AsyncRead for StdinStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Pipe(pipe) => Pin::new(pipe).poll_read(cx, buf),
            Self::Socket(socket) => loop {
                let mut ready = ready!(socket.poll_read_ready(cx))?;
                let into = buf.initialize_unfilled();
                let received =
                    ready.try_io(|fd| Ok(recv(fd.as_raw_fd(), into, MsgFlags::MSG_DONTWAIT)?));
                if let Ok(received) = received {
                    buf.advance(received?);
                    return Poll::Ready(Ok(()));
                }
            },
            Self::Null => Poll::Ready(Ok(())),
            Self::Other(stdin) => Pin::new(stdin).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for StdoutStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Pipe(pipe) => Pin::new(pipe).poll_write(cx, bytes),
            Self::Socket(socket) => loop {
                let mut ready = ready!(socket.poll_write_ready(cx))?;
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                let sent = ready.try_io(|fd| Ok(send(fd.as_raw_fd(), bytes, flags)?));
                if let Ok(sent) = sent {
                    return Poll::Ready(sent);
                }
            },
            Self::Terminal(terminal) => loop {
                let mut ready = ready!(terminal.poll_write_ready(cx))?;
                let written = ready.try_io(|fd| Ok(nix::unistd::write(fd, bytes)?));
                if let Ok(written) = written {
                    return Poll::Ready(written);
                }
            },
            Self::Other(stdout) => Pin::new(stdout).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Other(stdout) => Pin::new(stdout).poll_flush(cx),
            // Written data is with the kernel already.
            Self::Pipe(_) | Self::Socket(_) | Self::Terminal(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
