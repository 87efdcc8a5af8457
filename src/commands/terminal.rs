//! Connects the operator's terminal with one of the cell's own for `run`: keys pass as they are, output through a filter,
//! and the operator's terminal is given back as it was.

use std::future::Future;
use std::io::{self, IsTerminal, stderr, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use libc::SIGCONT;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::end_signals::EndSignals;
use super::error::CliError;
use super::escape_filter::{Coding, EscapeFilter, Questions};
use super::exit::Cancellation;
use super::fences::Fences;
use super::keys::Keys;
use super::streams::{StdinStream, StdoutStream};
use link::Running;
use model::outcome::{Ended, Failure, in_words};
use model::profile::TerminalSize;
use sys::terminal::{self, Attributes};

/// Bytes of one read: more than a terminal has at once.
const CHUNK: usize = 16 << 10;
/// Time in which the terminal takes some of the last output.
const PATIENCE: Duration = Duration::from_secs(2);
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

/// The operator's terminal while every key passes to the cell; dropping it gives its attributes back.
struct RawTerminal<'t> {
    before: &'t OperatorTerminal,
    filter: EscapeFilter,
}

impl<'t> RawTerminal<'t> {
    fn enter(before: &'t OperatorTerminal) -> Result<Self, CliError> {
        terminal::set_attributes(stdin(), &before.attributes.raw())
            .map_err(|errno| CliError::new(format!("the terminal cannot be made raw: {errno}")))?;
        let filter = EscapeFilter::new(Questions::Pass, Coding::of_locale());
        Ok(Self { before, filter })
    }

    /// Has keys pass as they are once more: a shell that continues a stopped program may have set its own attributes.
    fn again(&self) {
        if let Err(errno) = terminal::set_attributes(stdin(), &self.before.attributes.raw()) {
            tracing::debug!(%errno, "the terminal cannot be made raw again");
        }
    }
}

impl Drop for RawTerminal<'_> {
    fn drop(&mut self) {
        // Whatever fails here, the rest is tried: nothing else can be done for the terminal.
        terminal::discard_input(stdin()).unwrap_or_default();
        terminal::set_attributes(stdin(), &self.before.attributes).unwrap_or_default();
    }
}

/// Signals that a conversation heeds.
struct Signals {
    resized: Signal,
    continued: Signal,
    ends: EndSignals,
}

/// A signal as a conversation takes it.
enum Woken {
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
    async fn next(&mut self) -> Woken {
        tokio::select! {
            _ = self.resized.recv() => Woken::Resized,
            _ = self.continued.recv() => Woken::Continued,
            why = self.ends.next() => Woken::Ended(why),
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
pub(super) async fn converse(
    running: Running,
    input: StdinStream,
    output: &mut StdoutStream,
    limit: Option<u64>,
    operators: &OperatorTerminal,
) -> Result<Conversation, CliError> {
    let Running { stdin: master, stdout: mut from, control, mut ended, guard: _guard, .. } =
        running;
    let unusable = |error: io::Error| {
        CliError::new(format!("the terminal cannot be used: {}", in_words(&error)))
    };
    let master = master.ok_or_else(|| CliError::new("the cell has no terminal"))?;
    let own = master.as_fd().try_clone_to_owned().map_err(unusable)?;
    let mut signals = Signals::watch().map_err(unusable)?;
    let mut raw = RawTerminal::enter(operators)?;
    let mut keys = Keys::pass(input, master);
    let mut taken_back = None;
    let mut left = limit;
    let (mut shown, mut is_open) = (Shown::default(), true);
    let end = loop {
        let (is_shown, is_waiting) = (shown.is_done(), raw.filter.is_waiting());
        let has_fences = raw.filter.fences().is_open();
        let patience = raw.filter.fences().patience();
        tokio::select! {
            end = &mut ended => break end.unwrap_or_else(|_gone| Ended::failed(Failure::Supervisor)),
            // Beside the rest: a terminal that nobody reads must not hide a signal or the end.
            written = shown.write(output), if !is_shown => if written.is_err() {
                shown = Shown::default();
                taken_back.get_or_insert(Cancellation::OutputClosed);
                control.cancel();
            },
            read = next(&mut from), if is_shown && is_open && !is_waiting => match read {
                Some(bytes) if spent(&mut left, bytes.len()) => control.output_limit(),
                Some(bytes) => shown.add(&raw.filter.push(&bytes)),
                // Every process has let the terminal go; signals still count.
                None => is_open = false,
            },
            answers = keys.step(has_fences) => shown.add(&raw.filter.answered(answers)),
            // It answers nothing, or very late: it is asked nothing more.
            () = sleep(patience), if is_waiting && is_shown => shown.add(&raw.filter.ask_no_more()),
            why = signals.next() => match why {
                Woken::Continued => raw.again(),
                Woken::Resized => resized(&own),
                Woken::Ended(why) => {
                    taken_back.get_or_insert(why);
                    control.cancel();
                }
            },
        }
    };
    let is_read = tokio::select! {
        is_read = put_back(&mut raw.filter, &mut keys, &mut from, (shown, &mut *output)) => is_read,
        // A signal now means: do not wait for the terminal.
        () = signals.ended() => {
            let mut reset = Shown::default();
            reset.add(&raw.filter.reset());
            timeout(SILENCE, reset.write_all(output)).await.is_ok_and(|written| written.is_ok())
        }
    };
    Ok(Conversation { ended: end, taken_back, is_read })
}

/// End of a conversation.
pub(super) struct Conversation {
    pub ended: Ended,
    pub taken_back: Option<Cancellation>,
    /// False if the terminal takes no output: another word would wait for it for ever.
    pub is_read: bool,
}

/// Shows the last of the output, waits for what the terminal still answers and puts it back. All that is typed meanwhile
/// is taken: a terminal that waits to be read reads nothing itself. Returns false if it took no output in time.
async fn put_back(
    filter: &mut EscapeFilter,
    keys: &mut Keys,
    from: &mut pipe::Receiver,
    (mut shown, output): (Shown, &mut StdoutStream),
) -> bool {
    shown.add(&filter.ask_no_more());
    let mut fences = filter.fences().clone();
    // It is in the terminal's buffer by now. Nobody need read it.
    let rest = async {
        while let Ok(Some(bytes)) = timeout(SILENCE, next(from)).await {
            shown.add(&filter.push(&bytes));
        }
        shown.write_all(output).await
    };
    if beside(rest, keys, &mut fences).await.is_err() {
        return false;
    }
    while fences.is_open() {
        // Each answer is a sign that more come.
        match timeout(fences.patience(), keys.discard()).await {
            Ok(answers) => fences.answered(answers),
            Err(_) => break,
        }
    }
    shown.add(&filter.reset());
    beside(shown.write_all(output), keys, &mut fences).await.is_ok()
}

/// Writes while all that is typed is taken.
async fn beside(
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

/// Bytes on their way to the terminal.
#[derive(Debug, Default)]
struct Shown {
    bytes: Vec<u8>,
    is_held_back: bool,
}

impl Shown {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.is_held_back |= !bytes.is_empty();
    }

    fn is_done(&self) -> bool {
        self.bytes.is_empty() && !self.is_held_back
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// Nothing more could be written for a while.
    async fn write_all<W: AsyncWrite + Unpin>(&mut self, output: &mut W) -> io::Result<()> {
        while !self.is_done() {
            timeout(PATIENCE, self.write(output)).await??;
        }
        Ok(())
    }

    /// Takes one step; nothing is lost if it is given up before its end.
    async fn write<W: AsyncWrite + Unpin>(&mut self, output: &mut W) -> io::Result<()> {
        if self.bytes.is_empty() {
            output.flush().await?;
            self.is_held_back = false;
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
