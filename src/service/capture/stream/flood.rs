//! Reads a flood of output on a thread, and returns the pipe to the runtime when the flood is over.
//!
//! Every write to a pipe that was ever polled wakes its waiters (`poll_usage` in the kernel's
//! pipe.c), and the runtime always waits: the descriptor stays in its epoll. Waking up for each
//! write halves the speed of a flood. The thread waits only when the pipe is empty, which is rare.
//!
//! The thread holds no strong reference to the command, and waits at most [`QUIET`]: it ends once
//! the stream is closed or dropped.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError, Weak};
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::net::unix::pipe;
use tokio::runtime::Handle;

use super::room::Room;
use super::{Follower, Pipe, ReadResult, Stream, StreamState};

/// Pause in milliseconds that ends a flood.
const QUIET: u8 = 10;
/// Stack size of the thread, which has one buffer with a page on the stack (`room`).
pub(super) const STACK_BYTES: usize = 128 << 10;

impl Stream {
    /// Starts a thread that reads the pipe. If that fails, the runtime keeps reading.
    pub(super) fn leave_to_a_thread<F: Follower>(
        self: &Arc<Self>,
        state: &mut StreamState,
        follower: &Arc<F>,
    ) {
        let Ok(runtime) = Handle::try_current() else { return };
        let before = std::mem::replace(&mut state.pipe, Pipe::Closed);
        let pipe = match before {
            Pipe::Awaited(pipe) => Arc::try_unwrap(pipe).map_err(Pipe::Awaited),
            other @ (Pipe::Flood(_) | Pipe::Closed) => Err(other),
        };
        let pipe = match pipe {
            // This removes the pipe from the runtime.
            Ok(pipe) => pipe.into_nonblocking_fd().map(Arc::new),
            // Another task is waiting for the pipe right now.
            Err(other) => {
                state.pipe = other;
                return;
            }
        };
        let Ok(pipe) = pipe.inspect_err(unread) else { return };
        state.pipe = Pipe::Flood(Arc::clone(&pipe));
        let flood = Flood {
            stream: Arc::downgrade(self),
            follower: Arc::downgrade(follower),
            pipe: Arc::clone(&pipe),
            runtime: runtime.clone(),
        };
        let thread = thread::Builder::new().name("flood".to_owned()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || flood.read()) {
            tracing::debug!(%error, "a flood has no thread");
            state.awaited(pipe, &runtime);
        }
    }
}

impl StreamState {
    /// Returns the pipe to the runtime.
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

/// Registers a pipe with the runtime; the caller must notify waiting tasks.
///
/// # Errors
/// The errno of epoll_ctl(2).
fn awaited(pipe: OwnedFd, runtime: &Handle) -> io::Result<Pipe> {
    let _entered = runtime.enter();
    // Unchecked, as it may be a terminal. The pipe does not block: the runtime had it before.
    pipe::Receiver::from_owned_fd_unchecked(pipe).map(|pipe| Pipe::Awaited(Arc::new(pipe)))
}

/// Who reads the pipe from now on.
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
    /// Reads until the flood is over.
    fn read(self) {
        let mut room = Room::default();
        loop {
            match self.look(&mut room) {
                Some(ReadResult::More) => {}
                Some(ReadResult::Nothing) if self.has_more() => {}
                Some(ReadResult::Nothing) => {
                    if self.calm() == Read::ByTheRuntime {
                        return;
                    }
                }
                Some(ReadResult::End) | None => return self.end(),
            }
        }
    }

    /// Reads the pipe once; returns `None` if the output is not wanted any more.
    fn look(&self, room: &mut Room) -> Option<ReadResult> {
        let stream = self.stream.upgrade()?;
        let follower = self.follower.upgrade()?;
        while stream.waiting.load(std::sync::atomic::Ordering::Acquire) > 0 {
            thread::yield_now();
        }
        let mut state = stream.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.pipe {
            Pipe::Flood(_) => {}
            Pipe::Awaited(_) | Pipe::Closed => return None,
        }
        let read =
            |buffer: &mut [u8]| nix::unistd::read(&self.pipe, buffer).map_err(io::Error::from);
        Some(stream.read_some(&mut state, room, read, &*follower))
    }

    /// Waits for more output. Returns false if the flood counts as over.
    fn has_more(&self) -> bool {
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

    /// Stops reading.
    fn end(self) {
        let Some(stream) = self.stream.upgrade() else { return };
        stream.close();
        stream.calm.notify_one();
    }

    /// Returns the pipe to the runtime. If the runtime cannot register it, this thread continues:
    /// the user's epoll watches may be used up, which must not end the output of a command.
    fn calm(&self) -> Read {
        let Some(stream) = self.stream.upgrade() else { return Read::ByTheRuntime };
        let mut state = stream.state();
        if matches!(state.pipe, Pipe::Flood(_)) {
            match self.pipe.try_clone().and_then(|pipe| awaited(pipe, &self.runtime)) {
                Ok(pipe) => {
                    state.pipe = pipe;
                    state.recent.1 = 0;
                }
                Err(error) => {
                    tracing::debug!(%error, "a flood keeps its thread");
                    return Read::ByTheThread;
                }
            }
        }
        drop(state);
        stream.calm.notify_one();
        Read::ByTheRuntime
    }
}

fn unread(error: &io::Error) {
    tracing::warn!(%error, "a command's output could not be read to its end");
}
