//! The lock of a layer: held by a start as long as its cells live, and by a review that changes it.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::signal::kill;
use nix::sys::stat::{Mode, fstat};
use nix::unistd::Pid;

use super::files::{c_name, look, read_file};
use cell::errno_of;

/// Name in the directory of a layer, and the greatest length of what is in it.
pub(super) const LOCK: &str = "lock";
const MAX_PID_BYTES: u64 = 64;
/// Time for the cells of a process that has ended, and between two attempts to lock their layer.
const MAX_END: Duration = Duration::from_secs(5);
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// Locks a layer; `None` if a start or another review uses it. Waits for the cells of a process that
/// has ended: they hold the lock until the kernel has removed them.
///
/// # Errors
/// ENOENT or ESTALE: the layer was removed meanwhile.
pub(super) fn lock(directory: &OwnedFd) -> Result<Option<Flock<File>>, Errno> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(directory, LOCK, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    let end = Instant::now() + MAX_END;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                let named = look(directory, &c_name(LOCK.as_bytes())?)?;
                if !named
                    .is_some_and(|named| fstat(&*lock).is_ok_and(|it| it.st_ino == named.inode))
                {
                    return Err(Errno::ESTALE);
                }
                let pid = std::process::id().to_string();
                let stored = lock.set_len(0).and_then(|()| lock.write_all(pid.as_bytes()));
                stored.map_err(|error| errno_of(&error))?;
                return Ok(Some(lock));
            }
            Err((held, Errno::EWOULDBLOCK)) if Instant::now() < end => file = held,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, errno)) => return Err(errno),
        }
        let holder = read_file(directory, LOCK, MAX_PID_BYTES)?;
        let holder = String::from_utf8_lossy(&holder).parse().ok().map(Pid::from_raw);
        if holder.is_none_or(|pid| kill(pid, None) != Err(Errno::ESRCH)) {
            return Ok(None);
        }
        std::thread::sleep(LOCK_INTERVAL);
    }
}
