//! Writes the report of a script's end to standard output, as `launch.rs` of `project` reads it: a
//! line break, then `MARK CODE LENGTH`, the error of that length, the files that accompany the
//! result, the mark on a separate line, the output.

use alloc::vec::Vec;

use crate::child;
use crate::environment::Environment;
use crate::errno::Errno;
use crate::file::{self, write_all};
use crate::files::{ERROR, Files, READ_BYTES, RESOURCES};
use crate::sys;

/// Maximum size of an error in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Reports a script that ended with this exit code.
pub fn send(mark: &[u8], code: u8, files: &Files, environment: &Environment) -> Result<(), Errno> {
    // A script may have replaced the file by anything: if it cannot be read, the error is empty.
    let error = file::read(ERROR).and_then(|file| file::read_at(&file, 0, MAX_ERROR_BYTES));
    let error = error.unwrap_or_default();
    let lengths = alloc::format!(" {code} {}\n", error.len());
    let head: Vec<u8> = [b"\n", mark, lengths.as_bytes(), error.as_slice()].concat();
    write_all(1, &head)?;
    let has_files = file::read(RESOURCES).and_then(|file| file::stat(&file));
    if code == 0 && has_files.is_ok_and(|stat| stat.size > 0) {
        child::embed(environment)?;
    }
    write_all(1, &[b"\n", mark, b"\n"].concat())?;
    // Leaves out what a process that was left behind writes from now on.
    let mut left = usize::try_from(file::stat(&files.output)?.size).unwrap_or(usize::MAX);
    let mut room = [0; READ_BYTES];
    while left > 0 {
        let length = room.len().min(left);
        match sys::read(files.output.0, room.get_mut(..length).unwrap_or_default()) {
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
