//! One output stream of a command: read as it arrives, partly kept, fully counted.
//!
//! A command may end before its streams do, as background processes can hold them open. So the
//! caller reports the end. What was written before it is in the pipe by then; what is written later
//! belongs to background processes and is kept separately.
//!
//! Slow output is read by a task of the runtime, a flood by a thread (`flood`).

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::unix::pipe;
use tokio::sync::Notify;

use super::tap::Source;
use super::{Captured, Meter};

mod flood;
mod room;

use room::Room;

/// Maximum number of kept bytes written after the command's end.
const MAX_LATE_BYTES: usize = 64 << 10;
/// Maximum number of bytes taken at once, so that a flood on one stream cannot starve the rest.
const MAX_READ_BYTES: usize = 1 << 20;
/// This many bytes within [`FLOOD_TIME`] are a flood, which is worth a thread.
const FLOOD_BYTES: usize = 256 << 10;
const FLOOD_TIME: Duration = Duration::from_millis(10);

/// Receives a command's output while it is read, on any thread.
pub trait Follower: Send + Sync + 'static {
    /// Receives every piece of the command's output, in order.
    fn received(&self, source: Source, bytes: &[u8]);

    /// Reports, once, that the call has exceeded its output limit.
    fn over(&self);
}

/// One output stream of one command.
#[derive(Debug)]
pub struct Stream {
    source: Source,
    meter: Arc<Meter>,
    state: Mutex<StreamState>,
    /// Number of tasks that wait for the lock, to which the flood thread yields.
    waiting: AtomicUsize,
    /// Notified when a thread has read a flood to its end.
    calm: Notify,
}

#[derive(Debug)]
struct StreamState {
    captured: Captured,
    late: Captured,
    phase: Phase,
    pipe: Pipe,
    /// Bytes since this time, over at most [`FLOOD_TIME`].
    recent: (Instant, usize),
}

/// Who reads the pipe.
#[derive(Debug)]
enum Pipe {
    /// A task that the runtime wakes.
    Awaited(Arc<pipe::Receiver>),
    /// A flood thread.
    Flood(Arc<OwnedFd>),
    /// Closed by all writers, or not read any more.
    Closed,
}

impl Pipe {
    fn open(&self) -> WritingEnds {
        match self {
            Self::Awaited(_) | Self::Flood(_) => WritingEnds::Yes,
            Self::Closed => WritingEnds::No,
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Awaited(pipe) => Some(pipe.as_fd()),
            Self::Flood(pipe) => Some(pipe.as_fd()),
            Self::Closed => None,
        }
    }
}

/// State of the command: output after its end is kept separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    During,
    After,
}

/// State of the pipe's writing ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritingEnds {
    Yes,
    No,
}

/// Result of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadResult {
    Nothing,
    /// There may be more.
    More,
    /// End of file: no more output can come.
    End,
}

impl StreamState {
    /// Returns how many bytes are held in memory.
    fn bytes(&self) -> u64 {
        let captured = self.captured.total() - self.captured.gap();
        captured + self.late.total() - self.late.gap()
    }

    /// Returns true if the output is a flood, counting `taken` more bytes.
    fn floods(&mut self, taken: usize) -> bool {
        let now = Instant::now();
        let (since, bytes) = &mut self.recent;
        if now.saturating_duration_since(*since) > FLOOD_TIME {
            *since = now;
            *bytes = 0;
        }
        *bytes += taken;
        *bytes >= FLOOD_BYTES
    }
}

impl Stream {
    /// Makes a stream that keeps at most `keep` bytes and counts all of them.
    pub fn new(pipe: pipe::Receiver, keep: usize, source: Source, meter: &Arc<Meter>) -> Arc<Self> {
        let state = StreamState {
            captured: Captured::new(keep),
            late: Captured::new(MAX_LATE_BYTES),
            phase: Phase::During,
            pipe: Pipe::Awaited(Arc::new(pipe)),
            recent: (Instant::now(), 0),
        };
        Self::with_state(state, source, Arc::clone(meter))
    }

    /// Makes a stream that has ended with this output.
    pub fn past(captured: Captured, source: Source) -> Arc<Self> {
        let state = StreamState {
            captured,
            late: Captured::new(MAX_LATE_BYTES),
            phase: Phase::After,
            pipe: Pipe::Closed,
            recent: (Instant::now(), 0),
        };
        Self::with_state(state, source, Arc::new(Meter::new(None)))
    }

    fn with_state(state: StreamState, source: Source, meter: Arc<Meter>) -> Arc<Self> {
        Arc::new(Self {
            source,
            meter,
            state: Mutex::new(state),
            waiting: AtomicUsize::new(0),
            calm: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // The lock is not held across code that may panic; if it were, the captured bytes would
        // still be valid.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        state
    }

    /// Waits until there may be output to read, or for ever once all is read.
    pub async fn readable(&self) {
        let pipe = match &self.state().pipe {
            Pipe::Awaited(pipe) => Some(Arc::clone(pipe)),
            // Also notified if there is no flood any more: the next read finds out.
            Pipe::Flood(_) | Pipe::Closed => None,
        };
        match pipe {
            Some(pipe) if pipe.readable().await.is_ok() => {}
            Some(_) => std::future::pending().await,
            None => self.calm.notified().await,
        }
    }

    /// Reads what is in the pipe now, unless a thread reads it.
    pub fn look<F: Follower>(self: &Arc<Self>, follower: &Arc<F>) -> WritingEnds {
        let mut state = self.state();
        let Pipe::Awaited(pipe) = &state.pipe else { return state.pipe.open() };
        let pipe = Arc::clone(pipe);
        let before = state.captured.total().saturating_add(state.late.total());
        let mut room = Room::default();
        let left =
            self.read_some(&mut state, &mut room, |buffer| pipe.try_read(buffer), &**follower);
        drop(pipe);
        let after = state.captured.total().saturating_add(state.late.total());
        let taken = usize::try_from(after - before).unwrap_or(usize::MAX);
        if left != ReadResult::End && state.floods(taken) {
            self.leave_to_a_thread(&mut state, follower);
        }
        state.pipe.open()
    }

    /// Reads until the pipe is empty, the maximum is read, or another task waits for the lock.
    fn read_some(
        &self,
        state: &mut StreamState,
        room: &mut Room,
        read: impl Fn(&mut [u8]) -> io::Result<usize>,
        follower: &impl Follower,
    ) -> ReadResult {
        let mut taken = 0;
        while taken < MAX_READ_BYTES && self.waiting.load(Ordering::Acquire) == 0 {
            match room.read(&read) {
                Ok([]) => {
                    state.pipe = Pipe::Closed;
                    return ReadResult::End;
                }
                Ok(piece) => {
                    taken += piece.len();
                    self.append(state, piece, follower);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return ReadResult::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // EIO: the other side of the terminal is closed.
                    if error.raw_os_error() != Some(libc::EIO) {
                        tracing::warn!(%error, "a command's output could not be read to its end");
                    }
                    state.pipe = Pipe::Closed;
                    return ReadResult::End;
                }
            }
        }
        ReadResult::More
    }

    fn append(&self, state: &mut StreamState, piece: &[u8], follower: &impl Follower) {
        match state.phase {
            Phase::During => {
                state.captured.push(piece);
                follower.received(self.source, piece);
                if self.meter.passes(u64::try_from(piece.len()).unwrap_or(u64::MAX)) {
                    follower.over();
                }
            }
            Phase::After => state.late.push(piece),
        }
    }

    /// Reads all output until the last writer has closed the pipe.
    ///
    /// Dropping the future keeps what was read so far.
    pub async fn to_the_end<F: Follower>(self: &Arc<Self>, follower: &Arc<F>) {
        while self.look(follower) == WritingEnds::Yes {
            self.readable().await;
        }
    }

    /// Stops reading; processes that still write get SIGPIPE.
    pub fn close(&self) {
        self.state().pipe = Pipe::Closed;
    }

    /// Marks the end of the command: bytes in the pipe belong to it, later ones do not.
    ///
    /// Reads the pipe directly, as the runtime may not have polled it yet.
    pub fn seal(&self, follower: &impl Follower) {
        let mut state = self.state();
        let StreamState { captured, pipe, .. } = &mut *state;
        let mut room = Room::default();
        if let Some(pipe) = pipe.descriptor() {
            let mut taken = 0;
            // Reads at most what a pipe can hold (F_SETPIPE_SZ); more comes from a background
            // flood.
            while let Ok(piece @ [_, ..]) = room.read(|buffer| nix::unistd::read(pipe, buffer)) {
                captured.push(piece);
                follower.received(self.source, piece);
                self.meter.passes(u64::try_from(piece.len()).unwrap_or(u64::MAX));
                taken += piece.len();
                if taken >= MAX_READ_BYTES {
                    break;
                }
            }
        }
        state.phase = Phase::After;
    }

    /// Returns the captured output so far.
    pub fn captured(&self) -> Captured {
        self.state().captured.clone()
    }

    /// Takes the output for the last time and stops reading.
    pub fn into_captured(&self) -> Captured {
        let mut state = self.state();
        state.pipe = Pipe::Closed;
        std::mem::replace(&mut state.captured, Captured::new(0))
    }

    /// Returns the output after the command's end.
    pub fn late(&self) -> Captured {
        self.state().late.clone()
    }

    /// Returns the output before and after the command's end, joined.
    pub fn all(&self) -> Captured {
        let state = self.state();
        state.captured.and(&state.late)
    }

    /// Returns how many bytes were written so far, by the command and by its background processes.
    pub fn printed(&self) -> u64 {
        let state = self.state();
        state.captured.total().saturating_add(state.late.total())
    }

    /// Returns how many bytes are held in memory.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.state().bytes()
    }

    /// Returns an upper bound of the bytes that can be held in memory. It never grows; once the pipe is closed it
    /// is the number of held bytes.
    pub fn max_bytes(&self) -> u64 {
        let state = self.state();
        match state.pipe.open() {
            WritingEnds::Yes => state.captured.limit() + state.late.limit(),
            WritingEnds::No => state.bytes(),
        }
    }

    /// Returns how many bytes the command has written.
    pub fn total(&self) -> u64 {
        self.state().captured.total()
    }
}

#[cfg(test)]
mod tests;
