//! A flood of output: a thread reads it, and gives it back to the runtime when it is over.
//!
//! Each write to a pipe that was ever polled wakes whoever waits for it (`poll_usage` in the kernel's
//! pipe.c), and the runtime always waits: a descriptor stays in its epoll. With a wake-up for each write
//! a flood is half as fast. The thread waits only where the pipe is empty, which it seldom is.
//!
//! It holds nothing that would keep a command alive, and waits for [`QUIET`] at most: a stream that was
//! closed or forgotten ends it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError, Weak};
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::net::unix::pipe;
use tokio::runtime::Handle;

use super::room::Room;
use super::{Follower, Kept, Left, Pipe, Stream};

/// A pause of so many milliseconds ends a flood.
const QUIET: u8 = 10;
/// The thread has one buffer, of which a page is on its stack (`room`).
pub(super) const STACK_BYTES: usize = 128 << 10;

impl Stream {
    /// Has a thread read the pipe. If none can be started, the runtime goes on.
    pub(super) fn leave_to_a_thread<F: Follower>(
        self: &Arc<Self>,
        kept: &mut Kept,
        follower: &Arc<F>,
    ) {
        let Ok(runtime) = Handle::try_current() else { return };
        let before = std::mem::replace(&mut kept.pipe, Pipe::Closed);
        let pipe = match before {
            Pipe::Awaited(pipe) => Arc::try_unwrap(pipe).map_err(Pipe::Awaited),
            other @ (Pipe::Flood(_) | Pipe::Closed) => Err(other),
        };
        let pipe = match pipe {
            // The runtime forgets it here: nobody waits for it any more.
            Ok(pipe) => pipe.into_nonblocking_fd().map(Arc::new),
            // Somebody else waits for it just now.
            Err(other) => {
                kept.pipe = other;
                return;
            }
        };
        let Ok(pipe) = pipe.inspect_err(unread) else { return };
        kept.pipe = Pipe::Flood(Arc::clone(&pipe));
        let flood = Flood {
            stream: Arc::downgrade(self),
            follower: Arc::downgrade(follower),
            pipe: Arc::clone(&pipe),
            runtime: runtime.clone(),
        };
        let thread = thread::Builder::new().name("flood".to_owned()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || flood.read()) {
            tracing::debug!(%error, "a flood has no thread");
            kept.awaited(pipe, &runtime);
        }
    }
}

impl Kept {
    /// Gives the pipe back to the runtime.
    fn awaited(&mut self, pipe: Arc<OwnedFd>, runtime: &Handle) {
        self.pipe = Pipe::Closed;
        let Some(pipe) = Arc::into_inner(pipe) else { return };
        match awaited(pipe, runtime) {
            Ok(pipe) => self.pipe = pipe,
            Err(error) => unread(&error),
        }
        self.recent.1 = 0;
    }
}

/// Gives a pipe to the runtime; who waits for it is to be told.
///
/// # Errors
/// The errno of epoll_ctl(2).
fn awaited(pipe: OwnedFd, runtime: &Handle) -> io::Result<Pipe> {
    let _entered = runtime.enter();
    // Also of terminals, which the other way in does not take. It never blocks: it was the runtime's.
    pipe::Receiver::from_owned_fd_unchecked(pipe).map(|pipe| Pipe::Awaited(Arc::new(pipe)))
}

/// Reader of a pipe from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    ByTheRuntime,
    ByTheThread,
}

/// One flood of one stream.
struct Flood<F> {
    stream: Weak<Stream>,
    follower: Weak<F>,
    pipe: Arc<OwnedFd>,
    runtime: Handle,
}

impl<F: Follower> Flood<F> {
    /// Reads until it is over.
    fn read(self) {
        let mut room = Room::default();
        loop {
            match self.look(&mut room) {
                Some(Left::More) => {}
                Some(Left::Nothing) if self.goes_on() => {}
                Some(Left::Nothing) => {
                    if self.calm() == Read::ByTheRuntime {
                        return;
                    }
                }
                Some(Left::End) | None => return self.end(),
            }
        }
    }

    /// Reads the pipe once; none if the output is not wanted any more.
    fn look(&self, room: &mut Room) -> Option<Left> {
        let (stream, follower) = (self.stream.upgrade()?, self.follower.upgrade()?);
        while stream.wanted.load(std::sync::atomic::Ordering::Acquire) > 0 {
            thread::yield_now();
        }
        let mut kept = stream.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.pipe {
            Pipe::Flood(_) => {}
            Pipe::Awaited(_) | Pipe::Closed => return None,
        }
        let read =
            |buffer: &mut [u8]| nix::unistd::read(&self.pipe, buffer).map_err(io::Error::from);
        Some(stream.take(&mut kept, room, read, &*follower))
    }

    /// Waits until there is more; whether it came before the flood counts as over.
    fn goes_on(&self) -> bool {
        let mut waits = [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut waits, PollTimeout::from(QUIET)) {
                Ok(ready) => return ready > 0,
                Err(Errno::EINTR) => {}
                Err(errno) => {
                    unread(&io::Error::from(errno));
                    return false;
                }
            }
        }
    }

    /// Reads no more.
    fn end(self) {
        let Some(stream) = self.stream.upgrade() else { return };
        stream.close();
        stream.calm.notify_one();
    }

    /// Gives the pipe back to the runtime. If the runtime cannot watch it, this thread reads on: the host
    /// user's epoll watches may be used up, and that must not end a command's output.
    fn calm(&self) -> Read {
        let Some(stream) = self.stream.upgrade() else { return Read::ByTheRuntime };
        let mut kept = stream.kept();
        if matches!(kept.pipe, Pipe::Flood(_)) {
            match self.pipe.try_clone().and_then(|pipe| awaited(pipe, &self.runtime)) {
                Ok(pipe) => {
                    kept.pipe = pipe;
                    kept.recent.1 = 0;
                }
                Err(error) => {
                    tracing::debug!(%error, "a flood keeps its thread");
                    return Read::ByTheThread;
                }
            }
        }
        drop(kept);
        stream.calm.notify_one();
        Read::ByTheRuntime
    }
}

fn unread(error: &io::Error) {
    tracing::warn!(%error, "a command's output could not be read to its end");
}
