//! Writes the found files and links into a template.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{Mode, fchmod, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use super::find::{ETC, MAX_COPIED, ReadFile, ReadFiles, Rest};
use cell::errno_of;
use cell::late_files::Extent;
use sys::lookup::{self, Follow};

/// Maximum links in a row that lead to a copied file.
const MAX_LINKS: u8 = 4;

/// A copy in progress.
pub(crate) struct Copier {
    /// The root of the template, writable.
    root: Rc<OwnedFd>,
    /// Paths that a cell has already.
    shown: Rc<HashSet<Vec<u8>>>,
    /// Paths that cells have now: copies, and directories that were made for them.
    copied: HashSet<Vec<u8>>,
    /// True once a file was left out, because there are too many.
    is_full: bool,
}

impl Copier {
    pub(crate) fn new(root: Rc<OwnedFd>, shown: Rc<HashSet<Vec<u8>>>) -> Self {
        Self { root, shown, copied: HashSet::new(), is_full: false }
    }

    /// Writes files, unless a cell has them already, and clears them.
    ///
    /// # Errors
    /// The errno of a file that could not be written.
    pub(crate) fn files(&mut self, read: &mut ReadFiles) -> Result<(), Errno> {
        for file in &read.files {
            if self.copied.len() >= MAX_COPIED {
                self.is_full = true;
                break;
            }
            if self.is_shown(&file.path) {
                continue;
            }
            self.make_parents(&file.path)?;
            self.write_file(file, read.bytes.get(file.bytes.clone()).unwrap_or_default())?;
            self.copied.insert(file.path.clone());
        }
        read.clear();
        Ok(())
    }

    /// Writes the links, after all files.
    ///
    /// # Errors
    /// The errno of a link that could not be made.
    pub(crate) fn rest(mut self, rest: Rest) -> Result<Extent, Errno> {
        let linked = self.copy_links(rest.links)?;
        Ok(if self.is_full || linked == Extent::Limited { Extent::Limited } else { rest.extent })
    }

    /// Returns true if a cell is shown the path, or a directory above it.
    fn is_shown(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        let mut above = ends.filter_map(|end| path.get(..end));
        self.shown.contains(path) || above.any(|above| self.shown.contains(above))
    }

    /// Writes a file that cells do not have yet. The file can be read when it is whole: this process can be
    /// killed, and the template can be full.
    fn write_file(&self, file: &ReadFile, bytes: &[u8]) -> Result<(), Errno> {
        let path = in_root(&file.path)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        let create = || lookup::open(&self.root, &path, flags, UNFINISHED, Follow::Below);
        let made = match create() {
            // Made up, such as `/etc/hosts`, or left by an earlier process.
            Err(Errno::EEXIST) if self.is_finished(&path)? => return Ok(()),
            Err(Errno::EEXIST) => {
                unlinkat(&self.root, path.as_c_str(), UnlinkatFlags::NoRemoveDir)?;
                create()?
            }
            created => created?,
        };
        let mut made = File::from(made);
        made.write_all(bytes).map_err(|error| errno_of(&error))?;
        fchmod(&made, Mode::from_bits_truncate(file.mode))
    }

    /// Returns true for an entry of the template that is no copy without its end.
    fn is_finished(&self, path: &CStr) -> Result<bool, Errno> {
        let status = fstatat(&self.root, path, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        Ok(status.st_mode != libc::S_IFREG | UNFINISHED)
    }

    /// Copies links that lead to a path in `/etc` that cells have. A link to a path elsewhere may
    /// show what the administrator has enabled.
    fn copy_links(&mut self, mut links: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Extent, Errno> {
        links.retain(|(path, _)| !self.is_shown(path));
        for _ in 0..MAX_LINKS {
            let before = links.len();
            let mut left = Vec::new();
            for (path, text) in links {
                if self.copied.len() >= MAX_COPIED {
                    return Ok(Extent::Limited);
                }
                if !self.is_in_cells(&target(&path, &text)) {
                    left.push((path, text));
                    continue;
                }
                self.make_parents(&path)?;
                match symlinkat(OsStr::from_bytes(&text), &self.root, in_root(&path)?.as_c_str()) {
                    Ok(()) | Err(Errno::EEXIST) => drop(self.copied.insert(path)),
                    Err(errno) => return Err(errno),
                }
            }
            links = left;
            if links.len() == before {
                break;
            }
        }
        Ok(Extent::All)
    }

    /// Returns true if a cell has the path in `/etc`: as a copy, or as a part of the host that it
    /// is shown.
    fn is_in_cells(&self, path: &Path) -> bool {
        let bytes = path.as_os_str().as_bytes();
        path.starts_with("/etc") && (self.copied.contains(bytes) || self.is_shown(bytes))
    }

    /// Makes the directories above a path in the cell.
    fn make_parents(&mut self, path: &[u8]) -> Result<(), Errno> {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
        let parent = path.get(..end).unwrap_or_default();
        if parent.len() <= ETC.len() || self.copied.contains(parent) {
            return Ok(());
        }
        self.make_parents(parent)?;
        match mkdirat(&self.root, in_root(parent)?.as_c_str(), Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {
                self.copied.insert(parent.to_owned());
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Mode of a copy until it is whole: no cell can read it.
const UNFINISHED: u32 = 0;

/// Converts a path of cells to one that is relative to their root.
fn in_root(path: &[u8]) -> Result<CString, Errno> {
    CString::new(path.strip_prefix(b"/").unwrap_or(path)).map_err(|_| Errno::EINVAL)
}

/// Returns the path to which a link at `path` with this text leads.
fn target(path: &[u8], text: &[u8]) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(path));
    let text = Path::new(OsStr::from_bytes(text));
    let mut target = path.parent().unwrap_or(Path::new("/")).to_owned();
    for part in text.components() {
        match part {
            Component::RootDir | Component::Prefix(_) => target = PathBuf::from("/"),
            Component::CurDir => {}
            Component::ParentDir => drop(target.pop()),
            Component::Normal(name) => target.push(name),
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::super::find::Finder;
    use super::*;
    use md5::{Digest, Md5};
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn a_link_leads_where_the_kernel_follows_it() {
        for (path, text, expected) in [
            ("/etc/os-release", "../usr/lib/os-release", "/usr/lib/os-release"),
            (
                "/etc/php/8.2/cli/conf.d/20-x.ini",
                "/etc/php/8.2/mods-available/x.ini",
                "/etc/php/8.2/mods-available/x.ini",
            ),
            ("/etc/a", "b/./c", "/etc/b/c"),
            ("/etc/a", "../../../x", "/x"),
        ] {
            assert_eq!(target(path.as_bytes(), text.as_bytes()), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn a_file_can_be_read_when_it_is_whole() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        let at = |name: &str| base.path().join(name);
        for directory in ["root/etc/d", "etc/d"] {
            std::fs::create_dir_all(at(directory))?;
        }
        // An earlier process was killed during a write, after it had copied one file.
        let private = Permissions::from_mode(UNFINISHED);
        for (name, bytes) in [
            ("root/etc/d/unfinished", "ship"),
            ("root/etc/earlier", "shipped"),
            ("root/etc/hosts", "made up"),
            ("etc/earlier", "shipped"),
            ("etc/hosts", "shipped"),
            ("etc/d/unfinished", "shipped"),
            ("etc/d/new", "shipped"),
        ] {
            std::fs::write(at(name), bytes)?;
        }
        std::fs::set_permissions(at("root/etc/d/unfinished"), private)?;
        std::fs::set_permissions(at("etc/d/new"), Permissions::from_mode(0o755))?;
        std::os::unix::fs::symlink("earlier", at("etc/link"))?;
        let digest = u128::from_be_bytes(Md5::digest("shipped").into());
        let names = ["earlier", "hosts", "d/unfinished", "d/new"];
        let lines = names.map(|name| format!(" /etc/{name} {digest:032x}"));
        std::fs::write(at("status"), format!("\nConffiles:\n{}\n", lines.join("\n")))?;
        let digests = super::super::digests::read(&File::open(at("status"))?)?;
        let root = Rc::new(OwnedFd::from(File::open(at("root"))?));
        let etc = OwnedFd::from(File::open(at("etc"))?);
        let nothing = Rc::new(HashSet::new());
        let mut copier = Copier::new(root, Rc::clone(&nothing));
        let (left, rest) = Finder::new(&nothing, &digests, |read| copier.files(read)).find(&etc)?;
        assert!(left.files.is_empty());
        assert_eq!(copier.rest(rest)?, Extent::All);
        let mode = |name: &str| Ok::<_, std::io::Error>(at(name).metadata()?.mode() & 0o7777);
        let modes = [
            ("d/unfinished", "shipped", 0o644),
            ("d/new", "shipped", 0o755),
            ("earlier", "shipped", 0o644),
            ("link", "shipped", 0o644),
            ("hosts", "made up", 0o644),
        ];
        for (name, text, expected) in modes {
            let name = format!("root/etc/{name}");
            assert_eq!(std::fs::read_to_string(at(&name))?, text, "{name}");
            assert_eq!(mode(&name)?, expected, "{name}");
        }
        Ok(())
    }
}
