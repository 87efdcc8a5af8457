//! Calls for `bash` and for the words of `run`, built from their arguments.
//!
//! A script reaches bash on descriptor 3. It is never part of argv, which ends at 128 KiB a word
//! and is visible in `/proc`, and never on stdin, which is the script's own.

use std::collections::BTreeMap;

use model::call::{
    Argv, Asked, Call, Cwd, Env, InvalidCall, RUNNER, Script, Stdin, ToolName, seconds,
};
use model::job::ProfileName;
use model::profile::PATH;

/// Makes bash run the script on descriptor 3 as `bash -c SCRIPT` would: the same `$0`, line numbers
/// and messages, stdin untouched, descriptor 3 closed before the script's first word, no fork.
///
/// The variable is the one in which bash itself keeps the text of `-c`, so nothing remains that the
/// script would not see otherwise. It is emptied first: without a descriptor 3 the call must fail,
/// not evaluate this line again. `eval` takes the text unchanged: here-documents, comments and a
/// missing last newline need no care.
const RUN_SCRIPT: &str = concat!(
    r#"BASH_EXECUTION_STRING=; IFS= read -rd "" -u 3 BASH_EXECUTION_STRING; exec 3<&-; "#,
    r#"eval "${BASH_EXECUTION_STRING:?no script on descriptor 3}""#,
);

/// The shell of every cell.
const BASH: &str = "/bin/bash";

/// Arguments of a command.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScriptArgs {
    pub command: String,
    /// Positional parameters, from `$1` on. They are words of argv and never part of the text. For a program there is
    /// no text, and these are all of argv.
    pub words: Vec<String>,
    pub stdin: Vec<u8>,
    pub cwd: Option<String>,
    pub env: Option<BTreeMap<String, String>>,
    pub timeout: Option<f64>,
    /// Name of the profile to run under, if a rule leaves the choice.
    pub profile: Option<String>,
    /// Rules of egress that it may use of those of its profile; all if absent.
    pub egress: Option<Vec<String>>,
    /// True for a script of a project that is granted nothing for writing.
    pub is_read_only: bool,
}

/// Builds the call of `tool` that runs `args.command` in bash.
///
/// # Errors
/// An argument out of its bounds; the error names the field.
pub fn script(tool: impl Into<ToolName>, mut args: ScriptArgs) -> Result<Call, InvalidCall> {
    let script = Script::new("command", std::mem::take(&mut args.command))?;
    // By its path: a PATH of the call's is for the script. The last of these is `$0`.
    let shell = [BASH, "-c", RUN_SCRIPT, "bash"].map(str::to_owned);
    let words = shell.into_iter().chain(args.words).collect();
    Ok(Call { script: Some(script), ..program(tool, ScriptArgs { words, ..args })? })
}

/// Builds the call of a project's script: `args.words` are those of the runner.
///
/// # Errors
/// An argument out of its bounds; the error names the field.
pub fn runner(tool: impl Into<ToolName>, args: ScriptArgs) -> Result<Call, InvalidCall> {
    let words = [RUNNER.to_owned()].into_iter().chain(args.words).collect();
    program(tool, ScriptArgs { words, ..args })
}

/// Builds the call of a program, without a shell.
///
/// # Errors
/// An argument out of its bounds; the error names the field.
fn program(tool: impl Into<ToolName>, args: ScriptArgs) -> Result<Call, InvalidCall> {
    let profile = args.profile.map(|name| {
        let not_one = InvalidCall::OutOfRange {
            field: "profile",
            expected: "the name of a profile",
            got: name.chars().take(80).flat_map(char::escape_default).collect(),
        };
        ProfileName::new(&name).ok_or(not_one)
    });
    Ok(Call {
        tool: tool.into(),
        argv: Argv::new(args.words)?,
        script: None,
        stdin: Stdin::bytes("stdin", args.stdin)?,
        env: Env::new(args.env.unwrap_or_default())?,
        cwd: args.cwd.map(|path| Cwd::new("cwd", &path)).transpose()?,
        asked: Asked {
            wall: args.timeout.map(|value| seconds("timeout", value)).transpose()?,
            ..Asked::default()
        },
        profile: profile.transpose()?,
        only: None,
        correlation: None,
    })
}

/// Has another shell of the cell interpret the command: bash only passes it on. A command longer
/// than a word of argv (128 KiB) cannot be passed on, and bash reports that.
#[must_use]
pub fn read_by(shell: &str, args: ScriptArgs) -> ScriptArgs {
    let quoted = args.command.replace('\'', r"'\''");
    // fish has no `$0`.
    let zeroth = if shell == "fish" { "" } else { shell };
    // A PATH of the call's is for the command; the shell itself may stand elsewhere.
    let elsewhere = PATH.replace(':', &format!("/{shell} "));
    let command = format!(
        "for COFFERDAM_SHELL in \"$(type -P {shell})\" {elsewhere}/{shell}; do \
         [[ -x $COFFERDAM_SHELL ]] && exec \"$COFFERDAM_SHELL\" -c '{quoted}' {zeroth} \"$@\"; done\n\
         echo '{shell} is not in this cell; the operator can install it under /usr, or grant where \
         it is with a [[path]] of the profile' >&2; exit 127"
    );
    ScriptArgs { command, ..args }
}

/// Builds the call that runs `words` unchanged, without a shell. Its stdin is a pipe that the
/// caller feeds: `cofferdam run`.
///
/// # Errors
/// No words, or too many bytes of them.
pub fn run(words: Vec<String>, env: Env, asked: Asked) -> Result<Call, InvalidCall> {
    Ok(Call {
        tool: "run".into(),
        argv: Argv::new(words)?,
        script: None,
        stdin: Stdin::Empty.open(),
        env,
        cwd: None,
        asked,
        profile: None,
        only: None,
        correlation: None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::process::{Command, Output, Stdio};
    use std::time::Duration;

    use super::*;

    type Shown = (Option<i32>, String, String);

    fn shown(output: &Output) -> Shown {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn stdin_with(text: &str) -> std::io::Result<Stdio> {
        let mut file = tempfile::tempfile()?;
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        Ok(file.into())
    }

    /// Runs a script as the supervisor starts it, but without the cell: on descriptor 3.
    fn on_descriptor_3(script: &str, stdin: &str) -> std::io::Result<Shown> {
        let mut file = tempfile::tempfile()?;
        file.write_all(script.as_bytes())?;
        file.rewind()?;
        let held: OwnedFd = file.into();
        // No pre_exec here (it is unsafe): an outer bash moves the descriptor to 3.
        let outer = format!(
            r#"exec 3</proc/{}/fd/{}; exec -a "$0" -- "$@""#,
            std::process::id(),
            held.as_raw_fd()
        );
        let output = Command::new("/bin/bash")
            .env_clear()
            .args(["-c", &outer, "/bin/bash", "/bin/bash", "-c", RUN_SCRIPT])
            .stdin(stdin_with(stdin)?)
            .output()?;
        Ok(shown(&output))
    }

    fn directly(script: &str, stdin: &str) -> std::io::Result<Shown> {
        let output = Command::new("/bin/bash")
            .env_clear()
            .args(["-c", script])
            .stdin(stdin_with(stdin)?)
            .output()?;
        Ok(shown(&output))
    }

    #[test]
    fn a_script_on_descriptor_3_runs_as_bash_c_would_run_it() -> std::io::Result<()> {
        let scripts = [
            "echo hello",
            "foo\nbar\necho $LINENO $0 $# [$REPLY]",
            "cat <<EOF\nhere\nEOF",
            "cat <<'EOF'\nno newline after the end\nEOF\n\n",
            "# a comment first\necho a; exit 3",
            "#!/bin/sh\nexit 4",
            "\n\n  echo $LINENO",
            "set -e; false; echo not reached",
            "set -u; echo $absent; echo not reached",
            "set -o pipefail; false | true",
            "trap 'echo bye $LINENO $?' EXIT; nope",
            "trap 'echo ERR $LINENO' ERR\nfalse\ntrue",
            "read -r line; echo \"got $line\"; cat",
            "printf '%q' \"$IFS\"; IFS=,; a='1,2'; echo $a",
            "echo $BASH_SUBSHELL ${#FUNCNAME[@]} $- ${#BASH_SOURCE[@]}",
            "f() { return 7; }; f",
            "return 3; echo after",
            "ls /proc/self/fd | wc -l; ls -l /proc/self/fd/3 2>&1 | grep -c pipe",
            "echo to stderr >&2; echo x >&3",
            "exec absent-program",
            "echo ${x:?not set}; echo not reached",
            "kill -TERM $$",
            "cat <<EOF\nnever ended",
            "echo 'quoted \"both\"' \"$(echo sub)\" `echo tick` \\$x $'\\t'",
            "echo $BASH_EXECUTION_STRING",
            "sleep 0 & wait; echo $?",
            "if true; then echo yes; fi; case x in x) echo x;; esac",
            "( exit 9 )",
            "echo \u{e9}\u{2713}",
            "history | wc -l; echo '!!'; shopt -s extglob\ncase ab in +(a|b)) echo glob;; esac",
        ];
        for script in scripts {
            let stdin = "first\nsecond\n";
            assert_eq!(on_descriptor_3(script, stdin)?, directly(script, stdin)?, "{script}");
        }
        Ok(())
    }

    #[test]
    fn a_syntax_error_has_its_line_and_code_2() -> std::io::Result<()> {
        for script in ["if ; then", "echo a\nif true; then\n echo (\nfi", "echo \"open", ") x"] {
            let (code, stdout, stderr) = directly(script, "")?;
            // bash names the place `-c` there and `eval` here; nothing else differs.
            let expected = (code, stdout, stderr.replace("bash: -c:", "bash: eval:"));
            assert_eq!(on_descriptor_3(script, "")?, expected, "{script}");
        }
        Ok(())
    }

    #[test]
    fn no_variable_is_left_over_or_missing() -> std::io::Result<()> {
        // Any command before it, since the first one makes PIPESTATUS appear.
        let names = ":\ncompgen -v | sort";
        assert_eq!(on_descriptor_3(names, "")?, directly(names, "")?);
        // `_` is bash's own and changes with every command.
        let exported = "export -p | grep -v ' _='";
        assert_eq!(on_descriptor_3(exported, "")?, directly(exported, "")?);
        Ok(())
    }

    #[test]
    fn a_script_of_1_mib_runs_whole() -> std::io::Result<()> {
        let mut text = format!(": {}\n", "x".repeat(model::call::SCRIPT_BYTES - 20));
        text.push_str("echo the end");
        assert_eq!(on_descriptor_3(&text, "")?, (Some(0), "the end\n".into(), String::new()));
        Ok(())
    }

    #[test]
    fn another_shell_gets_the_command_with_its_quotes_and_parameters_or_is_reported_absent()
    -> std::io::Result<()> {
        let args = ScriptArgs { command: "echo \"it's\" $0 $#".into(), ..ScriptArgs::default() };
        let read = read_by("sh", args.clone()).command;
        assert_eq!(on_descriptor_3(&read, "")?, (Some(0), "it's sh 0\n".into(), String::new()));
        let given = format!("set -- 'a b' '$(id)'\n{read}");
        assert_eq!(on_descriptor_3(&given, "")?, (Some(0), "it's sh 2\n".into(), String::new()));
        let nowhere = format!("PATH=/none\n{}", read_by("absent-shell", args).command);
        let why = "absent-shell is not in this cell; the operator can install it under /usr, or grant \
                   where it is with a [[path]] of the profile\n";
        assert_eq!(on_descriptor_3(&nowhere, "")?, (Some(127), String::new(), why.into()));
        Ok(())
    }

    #[test]
    fn without_a_script_descriptor_the_call_fails() -> std::io::Result<()> {
        let output = Command::new("bash").args(["-c", RUN_SCRIPT]).stdin(Stdio::null()).output()?;
        let (code, stdout, stderr) = shown(&output);
        assert_eq!((code, stdout), (Some(127), String::new()));
        assert!(stderr.ends_with("no script on descriptor 3\n"), "{stderr}");
        Ok(())
    }

    #[test]
    fn every_argument_reaches_the_call() -> Result<(), InvalidCall> {
        let args = ScriptArgs {
            command: "true".into(),
            stdin: b"in".to_vec(),
            cwd: Some("sub".into()),
            env: Some([("A".to_owned(), "1".to_owned())].into()),
            timeout: Some(1.5),
            ..ScriptArgs::default()
        };
        let call = script("bash", args)?;
        assert_eq!(
            call,
            Call {
                tool: "bash".into(),
                argv: Argv::new([BASH, "-c", RUN_SCRIPT, "bash"].map(str::to_owned).to_vec())?,
                script: Some(Script::new("command", "true".into())?),
                stdin: Stdin::Bytes(b"in".to_vec()),
                env: Env::new([("A".to_owned(), "1".to_owned())].into())?,
                cwd: Some(Cwd::new("cwd", "/workspace/sub")?),
                asked: Asked { wall: Some(Duration::from_millis(1500)), ..Asked::default() },
                profile: None,
                only: None,
                correlation: None,
            }
        );
        Ok(())
    }

    #[test]
    fn an_argument_out_of_bounds_is_refused_by_its_name() {
        let with = |change: fn(&mut ScriptArgs)| {
            let mut args = ScriptArgs { command: "true".into(), ..ScriptArgs::default() };
            change(&mut args);
            script("bash", args).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(with(|_| ()), Ok(()));
        let message = |text: &str| Err(text.to_owned());
        assert_eq!(with(|a| a.command = " \n".into()), message("command is empty"));
        assert_eq!(
            with(|a| a.cwd = Some("../etc".into())),
            message("cwd `../etc` is not inside /workspace or /tmp")
        );
        assert_eq!(
            with(|a| a.timeout = Some(0.0)),
            message("timeout must be a number of seconds above 0, not 0")
        );
        assert_eq!(
            with(|a| a.env = Some([("BASH_ENV".to_owned(), "/tmp/x".to_owned())].into())),
            message("env `BASH_ENV` is refused: it changes what programs load or run")
        );
    }
}
