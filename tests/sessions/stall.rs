//! Open files of a shell cost no other session time, however long the kernel needs to describe them.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::jobs::output;
use crate::server::{Server, story};
use crate::support::{Caller, Check, Failed, holds, patience, soon};

/// Fills a descriptor of the kind that is its argument, has it as every descriptor that a look at the shell covers, and
/// rings. It is the shell: `exec` puts it in its place. Prints how many bytes the kernel describes the descriptor with.
const ATTACK: &str = r#"
import ctypes, fcntl, glob, os, select, struct, sys, time
kind, count, rings = sys.argv[1], 7000, 2000
ring = os.open(max(glob.glob('/dev/session/end.*'), key=lambda path: int(path.split('.')[-1])), os.O_WRONLY)
ring = fcntl.fcntl(ring, fcntl.F_DUPFD, 100)
libc = ctypes.CDLL(None)
if kind == 'inotify':
    full = libc.inotify_init1(0)
    os.mkdir('/tmp/watched')
    for number in range(count):
        os.mkdir('/tmp/watched/%d' % number)
        if libc.inotify_add_watch(full, b'/tmp/watched/%d' % number, 2) < 0: sys.exit(3)
elif kind == 'epoll':
    watched = select.epoll()
    full = watched.fileno()
    # An instance has a descriptor of each process that shares it.
    for process in range(count // 700):
        ready, done = os.pipe()
        if os.fork() == 0:
            for number in range(700): watched.register(os.eventfd(0), select.EPOLLIN)
            os.write(done, b'x')
            time.sleep(1000)
        os.close(done)
        if os.read(ready, 1) != b'x': sys.exit(3)
        os.close(ready)
else:
    full = os.open('/tmp/locked', os.O_RDWR | os.O_CREAT)
    command = {'posix': fcntl.F_SETLK, 'ofd': 37}[kind]
    for number in range(count, 0, -1):
        fcntl.fcntl(full, command, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 2 * number, 1, 0))
for number in range(3, 34):
    if number != full: os.dup2(full, number)
print(len(open('/proc/self/fdinfo/%d' % full).read()), flush=True)
for number in range(rings):
    os.write(ring, b'x')
    print('rang', flush=True)
    time.sleep(0.02)
"#;

/// Bytes that a descriptor is described with, at least, for the attack to be one.
const DEAR: usize = 150_000;

pub fn watches(caller: &Caller) -> Check {
    delays_no_other(caller, "inotify")
}

pub fn posix_locks(caller: &Caller) -> Check {
    delays_no_other(caller, "posix")
}

pub fn ofd_locks(caller: &Caller) -> Check {
    delays_no_other(caller, "ofd")
}

pub fn epoll(caller: &Caller) -> Check {
    delays_no_other(caller, "epoll")
}

fn delays_no_other(caller: &Caller, kind: &str) -> Check {
    let config = "[sessions]\nyield = \"1s\"\n";
    let mut server = Server::configured(caller, config, &[], &["--tools", "shell"])?;
    server.with(&json!({ "command": "true", "session": "victim" }))?;
    let [_, usual] = slowest_calls(&mut server, Duration::MAX)?;
    let command =
        format!("cat > /tmp/attack.py <<'END'\n{ATTACK}\nEND\nexec python3 /tmp/attack.py {kind}");
    let answer = server.with(&json!({ "command": command, "session": "attacker" }))?;
    let job = answer["structuredContent"]["job"].as_str();
    let job = job.ok_or_else(|| format!("the attack is over: {answer}"))?.to_owned();
    let before = printed(&mut server, &job, 1)?;
    let bytes = before.lines().next().and_then(|line| line.parse::<usize>().ok());
    holds("the control: it is dear to describe", &before, bytes.is_some_and(|it| it > DEAR))?;
    let bound = (soon(1) / 10).max(usual * 4);
    let [slowest, third] = slowest_calls(&mut server, bound)?;
    // Rings while the calls ran.
    printed(&mut server, &job, before.matches("rang").count() + 20)?;
    let seen = format!("{slowest:?}, third {third:?}; {usual:?} before");
    // A machine with other work can be slow once or twice. One look used to take seconds.
    holds("another session's calls", seen, third < bound && slowest < bound * 5)
}

/// Returns what a job has printed, once it has rung so many times.
fn printed(server: &mut Server, job: &str, rings: usize) -> Result<String, Failed> {
    let end = Instant::now() + patience();
    loop {
        let answer = output(server, &json!({ "job": job, "wait": 1 }))?;
        let (code, printed) = story(&answer);
        if printed.matches("rang").count() >= rings {
            return Ok(printed);
        }
        if code.is_some() || Instant::now() > end {
            return Err(format!("it does not ring: {answer}").into());
        }
    }
}

/// Calls a session for a second, or until three calls took longer than `bound`. Returns how long the slowest and the third
/// slowest took.
fn slowest_calls(server: &mut Server, bound: Duration) -> Result<[Duration; 2], Failed> {
    let until = Instant::now() + Duration::from_secs(1);
    let mut times = Vec::new();
    let mut slowest = [Duration::ZERO; 2];
    while times.len() < 10 || (Instant::now() < until && slowest[1] <= bound) {
        let began = Instant::now();
        server.with(&json!({ "command": "true", "session": "victim" }))?;
        times.push(began.elapsed());
        times.sort_unstable();
        slowest = [0, 2].map(|place| times.iter().rev().nth(place).copied().unwrap_or_default());
    }
    Ok(slowest)
}
