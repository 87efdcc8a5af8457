//! Private directories of cells on the host: created before the cell, released after it, and
//! removed by a sweeper process that does nothing else.
//!
//! Nothing opens the files that a cell has written. A released directory is renamed, and the
//! sweeper removes its contents relative to a held descriptor, without following links.

use std::cell::Cell as Counter;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, read, unlinkat, write};

use crate::landlock;
use crate::removal::remove_all;
use sys::Result;

/// Subdirectories of each private directory, in the order in which they are made.
const PARTS: [&str; 3] = ["workspace", "tmp", "tmp/home"];
/// How often the sweeper tries to remove directories that ending processes still write to.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// The directory that holds the private directories of all cells.
#[derive(Debug)]
pub struct Store {
    directory: OwnedFd,
    /// Path on the host.
    path: String,
    next: Counter<u64>,
    /// Wakes the sweeper: each byte announces a released directory. End of file means that the
    /// whole store can be removed.
    sweeper: OwnedFd,
}

/// The private directory of one cell; released on drop.
#[derive(Debug)]
pub struct Private {
    store: Rc<Store>,
    name: String,
}

/// Opens a directory of the store.
fn directory(path: &str) -> Result<OwnedFd> {
    open(
        path,
        OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
}

impl Store {
    /// Takes an empty directory owned by this process's user, and puts the canary in it.
    ///
    /// # Errors
    /// The errno of creating files in it.
    pub fn new(path: String, sweeper: OwnedFd) -> Result<Self> {
        let directory = directory(&path)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let canary = openat(&directory, landlock::CANARY, flags, Mode::S_IRUSR)?;
        write(canary, b"Landlock refuses this file.\n")?;
        Ok(Self { directory, path, next: Counter::new(0), sweeper })
    }

    /// Returns the directory itself, in which the canary is.
    pub fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// Makes a new private directory.
    ///
    /// # Errors
    /// The errno of mkdirat(2).
    pub fn make(self: &Rc<Self>) -> Result<Private> {
        let number = self.next.get();
        self.next.set(number.saturating_add(1));
        let name = format!("cell-{number}");
        mkdirat(&self.directory, name.as_str(), Mode::S_IRWXU)?;
        let private = Private { store: Rc::clone(self), name };
        for part in PARTS {
            let path = format!("{}/{part}", private.name);
            mkdirat(&self.directory, path.as_str(), Mode::S_IRWXU)?;
        }
        Ok(private)
    }
}

impl Private {
    /// Opens the directory, for a Landlock rule.
    ///
    /// # Errors
    /// The errno of open(2).
    pub fn open(&self) -> Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        openat(&self.store.directory, self.name.as_str(), flags, Mode::empty())
    }

    /// Translates a path of the cell to the host's. The cell's private directories lie in the private
    /// one.
    pub fn host_path(&self, path: &str) -> String {
        let prefix = ["/workspace", "/tmp"].into_iter().find(|prefix| {
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        match prefix {
            Some(_) => format!("{}/{}{path}", self.store.path, self.name),
            None => path.to_owned(),
        }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let Store { directory, sweeper, .. } = &*self.store;
        let gone = format!("gone-{}", self.name);
        let moved = renameat(directory, self.name.as_str(), directory, gone.as_str());
        if let Err(errno) = moved.and_then(|()| write(sweeper, b"g").map(drop)) {
            // The sweeper removes it with everything else at the end.
            tracing::debug!(%errno, "a private directory could not be released");
        }
    }
}

/// Removes released directories until `released` ends, then the whole store.
pub fn sweep(path: &str, released: &OwnedFd) -> Result<()> {
    let store = directory(path)?;
    let mut buffer = [0; 64];
    loop {
        match read(released, &mut buffer) {
            Ok(0) => break,
            Ok(_) => remove_all(&store, "gone-")?,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    for _ in 0..TRIES {
        // Cells that are still ending may create more files.
        match remove_all(&store, "")
            .and_then(|()| unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir))
        {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    Err(Errno::ENOTEMPTY)
}
