//! Input of a running command: written as far as the command takes it, with a bound on waiting.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use model::call::STDIN_BYTES;

/// The input of one command.
#[derive(Debug)]
pub struct Feed {
    state: Mutex<State>,
    /// Order of writers: one text is not mixed with another.
    turn: Arc<Turn<()>>,
    kind: FeedKind,
    /// Tripped when nothing can be written any more.
    over: CancellationToken,
}

#[derive(Debug)]
struct State {
    pipe: Option<Arc<pipe::Sender>>,
    /// Reason for the absence of a pipe.
    shut: InputEnd,
    /// Number of bytes that were written so far.
    taken: usize,
    /// The first of these, at most [`REPLAYED_BYTES`].
    kept: Vec<u8>,
}

/// Input that a command was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputGiven {
    /// Nothing, by this feed.
    Nothing,
    Whole(Vec<u8>),
    /// More than is kept, or keys of a terminal: another program could not be given the same.
    Unkept,
}

/// Kind of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedKind {
    Pipe,
    /// A terminal. End of input is a character, which the program sees while the terminal stays
    /// open.
    Terminal,
}

/// Bytes of an input that are kept, to run the command again with it.
pub(crate) const REPLAYED_BYTES: usize = 64 << 10;
/// Character that ends the input of a program that reads lines from a terminal: ^D.
const END_OF_INPUT: &[u8] = &[4];
/// Time for a terminal to pass a text on before its reader is examined.
const PASSED_ON: Duration = Duration::from_millis(50);

/// Reason why nothing can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputEnd {
    /// The command was started with its whole input, or without input.
    Never,
    /// The client ended the input.
    Eof,
    /// The input has no reader any more: the command has closed it or ended.
    Over,
}

/// End of the input after a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eof {
    No,
    Yes,
}

/// Amount of a text that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteResult {
    pub taken: usize,
    /// Reason why it was not all of it.
    pub rest: Option<Rest>,
}

/// Reason why a text was not written to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// The pipe is full: the program does not read, or not fast enough.
    Full,
    /// The command has been given [`STDIN_BYTES`] in all.
    Limit,
    Shut(InputEnd),
}

/// Turn of the text that came with the command: no other is written before it.
pub(crate) type First = OwnedMutexGuard<()>;

impl Feed {
    /// Makes the input of a command that reads from `pipe`, and the first turn to write.
    pub fn new(pipe: Option<pipe::Sender>, kind: FeedKind) -> (Self, Option<First>) {
        let state =
            State { pipe: pipe.map(Arc::new), shut: InputEnd::Never, taken: 0, kept: Vec::new() };
        let turn = Arc::new(Turn::new(()));
        let first = Arc::clone(&turn).try_lock_owned().ok();
        (Self { state: Mutex::new(state), turn, kind, over: CancellationToken::new() }, first)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; if one did, its values are still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what was written so far.
    pub(crate) fn given(&self) -> InputGiven {
        let state = self.state();
        match (state.taken, self.kind) {
            (0, _) => InputGiven::Nothing,
            (taken, FeedKind::Pipe) if taken == state.kept.len() => {
                InputGiven::Whole(state.kept.clone())
            }
            (_, FeedKind::Pipe | FeedKind::Terminal) => InputGiven::Unkept,
        }
    }

    /// Counts bytes that were written, and keeps the first of them.
    fn took(&self, bytes: &[u8]) {
        let mut state = self.state();
        let room = REPLAYED_BYTES.saturating_sub(state.kept.len());
        if self.kind == FeedKind::Pipe && state.kept.len() == state.taken {
            state.kept.extend(bytes.iter().take(room));
        }
        state.taken += bytes.len();
    }

    /// Returns true if the command was started without an input that can be written to.
    pub(crate) fn is_absent(&self) -> bool {
        let state = self.state();
        state.pipe.is_none() && state.shut == InputEnd::Never
    }

    /// Returns true if more can be written.
    pub fn is_open(&self) -> bool {
        self.state().pipe.is_some()
    }

    /// Writes the text that came with the command, without a bound on time.
    pub async fn first(&self, bytes: &[u8], turn: First) {
        let fed = self.write(bytes, None).await;
        drop(turn);
        tracing::debug!(?fed, "what came with a command");
    }

    /// Writes `bytes`, and then ends the input if all of them were taken and `eof` asks for that;
    /// waits for `patience` at most.
    pub async fn give(&self, bytes: &[u8], eof: Eof, patience: Duration) -> WriteResult {
        let until = Instant::now() + patience;
        let Ok(_turn) = timeout_at(until, self.turn.lock()).await else {
            return WriteResult { taken: 0, rest: Some(Rest::Full) };
        };
        let fed = self.write(bytes, Some(until)).await;
        match (eof, self.kind) {
            (Eof::Yes, FeedKind::Pipe) if fed.rest.is_none() => self.shut(InputEnd::Eof),
            (Eof::Yes, FeedKind::Terminal) if fed.rest.is_none() => {
                let WriteResult { rest, .. } = self.write(END_OF_INPUT, Some(until)).await;
                return WriteResult { rest, ..fed };
            }
            (Eof::Yes | Eof::No, _) => {}
        }
        fed
    }

    /// Resolves when the terminal has had time to pass a written text to the program.
    pub(crate) async fn passed_on(&self) {
        match self.kind {
            FeedKind::Pipe => {}
            FeedKind::Terminal => tokio::time::sleep(PASSED_ON).await,
        }
    }

    /// Ends the input. The first reason is kept.
    pub fn shut(&self, shut: InputEnd) {
        let mut state = self.state();
        if state.pipe.take().is_some() {
            state.shut = shut;
        }
        drop(state);
        self.over.cancel();
    }

    async fn write(&self, bytes: &[u8], until: Option<Instant>) -> WriteResult {
        let mut taken = 0;
        let rest = loop {
            let (pipe, room) = match self.open() {
                Ok(open) => open,
                Err(shut) => break Some(Rest::Shut(shut)),
            };
            let Some(left) = bytes.get(taken..).filter(|left| !left.is_empty()) else {
                break None;
            };
            let Some(piece) = left.get(..room.min(left.len())).filter(|piece| !piece.is_empty())
            else {
                break Some(Rest::Limit);
            };
            match pipe.try_write(piece) {
                Ok(length) => {
                    taken += length;
                    self.took(piece.get(..length).unwrap_or(piece));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.full(&pipe, until).await {
                        break Some(Rest::Full);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.shut(InputEnd::Over),
            }
        };
        WriteResult { taken, rest }
    }

    /// Returns the pipe, and the number of bytes that the command may still be given.
    fn open(&self) -> Result<(Arc<pipe::Sender>, usize), InputEnd> {
        let state = self.state();
        let pipe = state.pipe.clone().ok_or(state.shut)?;
        Ok((pipe, STDIN_BYTES.saturating_sub(state.taken)))
    }

    /// Waits until the pipe has room; returns true if it is still full at the end of the time.
    async fn full(&self, pipe: &pipe::Sender, until: Option<Instant>) -> bool {
        let time = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.over.cancelled() => false,
            // The next write returns an error of the pipe, if there is one.
            _ = pipe.writable() => false,
            () = time => true,
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a pipe that cannot be made is a failed test")]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    async fn read(pipe: &mut pipe::Receiver) -> usize {
        let mut buffer = vec![0; 1 << 20];
        tokio::io::AsyncReadExt::read(pipe, &mut buffer).await.unwrap()
    }

    #[tokio::test]
    async fn a_full_pipe_reports_the_bytes_it_took_and_takes_more_once_read() {
        let (sender, mut receiver) = pipe::pipe().unwrap();
        let (feed, first) = Feed::new(Some(sender), FeedKind::Pipe);
        drop(first);
        let bytes = vec![b'x'; 100_000];
        let fed = feed.give(&bytes, Eof::Yes, SHORT).await;
        assert_eq!(fed, WriteResult { taken: 65_536, rest: Some(Rest::Full) });
        assert!(feed.is_open(), "the end is given with the whole text only");
        assert_eq!(read(&mut receiver).await, 65_536);
        let fed = feed.give(b"y", Eof::Yes, SHORT).await;
        assert_eq!(fed, WriteResult { taken: 1, rest: None });
        assert_eq!((read(&mut receiver).await, read(&mut receiver).await), (1, 0));
        let fed = feed.give(b"z", Eof::No, SHORT).await;
        assert_eq!(fed, WriteResult { taken: 0, rest: Some(Rest::Shut(InputEnd::Eof)) });
    }

    #[tokio::test]
    async fn no_text_is_written_before_what_came_with_the_command() {
        let (sender, mut receiver) = pipe::pipe().unwrap();
        let (feed, first) = Feed::new(Some(sender), FeedKind::Pipe);
        let fed = feed.give(b"second", Eof::No, SHORT).await;
        assert_eq!(fed, WriteResult { taken: 0, rest: Some(Rest::Full) });
        feed.first(b"first", first.unwrap()).await;
        assert_eq!(
            feed.give(b"second", Eof::No, SHORT).await,
            WriteResult { taken: 6, rest: None }
        );
        assert_eq!(read(&mut receiver).await, 11);
        drop(receiver);
        // Try until no process reads: a child of another test has this descriptor too, until it executes its program.
        let fed = loop {
            let fed = feed.give(b"third", Eof::No, SHORT).await;
            if fed.rest.is_some() {
                break fed;
            }
        };
        assert_eq!(fed, WriteResult { taken: 0, rest: Some(Rest::Shut(InputEnd::Over)) });
    }

    #[tokio::test]
    async fn the_beginning_of_what_was_given_is_kept_and_known_to_be_all_or_not() {
        for (kind, bytes, given) in [
            (FeedKind::Pipe, 0, InputGiven::Nothing),
            (FeedKind::Pipe, REPLAYED_BYTES, InputGiven::Whole(vec![b'x'; REPLAYED_BYTES])),
            (FeedKind::Pipe, REPLAYED_BYTES + 1, InputGiven::Unkept),
            (FeedKind::Terminal, 1, InputGiven::Unkept),
        ] {
            let (sender, mut receiver) = pipe::pipe().unwrap();
            let (feed, first) = Feed::new(Some(sender), kind);
            drop(first);
            let reading = tokio::spawn(async move { while read(&mut receiver).await > 0 {} });
            let text = vec![b'x'; bytes];
            for piece in text.chunks(40_000) {
                feed.give(piece, Eof::No, Duration::from_secs(60)).await;
            }
            assert_eq!(feed.given(), given, "{bytes}");
            feed.shut(InputEnd::Over);
            reading.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_command_takes_so_much_in_all() {
        let (sender, mut receiver) = pipe::pipe().unwrap();
        let (feed, first) = Feed::new(Some(sender), FeedKind::Pipe);
        drop(first);
        let reading = tokio::spawn(async move { while read(&mut receiver).await > 0 {} });
        let most = vec![b'x'; STDIN_BYTES];
        let long = Duration::from_secs(60);
        assert_eq!(
            feed.give(&most, Eof::No, long).await,
            WriteResult { taken: STDIN_BYTES, rest: None }
        );
        let fed = feed.give(b"x", Eof::No, long).await;
        assert_eq!(fed, WriteResult { taken: 0, rest: Some(Rest::Limit) });
        feed.shut(InputEnd::Over);
        reading.await.unwrap();
    }
}
