//! Input from the operator's terminal: keys, and the terminal's answers. The cell gets it while the call runs; answers that
//! come later are discarded.

use std::future::pending;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::fences::Answers;
use crate::commands::streams::StdinStream;
use model::outcome::in_words;

/// Bytes of one read.
const CHUNK: usize = 16 << 10;
/// Maximum number of reads that wait to be passed on.
const MAX_READS: usize = 16;
/// Maximum bytes that wait for the cell to read them.
const MAX_TYPED: usize = 256 << 10;
/// Time in which the rest of an answer comes. After that, the start of an answer was a key, such as ESC.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(100);

/// Keys on their way to the cell's terminal.
pub(super) struct Keys {
    from: mpsc::Receiver<Vec<u8>>,
    is_open: bool,
    /// Kept open until the end: closing it would hang up the cell's terminal.
    to: pipe::Sender,
    /// False once the cell's terminal cannot be written to.
    can_write: bool,
    typed: Vec<u8>,
    answers: Answers,
}

impl Keys {
    /// Passes keys from `input` to the cell's terminal.
    pub(super) fn pass(input: StdinStream, to: pipe::Sender) -> Self {
        let (sender, from) = mpsc::channel(MAX_READS);
        // This task may wait in a read for ever, and ends with the process.
        tokio::spawn(read_keys(input, sender));
        let answers = Answers::default();
        Self { from, is_open: true, to, can_write: true, typed: Vec::new(), answers }
    }

    /// Reads or writes once, and returns the number of fences that the terminal has answered. While fences are open, input
    /// is read for answers even if the buffer is full; keys are lost then, if the cell does not read them. Cancel safe.
    pub(super) async fn step(&mut self, has_fences: bool) -> usize {
        let Self { from, is_open, to, can_write, typed, answers } = self;
        let has_room = has_fences || typed.len() < MAX_TYPED;
        tokio::select! {
            written = to.write(typed), if *can_write && !typed.is_empty() => match written {
                Ok(written) => drop(typed.drain(..written)),
                Err(error) => {
                    tracing::debug!(%error, "the cell's terminal takes no more");
                    *can_write = false;
                }
            },
            bytes = from.recv(), if *is_open && has_room => match bytes {
                Some(bytes) => return self.received(bytes, has_fences),
                None => *is_open = false,
            },
            () = sleep(ANSWER_TIMEOUT), if answers.has_begun() => typed.extend(answers.give_up()),
            // Without this branch, `select!` would panic while the others are disabled.
            () = pending() => {}
        }
        0
    }

    /// Queues keys for the cell. Returns the number of answers among them.
    fn received(&mut self, bytes: Vec<u8>, has_fences: bool) -> usize {
        let (keys, answered) = match has_fences || self.answers.has_begun() {
            true => self.answers.take(&bytes),
            false => (bytes, 0),
        };
        if self.can_write && self.typed.len() < MAX_TYPED {
            self.typed.extend(keys);
        }
        answered
    }

    /// Reads and drops keys. Returns the number of answers among them.
    pub(super) async fn discard(&mut self) -> usize {
        match self.from.recv().await {
            Some(bytes) => self.answers.take(&bytes).1,
            None => pending().await,
        }
    }
}

async fn read_keys(mut input: StdinStream, keys: mpsc::Sender<Vec<u8>>) {
    loop {
        let mut chunk = Vec::with_capacity(CHUNK);
        match input.read_buf(&mut chunk).await {
            Ok(0) => return,
            Ok(_) if keys.send(chunk).await.is_err() => return,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(error = in_words(&error), "standard input cannot be read");
                return;
            }
        }
    }
}
