//! The held directory of a project: files are read beneath it, and no link is followed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2};
use rustix::io::Errno;

use crate::json::{is_too_deep, take_values};
use crate::layout::ProjectLayout;
use crate::{ProjectError, ProjectMistake};

/// Length of the longest file of metadata in bytes.
pub(crate) const FILE_BYTES: usize = 1 << 20;
/// Bytes of a script that are read: its first lines.
const HEAD_BYTES: u64 = 8 << 10;
/// Folders below each other.
const DEPTH: usize = 16;
/// Entries of one kind: tools, resources or prompts, with their metadata and what is left out.
const ENTRIES: usize = 20_000;
/// Bytes of metadata that are read of one project.
const ALL_BYTES: usize = 64 << 20;
/// Values in all metadata of one project.
const ALL_VALUES: usize = 1_000_000;

const TOO_MANY: &str = "has more than 20,000 entries";

/// Bits of a mode.
const EXECUTABLE: u32 = 0o111;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const WRITABLE_BY_ALL: u32 = 0o002;

/// Returns true for a path that leads out of the folder that it begins in, be it on its way only.
pub(crate) fn leaves(path: &str) -> bool {
    let mut depth = 0_usize;
    path.split('/').any(|part| match part {
        "" | "." => false,
        ".." => match depth.checked_sub(1) {
            Some(above) => {
                depth = above;
                false
            }
            None => true,
        },
        _ => {
            depth += 1;
            false
        }
    })
}

/// Returns the folders on the way to a file, without the project's directory.
pub(crate) fn parents(file: &str) -> impl Iterator<Item = &str> {
    file.match_indices('/').filter_map(|(at, _)| file.get(..at))
}

/// A project's directory.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    /// User who owns the directory, and so must own each file that is used.
    owner: u32,
    /// Bytes of metadata that were read.
    read: Cell<usize>,
    /// Values that metadata may still have.
    values: Cell<usize>,
    /// Folders that only their owner may write to.
    folders: RefCell<BTreeSet<String>>,
    /// Last component of its path.
    pub(crate) name: String,
    /// True if scripts may write to it.
    pub(crate) is_written: bool,
    pub(crate) layout: ProjectLayout,
    /// True if it was removed: nothing comes into it any more.
    pub(crate) is_removed: bool,
}

/// A regular file of a project.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FoundFile {
    /// Path from the project's directory.
    pub(crate) path: String,
    pub(crate) is_executable: bool,
}

impl FoundFile {
    /// Returns the path below a folder of the project.
    pub(crate) fn below(&self, folder: &str) -> &str {
        let below = self.path.strip_prefix(folder).and_then(|path| path.strip_prefix('/'));
        below.unwrap_or(&self.path)
    }

    /// Returns the last component of the path without its extension.
    pub(crate) fn title(&self) -> &str {
        self.stem().rsplit('/').next().unwrap_or_default()
    }

    /// Returns the last component of the path.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the path without the extension of its last component.
    pub(crate) fn stem(&self) -> &str {
        let name = self.name();
        match name.rfind('.').filter(|at| *at > 0) {
            Some(at) => self.path.get(..self.path.len() - (name.len() - at)).unwrap_or_default(),
            None => &self.path,
        }
    }
}

impl Tree {
    /// Takes a project's directory, which its owner alone may write to.
    pub(crate) fn of(root: OwnedFd, name: String) -> Result<Self, ProjectError> {
        let stat = fstat(&root).map_err(|errno| ProjectError::Open(errno.into()))?;
        if stat.st_mode & WRITABLE_BY_ALL != 0 {
            return Err(ProjectError::WritableByOthers);
        }
        let own = rustix::process::geteuid();
        // Root serves the projects of its users, in cells with separate ids.
        if !own.is_root() && stat.st_uid != own.as_raw() && stat.st_uid != 0 {
            return Err(ProjectError::ForeignOwner);
        }
        Ok(Self {
            root,
            owner: stat.st_uid,
            read: Cell::new(0),
            values: Cell::new(ALL_VALUES),
            folders: RefCell::default(),
            name,
            is_written: false,
            layout: ProjectLayout::default(),
            is_removed: stat.st_nlink == 0,
        })
    }

    fn file(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
        openat2(&self.root, path, flags, Mode::empty(), resolve)
    }

    /// Visits a folder and the folders below it, without hidden ones, each before the folders in it are looked for.
    ///
    /// # Errors
    /// That of the first visit that failed.
    pub(crate) fn visit_folders<E>(
        &self,
        folder: &str,
        mut visit: impl FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut open = vec![(folder.to_owned(), 0)];
        while let Some((at, depth)) = open.pop() {
            visit(&at)?;
            // The reader of the lists reports mistakes.
            for path in self.folders(&at, &mut Vec::new()).unwrap_or_default() {
                if depth < DEPTH {
                    open.push((path, depth + 1));
                }
            }
        }
        Ok(())
    }

    /// Returns true unless there is surely no entry of this name.
    pub(crate) fn has(&self, path: &str) -> bool {
        let found = self.file(path, OFlags::PATH | OFlags::NOFOLLOW);
        !matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
    }

    /// Returns true for a folder of the project that no link leads to.
    pub(crate) fn is_folder(&self, path: &str) -> bool {
        self.file(path, OFlags::PATH | OFlags::DIRECTORY).is_ok()
    }

    /// Checks that only the project's owner may put files into a folder: others could exchange each file in it.
    ///
    /// # Errors
    /// A folder that its group or others may write to, or that is another user's.
    fn check_folder(&self, path: &str) -> Result<(), ProjectMistake> {
        // The project's own directory was checked when it was opened.
        if path == "." || self.folders.borrow().contains(path) {
            return Ok(());
        }
        // Anything but a folder is found out where it is opened.
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let Ok(stat) = self.file(path, flags).and_then(fstat) else { return Ok(()) };
        if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
            let why = "may be written by its group or by others (chmod go-w)";
            return Err(ProjectMistake::new(path, why));
        }
        if stat.st_uid != self.owner {
            let why = "belongs to another user than the project's directory";
            return Err(ProjectMistake::new(path, why));
        }
        self.folders.borrow_mut().insert(path.to_owned());
        Ok(())
    }

    /// Counts the values of a JSON text among those of the project.
    ///
    /// # Errors
    /// A text that is not JSON, or one with too many values.
    pub(crate) fn take_values(&self, path: &str, text: &str) -> Result<(), ProjectMistake> {
        let mut left = self.values.get();
        let taken = take_values(text, &mut left);
        self.values.set(left);
        match taken {
            Ok(()) if is_too_deep(text) => {
                Err(ProjectMistake::new(path, "is nested deeper than 100 levels"))
            }
            Ok(()) => Ok(()),
            Err(_) if left == 0 => {
                let why = "is left out: the project's metadata has more than 1,000,000 values";
                Err(ProjectMistake::new(path, why))
            }
            Err(error) => Err(ProjectMistake::of_json(path, &error)),
        }
    }

    /// Opens a regular file that only the project's owner may write to.
    fn checked(&self, path: &str) -> Result<Option<(File, Stat)>, ProjectMistake> {
        let bad = |why: &str| ProjectMistake::new(path, why);
        for (at, _) in path.match_indices('/') {
            self.check_folder(path.get(..at).unwrap_or_default())?;
        }
        // Opening a FIFO must not block, and a terminal must not become the server's.
        let file = match self.file(path, OFlags::NONBLOCK | OFlags::NOCTTY) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(Errno::LOOP) => return Err(bad("is a symbolic link, and none is followed")),
            Err(errno) => return Err(bad(&std::io::Error::from(errno).to_string())),
        };
        let stat = fstat(&file).map_err(|errno| bad(&std::io::Error::from(errno).to_string()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(bad("is not a regular file"));
        }
        if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
            return Err(bad("may be written by its group or by others (chmod go-w)"));
        }
        if stat.st_uid != self.owner {
            return Err(bad("belongs to another user than the project's directory"));
        }
        Ok(Some((File::from(file), stat)))
    }

    /// Reads a file of metadata; `None` if it is absent.
    pub(crate) fn text(&self, path: &str) -> Result<Option<String>, ProjectMistake> {
        let Some(bytes) = self.bytes(path, FILE_BYTES)? else { return Ok(None) };
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| ProjectMistake::new(path, "is not UTF-8"))
    }

    /// Reads a file of bounded size; `None` if it does not exist.
    pub(crate) fn bytes(&self, path: &str, max: usize) -> Result<Option<Vec<u8>>, ProjectMistake> {
        let bad = |why: &str| ProjectMistake::new(path, why);
        let Some((file, _)) = self.checked(path)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let one_more = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
        file.take(one_more).read_to_end(&mut bytes).map_err(|error| bad(&error.to_string()))?;
        if bytes.len() > max {
            return Err(bad(if max == FILE_BYTES {
                "is longer than 1M"
            } else {
                "is longer than 64K"
            }));
        }
        let read = self.read.get().saturating_add(bytes.len());
        if read > ALL_BYTES {
            return Err(bad("is left out: the project has more than 64M of metadata"));
        }
        self.read.set(read);
        Ok(Some(bytes))
    }

    /// Reads the first lines of a file.
    pub(crate) fn head(&self, path: &str) -> Result<Option<String>, ProjectMistake> {
        let Some((file, _)) = self.checked(path)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(HEAD_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|error| ProjectMistake::new(path, error.to_string()))?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Finds a file by its path.
    pub(crate) fn found(&self, path: &str) -> Result<Option<FoundFile>, ProjectMistake> {
        let found = self.checked(path)?;
        Ok(found.map(|(_, stat)| FoundFile {
            path: path.to_owned(),
            is_executable: stat.st_mode & EXECUTABLE != 0,
        }))
    }

    /// Lists the regular files below a folder, sorted, without hidden ones. Links and files that others may write
    /// to are mistakes, and left out.
    ///
    /// # Errors
    /// A name with a line break, or more entries than any project has.
    pub(crate) fn files(
        &self,
        folder: &str,
        mistakes: &mut Vec<ProjectMistake>,
    ) -> Result<Vec<FoundFile>, ProjectMistake> {
        let mut found = Vec::new();
        let mut looked_at = 0;
        let mut open = vec![(folder.to_owned(), 0)];
        while let Some((at, depth)) = open.pop() {
            let entries = self.entries(&at, mistakes)?;
            looked_at += entries.len();
            if looked_at > ENTRIES {
                return Err(ProjectMistake::new(folder, TOO_MANY));
            }
            for (path, kind) in entries {
                if kind == FileType::Directory && depth < DEPTH {
                    open.push((path, depth + 1));
                } else if kind == FileType::Directory {
                    mistakes.push(ProjectMistake::new(&path, "is too deep to be looked into"));
                } else {
                    match self.found(&path) {
                        Ok(file) => found.extend(file),
                        Err(mistake) => mistakes.push(mistake),
                    }
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Lists the folders in a folder, sorted, without hidden ones.
    ///
    /// # Errors
    /// A name with a line break.
    pub(crate) fn folders(
        &self,
        folder: &str,
        mistakes: &mut Vec<ProjectMistake>,
    ) -> Result<Vec<String>, ProjectMistake> {
        let entries = self.entries(folder, mistakes)?.into_iter();
        let folders = entries.filter(|(_, kind)| *kind == FileType::Directory);
        let mut folders: Vec<String> = folders.map(|(path, _)| path).collect();
        folders.sort();
        Ok(folders)
    }

    /// Reads one folder.
    fn entries(
        &self,
        folder: &str,
        mistakes: &mut Vec<ProjectMistake>,
    ) -> Result<Vec<(String, FileType)>, ProjectMistake> {
        let bad =
            |errno: Errno| ProjectMistake::new(folder, std::io::Error::from(errno).to_string());
        let directory = match self.file(folder, OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(Vec::new()),
            Err(errno) => {
                mistakes.push(bad(errno));
                return Ok(Vec::new());
            }
        };
        if let Err(mistake) = self.check_folder(folder) {
            mistakes.push(mistake);
            return Ok(Vec::new());
        }
        let mut entries = Vec::new();
        for (number, entry) in Dir::new(directory).map_err(bad)?.enumerate() {
            if number > ENTRIES {
                return Err(ProjectMistake::new(folder, TOO_MANY));
            }
            let entry = entry.map_err(bad)?;
            let Ok(name) = entry.file_name().to_str() else {
                mistakes.push(ProjectMistake::new(folder, "has a name that is not UTF-8"));
                continue;
            };
            if name.contains(['\n', '\r']) {
                return Err(ProjectMistake::new(folder, "has a name with a line break"));
            }
            if !name.starts_with('.') {
                entries.push((format!("{folder}/{name}"), entry.file_type()));
            }
        }
        Ok(entries)
    }
}
