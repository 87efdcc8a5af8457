//! The environment of a cell: built from nothing, with what the operator adds, checked by name.

use crate::support::{Caller, Check, Claim, Finished, claim, equal, holds, patience};

pub const CLAIMS: &[Claim] = &[
    claim("the_environment_is_built_for_the_cell", exact),
    claim("nothing_of_the_callers_environment_reaches_a_cell", nothing_of_the_callers),
    claim("a_variable_that_is_asked_for_is_there", asked_for),
    claim("arguments_and_variables_of_any_length_arrive_whole", any_length),
    claim("names_that_make_programs_run_others_are_refused", refused_names),
    claim("invalid_variable_names_are_refused", no_identifiers),
];

const OWN: &str = "CARGO_NET_RETRY=0\nGOTOOLCHAIN=local\nHOME=/tmp/home\nHOSTNAME=cofferdam\nLANG=C.UTF-8\n\
    LOGNAME=agent\nPAGER=cat\nPATH=/usr/local/bin:/usr/bin:/bin\nPIP_RETRIES=1\nSHELL=/bin/bash\nTERM=dumb\n\
    USER=agent\nUV_HTTP_RETRIES=0\nnpm_config_fetch_retries=0\n";

/// The environment of a program that adds nothing to it, in order.
fn environment(output: &Finished) -> String {
    let mut lines: Vec<&str> = output.stdout.lines().collect();
    lines.sort_unstable();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn exact(caller: &Caller) -> Check {
    let output = caller.run(&[], &["env"])?;
    equal("env", environment(&output), OWN)
}

fn nothing_of_the_callers(caller: &Caller) -> Check {
    const SET: [(&str, &str); 5] = [
        ("SECRET", "hunter2"),
        ("LD_PRELOAD", "/nowhere.so"),
        ("BASH_ENV", "/etc/hostname"),
        ("PATH", "/bin:/usr/bin:/elsewhere"),
        ("BASH_FUNC_ls%%", "() { echo taken; }"),
    ];
    let mut outside = caller.outside("env");
    outside.envs(SET);
    let control = Finished::run(outside, patience())?;
    holds("outside they are there", &control, control.stdout.contains("SECRET=hunter2"))?;
    let mut command = caller.run_command(&[], &["env"]);
    command.envs(SET);
    equal("in a cell", environment(&Finished::run(command, patience())?), OWN)
}

fn asked_for(caller: &Caller) -> Check {
    let options = ["--env", "A=1", "--env", "B_2=two words", "--env", "PATH=/bin"];
    let output = caller.run(&options, &["/usr/bin/env"])?;
    let expected = OWN.replace("PATH=/usr/local/bin:/usr/bin:/bin", "PATH=/bin");
    equal("env", environment(&output), format!("A=1\nB_2=two words\n{expected}"))
}

/// Short ones travel in the message that starts the program, long ones in a memfd: either way
/// they are what was given, on both sides of the size at which the way changes.
fn any_length(caller: &Caller) -> Check {
    for length in [1, 32_000, 33_000, 120_000] {
        let argument = "a".repeat(length);
        let value = "v".repeat(length.min(60_000));
        let variable = format!("LONG={value}");
        let script = "printf '%s %s %s' \"${#1}\" \"${#LONG}\" \"${1%%[!a]*}${LONG%%[!v]*}\"";
        let output =
            caller.run(&["--env", &variable], &["bash", "-c", script, "bash", &argument])?;
        let expected = format!("{length} {} {argument}{value}", value.len());
        holds(&format!("{length} bytes"), output.code, output.stdout == expected)?;
    }
    Ok(())
}

/// Runs with one variable, which is refused: what standard error says.
fn refusal(
    caller: &Caller,
    variable: &str,
) -> Result<(i32, String, String), crate::support::Failed> {
    let directory = caller.home.join("granted");
    if !directory.exists() {
        caller.directory("granted")?;
    }
    let mark = directory.join("ran");
    let directory = directory.display().to_string();
    let options = ["--rw", &directory, "--env", variable];
    let output = caller.run(&options, &["touch", "/workspace/ran"])?;
    // From outside: nothing ran.
    holds("nothing ran", variable, !mark.exists())?;
    Ok((output.code, output.stdout, output.stderr))
}

fn refused_names(caller: &Caller) -> Check {
    const NAMES: [&str; 18] = [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "BASH_ENV",
        "ENV",
        "SHELLOPTS",
        "BASHOPTS",
        "PS4",
        "IFS",
        "BASH_FUNC_x",
        "GLIBC_TUNABLES",
        "ZDOTDIR",
        "FPATH",
        "BC_ENV_ARGS",
        "GIT_SSH_COMMAND",
        "GIT_DIR",
        "LESSOPEN",
        "LESSCLOSE",
    ];
    // The control: the same call with another name runs.
    let directory = caller.directory("control")?;
    let ask = directory.display().to_string();
    let output = caller.run(&["--rw", &ask, "--env", "A=x"], &["touch", "/workspace/ran"])?;
    equal("another name", (output.code, directory.join("ran").exists()), (0, true))?;
    for name in NAMES {
        let (code, stdout, stderr) = refusal(caller, &format!("{name}=x"))?;
        equal(name, (code, stdout.as_str()), (125, ""))?;
        let expected =
            format!("cofferdam: --env `{name}` is refused: it changes what programs load or run\n");
        equal("the message", stderr, expected)?;
    }
    Ok(())
}

fn no_identifiers(caller: &Caller) -> Check {
    for variable in ["=x", "1A=x", "A-B=x", "A B=x", "BASH_FUNC_x%%=() { :; }", "Ä=x", "A"] {
        let (code, stdout, stderr) = refusal(caller, variable)?;
        equal(variable, (code, stdout.as_str()), (125, ""))?;
        holds("the message names the field", &stderr, stderr.starts_with("cofferdam: --env"))?;
    }
    Ok(())
}
