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
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use rustix::fs::{FileType, RawDir, RenameFlags, renameat_with};

use super::digests::Digests;
use crate::rootfs::detached::{hidden_here, relative};
use cell::late_files::Extent;
use cell::{c_path, errno_of};
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

/// A copy in progress.
pub(super) struct Copier<'a> {
    /// The root of the template, writable.
    root: &'a OwnedFd,
    /// Paths that a cell has already.
    shown: HashSet<&'a Path>,
    digests: &'a Digests,
    /// Paths that cells have now: copies, and directories that were made for them.
    copied: HashSet<PathBuf>,
    bytes: u64,
    entries: usize,
    extent: Extent,
    /// Links of the host with their texts, which are copied after the files.
    links: Vec<(PathBuf, PathBuf)>,
    buffer: Vec<u8>,
    /// Name of a file until it is whole. Cells do not see it.
    unfinished: CString,
}

impl<'a> Copier<'a> {
    /// Removes what an earlier copy to this root has left unfinished.
    ///
    /// # Errors
    /// The errno of unlinkat(2).
    pub(super) fn new(
        root: &'a OwnedFd,
        shown: &'a [PathBuf],
        digests: &'a Digests,
    ) -> Result<Self, Errno> {
        let unfinished = c_path(&hidden_here().join("unfinished"))?;
        match unlinkat(root, unfinished.as_c_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        Ok(Self {
            root,
            shown: shown.iter().map(PathBuf::as_path).collect(),
            digests,
            copied: HashSet::new(),
            bytes: 0,
            entries: 0,
            extent: Extent::All,
            links: Vec::new(),
            buffer: Vec::new(),
            unfinished,
        })
    }

    /// Copies the files and links of `etc`.
    ///
    /// # Errors
    /// The errno of a file that could not be written. Files that cannot be read are left out.
    pub(super) fn copy(mut self, etc: &OwnedFd) -> Result<Extent, Errno> {
        self.walk(etc, c".", &mut PathBuf::from("/etc"), MAX_DEPTH)?;
        self.copy_links()?;
        Ok(self.extent)
    }

    /// Copies the files of the directory `name` in `parent`, and those below it. `path` is its path
    /// in the cell.
    fn walk(
        &mut self,
        parent: &OwnedFd,
        name: &CStr,
        path: &mut PathBuf,
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
            path.push(OsStr::from_bytes(name.to_bytes()));
            match kind {
                FileType::Directory if depth == 0 => self.extent = Extent::Limited,
                FileType::Directory => self.walk(&opened, &name, path, depth - 1)?,
                FileType::RegularFile => self.copy_file(&opened, &name, path)?,
                FileType::Symlink => {
                    let mut buffer = [0; 1024];
                    if let Ok(text) = lookup::read_link(&opened, &name, &mut buffer) {
                        let text = PathBuf::from(OsStr::from_bytes(text));
                        self.links.push((path.clone(), text));
                    }
                }
                FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => {}
            }
            path.pop();
        }
        Ok(())
    }

    /// Returns the entries of a directory that may be copied, with their types, as far as it can be
    /// read. `path` is its path in the cell.
    fn entries(&mut self, directory: &OwnedFd, path: &mut PathBuf) -> Vec<(CString, FileType)> {
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
            path.push(OsStr::from_bytes(name.to_bytes()));
            if self.may_be_copied(path, kind) {
                entries.push((name.to_owned(), kind));
            }
            path.pop();
        }
        entries
    }

    /// Returns true for links, files of packages, and directories that have such files below them or
    /// next to them, unless cells have the path already.
    fn may_be_copied(&self, path: &Path, kind: FileType) -> bool {
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
    fn may_have_links(&self, path: &Path) -> bool {
        path.parent().is_some_and(|above| above != "/etc" && self.digests.are_below(above))
    }

    /// Copies a file if its bytes are those of a package.
    fn copy_file(&mut self, parent: &OwnedFd, name: &CStr, path: &Path) -> Result<(), Errno> {
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

    /// Writes the buffer to a file that cells do not have yet. The file gets its name when it is
    /// whole: this process can be killed, and the template can be full.
    fn write_file(&self, path: &Path, mode: u32) -> Result<(), Errno> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        let file = lookup::open(self.root, &self.unfinished, flags, mode, Follow::Below)?;
        File::from(file).write_all(&self.buffer).map_err(|error| errno_of(&error))?;
        let target = relative(path);
        let unfinished = self.unfinished.as_c_str();
        match renameat_with(self.root, unfinished, self.root, &target, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            // A made-up file, such as `/etc/hosts`, or a copy that an earlier process made.
            Err(rustix::io::Errno::EXIST) => {
                unlinkat(self.root, unfinished, UnlinkatFlags::NoRemoveDir)
            }
            Err(errno) => Err(Errno::from_raw(errno.raw_os_error())),
        }
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
                match symlinkat(&text, self.root, &relative(&path)) {
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
        let is_shown = |path: &Path| path.ancestors().any(|above| self.shown.contains(above));
        path.starts_with("/etc") && (self.copied.contains(path) || is_shown(path))
    }

    /// Makes the directories above a path in the cell.
    fn make_parents(&mut self, path: &Path) -> Result<(), Errno> {
        let Some(parent) = path.parent() else { return Ok(()) };
        if parent == Path::new("/etc") || self.copied.contains(parent) {
            return Ok(());
        }
        self.make_parents(parent)?;
        match mkdirat(self.root, &relative(parent), Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {
                self.copied.insert(parent.to_owned());
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }
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
fn target(path: &Path, text: &Path) -> PathBuf {
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
            assert_eq!(target(Path::new(path), Path::new(text)), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn a_file_gets_its_name_when_it_is_whole() -> Result<(), Box<dyn std::error::Error>> {
        let base = tempfile::tempdir()?;
        let at = |name: &str| base.path().join(name);
        for directory in ["root/etc", "root/tmp/.template", "etc/d"] {
            std::fs::create_dir_all(at(directory))?;
        }
        // An earlier process was killed during a write, after it had copied one file.
        for (name, bytes) in [
            ("root/tmp/.template/unfinished", "ship"),
            ("root/etc/earlier", "shipped"),
            ("root/etc/hosts", "made up"),
            ("etc/earlier", "shipped"),
            ("etc/hosts", "shipped"),
            ("etc/d/new", "shipped"),
        ] {
            std::fs::write(at(name), bytes)?;
        }
        std::os::unix::fs::symlink("earlier", at("etc/link"))?;
        let digest = u128::from_be_bytes(Md5::digest("shipped").into());
        let lines = ["earlier", "hosts", "d/new"].map(|name| format!(" /etc/{name} {digest:032x}"));
        std::fs::write(at("status"), format!("\nConffiles:\n{}\n", lines.join("\n")))?;
        let digests = super::super::digests::read(&File::open(at("status"))?)?;
        let root = OwnedFd::from(File::open(at("root"))?);
        let etc = OwnedFd::from(File::open(at("etc"))?);
        Copier::new(&root, &[], &digests)?.copy(&etc)?;
        let read = |name: &str| std::fs::read_to_string(at(name));
        assert_eq!(read("root/etc/d/new")?, "shipped");
        assert_eq!(read("root/etc/link")?, "shipped");
        assert_eq!(read("root/etc/hosts")?, "made up");
        assert_eq!(std::fs::read_dir(at("root/tmp/.template"))?.count(), 0);
        Ok(())
    }
}
