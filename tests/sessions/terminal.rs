//! Commands at a pseudoterminal of the cell: prompts, control characters, and forbidden uses of a terminal.

use serde_json::{Value, json};

use crate::jobs::output;
use crate::server::{Server, story, text};
use crate::support::{Caller, Check, Failed, equal, holds};

fn waits(answer: &Value) -> bool {
    answer["structuredContent"]["waiting_for_input"] == json!(true)
}

/// Runs a command at a terminal, to its end or until it waits.
fn at_terminal(server: &mut Server, command: &str) -> Result<Value, Failed> {
    server.with(&json!({ "command": command, "tty": true }))
}

/// Starts one that soon waits. Returns its handle and what it has printed.
fn prompt(server: &mut Server, command: &str) -> Result<(String, String), Failed> {
    let answer = at_terminal(server, command)?;
    holds(command, &answer, waits(&answer))?;
    let id = answer["structuredContent"]["job"].as_str().ok_or("no job")?;
    Ok((id.to_owned(), story(&answer).1))
}

/// Types a text; what is printed until the command ends or waits again.
fn types(server: &mut Server, job: &str, text: &str) -> Result<Value, Failed> {
    server.tool("bash_input", &json!({ "job": job, "text": text, "wait": 30 }))
}

pub fn prompts(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let (id, printed) = prompt(&mut server, "python3 -q")?;
    equal("python's prompt", printed.as_str(), ">>> ")?;
    let answer = types(&mut server, &id, "6 * 7\n")?;
    holds("its answer", &answer, story(&answer).1.contains("\n42\n>>> ") && waits(&answer))?;
    let end = json!({ "job": id, "eof": true, "wait": 30 });
    let answer = server.tool("bash_input", &end)?;
    equal("its end by ^D", story(&answer).0, Some(0))?;
    // Without a terminal it has no prompt.
    let piped = json!({ "command": "python3 -q", "input": true, "session": "b" });
    let answer = server.with(&piped)?;
    equal("the control", (waits(&answer), story(&answer).1.as_str()), (true, ""))?;

    let (id, printed) = prompt(&mut server, "read -p 'name: ' x; echo; echo ${#x}")?;
    equal("the question", printed.as_str(), "name: ")?;
    let answer = types(&mut server, &id, "anna\n")?;
    equal("it is echoed", story(&answer), (Some(0), "anna\n\n4\n".to_owned()))?;
    let (id, printed) = prompt(&mut server, "read -s -p 'secret: ' x; echo; echo ${#x}")?;
    equal("the question", printed.as_str(), "secret: ")?;
    let answer = types(&mut server, &id, "hush\n")?;
    equal("it is not echoed", story(&answer), (Some(0), "\n4\n".to_owned()))
}

pub fn is_one(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    let command = "stty size; tty; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo three; echo err >&2; \
                   echo $TERM; ps -o tty= $$; exit 7";
    let answer = at_terminal(&mut server, command)?;
    let content = &answer["structuredContent"];
    let path = "/dev/pts/0";
    let expected = format!("24 80\n{path}\nthree\nerr\ndumb\n");
    equal("its end", story(&answer).0, Some(7))?;
    holds("a terminal", &answer, story(&answer).1.starts_with(&expected))?;
    equal("one stream", &content["stderr"], &json!(""))?;
    holds("its controlling terminal", &answer, !story(&answer).1.contains('?'))?;
    let answer = server.bash("tty; ps -o tty= $$")?;
    equal("no other command has one", story(&answer), (Some(0), "not a tty\n?\n".to_owned()))?;
    let answer = at_terminal(&mut server, "seq 1 20000")?;
    // With a carriage return in each line.
    equal("every byte", &answer["structuredContent"]["stdout_bytes"], &json!(128_894))?;
    holds("to the end", &answer, story(&answer).1.ends_with("\n19999\n20000\n"))
}

pub fn control(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "[sessions]\nyield = \"1s\"\n")?;
    let answer = at_terminal(&mut server, "sleep 600; echo never")?;
    holds("it does not wait for input", &answer, !waits(&answer))?;
    let id = answer["structuredContent"]["job"].as_str().ok_or("no job")?.to_owned();
    let answer = types(&mut server, &id, "\u{3}")?;
    equal("interrupted", story(&answer).0, Some(130))?;
    holds("and no more", &answer, !story(&answer).1.contains("never"))?;

    let (id, _) = prompt(&mut server, "PS1='$ ' bash --norc -i")?;
    let press = |server: &mut Server, keys: &str| -> Result<Value, Failed> {
        server.tool("bash_input", &json!({ "job": id, "text": keys, "wait": 1 }))
    };
    let answer = press(&mut server, "sleep 600\n")?;
    holds("it sleeps", &answer, !waits(&answer))?;
    let answer = types(&mut server, &id, "\u{1a}")?;
    holds("stopped by ^Z", &answer, waits(&answer) && story(&answer).1.contains("Stopped"))?;
    let answer = press(&mut server, "fg\n")?;
    holds("it continues", &answer, !waits(&answer))?;
    let answer = types(&mut server, &id, "\u{3}")?;
    holds("the shell is back", &answer, waits(&answer))?;
    let answer = types(&mut server, &id, "echo status $?\n")?;
    holds("ended by ^C", &answer, story(&answer).1.contains("\nstatus 130\n"))?;
    let answer = types(&mut server, &id, "exit 3\n")?;
    equal("its end", story(&answer).0, Some(3))
}

/// Each request on descriptor 0: `ok`, or the errno.
const REQUESTS: &str = "python3 -c \"
import fcntl, termios
for request in (termios.TIOCGWINSZ, termios.TIOCSTI, 0x541c, 0x541d, 0x5423):
    try:
        fcntl.ioctl(0, request, b'x' * 8)
        print('ok')
    except OSError as error:
        print(error.errno)
\"";

pub fn private(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    // The size can be asked for; TIOCSTI, TIOCLINUX, TIOCCONS and TIOCSETD meet EPERM.
    let answer = at_terminal(&mut server, REQUESTS)?;
    equal("requests", story(&answer), (Some(0), "ok\n1\n1\n1\n1\n".to_owned()))?;
    let denied = &answer["structuredContent"]["denials"][0];
    equal("counted", (&denied["syscall"], &denied["count"]), (&json!("ioctl"), &json!(4)))?;
    let command = "ls -1 /dev/pts; tty </dev/tty; : <>/dev/tty && echo both; ls /dev/session/pts /dev/console";
    let answer = at_terminal(&mut server, command)?;
    let output = story(&answer).1;
    holds("its own and no other", &output, output.starts_with("0\nptmx\n"))?;
    holds("the controlling one", &output, output.contains("\n/dev/tty\nboth\n"))?;
    equal("no other device", output.matches("No such file or directory").count(), 2)?;
    // Another session has its own: the same name, and nothing of this one's.
    let (id, _) = prompt(&mut server, "read -r line; echo got $line")?;
    let other = json!({
        "command": "tty; ls -1 /dev/pts; echo x > /dev/pts/0", "tty": true, "session": "b"
    });
    let other = server.with(&other)?;
    equal("the other", story(&other).1.as_str(), "/dev/pts/0\n0\nptmx\nx\n")?;
    let answer = types(&mut server, &id, "mine\n")?;
    equal("is not heard", story(&answer), (Some(0), "mine\ngot mine\n".to_owned()))
}

pub fn shell(caller: &Caller) -> Check {
    let mut server = Server::start(caller, "")?;
    server.gives("export A=exported; b=kept; cd /usr/bin; sleep 600 &", 0, "")?;
    let answer = at_terminal(&mut server, "pwd; echo $A ${b-none}; b=lost; A=lost; cd /")?;
    equal("it has", story(&answer), (Some(0), "/usr/bin\nexported none\n".to_owned()))?;
    server.gives("pwd; echo $A $b; jobs -r | wc -l", 0, "/usr/bin\nexported kept\n1\n")?;
    let given = json!({
        "command": "read -r x; echo $x $C", "tty": true, "stdin": "typed\n", "env": { "C": "c" },
        "cwd": "/tmp"
    });
    let answer = server.with(&given)?;
    let typed = story(&answer).1;
    holds("stdin is typed", &answer, typed.ends_with("typed c\n") && story(&answer).0 == Some(0))?;
    let answer =
        server.with(&json!({ "command": "echo in; sleep 600", "tty": true, "timeout": 0.5 }))?;
    equal("its time", &answer["structuredContent"]["outcome"], &json!("timeout"))?;
    holds("reported", &answer, text(&answer).contains("the shell is kept"))?;
    let (id, _) = prompt(&mut server, "bash --norc -i")?;
    let answer = server.tool("bash_kill", &json!({ "job": id, "signal": "TERM" }))?;
    holds("hung up", &answer, answer.to_string().contains("TERM ended it; the shell is kept"))?;
    let seen = output(&mut server, &json!({ "job": id }))?;
    equal("ended", &seen["structuredContent"]["outcome"], &json!("cancelled"))?;
    server.gives("pwd; echo $A $b; jobs -r | wc -l", 0, "/usr/bin\nexported kept\n1\n")
}
