//! Private directories of cells on the host: made before a cell, let go after it, swept by a process
//! that does nothing else.
//!
//! What a cell has written is opened by nobody: a directory that was let go is moved aside by its
//! name, and the sweeper removes what is in it beneath a held descriptor, following no link.

use std::cell::Cell as Counter;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, read, unlinkat, write};

use crate::payload;
use crate::removal::remove_all;
use sys::Result;

/// Contents of each private directory, in the order in which they are made.
const PARTS: [&str; 3] = ["workspace", "tmp", "tmp/home"];
/// Tries of the sweeper to remove what processes that end just now still write to.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// The directory that the private ones are in.
#[derive(Debug)]
pub struct Store {
    directory: OwnedFd,
    /// As the host has it.
    path: String,
    next: Counter<u64>,
    /// Each byte tells the sweeper that something was let go; its end, that all may go.
    sweeper: OwnedFd,
}

/// One cell's directory; let go when this is dropped.
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
    /// Takes an empty directory of this process's user, and puts the canary in it.
    ///
    /// # Errors
    /// The errno of making files in it.
    pub fn new(path: String, sweeper: OwnedFd) -> Result<Self> {
        let directory = directory(&path)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let canary = openat(&directory, payload::CANARY, flags, Mode::S_IRUSR)?;
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
    /// Opens it, for a rule.
    ///
    /// # Errors
    /// The errno of open(2).
    pub fn open(&self) -> Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        openat(&self.store.directory, self.name.as_str(), flags, Mode::empty())
    }

    /// Returns the host's path of a cell's `path`, which for the cell's own directories lies in the private
    /// one.
    pub fn place(&self, path: &str) -> String {
        let own = ["/workspace", "/tmp"].into_iter().find(|own| {
            path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
        match own {
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
            // The sweeper removes it with all else at the end.
            tracing::debug!(%errno, "a private directory could not be let go");
        }
    }
}

/// Removes what is let go, until `news` ends; then everything, the directory itself included.
pub fn sweep(path: &str, news: &OwnedFd) -> Result<()> {
    let store = directory(path)?;
    let mut buffer = [0; 64];
    loop {
        match read(news, &mut buffer) {
            Ok(0) => break,
            Ok(_) => remove_all(&store, "gone-")?,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    for _ in 0..TRIES {
        // Cells that end just now may still make something.
        match remove_all(&store, "")
            .and_then(|()| unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir))
        {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    Err(Errno::ENOTEMPTY)
}
