//! Asks a filesystem that may not answer, in a process of which only the end is awaited.
//!
//! The kernel cannot interrupt every request to a filesystem. A process that was killed within one
//! stays until it is answered, so it holds no descriptor of its parent: no lock, and no output for
//! whose end someone waits.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::{getpid, getppid, pipe2, read, write};

use cell::sealed::close_others;
use sys::fork::fork;
use sys::lookup::{self, Follow};
use sys::process::{self, Child, Side};

/// Maximum time for an answer. A server on another continent needs half of it.
const MAX_TIME: Duration = Duration::from_millis(500);
/// Maximum time for the end of a process that was killed.
const MAX_END_TIME: Duration = Duration::from_millis(100);

/// A path without links, and the directory at which it starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'p> {
    pub directory: BorrowedFd<'p>,
    pub path: &'p CStr,
    pub follow: Follow,
}

/// A regular file that was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReadFile {
    pub owner: u32,
    pub bytes: Vec<u8>,
}

impl Place<'_> {
    fn open(&self, flags: i32) -> Result<OwnedFd, Errno> {
        let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        lookup::open(self.directory, self.path, flags, 0, self.follow)
    }
}

/// Looks up an absolute path, whether or not something is there.
///
/// # Errors
/// ETIMEDOUT: there is no answer. Otherwise the process could not be made.
pub(crate) fn look_up(path: &CStr) -> Result<(), Errno> {
    let place = Place { directory: AT_FDCWD, path, follow: Follow::Nothing };
    let until = Instant::now() + MAX_TIME;
    let child = start(&[], || {
        // An open can be answered from memory, and only the status by the server.
        place.open(libc::O_PATH).and_then(|opened| fstat(&opened)).map(drop)
    })?;
    let answer = readable(child.pidfd.as_fd(), until);
    end(&child)?;
    answer
}

/// Reads at most the first `limit` bytes of a regular file.
///
/// # Errors
/// ETIMEDOUT: there is no answer. EINVAL: it is not a regular file. Otherwise that of reading it.
pub(crate) fn read_file(place: Place<'_>, limit: usize) -> Result<ReadFile, Errno> {
    let until = Instant::now() + MAX_TIME;
    let (from, to) = pipe2(OFlag::O_CLOEXEC)?;
    // Allocated before the fork. Its pages are used only as far as there is something to read.
    let mut room = vec![0; limit];
    let mut kept = [place.directory.as_raw_fd(), to.as_raw_fd()];
    kept.sort_unstable();
    // AT_FDCWD is negative.
    let kept: Vec<u32> = kept.iter().filter_map(|number| u32::try_from(*number).ok()).collect();
    let child = start(&kept, || {
        let (owner, length, errno) = match filled(place, &mut room) {
            Ok((status, length)) => (status.st_uid, length, 0),
            Err(errno) => (0, 0, sys::raw(errno)),
        };
        let [a, b, c, d] = owner.to_le_bytes();
        let [e, f, g, h] = errno.to_le_bytes();
        put(&to, &[a, b, c, d, e, f, g, h])?;
        put(&to, room.get(..length).unwrap_or_default())
    })?;
    drop(to);
    let answer = received(&from, limit, until);
    end(&child)?;
    answer
}

/// Fills `room` from the beginning of a file; returns its status and the number of bytes.
fn filled(place: Place<'_>, room: &mut [u8]) -> Result<(FileStat, usize), Errno> {
    let is_file = |status: &FileStat| status.st_mode & libc::S_IFMT == libc::S_IFREG;
    // A device or a FIFO must not be opened for reading.
    if !is_file(&fstat(place.open(libc::O_PATH)?)?) {
        return Err(Errno::EINVAL);
    }
    let file = place.open(libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)?;
    let status = fstat(&file)?;
    if !is_file(&status) {
        return Err(Errno::EINVAL);
    }
    let mut length = 0;
    while let Some(rest) = room.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match read(&file, rest)? {
            0 => break,
            more => length += more,
        }
    }
    Ok((status, length))
}

fn put(to: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = write(to, bytes)?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Returns what the process wrote until its end.
fn received(from: &OwnedFd, limit: usize, until: Instant) -> Result<ReadFile, Errno> {
    let mut head = [0; 8];
    let mut length = 0;
    while let Some(rest) = head.get_mut(length..).filter(|rest| !rest.is_empty()) {
        readable(from.as_fd(), until)?;
        match read(from, rest)? {
            0 => return Err(Errno::EIO),
            more => length += more,
        }
    }
    let [a, b, c, d, e, f, g, h] = head;
    match i32::from_le_bytes([e, f, g, h]) {
        0 => {}
        errno => return Err(Errno::from_raw(errno)),
    }
    let mut bytes = vec![0; limit];
    let mut length = 0;
    while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
        readable(from.as_fd(), until)?;
        match read(from, rest)? {
            0 => break,
            more => length += more,
        }
    }
    bytes.truncate(length);
    Ok(ReadFile { owner: u32::from_le_bytes([a, b, c, d]), bytes })
}

/// Makes a process that has only the descriptors `kept`, which are sorted, and calls `ask`. It must
/// not allocate: the caller may have other threads.
fn start(kept: &[u32], ask: impl FnOnce() -> Result<(), Errno>) -> Result<Child, Errno> {
    let parent = getpid();
    match fork()? {
        Side::Child => {
            // The parent kills one that takes too long, unless it is killed itself.
            let tied = process::set_death_signal(Signal::SIGKILL);
            if tied.is_err() || getppid() != parent || close_others(kept).is_err() {
                process::exit_now(1);
            }
            process::exit_now(i32::from(ask().is_err()))
        }
        Side::Parent(child) => Ok(child),
    }
}

/// Waits until there is something to read, or a process has ended.
fn readable(fd: BorrowedFd<'_>, until: Instant) -> Result<(), Errno> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).map_err(|_| Errno::EINVAL)?;
        match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], left) {
            Ok(0) => return Err(Errno::ETIMEDOUT),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Kills a process unless it has ended, and reaps it. One that the kernel cannot interrupt stays until
/// the filesystem answers.
fn end(child: &Child) -> Result<(), Errno> {
    process::signal(&child.pidfd, Signal::SIGKILL)?;
    match readable(child.pidfd.as_fd(), Instant::now() + MAX_END_TIME) {
        Ok(()) => process::wait(&child.pidfd),
        Err(Errno::ETIMEDOUT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cell::c_path;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    #[test]
    fn a_file_is_read_up_to_the_limit_with_its_owner() -> Outcome {
        let root = tempfile::tempdir()?;
        // More than a pipe has room for.
        let text = vec![b'x'; 200_000];
        std::fs::write(root.path().join("file"), &text)?;
        let path = c_path(&root.path().canonicalize()?.join("file"))?;
        let place = Place { directory: AT_FDCWD, path: &path, follow: Follow::Nothing };
        let owner = nix::unistd::geteuid().as_raw();
        for limit in [200_001, 200_000, 1, 0] {
            let bytes = text.get(..limit).unwrap_or(&text).to_vec();
            assert_eq!(read_file(place, limit), Ok(ReadFile { owner, bytes }), "{limit}");
        }
        let directory = std::fs::File::open(root.path())?;
        let below = Place { directory: directory.as_fd(), path: c"file", follow: Follow::Below };
        assert_eq!(read_file(below, 1), Ok(ReadFile { owner, bytes: b"x".to_vec() }));
        for (name, errno) in [(c"none", Errno::ENOENT), (c".", Errno::EINVAL)] {
            assert_eq!(read_file(Place { path: name, ..below }, 1), Err(errno));
        }
        Ok(())
    }

    #[test]
    fn a_process_without_an_answer_is_not_awaited_and_holds_no_descriptor() -> Outcome {
        let (watched, held) = pipe2(OFlag::O_CLOEXEC)?;
        let (from, to) = pipe2(OFlag::O_CLOEXEC)?;
        let kept = u32::try_from(to.as_raw_fd())?;
        let child = start(&[kept], || {
            loop {
                nix::unistd::pause();
            }
        })?;
        drop((to, held));
        // Its end would be seen here if the process had the descriptor.
        readable(watched.as_fd(), Instant::now() + MAX_TIME)?;
        let until = Instant::now() + Duration::from_millis(1);
        assert_eq!(received(&from, 1, until), Err(Errno::ETIMEDOUT));
        end(&child)?;
        assert_eq!(received(&from, 1, Instant::now() + MAX_TIME), Err(Errno::EIO));
        Ok(())
    }
}
