//! A process that dies slowly: it is traced (ptrace(2)), so that only its tracer can reap it, and a PID namespace
//! waits for each of its processes before its init is gone. So a test decides how long a cell takes to die, the same
//! on every machine.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::{Check, Failed, equal, patience, present, status, with_argument};

/// Seizes the process (PTRACE_SEIZE), and lets go of it at its own end.
const HOLDER: &str = "
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
libc.ptrace.restype = ctypes.c_long
got = libc.ptrace(0x4206, int(sys.argv[1]), 0, 0)
print('held' if got == 0 else 'errno %d' % ctypes.get_errno(), flush=True)
sys.stdin.read()";

/// A process that is held. Let go of when it is dropped.
#[derive(Debug)]
pub struct Held {
    pid: u32,
    holder: Child,
}

impl Held {
    /// Holds the one process of the host that has this argument, as soon as it is there.
    pub fn with_argument(argument: &str) -> Result<Self, Failed> {
        equal("processes to hold", present(argument, 1, patience()), 1)?;
        let [pid] = with_argument(argument)[..] else {
            return Err(format!("no longer one process with {argument}").into());
        };
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", HOLDER, &pid.to_string()]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let text = BufReader::new(holder.stdout.take().ok_or("no output")?).read_line(&mut line);
        // Owned from here on, so that a failure lets go too.
        let held = Self { pid, holder };
        text?;
        equal("the tracer", line.trim_end(), "held")?;
        Ok(held)
    }

    /// Returns whether it has been killed, and is still there.
    pub fn is_dying(&self) -> bool {
        status(self.pid).is_ok_and(|status| status.get("State").starts_with('Z'))
    }

    /// Lets go, and waits until it is gone.
    pub fn let_go(self) -> Check {
        let pid = self.pid;
        drop(self);
        let end = Instant::now() + patience();
        while status(pid).is_ok() && Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        equal("it is still there", status(pid).is_ok(), false)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // It may have ended already: then there is nothing to kill.
        self.holder.kill().unwrap_or_default();
        self.holder.wait().map(drop).unwrap_or_default();
    }
}
