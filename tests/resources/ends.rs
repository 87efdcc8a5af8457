//! The report of each way a call can end, and the absence of remains afterwards.

use std::time::Duration;

use crate::support::{
    Caller, Check, Claim, Finished, Held, Need, claim, equal, gone, holds, kill, patience, present,
    soon,
};
use nix::sys::signal::Signal;
use serde_json::json;

pub const CLAIMS: &[Claim] = &[
    claim("the_exit_code_is_the_programs", own_code),
    claim("a_signal_is_reported_as_128_plus_its_number", signal),
    claim("json_separates_program_codes_from_cofferdams", mimicry),
    claim("a_program_that_is_not_there_is_127_with_a_hint", not_found),
    claim("a_program_that_cannot_be_executed_is_126", not_executable),
    claim("a_directory_that_is_not_there_is_125", no_directory),
    claim("an_unknown_profile_is_125", no_profile),
    claim("a_background_child_does_not_hold_the_call", background),
    claim("interrupt_and_terminate_take_the_call_back", taken_back),
    claim("the_death_of_cofferdam_is_the_death_of_the_cell", killed),
    claim("the_death_of_the_supervisor_is_answered", supervisor_killed),
    claim("the_death_of_init_is_answered", init_killed),
    claim("a_stopped_program_does_not_outlast_its_time", stopped),
    claim("a_slow_ending_cell_is_answered_in_two_seconds", slow_to_die).needs(&[Need::Python]),
    claim("closed_output_ends_the_call", output_without_reader),
];

fn own_code(caller: &Caller) -> Check {
    for code in [0, 1, 2, 42, 122, 255] {
        let output = caller.bash(&format!("echo out; echo err >&2; exit {code}"))?;
        let streams = (output.code, output.stdout.as_str(), output.stderr.as_str());
        equal("code and streams", streams, (code, "out\n", "err\n"))?;
    }
    Ok(())
}

fn signal(caller: &Caller) -> Check {
    for (name, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("USR1", 10), ("HUP", 1)] {
        let output = caller.bash(&format!("kill -{name} $$"))?;
        equal(name, output.code, 128 + number)?;
        let output = caller.json(&[], &["bash", "-c", &format!("kill -{name} $$")])?;
        let ended = (output.get("outcome"), output.get("signal"));
        equal(name, ended, (Some(&json!("signaled")), Some(&json!(number)))).or_else(|_| {
            equal(name, ended, (Some(&json!("signaled")), Some(&json!(format!("SIG{name}")))))
        })?;
    }
    Ok(())
}

fn mimicry(caller: &Caller) -> Check {
    for code in [123, 124, 125, 126, 127, 137] {
        let script = format!("echo 'cofferdam: supervisor failure' >&2; exit {code}");
        let report = caller.json(&[], &["bash", "-c", &script])?;
        let ended = (report.get("outcome"), report.get("exit_code"));
        equal("outcome and code", ended, (Some(&json!("exited")), Some(&json!(code))))?;
    }
    Ok(())
}

const HINT: &str = "hint: not in this cell; the operator can grant it with --ro\n";

fn not_found(caller: &Caller) -> Check {
    for name in ["no-such-program", "/usr/bin/no-such", "./none"] {
        let output = caller.run(&[], &[name])?;
        let expected = format!("cofferdam: `{name}` was not found\n{HINT}");
        equal(
            name,
            (output.code, output.stdout.as_str(), output.stderr.as_str()),
            (127, "", expected.as_str()),
        )?;
    }
    let output = caller.json(&[], &["no-such-program"])?;
    equal("as JSON", output.get("outcome"), Some(&json!("failed")))
}

fn not_executable(caller: &Caller) -> Check {
    for path in ["/etc/passwd", "/usr", "/dev/null"] {
        let output = caller.run(&[], &[path])?;
        let expected =
            format!("cofferdam: `{path}` cannot be executed: permission denied (EACCES)\n");
        equal(path, (output.code, output.stderr), (126, expected))?;
    }
    let plain = caller.file("plain", "no magic\n")?;
    crate::support::mode(&plain, 0o755)?;
    let output = caller.run(&["--ro", &plain.display().to_string()], &["/mnt/plain"])?;
    holds("no format", &output, output.code == 126 && output.stderr.contains("ENOEXEC"))
}

fn no_directory(caller: &Caller) -> Check {
    let output = caller.run(&["--cwd", "/workspace/none"], &["true"])?;
    let expected = "cofferdam: cwd `/workspace/none` cannot be entered: no such file or directory (ENOENT)\n\
        hint: create it first, or start in /workspace\n";
    equal("absent", (output.code, output.stderr.as_str()), (125, expected))?;
    for path in ["/etc", "/", "../x", "/workspace/../etc"] {
        let output = caller.run(&["--cwd", path], &["true"])?;
        holds(path, &output, output.code == 125 && output.stderr.starts_with("cofferdam: --cwd"))?;
    }
    equal(
        "one that is there",
        caller.run(&["--cwd", "/tmp/home"], &["pwd"])?.trimmed(),
        "/tmp/home",
    )
}

fn no_profile(caller: &Caller) -> Check {
    let output = caller.run(&["--profile", "none"], &["true"])?;
    holds(
        "no such directory",
        &output,
        output.code == 125 && output.stderr.starts_with("cofferdam: ") && output.stdout.is_empty(),
    )?;
    let output = caller.run(&["--profile", "../bash"], &["true"])?;
    holds(
        "a path",
        &output,
        output.code == 125 && output.stderr.contains("is not a profile's name"),
    )
}

/// Returns a number of seconds that no other test sleeps, by which this test's processes are found.
fn sentinel(caller: &Caller, kind: u32) -> String {
    format!("{}{}.{kind}", 8_000_000 + std::process::id(), caller.uid())
}

fn background(caller: &Caller) -> Check {
    let seconds = sentinel(caller, 1);
    let output =
        caller.bash(&format!("sleep {seconds} & (setsid sleep {seconds} &); echo done"))?;
    equal("the call", (output.code, output.trimmed()), (0, "done"))?;
    holds("at once", output.took, output.took < soon(5))?;
    equal("from outside", gone(&seconds, patience()), Vec::<u32>::new())
}

/// Checks a cell with sleepers of three kinds from outside.
fn sleepers(
    caller: &Caller,
    kind: u32,
) -> Result<(crate::support::Live, String), crate::support::Failed> {
    let seconds = sentinel(caller, kind);
    let script = format!(
        "sleep {seconds} & (setsid sleep {seconds} &); trap '' TERM; (trap '' TERM INT; sleep {seconds}) & \
         echo started; wait; sleep 60"
    );
    let mut live = caller.live(&[], &script)?;
    live.line()?;
    equal("sleepers seen from outside", present(&seconds, 3, patience()), 3)?;
    Ok((live, seconds))
}

fn taken_back(caller: &Caller) -> Check {
    for (kind, signal, code) in [(2, Signal::SIGINT, 130), (3, Signal::SIGTERM, 143)] {
        let (live, seconds) = sleepers(caller, kind)?;
        live.signal(signal)?;
        let output = live.finish(soon(30))?;
        equal("code", output.code, code)?;
        holds("within the grace", output.took, output.took < soon(20))?;
        equal("from outside", gone(&seconds, patience()), Vec::<u32>::new())?;
    }
    Ok(())
}

fn killed(caller: &Caller) -> Check {
    let (live, seconds) = sleepers(caller, 4)?;
    let supervisor = live.supervisor()?;
    let init = live.init()?;
    live.signal(Signal::SIGKILL)?;
    // No `finish`: the sleepers hold standard output until they are gone.
    equal("from outside", gone(&seconds, patience()), Vec::<u32>::new())?;
    for pid in [supervisor, init] {
        let state =
            || crate::support::status(pid).ok().map(|status| status.get("State").to_owned());
        let end = std::time::Instant::now() + soon(2);
        let mut seen = state();
        // The process that inherited them may reap them late: a zombie is no process.
        while seen.as_ref().is_some_and(|state| !state.starts_with('Z'))
            && std::time::Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(5));
            seen = state();
        }
        let ended = seen.as_ref().is_none_or(|state| state.starts_with('Z'));
        holds("nothing of cofferdam", &seen, ended)?;
    }
    Ok(())
}

fn supervisor_killed(caller: &Caller) -> Check {
    let (live, seconds) = sleepers(caller, 5)?;
    kill(live.supervisor()?, Signal::SIGKILL)?;
    let output = live.finish(soon(30))?;
    equal(
        "answer",
        (output.code, output.stderr.as_str()),
        (125, "cofferdam: supervisor failure\n"),
    )?;
    equal("from outside", gone(&seconds, patience()), Vec::<u32>::new())
}

fn init_killed(caller: &Caller) -> Check {
    let (live, seconds) = sleepers(caller, 6)?;
    kill(live.init()?, Signal::SIGKILL)?;
    let output = live.finish(soon(30))?;
    equal(
        "answer",
        (output.code, output.stderr.as_str()),
        (125, "cofferdam: the cell ended without a report\n"),
    )?;
    equal("from outside", gone(&seconds, patience()), Vec::<u32>::new())
}

fn stopped(caller: &Caller) -> Check {
    let output = caller
        .run(&["--timeout", "1s"], &["bash", "-c", "echo before; kill -STOP $$; echo after"])?;
    equal("code", (output.code, output.trimmed()), (124, "before"))?;
    holds("in time", output.took, output.took < soon(20))
}

fn slow_to_die(caller: &Caller) -> Check {
    let directory = caller.directory("slow")?;
    let directory = directory.display().to_string();
    for (kind, options) in [(5, &[][..]), (7, &["--rw", &directory][..])] {
        let seconds = sentinel(caller, kind);
        let options = [&["--timeout", "3s"][..], options].concat();
        let live = caller.live(&options, &format!("sleep {seconds}"))?;
        let slow = Held::with_argument(&seconds)?;
        // Without the bound there is no answer at all: the cell is dying until it is let go. Three seconds are the
        // limit and two are for its death; the rest is for a busy machine.
        let output = live.finish(soon(10))?;
        equal("it timed out", output.code, 124)?;
        holds("the control: the cell is still on its way out", &output, slow.is_dying())?;
        slow.let_go()?;
    }
    Ok(())
}

fn output_without_reader(caller: &Caller) -> Check {
    let binary = caller.binary().display().to_string();
    let line = format!("{binary} run -- yes | head -1; echo ${{PIPESTATUS[0]}}");
    let mut command = caller.outside("/bin/bash");
    command.args(["-c", &line]);
    let output = Finished::run(command, patience())?;
    equal("like a program that gets SIGPIPE", output.trimmed(), "y\n141")
}
