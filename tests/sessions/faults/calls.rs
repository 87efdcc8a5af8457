//! Each system call that the supervisor or the front end makes for a call fails once, with each possible errno:
//! the call is answered, and all other calls succeed.
//!
//! strace(1) makes it fail from outside: the program under test is the one that ships.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::client::{Book, Client, Heard};
use crate::support::{Caller, Check, Failed, PATH, equal, gone, holds, kill, soon};

/// A system call, and what it can say.
type CanFail = (&'static str, &'static [&'static str]);

/// System calls of the supervisor. Excluded: `close`, which closes even if it fails; memory for this process itself,
/// without which it ends; EPIPE and ECONNRESET of the link, which are how its end shows.
const SUPERVISOR: &[CanFail] = &[
    ("clone3", &["EAGAIN", "ENOMEM", "ENOSPC", "EPERM"]),
    ("eventfd2", &["EMFILE", "ENOMEM"]),
    ("fchmodat", &["EPERM", "EROFS"]),
    ("fcntl", &["EMFILE"]),
    ("fstat", &["ENOMEM"]),
    ("lseek", &["EINVAL"]),
    ("memfd_create", &["EMFILE", "ENFILE"]),
    ("mkdirat", &["ENOSPC", "ENOMEM"]),
    ("mknodat", &["ENOSPC", "ENOMEM"]),
    ("mount", &["ENOMEM", "EPERM"]),
    ("move_mount", &["ENOMEM", "EPERM"]),
    ("newfstatat", &["ENOMEM"]),
    ("open_tree", &["EMFILE", "ENOMEM"]),
    ("openat", &["EMFILE", "ENFILE", "ENOENT", "ENOSPC"]),
    ("pidfd_open", &["EMFILE"]),
    ("pidfd_send_signal", &["EPERM", "ENOMEM"]),
    ("pipe2", &["EMFILE", "ENFILE"]),
    ("poll", &["EINTR", "ENOMEM", "EINVAL"]),
    ("prctl", &["EINVAL"]),
    ("pread64", &["EIO"]),
    ("read", &["EIO", "EINTR", "ESRCH"]),
    ("readlinkat", &["EACCES", "ENOMEM"]),
    ("recvmsg", &["EAGAIN", "EINTR", "ENOMEM", "ENOBUFS"]),
    ("sendmsg", &["EAGAIN", "EINTR", "ENOBUFS", "ENOMEM", "ETOOMANYREFS", "EPERM"]),
    ("setns", &["ENOMEM", "EPERM"]),
    ("setsockopt", &["ENOMEM"]),
    ("socketpair", &["EMFILE", "ENFILE", "ENOMEM"]),
    ("statx", &["ENOMEM"]),
    ("symlinkat", &["ENOSPC"]),
    ("unlinkat", &["EBUSY", "EROFS"]),
    ("unshare", &["ENOSPC", "ENOMEM"]),
    ("waitid", &["EINTR", "ECHILD"]),
    ("write", &["EIO", "ENOSPC", "EPERM"]),
];

/// System calls of the front end, with the same exclusions, its own streams, and `epoll_wait`: strace detaches
/// while that call is running and then reports it itself.
const FRONT_END: &[CanFail] = &[
    ("epoll_ctl", &["ENOSPC", "ENOMEM"]),
    ("fcntl", &["EMFILE"]),
    ("memfd_create", &["EMFILE", "ENFILE"]),
    // Not EAGAIN, which says that there is nothing to read: the runtime waits for more then.
    ("recvmsg", &["EINTR", "ENOMEM"]),
    ("sendmsg", &["EAGAIN", "EINTR", "ENOBUFS", "ENOMEM", "ETOOMANYREFS", "EPERM"]),
];

/// Process of a server whose system calls fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    FrontEnd,
    Supervisor,
}

impl Victim {
    /// Returns a line of its log, which it writes where a call fails or would have.
    fn logs(self) -> &'static str {
        match self {
            Self::FrontEnd => "the link could not be read",
            Self::Supervisor => "a call failed",
        }
    }
}

pub fn of_the_supervisor(caller: &Caller) -> Check {
    each_fails_once(caller, Victim::Supervisor, SUPERVISOR)
}

pub fn of_the_front_end(caller: &Caller) -> Check {
    each_fails_once(caller, Victim::FrontEnd, FRONT_END)
}

/// More bytes of log than a pipe holds by default, and calls that write more than that.
const LOG_BYTES: usize = 96 << 10;
const LOGGED_CALLS: u32 = 300;

/// A client that reads no log loses lines, and no call.
pub fn unread_log(caller: &Caller) -> Check {
    let serve = || {
        let mut serve = caller.cofferdam(&["serve", "--tools", "exec"]);
        serve.env("COFFERDAM_LOG", "trace");
        serve
    };
    let log = File::options().append(true).create(true).open(log(caller))?;
    let mut client = Client::logged(serve(), log.try_clone()?.into())?;
    for _ in 0..LOGGED_CALLS {
        client.served()?;
    }
    client.close()?;
    let written = usize::try_from(log.metadata()?.len())?;
    holds("the control: so much is logged", written, written > LOG_BYTES)?;
    let mut client = Client::logged(serve(), Stdio::piped())?;
    for _ in 0..LOGGED_CALLS {
        client.served()?;
    }
    client.close()
}

/// Seconds that a call may take of which something failed: what was not killed at once is killed again.
const ANSWER: u64 = 30;
/// Rounds of one server: each takes a session.
const ROUNDS: usize = 5;

/// Returns the path of the log of a caller's servers.
fn log(caller: &Caller) -> PathBuf {
    caller.home.join("log")
}

/// A server, with a session and a call that no fault belongs to.
struct Server {
    client: Client,
    supervisor: u32,
    sleeps: String,
    bystander: u64,
    rounds: usize,
}

impl Server {
    fn start(caller: &Caller) -> Result<Self, Failed> {
        let serve = caller.cofferdam(&["serve", "--tools", "shell,exec"]);
        let log = File::options().append(true).create(true).open(log(caller))?;
        let mut client = Client::logged(serve, log.into())?;
        client.served()?;
        let supervisor = client.supervisor()?;
        let sleeps = format!("{}{}", 7_000_000 + client.child.id(), caller.uid());
        let arguments = json!({"command": format!("sleep {sleeps}"), "timeout": 300});
        let bystander = client.ask(arguments).ok_or("the server is gone")?;
        let mut server = Self { client, supervisor, sleeps, bystander, rounds: 0 };
        server.shell("calm", "x=17; echo set", "set\n")?;
        server.shell("used", "echo used", "used\n")?;
        server.bystander_runs(soon(ANSWER))?;
        Ok(server)
    }

    /// Waits for the answer to each call of the book.
    fn settle(&self, book: &mut Book) -> Check {
        let end = Instant::now() + soon(ANSWER);
        while !book.open.is_empty() {
            match self.client.hear(end.saturating_duration_since(Instant::now())) {
                Heard::Line(line) => book.take(&line)?,
                Heard::Nothing => return Err(format!("no answer: {:?}", book.open).into()),
                Heard::End => return Err("the server has ended".into()),
            }
        }
        Ok(())
    }

    /// Runs a command in a session and checks its answer.
    fn shell(&mut self, session: &str, command: &str, wanted: &str) -> Check {
        let mut book = Book::default();
        self.ask("bash", json!({"command": command, "session": session}), wanted, &mut book)?;
        self.settle(&mut book)?;
        equal(command, book.count("exited"), 1)
    }

    fn ask(
        &mut self,
        tool: &str,
        arguments: serde_json::Value,
        wanted: &str,
        book: &mut Book,
    ) -> Check {
        let id = self.client.ask_tool(tool, arguments).ok_or("the server is gone")?;
        equal("a new number", book.open.insert(id, wanted.to_owned()), None)
    }

    /// Makes the calls that a fault may meet: one in a fresh cell, one in a running shell, and one
    /// in a new shell. Each gets one true answer; returns the number of those that did not go well.
    fn met(&mut self) -> Result<u32, Failed> {
        self.rounds += 1;
        let mut book = Book::default();
        let new = format!("new{}", self.rounds);
        self.ask("bash_exec", json!({"command": "echo one"}), "one\n", &mut book)?;
        self.ask("bash", json!({"command": "echo two", "session": "used"}), "two\n", &mut book)?;
        self.ask("bash", json!({"command": "echo three", "session": new}), "three\n", &mut book)?;
        self.settle(&mut book)?;
        Ok(3 - book.count("exited"))
    }

    /// Checks that everything the fault did not concern works as before.
    fn still_works(&mut self) -> Check {
        equal("the same supervisor", self.client.supervisor()?, self.supervisor)?;
        self.shell("calm", "echo $x", "17\n")?;
        self.client.served()
    }

    /// Waits until the call that no fault belongs to runs. Before that, a fault may meet it.
    fn bystander_runs(&self, patience: Duration) -> Check {
        let end = Instant::now() + patience;
        while gone(&self.sleeps, Duration::ZERO).is_empty() {
            holds("the bystander runs", self.bystander, Instant::now() < end)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Checks that the call that ran all the time still runs.
    fn close(self) -> Check {
        // Killed with the client: at the end of its input the server would wait for the bystander.
        self.bystander_runs(Duration::ZERO)
    }

    fn pid(&self, victim: Victim) -> u32 {
        match victim {
            Victim::FrontEnd => self.client.child.id(),
            Victim::Supervisor => self.supervisor,
        }
    }
}

/// strace(1) at a process that runs.
struct Trace(Child);

impl Trace {
    fn attach(pid: u32, options: &[&str]) -> Result<Self, Failed> {
        let mut command = Command::new("strace");
        command.env("PATH", PATH).args(["-p", &pid.to_string()]).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut output = String::new();
        BufReader::new(child.stderr.take().ok_or("no pipe")?).read_line(&mut output)?;
        holds("attached", &output, output.contains("attached"))?;
        Ok(Self(child))
    }

    fn end(mut self) -> Check {
        kill(self.0.id(), Signal::SIGINT)?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.0.kill().unwrap_or_default();
        self.0.wait().map(drop).unwrap_or_default();
    }
}

/// Counts how often each system call that can fail is made.
fn counted(caller: &Caller, victim: Victim) -> Result<BTreeMap<String, usize>, Failed> {
    let log = caller.home.join("trace");
    let mut server = Server::start(caller)?;
    let trace = Trace::attach(server.pid(victim), &["-o", &log.display().to_string()])?;
    equal("without a fault", server.met()?, 0)?;
    trace.end()?;
    server.close()?;
    let mut counts = BTreeMap::new();
    for line in std::fs::read_to_string(log)?.lines() {
        if let Some((name, _)) = line.split_once('(') {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
    }
    Ok(counts)
}

fn each_fails_once(caller: &Caller, victim: Victim, can_fail: &[CanFail]) -> Check {
    let counts = counted(caller, victim)?;
    let mut server = Server::start(caller)?;
    let mut faults = 0;
    let mut failed = 0;
    for (name, errnos) in can_fail {
        let count = counts.get(*name).copied().unwrap_or(0);
        // Each place once, and each errno once.
        let rounds = if count == 0 { 0 } else { count.max(errnos.len()) };
        for round in 0..rounds {
            let errno = errnos.get(round % errnos.len()).ok_or("no errno")?;
            let inject = format!("inject={name}:error={errno}:when={}", round % count + 1);
            let output = |error: Failed| {
                let log = std::fs::read_to_string(log(caller)).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                let error = error.message().unwrap_or_default();
                Failed::from(format!("{inject}: {error}\nlogged last first: {last:#?}"))
            };
            if server.rounds == ROUNDS {
                std::mem::replace(&mut server, Server::start(caller)?).close().map_err(output)?;
            }
            let trace = Trace::attach(server.pid(victim), &["-o", "/dev/null", "-e", &inject])?;
            let met = server.met();
            trace.end()?;
            failed += met.map_err(output)?;
            server.still_works().map_err(output)?;
            faults += 1;
        }
    }
    server.close()?;
    let output = format!("{faults} faults, of which {failed} calls failed: {counts:?}");
    holds("faults met calls", &output, faults > 20 && failed > 0)?;
    let logged = std::fs::read_to_string(log(caller))?;
    let lines = logged.lines().filter(|line| line.contains(victim.logs())).count();
    holds("what failed is logged", (&output, &logged), lines > 0)
}
