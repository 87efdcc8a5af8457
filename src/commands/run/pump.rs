//! Copies bytes between the user's streams and a cell's pipes as they arrive, under one output
//! limit.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::sleep;

use model::outcome::in_words;

/// Bytes of one read: the capacity of a pipe.
const CHUNK: usize = 64 << 10;
/// Time of silence after which no more output is expected of a call that is over.
const PAUSE: Duration = Duration::from_millis(250);
/// Maximum bytes of one stream that `--json` keeps (16 MiB); the rest is counted.
pub const KEPT: usize = 16 << 20;

/// Number of bytes that a call may print, over both streams.
#[derive(Debug)]
pub struct Budget {
    left: Option<AtomicU64>,
}

impl Budget {
    /// Makes a budget; `None` has no bound.
    pub fn new(limit: Option<u64>) -> Self {
        Self { left: limit.map(AtomicU64::new) }
    }

    /// Takes up to `wanted` bytes; a smaller result means that the budget is used up.
    fn take(&self, wanted: u64) -> u64 {
        let Some(left) = &self.left else { return wanted };
        let taken = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
            Some(left.saturating_sub(wanted))
        });
        taken.unwrap_or(0).min(wanted)
    }
}

/// Reason why a stream stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The call printed more than it may.
    #[error("the output limit is reached")]
    Budget,
    /// The far end accepts no more.
    #[error("the output cannot be written")]
    Closed(#[source] io::Error),
    #[error("the cell's output cannot be read")]
    Read(#[source] io::Error),
}

/// Copies one output stream to its end; every chunk is flushed, so that it is live. When the call
/// is over, all its output is in the pipe. From then on a pause counts as the end too, because
/// processes that are slow to die hold the pipe open.
pub async fn output<R, W>(
    mut from: R,
    to: &mut W,
    budget: &Budget,
    mut over: watch::Receiver<bool>,
) -> Result<(), Stopped>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut chunk = Vec::with_capacity(CHUNK);
    loop {
        chunk.clear();
        let count = tokio::select! {
            biased;
            read = from.read_buf(&mut chunk) => read.map_err(Stopped::Read)?,
            () = pause(&mut over) => return Ok(()),
        };
        let read = chunk.as_slice();
        if read.is_empty() {
            return Ok(());
        }
        let wanted = u64::try_from(count).unwrap_or(u64::MAX);
        let may = budget.take(wanted);
        let passed = usize::try_from(may).ok().and_then(|may| read.get(..may)).unwrap_or(read);
        to.write_all(passed).await.map_err(Stopped::Closed)?;
        to.flush().await.map_err(Stopped::Closed)?;
        if may < wanted {
            return Err(Stopped::Budget);
        }
    }
}

/// Waits for the end of the call, and then for a little longer.
async fn pause(over: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone: the call is over.
    over.wait_for(|over| *over).await.map(drop).unwrap_or_default();
    sleep(PAUSE).await;
}

/// Feeds a program's standard input; ends with the user's end of file, or when the program reads no
/// more. Dropping `to` at the end is the program's end of file.
pub async fn input<R, W>(mut from: R, mut to: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut chunk = Vec::with_capacity(CHUNK);
    loop {
        chunk.clear();
        let read = match from.read_buf(&mut chunk).await {
            Ok(_) => chunk.as_slice(),
            Err(error) => {
                tracing::warn!(error = in_words(&error), "standard input cannot be read");
                return;
            }
        };
        if read.is_empty() {
            return;
        }
        if let Err(error) = to.write_all(read).await {
            tracing::debug!(%error, "the program reads no more");
            return;
        }
    }
}

/// Keeps the head of a stream and counts the whole of it.
#[derive(Debug, Default)]
pub struct Head {
    pub kept: Vec<u8>,
    pub bytes: u64,
}

impl AsyncWrite for Head {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let head = self.get_mut();
        let room = KEPT.saturating_sub(head.kept.len());
        head.kept.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        head.bytes = head.bytes.saturating_add(count);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a receiver for a call that has not ended.
    fn during() -> watch::Receiver<bool> {
        watch::channel(false).1
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipe_that_is_held_open_ends_after_a_pause_once_the_call_is_over() {
        let (mut near, far) = tokio::io::duplex(8);
        let (call_over, over) = watch::channel(false);
        let mut out = Vec::new();
        let began = tokio::time::Instant::now();
        let (copied, ()) =
            tokio::join!(async { output(far, &mut out, &Budget::new(None), over).await }, async {
                sleep(4 * PAUSE).await;
                near.write_all(b"late").await.expect("a reader");
                call_over.send_replace(true);
            });
        assert!(copied.is_ok());
        assert_eq!((out, began.elapsed()), (b"late".to_vec(), 5 * PAUSE));
    }

    #[tokio::test]
    async fn output_passes_exactly_its_budget_over_both_streams() {
        let budget = Budget::new(Some(5));
        let mut out = Vec::new();
        let mut err = Vec::new();
        assert!(output(&b"abc"[..], &mut out, &budget, during()).await.is_ok());
        assert!(matches!(
            output(&b"defg"[..], &mut err, &budget, during()).await,
            Err(Stopped::Budget)
        ));
        assert_eq!((out, err), (b"abc".to_vec(), b"de".to_vec()));
    }

    #[tokio::test]
    async fn output_that_just_fits_is_no_breach() {
        let budget = Budget::new(Some(3));
        let mut out = Vec::new();
        assert!(output(&b"abc"[..], &mut out, &budget, during()).await.is_ok());
    }

    #[tokio::test]
    async fn a_closed_reader_stops_the_stream() {
        let (near, far) = tokio::io::duplex(8);
        drop(far);
        let mut near = near;
        let stopped = output(&b"abc"[..], &mut near, &Budget::new(None), during()).await;
        assert!(matches!(stopped, Err(Stopped::Closed(_))));
    }

    #[tokio::test]
    async fn input_ends_with_its_source_or_with_its_reader() {
        let (mut far, near) = tokio::io::duplex(8);
        let (_, copied) = tokio::join!(input(&b"hello world"[..], near), async {
            let mut text = String::new();
            far.read_to_string(&mut text).await.map(|_| text)
        });
        assert_eq!(copied.ok().as_deref(), Some("hello world"));
        let (far, near) = tokio::io::duplex(8);
        drop(far);
        input(tokio::io::repeat(b'x'), near).await;
    }

    #[tokio::test]
    async fn a_head_counts_what_it_does_not_keep() {
        let mut head = Head::default();
        let kept = u64::try_from(KEPT).unwrap_or(0);
        let flood = tokio::io::repeat(b'x').take(kept + 10);
        assert!(output(flood, &mut head, &Budget::new(None), during()).await.is_ok());
        assert_eq!((head.kept.len(), head.bytes), (KEPT, kept + 10));
    }
}
