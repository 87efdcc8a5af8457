//! Pseudo-terminals that programs of a session make: script, pty.spawn, tmux; and what a hostile program can do with
//! them.

use serde_json::json;

use crate::server::{Server, story, text};
use crate::support::{CALLS, Caller, Check, equal, holds};

/// Maximum number of terminals of a session.
const MAX: usize = 16;

pub fn made(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let answer = server.bash("script -qec 'tty; echo in; exit 3' /dev/null")?;
    equal("script", story(&answer), (Some(3), "/dev/pts/0\nin\n".to_owned()))?;
    server.gives("python3 -c 'import pty; pty.spawn([\"tty\"])'", 0, "/dev/pts/0\n")?;
    // In a terminal of the call, which is of the same devpts.
    let inside = json!({ "command": "tty; script -qec tty /dev/null", "tty": true });
    equal(
        "at a terminal",
        story(&server.with(&inside)?),
        (Some(0), "/dev/pts/0\n/dev/pts/1\n".into()),
    )?;
    let background = json!({ "command": "script -qec 'tty; sleep 0.2' /dev/null", "session": "b" });
    equal("another session", story(&server.with(&background)?), (Some(0), "/dev/pts/0\n".into()))
}

pub fn found(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let inside = "tty; tty </dev/tty; : <>/dev/tty && echo both; ps -o tty= $$; mesg; \
                  stty rows 33 columns 111; stty size; stat -c %a%U /dev/pts/0; who | wc -l";
    let answer = server.bash(&format!("script -qec '{inside}' /dev/null"))?;
    let expected = "/dev/pts/0\n/dev/tty\nboth\npts/0\nis y\n33 111\n620agent\n0\n";
    equal("names", story(&answer), (Some(0), expected.to_owned()))?;
    // The shell itself is at no terminal, and the device says so.
    let without = "{ : <>/dev/tty; } 2>&1 | grep -c 'No such device or address'; tty";
    server.gives(without, 1, "1\nnot a tty\n")
}

/// In a granted workspace init opens files for writing, which concerns terminals too.
pub fn granted(caller: &Caller) -> Check {
    let workspace = caller.directory("granted")?;
    let options = ["--workspace", &workspace.to_string_lossy()];
    let mut server = Server::configured(caller, "", &[], &options)?;
    let inside = "tty; : <>/dev/tty && echo both; exec 4</dev/tty; echo through >/dev/fd/4; \
                  echo by number >/dev/pts/0; tty <>/dev/tty";
    let answer = server.bash(&format!("script -qec '{inside}' typescript"))?;
    let expected = "/dev/pts/0\nboth\nthrough\nby number\n/dev/pts/0\n";
    equal("script", story(&answer), (Some(0), expected.to_owned()))?;
    server.gives(
        "tail -n +2 typescript | head -1 | tr -d '\\r'; rm typescript",
        0,
        "/dev/pts/0\n",
    )?;
    let without = "{ : <>/dev/tty; } 2>&1 | grep -c 'No such device or address'";
    server.gives(without, 0, "1\n")?;
    let at = json!({ "command": "tty; : <>/dev/tty && echo both; script -qec tty /dev/null", "tty": true });
    let expected = "/dev/pts/0\nboth\n/dev/pts/1\n";
    equal("at a terminal", story(&server.with(&at)?), (Some(0), expected.to_owned()))
}

pub fn kept(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let start =
        "tmux new -d -s work -x 100 -y 30 'tty; stty size; exec bash --norc' && tmux ls -F '#S'";
    server.gives(start, 0, "work\n")?;
    let shown = |wanted: &str| {
        format!(
            "until tmux capture-pane -p -t work | grep -qxF -- '{wanted}'; do sleep 0.05; done; echo ok"
        )
    };
    server.gives(&shown("30 100"), 0, "ok\n")?;
    // It is a background process: it outlives the call, and takes keys from later ones.
    server.gives("tmux send-keys -t work 'echo $((6*7))' Enter", 0, "")?;
    server.gives(&shown("42"), 0, "ok\n")?;
    let sleeps = "tmux send-keys -t work 'sleep 600' Enter; \
                  until [ \"$(tmux display -p -t work '#{pane_current_command}')\" = sleep ]; do sleep 0.05; done";
    server.gives(sleeps, 0, "")?;
    server.gives("tmux send-keys -t work C-c 'echo $((7*9))' Enter", 0, "")?;
    server.gives(&shown("63"), 0, "ok\n")?;
    server.gives("tmux split-window -t work 'sleep 600'; ls /dev/pts | wc -l", 0, "3\n")?;
    let command = "(sleep 1; tmux detach-client -s work) & tmux attach -t work";
    let attached = json!({ "command": command, "tty": true, "env": { "TERM": "xterm" } });
    let answer = server.with(&attached)?;
    holds("it can be attached", &answer, text(&answer).contains("detached (from session work)"))?;
    server.gives("tmux kill-server; sleep 0.2; ls /dev/pts", 0, "ptmx\n")
}

/// Tries each request on a terminal that the program made: on its master, and on its slave, which is the program's
/// controlling terminal.
const REQUESTS: &str = r#"
import fcntl, pty, termios
def ask(on, request, argument=0): return call(16, on, request, argument)
def both(request, argument=0): return [ask(master, request, argument), ask(0, request, argument)]
master, slave = os.openpty()
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    os.dup2(slave, 0)
    four = bytes(64)
    refused = {
        'TIOCSTI': (0x5412, b'x'), 'TIOCLINUX': (0x541c, b'\x0b'), 'TIOCCONS': (0x541d, 0),
        'TIOCGSERIAL': (0x541e, four), 'TIOCSSERIAL': (0x541f, four), 'TIOCVHANGUP': (0x5437, 0),
        'TIOCSIG': (0x40045436, 9), 'TIOCSRS485': (0x542f, four),
        'KDSKBMODE': (0x4b45, 1), 'KDSETMODE': (0x4b3a, 1), 'KDSKBENT': (0x4b47, four),
        'PIO_FONT': (0x4b61, four), 'VT_ACTIVATE': (0x5606, 1), 'VT_DISALLOCATE': (0x5608, 0),
    }
    # SLIP, PPP, HDLC, GSM 07.10 and CAN: the kernel would load a module for each.
    for discipline in (1, 3, 13, 21, 17):
        refused['TIOCSETD %d' % discipline] = (0x5423, struct.pack('i', discipline))
    for name, (request, argument) in refused.items():
        got = both(request, argument) + both(request | 1 << 32, argument)
        if got != ['EPERM'] * 4: print(name, got)
    print(both(0x5413, bytes(8)), [one != 'EPERM' for one in both(0x5424, bytes(4))])
    # The other end of a slave cannot be asked for, and an unlocked master gives its own slave alone.
    print(ask(0, 0x5441, 2), os.ttyname(ask(master, 0x5441, 2)) == os.ttyname(slave))
    print(sorted(os.listdir('/dev/pts')), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"#;

pub fn requests(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let script = format!("{CALLS}\n{REQUESTS}");
    let given = json!({ "command": "python3 -", "stdin": script });
    let answer = server.with(&given)?;
    let expected = "[0, 0] [True, True]\nEIO True\n['0', 'ptmx']\n";
    equal("requests", story(&answer), (Some(0), expected.to_owned()))?;
    let denied = &answer["structuredContent"]["denials"][0];
    // Fourteen requests and five line disciplines, four times each.
    equal("counted", (&denied["syscall"], &denied["count"]), (&json!("ioctl"), &json!(19 * 4)))
}

const TAKE_ALL: &str = "import os, time\n\
    held = []\n\
    try:\n  while True: held.append(os.openpty())\n\
    except OSError as error: print(len(held), error.errno, flush=True)\n";

pub fn counted(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let take = format!("cat >all.py <<'E'\n{TAKE_ALL}\nE\npython3 all.py");
    server.gives(&take, 0, &format!("{MAX} 28\n"))?;
    // While a process holds them, a call at a terminal is refused with the reason, and the shell goes on.
    server.gives("echo 'time.sleep(600)' >>all.py; python3 all.py >out & until [ -s out ]; do sleep 0.05; done; cat out",
        0, &format!("{MAX} 28\n"))?;
    let answer = server.with(&json!({ "command": "echo ran", "tty": true }))?;
    holds("refused", &answer, text(&answer).contains("hold all of its 16 terminals; end some"))?;
    server.gives("echo on", 0, "on\n")?;
    // Another session has its own.
    let other = json!({ "command": "tty", "tty": true, "session": "b" });
    equal("the other", story(&server.with(&other)?), (Some(0), "/dev/pts/0\n".to_owned()))?;
    server.gives("kill %1; wait; ls /dev/pts", 0, "ptmx\n")?;
    // No program can change the modes, which later calls and shells depend on.
    let modes = "chmod 000 /dev/pts/ptmx /dev/pts 2>&1 | grep -c 'Read-only file system'";
    server.gives(modes, 0, "2\n")?;
    let answer = server.with(&json!({ "command": "tty", "tty": true }))?;
    equal("after it", story(&answer), (Some(0), "/dev/pts/0\n".to_owned()))?;
    // No other file can be made there.
    let make = "for p in /dev/pts/x /dev/pts/0; do mkdir $p; mknod $p p; ln -s / $p; done 2>/dev/null; ls /dev/pts";
    server.gives(make, 0, "ptmx\n")
}

pub fn ended(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let take = format!(
        "cat >all.py <<'E'\n{TAKE_ALL}\ntime.sleep(600)\nE\npython3 all.py >out & until [ -s out ]; do sleep 0.05; done; ls /dev/pts | wc -l"
    );
    server.gives(&take, 0, "17\n")?;
    server.with(&json!({ "restart": true }))?;
    server.gives("ls /dev/pts", 0, "ptmx\n")
}

pub fn signals(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("sleep 600 & echo $! >sleeps", 0, "")?;
    // ^C and the end of the master reach the processes of that terminal, and no other.
    let script = r#"
import os, pty, signal, time
def inside(then):
    pid, master = pty.fork()
    if pid == 0:
        # A shell would lose a ^C that comes before it waits for its command.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.write(1, b'up'); time.sleep(600); os._exit(9)
    assert os.read(master, 16).startswith(b'up')
    then(master)
    end = os.waitpid(pid, 0)[1]
    return os.WTERMSIG(end) if os.WIFSIGNALED(end) else end
print(inside(lambda master: os.write(master, b'\x03')), inside(os.close))
"#;
    let answer = server.with(
        &json!({ "command": "python3 -; kill -0 $(cat sleeps) && echo alive", "stdin": script }),
    )?;
    equal("INT, HUP", story(&answer), (Some(0), "2 1\nalive\n".to_owned()))
}

pub fn of_one_call(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[tools]\ngroups = [\"exec\"]\n")?;
    let command = "ls -A /dev/pts; cat /dev/ptmx 2>&1 | grep -c 'No such file'";
    let answer = server.tool("bash_exec", &json!({ "command": command }))?;
    equal("an empty directory", story(&answer), (Some(0), "1\n".to_owned()))
}

/// Where a kernel or a container refuses the mount, a session has no terminals, and works otherwise.
pub fn refused(caller: &Caller) -> Check {
    let mut command = caller.outside("strace");
    command.args([
        "-f",
        "-q",
        "-o",
        "/dev/null",
        "-P",
        "/dev/pts",
        "-e",
        "inject=mount:error=EPERM",
    ]);
    command.arg(caller.binary()).args(["serve"]);
    let mut server = Server::of(command)?;
    server.gives(
        "echo ran; ls /dev/pts; cat /dev/ptmx 2>&1 | grep -c 'No such file'",
        0,
        "ran\n1\n",
    )?;
    let answer = server.with(&json!({ "command": "echo ran", "tty": true }))?;
    let reason = "step opening a terminal for the command";
    holds("refused", &answer, text(&answer).contains(reason))?;
    server.gives("echo on", 0, "on\n")
}
