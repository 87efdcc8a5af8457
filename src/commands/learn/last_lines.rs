//! An output stream whose last bytes are kept, for an error report when the program has ended.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

/// Bytes that are kept.
const MAX_BYTES: usize = 4096;

/// Passes all bytes on, and keeps the last ones.
pub(crate) struct LastLines<W> {
    to: W,
    kept: Vec<u8>,
}

impl<W> LastLines<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to, kept: Vec::new() }
    }

    /// Returns the last lines as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for LastLines<W> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.to).poll_write(context, bytes))?;
        this.kept.extend_from_slice(bytes.get(..written).unwrap_or(bytes));
        let excess = this.kept.len().saturating_sub(MAX_BYTES);
        this.kept.drain(..excess);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().to).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().to).poll_shutdown(context)
    }
}
