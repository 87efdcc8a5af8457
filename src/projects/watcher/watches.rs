//! Watches of inotify(7): one for each folder whose entries matter, set on the open folder and
//! never on a path.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::inotify::{ReadFlags, Reader, WatchFlags, add_watch, remove_watch};
use rustix::io::Errno;

use crate::tree::parents;
use crate::{ProjectDirectory, ProjectLayout};

/// Maximum number of watched folders.
const MAX_FOLDERS: usize = 8192;
/// Maximum number of events read at once: as many as the kernel keeps by default.
const MAX_EVENTS: usize = 16_384;
/// Size of the buffer for events in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// A watched folder.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Folder {
    /// Path in the project; `.` for the project's directory.
    path: String,
    /// True if each of its entries may appear in the lists.
    is_listed: bool,
}

/// All watches.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    folders: BTreeMap<i32, Folder>,
}

/// Parts of the project that may have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    pub(crate) lists: bool,
    pub(crate) files: bool,
}

impl Touched {
    pub(crate) const ALL: Self = Self { lists: true, files: true };

    pub(crate) fn is_any(self) -> bool {
        self.lists || self.files
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self { lists: self.lists || other.lists, files: self.files || other.files }
    }
}

impl Watches {
    /// Watches the folders of the lists and those that lead to `files`, and removes all other
    /// watches.
    ///
    /// # Errors
    /// Why the kernel refuses further watches.
    pub(crate) fn lay<'f>(
        &mut self,
        queue: &OwnedFd,
        directory: &ProjectDirectory,
        files: impl Iterator<Item = &'f String>,
    ) -> Result<(), String> {
        let mut laid = BTreeMap::new();
        let mut lay = |path: &str, is_listed: bool| {
            // A folder that is gone was reported by its parent.
            let Ok(folder) = directory.folder(path) else { return Ok(()) };
            if let Some(number) = watch(queue, &folder)? {
                laid.insert(number, Folder { path: path.to_owned(), is_listed });
            }
            Ok(())
        };
        let mut listed = BTreeSet::new();
        directory.visit_listed_folders(|path| {
            listed.insert(path.to_owned());
            if listed.len() > MAX_FOLDERS {
                return Err(format!("the project has more than {MAX_FOLDERS} folders"));
            }
            lay(path, path != ".")
        })?;
        let leading = files.flat_map(|file| parents(file).map(str::to_owned));
        let others: BTreeSet<String> =
            leading.filter(|folder| !listed.contains(folder)).take(MAX_FOLDERS).collect();
        for path in &others {
            lay(path, false)?;
        }
        for number in self.folders.keys().filter(|number| !laid.contains_key(number)) {
            match remove_watch(queue, *number) {
                // The kernel removes the watch of a removed folder.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(errno) => return Err(std::io::Error::from(errno).to_string()),
            }
        }
        self.folders = laid;
        Ok(())
    }

    /// Watches the folders that lead to `files`, and keeps all other watches.
    ///
    /// # Errors
    /// Same as [`Watches::lay`].
    pub(crate) fn lead<'f>(
        &mut self,
        queue: &OwnedFd,
        directory: &ProjectDirectory,
        files: impl Iterator<Item = &'f String>,
    ) -> Result<(), String> {
        let known: BTreeSet<&String> = self.folders.values().map(|folder| &folder.path).collect();
        let leading = files.flat_map(|file| parents(file).map(str::to_owned));
        let new: BTreeSet<String> = leading.filter(|folder| !known.contains(folder)).collect();
        for path in new {
            // Watches for files that are no longer watched are removed in the next round.
            if self.folders.len() >= 2 * MAX_FOLDERS {
                return Err(format!("more than {MAX_FOLDERS} folders are watched"));
            }
            let Ok(folder) = directory.folder(&path) else { continue };
            if let Some(number) = watch(queue, &folder)? {
                self.folders.entry(number).or_insert(Folder { path, is_listed: false });
            }
        }
        Ok(())
    }

    /// Reads the queued events.
    pub(crate) fn take(
        &self,
        queue: &OwnedFd,
        layout: &ProjectLayout,
        is_file: impl Fn(&str) -> bool,
    ) -> Touched {
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; BUFFER_BYTES];
        let mut reader = Reader::new(queue, &mut buffer);
        let mut touched = Touched::default();
        for _ in 0..MAX_EVENTS {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return touched,
                Err(Errno::INTR) => continue,
                Err(_) => return Touched::ALL,
            };
            // Events were lost: assume that everything changed.
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                touched = Touched::ALL;
                continue;
            }
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
            touched = touched.or(self.touched(event.wd(), name.as_deref(), layout, &is_file));
        }
        // More events keep coming: treated like lost events.
        Touched::ALL
    }

    /// Returns the parts of the project that an event affects.
    fn touched(
        &self,
        number: i32,
        name: Option<&str>,
        layout: &ProjectLayout,
        is_file: impl Fn(&str) -> bool,
    ) -> Touched {
        // The watch has been removed already.
        let Some(folder) = self.folders.get(&number) else { return Touched::default() };
        let Some(name) = name else { return Touched::ALL };
        if folder.path == "." {
            return Touched { lists: layout.is_listed(name), files: is_file(name) };
        }
        let path = format!("{}/{name}", folder.path);
        Touched { lists: folder.is_listed, files: is_file(&path) }
    }
}

/// Watches an open folder; returns `None` if it is gone. Uses its descriptor, as a path could lead
/// elsewhere by now.
fn watch(queue: &OwnedFd, folder: &OwnedFd) -> Result<Option<i32>, String> {
    match rustix::process::fchdir(folder).and_then(|()| watch_here(queue)) {
        Ok(number) => Ok(Some(number)),
        Err(Errno::NOENT | Errno::ACCESS) => Ok(None),
        Err(Errno::NOSPC) => {
            Err("the user has no more watches (fs.inotify.max_user_watches)".to_owned())
        }
        Err(errno) => Err(std::io::Error::from(errno).to_string()),
    }
}

/// Watches the working directory of the process.
fn watch_here(queue: &OwnedFd) -> Result<i32, Errno> {
    let changes = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    let how = WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW | WatchFlags::EXCL_UNLINK;
    add_watch(queue, ".", changes | how)
}
