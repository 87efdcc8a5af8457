//! The digests of configuration files in dpkg's database.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memchr::memmem;
use nix::errno::Errno;

use cell::errno_of;

/// Maximum bytes of the database; it has about one KiB for each package.
const MAX_DATABASE: u64 = 64 << 20;

/// An MD5 digest.
pub(super) type Digest = [u8; 16];

/// The digests of configuration files.
#[derive(Debug, Default)]
pub(super) struct Digests {
    /// Digests by absolute path: several packages may list a file.
    by_path: HashMap<PathBuf, Vec<Digest>>,
    /// Names in `/etc` of these files, or of the directories that they are in.
    names: HashSet<Vec<u8>>,
}

impl Digests {
    /// Returns the digests with which packages shipped the file.
    pub(super) fn of(&self, path: &Path) -> &[Digest] {
        self.by_path.get(path).map_or(&[], Vec::as_slice)
    }

    /// Returns true if there are digests of files in this directory of `/etc` or below it.
    pub(super) fn are_below(&self, directory: &Path) -> bool {
        directory.file_name().is_some_and(|name| self.names.contains(name.as_bytes()))
    }

    fn add(&mut self, (path, digest): (&[u8], Digest)) {
        let Some(below) = path.strip_prefix(b"/etc/") else { return };
        let name = below.split(|byte| *byte == b'/').next().unwrap_or_default();
        if !self.names.contains(name) {
            self.names.insert(name.to_owned());
        }
        self.by_path.entry(PathBuf::from(OsStr::from_bytes(path))).or_default().push(digest);
    }
}

/// Reads the database.
///
/// # Errors
/// The errno of read(2); EFBIG: the database is too large.
pub(super) fn read(dpkg: &File) -> Result<Digests, Errno> {
    let mut digests = Digests::default();
    conffiles(&content(dpkg)?).for_each(|entry| digests.add(entry));
    Ok(digests)
}

/// Reads a file from its beginning, whatever its position is: other processes have it open too.
fn content(file: &File) -> Result<Vec<u8>, Errno> {
    let length = file.metadata().map_err(|error| errno_of(&error))?.len();
    if length > MAX_DATABASE {
        return Err(Errno::EFBIG);
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| Errno::EFBIG)?];
    file.read_exact_at(&mut bytes, 0).map_err(|error| errno_of(&error))?;
    Ok(bytes)
}

/// Iterates over the entries of all fields `Conffiles` of dpkg's status file.
fn conffiles(status: &[u8]) -> impl Iterator<Item = (&[u8], Digest)> {
    const FIELD: &[u8] = b"\nConffiles:";
    memmem::find_iter(status, FIELD).flat_map(|at| {
        let lines = status.get(at + FIELD.len()..).unwrap_or_default().split(|byte| *byte == b'\n');
        // The rest of the field's first line is empty; each entry begins with a blank.
        lines.skip(1).map_while(|line| line.strip_prefix(b" ")).filter_map(conffile)
    })
}

/// Parses an entry: a path, a digest, and perhaps `obsolete` or `remove-on-upgrade`. An entry with
/// the digest `newconffile` is not installed yet.
fn conffile(entry: &[u8]) -> Option<(&[u8], Digest)> {
    let mut words = entry.rsplitn(2, |byte| *byte == b' ');
    let last = words.next()?;
    let rest = words.next()?;
    match digest(last) {
        Some(digest) => Some((rest, digest)),
        None => {
            let mut words = rest.rsplitn(2, |byte| *byte == b' ');
            let digest = digest(words.next()?)?;
            Some((words.next()?, digest))
        }
    }
}

/// Parses the 32 digits of a digest.
fn digest(word: &[u8]) -> Option<Digest> {
    if word.len() != 32 || !word.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let number = u128::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef0123456789abcdef";
    const TWO: &str = "ffffffffffffffffffffffffffffff00";

    fn paths<'a>(entries: impl Iterator<Item = (&'a [u8], Digest)>) -> Vec<(String, u8)> {
        let last = |digest: Digest| digest.last().copied().unwrap_or_default();
        entries.map(|(path, digest)| (String::from_utf8_lossy(path).into(), last(digest))).collect()
    }

    #[test]
    fn entries_of_all_packages_are_found_and_no_other_lines() {
        let status = format!(
            "Package: a\nConffiles:\n /etc/a {ONE}\n /etc/with blank {TWO}\nDescription: x\n /etc/no {ONE}\n\n\
             Package: b\nConffiles:\n /etc/b {TWO} obsolete\n /etc/c {ONE} remove-on-upgrade\n /etc/d newconffile\n\
             \n/etc/e {ONE}\n"
        );
        let expected = [("/etc/a", 0xef), ("/etc/with blank", 0), ("/etc/b", 0), ("/etc/c", 0xef)];
        let expected: Vec<_> = expected.map(|(path, last)| (path.to_owned(), last)).into();
        assert_eq!(paths(conffiles(status.as_bytes())), expected);
    }

    #[test]
    fn an_entry_without_a_whole_digest_has_none() {
        for entry in
            ["", "/etc/a", "/etc/a 12", "/etc/a newconffile", &format!("/etc/a {ONE}0"), ONE]
        {
            assert_eq!(conffile(entry.as_bytes()), None, "{entry}");
        }
        let sign = format!("/etc/a +{}", ONE.get(1..).unwrap_or_default());
        assert_eq!(conffile(sign.as_bytes()), None);
    }
}
