//! The clerk's requests: view, create, replace, insert, get.

use alloc::vec::Vec;
use core::ffi::CStr;

use crate::errno::Errno;
use crate::file::{self, MAX_FILE_BYTES, Over};
use crate::path::{self, Missing, WorkspacePath};
use crate::replace::{self, Regular};
use crate::reply::{Done, Refused};
use crate::{lines, list, sys};

/// Maximum size of a view in bytes.
const MAX_VIEW_BYTES: usize = 256 << 10;
/// Maximum size of the region shown after an edit, in bytes.
const MAX_SNIPPET_BYTES: usize = 16 << 10;
/// Number of lines shown before and after a change.
const CONTEXT_LINES: usize = 4;
/// Maximum number of occurrences that are listed when a text is not unique.
const MAX_OCCURRENCES: usize = 20;

/// Performs the request that the words describe.
pub fn act(words: &[&CStr]) -> Result<Done, Refused> {
    let mut bytes = [&[][..]; 4];
    for (slot, word) in bytes.iter_mut().zip(words) {
        *slot = word.to_bytes();
    }
    let [what, path, first, second] = bytes;
    match what {
        b"view" => view(path, number(first)?, number(second)?),
        b"create" => create(path, first, second),
        b"replace" => replace(path, number(first)?),
        b"insert" => insert(path, number(first)?),
        b"get" => get(path, number(first)?, number(second)?),
        _ => Err(Refused::Words),
    }
}

fn number(word: &[u8]) -> Result<usize, Refused> {
    core::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).ok_or(Refused::Words)
}

/// Shows lines `first` to `last` of a file, where 0 stands for the last line, or lists a directory.
fn view(path: &[u8], first: usize, last: usize) -> Result<Done, Refused> {
    let target = path::find(path, Missing::Refused)?;
    if let Some((directory, stat)) = &target.existing
        && stat.has_kind("directory")
    {
        let listed = list::list(directory)?;
        let done = Done::new().fact("is", "directory").fact("whole", u8::from(listed.is_whole));
        return Ok(done.body(listed.entries));
    }
    let text = replace::whole(&replace::regular(&target)?)?;
    let count = lines::count(&text);
    let first = first.max(1);
    if first > count.max(1) {
        return Err(Refused::Range(count));
    }
    let last = if last == 0 { count } else { last.min(count) };
    let shown = text.get(lines::range(&text, first, last)).unwrap_or_default();
    let cut = shown.get(..MAX_VIEW_BYTES).unwrap_or(shown);
    let done = Done::new().fact("is", "file").fact("first", first).fact("lines", count);
    let done = done.fact("size", text.len()).fact("whole", u8::from(cut.len() == shown.len()));
    Ok(done.body(cut.to_vec()))
}

/// Creates a file from standard input. `mode` is in octal digits, or `-`.
fn create(path: &[u8], mode: &[u8], over: &[u8]) -> Result<Done, Refused> {
    let mode = match mode {
        b"-" => None,
        digits => {
            let digits = core::str::from_utf8(digits).map_err(|_| Refused::Words)?;
            Some(u16::from_str_radix(digits, 8).map_err(|_| Refused::Words)? & 0o777)
        }
    };
    let over = match over {
        b"over" => Over::Any,
        b"new" => Over::Nothing,
        _ => return Err(Refused::Words),
    };
    let bytes = input()?;
    let target = path::find(path, Missing::Created)?;
    let before = replace::put(&target, &bytes, mode, over)?;
    Ok(changed(before.as_ref()).fact("size", bytes.len()))
}

/// Reports whether a file was created or replaced, and how many hard links the old file still has.
fn changed(before: Option<&file::Stat>) -> Done {
    match before {
        Some(stat) => Done::new().fact("was", "replaced").fact("links", stat.links),
        None => Done::new().fact("was", "created"),
    }
}

/// Replaces the first `length` bytes of standard input, which must occur in the file exactly once,
/// by the rest.
fn replace(path: &[u8], length: usize) -> Result<Done, Refused> {
    let given = input()?;
    let (old, new) = given.split_at_checked(length).ok_or(Refused::Words)?;
    let (target, text) = open_for_edit(path)?;
    let mut occurrences = lines::occurrences(&text, old);
    let (Some(at), None) = (occurrences.next(), occurrences.next()) else {
        if lines::is_dos(&text) && lines::occurrences(&text, old).next().is_none() {
            // The file has CRLF line ends, so the caller's text may mean those.
            let old = dos(old);
            let new = dos(new);
            let mut occurrences = lines::occurrences(&text, &old);
            if let (Some(at), None) = (occurrences.next(), occurrences.next()) {
                return edited(&target, &text, at, old.len(), &new).map(|done| done.fact("dos", 1));
            }
            return Err(not_unique(&text, &old));
        }
        return Err(not_unique(&text, old));
    };
    edited(&target, &text, at, old.len(), new)
}

/// Returns why a text cannot be replaced: it is missing, or occurs several times.
fn not_unique(text: &[u8], old: &[u8]) -> Refused {
    let numbers: Vec<usize> = lines::occurrences(text, old)
        .take(MAX_OCCURRENCES)
        .map(|at| lines::number(text, at))
        .collect();
    match numbers.is_empty() {
        true => Refused::Unmatched,
        false => Refused::Many(numbers, lines::occurrences(text, old).count()),
    }
}

/// Inserts standard input as lines after line `after`; 0 inserts before the first line.
fn insert(path: &[u8], after: usize) -> Result<Done, Refused> {
    let mut given = input()?;
    let (target, text) = open_for_edit(path)?;
    let count = lines::count(&text);
    if after > count {
        return Err(Refused::Range(count));
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
    edited(&target, &text, at, 0, &new).map(|done| done.fact("dos", u8::from(is_dos)))
}

/// Opens a file for editing; returns its path and its contents.
fn open_for_edit(path: &[u8]) -> Result<(WorkspacePath, Vec<u8>), Refused> {
    let target = path::find(path, Missing::Refused)?;
    let regular = replace::regular(&target)?;
    let text = replace::whole(&regular)?;
    let named = target.existing.as_ref().map(|(_, stat)| stat.inode);
    if named != Some(regular.stat.inode) {
        return Err(Refused::Changed);
    }
    Ok((target, text))
}

/// Replaces `length` bytes at `at` by `new`; the answer shows the lines around the change.
fn edited(
    target: &WorkspacePath,
    text: &[u8],
    at: usize,
    length: usize,
    new: &[u8],
) -> Result<Done, Refused> {
    let before = text.get(..at).unwrap_or_default();
    let after = text.get(at + length..).unwrap_or_default();
    let size = before.len() + new.len() + after.len();
    if size > MAX_FILE_BYTES {
        return Err(Refused::Large(u64::try_from(size).unwrap_or(u64::MAX)));
    }
    let mut all = Vec::with_capacity(size);
    for piece in [before, new, after] {
        all.extend_from_slice(piece);
    }
    let was = replace::put(target, &all, None, Over::Any)?;
    let line = lines::number(&all, at);
    let first = line.saturating_sub(CONTEXT_LINES).max(1);
    let last = lines::number(&all, at + new.len()).saturating_add(CONTEXT_LINES);
    let shown = all.get(lines::range(&all, first, last)).unwrap_or_default();
    let cut = shown.get(..MAX_SNIPPET_BYTES).unwrap_or(shown);
    let done = changed(was.as_ref()).fact("line", line).fact("first", first);
    let done = done.fact("lines", lines::count(&all)).fact("size", size);
    Ok(done.fact("whole", u8::from(cut.len() == shown.len())).body(cut.to_vec()))
}

/// Answers with bytes of a file, beginning at an offset.
fn get(path: &[u8], offset: usize, length: usize) -> Result<Done, Refused> {
    let target = path::find(path, Missing::Refused)?;
    let Regular { file, stat } = replace::regular(&target)?;
    let offset = u64::try_from(offset).unwrap_or(u64::MAX);
    let read = file::read_at(&file, offset, length.min(MAX_FILE_BYTES));
    let bytes = read.map_err(|errno| Refused::Errno("reading", errno))?;
    let mode = stat.permissions();
    let done = Done::new().fact("size", stat.size).fact("mode", format_args!("{mode:04o}"));
    Ok(done.body(bytes))
}

/// Returns the text with CRLF line ends.
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

/// Reads standard input to its end, up to [`MAX_FILE_BYTES`] bytes.
fn input() -> Result<Vec<u8>, Refused> {
    let mut bytes = Vec::new();
    let mut room = alloc::vec![0; 64 << 10];
    loop {
        match sys::read(0, &mut room) {
            Ok(0) => return Ok(bytes),
            Ok(count) if bytes.len() + count <= MAX_FILE_BYTES => {
                bytes.extend_from_slice(room.get(..count).unwrap_or_default());
            }
            Ok(count) => {
                return Err(Refused::Large(u64::try_from(bytes.len() + count).unwrap_or(u64::MAX)));
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Refused::Errno("reading what was sent", errno)),
        }
    }
}
