//! Standard input and output for the runtime, without a thread if the kernel can report readiness.
//!
//! A pipe without a name is opened again, so that `O_NONBLOCK` is set on our own description and
//! not on one that the client and its other children may share. A socket cannot be opened again;
//! there each call asks not to wait. A terminal is opened again for output, if its user may do that. Any other kind
//! keeps the runtime's thread, in which a read or a write may wait for ever without blocking others.

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

/// Both streams as they were found. Made before confinement, after which nothing is opened, and
/// after the supervisor, which must not hold them.
#[derive(Debug)]
pub struct Streams {
    input: Found,
    output: Found,
}

/// Filesystem of pipes without a name (PIPEFS_MAGIC of linux/magic.h).
const PIPEFS: FsType = FsType(0x5049_5045);

/// Device of the masters of terminals (`/dev/ptmx`): none can be had again, opening one makes another.
const PTMX: u64 = libc::makedev(5, 2);

/// Kind of a stream.
#[derive(Debug)]
enum Found {
    Pipe(OwnedFd),
    Socket(OwnedFd),
    /// `/dev/null`: as an input, at its end from the beginning.
    Null,
    /// For output.
    Terminal(OwnedFd),
    Other,
}

impl Streams {
    /// Inspects the streams of this process.
    #[must_use]
    pub fn found() -> Self {
        let input = Found::of(io::stdin().as_fd(), OFlag::O_RDONLY);
        let output = Found::of(io::stdout().as_fd(), OFlag::O_WRONLY);
        Self { input: input.unwrap_or(Found::Other), output: output.unwrap_or(Found::Other) }
    }

    /// Opens the streams. Must be called inside a tokio runtime.
    #[must_use]
    pub fn opened(self) -> (StdinStream, StdoutStream) {
        let input = match self.input {
            Found::Pipe(fd) => pipe::Receiver::from_owned_fd(fd).map(StdinStream::Pipe),
            Found::Socket(fd) => link::register(fd).map(StdinStream::Socket),
            Found::Null => Ok(StdinStream::Null),
            Found::Terminal(_) | Found::Other => Ok(StdinStream::Other(tokio::io::stdin())),
        };
        let output = match self.output {
            Found::Pipe(fd) => pipe::Sender::from_owned_fd(fd).map(StdoutStream::Pipe),
            Found::Socket(fd) => link::register(fd).map(StdoutStream::Socket),
            Found::Terminal(fd) => link::register(fd).map(StdoutStream::Terminal),
            Found::Null | Found::Other => Ok(StdoutStream::Other(tokio::io::stdout())),
        };
        // A descriptor that cannot be waited for keeps the thread.
        let input = input.unwrap_or_else(|_| StdinStream::Other(tokio::io::stdin()));
        (input, output.unwrap_or_else(|_| StdoutStream::Other(tokio::io::stdout())))
    }
}

impl Found {
    /// Inspects a descriptor; `use_as` is the mode for opening it again.
    fn of(fd: BorrowedFd<'_>, use_as: OFlag) -> io::Result<Self> {
        let own = File::from(fd.try_clone_to_owned()?);
        let is = own.metadata()?;
        // The end of the other use gives no right to this one. A FIFO with a name may have lost its
        // last writer already: a new reader would never see its end.
        let mode = OFlag::from_bits_retain(fcntl(&own, FcntlArg::F_GETFL)?) & OFlag::O_ACCMODE;
        if mode != use_as && mode != OFlag::O_RDWR {
            return Ok(Self::Other);
        }
        if is.file_type().is_fifo() && fstatfs(&own)?.filesystem_type() == PIPEFS {
            let path = format!("/proc/self/fd/{}", own.as_raw_fd());
            let flags = use_as | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
            let anew = File::from(open(path.as_str(), flags, Mode::empty())?);
            let opened = anew.metadata()?;
            let same = (opened.dev(), opened.ino()) == (is.dev(), is.ino());
            return Ok(if same { Self::Pipe(anew.into()) } else { Self::Other });
        }
        if is.file_type().is_socket() {
            let stream = getsockopt(&own, sockopt::SockType)? == SockType::Stream;
            return Ok(if stream { Self::Socket(own.into()) } else { Self::Other });
        }
        if use_as == OFlag::O_WRONLY && own.is_terminal() && is.rdev() != PTMX {
            let path = format!("/proc/self/fd/{}", own.as_raw_fd());
            let flags = use_as | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
            // It may belong to another user, who has become this one.
            let anew = open(path.as_str(), flags, Mode::empty());
            return Ok(anew.map_or(Self::Other, Self::Terminal));
        }
        let null = is.file_type().is_char_device() && is.rdev() == libc::makedev(1, 3);
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
    /// Returns the time within which sent data is read, at most. A thread has to be given a
    /// processor for it.
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
