//! Connects the operator's terminal with a terminal in the cell for `run`: keys pass unchanged, output passes a filter,
//! and the settings of the operator's terminal are restored at the end.

pub(crate) mod colour;
pub(crate) mod end_signals;
mod escape_filter;
mod fences;
pub(crate) mod filtered_output;
mod keys;

use std::future::Future;
use std::io::{self, IsTerminal, stderr, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use libc::SIGCONT;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::commands::error::CliError;
use crate::commands::exit::Cancellation;
use crate::commands::streams::{StdinStream, StdoutStream};
use crate::commands::terminal::end_signals::EndSignals;
use crate::commands::terminal::escape_filter::{Coding, EscapeFilter, Queries};
use crate::commands::terminal::fences::Fences;
use crate::commands::terminal::keys::Keys;
use model::outcome::{Ended, Failure, in_words};
use model::profile::TerminalSize;
use service::link::Running;
use sys::terminal::{self, Attributes};

/// Bytes of one read: more than a terminal has at once.
const CHUNK: usize = 16 << 10;
/// Time in which the terminal must accept a part of the last output.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time without output after the end of the call from which no more output is expected.
const SILENCE: Duration = Duration::from_millis(250);

/// The terminal at standard input and output.
#[derive(Debug)]
pub(crate) struct OperatorTerminal {
    attributes: Attributes,
    pub size: TerminalSize,
}

impl OperatorTerminal {
    /// Returns the terminal, if standard input and output are terminals. Standard error must be a terminal too, unless
    /// `is_requested`: at a terminal both streams are one, so a file for errors would stay empty.
    pub(crate) fn detect(is_requested: bool) -> Option<Self> {
        let has_error = is_requested || stderr().is_terminal();
        if !stdin().is_terminal() || !stdout().is_terminal() || !has_error {
            return None;
        }
        let attributes = terminal::attributes(stdin()).ok()?;
        Some(Self { attributes, size: size()? })
    }

    /// Returns the variables that name the kind of the terminal.
    pub(crate) fn variables() -> impl Iterator<Item = (String, String)> {
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
    // A serial line has the size 0.
    Some(TerminalSize {
        rows: if rows == 0 { 24 } else { rows },
        columns: if columns == 0 { 80 } else { columns },
    })
}

/// The operator's terminal while every key passes to the cell. Dropping it restores the attributes.
struct RawTerminal<'t> {
    before: &'t OperatorTerminal,
    filter: EscapeFilter,
}

impl<'t> RawTerminal<'t> {
    fn enter(before: &'t OperatorTerminal) -> Result<Self, CliError> {
        terminal::set_attributes(stdin(), &before.attributes.raw())
            .map_err(|errno| CliError::new(format!("the terminal cannot be made raw: {errno}")))?;
        let filter = EscapeFilter::new(Queries::Pass, Coding::of_locale());
        Ok(Self { before, filter })
    }

    /// Sets the raw attributes again: a shell that continues a stopped program may have set others.
    fn set_again(&self) {
        if let Err(errno) = terminal::set_attributes(stdin(), &self.before.attributes.raw()) {
            tracing::debug!(%errno, "the terminal cannot be made raw again");
        }
    }
}

impl Drop for RawTerminal<'_> {
    fn drop(&mut self) {
        // If one call fails, the other is tried: there is no other way to restore the terminal, nor to report it.
        terminal::discard_input(stdin()).unwrap_or_default();
        terminal::set_attributes(stdin(), &self.before.attributes).unwrap_or_default();
    }
}

/// Signals that are handled while a terminal is connected.
struct Signals {
    resized: Signal,
    continued: Signal,
    ends: EndSignals,
}

/// Meaning of a signal.
enum SignalMeaning {
    Resized,
    Continued,
    Ended(Cancellation),
}

impl Signals {
    fn watch() -> io::Result<Self> {
        Ok(Self {
            resized: signal(SignalKind::window_change())?,
            continued: signal(SignalKind::from_raw(SIGCONT))?,
            ends: EndSignals::watch(true)?,
        })
    }

    /// Waits for a signal.
    async fn next(&mut self) -> SignalMeaning {
        tokio::select! {
            _ = self.resized.recv() => SignalMeaning::Resized,
            _ = self.continued.recv() => SignalMeaning::Continued,
            cancellation = self.ends.next() => SignalMeaning::Ended(cancellation),
        }
    }

    /// Waits for a signal that ends the command.
    async fn ended(&mut self) {
        self.ends.next().await;
    }
}

/// Carries bytes between the operator's terminal and the cell's until the call has ended.
///
/// # Errors
/// A terminal that cannot be used.
pub(crate) async fn connect(
    running: Running,
    input: StdinStream,
    output: &mut StdoutStream,
    limit: Option<u64>,
    operator: &OperatorTerminal,
) -> Result<ConnectedEnd, CliError> {
    let Running { stdin: master, stdout: mut from, control, mut ended, guard: _guard, .. } =
        running;
    let unusable = |error: io::Error| {
        CliError::new(format!("the terminal cannot be used: {}", in_words(&error)))
    };
    let master = master.ok_or_else(|| CliError::new("the cell has no terminal"))?;
    let cell_terminal = master.as_fd().try_clone_to_owned().map_err(unusable)?;
    let mut signals = Signals::watch().map_err(unusable)?;
    let mut raw = RawTerminal::enter(operator)?;
    let mut keys = Keys::pass(input, master);
    let mut cancellation = None;
    let mut left = limit;
    let mut pending = PendingOutput::default();
    let mut is_open = true;
    let end = loop {
        let is_written = pending.is_done();
        let is_waiting = raw.filter.is_waiting();
        let has_fences = raw.filter.fences().is_open();
        let patience = raw.filter.fences().patience();
        tokio::select! {
            end = &mut ended => break end.unwrap_or_else(|_gone| Ended::failed(Failure::Supervisor)),
            // Signals and the end are handled even if the terminal accepts no output.
            written = pending.write(output), if !is_written => if written.is_err() {
                pending = PendingOutput::default();
                cancellation.get_or_insert(Cancellation::OutputClosed);
                control.cancel();
            },
            read = next(&mut from), if is_written && is_open && !is_waiting => match read {
                Some(bytes) if spent(&mut left, bytes.len()) => control.output_limit(),
                Some(bytes) => pending.add(&raw.filter.push(&bytes)),
                // Every process has closed the terminal; signals are still handled.
                None => is_open = false,
            },
            answers = keys.step(has_fences) => pending.add(&raw.filter.answered(answers)),
            // The terminal does not answer, or very late: it gets no more queries.
            () = sleep(patience), if is_waiting && is_written => {
                pending.add(&raw.filter.drop_queries());
            },
            meaning = signals.next() => match meaning {
                SignalMeaning::Continued => raw.set_again(),
                SignalMeaning::Resized => resized(&cell_terminal),
                SignalMeaning::Ended(reason) => {
                    cancellation.get_or_insert(reason);
                    control.cancel();
                }
            },
        }
    };
    let is_read = tokio::select! {
        is_read = restore(&mut raw.filter, &mut keys, &mut from, pending, &mut *output) => is_read,
        // A signal ends the wait for the terminal.
        () = signals.ended() => {
            let mut reset = PendingOutput::default();
            reset.add(&raw.filter.reset());
            timeout(SILENCE, reset.write_all(output)).await.is_ok_and(|written| written.is_ok())
        }
    };
    Ok(ConnectedEnd { ended: end, cancellation, is_read })
}

/// End of a conversation.
pub(crate) struct ConnectedEnd {
    pub ended: Ended,
    pub cancellation: Option<Cancellation>,
    /// False if the terminal accepts no output: further messages would wait for it for ever.
    pub is_read: bool,
}

/// Writes the rest of the output, waits for the terminal's answers and restores its settings. Reads and drops keys
/// meanwhile: a terminal that waits until its answers are read accepts no output. Returns false if the terminal accepted no
/// output in time.
async fn restore(
    filter: &mut EscapeFilter,
    keys: &mut Keys,
    from: &mut pipe::Receiver,
    mut pending: PendingOutput,
    output: &mut StdoutStream,
) -> bool {
    pending.add(&filter.drop_queries());
    let mut fences = filter.fences().clone();
    // The call has ended: all its output is in the buffer of the cell's terminal.
    let rest = async {
        while let Ok(Some(bytes)) = timeout(SILENCE, next(from)).await {
            pending.add(&filter.push(&bytes));
        }
        pending.write_all(output).await
    };
    if while_discarding(rest, keys, &mut fences).await.is_err() {
        return false;
    }
    while fences.is_open() {
        // After an answer, more may come: the time starts again.
        match timeout(fences.patience(), keys.discard()).await {
            Ok(answers) => fences.answered(answers),
            Err(_) => break,
        }
    }
    pending.add(&filter.reset());
    while_discarding(pending.write_all(output), keys, &mut fences).await.is_ok()
}

/// Writes output, and reads and drops keys meanwhile.
async fn while_discarding(
    writing: impl Future<Output = io::Result<()>>,
    keys: &mut Keys,
    fences: &mut Fences,
) -> io::Result<()> {
    tokio::pin!(writing);
    loop {
        tokio::select! {
            written = &mut writing => return written,
            answers = keys.discard() => fences.answered(answers),
        }
    }
}

/// Output that is not written to the operator's terminal yet.
#[derive(Debug, Default)]
struct PendingOutput {
    bytes: Vec<u8>,
    /// True from a write until the stream is flushed.
    needs_flush: bool,
}

impl PendingOutput {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.needs_flush |= !bytes.is_empty();
    }

    fn is_done(&self) -> bool {
        self.bytes.is_empty() && !self.needs_flush
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// The terminal accepted no byte for a while.
    async fn write_all<W: AsyncWrite + Unpin>(&mut self, output: &mut W) -> io::Result<()> {
        while !self.is_done() {
            timeout(WRITE_TIMEOUT, self.write(output)).await??;
        }
        Ok(())
    }

    /// Writes or flushes once. Cancel safe.
    async fn write<W: AsyncWrite + Unpin>(&mut self, output: &mut W) -> io::Result<()> {
        if self.bytes.is_empty() {
            output.flush().await?;
            self.needs_flush = false;
            return Ok(());
        }
        match output.write(&self.bytes).await? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            written => {
                self.bytes.drain(..written);
                Ok(())
            }
        }
    }
}

/// Gives the cell's terminal the size of the operator's.
fn resized(master: &OwnedFd) {
    let Some(TerminalSize { rows, columns }) = size() else { return };
    if let Err(errno) = terminal::set_size(master, rows, columns) {
        tracing::debug!(%errno, "the cell's terminal keeps its size");
    }
}

/// Reads from the cell's terminal; `None` once no process has it open.
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

/// Counts output. Returns true once there is more than the call may print.
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
