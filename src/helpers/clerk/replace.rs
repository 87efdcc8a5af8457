//! Regular files of the workspace: read whole, and replaced whole.
//!
//! New bytes go to a file beside, which then takes the name: a reader sees the old file or the new one. Other
//! names of the old file (hard links) keep the old bytes, wherever they are.

use alloc::format;
use alloc::vec::Vec;

use crate::errno::Errno;
use crate::file::write_all;
use crate::file::{self, MOST, O_WRONLY, OpenFile, Over, Stat};
use crate::path::WorkspacePath;
use crate::reply::No;

/// ETXTBSY: a program that runs can be replaced, though not written to.
const BUSY: Errno = Errno(26);
const EXISTS: Errno = Errno(17);
/// The mode of a file that was not there.
const NEW: u16 = 0o644;

/// A regular file that is open for reading.
pub struct Regular {
    pub file: OpenFile,
    pub stat: Stat,
}

/// Opens what stands at a place, which must be a regular file.
pub fn regular(place: &WorkspacePath) -> Result<Regular, No> {
    let Some((_, named)) = &place.found else { return Err(No::Absent) };
    is_file(named)?;
    let opened = file::open(&place.directory, &place.name, 0);
    let file = opened.map_err(|errno| No::Errno("opening", errno))?;
    let stat = file::stat(&file).map_err(|errno| No::Errno("looking at it", errno))?;
    // The check is on the opened file: the name may lead to another by now.
    is_file(&stat)?;
    Ok(Regular { file, stat })
}

/// Reads every byte of a file that is small enough.
pub fn whole(regular: &Regular) -> Result<Vec<u8>, No> {
    if usize::try_from(regular.stat.size).unwrap_or(usize::MAX) > MOST {
        return Err(No::Large(regular.stat.size));
    }
    file::read_at(&regular.file, 0, MOST).map_err(|errno| No::Errno("reading", errno))
}

fn is_file(stat: &Stat) -> Result<(), No> {
    if stat.is("file") { Ok(()) } else { Err(No::Kind(stat.kind())) }
}

/// Puts a file of these bytes at a place, with `mode`, or with the mode of the regular file that is there.
/// Returns the old file, if there was one.
pub fn put(
    place: &WorkspacePath,
    bytes: &[u8],
    mode: Option<u16>,
    over: Over,
) -> Result<Option<Stat>, No> {
    let before = match (&place.found, over) {
        (Some((_, stat)), Over::Any) => {
            is_file(stat)?;
            may_write(place)?;
            Some(*stat)
        }
        (Some((_, stat)), Over::Nothing) => {
            is_file(stat)?;
            return Err(No::Exists);
        }
        (None, _) => None,
    };
    let mode = mode.or(before.map(|stat| stat.permissions())).unwrap_or(NEW);
    named(place, bytes, mode, over).map(|()| before)
}

/// Writes a file beside the place, and gives it the place's name.
fn named(place: &WorkspacePath, bytes: &[u8], mode: u16, over: Over) -> Result<(), No> {
    let random = file::random().map_err(|errno| No::Errno("naming a file", errno))?;
    let beside = format!(".cofferdam-{random:016x}");
    let beside = beside.as_bytes();
    let created = file::create(&place.directory, beside);
    let file = created.map_err(|errno| No::Errno("making a file beside it", errno))?;
    let filled = write_all(file.0, bytes)
        .and_then(|()| file::set_mode(&file, mode))
        .and_then(|()| file::sync(&file))
        .map_err(|errno| No::Errno("writing", errno));
    let done =
        filled.and_then(|()| match file::rename_in(&place.directory, beside, &place.name, over) {
            Ok(()) => Ok(()),
            Err(errno) if errno == EXISTS => Err(No::Exists),
            Err(errno) => Err(No::Errno("taking the name", errno)),
        });
    if done.is_err() {
        // Nothing is left of it; what went wrong before is what is told.
        file::remove(&place.directory, beside).unwrap_or_default();
    }
    done
}

/// Checks that the caller may write to the file: if not, it may not replace it either.
fn may_write(place: &WorkspacePath) -> Result<(), No> {
    match file::open(&place.directory, &place.name, O_WRONLY) {
        Ok(file) => {
            let stat = file::stat(&file).map_err(|errno| No::Errno("looking at it", errno))?;
            is_file(&stat)
        }
        Err(errno) if errno == BUSY => Ok(()),
        Err(Errno::NOENT) => Err(No::Changed),
        Err(errno) => Err(No::Errno("opening it for writing", errno)),
    }
}
