//! Lists a directory two levels deep: names and types, without hidden entries.

use alloc::vec::Vec;

use crate::errno::Errno;
use crate::file::{self, O_DIRECTORY, OpenFile};
use crate::reply::Refused;

/// Maximum number of listed entries.
pub const MAX_LISTED: usize = 1000;
/// Maximum number of entries read per directory: a huge directory must not delay the answer.
const MAX_READ: usize = 20_000;

/// Offset of the record's length in struct linux_dirent64 (getdents(2)).
const LENGTH: usize = 16;
/// Offset of the entry's type.
const TYPE: usize = 18;
/// Offset of the entry's name.
const NAME: usize = 19;

/// The entries of a directory.
pub struct Listed {
    /// For each entry its type, a space, its path below the directory, and NUL.
    pub entries: Vec<u8>,
    count: usize,
    /// False if entries are missing.
    pub is_whole: bool,
}

/// Lists the entries of a directory, and those of its directories.
pub fn list(directory: &OpenFile) -> Result<Listed, Refused> {
    let opened = file::open(directory, b".", O_DIRECTORY);
    let top = opened.map_err(|errno| Refused::Errno("opening", errno))?;
    let mut listed = Listed { entries: Vec::new(), count: 0, is_whole: true };
    let names = listed.level(&top, b"").map_err(|errno| Refused::Errno("listing", errno))?;
    for name in names {
        // A directory that may not be opened, or is gone, has no entries to show.
        let Ok(inner) = file::open(&top, &name, O_DIRECTORY) else { continue };
        let mut prefix = name;
        prefix.push(b'/');
        // One that cannot be read is listed without its entries.
        listed.level(&inner, &prefix).map(drop).unwrap_or_default();
    }
    Ok(listed)
}

impl Listed {
    /// Adds the entries of one directory; returns the names of the directories among them.
    fn level(&mut self, directory: &OpenFile, prefix: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        let mut room = alloc::vec![0; 32 << 10];
        let mut inner = Vec::new();
        let mut seen = 0;
        loop {
            let length = file::entries(directory, &mut room)?;
            let mut rest = room.get(..length).unwrap_or_default();
            if rest.is_empty() {
                return Ok(inner);
            }
            while let Some((kind, name, after)) = entry(rest) {
                rest = after;
                seen += 1;
                if name.starts_with(b".") {
                    continue;
                }
                if self.count == MAX_LISTED || seen > MAX_READ {
                    self.is_whole = false;
                    return Ok(inner);
                }
                self.count += 1;
                self.entries.extend_from_slice(&[kind, b' ']);
                self.entries.extend_from_slice(prefix);
                self.entries.extend_from_slice(name);
                self.entries.push(0);
                if kind == b'd' {
                    inner.push(name.to_vec());
                }
            }
        }
    }
}

/// Returns the first entry as its type and name, and the bytes after it.
fn entry(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let length = usize::from(u16::from_ne_bytes(file::at(bytes, LENGTH)));
    let (entry, after) = bytes.split_at_checked(length).filter(|(entry, _)| !entry.is_empty())?;
    // Values of d_type, as in readdir(3).
    let kind = match entry.get(TYPE)? {
        4 => b'd',
        10 => b'l',
        8 => b'f',
        _ => b'o',
    };
    let name = entry.get(NAME..)?.split(|byte| *byte == 0).next()?;
    Some((kind, name, after))
}
