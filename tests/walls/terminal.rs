//! `run --tty`: a terminal of the cell's own behind the operator's, which is given back as it was.

use std::time::Duration;

use serde_json::Value;

use crate::support::{Caller, Check, Claim, Failed, Finished, Need, claim, equal, holds, patience};

pub const CLAIMS: &[Claim] = &[
    claim("a_shell_at_a_terminal_has_job_control", shell).needs(&[Need::Python]),
    claim("a_cell_can_open_sixteen_terminals", terminals_in_cell).needs(&[Need::Python]),
    claim("a_hostile_program_cannot_change_the_terminal", hostile).needs(&[Need::Python]),
    claim("a_slow_terminal_types_nothing_at_the_end", lines).needs(&[Need::Python]),
    claim("the_terminal_is_restored_after_kill_and_timeout", restored).needs(&[Need::Python]),
    claim("without_a_terminal_the_cell_has_no_terminal", without),
    claim("programs_of_a_run_without_a_terminal_make_terminals", made)
        .needs(&[Need::Python, Need::Script]),
    claim("dev_tty_opens_where_init_opens_files", tty_of_init).needs(&[Need::Script]),
    claim("a_profile_with_one_program_has_no_terminals", one_program).needs(&[Need::Bc]),
    claim("no_query_reaches_a_terminal_that_is_only_an_output", partly).needs(&[Need::Python]),
    claim("a_program_detached_from_its_terminal_is_signalled", let_go).needs(&[Need::Python]),
    claim("every_signal_restores_the_terminal", signalled).needs(&[Need::Python]),
];

/// Starts `argv` at a new terminal of 33 by 111.
const START: &str = r#"
import fcntl, json, os, select, struct, sys, termios, time
argv = json.loads(sys.argv[1])
master, slave = os.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 33, 111, 0, 0))
before = termios.tcgetattr(slave)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(slave, number)
    os.environ['TERM'] = 'xterm-256color'
    os.execv(argv[0], argv)
"#;

/// Continues [`START`]: answers queries as xterm does, and types lines, each when the line before was answered.
/// Prints as JSON the output, the exit code, whether the attributes are unchanged, and the unread input.
const OPERATOR: &str = r#"
lines, limit = json.loads(sys.argv[2]), float(sys.argv[3])
out, status, seen, end, late = b'', None, 0, time.time() + limit, []
while time.time() < end:
    if status is None:
        done, code = os.waitpid(pid, os.WNOHANG)
        status = code if done else None
    ready = select.select([master], [], [], 0.05)[0]
    if ready:
        out += os.read(master, 65536)
        if b'\x1b[21t' in out[seen:]:
            os.write(master, b'\x1b]levil; touch taken\r')
        if b'$q' in out[seen:]:
            os.write(master, b'\x1bP1$revil\x1b\\')
        if b'\x1b[6n' in out[seen:]:
            os.write(master, b'\x1b[1;1R')
        # As over a slow line: later than the end of a short program, and in order.
        for asked, answer in [(b'\x1b[?777$p', b'\x1b[?777;0$y'), (b'\x1b[5n', b'\x1b[0n')]:
            late += [(time.time() + 0.3, answer)] * out[seen:].count(asked)
        seen = max(seen, len(out) - 3)
    while late and late[0][0] < time.time():
        os.write(master, late.pop(0)[1])
    if ready or late:
        pass
    elif status is not None:
        break
    if lines and (not lines[0][0] or lines[0][0].encode() in out):
        wait, line = lines.pop(0)
        if line == 'WAIT':
            time.sleep(0.5)
        elif line == 'RESIZE':
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 20, 70, 0, 0))
        elif line.startswith('SIGNAL'):
            os.kill(pid, int(line[6:]))
        else:
            os.write(master, line.encode())
# What the operator's shell would be typed.
fcntl.fcntl(slave, fcntl.F_SETFL, os.O_NONBLOCK)
try:
    left = os.read(slave, 4096)
except BlockingIOError:
    left = b''
code = None if status is None else os.waitstatus_to_exitcode(status)
same = termios.tcgetattr(slave) == before
print(json.dumps({'out': out.decode(errors='replace'), 'code': code, 'same': same, 'left': left.decode(errors='replace')}))
"#;

/// Runs a program at a terminal, and types `lines`, each with what is waited for before.
fn at_terminal(
    caller: &Caller,
    options: &[&str],
    argv: &[&str],
    lines: &[(&str, &str)],
) -> Result<Value, Failed> {
    let command = caller.run_command(options, argv);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    typed(caller, &words.iter().map(String::as_str).collect::<Vec<_>>(), lines)
}

/// The same for any program of the host's.
fn typed(caller: &Caller, words: &[&str], lines: &[(&str, &str)]) -> Result<Value, Failed> {
    let mut python = caller.outside("python3");
    let limit = patience().as_secs().to_string();
    let words = serde_json::to_string(words)?;
    let lines = serde_json::to_string(lines)?;
    python.args(["-I", "-S", "-c", &format!("{START}{OPERATOR}"), &words, &lines, &limit]);
    let output = Finished::run(python, patience() * 2)?;
    serde_json::from_str(&output.stdout).map_err(|error| format!("{error}: {output:?}").into())
}

fn text(report: &Value) -> &str {
    report.get("out").and_then(Value::as_str).unwrap_or_default()
}

fn field<'v>(report: &'v Value, name: &str) -> &'v Value {
    report.get(name).unwrap_or(&Value::Null)
}

/// Checks that the terminal is as it was, and nothing is left in it.
fn given_back(report: &Value) -> Check {
    equal("its attributes", field(report, "same"), &Value::Bool(true))?;
    equal("no input is left", field(report, "left"), &Value::String(String::new()))
}

fn shell(caller: &Caller) -> Check {
    let output = at_terminal(
        caller,
        &[],
        &["bash", "--norc"],
        &[
            ("$ ", "echo size $(stty size) on $(tty) as $TERM; test -t 2 && echo al''l\r"),
            // Typed text is echoed: each word that is waited for is printed in another form, by a program that
            // has the terminal by then.
            ("all", "bash --norc -c 'echo fir\"\"st; sleep 600'\r"),
            ("first", "\u{3}"),
            ("^C", "echo code=$?.\r"),
            ("code=130.", "bash --norc -c 'echo sec\"\"ond; sleep 700'\r"),
            ("second", "\u{1a}"),
            ("Stopped", "kill %1; echo to /dev/tty > /dev/tty\r"),
            ("to /dev/tty", "RESIZE"),
            (
                "",
                "until [ \"$(stty size)\" = '20 70' ]; do sleep 0.1; done; echo re''sized; exit 5\r",
            ),
        ],
    )?;
    let out = text(&output);
    holds("size and kind", out, out.contains("size 33 111 on /dev/pts/0 as xterm-256color"))?;
    holds("resized", out, out.contains("resized"))?;
    equal("its own code", field(&output, "code"), &Value::from(5))?;
    given_back(&output)
}

fn terminals_in_cell(caller: &Caller) -> Check {
    let script = "import os, pty\n\
                  pty.spawn(['/bin/echo', 'in a terminal'])\n\
                  held = []\n\
                  try:\n  while True: held.append(os.openpty())\n\
                  except OSError as error: print(len(held), error.strerror)\n";
    let output = at_terminal(caller, &["--tty"], &["python3", "-I", "-S", "-c", script], &[])?;
    let out = text(&output);
    holds("one in one", out, out.contains("in a terminal\r\n"))?;
    holds("fifteen more terminals", out, out.contains("15 No space left on device"))?;
    given_back(&output)
}

fn hostile(caller: &Caller) -> Check {
    let script = r#"
import sys, termios, tty
tty.setraw(0)
write = sys.stdout.write
write('\x1b[21t\x1b[20t\x1bP$qm\x1b\\\x1b]52;c;?\x07\x1b]52;c;dG91Y2ggL3RtcC94\x07\x05\x9b21t')
write('\x1b[?1049h\x1b[?1000h\x1b[?1006h\x1b[?25l\x1b[?2004h\x1b[31m')
write('\x1b[6n' * 5)
write('\x1b[?777$p\x1b[5n\x1b[?6h\x1b7\x1b[g\x1bH\x1b]0;a title\x07')
write('\x1b]0;unfinished')
sys.stdout.flush()
"#;
    let output = at_terminal(caller, &[], &["python3", "-I", "-S", "-c", script], &[])?;
    let out = text(&output);
    for query in ["\u{1b}[21t", "\u{1b}[20t", "$q", "]52", "\u{5}", "\u{9b}"] {
        holds("no query", out, !out.contains(query))?;
    }
    for kept in ["?6h", "\u{1b}[g", "\u{1b}H"] {
        holds("what could not be put back", out, !out.contains(kept))?;
    }
    // Each question that passed has one of cofferdam's behind it, whose answer shows that no other is to come.
    let request = out.matches("\u{1b}[6n").count() + out.matches("\u{1b}[?777$p").count();
    equal("all of them passed", request, 6)?;
    equal("one behind each", out.matches("\u{1b}[5n").count(), 6)?;
    for mode in ["\u{1b}[23;0t", "?1049l", "?1000l", "?1006l", "?25h", "?2004l", "\u{1b}[0m"] {
        holds(mode, out, out.contains(mode))?;
    }
    // The control: what asks for numbers alone passes.
    holds("the cursor", out, out.contains("\u{1b}[6n"))?;
    given_back(&output)
}

/// Continues [`START`] as a raw terminal of one of three kinds, and signals the program after a time if asked to.
/// Prints as JSON its exit code and duration, the bytes typed at the operator's shell afterwards, the number of
/// queries, and whether a reset was sent.
///
/// `writes`: writes its answers before it reads on, and blocks while they are not read. `slow`: a line with 200 kB
/// a second behind a large buffer. `stuck`: reads nothing.
const LINE: &str = r#"
import re, signal, tty
kind, after = sys.argv[2], float(sys.argv[3])
ANSWERS = {b'\x1b[c': b'\x1b[?64;1;2;6;9;15;16;17;18;21;22;28c', b'\x1b[5n': b'\x1b[0n'}
start, status, took, text, seen, asked = time.time(), None, None, b'', b'', 0
line, last = b'', time.time()
while time.time() - start < 60:
    if status is None:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status, took = code, time.time() - start
        elif after and time.time() - start > after:
            os.kill(pid, signal.SIGTERM)
            after = 0
    if kind == 'stuck':
        if status is not None:
            break
        time.sleep(0.02)
        continue
    if select.select([master], [], [], 0.02)[0]:
        line += os.read(master, 65536)
    now = time.time()
    count = int((now - last) * 200000) if kind == 'slow' else len(line)
    last, drawn, line = now, line[:count], line[count:]
    seen = (seen + drawn)[-200000:]
    # Whole sequences alone.
    text += drawn
    for found in re.finditer(rb'\x1b\[c|\x1b\[5n', text):
        asked += found.group() == b'\x1b[c'
        answer = ANSWERS[found.group()]
        while answer:
            # As a terminal that does nothing else until it has written.
            done, code = os.waitpid(pid, os.WNOHANG) if status is None else (0, 0)
            if done:
                status, took = code, time.time() - start
            if time.time() - start > 60:
                break
            os.set_blocking(master, False)
            try:
                answer = answer[os.write(master, answer):]
            except BlockingIOError:
                if status is not None:
                    break
                time.sleep(0.005)
            os.set_blocking(master, True)
    text = text[-3:] if b'\x1b' in text[-3:] else b''
    if re.fullmatch(rb'.*(\x1b\[c|\x1b\[5n)', text, re.S):
        text = b''
    if status is not None and not line and now - start - took > 0.5:
        break
same = termios.tcgetattr(slave) == before
tty.setraw(slave, termios.TCSANOW)
os.set_blocking(slave, False)
try:
    left = os.read(slave, 65536)
except BlockingIOError:
    left = b''
code = None if status is None else os.waitstatus_to_exitcode(status)
if status is None:
    os.kill(pid, signal.SIGKILL)
print(json.dumps({'code': code, 'took': took, 'same': same, 'left': left.decode(errors='replace'), 'asked': asked,
    'reset': b'\x1b[?1000l' in seen}))
"#;

/// Runs a script in a cell at such a terminal.
fn at_line(
    caller: &Caller,
    kind: &str,
    limit: Duration,
    (after, script): (&str, &str),
) -> Result<(Value, f64), Failed> {
    let limit = format!("{}s", limit.as_secs());
    let command = caller.run_command(&["--timeout", &limit], &["bash", "-c", script]);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let mut python = caller.outside("python3");
    let code = format!("{START}{LINE}");
    let words = serde_json::to_string(&words)?;
    python.args(["-I", "-S", "-c", &code, &words, kind, after]);
    let report = Finished::run(python, patience() * 2)?;
    let report: Value =
        serde_json::from_str(&report.stdout).map_err(|error| format!("{error}: {report:?}"))?;
    let took = field(&report, "took").as_f64().ok_or_else(|| format!("no end: {report}"))?;
    Ok((report, took))
}

fn lines(caller: &Caller) -> Check {
    // Programs that never end, and one that does.
    let short = Duration::from_secs(5);
    let long = patience() / 2;
    // Asks without end and reads nothing.
    let asks = r"printf '\033[?1000h'; stty raw -echo; while :; do printf '\033[c\033[c\033[c\033[c'; done";
    let (output, _) = at_line(caller, "writes", short, ("0", asks))?;
    equal("the time limit", field(&output, "code"), &Value::from(124))?;
    holds("it was asked", &output, field(&output, "asked").as_u64() > Some(100))?;
    equal("put back", field(&output, "reset"), &Value::Bool(true))?;
    given_back(&output)?;
    // Asks last, behind much that is not drawn yet.
    let late = r"printf '\033[?1000h'; head -c 1000000 /dev/zero | tr '\0' x; printf '\033[c'";
    let (output, _) = at_line(caller, "slow", long, ("0", late))?;
    equal("its end", field(&output, "code"), &Value::from(0))?;
    equal("put back", field(&output, "reset"), &Value::Bool(true))?;
    given_back(&output)?;
    // The control: the same question is answered where the terminal keeps up.
    let soon =
        r"stty raw -echo; printf '\033[c'; read -rsd c answer; stty sane; [[ $answer = *28 ]]";
    let (output, _) = at_line(caller, "slow", long, ("0", soon))?;
    equal("answered", field(&output, "code"), &Value::from(0))?;
    given_back(&output)?;
    // One that takes nothing keeps neither the end of the call nor a signal from it.
    let much = r"stty raw -echo; printf '\033[?1000h\033[c'; yes";
    let (output, took) = at_line(caller, "stuck", short, ("0", much))?;
    equal("the time limit", field(&output, "code"), &Value::from(124))?;
    holds("soon after it", took, took < 20.0)?;
    equal("its attributes", field(&output, "same"), &Value::Bool(true))?;
    let (output, took) = at_line(caller, "stuck", short, ("1", much))?;
    equal("the signal", field(&output, "code"), &Value::from(143))?;
    holds("soon after it", took, took < 15.0)?;
    equal("its attributes", field(&output, "same"), &Value::Bool(true))
}

fn restored(caller: &Caller) -> Check {
    let raw = "stty raw -echo; echo made raw; sleep 600";
    let output = at_terminal(caller, &["--timeout", "1s"], &["bash", "-c", raw], &[])?;
    equal("the time limit", field(&output, "code"), &Value::from(124))?;
    given_back(&output)?;
    for (signal, code) in [(15, 143), (1, 143), (3, 130)] {
        let send = format!("SIGNAL{signal}");
        let output = at_terminal(caller, &[], &["bash", "-c", raw], &[("made raw", &send)])?;
        equal("ended from outside", field(&output, "code"), &Value::from(code))?;
        given_back(&output)?;
    }
    let output = at_terminal(caller, &[], &["absent-program"], &[])?;
    equal("nothing ran", field(&output, "code"), &Value::from(127))?;
    given_back(&output)
}

fn without(caller: &Caller) -> Check {
    let look = "{ : <>/dev/tty; } 2>&1 | grep -c 'No such device or address'; ls /dev/pts; \
                test -t 0 || test -t 1 || test -t 2 || echo no";
    equal("with pipes", caller.bash(look)?.stdout.as_str(), "1\nptmx\nno\n")?;
    let output = caller.run(&["--tty"], &["true"])?;
    equal("refused", output.code, 125)?;
    holds("why", &output.stderr, output.stderr.contains("are not a terminal"))
}

/// Prints what a program sees of the terminal that script(1) makes for it.
const AT_SCRIPT: &str = r#"script -qec 'tty; tty </dev/tty; : <>/dev/tty && echo both; exec 4</dev/tty; \
    echo through >/dev/fd/4; stat -c %a%U /dev/pts/0; ps -o tty= $$; exit 4' /dev/null | tr -d '\r'; \
    echo ${PIPESTATUS[0]}"#;
const SEEN: &str = "/dev/pts/0\n/dev/tty\nboth\nthrough\n620agent\npts/0\n4\n";

fn made(caller: &Caller) -> Check {
    equal("script", caller.bash(AT_SCRIPT)?.stdout.as_str(), SEEN)?;
    let script = "import os, pty\n\
                  pty.spawn(['tty'])\n\
                  held = []\n\
                  try:\n  while True: held.append(os.openpty())\n\
                  except OSError as error: print(len(held), error.strerror)\n\
                  print(os.ttyname(held[3][1]), sorted(os.listdir('/dev/pts'))[-1])";
    let output = caller.python(script)?;
    let expected = "/dev/pts/0\r\n16 No space left on device\n/dev/pts/3 ptmx\n";
    equal("python", output.stdout.as_str(), expected)
}

/// With a writable grant, init opens files for writing; it has no terminal itself.
fn tty_of_init(caller: &Caller) -> Check {
    let granted = caller.directory("granted")?;
    let granted = granted.to_string_lossy();
    let output = caller.run(&["--rw", &granted], &["bash", "-c", AT_SCRIPT])?;
    equal("script", output.stdout.as_str(), SEEN)?;
    // Who has no terminal gets the kernel's errno.
    let without = "{ : <>/dev/tty; } 2>&1 | grep -c 'No such device or address'";
    let output = caller.run(&["--rw", &granted], &["bash", "-c", without])?;
    equal("without one", output.stdout.as_str(), "1\n")
}

fn one_program(caller: &Caller) -> Check {
    let bc = |file: &str| caller.run(&["--profile", "bc"], &["bc", "-q", file]);
    let output = bc("/dev/ptmx")?;
    holds("none is there", &output, output.stderr.contains("File /dev/ptmx is unavailable"))?;
    equal("the control", (bc("/dev/null")?.code, output.stdout.as_str()), (0, ""))
}

/// Sequences that query, are stored, or act outside of the window, with a background colour.
const HOSTILE: &str = r"printf '<\033[21t\033]52;c;eA==\007\033P$qm\033\\\033[6n\033%%@\033[1m>'";

fn partly(caller: &Caller) -> Check {
    let command = caller.run_command(&[], &["sh", "-c", HOSTILE]);
    let to_errors = caller.run_command(&[], &["sh", "-c", &format!("{{ {HOSTILE}; }} >&2")]);
    let untouched = caller.run_command(&["--no-tty"], &["sh", "-c", HOSTILE]);
    for (command, streams) in [
        (&command, "</dev/null"),
        (&command, "2>/dev/null"),
        (&to_errors, "</dev/null"),
        (&untouched, ""),
    ] {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<String> = words
            .map(|word| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''")))
            .collect();
        let line = format!("{} {streams}", words.join(" "));
        let output = typed(caller, &["/bin/sh", "-c", &line], &[])?;
        let out = text(&output);
        holds(streams, out, out.contains("<\u{1b}[1m>"))?;
        given_back(&output)?;
    }
    Ok(())
}

fn let_go(caller: &Caller) -> Check {
    let script = "import fcntl, os, signal, termios, time\n\
        for one in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM): signal.signal(one, signal.SIG_IGN)\n\
        print('let go', flush=True)\n\
        at = os.open('/dev/tty', os.O_RDWR)\n\
        fcntl.ioctl(at, termios.TIOCNOTTY)\n\
        for one in (0, 1, 2, at): os.close(one)\n\
        time.sleep(600)\n";
    let argv = ["python3", "-I", "-S", "-c", script];
    let output = at_terminal(caller, &[], &argv, &[("let go", "WAIT"), ("", "SIGNAL15")])?;
    equal("ended from outside", field(&output, "code"), &Value::from(143))?;
    given_back(&output)
}

fn signalled(caller: &Caller) -> Check {
    let script = "printf '\\033[?1049h\\033[?1003hswitched'; sleep 600";
    for options in [&[][..], &["--no-tty"]] {
        for (number, code) in [(1, 143), (3, 130), (6, 143), (10, 143), (24, 143), (34, 143)] {
            let signal = format!("SIGNAL{number}");
            let lines = [("switched", "WAIT"), ("", signal.as_str())];
            let output = at_terminal(caller, options, &["sh", "-c", script], &lines)?;
            equal(&signal, field(&output, "code"), &Value::from(code))?;
            for mode in ["\u{1b}[?1049l", "\u{1b}[?1003l"] {
                holds(&signal, &output, text(&output).contains(mode))?;
            }
            given_back(&output)?;
        }
    }
    Ok(())
}
