//! Processes on their way out, as procfs shows them.

use std::os::fd::{AsFd, OwnedFd};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

use super::measure::{Fields, read_lossy};
use sys::Result;

/// Returns whether every thread of the process at this path of a procfs is on its way out, or is sent there: the kernel
/// keeps no signal for a process that ends by itself.
///
/// # Errors
/// The process cannot be looked at.
pub fn is_dying(proc: &OwnedFd, process: &str) -> Result<bool> {
    for task in numbers(proc, &format!("{process}/task"))? {
        let path = format!("{process}/task/{task}");
        let looked = read_lossy(proc.as_fd(), &format!("{path}/stat")).and_then(|stat| {
            if is_exiting(&stat) {
                return Ok(true);
            }
            has_kill(Fields::read(proc.as_fd(), &format!("{path}/status"))?.get("SigPnd"))
        });
        match looked {
            Ok(true) | Err(Errno::ENOENT | Errno::ESRCH) => {}
            Ok(false) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// Returns whether SIGKILL is in a set of signals as proc_pid_status(5) writes it.
///
/// # Errors
/// EPROTO: it is no such set.
pub fn has_kill(set: &str) -> Result<bool> {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    u64::from_str_radix(set, 16).map(|set| set & KILL != 0).map_err(|_| Errno::EPROTO)
}

/// Returns whether a thread runs no code of its program any more, by the flags in its line (proc_pid_stat(5)).
fn is_exiting(stat: &str) -> bool {
    /// PF_EXITING of the kernel's sched.h.
    const EXITING: u64 = 4;
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6));
    flags.and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & EXITING != 0)
}

/// Returns the entries of a directory of procfs that are numbers; none where it is gone.
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
    fn what_the_kernel_tells_of_a_thread_is_read() {
        let stat = |flags: &str| format!("7 (a) b) (c) D 2 7 7 0 -1 {flags} 109 0 0");
        assert!(is_exiting(&stat("4194308")) && !is_exiting(&stat("4194304")) && !is_exiting(""));
        assert_eq!(has_kill("0000000000000100"), Ok(true));
        assert_eq!(has_kill("0000000000000200"), Ok(false));
        assert_eq!(has_kill(""), Err(Errno::EPROTO));
    }
}
