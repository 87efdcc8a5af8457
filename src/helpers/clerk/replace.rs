//! Reads regular files of the workspace, and replaces them whole.
//!
//! New contents are written to a temporary file in the same directory, which is then renamed: a
//! reader sees either the old or the new file. Other hard links of the old file keep the old
//! contents.

use alloc::format;
use alloc::vec::Vec;

use crate::errno::Errno;
use crate::file::write_all;
use crate::file::{self, MAX_FILE_BYTES, O_WRONLY, OpenFile, Over, Stat};
use crate::path::WorkspacePath;
use crate::reply::Refused;

/// A running program can be replaced, though not written to.
const TEXT_BUSY: Errno = Errno(26);
const EXISTS: Errno = Errno(17);
/// The mode of a new file.
const NEW_FILE_MODE: u16 = 0o644;

/// A regular file that is open for reading.
pub struct Regular {
    pub file: OpenFile,
    pub stat: Stat,
}

/// Opens the file at a path, which must be a regular file.
pub fn regular(target: &WorkspacePath) -> Result<Regular, Refused> {
    let Some((_, named)) = &target.existing else { return Err(Refused::Absent) };
    is_file(named)?;
    let opened = file::open(&target.directory, &target.name, 0);
    let file = opened.map_err(|errno| Refused::Errno("opening", errno))?;
    let stat =
        file::stat(&file).map_err(|errno| Refused::Errno("reading its attributes", errno))?;
    // Checks the opened file: the name may lead to another one by now.
    is_file(&stat)?;
    Ok(Regular { file, stat })
}

/// Reads a whole file, if it is small enough.
pub fn whole(regular: &Regular) -> Result<Vec<u8>, Refused> {
    if usize::try_from(regular.stat.size).unwrap_or(usize::MAX) > MAX_FILE_BYTES {
        return Err(Refused::Large(regular.stat.size));
    }
    file::read_at(&regular.file, 0, MAX_FILE_BYTES)
        .map_err(|errno| Refused::Errno("reading", errno))
}

fn is_file(stat: &Stat) -> Result<(), Refused> {
    if stat.has_kind("file") { Ok(()) } else { Err(Refused::Kind(stat.kind())) }
}

/// Writes a file with these bytes and `mode`, or the mode of the regular file that it replaces.
/// Returns the attributes of the old file, if there was one.
pub fn put(
    target: &WorkspacePath,
    bytes: &[u8],
    mode: Option<u16>,
    over: Over,
) -> Result<Option<Stat>, Refused> {
    let before = match (&target.existing, over) {
        (Some((_, stat)), Over::Any) => {
            is_file(stat)?;
            may_write(target)?;
            Some(*stat)
        }
        (Some((_, stat)), Over::Nothing) => {
            is_file(stat)?;
            return Err(Refused::Exists);
        }
        (None, _) => None,
    };
    let mode = mode.or(before.map(|stat| stat.permissions())).unwrap_or(NEW_FILE_MODE);
    write_and_rename(target, bytes, mode, over).map(|()| before)
}

/// Writes a temporary file in the same directory, and renames it.
fn write_and_rename(
    target: &WorkspacePath,
    bytes: &[u8],
    mode: u16,
    over: Over,
) -> Result<(), Refused> {
    let random = file::random().map_err(|errno| Refused::Errno("naming a file", errno))?;
    let temporary = format!(".cofferdam-{random:016x}");
    let temporary = temporary.as_bytes();
    let created = file::create(&target.directory, temporary);
    let file = created.map_err(|errno| Refused::Errno("creating a temporary file", errno))?;
    let filled = write_all(file.0, bytes)
        .and_then(|()| file::set_mode(&file, mode))
        .and_then(|()| file::sync(&file))
        .map_err(|errno| Refused::Errno("writing", errno));
    let done = filled.and_then(|()| {
        match file::rename_in(&target.directory, temporary, &target.name, over) {
            Ok(()) => Ok(()),
            Err(errno) if errno == EXISTS => Err(Refused::Exists),
            Err(errno) => Err(Refused::Errno("renaming the temporary file", errno)),
        }
    });
    if done.is_err() {
        // On failure the temporary file stays behind; the earlier error is the one to report.
        file::remove(&target.directory, temporary).unwrap_or_default();
    }
    done
}

/// Checks that the caller may write to the file; otherwise it may not replace it either.
fn may_write(target: &WorkspacePath) -> Result<(), Refused> {
    match file::open(&target.directory, &target.name, O_WRONLY) {
        Ok(file) => {
            let stat = file::stat(&file)
                .map_err(|errno| Refused::Errno("reading its attributes", errno))?;
            is_file(&stat)
        }
        Err(errno) if errno == TEXT_BUSY => Ok(()),
        Err(Errno::NOENT) => Err(Refused::Changed),
        Err(errno) => Err(Refused::Errno("opening it for writing", errno)),
    }
}
