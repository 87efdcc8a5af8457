//! Watches of inotify(7): one for each folder whose entries count, laid on the folder itself and never on a path.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use project::ProjectDirectory;
use rustix::fs::inotify::{ReadFlags, Reader, WatchFlags, add_watch, remove_watch};
use rustix::io::Errno;

/// Folders that are watched, at most.
const FOLDERS: usize = 8192;
/// Events that are read at once: as many as the kernel keeps by default.
const EVENTS: usize = 16_384;
/// Bytes of events that are read by one call.
const BUFFER: usize = 64 << 10;

/// A folder that is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Folder {
    /// Path in the project; `.` for its own directory.
    path: String,
    /// True if each entry counts for the lists.
    is_listed: bool,
}

/// All watches.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    folders: BTreeMap<i32, Folder>,
}

/// Parts of a project that may have changed.
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
    /// Lays watches on the folders of the lists and on those that lead to `files`, and lifts all others.
    ///
    /// # Errors
    /// The reason why the kernel takes no more.
    pub(crate) fn lay<'f>(
        &mut self,
        queue: &OwnedFd,
        directory: &ProjectDirectory,
        files: impl Iterator<Item = &'f String>,
    ) -> Result<(), String> {
        let mut laid = BTreeMap::new();
        let mut lay = |path: &str, is_listed: bool| {
            // One that has gone meanwhile was told of in the folder above.
            let Ok(folder) = directory.folder(path) else { return Ok(()) };
            if let Some(number) = watch(queue, &folder)? {
                laid.insert(number, Folder { path: path.to_owned(), is_listed });
            }
            Ok(())
        };
        let mut listed = BTreeSet::new();
        directory.visit_listed_folders(|path| {
            listed.insert(path.to_owned());
            if listed.len() > FOLDERS {
                return Err(format!("the project has more than {FOLDERS} folders"));
            }
            lay(path, path != ".")
        })?;
        let leading = files.flat_map(|file| parents(file).map(str::to_owned));
        let others: BTreeSet<String> =
            leading.filter(|folder| !listed.contains(folder)).take(FOLDERS).collect();
        for path in &others {
            lay(path, false)?;
        }
        for number in self.folders.keys().filter(|number| !laid.contains_key(number)) {
            match remove_watch(queue, *number) {
                // The kernel lifts the watch of a folder that was removed.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(errno) => return Err(std::io::Error::from(errno).to_string()),
            }
        }
        self.folders = laid;
        Ok(())
    }

    /// Lays watches on the folders that lead to `files`, and keeps all others.
    ///
    /// # Errors
    /// As of [`Watches::lay`].
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
            // Those of files that are watched no more are lifted in the next round.
            if self.folders.len() >= 2 * FOLDERS {
                return Err(format!("more than {FOLDERS} folders are watched"));
            }
            let Ok(folder) = directory.folder(&path) else { continue };
            if let Some(number) = watch(queue, &folder)? {
                self.folders.entry(number).or_insert(Folder { path, is_listed: false });
            }
        }
        Ok(())
    }

    /// Takes the events that there are.
    pub(crate) fn take(&self, queue: &OwnedFd, is_file: impl Fn(&str) -> bool) -> Touched {
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; BUFFER];
        let mut reader = Reader::new(queue, &mut buffer);
        let mut touched = Touched::default();
        for _ in 0..EVENTS {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return touched,
                Err(Errno::INTR) => continue,
                Err(_) => return Touched::ALL,
            };
            // Of what was lost nothing is known.
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                touched = Touched::ALL;
                continue;
            }
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
            touched = touched.or(self.touched(event.wd(), name.as_deref(), &is_file));
        }
        // More came meanwhile: as if some had been lost.
        Touched::ALL
    }

    /// Returns the parts that an event is about.
    fn touched(&self, number: i32, name: Option<&str>, is_file: impl Fn(&str) -> bool) -> Touched {
        // Of a watch that was lifted.
        let Some(folder) = self.folders.get(&number) else { return Touched::default() };
        let Some(name) = name else { return Touched::ALL };
        if folder.path == "." {
            return Touched { lists: ProjectDirectory::is_listed(name), files: is_file(name) };
        }
        let path = format!("{}/{name}", folder.path);
        Touched { lists: folder.is_listed, files: is_file(&path) }
    }
}

/// Watches a folder that is held; `None` if it is gone. By its descriptor: a path could lead elsewhere by then.
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

/// Watches the directory of the process.
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

/// Returns the folders on the way to a file, without the project's own directory.
pub(crate) fn parents(file: &str) -> impl Iterator<Item = &str> {
    file.match_indices('/').filter_map(|(at, _)| file.get(..at))
}
