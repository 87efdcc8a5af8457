//! Files that packages hand to ucf, as far as the same bytes are in a package.
//!
//! A package's script hands ucf a file, which becomes one in `/etc` unless the administrator has
//! changed that. Most are files of the package in `/usr`, such as the configuration of PHP's
//! modules. Others are generated on the host and may hold a password. So a digest of ucf is used
//! only if dpkg lists the same digest for a file of one of these packages.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;

use super::digests::{Digest, content, digest, is_wanted};
use crate::rootfs::detached::read_only;
use cell::c_path;
use sys::lookup::{self, Follow};
use sys::mount::open_resolved;

/// Digests that ucf recorded, with paths.
const HASHES: &str = "/var/lib/ucf/hashfile";
/// Packages that handed files to ucf, with paths.
const REGISTRY: &str = "/var/lib/ucf/registry";
/// A directory with the digests of each package's files that are not its configuration.
const INFO: &str = "/var/lib/dpkg/info";
/// Maximum packages whose digests are read.
const MAX_PACKAGES: usize = 256;

/// The database of ucf, and dpkg's digests.
#[derive(Debug)]
pub(super) struct Ucf {
    hashes: File,
    registry: File,
    /// A detached, read-only mount.
    info: OwnedFd,
}

impl Ucf {
    /// Opens the files while the host's mounts are visible. Returns `None` if one is missing.
    pub(super) fn hold() -> Option<Self> {
        let hashes = File::open(HASHES).ok()?;
        let registry = File::open(REGISTRY).ok()?;
        let held = c_path(Path::new(INFO)).and_then(|info| open_resolved(&info)).ok()?;
        Some(Self { hashes, registry, info: read_only(&held).ok()? })
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.hashes.as_fd(), self.registry.as_fd(), self.info.as_fd()].into_iter()
    }

    /// Returns the paths whose digest in ucf's database is that of a package's file.
    ///
    /// # Errors
    /// The errno of reading a database.
    pub(super) fn entries(&self) -> Result<Vec<(Vec<u8>, Digest)>, Errno> {
        let hashes = content(&self.hashes)?;
        let recorded: Vec<_> = recorded(&hashes).collect();
        let registry = content(&self.registry)?;
        let mut entries = Vec::new();
        for package in packages(&registry).into_iter().take(MAX_PACKAGES) {
            let Some(listed) = self.listed(package)? else { continue };
            for digest in lines(&listed).filter_map(|line| digest(line.get(..32)?)) {
                let same = recorded.iter().filter(|(_, of_ucf)| *of_ucf == digest);
                entries.extend(same.map(|(path, digest)| (path.to_vec(), *digest)));
            }
        }
        Ok(entries)
    }

    /// Reads dpkg's digests of a package. Returns `None` if it is not installed.
    fn listed(&self, package: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let Ok(name) = CString::new([package, b".md5sums"].concat()) else { return Ok(None) };
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        match lookup::open(&self.info, &name, flags, 0, Follow::Beneath) {
            Ok(file) => content(&File::from(file)).map(Some),
            Err(_) => Ok(None),
        }
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// Iterates over the lines of ucf's digests: a digest, blanks and a path.
fn recorded(hashes: &[u8]) -> impl Iterator<Item = (&[u8], Digest)> {
    lines(hashes).filter_map(|line| {
        let (word, path) = line.split_at_checked(32)?;
        let path = path.trim_ascii_start();
        is_wanted(path).then_some((path, digest(word)?))
    })
}

/// Returns the packages of files that are copied. A line of the registry is a package, blanks and a
/// path.
fn packages(registry: &[u8]) -> BTreeSet<&[u8]> {
    lines(registry)
        .filter_map(|line| {
            let end = line.iter().position(u8::is_ascii_whitespace)?;
            let (package, path) = line.split_at_checked(end)?;
            (!package.is_empty() && is_wanted(path.trim_ascii())).then_some(package)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_files_are_parsed() {
        let one = "0123456789abcdef0123456789abcdef";
        let hashes = format!(
            "{one}  /etc/with blank\n{one}  /usr/x\n{one}  /etc/default/x\n{one}\n/etc/y\n\
             +123456789abcdef0123456789abcdef  /etc/sign\n"
        );
        let paths: Vec<_> = recorded(hashes.as_bytes()).map(|(path, _)| path).collect();
        assert_eq!(paths, [b"/etc/with blank"]);
        let registry = b"b-x \t /etc/b\na\t/etc/with blank\nb-x \t /etc/c\nc /usr/x\n /etc/d\nd\n";
        let expected: [&[u8]; 2] = [b"a", b"b-x"];
        assert_eq!(packages(registry).into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_path_is_listed_if_a_package_has_its_digest() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        let at = |name: &str| base.path().join(name);
        let shipped = "11111111111111111111111111111111";
        let generated = "22222222222222222222222222222222";
        std::fs::write(
            at("hashfile"),
            format!("{shipped}  /etc/same\n{generated}  /etc/generated\n{shipped}  /etc/again\n"),
        )?;
        std::fs::write(at("registry"), "gone \t /etc/same\nother \t /etc/generated\n")?;
        std::fs::create_dir(at("info"))?;
        std::fs::write(at("info/other.md5sums"), format!("{shipped}  usr/share/other/same\n"))?;
        // A package that handed nothing to ucf.
        std::fs::write(at("info/third.md5sums"), format!("{generated}  usr/share/third/x\n"))?;
        let ucf = Ucf {
            hashes: File::open(at("hashfile"))?,
            registry: File::open(at("registry"))?,
            info: OwnedFd::from(File::open(at("info"))?),
        };
        let paths: Vec<_> = ucf.entries()?.into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, [b"/etc/same".to_vec(), b"/etc/again".to_vec()]);
        Ok(())
    }
}
