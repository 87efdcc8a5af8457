//! Detects processes that are exiting or have been killed, through procfs.

use std::os::fd::{AsFd, OwnedFd};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::measure::{Fields, read_lossy};
use sys::Result;

/// Returns true if every thread of the process at this procfs path is exiting or has a SIGKILL
/// pending. Both are checked, as a process that exits by itself has no pending signal.
///
/// # Errors
/// The process cannot be read.
pub fn is_dying(proc: &OwnedFd, process: &str) -> Result<bool> {
    for task in numbers(proc, &format!("{process}/task"))? {
        let path = format!("{process}/task/{task}");
        let is_task_dying = read_lossy(proc.as_fd(), &format!("{path}/stat")).and_then(|stat| {
            if is_exiting(&stat) {
                return Ok(true);
            }
            has_kill(Fields::read(proc.as_fd(), &format!("{path}/status"))?.get("SigPnd"))
        });
        match is_task_dying {
            Ok(true) | Err(Errno::ENOENT | Errno::ESRCH) => {}
            Ok(false) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// Returns true if a signal set contains SIGKILL. The set is hexadecimal, as in proc_pid_status(5).
///
/// # Errors
/// EPROTO: the text is not such a set.
pub fn has_kill(set: &str) -> Result<bool> {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    u64::from_str_radix(set, 16).map(|set| set & KILL != 0).map_err(|_| Errno::EPROTO)
}

/// Returns true if a thread has begun to exit, according to the flags in its `stat` line
/// (proc_pid_stat(5)).
fn is_exiting(stat: &str) -> bool {
    /// PF_EXITING of the kernel's sched.h.
    const EXITING: u64 = 4;
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6));
    flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & EXITING != 0)
}

/// Returns the numeric entries of a procfs directory; an empty list if the directory is gone.
///
/// # Errors
/// The directory cannot be read.
pub fn numbers(proc: &OwnedFd, path: &str) -> Result<Vec<i32>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let list = match Dir::openat(proc, path, flags, Mode::empty()) {
        Ok(list) => list,
        Err(Errno::ENOENT | Errno::ESRCH) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    };
    let mut numbers = Vec::new();
    for entry in list {
        match entry {
            Ok(entry) => {
                numbers.extend(entry.file_name().to_str().ok().and_then(|n| n.parse::<i32>().ok()))
            }
            Err(Errno::ENOENT | Errno::ESRCH) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exiting_and_killed_threads_are_recognised() {
        let stat = |flags: &str| format!("7 (a) b) (c) D 2 7 7 0 -1 {flags} 109 0 0");
        assert!(is_exiting(&stat("4194308")) && !is_exiting(&stat("4194304")) && !is_exiting(""));
        assert_eq!(has_kill("0000000000000100"), Ok(true));
        assert_eq!(has_kill("0000000000000200"), Ok(false));
        assert_eq!(has_kill(""), Err(Errno::EPROTO));
    }
}
