//! What the server says while the script runs, a line each:
//!
//! - `cancel`: the call is cancelled, and the script is asked to come to its end;
//! - `answer TEXT`: the user's answer to a question;
//! - `download ID KIND LENGTH`, with so many bytes behind the line: what was fetched for the script.

use alloc::vec::Vec;

use crate::child::Child;
use crate::environment::Environment;
use crate::errno::Errno;
use crate::file::{self, OpenFile};
use crate::places::{ANSWER, CANCEL, DOWNLOAD, QUESTION, ROOM};
use crate::sys::{self, number};

/// Nanoseconds between two looks for a question of the script.
const LOOK: u64 = 100_000_000;
/// Bytes of the longest question.
const QUESTION_BYTES: usize = 60_000;
/// POLLIN (poll(2)).
const READABLE: u64 = 1;

/// Reader of the server's lines.
pub struct Listener {
    /// True while the server may say something.
    is_open: bool,
    /// True if the script can ask the user something.
    asks: bool,
    said: Said,
}

/// Part of the input that comes next.
enum Said {
    /// A line, as far as it has come.
    Line(Vec<u8>),
    /// A download, and how many bytes of it are missing.
    Bytes(Download, usize),
}

/// A download on its way to its file: one that is there is whole.
struct Download {
    file: OpenFile,
    place: Vec<u8>,
}

impl Listener {
    pub fn new(environment: &Environment) -> Self {
        let asks = environment.get(b"MCP_ELICIT_SUPPORTED") == b"1";
        Self { is_open: true, asks, said: Said::Line(Vec::new()) }
    }

    /// Listens until the child has ended. `heard` came before it was started.
    pub fn wait(mut self, child: &Child, heard: Vec<u8>) -> Result<(), Errno> {
        self.hear(&heard);
        loop {
            let (has_ended, has_input) = self.poll(child)?;
            if has_input {
                self.read();
            }
            if self.asks && !has_ended {
                // Leave a question that cannot be read: the script waits its time.
                ask().unwrap_or_default();
            }
            if has_ended {
                return Ok(());
            }
        }
    }

    /// Waits for the end of the child, for input, or for the time of the next look (ppoll(2)).
    fn poll(&self, child: &Child) -> Result<(bool, bool), Errno> {
        let wanted = |descriptor: usize| u64::try_from(descriptor).unwrap_or(0) | READABLE << 32;
        let mut all = [wanted(child.end.0), wanted(0)];
        let count = if self.is_open { 2 } else { 1 };
        let time = [0, LOOK];
        let time = if self.asks { sys::address(&time) } else { 0 };
        match sys::call(number::PPOLL, &[sys::place(&mut all), count, time, 0, 8]) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let [end, input] = all.map(|one| one >> 48 != 0);
        Ok((end, input && self.is_open))
    }

    fn read(&mut self) {
        let mut room = [0; ROOM];
        match sys::read(0, &mut room) {
            Ok(0) => self.is_open = false,
            Ok(count) => self.hear(room.get(..count).unwrap_or_default()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.is_open = false,
        }
    }

    /// Takes a piece of the input. What is left of a download that cannot be stored is no line: nothing is taken any more.
    fn hear(&mut self, piece: &[u8]) {
        if self.is_open {
            self.is_open = self.take(piece).is_ok();
        }
    }

    fn take(&mut self, mut piece: &[u8]) -> Result<(), Errno> {
        while !piece.is_empty() {
            match &mut self.said {
                Said::Line(line) => {
                    let end = piece.iter().position(|byte| *byte == b'\n');
                    let (part, rest) = piece.split_at(end.unwrap_or(piece.len()));
                    line.extend_from_slice(part);
                    piece = rest.get(1..).unwrap_or_default();
                    if end.is_some() {
                        let line = core::mem::take(line);
                        self.said = obey(&line)?;
                    }
                }
                Said::Bytes(download, left) => {
                    let (part, rest) = piece.split_at(piece.len().min(*left));
                    file::write_all(download.file.0, part)?;
                    *left -= part.len();
                    piece = rest;
                }
            }
            if let Said::Bytes(download, 0) = &self.said {
                file::rename_over(&with_end(&download.place), &download.place)?;
                self.said = Said::Line(Vec::new());
            }
        }
        Ok(())
    }
}

/// Does what a line says; returns what comes behind it. A cancellation or an answer that cannot be stored is not told to the
/// script; others are.
fn obey(line: &[u8]) -> Result<Said, Errno> {
    if line == b"cancel" {
        file::write(CANCEL, b"").unwrap_or_default();
    } else if let Some(answer) = line.strip_prefix(b"answer ") {
        let new = with_end(ANSWER);
        let written = file::write(&new, answer);
        written.and_then(|()| file::rename_over(&new, ANSWER)).unwrap_or_default();
    } else if let Some(words) = line.strip_prefix(b"download ") {
        let words = core::str::from_utf8(words).map_err(|_| Errno::INVAL)?;
        let mut words = words.split(' ');
        let mut next = || words.next().ok_or(Errno::INVAL);
        let (id, kind, length) = (next()?, next()?, next()?);
        let length = length.parse().map_err(|_| Errno::INVAL)?;
        let place = [DOWNLOAD, id.as_bytes(), b".", kind.as_bytes()].concat();
        let file = file::replace(&with_end(&place))?;
        return Ok(Said::Bytes(Download { file, place }, length));
    }
    Ok(Said::Line(Vec::new()))
}

/// Returns the name of a file that is not whole yet.
fn with_end(place: &[u8]) -> Vec<u8> {
    [place, b".new"].concat()
}

/// Sends a question of the script, if it has left one.
fn ask() -> Result<(), Errno> {
    let mut text = match file::read(QUESTION) {
        Ok(file) => file::read_at(&file, 0, QUESTION_BYTES)?,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    // Look again at one that is not written yet.
    if text.is_empty() {
        return Ok(());
    }
    file::remove_path(QUESTION)?;
    match file::remove_path(ANSWER) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    // Make it one line, whatever the script wrote.
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    for byte in text.iter_mut().filter(|byte| **byte == b'\n') {
        *byte = b' ';
    }
    let line = [br#"{"method":"elicitation/create","params":"#, text.as_slice(), b"}\n"].concat();
    file::write_all(1, &line)
}
