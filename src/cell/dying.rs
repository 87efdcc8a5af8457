//! Detects processes that are exiting or have been killed, through procfs.

use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::proc_files::{Fields, numbers, read_lossy};
use sys::Result;

/// Returns true if every thread of the process at this procfs path is exiting or has a SIGKILL
/// pending. Both are checked, as a process that exits by itself has no pending signal.
///
/// # Errors
/// The process cannot be read.
pub fn is_dying(proc: &OwnedFd, process: &str) -> Result<bool> {
    for task in numbers::<i32>(proc, &format!("{process}/task"))? {
        let path = format!("{process}/task/{task}");
        let is_task_dying = read_lossy(proc, &format!("{path}/stat")).and_then(|stat| {
            if is_exiting(&stat) {
                return Ok(true);
            }
            has_kill(Fields::read(proc, &format!("{path}/status"))?.get("SigPnd"))
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
