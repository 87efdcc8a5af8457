//! An output stream that may be a terminal: output of a cell passes through the escape filter then, and the terminal's
//! settings are restored at the end.

use std::io::{self, IsTerminal, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::escape_filter::{Coding, EscapeFilter, Queries};

/// A stream, and its filter where it is a terminal.
pub(crate) struct FilteredOutput<W> {
    to: W,
    filter: Option<EscapeFilter>,
    /// Bytes that passed and are not written yet.
    passed: Vec<u8>,
}

impl<W> FilteredOutput<W> {
    /// Wraps the stream `to`, which writes to `stream`. The program's input is not this terminal, so no query passes.
    pub(crate) fn new(to: W, stream: &impl IsTerminal) -> Self {
        let filter = || EscapeFilter::new(Queries::Drop, Coding::of_locale());
        Self { to, filter: stream.is_terminal().then(filter), passed: Vec::new() }
    }

    /// Restores the terminal, by another stream to it.
    pub(crate) fn restore_terminal(&self, mut to: impl Write) {
        if let Some(filter) = &self.filter {
            // A terminal that cannot be written to cannot be restored.
            to.write_all(&filter.reset()).and_then(|()| to.flush()).unwrap_or_default();
        }
    }
}

impl<W: AsyncWrite + Unpin> FilteredOutput<W> {
    fn poll_passed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.passed.is_empty() {
            match ready!(Pin::new(&mut self.to).poll_write(context, &self.passed))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.passed.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for FilteredOutput<W> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_passed(context))?;
        match &mut this.filter {
            Some(filter) => {
                this.passed = filter.push(bytes);
                Poll::Ready(Ok(bytes.len()))
            }
            None => Pin::new(&mut this.to).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_passed(context))?;
        Pin::new(&mut this.to).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_passed(context))?;
        Pin::new(&mut this.to).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[tokio::test]
    async fn only_the_output_for_a_terminal_is_filtered() -> io::Result<()> {
        let hostile = b"a\x1b[21tb\x1b]52;c;eA==\x07c\x1b[1m";
        for (is_terminal, expected) in [(true, &b"abc\x1b[1m"[..]), (false, &hostile[..])] {
            let filter = || EscapeFilter::new(Queries::Drop, Coding::Utf8);
            let filter = is_terminal.then(filter);
            let mut output = FilteredOutput { to: Vec::new(), filter, passed: Vec::new() };
            output.write_all(hostile).await?;
            output.flush().await?;
            assert_eq!(output.to, expected);
            let mut back = Vec::new();
            output.restore_terminal(&mut back);
            assert_eq!(back.is_empty(), !is_terminal);
        }
        Ok(())
    }
}
