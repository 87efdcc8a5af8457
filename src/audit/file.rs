//! The log file: a directory that the front end opens before its confinement, and a file in it.
//!
//! Several processes may write to one log, such as a server and a `cofferdam run` beside it. Each
//! line is written under a lock on the directory, after a look at what the others have added.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::Options;
use super::chain::{self, Tip};
use super::record::Record;
use model::clock;
use model::outcome::in_words;

/// More than any line has; so much of a file's end holds its last line.
const TAIL: u64 = 256 << 10;
/// How long the lock is waited for, as often as this. It is held for one write.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogFileError {
    #[error("`{path}` cannot be made: {}", in_words(.source), path = .path.display())]
    Make { path: PathBuf, source: std::io::Error },
    #[error("`{path}` cannot be opened: {errno}", path = .path.display())]
    Open { path: PathBuf, errno: Errno },
    #[error(
        "others can use the directory `{path}`\nhint: give the log a directory of its own with mode 0700 that \
         belongs to who starts cofferdam", path = .path.display()
    )]
    Shared { path: PathBuf },
    #[error("`{path}` is not a regular file of its user's", path = .path.display())]
    NotAFile { path: PathBuf },
    #[error("`{path}` cannot be used: {}", in_words(.source), path = .path.display())]
    Use { path: PathBuf, source: std::io::Error },
}

/// How a file of the log ends.
#[derive(Debug)]
enum LastLine {
    /// With a newline, or there is no line.
    Ended,
    /// With a line that is in order but for its newline.
    Whole,
    /// With a piece of a line, which the next one vouches for.
    Fragment(Record),
}

/// The log, open.
#[derive(Debug)]
pub(super) struct LogFile {
    directory: OwnedFd,
    name: OsString,
    file: File,
    tip: Tip,
    /// Length of the file when `tip` was its last line.
    length: u64,
    max_bytes: u64,
    keep: u32,
}

impl LogFile {
    /// Opens the log, and makes it and its directory where they are not there.
    pub(super) fn open(options: &Options) -> Result<Self, LogFileError> {
        let path = options.file.clone();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(LogFileError::NotAFile { path });
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(|source| LogFileError::Make { path: parent.to_owned(), source })?;
        let directory = own_directory(parent)?;
        let using = |source| LogFileError::Use { path: path.clone(), source };
        let opened = append_to(directory.as_fd(), name);
        let file = opened.map_err(|errno| LogFileError::Open { path: path.clone(), errno })?;
        let metadata = file.metadata().map_err(using)?;
        // Nobody else may read it, and it has no second name by which it could be changed.
        let own = metadata.uid() == nix::unistd::geteuid().as_raw();
        let private = metadata.mode() & 0o077 == 0 && metadata.nlink() == 1;
        if !metadata.is_file() || !own || !private {
            return Err(LogFileError::NotAFile { path });
        }
        let (max_bytes, keep) = (options.max_bytes, options.keep);
        let name = name.to_owned();
        // An impossible length: the first line looks at what is there.
        Ok(Self { directory, name, file, tip: Tip::start(), length: u64::MAX, max_bytes, keep })
    }

    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Appends the records as lines, each sealed to the one before. None of them is there afterwards
    /// when one cannot be written.
    pub(super) fn append(&mut self, records: &[Record]) -> std::io::Result<()> {
        let _lock = self.lock()?;
        let end = self.catch_up()?;
        let (mut text, mut tip) = (String::new(), self.tip.clone());
        let mut seal = |record: &Record| -> std::io::Result<()> {
            let (line, next) = chain::seal(&tip, &clock::now(), record)?;
            text.push_str(&line);
            tip = next;
            Ok(())
        };
        if let LastLine::Fragment(fragment) = &end {
            seal(fragment)?;
        }
        records.iter().try_for_each(&mut seal)?;
        let added = u64::try_from(text.len()).unwrap_or(u64::MAX);
        // A fragment and the text that ends it stay in one file.
        let full = self.length.saturating_add(added) > self.max_bytes;
        match end {
            LastLine::Ended if self.length > 0 && full => self.rotate()?,
            LastLine::Ended => {}
            LastLine::Whole | LastLine::Fragment(_) => text.insert(0, '\n'),
        }
        if let Err(error) = self.file.write_all(text.as_bytes()) {
            // Half a line must not stay; where even this fails, the next look finds a fragment.
            if self.file.set_len(self.length).is_err() {
                self.length = u64::MAX;
            }
            return Err(error);
        }
        self.length += u64::try_from(text.len()).unwrap_or(u64::MAX);
        self.tip = tip;
        Ok(())
    }

    fn lock(&self) -> std::io::Result<Flock<OwnedFd>> {
        // A description of its own: locks of dup'ed descriptors are one lock.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut directory = openat(&self.directory, ".", flags, Mode::empty())?;
        for _ in 0..LOCK_TRIES {
            match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((back, Errno::EWOULDBLOCK)) => directory = back,
                Err((_, errno)) => return Err(errno.into()),
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Err(std::io::Error::other("another process holds the lock of the log"))
    }

    /// Sees to it that file, length and tip are those of now. Tells how the last line ends.
    fn catch_up(&mut self) -> std::io::Result<LastLine> {
        let own = self.file.metadata()?;
        let named = fstatat(&self.directory, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        let same = named.is_ok_and(|named| named.st_ino == own.ino() && named.st_dev == own.dev());
        if same && own.len() == self.length {
            return Ok(LastLine::Ended);
        }
        if !same {
            self.file = append_to(self.directory.as_fd(), &self.name)?;
        }
        self.length = self.file.metadata()?.len();
        let end = tail(&mut self.file, self.length)?;
        let (whole, fragment) = match end.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => end.split_at(at + 1),
            None => end.split_at(0),
        };
        self.tip = match last_line(whole) {
            Some(tip) => tip,
            None if self.length == 0 || whole.is_empty() => self.rotated_tip(),
            // A last line that was tampered with: the chain goes on from its own text, and
            // whoever verifies it is told of that line.
            None => Tip { seq: 0, hash: chain::sha256(whole) },
        };
        if fragment.is_empty() {
            return Ok(LastLine::Ended);
        }
        // A crash may have taken the newline alone: the line itself is in order and stays one.
        if let Ok(line) = chain::check(fragment) {
            self.tip = line.tip();
            return Ok(LastLine::Whole);
        }
        let (bytes, sha256) = (fragment.len(), chain::sha256(fragment));
        Ok(LastLine::Fragment(Record::Fragment { bytes, sha256 }))
    }

    /// Returns the last line of the newest rotated file, which the first line of a new one continues.
    fn rotated_tip(&self) -> Tip {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let opened =
            openat(&self.directory, numbered(&self.name, 1).as_os_str(), flags, Mode::empty());
        let Ok(mut file) = opened.map(File::from) else { return Tip::start() };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let end = tail(&mut file, length).unwrap_or_default();
        last_line(&end).unwrap_or_else(Tip::start)
    }

    /// Renames `audit.jsonl` to `audit.jsonl.1`, that to `.2`, and removes the oldest.
    fn rotate(&mut self) -> std::io::Result<()> {
        self.file.sync_data()?;
        let absent = |done: Result<(), Errno>| match done {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(std::io::Error::from(errno)),
        };
        let oldest = numbered(&self.name, self.keep);
        absent(unlinkat(&self.directory, oldest.as_os_str(), UnlinkatFlags::NoRemoveDir))?;
        for number in (0..self.keep).rev() {
            let (from, to) = (numbered(&self.name, number), numbered(&self.name, number + 1));
            absent(renameat(&self.directory, from.as_os_str(), &self.directory, to.as_os_str()))?;
        }
        self.file = append_to(self.directory.as_fd(), &self.name)?;
        self.length = 0;
        Ok(())
    }
}

/// Returns the name of a file of the log: itself, or a rotated one.
pub(super) fn numbered(name: &OsString, number: u32) -> OsString {
    let mut name = name.clone();
    if number > 0 {
        name.push(format!(".{number}"));
    }
    name
}

/// Makes or opens a directory that belongs to this user and that no other user can use: Landlock lets the front
/// end write in it, so nothing else should be there, and nobody else may exchange a file.
fn own_directory(path: &Path) -> Result<OwnedFd, LogFileError> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let told = |errno| LogFileError::Open { path: path.to_owned(), errno };
    let directory = open(path, flags, Mode::empty()).map_err(told)?;
    let status = nix::sys::stat::fstat(&directory).map_err(told)?;
    if status.st_uid != nix::unistd::geteuid().as_raw() || status.st_mode & 0o077 != 0 {
        return Err(LogFileError::Shared { path: path.to_owned() });
    }
    Ok(directory)
}

fn append_to(directory: BorrowedFd<'_>, name: &std::ffi::OsStr) -> nix::Result<File> {
    // Not blocked by a FIFO of that name, and read for the chain's last line.
    let flags = OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NOFOLLOW;
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from)
}

fn tail(file: &mut File, length: u64) -> std::io::Result<Vec<u8>> {
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    file.take(TAIL).read_to_end(&mut end)?;
    Ok(end)
}

/// Returns the tip that the last whole line makes, if it is one of ours.
fn last_line(text: &[u8]) -> Option<Tip> {
    let text = text.strip_suffix(b"\n")?;
    let line = text.rsplit(|byte| *byte == b'\n').next()?;
    chain::check(line).ok().map(|checked| checked.tip())
}
