//! Observes effects of an attack from outside: hurt processes, files, running processes.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// How long to wait for a signal to take effect on the sentinel.
const MAX_SIGNAL_DELAY: Duration = Duration::from_millis(400);

/// Returns true if the sentinel is hurt. Waits for a while, as a signal may take effect late on a
/// busy machine.
pub(crate) fn gets_hurt(sentinel: &mut Child) -> bool {
    let end = Instant::now() + MAX_SIGNAL_DELAY;
    while !is_hurt(sentinel) {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Returns true if the sentinel is dead, stopped or traced.
fn is_hurt(sentinel: &mut Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", sentinel.id()));
    let status = status.unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).unwrap_or_default().to_owned()
    };
    let sleeps = field("State:").starts_with(['S', 'R']);
    !sleeps || field("TracerPid:") != "0"
}

/// Returns true if a datagram has arrived.
pub(crate) fn has_datagram(socket: &UdpSocket) -> bool {
    socket.set_nonblocking(true).is_ok() && socket.recv(&mut [0; 8]).is_ok()
}

/// Returns all files below a directory with their content.
pub(crate) fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().ok();
        let bytes = match kind {
            Some(kind) if kind.is_file() => std::fs::read(&path).unwrap_or_default(),
            Some(_) | None => format!("{kind:?}").into_bytes(),
        };
        if kind.is_some_and(|kind| kind.is_dir()) {
            files.extend(contents(&path));
        }
        files.insert(path, bytes);
    }
    files
}

/// Returns the processes of the host that have a word among their arguments.
pub(crate) fn with_argument(word: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
    })
    .collect()
}

/// Returns the children of a process.
pub(crate) fn children(parent_pid: u32) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name may contain anything and ends with the last parenthesis; state and parent follow
        // (proc_pid_stat(5)).
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        parent.is_some_and(|parent| parent == parent_pid.to_string())
    })
    .collect()
}
