//! Crashes in a cell on hosts with a core dump handler. The handler is set for the whole machine, so these run only in
//! a virtual machine of tests/kernels.

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{
    Caller, Check, Claim, Failed, Finished, For, Live, Need, claim, equal, holds, kill, mode,
    patience,
};

pub const CLAIMS: &[Claim] = &[
    claim("a_crash_starts_no_program_of_the_host", pipe).needs(&[Need::OwnKernel]),
    claim("a_core_limit_of_0_is_refused_with_a_handler", hard_limit)
        .only(For::User)
        .needs(&[Need::OwnKernel]),
    claim("doctor_and_receipts_name_a_crash_socket", socket).needs(&[Need::OwnKernel]),
    claim("a_socket_gets_a_crash_whatever_the_limit", handed_over).needs(&[Need::CrashSocket]),
];

const PATTERN: &str = "/proc/sys/kernel/core_pattern";
/// Handlers that the kernel runs at a time. Where it has a number, it waits for the end of each.
const AT_A_TIME: &str = "/proc/sys/kernel/core_pipe_limit";

/// The pattern is one for the whole machine.
static CHANGED: Mutex<()> = Mutex::new(());

/// The machine with a `core_pattern` of the test, until it is let go.
struct Machine {
    before: Vec<(&'static str, Vec<u8>)>,
    directory: tempfile::TempDir,
    _held: MutexGuard<'static, ()>,
}

impl Machine {
    /// A machine that has this pattern.
    fn with_pattern(pattern: &str) -> Result<Self, Failed> {
        let held = CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = Vec::new();
        for file in [PATTERN, AT_A_TIME] {
            before.push((file, std::fs::read(file)?));
        }
        let directory = tempfile::tempdir_in("/run")?;
        mode(directory.path(), 0o755)?;
        let machine = Self { before, directory, _held: held };
        std::fs::write(AT_A_TIME, "64")?;
        machine.set_pattern(pattern)?;
        Ok(machine)
    }

    /// A machine on which a crash starts a program that writes a line: the process's name and its limit of core files.
    fn with_handler() -> Result<Self, Failed> {
        let machine = Self::with_pattern("core")?;
        let handler = machine.directory.path().join("handler");
        let script = format!("#!/bin/bash\necho \"$*\" >>{}\n", machine.log().display());
        std::fs::write(&handler, script)?;
        mode(&handler, 0o755)?;
        machine.set_pattern(&format!("|{} %e %c", handler.display()))?;
        Ok(machine)
    }

    fn set_pattern(&self, pattern: &str) -> Check {
        Ok(std::fs::write(PATTERN, pattern)?)
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Returns what the handler has written; a crashed process is reaped only after its handler has ended.
    fn handled(&self) -> Result<String, Failed> {
        match std::fs::read_to_string(self.log()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            read => Ok(read?),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for (file, text) in &self.before {
            std::fs::write(file, text).expect("root of this machine sets it");
        }
    }
}

/// Twenty crashes, one after another; prints how many there were.
const TWENTY: &str = "n=0; for i in {1..20}; do bash -c 'kill -SEGV $$'; [ $? = 139 ] && n=$((n + 1)); done 2>/dev/null; echo $n";

/// A command of the caller's outside of any cell, with 0 as its soft and hard limit of core files.
fn without_core_files(caller: &Caller, words: &[&str]) -> Result<Finished, Failed> {
    let mut command = caller.outside("/bin/bash");
    command.args(["-c", "ulimit -c 0; exec \"$@\"", "bash"]).args(words);
    Finished::run(command, patience())
}

/// Crashes a process outside of any cell that has the limit 0.
fn crash_outside(caller: &Caller, machine: &Machine) -> Check {
    let program = machine.directory.path().join("control");
    if !program.exists() {
        std::os::unix::fs::symlink("/bin/bash", &program)?;
    }
    let program = program.display().to_string();
    let output = without_core_files(caller, &[&program, "-c", "kill -SEGV $$"])?;
    equal("the control crashes", output.code, 1000 + nix::libc::SIGSEGV)
}

fn pipe(caller: &Caller) -> Check {
    let machine = Machine::with_handler()?;
    crash_outside(caller, &machine)?;
    // The control: a limit of 0 does not keep the handler from being started.
    equal("handlers", machine.handled()?, "control 0\n")?;

    equal("crashes of a cell", caller.bash(TWENTY)?.trimmed(), "20")?;
    let mut server = Server::of(caller.cofferdam(&["serve", "--tools", "shell,exec"]));
    let mut says = |tool: &str, mut arguments: Value, command: &str| {
        if let Some(fields) = arguments.as_object_mut() {
            fields.insert("command".to_owned(), json!(command));
        }
        let result = server.result(tool, arguments);
        let text = |place| result.pointer(place).and_then(Value::as_str).map(str::trim);
        text("/structuredContent/stdout").unwrap_or(&result.to_string()).to_owned()
    };
    equal("crashes of a fresh cell", says("bash_exec", json!({}), TWENTY), "20".to_owned())?;
    let session = || json!({ "session": "s" });
    equal("crashes of a session", says("bash", session(), TWENTY), "20".to_owned())?;
    says("bash", session(), "kill -SEGV $$");
    equal("code", server.close(), Some(0))?;

    let front: Live = caller.live(&[], "sleep 60")?;
    // The standard library handles SIGSEGV.
    kill(front.pid(), Signal::SIGABRT)?;
    let answer = front.finish(patience())?;
    equal("the front end crashes", answer.code, 1000 + nix::libc::SIGABRT)?;

    crash_outside(caller, &machine)?;
    equal("handlers", machine.handled()?, "control 0\ncontrol 0\n")
}

fn hard_limit(caller: &Caller) -> Check {
    let machine = Machine::with_handler()?;
    let program = caller.binary().display().to_string();
    let run = || without_core_files(caller, &[&program, "run", "--", "echo", "ran"]);
    let output = run()?;
    equal("exit code", output.code, 125)?;
    let reason = "a crash would start the host's core handler: the limit of core files is 0 0 here, and only 1 prevents that";
    holds("the reason", &output, output.stderr.contains(reason))?;
    // The control: a limit of 0 is as good where crashes are written to files.
    machine.set_pattern("core")?;
    equal("with a file", run()?.trimmed(), "ran")?;
    equal("handlers", machine.handled()?, "")
}

fn socket(caller: &Caller) -> Check {
    // Linux before 6.16 takes it for the name of a file, and cofferdam reads no version of a kernel.
    let machine = Machine::with_pattern("@/run/crashes.socket")?;
    let lacks = || {
        let answer = caller.json(&[], &["true"])?;
        Ok::<_, Failed>(answer.pointer("/receipt/lacks").cloned().unwrap_or_default())
    };
    let note = "a crash in a cell is handed to the host's core handler: kernel.core_pattern is a socket, which heeds no limit \
                (as root: sysctl -w kernel.core_pattern=core, or a pattern that begins with `|`)";
    equal("lacks", lacks()?, json!([note]))?;
    let layer = || {
        let answer = Finished::run(caller.cofferdam(&["doctor", "--json"]), patience())?;
        let report: Value = serde_json::from_str(&answer.stdout)?;
        let layers = report.get("layers").and_then(Value::as_array).cloned().unwrap_or_default();
        let named = |layer: &&Value| layer.get("name") == Some(&json!("core dumps"));
        let state = layers.iter().find(named).and_then(|layer| layer.get("state")).cloned();
        Ok::<_, Failed>(state.unwrap_or_default())
    };
    equal("doctor", layer()?, json!("weak"))?;
    // The control.
    machine.set_pattern("core")?;
    equal("lacks", lacks()?, Value::Null)?;
    equal("doctor", layer()?, json!("ok"))
}

/// Returns what a socket is handed while `crash` waits for the end of a process.
fn taken(machine: &Machine, name: &str, crash: impl FnOnce() -> Check) -> Result<Vec<u8>, Failed> {
    let path = machine.directory.path().join(name);
    let listener = UnixListener::bind(&path)?;
    machine.set_pattern(&format!("@{}", path.display()))?;
    let taken = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        listener.accept()?.0.read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    });
    crash()?;
    // Ends the wait where nothing was handed over; else nothing listens any more.
    drop(UnixStream::connect(&path));
    Ok(taken.join().map_err(|_| Failed::from("the thread panicked"))??)
}

/// The limit of 1, which stops a pipe, does not stop a socket: what receipts say is so.
fn handed_over(caller: &Caller) -> Check {
    const ELF: &[u8] = b"\x7fELF";
    const CRASH: &str = "grep '^Max core' /proc/self/limits; bash -c 'kill -SEGV $$'; echo $?";
    let machine = Machine::with_pattern("core")?;
    let outside = taken(&machine, "outside", || crash_outside(caller, &machine))?;
    holds("the control", outside.len(), outside.starts_with(ELF))?;
    let inside = taken(&machine, "inside", || {
        let output = caller.bash(CRASH)?;
        let is_limited = output.stdout.starts_with("Max core file size        1 ");
        holds("the crash", &output, is_limited && output.trimmed().ends_with("139"))
    })?;
    holds("the memory of the cell", inside.len(), inside.starts_with(ELF))
}
