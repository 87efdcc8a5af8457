//! Attempts on files: opening, reading, and creating until the kernel refuses.

use core::ffi::CStr;

use crate::answer::{Answer, answer_or_refusal};
use crate::sys::{self, Result, number};

const AT_FDCWD: usize = 100_usize.wrapping_neg();
const O_WRONLY: usize = 1;
const O_RDWR: usize = 2;
const O_CREAT: usize = 0o100;
// Opening a FIFO or a device must not block.
const O_NONBLOCK: usize = 0o4000;

fn open(path: &CStr, flags: usize) -> Result<usize> {
    let path = sys::address(path.to_bytes_with_nul());
    sys::call(number::OPENAT, &[AT_FDCWD, path, flags | O_NONBLOCK, 0o600])
}

/// Opens for reading (`r`), writing (`w`) or both (`rw`), without changing anything.
pub fn open_only(mode: &CStr, path: &CStr) -> Option<Answer> {
    let flags = match mode.to_bytes() {
        b"r" => 0,
        b"w" => O_WRONLY,
        b"rw" => O_RDWR,
        _ => return None,
    };
    Some(answer_or_refusal(open(path, flags).map(|_| Answer::Done("open"))))
}

/// Reads the first line, at most 256 bytes of it.
pub fn first_line(path: &CStr) -> Answer {
    let mut bytes = [0; 256];
    answer_or_refusal(
        open(path, 0)
            .and_then(|file| sys::read(file, &mut bytes))
            .map(|count| Answer::Content(bytes, count)),
    )
}

/// Counts the bytes that can be read, up to 64 KiB.
pub fn size(path: &CStr) -> Answer {
    answer_or_refusal(open(path, 0).and_then(|file| {
        let mut bytes = [0; 4096];
        let mut total = 0;
        for _ in 0..16 {
            let count = sys::read(file, &mut bytes)?;
            total += count;
            if count == 0 {
                break;
            }
        }
        Ok(Answer::Counted("bytes", total))
    }))
}

/// Counts the entries of a directory, except `.` and `..`.
pub fn names(path: &CStr) -> Answer {
    answer_or_refusal(open(path, 0).and_then(|directory| {
        let mut entries = [0_u8; 4096];
        let mut count = 0;
        loop {
            let pointer = sys::address_mut(&mut entries);
            let got = sys::call(number::GETDENTS64, &[directory, pointer, entries.len()])?;
            if got == 0 {
                return Ok(Answer::Counted("names", count));
            }
            count += records(entries.get(..got).unwrap_or_default());
        }
    }))
}

/// Counts the records of getdents64(2) except `.` and `..`. A record is 19 bytes, two of which are
/// its length, and the name.
fn records(mut entries: &[u8]) -> usize {
    let mut count = 0;
    while let [_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, low, high, _, name @ ..] = entries {
        let is_dot = matches!(name, [b'.', 0, ..] | [b'.', b'.', 0, ..]);
        count += usize::from(!is_dot);
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        entries = entries.get(length.max(1)..).unwrap_or_default();
    }
    count
}

/// Writes `mib` MiB into a new file, then removes it.
pub fn fill(path: &CStr, mib: usize) -> Answer {
    let block = [b'x'; 65536];
    answer_or_refusal(open(path, O_WRONLY | O_CREAT).and_then(|file| {
        for _ in 0..mib * 16 {
            let mut rest: &[u8] = &block;
            while !rest.is_empty() {
                rest = rest.get(sys::write(file, rest)?..).unwrap_or_default();
            }
        }
        let path = sys::address(path.to_bytes_with_nul());
        sys::call(number::UNLINKAT, &[AT_FDCWD, path, 0])?;
        Ok(Answer::Counted("filled", mib))
    }))
}

/// Creates empty files.
pub fn inodes(directory: &CStr, count: usize) -> Answer {
    answer_or_refusal(enter(directory).and_then(|()| {
        for at in 0..count {
            let name = name(at);
            let file = sys::call(
                number::OPENAT,
                &[AT_FDCWD, sys::address(&name), O_WRONLY | O_CREAT, 0o600],
            )?;
            sys::call(number::CLOSE, &[file])?;
        }
        Ok(Answer::Counted("inodes", count))
    }))
}

/// Creates nested directories with long names.
pub fn deep(directory: &CStr, count: usize) -> Answer {
    answer_or_refusal(enter(directory).and_then(|()| {
        let long = [b'd'; 250];
        let mut name = [0; 251];
        name.iter_mut().zip(long).for_each(|(letter, byte)| *letter = byte);
        let name = sys::address(&name);
        for _ in 0..count {
            sys::call(number::MKDIRAT, &[AT_FDCWD, name, 0o700])?;
            sys::call(number::CHDIR, &[name])?;
        }
        Ok(Answer::Counted("deep", count))
    }))
}

fn enter(directory: &CStr) -> Result<()> {
    sys::call(number::CHDIR, &[sys::address(directory.to_bytes_with_nul())]).map(drop)
}

/// Returns a number as a file name: 16 letters, NUL-terminated.
fn name(number: usize) -> [u8; 17] {
    let mut name = [b'a'; 17];
    for (at, letter) in name.iter_mut().enumerate() {
        let nibble =
            number.checked_shr(u32::try_from(at * 4).unwrap_or(u32::MAX)).unwrap_or(0) & 15;
        *letter += u8::try_from(nibble).unwrap_or(0);
    }
    if let Some(end) = name.last_mut() {
        *end = 0;
    }
    name
}
