//! What is typed at the operator's terminal, by the operator and by the terminal's own answers: it goes to the cell while
//! the call runs, and what the terminal still answers afterwards goes to nobody.

use std::io::{Write, stdout};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::streams::StdinStream;
use model::outcome::in_words;

/// Bytes of one read.
const CHUNK: usize = 16 << 10;
/// Reads that wait to be passed on.
const WAITING: usize = 16;
/// Time in which a terminal answers, over a slow line too, and in which it answers very many questions.
const ANSWER: Duration = Duration::from_secs(2);
const ALL_ANSWERS: Duration = Duration::from_secs(20);
/// Ends a string that is open and asks for the terminal's status (DSR), and its answers. The filter lets no program ask it.
const STATUS: &[u8] = b"\x1b\\\x1b[5n";
const STATUS_ANSWERS: [&[u8]; 2] = [b"\x1b[0n", b"\x1b[3n"];

/// The tasks that pass keys on.
pub(super) struct Keys {
    typing: JoinHandle<mpsc::Receiver<Vec<u8>>>,
    end: oneshot::Sender<()>,
}

impl Keys {
    /// Passes keys from `input` to the cell's terminal.
    pub(super) fn pass(input: StdinStream, to: pipe::Sender) -> Self {
        let (sender, keys) = mpsc::channel(WAITING);
        // It may wait in a read for ever, and is left to the end of the process.
        tokio::spawn(read_keys(input, sender));
        let (end, ended) = oneshot::channel();
        Self { typing: tokio::spawn(type_keys(keys, to, ended)), end }
    }

    /// Passes no key on any more. If a program has asked the terminal something, what it answers is taken, so that none of
    /// it is typed at the operator's shell: it answers in order, so once it has told its status, nothing is left.
    pub(super) async fn end(self, has_asked: bool) {
        let Self { typing, end } = self;
        // It may have ended by itself.
        end.send(()).unwrap_or_default();
        let Ok(mut keys) = typing.await else { return };
        let mut out = stdout();
        if !has_asked || out.write_all(STATUS).and_then(|()| out.flush()).is_err() {
            return;
        }
        let last = Instant::now() + ALL_ANSWERS;
        let mut seen: Vec<u8> = Vec::new();
        loop {
            let until = last.min(Instant::now() + ANSWER);
            let Ok(Some(bytes)) = timeout_at(until, keys.recv()).await else { return };
            seen.extend(bytes);
            let is_in = |answer: &[u8]| seen.windows(answer.len()).any(|one| one == answer);
            if STATUS_ANSWERS.iter().any(|answer| is_in(answer)) {
                return;
            }
            seen.drain(..seen.len().saturating_sub(STATUS.len()));
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

/// Passes keys on until it is told to end, and returns those that are left.
async fn type_keys(
    mut keys: mpsc::Receiver<Vec<u8>>,
    mut to: pipe::Sender,
    mut ended: oneshot::Receiver<()>,
) -> mpsc::Receiver<Vec<u8>> {
    let typing = async {
        while let Some(bytes) = keys.recv().await {
            if let Err(error) = to.write_all(&bytes).await {
                tracing::debug!(%error, "the cell's terminal takes no more");
                break;
            }
        }
        // The operator's terminal has ended: closing the cell's would be the end of its programs.
        std::future::pending().await
    };
    tokio::select! {
        _ = &mut ended => {}
        () = typing => {}
    }
    keys
}
