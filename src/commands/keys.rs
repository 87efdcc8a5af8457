//! What is typed at the operator's terminal, by the operator and by the terminal's own answers: it goes to the cell while
//! the call runs, and what the terminal still answers afterwards goes to nobody.

use std::future::pending;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::fences::Answers;
use super::streams::StdinStream;
use model::outcome::in_words;

/// Bytes of one read.
const CHUNK: usize = 16 << 10;
/// Reads that wait to be passed on, and bytes that wait for the cell to read them.
const WAITING: usize = 16;
const MOST_TYPED: usize = 256 << 10;
/// Time in which the rest of an answer comes. A beginning that stays alone is a key: ESC, say.
const REST: Duration = Duration::from_millis(100);

/// Keys on their way to the cell's terminal.
pub(super) struct Keys {
    from: mpsc::Receiver<Vec<u8>>,
    is_open: bool,
    /// Held to the end: closing it would be the end of the cell's programs.
    to: pipe::Sender,
    takes: bool,
    typed: Vec<u8>,
    answers: Answers,
}

impl Keys {
    /// Passes keys from `input` to the cell's terminal.
    pub(super) fn pass(input: StdinStream, to: pipe::Sender) -> Self {
        let (sender, from) = mpsc::channel(WAITING);
        // It may wait in a read for ever, and is left to the end of the process.
        tokio::spawn(read_keys(input, sender));
        let (typed, answers) = (Vec::new(), Answers::default());
        Self { from, is_open: true, to, takes: true, typed, answers }
    }

    /// Takes one step, and returns the number of fences that the terminal has answered. While fences are open, answers are
    /// looked for, also behind more keys than there is room for: those are lost, where a cell asks and reads nothing.
    /// Nothing is lost if the step is given up before its end.
    pub(super) async fn step(&mut self, has_fences: bool) -> usize {
        let Self { from, is_open, to, takes, typed, answers } = self;
        let has_room = has_fences || typed.len() < MOST_TYPED;
        tokio::select! {
            written = to.write(typed), if *takes && !typed.is_empty() => match written {
                Ok(written) => drop(typed.drain(..written)),
                Err(error) => {
                    tracing::debug!(%error, "the cell's terminal takes no more");
                    *takes = false;
                }
            },
            bytes = from.recv(), if *is_open && has_room => match bytes {
                Some(bytes) => return self.took(bytes, has_fences),
                None => *is_open = false,
            },
            () = sleep(REST), if answers.has_begun() => typed.extend(answers.give_up()),
            // Until something else happens.
            () = pending() => {}
        }
        0
    }

    fn took(&mut self, bytes: Vec<u8>, has_fences: bool) -> usize {
        let (keys, answered) = match has_fences || self.answers.has_begun() {
            true => self.answers.take(&bytes),
            false => (bytes, 0),
        };
        if self.takes && self.typed.len() < MOST_TYPED {
            self.typed.extend(keys);
        }
        answered
    }

    /// Takes keys that go to nobody. Returns the number of answers among them.
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
