//! The ends of runs with a layer: what a person is shown and asked, reviews at the same time, and a layer
//! that is too large for another start.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::layers::{in_layer, project, review, reviewed};
use crate::support::{
    Caller, Check, Claim, Failed, Finished, Live, Need, claim, equal, holds, patience,
};

pub const CLAIMS: &[Claim] = &[
    claim("a_run_that_leaves_changes_names_the_review", named),
    claim("a_person_at_a_terminal_says_what_becomes_of_the_changes", asked).needs(&[Need::Python]),
    claim("a_signal_to_a_run_at_a_terminal_ends_its_program", ended_at_terminal)
        .needs(&[Need::Python]),
    claim("a_run_ends_when_its_terminal_is_closed", closed_terminal).needs(&[Need::Python]),
    claim("an_answer_is_for_the_changes_that_were_shown", changed_since).needs(&[Need::Python]),
    claim("two_applies_of_layers_of_one_directory_wait_for_each_other", at_once)
        .needs(&[Need::Python]),
    claim("a_layer_above_its_limit_gets_no_new_start", limited),
];

/// Returns the line at the end of a run that leaves changes.
pub(crate) fn at_end(path: &str) -> String {
    format!(
        "cofferdam: the directory is as before; changes are in its layer: cofferdam review {path}\n"
    )
}

fn named(caller: &Caller) -> Check {
    let path = project(caller, "project", "mkdir d; echo a > d/a; echo b > b")?;
    // The first mount makes the layer's mark at its top.
    equal("mounts", in_layer(caller, &path, "true")?.code, 0)?;
    equal("reads", in_layer(caller, &path, "cat d/a b")?.stderr, String::new())?;
    let changed = in_layer(caller, &path, "echo c >> b; exit 7")?;
    equal("changes", (changed.code, changed.stderr), (7, at_end(&path)))?;
    // A later run that changes nothing leaves what was there.
    equal("again", in_layer(caller, &path, "true")?.stderr, at_end(&path))?;
    let json = caller.run(&["--cow", &path, "--json"], &["true"])?;
    equal("with --json", (json.code, json.stderr), (0, String::new()))?;
    equal("discarded", review(caller, &["--discard", &path])?.code, 0)?;
    // A change deep in the directory shows at the top too.
    equal("deep", in_layer(caller, &path, "echo c >> d/a")?.stderr, at_end(&path))
}

/// Runs a command at a terminal: writes each answer after the text that asks for it, and prints what the
/// terminal has shown and the exit code. The answer `TERM` is a signal instead, `CLOSE` closes the terminal,
/// and before one after `LATER` another run makes a file.
const AT_TERMINAL: &str = r#"
import os, pty, signal, subprocess, sys
answers = [tuple(pair.split('=')) for pair in sys.argv[1].split(';') if pair]
pid, terminal = pty.fork()
if pid == 0: os.execv(sys.argv[2], sys.argv[2:])
shown = b''; last = 0
while True:
    try: part = os.read(terminal, 4096)
    except OSError: break
    if not part: break
    shown += part
    while answers and answers[0][0].encode() in shown[last:]:
        text, answer = answers.pop(0)
        last = shown.index(text.encode(), last) + len(text)
        if answer == 'TERM': os.kill(pid, signal.SIGTERM); continue
        if answer == 'CLOSE': os.close(terminal); break
        if answer.startswith('LATER '):
            path = sys.argv[sys.argv.index('--cow') + 1]
            none = {'stdin': subprocess.DEVNULL, 'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}
            subprocess.run([sys.argv[2], 'run', '--cow', path, '--', 'touch', 'later'], check=True, **none)
        os.write(terminal, answer.split()[-1].encode() + b'\n' if answer else b'\n')
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.stdout.buffer.write(shown.replace(b'\r', b'') + b'exit code %d\n' % code)
"#;

fn at_terminal(caller: &Caller, answers: &str, arguments: &[&str]) -> Result<Finished, Failed> {
    let mut command = caller.outside("/usr/bin/python3");
    command.args(["-c", AT_TERMINAL, answers]).arg(caller.binary()).args(arguments);
    Finished::run(command, patience())
}

fn asked(caller: &Caller) -> Check {
    const QUESTION: &str = "[keep] ";
    let path = project(caller, "project", "echo a > a; echo gone > gone")?;
    let run = |answers: &[&str], script: &str| {
        let answers: Vec<String> =
            answers.iter().map(|answer| format!("{QUESTION}={answer}")).collect();
        let arguments = ["run", "--no-tty", "--cow", &path, "--", "bash", "-c", script];
        Ok::<String, Failed>(at_terminal(caller, &answers.join(";"), &arguments)?.stdout)
    };
    let read = |name: &str| std::fs::read_to_string(Path::new(&path).join(name)).ok();
    let shown = run(&[], "cat a")?;
    equal("without a change", shown.as_str(), "a\nexit code 0\n")?;
    let shown = run(&["d", ""], "echo b >> a; rm gone; echo x > new; echo x > .envrc; exit 7")?;
    let lines = [
        format!("cofferdam: changes to {path}: 2 added, 1 changed, 1 deleted, 1 held back\n"),
        "\n  M a\n  D gone\n  A new\n".to_owned(),
        format!("cofferdam: kept; cofferdam review {path}\nexit code 7\n"),
    ];
    for line in &lines {
        holds(line, &shown, shown.contains(line.as_str()))?;
    }
    equal("two questions", shown.matches(QUESTION).count(), 2)?;
    equal("kept", (read("a"), read("new")), (Some("a\n".to_owned()), None))?;
    let shown = run(&["diff", "apply"], "true")?;
    holds("the lines", &shown, shown.contains("\n+b\n"))?;
    equal("applied", read("a").as_deref(), Some("a\nb\n"))?;
    equal("what is held back", reviewed(caller, &[&path])?.1.lines().count(), 1)?;
    let shown = run(&["discard"], "true")?;
    holds("discarded", &shown, shown.contains("cofferdam: discarded the layer project-"))?;
    equal("nothing is left", reviewed(caller, &["--list"])?, (0, String::new()))
}

fn ended_at_terminal(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    // The handler shows that the program was asked to end, and not killed.
    let script =
        "trap 'echo ended > ended; exit 3' TERM; echo ready; while :; do read -t 1000; done";
    let arguments = ["run", "--no-tty", "--cow", &path, "--", "bash", "-c", script];
    let shown = at_terminal(caller, "ready=TERM;[keep] =", &arguments)?.stdout;
    holds("asked", &shown, shown.contains(": 1 added\n  A ended\n"))?;
    holds("the code of SIGTERM", &shown, shown.ends_with("\nexit code 143\n"))
}

fn closed_terminal(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let script =
        "trap 'echo ended > ended; exit 3' HUP TERM; echo ready; while :; do read -t 1000; done";
    // The process that waits for the run leads the session here, and has the signal alone.
    let arguments = ["run", "--no-tty", "--cow", &path, "--", "bash", "-c", script];
    let shown = at_terminal(caller, "ready=CLOSE", &arguments)?.stdout;
    equal("its code", shown.as_str(), "ready\nexit code 143\n")?;
    equal("kept", reviewed(caller, &[&path])?.1, "A ended".to_owned())
}

fn changed_since(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let arguments = ["run", "--no-tty", "--cow", &path, "--", "bash", "-c", "echo new > new"];
    for (answer, what) in [("apply", "applied"), ("discard", "discarded")] {
        let shown = at_terminal(caller, &format!("[keep] =LATER {answer}"), &arguments)?.stdout;
        let line = format!("cofferdam: review: nothing was {what}: the list has changed\n");
        holds(&line, &shown, shown.contains(&line))?;
        let end = format!("cofferdam: kept; cofferdam review {path}\nexit code 0\n");
        holds(&end, &shown, shown.ends_with(&end))?;
        equal("kept", reviewed(caller, &[&path])?.1, "A later\nA new".to_owned())?;
        holds("on the host", &path, !Path::new(&path).join("new").exists())?;
    }
    // The control: without another run the answer holds.
    let shown = at_terminal(caller, "[keep] =discard", &arguments)?.stdout;
    holds("discarded", &shown, shown.contains("cofferdam: discarded the layer project-"))?;
    equal("nothing is left", reviewed(caller, &["--list"])?, (0, String::new()))
}

fn at_once(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let script = "echo first > first; echo made; exec sleep 1000";
    let mut first = caller.live(&["--cow", &path], script)?;
    equal("made", first.line()?.as_str(), "made")?;
    in_layer(caller, &path, "echo second > second")?;
    drop(first);
    let list = review(caller, &["--list"])?.stdout;
    let ids: Vec<&str> = list.lines().filter_map(|line| line.split("  ").next()).collect();
    let [first, second] = ids.as_slice() else { return Err(list.into()) };
    // Holds what a review holds while it applies the changes of a third layer.
    let layers = caller.home.join(".local/state/cofferdam/layers").display().to_string();
    let hold = format!(
        "import fcntl, os, sys
held = os.open('{layers}', os.O_RDONLY)
fcntl.flock(held, fcntl.LOCK_EX)
print('ready', flush=True)
sys.stdin.read()"
    );
    let mut holder = caller.outside("/usr/bin/python3");
    let holder = Live::start({
        holder.args(["-c", &hold]).stdin(Stdio::piped());
        holder
    })?;
    let mut waits = caller.cofferdam(&["review", &path, "--apply", "--layer", first]);
    let mut waits = waits.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut errors = BufReader::new(waits.stderr.take().ok_or("no standard error")?);
    let mut line = String::new();
    errors.read_line(&mut line)?;
    equal(
        "waits",
        line.as_str(),
        "cofferdam: waiting until another review has applied its changes\n",
    )?;
    // Lists do not wait.
    equal("a list", review(caller, &[&path, "--layer", second])?.trimmed(), "A second")?;
    holds("nothing is applied", &path, !Path::new(&path).join("first").exists())?;
    drop(holder);
    equal("applied then", waits.wait()?.code(), Some(0))?;
    equal("the control", std::fs::read_to_string(format!("{path}/first"))?, "first\n")?;
    let applied = review(caller, &[&path, "--apply", "--layer", second])?;
    equal(&applied.stderr, applied.code, 0)?;
    equal("the second", std::fs::read_to_string(format!("{path}/second"))?, "second\n")
}

fn limited(caller: &Caller) -> Check {
    let path = project(caller, "project", "echo a > a")?;
    let config = caller.directory("config")?;
    let with = |keys: &str| -> Result<Finished, Failed> {
        std::fs::write(
            config.join("cofferdam.toml"),
            format!("schema = 1\n[workspace]\n{keys}\n"),
        )?;
        let config = config.display().to_string();
        let words = ["--config", &config, "run", "--cow", &path, "--", "true"];
        Finished::run(caller.cofferdam(&words), patience())
    };
    in_layer(caller, &path, "head -c 300000 /dev/zero > b; mkdir -p c/d")?;
    for (keys, code, text) in [
        ("layer_bytes = \"200K\"", 125, "-1 takes more than 200K, the limit of a layer"),
        ("layer_files = 2", 125, "-1 has more than 2 files, the limit of a layer"),
        ("layer_bytes = \"1M\"\nlayer_files = 3", 0, "cofferdam review"),
    ] {
        let output = with(keys)?;
        equal(&output.stderr, output.code, code)?;
        holds(text, &output.stderr, output.stderr.contains(text))?;
        // The way out.
        holds(
            "the review",
            &output.stderr,
            output.stderr.contains(&format!("cofferdam review {path}")),
        )?;
    }
    equal("applied", review(caller, &[&path, "--apply"])?.code, 0)?;
    equal("a start after that", with("layer_files = 2")?.code, 0)
}
