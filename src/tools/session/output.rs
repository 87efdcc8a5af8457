//! What a command of a session prints: read while it comes, kept in part, counted in whole.
//!
//! The end of a command is not the end of its streams: a background process may hold them. So the
//! end is told by the shell, and what was written before it is in the pipe by then; what comes
//! later is of the background and is kept apart.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::unix::pipe;

use crate::capture::{Captured, Meter};

/// Bytes of what comes after the end that are kept.
const LATE_BYTES: usize = 64 << 10;
/// What a pipe holds (pipe(7)).
const PIPE_BYTES: usize = 64 << 10;
/// One look takes at most this much, so that a flood on one stream cannot starve all else.
const LOOK_BYTES: usize = 1 << 20;

/// One output stream of one command.
#[derive(Debug)]
pub struct Stream(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    captured: Captured,
    late: Captured,
    phase: Phase,
    /// Until nobody can write to it, or nobody wants to read it.
    pipe: Option<Arc<pipe::Receiver>>,
}

/// Whether the command still runs, as far as its output is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    During,
    After,
}

/// Whether anybody can still write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    Yes,
    No,
}

impl Stream {
    /// Keeps at most `keep` bytes of it.
    pub fn new(pipe: pipe::Receiver, keep: usize) -> Self {
        let kept = Kept {
            captured: Captured::new(keep),
            late: Captured::new(LATE_BYTES),
            phase: Phase::During,
            pipe: Some(Arc::new(pipe)),
        };
        Self(Mutex::new(kept))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No code panics while it holds the lock; if one did, what was kept is still whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something to read, or for ever when all is read.
    pub async fn readable(&self) {
        let pipe = self.kept().pipe.clone();
        match pipe {
            Some(pipe) if pipe.readable().await.is_ok() => {}
            Some(_) | None => std::future::pending().await,
        }
    }

    /// Takes what is in the pipe now. `over` is called when it passes the meter's limit.
    /// `heard` is passed what is of the command.
    pub fn look(&self, meter: &Meter, over: impl Fn(), heard: impl Fn(&[u8])) -> Open {
        let mut kept = self.kept();
        let mut buffer = vec![0; PIPE_BYTES];
        let mut taken = 0;
        while let Some(pipe) = kept.pipe.clone().filter(|_| taken < LOOK_BYTES) {
            match pipe.try_read(&mut buffer) {
                Ok(0) => kept.pipe = None,
                Ok(length) => {
                    taken += length;
                    let piece = buffer.get(..length).unwrap_or_default();
                    match kept.phase {
                        Phase::During => {
                            kept.captured.push(piece);
                            heard(piece);
                            if meter.passes(u64::try_from(length).unwrap_or(u64::MAX)) {
                                over();
                            }
                        }
                        Phase::After => kept.late.push(piece),
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A terminal that nobody has any more.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => kept.pipe = None,
                Err(error) => {
                    tracing::warn!(%error, "a command's output could not be read to its end");
                    kept.pipe = None;
                }
            }
        }
        if kept.pipe.is_some() { Open::Yes } else { Open::No }
    }

    /// Reads no more: who still writes is told so by SIGPIPE.
    pub fn close(&self) {
        self.kept().pipe = None;
    }

    /// The command is over: what is in the pipe is its own, and what comes later is not.
    ///
    /// The pipe itself is asked, and not the runtime, which may not have heard of it yet.
    pub fn seal(&self, meter: &Meter, heard: impl Fn(&[u8])) {
        let mut kept = self.kept();
        let mut buffer = vec![0; PIPE_BYTES];
        if let Some(pipe) = kept.pipe.clone() {
            let mut taken = 0;
            // At most as much as a pipe can be made to hold (F_SETPIPE_SZ): what a flood in the
            // background adds is not its own.
            while let Ok(length @ 1..) = nix::unistd::read(pipe.as_ref(), &mut buffer) {
                let piece = buffer.get(..length).unwrap_or_default();
                kept.captured.push(piece);
                heard(piece);
                meter.passes(u64::try_from(length).unwrap_or(u64::MAX));
                taken += length;
                if taken >= LOOK_BYTES {
                    break;
                }
            }
        }
        kept.phase = Phase::After;
    }

    /// What is kept so far.
    pub fn captured(&self) -> Captured {
        self.kept().captured.clone()
    }

    /// What came after the end.
    pub fn late(&self) -> Captured {
        self.kept().late.clone()
    }

    /// Both, one behind the other.
    pub fn all(&self) -> Captured {
        let kept = self.kept();
        kept.captured.and(&kept.late)
    }

    /// Bytes that were printed so far, by the command and by what it left behind.
    pub fn printed(&self) -> u64 {
        let kept = self.kept();
        kept.captured.total().saturating_add(kept.late.total())
    }

    /// Bytes that are held in memory.
    pub fn kept_bytes(&self) -> u64 {
        let kept = self.kept();
        let held = kept.captured.total() - kept.captured.gap();
        held + kept.late.total() - kept.late.gap()
    }

    /// Bytes of the command in all.
    pub fn total(&self) -> u64 {
        self.kept().captured.total()
    }
}
