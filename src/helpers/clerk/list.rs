//! A directory, two levels deep: names and kinds, without what is hidden.

use alloc::vec::Vec;

use crate::errno::Errno;
use crate::file::{self, O_DIRECTORY, OpenFile};
use crate::reply::No;

/// The most entries that are listed.
pub const MOST: usize = 1000;
/// Entries of a directory that are looked at: one with a million must not hold up the answer.
const LOOKED_AT: usize = 20_000;

/// Offsets in struct linux_dirent64 (getdents(2)).
const LENGTH: usize = 16;
const TYPE: usize = 18;
const NAME: usize = 19;

/// Entries that were found, and a mark if some are missing.
pub struct Listed {
    /// For each entry its kind, a space, its path from the directory on, NUL.
    pub entries: Vec<u8>,
    count: usize,
    pub is_whole: bool,
}

/// Lists what is in a directory, and what is in its directories.
pub fn list(directory: &OpenFile) -> Result<Listed, No> {
    let opened = file::open(directory, b".", O_DIRECTORY);
    let top = opened.map_err(|errno| No::Errno("opening", errno))?;
    let mut listed = Listed { entries: Vec::new(), count: 0, is_whole: true };
    let names = listed.level(&top, b"").map_err(|errno| No::Errno("listing", errno))?;
    for name in names {
        // One that may not be entered, or is gone, has nothing to show.
        let Ok(inner) = file::open(&top, &name, O_DIRECTORY) else { continue };
        let mut before = name;
        before.push(b'/');
        listed.level(&inner, &before).map(drop).unwrap_or_default();
    }
    Ok(listed)
}

impl Listed {
    /// Adds the entries of one directory; the names of the directories among them.
    fn level(&mut self, directory: &OpenFile, before: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        let mut room = alloc::vec![0; 32 << 10];
        let mut inner = Vec::new();
        let mut seen = 0;
        loop {
            let length = file::entries(directory, &mut room)?;
            let mut rest = room.get(..length).unwrap_or_default();
            if rest.is_empty() {
                return Ok(inner);
            }
            while let Some((kind, name, behind)) = entry(rest) {
                rest = behind;
                seen += 1;
                if name.starts_with(b".") {
                    continue;
                }
                if self.count == MOST || seen > LOOKED_AT {
                    self.is_whole = false;
                    return Ok(inner);
                }
                self.count += 1;
                self.entries.extend_from_slice(&[kind, b' ']);
                self.entries.extend_from_slice(before);
                self.entries.extend_from_slice(name);
                self.entries.push(0);
                if kind == b'd' {
                    inner.push(name.to_vec());
                }
            }
        }
    }
}

/// Returns the first entry: its kind, its name, and what is behind it.
fn entry(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let length = usize::from(u16::from_ne_bytes(file::at(bytes, LENGTH)));
    let (entry, behind) = bytes.split_at_checked(length).filter(|(entry, _)| !entry.is_empty())?;
    // d_type, as readdir(3) has it.
    let kind = match entry.get(TYPE)? {
        4 => b'd',
        10 => b'l',
        8 => b'f',
        _ => b'o',
    };
    let name = entry.get(NAME..)?.split(|byte| *byte == 0).next()?;
    Some((kind, name, behind))
}
