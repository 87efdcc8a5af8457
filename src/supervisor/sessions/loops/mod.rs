//! The code that cofferdam gives the shell of a session: the loop that waits for calls, and the few lines around
//! each command, in the language of each shell.
//!
//! The loop of bash survives everything that a command does to its shell. Those of the other shells survive less. Our
//! lines never call a function that the command has put in place of `printf`, `cd` or `source`, and a shell that cannot
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
    /// Of this call alone.
    pub env: &'a Env,
    /// Of this call alone.
    pub cwd: Option<&'a Cwd>,
    pub input: StdinKind,
    pub mode: JobMode,
}

/// Returns the words that start a session's shell, whose first call has this number.
pub(crate) fn program(shell: ShellKind, first: u64) -> Vec<String> {
    let (options, text): (&[&str], _) = match shell {
        ShellKind::Bash => (&[], bash::program(first)),
        ShellKind::Sh => (&[], posix::program(posix::Dialect::Sh, first)),
        // Without the files of its start, as the others are.
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
            posix::goes_on(posix::Dialect::Sh, number, &posix::background(shell, call))
        }
        (ShellKind::Zsh, JobMode::Background) => {
            posix::goes_on(posix::Dialect::Zsh, number, &posix::background(shell, call))
        }
        (ShellKind::Fish, JobMode::Background) => {
            fish::goes_on(number, &posix::background(shell, call))
        }
    }
}

/// Returns the line before a command whose input is a pipe. When it runs, the pipe is open: who wrote to it may
/// close it now, and before that the shell would wait for ever to open it.
pub(crate) fn fed(shell: ShellKind, number: u64) -> String {
    match shell {
        ShellKind::Bash => bash::fed(number),
        ShellKind::Sh => posix::fed(posix::Dialect::Sh, number),
        ShellKind::Zsh => posix::fed(posix::Dialect::Zsh, number),
        ShellKind::Fish => fish::fed(number),
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
fn place(name: &str, number: impl Display) -> String {
    format!("{MAILBOX}/{name}.{number}")
}

/// Returns the redirections by which a shell shows that call `number` is over: it holds these files open from before it
/// rings until the next call. No other process can open a file in its place.
fn shows(number: impl Display, sixteens: &str, ones: &str) -> String {
    let lines = place("run", number);
    format!("4<\"{lines}\" 5<\"{MAILBOX}/{SIXTEENS}.{sixteens}\" 6<\"{MAILBOX}/{ONES}.{ones}\"")
}

/// Returns words that a shell repeats a loop for, at most. A loop over words ends whatever the commands before have
/// done to the shell: where its body does nothing any more (`set -n`), one over a condition would never.
fn turns() -> String {
    let words: Vec<String> = (1..=TURNS).map(|turn| turn.to_string()).collect();
    words.join(" ")
}

/// Turns of each of the three loops that stand around each other: calls that one shell takes are their product.
const TURNS: u16 = 100;
