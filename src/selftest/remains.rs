//! Finds and removes the leftovers of an attack on the host.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SIGKILL, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::traces::{children, with_argument};
use model::profile::calls;

/// Time for a process to exit after its call has ended.
const LINGER: Duration = Duration::from_secs(2);
/// Maximum time for killed processes to end.
const MAX_KILL_TIME: Duration = Duration::from_secs(10);

/// Names of an attack's objects on the host.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// The key of System V objects.
    pub key: &'a str,
    /// The name of POSIX objects: a file in `/dev/shm`, a message queue.
    pub shared: &'a str,
}

/// Removes System V and POSIX objects with these names from the host. Returns true if there were
/// any.
pub fn objects(helper: &Path, names: Names<'_>) -> bool {
    let mut left = false;
    for (kind, control) in [("shm", "shmctl"), ("msg", "msgctl"), ("sem", "semctl")] {
        let table = std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        for row in rows.filter(|row| row.first() == Some(&names.key)) {
            left = true;
            // IPC_RMID is 0. An object counts even if it cannot be removed.
            call_through_helper(
                helper,
                control,
                &[row.get(1).copied().unwrap_or_default(), "0", "0"],
            );
        }
    }
    let path = Path::new("/dev/shm").join(names.shared);
    left |= path.exists() && std::fs::remove_file(path).is_ok();
    left | (call_through_helper(helper, "mq_unlink", &[&format!("s:{}", names.shared)]) == "0")
}

/// Makes a call through the helper. Returns the printed result, or an empty text if it cannot be
/// started.
fn call_through_helper(helper: &Path, call: &str, arguments: &[&str]) -> String {
    let number = calls::number(call).map(|number| number.to_string()).unwrap_or_default();
    let mut command = Command::new(helper);
    command.args(["call", &number]).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

/// Ends the processes with this argument that still run after a while. Returns true if there were
/// any.
pub fn outlived(marker: &str) -> bool {
    let end = Instant::now() + LINGER;
    let mut left = with_argument(marker);
    while !left.is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        left = with_argument(marker);
    }
    for pid in &left {
        // Fails if it has ended by itself meanwhile.
        kill(Pid::from_raw(*pid), SIGKILL).unwrap_or_default();
    }
    !left.is_empty()
}

/// Kills the remaining processes of a group, and reaps those that have become our children.
pub(crate) fn end_group(group: i32) {
    // Fails if the group has no processes.
    killpg(Pid::from_raw(group), SIGKILL).unwrap_or_default();
    while reap_one(Pid::from_raw(group.saturating_neg())) {}
}

fn reap_one(target: Pid) -> bool {
    match waitpid(target, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) => false,
        Ok(_) | Err(Errno::EINTR) => true,
        Err(_) => false,
    }
}

/// Makes orphans of attacks children of this process, so that [`end_all`] finds them.
///
/// # Errors
/// The kernel's errno.
pub fn adopt() -> nix::Result<()> {
    nix::sys::prctl::set_child_subreaper(true)
}

/// Kills all remaining children, in any session. Returns the number of those that did not end.
pub fn end_all() -> usize {
    let end = Instant::now() + MAX_KILL_TIME;
    loop {
        let left = children(std::process::id());
        if left.is_empty() || Instant::now() > end {
            return left.len();
        }
        for pid in left {
            // Fails for another user's process, started by a set-uid sandbox: it ends with the
            // killed ones, or is counted.
            kill(Pid::from_raw(pid), SIGKILL).unwrap_or_default();
        }
        while reap_one(Pid::from_raw(-1)) {}
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Removes a directory of any depth: rm(1) needs no descriptor per level.
///
/// # Errors
/// A file cannot be removed.
pub(crate) fn remove_tree(directory: &Path) -> std::io::Result<()> {
    let mut command = Command::new("rm");
    command.args(["-rf", "--"]).arg(directory).stdin(Stdio::null());
    let output = command.output()?;
    if output.status.success() && !directory.exists() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    let reason = reason.lines().next().unwrap_or("it is still there");
    Err(std::io::Error::other(format!("{} is left: {reason}", directory.display())))
}
