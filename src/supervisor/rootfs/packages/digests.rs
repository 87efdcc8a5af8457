//! The digests with which packages shipped configuration files, from dpkg's database.

use std::fs::File;
use std::os::unix::fs::FileExt;

use memchr::memmem;
use nix::errno::Errno;

use cell::errno_of;

/// Maximum bytes of the database; it has about one KiB for each package.
const MAX_DATABASE: u64 = 64 << 20;
/// Bytes of the database that are read at once: memory of this size is kept by the allocator, and
/// its pages are touched once.
const PIECE: usize = 64 << 10;

/// Paths that only services of the host, its boot, its logins and a program that cells cannot run
/// (firejail, with over a thousand files) read. Without them a copy takes two thirds of the time,
/// and a tenth where firejail is installed.
const LEFT_OUT: [&str; 25] = [
    "/etc/X11",
    "/etc/apparmor.d",
    "/etc/cron.d",
    "/etc/cron.daily",
    "/etc/cron.hourly",
    "/etc/cron.monthly",
    "/etc/cron.weekly",
    "/etc/default",
    "/etc/firejail",
    "/etc/grub.d",
    "/etc/init",
    "/etc/init.d",
    "/etc/initramfs-tools",
    "/etc/kernel",
    "/etc/logrotate.d",
    "/etc/modprobe.d",
    "/etc/pam.d",
    "/etc/security",
    "/etc/skel",
    "/etc/ssh/moduli",
    "/etc/sv",
    "/etc/sysctl.d",
    "/etc/systemd",
    "/etc/udev",
    "/etc/ufw",
];

/// An MD5 digest.
pub(super) type Digest = [u8; 16];

/// The digests of configuration files.
#[derive(Debug)]
pub(super) struct Digests {
    /// Absolute paths with digests, sorted: several packages may list a file.
    entries: Vec<(Vec<u8>, Digest)>,
}

impl Digests {
    /// Adds entries of another database.
    pub(super) fn extend(&mut self, entries: Vec<(Vec<u8>, Digest)>) {
        self.entries.extend(entries);
        self.entries.sort_unstable();
    }

    /// Returns the entries of a file: the digests with which packages shipped it.
    pub(super) fn of(&self, path: &[u8]) -> &[(Vec<u8>, Digest)] {
        let rest = self.from(path);
        let end = rest.partition_point(|(listed, _)| listed.as_slice() == path);
        rest.get(..end).unwrap_or_default()
    }

    /// Returns true if there are digests of files in this directory or below it.
    pub(super) fn are_below(&self, directory: &[u8]) -> bool {
        let start = [directory, b"/"].concat();
        self.from(&start).first().is_some_and(|(path, _)| path.starts_with(&start))
    }

    /// Returns the entries whose paths are not sorted before `start`.
    fn from(&self, start: &[u8]) -> &[(Vec<u8>, Digest)] {
        let begin = self.entries.partition_point(|(path, _)| path.as_slice() < start);
        self.entries.get(begin..).unwrap_or_default()
    }
}

/// Reads the database.
///
/// # Errors
/// The errno of pread(2); EFBIG: the database is too large.
pub(super) fn read(dpkg: &File) -> Result<Digests, Errno> {
    read_in_pieces(dpkg, PIECE)
}

/// Reads the database piece by piece, and keeps only the entries. Reads from its beginning, whatever
/// the file's position is: other processes have it open too.
fn read_in_pieces(dpkg: &File, piece: usize) -> Result<Digests, Errno> {
    let mut entries = Vec::new();
    // The part of a package whose end is not read yet, and room for the next piece.
    let mut bytes = vec![0; piece];
    let mut filled = 0;
    let mut position = 0;
    loop {
        if bytes.len() == filled {
            bytes.resize(filled + piece, 0);
        }
        let room = bytes.get_mut(filled..).unwrap_or_default();
        let read = match dpkg.read_at(room, position).map_err(|error| errno_of(&error)) {
            Err(Errno::EINTR) => continue,
            read => read?,
        };
        position += u64::try_from(read).map_err(|_| Errno::EFBIG)?;
        if position > MAX_DATABASE {
            return Err(Errno::EFBIG);
        }
        filled += read;
        let whole = bytes.get(..filled).unwrap_or_default();
        if read == 0 {
            entries.extend(of_packages(whole));
            break;
        }
        let Some(end) = memmem::rfind(whole, PACKAGE_END) else { continue };
        // The second line break is that before the next package's first field.
        let end = end + 1;
        entries.extend(of_packages(whole.get(..end).unwrap_or_default()));
        bytes.copy_within(end..filled, 0);
        filled -= end;
    }
    entries.sort_unstable();
    Ok(Digests { entries })
}

/// The empty line between two packages.
const PACKAGE_END: &[u8] = b"\n\n";

/// Returns the entries in the fields of packages that are of files in `/etc` for cells.
fn of_packages(status: &[u8]) -> impl Iterator<Item = (Vec<u8>, Digest)> {
    conffiles(status)
        .filter(|(path, _)| is_wanted(path))
        .map(|(path, digest)| (path.to_owned(), digest))
}

/// Returns true for a path below `/etc` that is neither in `LEFT_OUT` nor below a path of it.
pub(super) fn is_wanted(path: &[u8]) -> bool {
    let below = |left_out: &&str| path.strip_prefix(left_out.as_bytes());
    let mut rests = LEFT_OUT.iter().filter_map(below);
    path.starts_with(b"/etc/") && !rests.any(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Reads a file from its beginning, whatever its position is: other processes have it open too.
pub(super) fn content(file: &File) -> Result<Vec<u8>, Errno> {
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
pub(super) fn digest(word: &[u8]) -> Option<Digest> {
    let word: &[u8; 32] = word.try_into().ok()?;
    let (pairs, _) = word.as_chunks::<2>();
    let mut digest = [0; 16];
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        *byte = nibble(*high)? << 4 | nibble(*low)?;
    }
    Some(digest)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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

    /// Makes a file with this text, at whose end its position is.
    fn database(text: &str) -> std::io::Result<File> {
        let mut file = tempfile::tempfile()?;
        file.write_all(text.as_bytes())?;
        Ok(file)
    }

    #[test]
    fn digests_are_found_by_file_and_by_each_directory_above_it()
    -> Result<(), Box<dyn std::error::Error>> {
        let status = format!(
            "\nConffiles:\n /etc/b/c/d {ONE}\n /etc/b-x {ONE}\n /etc/a {TWO}\n /usr/x {ONE}\n \
             /etc/systemd/x.conf {ONE}\n /etc/a {ONE}\n"
        );
        let digests = read_in_pieces(&database(&status)?, PIECE)?;
        let count = |path: &str| digests.of(path.as_bytes()).len();
        let files = ["/etc/a", "/etc/b-x", "/etc/b/c/d", "/etc/b/c", "/etc/b", "/etc/", "/usr/x"];
        assert_eq!(files.map(count), [2, 1, 1, 0, 0, 0, 0]);
        assert_eq!(count("/etc/systemd/x.conf"), 0, "left out");
        let below = |path: &str| digests.are_below(path.as_bytes());
        for directory in ["/etc", "/etc/b", "/etc/b/c"] {
            assert!(below(directory), "{directory}");
        }
        for other in ["/etc/a", "/etc/b/c/d", "/etc/b-", "/etc/c", "/etc/systemd", "/usr", "/et"] {
            assert!(!below(other), "{other}");
        }
        Ok(())
    }

    #[test]
    fn paths_are_left_out_with_all_below_them_and_no_others() {
        for path in ["/etc/ssh/moduli", "/etc/pam.d/x", "/etc/init.d/a/b"] {
            assert!(!is_wanted(path.as_bytes()), "{path}");
        }
        for path in ["/etc/ssh/ssh_config", "/etc/ssh/moduli2", "/etc/inits", "/etc/a"] {
            assert!(is_wanted(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn pieces_of_any_length_give_the_same_entries() -> Result<(), Box<dyn std::error::Error>> {
        let package = |name: &str| {
            format!(
                "Package: {name}\nConffiles:\n /etc/{name}/1 {ONE}\n /etc/{name}/2 {TWO} obsolete\nHomepage: x\n\n"
            )
        };
        let status: String = ["a", "b", "c"].map(package).concat();
        for text in [status.as_str(), status.trim_end(), ""] {
            let whole = read_in_pieces(&database(text)?, PIECE)?.entries;
            assert_eq!(whole.len(), if text.is_empty() { 0 } else { 6 });
            for piece in (1..200).chain([text.len().max(1)]) {
                let entries = read_in_pieces(&database(text)?, piece)?.entries;
                assert_eq!(entries, whole, "pieces of {piece}");
            }
        }
        Ok(())
    }
}
