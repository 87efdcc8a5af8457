//! The code that cofferdam gives the shell of a session: the loop that waits for calls, and the few lines around
//! each command, in the language of each shell.
//!
//! The loop of bash survives everything that a command does to its shell. Those of the other shells survive less. Our
//! lines never call a function by which the command has replaced `printf`, `cd` or `source`, and a shell that cannot
//! continue ends. Two cases are not handled: a zsh function called `builtin`, with which its own call runs to its time
//! limit, and a fish function for the event that our variable is set, which runs between two calls and costs the next
//! one. An INT ends only the command in bash and zsh; sh leaves one function or file, and fish ends.

mod bash;
mod fish;
mod posix;
mod report;

use std::fmt::Display;

use cell::mounts::MAILBOX;
use model::call::{Cwd, Env};
use model::job::JobMode;
use model::shells::ShellKind;
use model::wire::StdinKind;

pub(crate) use report::{MAX_RINGS, ONES, SIXTEENS, STARTED, started};

/// Files of the mailbox that no call changes, with their contents.
pub(crate) const CONSTANT_FILES: [(&str, &str); 1] = [(bash::UNSTOP, bash::UNSTOP_LINES)];

/// Directory to which a shell changes if its directory before a call is gone.
const ROOM: &str = "/workspace";

/// The program that runs a command at a separate terminal, or next to the shell.
const SETSID: &str = "/usr/bin/setsid";

/// A call as its lines need it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallLines<'a> {
    pub number: u64,
    /// Variables of this call alone.
    pub env: &'a Env,
    /// Directory of this call alone.
    pub cwd: Option<&'a Cwd>,
    pub input: StdinKind,
    pub mode: JobMode,
}

/// Returns the words that start a session's shell, whose first call has this number.
pub(crate) fn program(shell: ShellKind, first: u64) -> Vec<String> {
    let (options, text): (&[&str], _) = match shell {
        ShellKind::Bash => (&[], bash::program(first)),
        ShellKind::Sh => (&[], posix::program(posix::Dialect::Sh, first)),
        // Without its startup files, like the others.
        ShellKind::Zsh => (&["-f"], posix::program(posix::Dialect::Zsh, first)),
        ShellKind::Fish => (&["--no-config"], fish::program(first)),
    };
    let words = [shell.name()].into_iter().chain(options.iter().copied()).chain(["-c"]);
    words.map(str::to_owned).chain([text]).collect()
}

/// Returns the lines around the command of a call, or no lines if the shell has them already. The command itself is in a
/// separate file.
pub(crate) fn lines(shell: ShellKind, call: CallLines<'_>) -> String {
    let CallLines { number, env, cwd, input, mode } = call;
    match (shell, mode) {
        (ShellKind::Bash, JobMode::Foreground) => bash::lines(number, env, cwd, input),
        (ShellKind::Bash, JobMode::Background) => bash::background(number, env, cwd, input),
        (ShellKind::Sh, JobMode::Foreground) => posix::lines(posix::Dialect::Sh, call),
        (ShellKind::Zsh, JobMode::Foreground) => posix::lines(posix::Dialect::Zsh, call),
        (ShellKind::Fish, JobMode::Foreground) => fish::lines(call),
        (ShellKind::Sh, JobMode::Background) => {
            posix::start_and_continue(posix::Dialect::Sh, number, &posix::background(shell, call))
        }
        (ShellKind::Zsh, JobMode::Background) => {
            posix::start_and_continue(posix::Dialect::Zsh, number, &posix::background(shell, call))
        }
        (ShellKind::Fish, JobMode::Background) => {
            fish::start_and_continue(number, &posix::background(shell, call))
        }
    }
}

/// Returns the line before a command whose input is a pipe. When it runs, the pipe is open: the writer may close it
/// now, and before that the shell would wait forever to open it.
pub(crate) fn piped_input(shell: ShellKind, number: u64) -> String {
    match shell {
        ShellKind::Bash => bash::piped_input(number),
        ShellKind::Sh => posix::piped_input(posix::Dialect::Sh, number),
        ShellKind::Zsh => posix::piped_input(posix::Dialect::Zsh, number),
        ShellKind::Fish => fish::piped_input(number),
    }
}

/// Returns the line that runs a command at a terminal, in a new shell.
pub(crate) fn at_terminal(shell: ShellKind, number: u64, terminal: u32) -> String {
    match shell {
        ShellKind::Bash => bash::at_terminal(number, terminal),
        ShellKind::Sh | ShellKind::Zsh | ShellKind::Fish => {
            posix::at_terminal(shell, number, terminal)
        }
    }
}

/// Returns the path of a part of call `number` in the mailbox. The number is in digits, or a variable that has them.
fn path(name: &str, number: impl Display) -> String {
    format!("{MAILBOX}/{name}.{number}")
}

/// Returns the redirections by which a shell shows that call `number` is over: it holds these files open from before it
/// rings until the next call. No other process can open a file in the shell.
fn end_marks(number: impl Display, sixteens: &str, ones: &str) -> String {
    let lines = path("run", number);
    format!("4<\"{lines}\" 5<\"{MAILBOX}/{SIXTEENS}.{sixteens}\" 6<\"{MAILBOX}/{ONES}.{ones}\"")
}

/// Returns the words over which a shell loops. A loop over words ends in every case: if the commands before have
/// made its body do nothing (`set -n`), a loop over a condition would never end.
fn loop_words() -> String {
    let words: Vec<String> = (1..=MAX_LOOPS).map(|turn| turn.to_string()).collect();
    words.join(" ")
}

/// Turns of each of three nested loops; one shell takes at most their product of calls.
const MAX_LOOPS: u16 = 100;
