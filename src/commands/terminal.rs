//! Connects the operator's terminal with one of the cell's own for `run`: keys pass as they are, output through a filter,
//! and the operator's terminal is given back as it was.

use std::io::{IsTerminal, Write, stderr, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use super::error::CliError;
use super::escape_filter::EscapeFilter;
use super::exit::Cancellation;
use super::pump;
use super::streams::{StdinStream, StdoutStream};
use link::{Control, Running};
use model::outcome::{Ended, Failure, in_words};
use model::profile::TerminalSize;
use sys::terminal::{self, Attributes};

/// Bytes of one read: more than a terminal has at once.
const CHUNK: usize = 16 << 10;
/// Time in which a terminal answers what it was asked last: its answers are discarded with other input.
const ANSWER: Duration = Duration::from_millis(100);
/// Time of silence after the end of the call from which no more output is expected.
const SILENCE: Duration = Duration::from_millis(250);

/// The terminal at standard input and output.
#[derive(Debug)]
pub(super) struct OperatorTerminal {
    attributes: Attributes,
    pub size: TerminalSize,
}

impl OperatorTerminal {
    /// Looks for one: standard input and output are terminals. Without `asked`, standard error has to be one too: it
    /// comes with the output then, and may have been meant for a file.
    pub(super) fn found(asked: bool) -> Option<Self> {
        let has_error = asked || stderr().is_terminal();
        if !stdin().is_terminal() || !stdout().is_terminal() || !has_error {
            return None;
        }
        let attributes = terminal::attributes(stdin()).ok()?;
        Some(Self { attributes, size: size()? })
    }

    /// Returns the variables by which programs know its kind.
    pub(super) fn variables() -> impl Iterator<Item = (String, String)> {
        ["TERM", "COLORTERM"].into_iter().filter_map(|name| {
            let value = std::env::var(name).ok()?;
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '+');
            let fits = !value.is_empty() && value.len() < 64 && value.chars().all(plain);
            fits.then(|| (name.to_owned(), value))
        })
    }
}

fn size() -> Option<TerminalSize> {
    let (rows, columns) = terminal::size(stdout()).ok()?;
    // A serial line tells 0.
    Some(TerminalSize {
        rows: if rows == 0 { 24 } else { rows },
        columns: if columns == 0 { 80 } else { columns },
    })
}

/// The operator's terminal while every key passes to the cell; dropping it gives it back as it was.
struct RawTerminal<'t> {
    before: &'t OperatorTerminal,
    filter: EscapeFilter,
}

impl<'t> RawTerminal<'t> {
    fn enter(before: &'t OperatorTerminal) -> Result<Self, CliError> {
        terminal::set_attributes(stdin(), &before.attributes.raw())
            .map_err(|errno| CliError::new(format!("the terminal cannot be made raw: {errno}")))?;
        Ok(Self { before, filter: EscapeFilter::default() })
    }
}

impl Drop for RawTerminal<'_> {
    fn drop(&mut self) {
        // Whatever fails here, the rest is tried: nothing else can be done for the terminal.
        let mut out = stdout();
        out.write_all(&self.filter.reset()).and_then(|()| out.flush()).unwrap_or_default();
        terminal::discard_input(stdin()).unwrap_or_default();
        terminal::set_attributes(stdin(), &self.before.attributes).unwrap_or_default();
    }
}

/// Signals that a conversation heeds.
struct Signals {
    resized: Signal,
    hung_up: Signal,
    quit: Signal,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn watch() -> std::io::Result<Self> {
        Ok(Self {
            resized: signal(SignalKind::window_change())?,
            hung_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for a signal; `None` for a terminal of another size.
    async fn next(&mut self) -> Option<Cancellation> {
        tokio::select! {
            _ = self.resized.recv() => None,
            _ = self.interrupt.recv() => Some(Cancellation::Interrupt),
            _ = self.quit.recv() => Some(Cancellation::Interrupt),
            _ = self.hung_up.recv() => Some(Cancellation::Terminate),
            _ = self.terminate.recv() => Some(Cancellation::Terminate),
        }
    }
}

/// Carries bytes between the operator's terminal and the cell's until the call has ended.
///
/// # Errors
/// A terminal that cannot be used.
pub(super) async fn converse(
    running: Running,
    input: StdinStream,
    output: &mut StdoutStream,
    limit: Option<u64>,
    operators: &OperatorTerminal,
) -> Result<(Ended, Option<Cancellation>), CliError> {
    let Running { stdin: master, stdout: mut from, control, mut ended, guard: _guard, .. } =
        running;
    let unusable = |error: std::io::Error| {
        CliError::new(format!("the terminal cannot be used: {}", in_words(&error)))
    };
    let master = master.ok_or_else(|| CliError::new("the cell has no terminal"))?;
    let own = master.as_fd().try_clone_to_owned().map_err(unusable)?;
    let mut signals = Signals::watch().map_err(unusable)?;
    let mut raw = RawTerminal::enter(operators)?;
    let feeding = tokio::spawn(pump::input(input, master));
    let mut taken_back = None;
    let mut left = limit;
    let end = loop {
        tokio::select! {
            end = &mut ended => break end.unwrap_or_else(|_gone| Ended::failed(Failure::Supervisor)),
            read = next(&mut from) => match read {
                Some(bytes) => {
                    if spent(&mut left, bytes.len()) {
                        control.output_limit();
                    } else if !passed(&mut raw.filter, &bytes, output).await {
                        taken_back.get_or_insert(Cancellation::OutputClosed);
                        control.cancel();
                    }
                }
                // Every process has let the terminal go; the end of the call comes next.
                None => break ended.await.unwrap_or_else(|_gone| Ended::failed(Failure::Supervisor)),
            },
            why = signals.next() => resized_or_ended(why, &own, &control, &mut taken_back),
        }
    };
    // The last of its output is in the terminal's buffer by now.
    while let Ok(Some(bytes)) = tokio::time::timeout(SILENCE, next(&mut from)).await {
        passed(&mut raw.filter, &bytes, output).await;
    }
    if raw.filter.has_asked() {
        sleep(ANSWER).await;
    }
    feeding.abort();
    Ok((end, taken_back))
}

/// Gives the cell's terminal the size of the operator's, or ends the call.
fn resized_or_ended(
    why: Option<Cancellation>,
    master: &OwnedFd,
    control: &Control,
    taken_back: &mut Option<Cancellation>,
) {
    match (why, size()) {
        (None, Some(TerminalSize { rows, columns })) => {
            if let Err(errno) = terminal::set_size(master, rows, columns) {
                tracing::debug!(%errno, "the cell's terminal keeps its size");
            }
        }
        (None, None) => {}
        (Some(why), _) => {
            taken_back.get_or_insert(why);
            control.cancel();
        }
    }
}

/// Reads from the cell's terminal; `None` once nobody has its other end.
async fn next(from: &mut pipe::Receiver) -> Option<Vec<u8>> {
    let mut chunk = Vec::with_capacity(CHUNK);
    match from.read_buf(&mut chunk).await {
        Ok(0) => None,
        Ok(_) => Some(chunk),
        // EIO: the last process has closed it (pty(7)).
        Err(error) => {
            tracing::debug!(error = in_words(&error), "the cell's terminal has ended");
            None
        }
    }
}

/// Counts output; true once there is more than the call may print.
fn spent(left: &mut Option<u64>, bytes: usize) -> bool {
    let Some(left) = left else { return false };
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    match left.checked_sub(bytes) {
        Some(rest) => {
            *left = rest;
            false
        }
        None => true,
    }
}

/// Writes what may pass; false if nobody takes it.
async fn passed<W: AsyncWrite + Unpin>(
    filter: &mut EscapeFilter,
    bytes: &[u8],
    output: &mut W,
) -> bool {
    let bytes = filter.push(bytes);
    let written = async {
        output.write_all(&bytes).await?;
        output.flush().await
    };
    written.await.is_ok()
}
