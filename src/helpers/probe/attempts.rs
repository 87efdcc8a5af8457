//! Names of the attempts, and how their answers are written.

use core::ffi::CStr;
use core::fmt;

use crate::errno::Errno;
use crate::words::number;
use crate::{calls, files, memory, network, processes, sys};

/// The kernel's answer to an attempt.
#[derive(Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "there is no heap to put the large ones on")]
pub enum Answer {
    /// The attempt succeeded; the word says what was done.
    Done(&'static str),
    /// The whole requested amount was done.
    Counted(&'static str, usize),
    /// The value that a call returned.
    Value(usize),
    Refused(Errno),
    /// A call before the last failed: its position, and its error.
    Early(usize, Errno),
    /// The start of a file's content.
    Content([u8; 256], usize),
    /// Numbers of the calls that were not refused.
    Reached([usize; 256], usize),
}

impl fmt::Display for Answer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(word) => formatter.write_str(word),
            Self::Counted(word, count) => write!(formatter, "{word} {count}"),
            Self::Value(value) => write!(formatter, "{value}"),
            Self::Refused(errno) => write!(formatter, "{errno}"),
            Self::Early(which, errno) => write!(formatter, "{errno} at {which}"),
            Self::Content(bytes, count) => {
                write_line(formatter, bytes.get(..*count).unwrap_or_default())
            }
            Self::Reached(_, 0) => formatter.write_str("reached: none"),
            Self::Reached(numbers, count) => {
                formatter.write_str("reached:")?;
                let numbers = numbers.get(..*count).unwrap_or_default();
                numbers.iter().try_for_each(|number| write!(formatter, " {number}"))
            }
        }
    }
}

/// Writes bytes as text up to the first line break, with dots for all but printable ASCII.
fn write_line(formatter: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    use fmt::Write;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.iter().try_for_each(|byte| {
        let plain = byte.is_ascii_graphic() || *byte == b' ';
        formatter.write_char(if plain { char::from(*byte) } else { '.' })
    })
}

/// Makes the attempt named by the first word. Returns `None` if there is no such attempt, or its
/// arguments are wrong.
pub fn attempt(words: &[&CStr]) -> Option<Answer> {
    let (name, rest) = words.split_first()?;
    match (name.to_bytes(), rest) {
        (b"call", _) => calls::calls(rest),
        (b"call32", [number_word]) => Some(answer(sys::call_32(number(number_word.to_bytes())?))),
        (b"clone", [flags]) => Some(calls::clone(number(flags.to_bytes())?)),
        (b"clone3", [flags]) => {
            Some(calls::clone_3(u64::try_from(number(flags.to_bytes())?).ok()?))
        }
        (b"sweep", [list]) => calls::sweep(list),
        (b"open", [mode, path]) => files::open_only(mode, path),
        (b"read", [path]) => Some(files::first_line(path)),
        (b"size", [path]) => Some(files::size(path)),
        (b"list", [path]) => Some(files::names(path)),
        (b"fill", [path, mib]) => Some(files::fill(path, number(mib.to_bytes())?)),
        (b"inodes", [directory, count]) => {
            Some(files::inodes(directory, number(count.to_bytes())?))
        }
        (b"deep", [directory, count]) => Some(files::deep(directory, number(count.to_bytes())?)),
        (b"connect", _) => network::connect(rest),
        (b"send", _) => network::send(rest),
        (b"listen", [port]) => network::listen(number(port.to_bytes())?),
        (b"touch", [kind, mib]) => memory::touch(kind, number(mib.to_bytes())?),
        (b"pipes", [mib]) => Some(memory::pipes(number(mib.to_bytes())?)),
        (b"buffers", [mib]) => Some(memory::buffers(number(mib.to_bytes())?)),
        (b"connections", [mib]) => Some(memory::connections(number(mib.to_bytes())?)),
        (b"mappings", [count, seconds]) => {
            Some(memory::mappings(number(count.to_bytes())?, number(seconds.to_bytes())?))
        }
        (b"flood", [descriptor, mib]) => {
            Some(memory::flood(number(descriptor.to_bytes())?, number(mib.to_bytes())?))
        }
        (b"forks", [count]) => Some(processes::forks(number(count.to_bytes())?)),
        (b"zombies", [count]) => Some(processes::zombies(number(count.to_bytes())?)),
        (b"descriptors", [count]) => Some(processes::descriptors(number(count.to_bytes())?)),
        // The second word only identifies the process.
        (b"sleep", [seconds] | [seconds, _]) => Some(processes::sleep(number(seconds.to_bytes())?)),
        (b"spin", []) => processes::spin(),
        _ => None,
    }
}

/// Converts the result of one call.
pub fn answer(result: sys::Result<usize>) -> Answer {
    match result {
        Ok(value) => Answer::Value(value),
        Err(errno) => Answer::Refused(errno),
    }
}

/// Converts an answer or a refusal into an answer.
pub fn answer_or_refusal(result: sys::Result<Answer>) -> Answer {
    result.unwrap_or_else(Answer::Refused)
}
