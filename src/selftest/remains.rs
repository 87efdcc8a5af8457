//! Finds the remains of an attack on the host, and removes them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SIGKILL, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::traces::{children, with_argument};
use model::profile::calls;

/// How long a process may take to go after its call has ended.
const LINGER: Duration = Duration::from_secs(2);
/// How long what was killed may take to be gone.
const SWEPT: Duration = Duration::from_secs(10);

/// Names of an attack's objects on the host.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    /// The key of System V objects.
    pub key: &'a str,
    /// The name of POSIX ones: a file of `/dev/shm`, a message queue.
    pub shared: &'a str,
}

/// Returns true if System V or POSIX objects of these names are on the host, and removes them.
pub fn objects(helper: &Path, names: Names<'_>) -> bool {
    let mut left = false;
    for (kind, control) in [("shm", "shmctl"), ("msg", "msgctl"), ("sem", "semctl")] {
        let table = std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        for row in rows.filter(|row| row.first() == Some(&names.key)) {
            left = true;
            // IPC_RMID is 0. An object that cannot be removed was seen all the same.
            asked(helper, control, &[row.get(1).copied().unwrap_or_default(), "0", "0"]);
        }
    }
    let path = Path::new("/dev/shm").join(names.shared);
    left |= path.exists() && std::fs::remove_file(path).is_ok();
    left | (asked(helper, "mq_unlink", &[&format!("s:{}", names.shared)]) == "0")
}

/// Returns the answer to a call that the helper makes, and an empty text if it cannot be started.
fn asked(helper: &Path, call: &str, arguments: &[&str]) -> String {
    let number = calls::number(call).map(|number| number.to_string()).unwrap_or_default();
    let mut command = Command::new(helper);
    command.args(["call", &number]).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

/// Returns true if a process with this argument still runs after a while, and ends it.
pub fn outlived(marker: &str) -> bool {
    let end = Instant::now() + LINGER;
    let mut left = with_argument(marker);
    while !left.is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        left = with_argument(marker);
    }
    for pid in &left {
        // It may have ended by itself just now.
        kill(Pid::from_raw(*pid), SIGKILL).unwrap_or_default();
    }
    !left.is_empty()
}

/// Ends what is left of a process group and reaps what of it has become ours.
pub(crate) fn end_group(group: i32) {
    // Nothing is left where that fails.
    killpg(Pid::from_raw(group), SIGKILL).unwrap_or_default();
    while reaped(Pid::from_raw(group.saturating_neg())) {}
}

fn reaped(whom: Pid) -> bool {
    match waitpid(whom, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::StillAlive) => false,
        Ok(_) | Err(Errno::EINTR) => true,
        Err(_) => false,
    }
}

/// Makes orphans of attacks ours, so that [`end_all`] finds them.
///
/// # Errors
/// The kernel's.
pub fn adopt() -> nix::Result<()> {
    nix::sys::prctl::set_child_subreaper(true)
}

/// Ends every process that is left, of whatever session, and returns how many could not be.
pub fn end_all() -> usize {
    let end = Instant::now() + SWEPT;
    loop {
        let left = children(std::process::id());
        if left.is_empty() || Instant::now() > end {
            return left.len();
        }
        for pid in left {
            // Another user's, of a set-id sandbox, ends with what was killed or is counted.
            kill(Pid::from_raw(pid), SIGKILL).unwrap_or_default();
        }
        while reaped(Pid::from_raw(-1)) {}
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes a directory away, as deep as it may be: rm(1) goes down without a descriptor for each step.
///
/// # Errors
/// An object could not be removed.
pub(crate) fn take_away(directory: &Path) -> std::io::Result<()> {
    let mut command = Command::new("rm");
    command.args(["-rf", "--"]).arg(directory).stdin(Stdio::null());
    let output = command.output()?;
    if output.status.success() && !directory.exists() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let why = why.lines().next().unwrap_or("it is still there");
    Err(std::io::Error::other(format!("{} is left: {why}", directory.display())))
}
