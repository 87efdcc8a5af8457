//! Handles the lines that the server sends while the script runs:
//!
//! - `cancel`: the call is cancelled, and the script is asked to end;
//! - `answer TEXT`: the user's answer to a question;
//! - `download ID KIND LENGTH`, followed by that many bytes: a file that was fetched for the
//!   script.

use alloc::vec::Vec;

use crate::child::Child;
use crate::environment::Environment;
use crate::errno::Errno;
use crate::file::{self, OpenFile};
use crate::files::{ANSWER, CANCEL, DOWNLOAD, QUESTION, READ_BYTES};
use crate::sys::{self, number};

/// Interval in nanoseconds at which the script's question file is checked.
const QUESTION_INTERVAL: u64 = 100_000_000;
/// Maximum size of a question in bytes.
const MAX_QUESTION_BYTES: usize = 60_000;
/// POLLIN (poll(2)).
const READABLE: u64 = 1;

/// Reader of the server's lines.
pub struct Listener {
    /// False once the input has ended or failed.
    is_open: bool,
    /// True if the script can ask the user a question.
    asks: bool,
    pending: Pending,
}

/// The part of the input that is being read.
enum Pending {
    /// A line, as far as it has been received.
    Line(Vec<u8>),
    /// A download, and the number of missing bytes.
    Bytes(Download, usize),
}

/// A download that is being written to a temporary file, which gets its name once it is complete.
struct Download {
    file: OpenFile,
    path: Vec<u8>,
}

impl Listener {
    pub fn new(environment: &Environment) -> Self {
        let asks = environment.get(b"MCP_ELICIT_SUPPORTED") == b"1";
        Self { is_open: true, asks, pending: Pending::Line(Vec::new()) }
    }

    /// Listens until the child has ended. `received` came before it was started.
    pub fn wait(mut self, child: &Child, received: Vec<u8>) -> Result<(), Errno> {
        self.receive(&received);
        loop {
            let (has_ended, has_input) = self.poll(child)?;
            if has_input {
                self.read();
            }
            if self.asks && !has_ended {
                // A question that cannot be read stays unanswered, and the script's wait times out.
                ask().unwrap_or_default();
            }
            if has_ended {
                return Ok(());
            }
        }
    }

    /// Waits for the end of the child, for input, or for the next question check (ppoll(2)).
    fn poll(&self, child: &Child) -> Result<(bool, bool), Errno> {
        let wanted = |descriptor: usize| u64::try_from(descriptor).unwrap_or(0) | READABLE << 32;
        let mut all = [wanted(child.end.0), wanted(0)];
        let count = if self.is_open { 2 } else { 1 };
        let time = [0, QUESTION_INTERVAL];
        let time = if self.asks { sys::address(&time) } else { 0 };
        match sys::call(number::PPOLL, &[sys::address_mut(&mut all), count, time, 0, 8]) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let [end, input] = all.map(|one| one >> 48 != 0);
        Ok((end, input && self.is_open))
    }

    fn read(&mut self) {
        let mut room = [0; READ_BYTES];
        match sys::read(0, &mut room) {
            Ok(0) => self.is_open = false,
            Ok(count) => self.receive(room.get(..count).unwrap_or_default()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.is_open = false,
        }
    }

    /// Handles a piece of the input. Stops reading once a download cannot be stored, as its
    /// remaining bytes are not lines.
    fn receive(&mut self, piece: &[u8]) {
        if self.is_open {
            self.is_open = self.take(piece).is_ok();
        }
    }

    fn take(&mut self, mut piece: &[u8]) -> Result<(), Errno> {
        while !piece.is_empty() {
            match &mut self.pending {
                Pending::Line(line) => {
                    let end = piece.iter().position(|byte| *byte == b'\n');
                    let (part, rest) = piece.split_at(end.unwrap_or(piece.len()));
                    line.extend_from_slice(part);
                    piece = rest.get(1..).unwrap_or_default();
                    if end.is_some() {
                        let line = core::mem::take(line);
                        self.pending = handle_line(&line)?;
                    }
                }
                Pending::Bytes(download, left) => {
                    let (part, rest) = piece.split_at(piece.len().min(*left));
                    file::write_all(download.file.0, part)?;
                    *left -= part.len();
                    piece = rest;
                }
            }
            if let Pending::Bytes(download, 0) = &self.pending {
                file::rename_over(&temporary_name(&download.path), &download.path)?;
                self.pending = Pending::Line(Vec::new());
            }
        }
        Ok(())
    }
}

/// Handles a line; returns what follows it. A cancellation or an answer that cannot be stored is
/// dropped; the script then times out. Other failures are returned.
fn handle_line(line: &[u8]) -> Result<Pending, Errno> {
    if line == b"cancel" {
        file::write(CANCEL, b"").unwrap_or_default();
    } else if let Some(answer) = line.strip_prefix(b"answer ") {
        let new = temporary_name(ANSWER);
        let written = file::write(&new, answer);
        written.and_then(|()| file::rename_over(&new, ANSWER)).unwrap_or_default();
    } else if let Some(words) = line.strip_prefix(b"download ") {
        let words = core::str::from_utf8(words).map_err(|_| Errno::INVAL)?;
        let mut words = words.split(' ');
        let mut next = || words.next().ok_or(Errno::INVAL);
        let id = next()?;
        let kind = next()?;
        let length = next()?;
        let length = length.parse().map_err(|_| Errno::INVAL)?;
        let path = [DOWNLOAD, id.as_bytes(), b".", kind.as_bytes()].concat();
        let file = file::replace(&temporary_name(&path))?;
        return Ok(Pending::Bytes(Download { file, path }, length));
    }
    Ok(Pending::Line(Vec::new()))
}

/// Returns the name of a file that is not complete yet.
fn temporary_name(path: &[u8]) -> Vec<u8> {
    [path, b".new"].concat()
}

/// Sends a question of the script, if it has written one.
fn ask() -> Result<(), Errno> {
    let mut text = match file::read(QUESTION) {
        Ok(file) => file::read_at(&file, 0, MAX_QUESTION_BYTES)?,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    // The script has not written it yet; the next check reads it.
    if text.is_empty() {
        return Ok(());
    }
    file::remove_path(QUESTION)?;
    match file::remove_path(ANSWER) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    // Replaces line breaks, as the message must be one line.
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    for byte in text.iter_mut().filter(|byte| **byte == b'\n') {
        *byte = b' ';
    }
    let line = [br#"{"method":"elicitation/create","params":"#, text.as_slice(), b"}\n"].concat();
    file::write_all(1, &line)
}
