//! The loop of sh and of zsh, and the commands that run next to a shell other than bash.

use super::report::{RING, STARTED};
use super::{CallLines, ROOM, SETSID, end_marks, loop_words, path};
use cell::mounts::{MAILBOX, TERMINALS};
use model::shells::ShellKind;
use model::wire::StdinKind;

/// The shell that starts a command next to another shell.
const SH: &str = "/bin/sh";

/// The two shells that read the same lines, but for an INT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Sh,
    Zsh,
}

impl Dialect {
    /// Returns what makes an INT end the command.
    fn on_interrupt(self) -> &'static str {
        match self {
            // It leaves the file or function that it is in.
            Self::Sh => r"\trap '\return 130 2>/dev/null' INT",
            // It unwinds as far as a block takes it (zshmisc(1), `always`).
            Self::Zsh => "TRAPINT() { \\return 130 }",
        }
    }

    /// Returns the words before a command for which no function of the caller's is called.
    fn builtin(self) -> &'static str {
        match self {
            // No function can be called `unset` in sh, a special builtin (POSIX, 2.9.5).
            Self::Sh => "\\unset -f command; \\command",
            Self::Zsh => "\\builtin",
        }
    }

    /// Returns the words that read a file, before its path.
    fn source(self) -> &'static str {
        match self {
            // What `.` meets would end the shell, a mistake in the command's form too (POSIX, 2.8.1).
            Self::Sh => "\\unset -f command; \\command \\.",
            Self::Zsh => "\\builtin \\.",
        }
    }

    /// Encloses lines so that an INT or an error in them does not end the shell.
    fn guarded(self, lines: &str) -> String {
        match self {
            Self::Sh => lines.to_owned(),
            Self::Zsh => {
                format!("{{\n{lines}}} always {{\nTRY_BLOCK_INTERRUPT=0 TRY_BLOCK_ERROR=0\n}}\n")
            }
        }
    }
}

/// Returns the program of a session's sh or zsh, whose first call has this number.
///
/// The number of the next call is empty while a call runs: a shell that a command has turned inside out comes back
/// without one, and ends.
pub(super) fn program(dialect: Dialect, first: u64) -> String {
    let interrupt = dialect.on_interrupt();
    let source = dialect.source();
    let turns = loop_words();
    let turn = dialect.guarded(&format!(
        "case ${{COFFERDAM_CALL-}} in ''|*[!0-9]*) \\exit 125;; esac\n\
         COFFERDAM_NOW=$COFFERDAM_CALL COFFERDAM_CALL=\n\
         \\: 3<\"{MAILBOX}/go.$COFFERDAM_NOW\" || \\exit 125\n\
         {source} \"{MAILBOX}/run.$COFFERDAM_NOW\"\n"
    ));
    format!(
        "{interrupt}\nCOFFERDAM_CALL={first}\n\
         for COFFERDAM_A in {turns}; do for COFFERDAM_B in {turns}; do for COFFERDAM_C in {turns}; do\n\
         {turn}done; done; done\n"
    )
}

/// Returns the lines around the command of a call. At its end the shell shows the exit code by the files that it holds
/// open, and waits for the next call. An INT that comes in between does nothing: the files would be closed by it.
pub(super) fn lines(dialect: Dialect, call: CallLines<'_>) -> String {
    let CallLines { number, env, cwd, input, .. } = call;
    let path = |name| path(name, number);
    let quoted = |word: &str| ShellKind::Sh.quoted(word);
    let stdin = path("in");
    let stdout = path("out");
    let stderr = path("err");
    let command = match input {
        StdinKind::Empty | StdinKind::Bytes => path("cmd"),
        StdinKind::Pipe | StdinKind::Terminal => path("fed"),
    };
    // A shell that cannot have the streams ends here.
    let interrupt = dialect.on_interrupt();
    let mut text = format!("{interrupt}\n\\exec <{stdin} >|{stdout} 2>|{stderr}\n");
    text.push_str("COFFERDAM_STATUS=130 COFFERDAM_HERE=1\n");
    let mut back = String::new();
    let builtin = dialect.builtin();
    for (name, value) in env.iter() {
        // What is before `.`, which is a special builtin, would last (POSIX, 2.14).
        text.push_str(&format!(
            "COFFERDAM_HAD_{name}=${{{name}+1}} COFFERDAM_WAS_{name}=${{{name}-}}\n\
             \\export {name}={}\n",
            quoted(value)
        ));
        back.push_str(&format!(
            "case $COFFERDAM_HAD_{name} in 1) {name}=$COFFERDAM_WAS_{name};; *) \\unset {name};; esac\n\
             \\unset COFFERDAM_HAD_{name} COFFERDAM_WAS_{name}\n"
        ));
    }
    if let Some(cwd) = cwd {
        let cwd = quoted(cwd.as_str());
        text.push_str(&format!("COFFERDAM_CWD=$PWD\n{builtin} \\cd -- {cwd} || COFFERDAM_HERE=\n"));
        back.push_str(&format!(
            "{builtin} \\cd -- \"$COFFERDAM_CWD\" || {{ {builtin} \\cd {ROOM}; }}\n"
        ));
    }
    // A loop of one turn: `break` and `continue` end there. INT is ignored as soon as it is over, and once more below, where
    // an INT has ended the block before.
    let run = dialect.guarded(&format!(
        "for COFFERDAM_ONCE in $COFFERDAM_HERE; do {} {command}; done\nCOFFERDAM_STATUS=$?\n\\trap '' INT\n",
        dialect.source()
    ));
    // Brings what a function returned, which may be any number, into the range of exit codes.
    let status = "COFFERDAM_STATUS=$(((COFFERDAM_STATUS%256+256)%256))";
    let status_report = status_report(dialect, number);
    text.push_str(&format!(
        "{run}case $COFFERDAM_HERE in '') COFFERDAM_STATUS=1;; esac\n\
         \\trap '' INT\n\\exec </dev/null >/dev/null 2>&1\n{back}{status}\n{status_report}"
    ));
    text
}

/// Returns the lines that show `COFFERDAM_STATUS` as the end of a call, and wait for the next.
fn status_report(dialect: Dialect, number: u64) -> String {
    let end = path("end", number);
    let gate = path("go", number.saturating_add(1));
    let end_marks = end_marks(number, "$((COFFERDAM_STATUS/16))", "$((COFFERDAM_STATUS%16))");
    let builtin = dialect.builtin();
    let next = next(number);
    format!("{{ {builtin} \\printf {RING} >|{end}\n{next}\\: 3<{gate}\n}} {end_marks}\n")
}

/// Returns the lines that run a command and continue at once; the process that the command starts reports the end. If it
/// starts nothing, the shell shows the end.
pub(super) fn start_and_continue(dialect: Dialect, number: u64, command: &str) -> String {
    let next = next(number);
    let status_report = status_report(dialect, number);
    format!("if {command}\nthen {next}else COFFERDAM_STATUS=1\n{status_report}fi\n")
}

/// Returns the line that lets the shell take the next call.
fn next(number: u64) -> String {
    format!("COFFERDAM_CALL={}\n", number.saturating_add(1))
}

/// Returns the line before a command whose input is a pipe.
pub(super) fn piped_input(dialect: Dialect, number: u64) -> String {
    let end = path("end", number);
    let command = path("cmd", number);
    let builtin = dialect.builtin();
    format!("{builtin} \\printf {RING} >|{end}; \\. {command}\n")
}

/// Returns the words by which a shell starts [`SH`]. In zsh a function can have a name with a slash.
fn starter(shell: ShellKind) -> String {
    match shell {
        ShellKind::Bash | ShellKind::Sh | ShellKind::Fish => SH.to_owned(),
        ShellKind::Zsh => format!("\\command {SH}"),
    }
}

/// Returns a command, for a shell of any language, that runs the command of a call at a terminal, in a new shell.
pub(super) fn at_terminal(shell: ShellKind, number: u64, terminal: u32) -> String {
    let command = path("cmd", number);
    let path = format!("{TERMINALS}/{terminal}");
    let name = shell.name();
    let line = format!("exec {SETSID} -c -w /bin/{name} {command} <{path} >|{path} 2>&1");
    format!("{} -c {}\n", starter(shell), shell.quoted(&line))
}

/// Returns a command, for a shell of any language, that runs the command of a call next to the shell.
///
/// The command runs in a separate shell, with the directory and the exported variables of the session's shell. Its process
/// leads a new process group, and its parent is init, which reports its end. The process waits until the one that started
/// it has ended, which would reap it otherwise, and reports its number, ended by NUL.
pub(super) fn background(shell: ShellKind, call: CallLines<'_>) -> String {
    let CallLines { number, env, cwd, input, .. } = call;
    let path = |name| path(name, number);
    let quoted = |word: &str| ShellKind::Sh.quoted(word);
    let stdin = path("in");
    let stdout = path("out");
    let stderr = path("err");
    let end = path("end");
    let mut script = format!("printf '{STARTED}%s\\0' \"$$\" >|{end}\n");
    if let Some(cwd) = cwd {
        script.push_str(&format!("cd -- {} || exit 1\n", quoted(cwd.as_str())));
    }
    for (name, value) in env.iter() {
        script.push_str(&format!("export {name}={}\n", quoted(value)));
    }
    script.push_str(&match input {
        StdinKind::Terminal => format!(". {}\n", path("fed")),
        StdinKind::Empty | StdinKind::Bytes | StdinKind::Pipe => {
            format!("exec /bin/{} {}\n", shell.name(), path("cmd"))
        }
    });
    let start = format!(
        "( while kill -0 $$ 2>/dev/null; do :; done; exec {SETSID} {SH} -c {} ) <{stdin} >|{stdout} 2>|{stderr} &",
        quoted(&script)
    );
    format!("{} -c {}", starter(shell), shell.quoted(&start))
}
