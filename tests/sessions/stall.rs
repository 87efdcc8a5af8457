//! What a shell holds open costs no other session time, however long the kernel needs to describe it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::server::{Server, story};
use crate::support::{Caller, Check, Failed, equal, holds, soon};

/// Fills a descriptor of the kind that is its argument, has it as every descriptor that a look at the shell covers, and
/// rings. It is the shell: `exec` puts it in its place. Prints how many bytes the kernel describes the descriptor with.
const ATTACK: &str = r#"
import ctypes, fcntl, glob, os, select, struct, sys, time
kind, count, rings = sys.argv[1], 7000, 60
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
    time.sleep(0.03)
print('rang', flush=True)
"#;

/// Bytes that a descriptor is described with, at least, for the attack to be one.
const DEAR: usize = 150_000;

pub fn watches(caller: &Caller) -> Check {
    holds_nobody_up(caller, "inotify")
}

pub fn posix_locks(caller: &Caller) -> Check {
    holds_nobody_up(caller, "posix")
}

pub fn ofd_locks(caller: &Caller) -> Check {
    holds_nobody_up(caller, "ofd")
}

pub fn epoll(caller: &Caller) -> Check {
    holds_nobody_up(caller, "epoll")
}

fn holds_nobody_up(caller: &Caller, kind: &str) -> Check {
    let mut server = Server::configured(caller, "", &[], &["--tools", "shell"])?;
    server.with(&json!({ "command": "true", "session": "victim" }))?;
    let usual = slow_calls(&mut server, |_, calls| calls < 50)?;
    let command =
        format!("cat > /tmp/attack.py <<'END'\n{ATTACK}\nEND\nexec python3 /tmp/attack.py {kind}");
    let attack = server.ask(&json!({ "command": command, "session": "attacker" }))?;
    let attacked = slow_calls(&mut server, |server, _| !server.has_answer(attack))?;
    let answer = server.answer(attack)?;
    let (code, printed) = story(&answer);
    equal("the attack", code, Some(0))?;
    let bytes = printed.lines().next().and_then(|line| line.parse::<usize>().ok());
    holds("the control: it is dear to describe", &answer, bytes.is_some_and(|it| it > DEAR))?;
    holds("the control: it rang", &answer, printed.ends_with("rang\n"))?;
    let bound = (soon(1) / 10).max(usual * 4);
    holds("another session's calls", format!("{attacked:?}, {usual:?} before"), attacked < bound)
}

/// Calls a session for as long as `more` says. Returns how long the third slowest call took: a machine with other work
/// can be slow once, and an attack is so at each ring.
fn slow_calls(
    server: &mut Server,
    more: impl Fn(&Server, usize) -> bool,
) -> Result<Duration, Failed> {
    let mut times = Vec::new();
    while more(server, times.len()) {
        let began = Instant::now();
        server.with(&json!({ "command": "true", "session": "victim" }))?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times.iter().rev().nth(2).copied().unwrap_or_default())
}
