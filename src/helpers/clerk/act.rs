//! The requests: view, create, replace, insert, get.

use alloc::vec::Vec;
use core::ffi::CStr;

use crate::errno::Errno;
use crate::file::{self, MOST, Over};
use crate::path::{self, Missing, WorkspacePath};
use crate::replace::{self, Regular};
use crate::reply::{Done, No};
use crate::{lines, list, sys};

/// Bytes of a view, and of the region that an edit changed.
const VIEWED: usize = 256 << 10;
const SNIPPET: usize = 16 << 10;
/// Lines before and behind a change that are shown with it.
const AROUND: usize = 4;
/// Places of a text that stands more than once that are named.
const PLACES: usize = 20;

/// Does what the words say.
pub fn act(words: &[&CStr]) -> Result<Done, No> {
    let mut bytes = [&[][..]; 4];
    for (place, word) in bytes.iter_mut().zip(words) {
        *place = word.to_bytes();
    }
    let [what, path, first, second] = bytes;
    match what {
        b"view" => view(path, number(first)?, number(second)?),
        b"create" => create(path, first, second),
        b"replace" => replace(path, number(first)?),
        b"insert" => insert(path, number(first)?),
        b"get" => get(path, number(first)?, number(second)?),
        _ => Err(No::Words),
    }
}

fn number(word: &[u8]) -> Result<usize, No> {
    core::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).ok_or(No::Words)
}

/// Lines `first` to `last` of a file, 0 for the last there is; or what is in a directory.
fn view(path: &[u8], first: usize, last: usize) -> Result<Done, No> {
    let place = path::find(path, Missing::Refused)?;
    if let Some((directory, stat)) = &place.found
        && stat.is("directory")
    {
        let listed = list::list(directory)?;
        let done = Done::new().fact("is", "directory").fact("whole", u8::from(listed.is_whole));
        return Ok(done.body(listed.entries));
    }
    let text = replace::whole(&replace::regular(&place)?)?;
    let count = lines::count(&text);
    let first = first.max(1);
    if first > count.max(1) {
        return Err(No::Range(count));
    }
    let last = if last == 0 { count } else { last.min(count) };
    let shown = text.get(lines::range(&text, first, last)).unwrap_or_default();
    let cut = shown.get(..VIEWED).unwrap_or(shown);
    let done = Done::new().fact("is", "file").fact("first", first).fact("lines", count);
    let done = done.fact("size", text.len()).fact("whole", u8::from(cut.len() == shown.len()));
    Ok(done.body(cut.to_vec()))
}

/// Makes a file of the bytes on standard input. `mode` is in octal digits, or `-`.
fn create(path: &[u8], mode: &[u8], over: &[u8]) -> Result<Done, No> {
    let mode = match mode {
        b"-" => None,
        digits => {
            let digits = core::str::from_utf8(digits).map_err(|_| No::Words)?;
            Some(u16::from_str_radix(digits, 8).map_err(|_| No::Words)? & 0o777)
        }
    };
    let over = match over {
        b"over" => Over::Any,
        b"new" => Over::Nothing,
        _ => return Err(No::Words),
    };
    let bytes = input()?;
    let place = path::find(path, Missing::Made)?;
    let before = replace::put(&place, &bytes, mode, over)?;
    Ok(changed(before.as_ref()).fact("size", bytes.len()))
}

/// Reports on a file that was put: a new or a replaced one, and the number of names that the old one still has.
fn changed(before: Option<&file::Stat>) -> Done {
    match before {
        Some(stat) => Done::new().fact("was", "replaced").fact("links", stat.links),
        None => Done::new().fact("was", "created"),
    }
}

/// Replaces the first `length` bytes of standard input, which must be in the file once, by the rest.
fn replace(path: &[u8], length: usize) -> Result<Done, No> {
    let given = input()?;
    let (old, new) = given.split_at_checked(length).ok_or(No::Words)?;
    let (place, text) = opened(path)?;
    let mut found = lines::places(&text, old);
    let (Some(at), None) = (found.next(), found.next()) else {
        if lines::is_dos(&text) && lines::places(&text, old).next().is_none() {
            // As the file has its lines ended, where that is what the caller means.
            let (old, new) = (dos(old), dos(new));
            let mut found = lines::places(&text, &old);
            if let (Some(at), None) = (found.next(), found.next()) {
                return edited(&place, &text, at, old.len(), &new).map(|done| done.fact("dos", 1));
            }
            return Err(told(&text, &old));
        }
        return Err(told(&text, old));
    };
    edited(&place, &text, at, old.len(), new)
}

/// Returns the reason why a text cannot be replaced.
fn told(text: &[u8], old: &[u8]) -> No {
    let numbers: Vec<usize> =
        lines::places(text, old).take(PLACES).map(|at| lines::number(text, at)).collect();
    match numbers.is_empty() {
        true => No::Unmatched,
        false => No::Many(numbers, lines::places(text, old).count()),
    }
}

/// Inserts standard input as lines after line `after`; 0 is before the first.
fn insert(path: &[u8], after: usize) -> Result<Done, No> {
    let mut given = input()?;
    let (place, text) = opened(path)?;
    let count = lines::count(&text);
    if after > count {
        return Err(No::Range(count));
    }
    let is_dos = lines::is_dos(&text);
    if is_dos {
        given = dos(&given);
    }
    let end: &[u8] = if is_dos { b"\r\n" } else { b"\n" };
    let at = lines::start(&text, after + 1);
    let mut new = Vec::with_capacity(given.len() + 2);
    let open_end = at == text.len() && !text.is_empty() && !text.ends_with(b"\n");
    if open_end {
        new.extend_from_slice(end);
    }
    new.extend_from_slice(&given);
    if !open_end && !given.ends_with(b"\n") {
        new.extend_from_slice(end);
    }
    edited(&place, &text, at, 0, &new).map(|done| done.fact("dos", u8::from(is_dos)))
}

/// Opens a file that is to be edited: its place and its bytes.
fn opened(path: &[u8]) -> Result<(WorkspacePath, Vec<u8>), No> {
    let place = path::find(path, Missing::Refused)?;
    let regular = replace::regular(&place)?;
    let text = replace::whole(&regular)?;
    let named = place.found.as_ref().map(|(_, stat)| stat.inode);
    if named != Some(regular.stat.inode) {
        return Err(No::Changed);
    }
    Ok((place, text))
}

/// Puts the file with `new` in the place of `length` bytes; the lines around it are the answer's.
fn edited(
    place: &WorkspacePath,
    text: &[u8],
    at: usize,
    length: usize,
    new: &[u8],
) -> Result<Done, No> {
    let (before, behind) = (text.get(..at), text.get(at + length..));
    let (before, behind) = (before.unwrap_or_default(), behind.unwrap_or_default());
    let size = before.len() + new.len() + behind.len();
    if size > MOST {
        return Err(No::Large(u64::try_from(size).unwrap_or(u64::MAX)));
    }
    let mut all = Vec::with_capacity(size);
    for piece in [before, new, behind] {
        all.extend_from_slice(piece);
    }
    let was = replace::put(place, &all, None, Over::Any)?;
    let line = lines::number(&all, at);
    let first = line.saturating_sub(AROUND).max(1);
    let last = lines::number(&all, at + new.len()).saturating_add(AROUND);
    let shown = all.get(lines::range(&all, first, last)).unwrap_or_default();
    let cut = shown.get(..SNIPPET).unwrap_or(shown);
    let done = changed(was.as_ref()).fact("line", line).fact("first", first);
    let done = done.fact("lines", lines::count(&all)).fact("size", size);
    Ok(done.fact("whole", u8::from(cut.len() == shown.len())).body(cut.to_vec()))
}

/// Answers with bytes of a file from an offset on.
fn get(path: &[u8], offset: usize, length: usize) -> Result<Done, No> {
    let place = path::find(path, Missing::Refused)?;
    let Regular { file, stat } = replace::regular(&place)?;
    let offset = u64::try_from(offset).unwrap_or(u64::MAX);
    let read = file::read_at(&file, offset, length.min(MOST));
    let bytes = read.map_err(|errno| No::Errno("reading", errno))?;
    let mode = stat.permissions();
    let done = Done::new().fact("size", stat.size).fact("mode", format_args!("{mode:04o}"));
    Ok(done.body(bytes))
}

/// Returns the text with lines ended as in DOS.
fn dos(text: &[u8]) -> Vec<u8> {
    let mut ended = Vec::with_capacity(text.len() + text.len() / 16 + 2);
    let mut before = 0;
    for byte in text {
        if *byte == b'\n' && before != b'\r' {
            ended.push(b'\r');
        }
        ended.push(*byte);
        before = *byte;
    }
    ended
}

/// Reads standard input to its end, which is at [`MOST`] bytes.
fn input() -> Result<Vec<u8>, No> {
    let mut bytes = Vec::new();
    let mut room = alloc::vec![0; 64 << 10];
    loop {
        match sys::read(0, &mut room) {
            Ok(0) => return Ok(bytes),
            Ok(count) if bytes.len() + count <= MOST => {
                bytes.extend_from_slice(room.get(..count).unwrap_or_default());
            }
            Ok(count) => {
                return Err(No::Large(u64::try_from(bytes.len() + count).unwrap_or(u64::MAX)));
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(No::Errno("reading what was sent", errno)),
        }
    }
}
