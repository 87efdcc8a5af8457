//! The code that cofferdam gives the bash of a session: the loop that waits for calls, and the few lines
//! around each command.
//!
//! Nothing in here trusts the shell it runs in, which a command may have turned inside out:
//!
//! - Every word that is a command is quoted, so that no alias counts, and called by `builtin` or
//!   `command`, so that no function does.
//! - The lines around a command that has a directory, variables or an open input are in its file,
//!   with the number of the call as digits. All other commands share lines that are part of the loop,
//!   which bash parses once: half of what it does for a call would be to parse them. There a `for`
//!   holds the number in its list of words, where no command can change it.
//! - The one variable that outlives a call is written from that number at the end of each, and set
//!   negative while the shell is between two: a loop whose body did nothing (`set -n`, a function
//!   called `builtin`, `enable -n .`) meets a number that is not above zero, and ends. A shell that
//!   cannot continue ends; it never spins, and never takes a call twice.
//! - Streams are opened by path for each call, so a command may close every descriptor.
//! - The command is read from a file (`.`), never typed: quotes and here-documents end with it.
//! - A loop of one turn stands around it: `break` and `continue` end there.
//! - Bash leaves every redirection before an EXIT trap runs, so for the time of a call the shell's own
//!   output is the call's. Around the command stands a group without output: a DEBUG or ERR trap of
//!   the command's runs for our lines too, and prints nothing there. The group has its input as it was:
//!   with another, bash would leave that to commands in the background.

use std::fmt::Display;

use super::report::{RING, STARTED};
use super::{ROOM, SETSID, end_marks, path};
use cell::mounts::{MAILBOX, TERMINALS};
use model::call::{Cwd, Env};
use model::shells::ShellKind;
use model::wire::StdinKind;

const BASH: &str = "/bin/bash";

/// Trap that is set again at the end of each command, which may have set another: the shell must survive an INT that
/// comes late. On INT the shell unwinds to the end of the call, as a shell at a terminal does for ^C: a DEBUG trap
/// that returns 2 under `extdebug` makes bash return from whatever function or file it is in
/// (bash(1), shopt), until only ours is left: the program of the shell, in which no file is sourced, or the lines of a
/// call. It begins with the trap's own last command. Our lines continue
/// after it, so there it skips the command that was to come.
const ON_INTERRUPT: &str = concat!(
    r#"\builtin trap '[[ ${COFFERDAM_WAS-} ]] || { COFFERDAM_WAS=$-; ! \builtin shopt -q extdebug || COFFERDAM_WAS+=:; }; "#,
    r#"COFFERDAM_STOP=1; \builtin shopt -s extdebug; "#,
    r#"\builtin trap "[[ \${BASH_SOURCE-/dev/session/run.} == /dev/session/run.* ]] || \\builtin test -eq 0 2>/dev/null" DEBUG; "#,
    r#"\builtin :' INT"#,
);
/// Condition of the lines that undo the state that an INT left behind. Nothing else sets the variable to 0: an INT may
/// come between any two commands, and the next of these lines must see it.
const IS_STOPPED: &str = "((${COFFERDAM_STOP-0}))";
/// First step of undoing that state. The trap is removed here and not in [`UNSTOP`]: with functrace it would end that file.
const UNTRAPPED: &str = r"COFFERDAM_STOP=0; \builtin trap - DEBUG";
/// File of the mailbox with the remaining steps: a call whose shell was not interrupted does not parse them.
pub(super) const UNSTOP: &str = "unstop";
/// Contents of that file. A bash that is stopped while it waits for a child holds any further INT for that child's,
/// until it has waited for another: hence the subshell.
pub(super) const UNSTOP_LINES: &str = concat!(
    "\\builtin shopt -u extdebug\n",
    "[[ ${COFFERDAM_WAS-} != *E* ]] || \\builtin set -E\n",
    "[[ ${COFFERDAM_WAS-} != *T* ]] || \\builtin set -T\n",
    "[[ ${COFFERDAM_WAS-} != *: ]] || \\builtin shopt -s extdebug\n",
    "COFFERDAM_WAS=\n",
    "( ((1)) )\n",
);
/// Succeeds if a function hides `exec`: its redirections last under no other name. Prints the name, so it stands
/// where `/dev/null` takes the output.
const HAS_EXEC: &str = r"\builtin declare -F exec";
/// Number of the call that runs, and of the next, in the lines that all calls share.
const TURN: &str = "$COFFERDAM_TURN";
const NEXT: &str = "$COFFERDAM_NEXT";

/// Returns the program of a session's bash, whose first call has this number.
///
/// The gate is no standard input: for one, bash forks a child that opens it, which can be killed with the processes of a
/// call, and which each call would wait for. A signal does not end the opening. Once it is open, the call's own lines
/// run, if it has any, or those for a command without a directory and variables. `COFFERDAM_OPEN` stays 0 where no
/// command was run: then no end is reported.
pub(super) fn program(first: u64) -> String {
    let number = "$COFFERDAM_CALL";
    let gate = path("go", number);
    let lines = path("run", number);
    let undo = unstopped("");
    let open = open(TURN, None);
    let run = run("\\builtin", &path("cmd", TURN), TURN);
    let report = report(TURN, NEXT, None);
    format!(
        "{ON_INTERRUPT}\n\
         for ((COFFERDAM_CALL=-{first}; (COFFERDAM_OPEN=0, COFFERDAM_CALL=-COFFERDAM_CALL)>0; )); do \
         3<\"{gate}\" && {{\n{undo}\
         if [[ -s \"{lines}\" ]]; then \\builtin . \"{lines}\"; else\n\
         for COFFERDAM_TURN in \"-{number}\" \"{number}\"; do if ((COFFERDAM_TURN<0)); then\n\
         COFFERDAM_TURN=$((-COFFERDAM_TURN))\n\
         {open}{run}{SETTLED}{LEFT}\
         else\n\
         COFFERDAM_NEXT=$((COFFERDAM_TURN+1))\n\
         {report}\
         fi; done; fi; }}; done\n"
    )
}

/// Returns the lines around the command of call `number`, which is in a separate file; no lines if those of the loop do.
///
/// `env` and `cwd` are of this call alone. At its end the shell shows the exit code by the files that it holds open.
pub(super) fn lines(number: u64, env: &Env, cwd: Option<&Cwd>, input: StdinKind) -> String {
    let command = match input {
        StdinKind::Empty | StdinKind::Bytes if env.iter().next().is_none() && cwd.is_none() => {
            return String::new();
        }
        StdinKind::Empty | StdinKind::Bytes => path("cmd", number),
        StdinKind::Pipe | StdinKind::Terminal => path("fed", number),
    };
    let mut text = open(number, cwd);
    let source = source(env, &mut text);
    text.push_str(&run(&source, &command, number));
    if cwd.is_some() {
        text.push_str(&format!(
            "if ((COFFERDAM_OPEN==2)); then COFFERDAM_STATUS=1; fi\n\
             \\builtin cd -- \"$COFFERDAM_CWD\" || \\builtin cd {ROOM}\n"
        ));
    }
    text.push_str(SETTLED);
    text.push_str(LEFT);
    text.push_str(&report(number, number.saturating_add(1), None));
    text
}

/// Returns the redirections to the streams of a call.
fn streams(number: impl Display) -> String {
    let path = |name| path(name, &number);
    format!("<\"{}\" >|\"{}\" 2>|\"{}\"", path("in"), path("out"), path("err"))
}

/// Returns the lines that open the streams of a call, and enter its directory.
fn open(number: impl Display, cwd: Option<&Cwd>) -> String {
    let stdout = path("out", &number);
    let stderr = path("err", &number);
    let streams = streams(number);
    // The shell's own output becomes the call's. Not with functrace, by which a DEBUG trap would print at these lines.
    // Without streams nothing runs: with no descriptor free (`ulimit -n`), say.
    let mut text = format!(
        "[[ -o functrace ]] || {HAS_EXEC} || {{ \\exec >|\"{stdout}\" 2>|\"{stderr}\" && COFFERDAM_OPEN=1; }}\n\
         ((COFFERDAM_OPEN)) || {{ \\builtin : {streams} && COFFERDAM_OPEN=1; }}\n"
    );
    if let Some(cwd) = cwd {
        let cwd = ShellKind::Bash.quoted(cwd.as_str());
        text.push_str(&format!(
            "COFFERDAM_CWD=${{PWD-}}\n\\builtin cd -- {cwd} 2>|\"{stderr}\" || COFFERDAM_OPEN=2\n"
        ));
    }
    text
}

/// Returns the lines that run the command, in a group that [`SETTLED`] ends. `source` reads its file.
fn run(source: &str, command: &str, number: impl Display) -> String {
    let streams = streams(number);
    // The trap makes the file or function that it ends return 2.
    let undo = unstopped("((COFFERDAM_STATUS!=2)) || COFFERDAM_STATUS=130; ");
    format!(
        "COFFERDAM_STATUS=1\n\
         {{ for ((COFFERDAM_ONCE=COFFERDAM_OPEN==1; COFFERDAM_ONCE--; )); do \
         {source} . \"{command}\" {streams}; done\n\
         COFFERDAM_STATUS=$?\n\
         {ON_INTERRUPT}\n\
         {undo}"
    )
}

/// Returns the lines that start the command of call `number` next to the shell, which takes the next call at once.
///
/// The command runs in a copy of the shell, at its directory and with its variables, functions and options.
/// The copy leads a new process group, and its parent is init, which reports its end: the shell itself
/// has no further job, and its `$!` is unchanged. The copy waits until the subshell that started it is gone, which would reap it
/// otherwise, and reports its number, ended by NUL. If there is no copy, the shell reports the end of the call as of
/// any other.
pub(super) fn background(number: u64, env: &Env, cwd: Option<&Cwd>, input: StdinKind) -> String {
    let path = |name| path(name, number);
    let stderr = path("err");
    let end = path("end");
    let streams = streams(number);
    let mut copy = format!(
        "{{ \\builtin set +m; while \\builtin kill -0 \"$COFFERDAM_PARENT\"; do :; done; \
         \\builtin printf '{STARTED}%s\\0' \"$BASHPID\" >|{end}; }} >/dev/null 2>&1\n"
    );
    if let Some(cwd) = cwd {
        copy.push_str(&format!(
            "\\builtin cd -- {} || \\builtin exit 1\n",
            ShellKind::Bash.quoted(cwd.as_str())
        ));
    }
    let source = source(env, &mut copy);
    let command = match input {
        StdinKind::Empty | StdinKind::Bytes | StdinKind::Pipe => path("cmd"),
        StdinKind::Terminal => path("fed"),
    };
    copy.push_str(&format!("{source} . {command}\n"));
    let mut text = format!("COFFERDAM_STATUS=1\n{{\n\\builtin : {streams} && COFFERDAM_OPEN=1\n");
    text.push_str(&format!(
        "if ((COFFERDAM_OPEN)); then ( \\builtin set -m\nCOFFERDAM_PARENT=$BASHPID\n( {copy}) {streams} & ) 2>|{stderr}\n\
         COFFERDAM_STATUS=$?\nfi\n"
    ));
    text.push_str(SETTLED);
    text.push_str(LEFT);
    let silent = Some("COFFERDAM_STATUS==0");
    text.push_str(&report(number, number.saturating_add(1), silent));
    text
}

/// Returns the line that undoes the state that an INT left behind, and runs these commands if there was one.
fn unstopped(commands: &str) -> String {
    format!("if {IS_STOPPED}; then {commands}{UNTRAPPED}; \\builtin . {MAILBOX}/{UNSTOP}; fi\n")
}

/// Returns the words before `.` by which a file is read with these variables; adds the line to `text` that
/// they need.
fn source(env: &Env, text: &mut String) -> String {
    let mut words = String::new();
    for (name, value) in env.iter() {
        words.push_str(&format!("{name}={} ", ShellKind::Bash.quoted(value)));
    }
    // `builtin` does not export what stands before it; `command` does, and no function may stand
    // in its place then.
    if words.is_empty() {
        return "\\builtin".to_owned();
    }
    text.push_str("\\builtin unset -f command\n");
    words.push_str("\\command");
    words
}

/// The end of the group around the command. Without functrace no later call has a DEBUG trap, and ours would print at the
/// next line.
const SETTLED: &str = concat!(
    "[[ -o functrace ]] || \\builtin trap - DEBUG\n",
    "COFFERDAM_ONCE=1; \\builtin declare -F exec || COFFERDAM_ONCE=0\n",
    "} >/dev/null 2>&1\n",
);
/// The line by which the shell lets the streams of the call go.
const LEFT: &str = "((COFFERDAM_ONCE)) || \\exec >/dev/null 2>&1\n";

/// Returns the lines by which the shell shows the end and waits for the next call.
///
/// If `silent`, an arithmetic expression, is true, another process reports the end, or has reported it: then the
/// call's files are gone.
fn report(number: impl Display, next: impl Display, silent: Option<&str>) -> String {
    let end = path("end", &number);
    let end_marks = end_marks(number, "$((COFFERDAM_STATUS>>4))", "$((COFFERDAM_STATUS&15))");
    let gate = path("go", &next);
    // A shell that may be unable to continue does not report, and ends: `builtin` may have become a function that
    // does nothing, and one of our names a constant, at which bash drops the rest of its line. If
    // there is nothing to report to, the call was ended otherwise, and the next may be waiting.
    let is_reported = match silent {
        Some(silent) => format!("(({silent})) || "),
        None => String::new(),
    };
    format!(
        "COFFERDAM_SURE=0\n\
         ((COFFERDAM_CALL=COFFERDAM_ONCE=0, COFFERDAM_STOP=${{COFFERDAM_STOP-0}}, \
         COFFERDAM_OPEN=COFFERDAM_OPEN, COFFERDAM_STATUS=COFFERDAM_STATUS, 1)) && COFFERDAM_CWD= && \
         \\builtin printf -v COFFERDAM_SURE \"{next}\"\n\
         if ((COFFERDAM_OPEN && COFFERDAM_SURE=={next})); then \
         if {is_reported}[[ ! -p \"{end}\" ]]; then COFFERDAM_CALL=\"-{next}\"; else {{ \
         \\builtin printf {RING} >|\"{end}\" && COFFERDAM_CALL=\"-{next}\" && 3<\"{gate}\"; }} {end_marks}; fi; fi\n"
    )
}

/// Returns the line before a command whose input is a pipe.
pub(super) fn piped_input(number: u64) -> String {
    let end = path("end", number);
    let command = path("cmd", number);
    format!("\\builtin printf {RING} >|{end}; \\builtin . {command}\n")
}

/// Returns the line that runs a command at a terminal: in a separate bash, the first process of a new session whose
/// controlling terminal it is. The shell's session must not have it: the shell would lose it with each call and get its
/// signals. So a subshell opens it, which gets no controlling terminal by opening one.
pub(super) fn at_terminal(number: u64, terminal: u32) -> String {
    let command = path("cmd", number);
    let path = format!("{TERMINALS}/{terminal}");
    format!("( \\builtin exec {SETSID} -c -w {BASH} {command} <{path} >|{path} 2>&1 )\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bash_parses_no_lines_for_a_plain_command() {
        let env = Env::default();
        for input in [StdinKind::Empty, StdinKind::Bytes] {
            assert_eq!(lines(7, &env, None, input), "", "{input:?}");
        }
        // The control: what the shared lines cannot do is in lines of the call.
        let cwd = Cwd::workspace();
        let elsewhere = lines(7, &env, Some(&cwd), StdinKind::Empty);
        assert!(elsewhere.contains("\\builtin cd -- "), "{elsewhere}");
        let fed = lines(7, &env, None, StdinKind::Pipe);
        assert!(fed.contains("/dev/session/fed.7"), "{fed}");
    }
}
