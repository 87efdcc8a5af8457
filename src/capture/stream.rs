//! One output stream of a command: read while it comes, kept in part, counted in whole.
//!
//! The end of a command is not the end of its streams: a background process may hold them. So the
//! end is told by others, and what was written before it is in the pipe by then; what comes
//! later is of the background and is kept apart.
//!
//! The runtime waits for what comes in drops. A flood has a thread, in `flood`.

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

/// Bytes of what comes after the end that are kept.
const LATE_BYTES: usize = 64 << 10;
/// One look takes at most this much, so that a flood on one stream cannot starve all else.
const LOOK_BYTES: usize = 1 << 20;
/// So much within [`FLOOD_TIME`] is a flood: what a thread of its own is worth.
const FLOOD_BYTES: usize = 256 << 10;
const FLOOD_TIME: Duration = Duration::from_millis(10);

/// Receiver of a command's output while it is read, on whatever thread.
pub trait Follower: Send + Sync + 'static {
    /// Receives every piece of the command's output, in order.
    fn received(&self, source: Source, bytes: &[u8]);

    /// Learns, once, that the call has passed its output limit.
    fn over(&self);
}

/// One output stream of one command.
#[derive(Debug)]
pub struct Stream {
    source: Source,
    meter: Arc<Meter>,
    kept: Mutex<Kept>,
    /// How many want what is kept: a thread that reads all the time leaves it to them.
    wanted: AtomicUsize,
    /// A thread has read a flood to its end.
    calm: Notify,
}

#[derive(Debug)]
struct Kept {
    captured: Captured,
    late: Captured,
    phase: Phase,
    pipe: Pipe,
    /// Bytes since then, as long as it is [`FLOOD_TIME`] at most.
    recent: (Instant, usize),
}

/// Reader of the pipe.
#[derive(Debug)]
enum Pipe {
    /// The task that the runtime wakes.
    Awaited(Arc<pipe::Receiver>),
    /// A thread.
    Flood(Arc<OwnedFd>),
    /// Nobody can write to it, or nobody wants to read it.
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

/// Phase of a command: output after its end is kept apart.
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

/// State of the pipe after one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    /// There may be more.
    More,
    /// There is nothing, and there never will be.
    End,
}

impl Kept {
    /// Returns the bytes that are held in memory.
    fn bytes(&self) -> u64 {
        let held = self.captured.total() - self.captured.gap();
        held + self.late.total() - self.late.gap()
    }

    /// Returns true if the output is a flood, after `taken` more bytes.
    fn floods(&mut self, taken: usize) -> bool {
        let now = Instant::now();
        let (since, bytes) = &mut self.recent;
        if now.saturating_duration_since(*since) > FLOOD_TIME {
            (*since, *bytes) = (now, 0);
        }
        *bytes += taken;
        *bytes >= FLOOD_BYTES
    }
}

impl Stream {
    /// Keeps at most `keep` bytes of it, and counts all of it.
    pub fn new(pipe: pipe::Receiver, keep: usize, source: Source, meter: &Arc<Meter>) -> Arc<Self> {
        let kept = Kept {
            captured: Captured::new(keep),
            late: Captured::new(LATE_BYTES),
            phase: Phase::During,
            pipe: Pipe::Awaited(Arc::new(pipe)),
            recent: (Instant::now(), 0),
        };
        let (kept, meter) = (Mutex::new(kept), Arc::clone(meter));
        let (wanted, calm) = (AtomicUsize::new(0), Notify::new());
        Arc::new(Self { source, meter, kept, wanted, calm })
    }

    /// Makes one that has ended and left this behind.
    pub fn past(captured: Captured, source: Source) -> Arc<Self> {
        let kept = Kept {
            captured,
            late: Captured::new(LATE_BYTES),
            phase: Phase::After,
            pipe: Pipe::Closed,
            recent: (Instant::now(), 0),
        };
        let (kept, meter) = (Mutex::new(kept), Arc::new(Meter::new(None)));
        let (wanted, calm) = (AtomicUsize::new(0), Notify::new());
        Arc::new(Self { source, meter, kept, wanted, calm })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        // No code panics while it holds the lock; if one did, what was kept is still whole.
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::AcqRel);
        kept
    }

    /// Waits until there is something to look at, or for ever when all is read.
    pub async fn readable(&self) {
        let pipe = match &self.kept().pipe {
            Pipe::Awaited(pipe) => Some(Arc::clone(pipe)),
            // Also told where there is no flood any more: then the next look says so.
            Pipe::Flood(_) | Pipe::Closed => None,
        };
        match pipe {
            Some(pipe) if pipe.readable().await.is_ok() => {}
            Some(_) => std::future::pending().await,
            None => self.calm.notified().await,
        }
    }

    /// Takes what is in the pipe now, unless a thread does.
    pub fn look<F: Follower>(self: &Arc<Self>, follower: &Arc<F>) -> WritingEnds {
        let mut kept = self.kept();
        let Pipe::Awaited(pipe) = &kept.pipe else { return kept.pipe.open() };
        let pipe = Arc::clone(pipe);
        let before = kept.captured.total().saturating_add(kept.late.total());
        let mut room = Room::default();
        let left = self.take(&mut kept, &mut room, |buffer| pipe.try_read(buffer), &**follower);
        drop(pipe);
        let after = kept.captured.total().saturating_add(kept.late.total());
        let taken = usize::try_from(after - before).unwrap_or(usize::MAX);
        if left != Left::End && kept.floods(taken) {
            self.leave_to_a_thread(&mut kept, follower);
        }
        kept.pipe.open()
    }

    /// Reads until there is nothing, until it is enough for one look, or until others want what is kept.
    fn take(
        &self,
        kept: &mut Kept,
        room: &mut Room,
        read: impl Fn(&mut [u8]) -> io::Result<usize>,
        follower: &impl Follower,
    ) -> Left {
        let mut taken = 0;
        while taken < LOOK_BYTES && self.wanted.load(Ordering::Acquire) == 0 {
            match room.read(&read) {
                Ok([]) => {
                    kept.pipe = Pipe::Closed;
                    return Left::End;
                }
                Ok(piece) => {
                    taken += piece.len();
                    self.keep(kept, piece, follower);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Left::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // EIO: a terminal that nobody has any more.
                    if error.raw_os_error() != Some(libc::EIO) {
                        tracing::warn!(%error, "a command's output could not be read to its end");
                    }
                    kept.pipe = Pipe::Closed;
                    return Left::End;
                }
            }
        }
        Left::More
    }

    fn keep(&self, kept: &mut Kept, piece: &[u8], follower: &impl Follower) {
        match kept.phase {
            Phase::During => {
                kept.captured.push(piece);
                follower.received(self.source, piece);
                if self.meter.passes(u64::try_from(piece.len()).unwrap_or(u64::MAX)) {
                    follower.over();
                }
            }
            Phase::After => kept.late.push(piece),
        }
    }

    /// Takes all that comes until nobody can write any more.
    ///
    /// Dropping the future keeps what was taken so far.
    pub async fn to_the_end<F: Follower>(self: &Arc<Self>, follower: &Arc<F>) {
        while self.look(follower) == WritingEnds::Yes {
            self.readable().await;
        }
    }

    /// Reads no more: who still writes is told so by SIGPIPE.
    pub fn close(&self) {
        self.kept().pipe = Pipe::Closed;
    }

    /// Ends the command: bytes in the pipe are its own, later ones are not.
    ///
    /// The pipe itself is asked, and not the runtime, which may not have heard of it yet.
    pub fn seal(&self, follower: &impl Follower) {
        let mut kept = self.kept();
        let Kept { captured, pipe, .. } = &mut *kept;
        let mut room = Room::default();
        if let Some(pipe) = pipe.descriptor() {
            let mut taken = 0;
            // At most as much as a pipe can be made to hold (F_SETPIPE_SZ): what a flood in the
            // background adds is not its own.
            while let Ok(piece @ [_, ..]) = room.read(|buffer| nix::unistd::read(pipe, buffer)) {
                captured.push(piece);
                follower.received(self.source, piece);
                self.meter.passes(u64::try_from(piece.len()).unwrap_or(u64::MAX));
                taken += piece.len();
                if taken >= LOOK_BYTES {
                    break;
                }
            }
        }
        kept.phase = Phase::After;
    }

    /// Returns the output kept so far.
    pub fn captured(&self) -> Captured {
        self.kept().captured.clone()
    }

    /// Takes the output for the last time: nothing is kept or read any more.
    pub fn into_captured(&self) -> Captured {
        let mut kept = self.kept();
        kept.pipe = Pipe::Closed;
        std::mem::replace(&mut kept.captured, Captured::new(0))
    }

    /// Returns the output after the command's end.
    pub fn late(&self) -> Captured {
        self.kept().late.clone()
    }

    /// Returns both, one after the other.
    pub fn all(&self) -> Captured {
        let kept = self.kept();
        kept.captured.and(&kept.late)
    }

    /// Returns the bytes that were printed so far, by the command and by what it left behind.
    pub fn printed(&self) -> u64 {
        let kept = self.kept();
        kept.captured.total().saturating_add(kept.late.total())
    }

    /// Returns the bytes that are held in memory.
    pub fn kept_bytes(&self) -> u64 {
        self.kept().bytes()
    }

    /// Returns the bytes that may come to be held in memory. It never grows, and is what is held once the
    /// pipe is closed.
    pub fn max_bytes(&self) -> u64 {
        let kept = self.kept();
        match kept.pipe.open() {
            WritingEnds::Yes => kept.captured.limit() + kept.late.limit(),
            WritingEnds::No => kept.bytes(),
        }
    }

    /// Returns the bytes of the command in all.
    pub fn total(&self) -> u64 {
        self.kept().captured.total()
    }
}

#[cfg(test)]
mod tests;
