//! Line arithmetic on bytes: counting lines, and finding lines and texts.

use core::ops::Range;

/// Counts lines, including text after the last newline.
pub fn count(text: &[u8]) -> usize {
    let ends = text.iter().filter(|byte| **byte == b'\n').count();
    ends + usize::from(!text.is_empty() && !text.ends_with(b"\n"))
}

/// Returns the start of line `number`, counted from 1; the end of the text for the line after the
/// last.
pub fn start(text: &[u8], number: usize) -> usize {
    let Some(before) = number.checked_sub(2) else { return 0 };
    let mut ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    ends.nth(before).map_or(text.len(), |(at, _)| at + 1)
}

/// Returns the number of the line that an offset is on.
pub fn number(text: &[u8], offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or(text);
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Returns the byte range of lines `first` to `last`.
pub fn range(text: &[u8], first: usize, last: usize) -> Range<usize> {
    start(text, first)..start(text, last.saturating_add(1))
}

/// Returns true if the first line ends in CRLF.
pub fn is_dos(text: &[u8]) -> bool {
    let end = text.iter().position(|byte| *byte == b'\n');
    end.and_then(|end| end.checked_sub(1)).and_then(|at| text.get(at)) == Some(&b'\r')
}

/// Iterates over the offsets of `wanted` in `text`, without overlap.
pub fn occurrences<'t>(text: &'t [u8], wanted: &'t [u8]) -> impl Iterator<Item = usize> + 't {
    let mut from = 0;
    core::iter::from_fn(move || {
        let at = find(text.get(from..)?, wanted)? + from;
        from = at + wanted.len();
        Some(at)
    })
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = wanted.first()?;
    let mut at = 0;
    loop {
        at += text.get(at..)?.iter().position(|byte| byte == first)?;
        if text.get(at..)?.starts_with(wanted) {
            return Some(at);
        }
        at += 1;
    }
}
