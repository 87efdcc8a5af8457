//! The report of a script's end on standard output, as `launch.rs` of `project` reads it: a line break, then
//! `MARK CODE LENGTH`, the error of so many bytes, the files beside the result, the mark on a line of its own, the output.

use alloc::vec::Vec;

use crate::child;
use crate::environment::Environment;
use crate::errno::Errno;
use crate::file::{self, write_all};
use crate::places::{ERROR, Files, RESOURCES, ROOM};
use crate::sys;

/// Bytes of the longest error.
const ERROR_BYTES: usize = 64 << 10;

/// Reports a script that ended with this code.
pub fn tell(mark: &[u8], code: u8, files: &Files, environment: &Environment) -> Result<(), Errno> {
    // Expect anything: a script may have put something else in its place.
    let error = file::read(ERROR).and_then(|file| file::read_at(&file, 0, ERROR_BYTES));
    let error = error.unwrap_or_default();
    let lengths = alloc::format!(" {code} {}\n", error.len());
    let head: Vec<u8> = [b"\n", mark, lengths.as_bytes(), error.as_slice()].concat();
    write_all(1, &head)?;
    let has_files = file::read(RESOURCES).and_then(|file| file::stat(&file));
    if code == 0 && has_files.is_ok_and(|stat| stat.size > 0) {
        child::embed(environment)?;
    }
    write_all(1, &[b"\n", mark, b"\n"].concat())?;
    // Leave out what a process that is left behind writes from now on.
    let mut left = usize::try_from(file::stat(&files.output)?.size).unwrap_or(usize::MAX);
    let mut room = [0; ROOM];
    while left > 0 {
        let most = room.len().min(left);
        match sys::read(files.output.0, room.get_mut(..most).unwrap_or_default()) {
            Ok(0) => break,
            Ok(count) => {
                write_all(1, room.get(..count).unwrap_or_default())?;
                left -= count;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
