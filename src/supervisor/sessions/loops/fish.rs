//! The loop of fish.

use super::report::RING;
use super::{CallLines, ROOM, end_marks, loop_words, path};
use cell::mounts::MAILBOX;
use model::shells::ShellKind;
use model::wire::StdinKind;

/// File that gets the errors of fish itself. It writes them to the standard error that it began with, which no
/// redirection of its language changes.
const ERRORS: &str = "/proc/$fish_pid/fd/2";
/// Program that fish executes to have such a file, and that executes fish with `$0` as its program.
const WITH_ERRORS: &str =
    "exec 2>>/tmp/.fish-errors && rm -f /tmp/.fish-errors; exec fish --no-config -c \"$0\"";

/// Returns the program of a session's fish, whose first call has this number.
pub(super) fn program(first: u64) -> String {
    let turns = loop_words();
    let text = format!(
        "set -g COFFERDAM_CALL {first}\n\
         for COFFERDAM_A in {turns}; for COFFERDAM_B in {turns}; for COFFERDAM_C in {turns}\n\
         builtin string match -qr '^[0-9]+$' -- \"$COFFERDAM_CALL\"; or exit 125\n\
         set -g COFFERDAM_NOW $COFFERDAM_CALL; set -g COFFERDAM_CALL\n\
         builtin true <\"{MAILBOX}/go.$COFFERDAM_NOW\"; or exit 125\n\
         builtin source \"{MAILBOX}/run.$COFFERDAM_NOW\"\n\
         end; end; end\n"
    );
    let quoted = |word: &str| ShellKind::Fish.quoted(word);
    format!("exec /bin/sh -c {} {}", quoted(WITH_ERRORS), quoted(&text))
}

/// Returns the lines around the command of a call. At its end the shell shows the exit code by the files that it holds
/// open, and waits for the next call.
pub(super) fn lines(call: CallLines<'_>) -> String {
    let CallLines { number, env, cwd, input, .. } = call;
    let path = |name| path(name, number);
    let quoted = |word: &str| ShellKind::Fish.quoted(word);
    let command = match input {
        StdinKind::Empty | StdinKind::Bytes => path("cmd"),
        StdinKind::Pipe | StdinKind::Terminal => path("fed"),
    };
    let mut text = "set -g COFFERDAM_STATUS 1\nset -g COFFERDAM_CWD\nbegin\n".to_owned();
    for (name, value) in env.iter() {
        text.push_str(&format!("set -lx {name} {}\n", quoted(value)));
    }
    let run = format!("builtin source {command}; set -g COFFERDAM_STATUS $status");
    match cwd {
        Some(cwd) => text.push_str(&format!(
            "set -g COFFERDAM_CWD $PWD\nif builtin cd -- {}; {run}; end\n",
            quoted(cwd.as_str())
        )),
        None => text.push_str(&format!("{run}\n")),
    }
    text.push_str(&format!("end <{} >{} 2>{}\n", path("in"), path("out"), path("err")));
    text.push_str(&format!(
        "if builtin test -s {ERRORS}; command cat {ERRORS} >>{}; builtin true >{ERRORS}; end\n",
        path("err")
    ));
    // Drops its error about a directory that is gone, which belongs to no call.
    text.push_str(&format!(
        "if builtin test -n \"$COFFERDAM_CWD\"; builtin cd -- $COFFERDAM_CWD; or builtin cd {ROOM}; \
         builtin true >{ERRORS}; end\n"
    ));
    text.push_str(&status_report(number));
    text
}

/// Returns the lines that show `COFFERDAM_STATUS` as the end of a call, and wait for the next.
fn status_report(number: u64) -> String {
    format!(
        "set -g COFFERDAM_HIGH (builtin math \"floor($COFFERDAM_STATUS / 16)\")\n\
         set -g COFFERDAM_LOW (builtin math \"$COFFERDAM_STATUS % 16\")\n\
         begin\nbuiltin printf {RING} >{}\n{}builtin true <{}\nend {}\n",
        path("end", number),
        next(number),
        path("go", number.saturating_add(1)),
        end_marks(number, "$COFFERDAM_HIGH", "$COFFERDAM_LOW"),
    )
}

/// Returns the lines that run a command and continue at once; the process that the command starts reports the end. If it
/// starts nothing, the shell shows the end.
pub(super) fn start_and_continue(number: u64, command: &str) -> String {
    let next = next(number);
    let status_report = status_report(number);
    format!("if {command}\n{next}else\nset -g COFFERDAM_STATUS 1\n{status_report}end\n")
}

/// Returns the line that lets the shell take the next call.
fn next(number: u64) -> String {
    format!("set -g COFFERDAM_CALL {}\n", number.saturating_add(1))
}

/// Returns the line before a command whose input is a pipe.
pub(super) fn piped_input(number: u64) -> String {
    let end = path("end", number);
    let command = path("cmd", number);
    format!("builtin printf {RING} >{end}; builtin source {command}\n")
}
