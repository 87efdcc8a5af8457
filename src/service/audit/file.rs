//! The log file and its directory, which the front end opens before it is confined.
//!
//! Several processes may write to one log, such as a server and a `cofferdam run` next to it. Each
//! line is written under a lock on the directory, after reading what the others have added.

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

/// Number of bytes read from the end of a file; more than any line has.
const TAIL_BYTES: u64 = 256 << 10;
/// How often the lock is tried. It is only held for one write.
const LOCK_TRIES: u32 = 100;
/// Time between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Why the log cannot be used.
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

/// How a log file ends.
#[derive(Debug)]
enum LastLine {
    /// With a newline, or without any line.
    Ended,
    /// With a valid line that lacks only its newline.
    Whole,
    /// With a part of a line, which the next line records.
    Fragment(Record),
}

/// The open log.
#[derive(Debug)]
pub(super) struct LogFile {
    directory: OwnedFd,
    name: OsString,
    file: File,
    tip: Tip,
    /// Length of the file when its last line was `tip`.
    length: u64,
    max_bytes: u64,
    keep: u32,
}

impl LogFile {
    /// Opens the log; creates it and its directory if necessary.
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
        let directory = private_directory(parent)?;
        let using = |source| LogFileError::Use { path: path.clone(), source };
        let opened = append_to(directory.as_fd(), name);
        let file = opened.map_err(|errno| LogFileError::Open { path: path.clone(), errno })?;
        let metadata = file.metadata().map_err(using)?;
        // No other user may read it, and no second hard link may lead to it.
        let is_ours = metadata.uid() == nix::unistd::geteuid().as_raw();
        let is_private = metadata.mode() & 0o077 == 0 && metadata.nlink() == 1;
        if !metadata.is_file() || !is_ours || !is_private {
            return Err(LogFileError::NotAFile { path });
        }
        Ok(Self {
            directory,
            name: name.to_owned(),
            file,
            tip: Tip::start(),
            // An impossible length, so that the first append reads the file.
            length: u64::MAX,
            max_bytes: options.max_bytes,
            keep: options.keep,
        })
    }

    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Appends the records as lines, each sealed to the one before. Appends all of them or,
    /// on an error, does not change the file.
    pub(super) fn append(&mut self, records: &[Record]) -> std::io::Result<()> {
        let _lock = self.lock()?;
        let end = self.catch_up()?;
        let mut text = String::new();
        let mut tip = self.tip.clone();
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
        // A fragment and the line that records it stay in one file.
        let full = self.length.saturating_add(added) > self.max_bytes;
        match end {
            LastLine::Ended if self.length > 0 && full => self.rotate()?,
            LastLine::Ended => {}
            LastLine::Whole | LastLine::Fragment(_) => text.insert(0, '\n'),
        }
        if let Err(error) = self.file.write_all(text.as_bytes()) {
            // No partial line may stay; if truncating fails too, the next append finds a fragment.
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
        // Opens the directory again: duplicated descriptors would share one lock.
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

    /// Brings file, length and tip up to date. Returns how the last line ends.
    fn catch_up(&mut self) -> std::io::Result<LastLine> {
        let open = self.file.metadata()?;
        let named = fstatat(&self.directory, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        let same =
            named.is_ok_and(|named| named.st_ino == open.ino() && named.st_dev == open.dev());
        if same && open.len() == self.length {
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
            // The last line was tampered with: the chain continues from its text, and a verifier
            // reports that line.
            None => Tip { seq: 0, hash: chain::sha256(whole) },
        };
        if fragment.is_empty() {
            return Ok(LastLine::Ended);
        }
        // A crash may have lost only the newline: the line is valid and is kept.
        if let Ok(line) = chain::check(fragment) {
            self.tip = line.tip();
            return Ok(LastLine::Whole);
        }
        let bytes = fragment.len();
        let sha256 = chain::sha256(fragment);
        Ok(LastLine::Fragment(Record::Fragment { bytes, sha256 }))
    }

    /// Returns the tip of the newest rotated file, which the first line of a new file continues.
    fn rotated_tip(&self) -> Tip {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let opened =
            openat(&self.directory, numbered(&self.name, 1).as_os_str(), flags, Mode::empty());
        let Ok(mut file) = opened.map(File::from) else { return Tip::start() };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let end = tail(&mut file, length).unwrap_or_default();
        last_line(&end).unwrap_or_else(Tip::start)
    }

    /// Renames `audit.jsonl` to `audit.jsonl.1`, that to `.2`, and so on; removes the oldest.
    fn rotate(&mut self) -> std::io::Result<()> {
        self.file.sync_data()?;
        let absent = |done: Result<(), Errno>| match done {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(std::io::Error::from(errno)),
        };
        let oldest = numbered(&self.name, self.keep);
        absent(unlinkat(&self.directory, oldest.as_os_str(), UnlinkatFlags::NoRemoveDir))?;
        for number in (0..self.keep).rev() {
            let from = numbered(&self.name, number);
            let to = numbered(&self.name, number + 1);
            absent(renameat(&self.directory, from.as_os_str(), &self.directory, to.as_os_str()))?;
        }
        self.file = append_to(self.directory.as_fd(), &self.name)?;
        self.length = 0;
        Ok(())
    }
}

/// Returns the name of the log file (0) or of a rotated file.
pub(super) fn numbered(name: &OsString, number: u32) -> OsString {
    let mut name = name.clone();
    if number > 0 {
        name.push(format!(".{number}"));
    }
    name
}

/// Opens a directory that belongs to this user and that no other user can access: Landlock lets the
/// front end write in it, so it should hold nothing else, and no other user may replace a file.
fn private_directory(path: &Path) -> Result<OwnedFd, LogFileError> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let opening = |errno| LogFileError::Open { path: path.to_owned(), errno };
    let directory = open(path, flags, Mode::empty()).map_err(opening)?;
    let status = nix::sys::stat::fstat(&directory).map_err(opening)?;
    if status.st_uid != nix::unistd::geteuid().as_raw() || status.st_mode & 0o077 != 0 {
        return Err(LogFileError::Shared { path: path.to_owned() });
    }
    Ok(directory)
}

fn append_to(directory: BorrowedFd<'_>, name: &std::ffi::OsStr) -> nix::Result<File> {
    // O_NONBLOCK because of FIFOs; O_RDWR because the chain's last line is read.
    let flags = OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NOFOLLOW;
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    openat(directory, name, flags, Mode::S_IRUSR | Mode::S_IWUSR).map(File::from)
}

fn tail(file: &mut File, length: u64) -> std::io::Result<Vec<u8>> {
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    file.take(TAIL_BYTES).read_to_end(&mut end)?;
    Ok(end)
}

/// Returns the tip after the last complete line, if that line is valid.
fn last_line(text: &[u8]) -> Option<Tip> {
    let text = text.strip_suffix(b"\n")?;
    let line = text.rsplit(|byte| *byte == b'\n').next()?;
    chain::check(line).ok().map(|checked| checked.tip())
}
