//! Walks through the host's `/etc` and copies unchanged files of packages, and links to them.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use md5::{Digest, Md5};
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use rustix::fs::{FileType, RawDir};

use super::digests::Digests;
use cell::errno_of;
use cell::late_files::Extent;
use sys::lookup::{self, Follow};

/// Maximum files and links that are copied.
const MAX_COPIED: usize = 4_000;
/// Maximum bytes of all copied files.
const MAX_BYTES: u64 = 8 << 20;
/// Maximum entries of all directories that are looked at.
const MAX_ENTRIES: usize = 50_000;
/// Bytes of entries that one getdents64(2) returns at most.
const DIRECTORY_BYTES: usize = 32 << 10;
/// Maximum levels of directories.
const MAX_DEPTH: u8 = 8;
/// Maximum links in a row that lead to a copied file.
const MAX_LINKS: u8 = 4;

/// Path of the host's directory in a cell.
const ETC: &[u8] = b"/etc";

/// A copy in progress. Its paths are those that cells see, as bytes: comparing their components would take a fifth of
/// the time.
pub(super) struct Copier<'a> {
    /// The root of the template, writable.
    root: &'a OwnedFd,
    /// Paths that a cell has already.
    shown: HashSet<&'a [u8]>,
    digests: &'a Digests,
    /// Paths that cells have now: copies, and directories that were made for them.
    copied: HashSet<Vec<u8>>,
    bytes: u64,
    entries: usize,
    extent: Extent,
    /// Links of the host with their texts, which are copied after the files.
    links: Vec<(Vec<u8>, Vec<u8>)>,
    buffer: Vec<u8>,
}

impl<'a> Copier<'a> {
    pub(super) fn new(root: &'a OwnedFd, shown: &'a [PathBuf], digests: &'a Digests) -> Self {
        Self {
            root,
            shown: shown.iter().map(|path| path.as_os_str().as_bytes()).collect(),
            digests,
            copied: HashSet::new(),
            bytes: 0,
            entries: 0,
            extent: Extent::All,
            links: Vec::new(),
            buffer: Vec::new(),
        }
    }

    /// Copies the files and links of `etc`.
    ///
    /// # Errors
    /// The errno of a file that could not be written. Files that cannot be read are left out.
    pub(super) fn copy(mut self, etc: &OwnedFd) -> Result<Extent, Errno> {
        self.walk(etc, c".", &mut ETC.to_owned(), MAX_DEPTH)?;
        self.copy_links()?;
        Ok(self.extent)
    }

    /// Copies the files of the directory `name` in `parent`, and those below it. `path` is its path
    /// in the cell.
    fn walk(
        &mut self,
        parent: &OwnedFd,
        name: &CStr,
        path: &mut Vec<u8>,
        depth: u8,
    ) -> Result<(), Errno> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let Ok(opened) = open(parent, name, flags) else { return Ok(()) };
        if !is_for_all(&opened, libc::S_IFDIR, 0o555) {
            return Ok(());
        }
        let mut entries = self.entries(&opened, path);
        // The same files are copied each time, should a limit be reached.
        entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        for (name, kind) in entries {
            if self.copied.len() >= MAX_COPIED {
                self.extent = Extent::Limited;
                return Ok(());
            }
            let length = push(path, &name);
            match kind {
                FileType::Directory if depth == 0 => self.extent = Extent::Limited,
                FileType::Directory => self.walk(&opened, &name, path, depth - 1)?,
                FileType::RegularFile => self.copy_file(&opened, &name, path)?,
                FileType::Symlink => {
                    let mut buffer = [0; 1024];
                    if let Ok(text) = lookup::read_link(&opened, &name, &mut buffer) {
                        self.links.push((path.clone(), text.to_owned()));
                    }
                }
                FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => {}
            }
            path.truncate(length);
        }
        Ok(())
    }

    /// Returns the entries of a directory that may be copied, with their types, as far as it can be
    /// read. `path` is its path in the cell.
    fn entries(&mut self, directory: &OwnedFd, path: &mut Vec<u8>) -> Vec<(CString, FileType)> {
        let mut buffer = Vec::with_capacity(DIRECTORY_BYTES);
        let mut reader = RawDir::new(directory, buffer.spare_capacity_mut());
        let mut entries = Vec::new();
        while let Some(Ok(entry)) = reader.next() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                self.extent = Extent::Limited;
                break;
            }
            let mut kind = entry.file_type();
            // Some filesystems do not have it in the directory.
            if kind == FileType::Unknown
                && let Ok(status) = fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            {
                kind = FileType::from_raw_mode(status.st_mode);
            }
            let length = push(path, name);
            if self.may_be_copied(path, kind) {
                entries.push((name.to_owned(), kind));
            }
            path.truncate(length);
        }
        entries
    }

    /// Returns true for links, files of packages, and directories that have such files below them or
    /// next to them, unless cells have the path already.
    fn may_be_copied(&self, path: &[u8], kind: FileType) -> bool {
        let is_listed = match kind {
            FileType::RegularFile => !self.digests.of(path).is_empty(),
            FileType::Directory => self.digests.are_below(path) || self.may_have_links(path),
            FileType::Symlink => true,
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => false,
        };
        is_listed && !self.shown.contains(path)
    }

    /// Returns true for a directory in one of `/etc` that has files of packages: it may have nothing
    /// but links to them, as `conf.d` of PHP has.
    fn may_have_links(&self, path: &[u8]) -> bool {
        let above = path.iter().rposition(|byte| *byte == b'/').and_then(|end| path.get(..end));
        above.is_some_and(|above| above != b"/etc" && self.digests.are_below(above))
    }

    /// Copies a file if its bytes are those of a package.
    fn copy_file(&mut self, parent: &OwnedFd, name: &CStr, path: &[u8]) -> Result<(), Errno> {
        // Nothing waits for the other end, should the file have become a FIFO.
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let Ok(opened) = open(parent, name, flags) else { return Ok(()) };
        let room = MAX_BYTES - self.bytes;
        let status = match fstat(&opened) {
            Ok(status) if is_for_all_by(&status, libc::S_IFREG, 0o444) => status,
            Ok(_) | Err(_) => return Ok(()),
        };
        let length = u64::try_from(status.st_size).map_err(|_| Errno::EFBIG)?;
        if length > room {
            self.extent = Extent::Limited;
            return Ok(());
        }
        self.buffer.resize(usize::try_from(length).map_err(|_| Errno::EFBIG)?, 0);
        // A file that has become longer or shorter has another digest, or is as it was shipped.
        if File::from(opened).read_exact(&mut self.buffer).is_err() {
            return Ok(());
        }
        let digest: [u8; 16] = Md5::digest(&self.buffer).into();
        if !self.digests.of(path).iter().any(|(_, listed)| *listed == digest) {
            return Ok(());
        }
        self.bytes += length;
        let mode = if status.st_mode & 0o111 == 0o111 { 0o755 } else { 0o644 };
        self.make_parents(path)?;
        self.write_file(path, mode)?;
        self.copied.insert(path.to_owned());
        Ok(())
    }

    /// Writes the buffer to a file that cells do not have yet. The file can be read when it is whole: this process can be
    /// killed, and the template can be full.
    fn write_file(&self, path: &[u8], mode: u32) -> Result<(), Errno> {
        let path = in_root(path)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        let create = || lookup::open(self.root, &path, flags, UNFINISHED, Follow::Below);
        let file = match create() {
            // Made up, such as `/etc/hosts`, or left by an earlier process.
            Err(Errno::EEXIST) if self.is_finished(&path)? => return Ok(()),
            Err(Errno::EEXIST) => {
                unlinkat(self.root, path.as_c_str(), UnlinkatFlags::NoRemoveDir)?;
                create()?
            }
            created => created?,
        };
        let mut file = File::from(file);
        file.write_all(&self.buffer).map_err(|error| errno_of(&error))?;
        fchmod(&file, Mode::from_bits_truncate(mode))
    }

    /// Returns true for an entry of the template that is no copy without its end.
    fn is_finished(&self, path: &CStr) -> Result<bool, Errno> {
        let status = fstatat(self.root, path, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        Ok(status.st_mode != libc::S_IFREG | UNFINISHED)
    }

    /// Copies links that lead to a path in `/etc` that cells have. A link to a path elsewhere may
    /// show what the administrator has enabled.
    fn copy_links(&mut self) -> Result<(), Errno> {
        for _ in 0..MAX_LINKS {
            let links = std::mem::take(&mut self.links);
            let before = links.len();
            for (path, text) in links {
                if self.copied.len() >= MAX_COPIED {
                    self.extent = Extent::Limited;
                    return Ok(());
                }
                if !self.is_in_cells(&target(&path, &text)) {
                    self.links.push((path, text));
                    continue;
                }
                self.make_parents(&path)?;
                match symlinkat(OsStr::from_bytes(&text), self.root, in_root(&path)?.as_c_str()) {
                    Ok(()) | Err(Errno::EEXIST) => drop(self.copied.insert(path)),
                    Err(errno) => return Err(errno),
                }
            }
            if self.links.len() == before {
                break;
            }
        }
        Ok(())
    }

    /// Returns true if a cell has the path in `/etc`: as a copy, or as a part of the host that it
    /// is shown.
    fn is_in_cells(&self, path: &Path) -> bool {
        let is_shown = |above: &Path| self.shown.contains(above.as_os_str().as_bytes());
        let is_copied = self.copied.contains(path.as_os_str().as_bytes());
        path.starts_with("/etc") && (is_copied || path.ancestors().any(is_shown))
    }

    /// Makes the directories above a path in the cell.
    fn make_parents(&mut self, path: &[u8]) -> Result<(), Errno> {
        let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
        let parent = path.get(..end).unwrap_or_default();
        if parent.len() <= ETC.len() || self.copied.contains(parent) {
            return Ok(());
        }
        self.make_parents(parent)?;
        match mkdirat(self.root, in_root(parent)?.as_c_str(), Mode::from_bits_truncate(0o755)) {
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

/// Appends a name to a path. Returns the length before, to which the path is truncated later.
fn push(path: &mut Vec<u8>, name: &CStr) -> usize {
    let length = path.len();
    path.push(b'/');
    path.extend(name.to_bytes());
    length
}

/// Converts a path of cells to one that is relative to their root.
fn in_root(path: &[u8]) -> Result<CString, Errno> {
    CString::new(path.strip_prefix(b"/").unwrap_or(path)).map_err(|_| Errno::EINVAL)
}

/// Opens an entry of a directory of the host. Does not leave its filesystem, and follows no links.
fn open(directory: &OwnedFd, name: &CStr, flags: i32) -> Result<OwnedFd, Errno> {
    lookup::open(directory, name, flags, 0, Follow::Beneath)
}

/// Returns true for a file of the type that owner, group and others may use in all of these ways.
fn is_for_all(opened: &OwnedFd, kind: libc::mode_t, ways: libc::mode_t) -> bool {
    fstat(opened).is_ok_and(|status| is_for_all_by(&status, kind, ways))
}

fn is_for_all_by(status: &FileStat, kind: libc::mode_t, ways: libc::mode_t) -> bool {
    status.st_mode & libc::S_IFMT == kind && status.st_mode & ways == ways
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
    use super::*;
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
        let root = OwnedFd::from(File::open(at("root"))?);
        let etc = OwnedFd::from(File::open(at("etc"))?);
        Copier::new(&root, &[], &digests).copy(&etc)?;
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
