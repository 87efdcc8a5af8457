//! The kernel's answer to an attempt, and how it is written.

use core::fmt;

use crate::errno::Errno;
use crate::sys;

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

/// Converts an answer or a refusal into an answer.
pub fn answer_or_refusal(result: sys::Result<Answer>) -> Answer {
    result.unwrap_or_else(Answer::Refused)
}
