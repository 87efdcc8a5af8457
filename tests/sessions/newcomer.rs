//! The first commands of a new user, and the errors for a broken file of theirs: the binary, in
//! real cells.
//!
//! The tests show as ignored on a machine that can make no cell; with COFFERDAM_MUST_RUN=1 they
//! fail.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Failed, PlainTest};

type Finished = (Option<i32>, String, String);

/// Runs the binary with a separate configuration directory and `input`.
fn cofferdam(config: &Path, arguments: &[&str], input: &str) -> Result<Finished, Failed> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
        .arg("--config")
        .arg(config)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
}

/// Makes a configuration directory with these files.
fn configured(files: &[(&str, &str)]) -> std::io::Result<tempfile::TempDir> {
    let directory = tempfile::tempdir()?;
    for (name, text) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap_or(directory.path()))?;
        fs::write(path, text)?;
    }
    Ok(directory)
}

fn same<T: PartialEq + std::fmt::Debug>(output: T, expected: T) -> Result<(), Failed> {
    if output == expected {
        return Ok(());
    }
    Err(format!("printed  {output:?}\nexpected {expected:?}").into())
}

/// The supervisor's filter must let its own loop be made without what a shell's profile adds.
fn the_calculators_profile_runs_alone() -> Result<(), Failed> {
    let none = configured(&[])?;
    let output = cofferdam(none.path(), &["run", "--profile", "bc", "--", "bc", "-q"], "6*7\n")?;
    same(output, (Some(0), "42\n".to_owned(), String::new()))
}

fn a_granted_path_that_is_not_there_is_named() -> Result<(), Failed> {
    let profile = "schema = 1\nname = \"mine\"\nextends = \"bash\"\ndescription = \"x\"\n\
        [[path]]\nhost = \"/nowhere/at-all\"\nwhy = \"a test\"\n";
    let config = configured(&[("sandbox-profiles/mine.toml", profile)])?;
    let output = cofferdam(config.path(), &["run", "--profile", "mine", "--", "true"], "")?;
    let reason = "cofferdam: the supervisor refused the job: profile `mine` cannot be used here: \
        `/nowhere/at-all` is not on this host\n";
    same(output, (Some(125), String::new(), reason.to_owned()))?;
    // The control: without that path the profile can be used.
    let without = profile.split("[[path]]").next().unwrap_or_default();
    let config = configured(&[("sandbox-profiles/mine.toml", without)])?;
    let output = cofferdam(config.path(), &["run", "--profile", "mine", "--", "echo", "in"], "")?;
    same(output, (Some(0), "in\n".to_owned(), String::new()))
}

fn doctor_tries_the_default_profiles_whatever_the_policy_uses() -> Result<(), Failed> {
    let policy = "schema = 1\n[[rule]]\nid = \"sums\"\ntools = [\"calculate\"]\naction = \"allow\"\n\
        profile = \"bc\"\nwhy = \"a test\"\nmatches = [{ tool = \"calculate\" }]\n\
        not_matches = [{ tool = \"bash\" }]\n";
    let config = configured(&[("policies/mine.toml", policy)])?;
    let (code, stdout, _) = cofferdam(config.path(), &["doctor"], "")?;
    let tried = |name: &str| stdout.contains(&format!("ok       profile {name}"));
    same((code, tried("bash"), tried("bc")), (Some(0), true, true))
}

fn a_slip_of_the_pen_leaves_no_tool_on() -> Result<(), Failed> {
    let config = configured(&[("cofferdam.toml", "schema = 1\n[tools]\noff = [\"bsah\"]\n")])?;
    let (code, stdout, stderr) = cofferdam(config.path(), &["run", "--", "true"], "")?;
    let text = stderr
        .contains("cofferdam.toml:3: `tools.off`: no tool `bsah`\nhint: did you mean `bash`?");
    same((code, stdout, text), (Some(125), String::new(), true))
}

fn an_assignment_prints_no_value() -> Result<(), Failed> {
    let none = configured(&[])?;
    let output = cofferdam(none.path(), &["calc", "x=3"], "")?;
    same(output, (Some(0), String::new(), "cofferdam: nothing printed\n".to_owned()))
}

/// The environment is cleared before the error is known.
fn an_error_after_the_confinement_has_the_colour_that_was_asked_for() -> Result<(), Failed> {
    let printed = |name: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
            .args(["run", "--timeout", "100ms", "--", "sleep", "5"])
            .env_remove("NO_COLOR")
            .env(name, "1")
            .stdin(Stdio::null())
            .output()?;
        Ok::<_, Failed>(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let painted = "\u{1b}[1m\u{1b}[31mcofferdam:\u{1b}[0m timed out after 100 ms\n";
    same(printed("CLICOLOR_FORCE")?, painted.to_owned())?;
    same(printed("NO_COLOR")?, "cofferdam: timed out after 100 ms\n".to_owned())
}

fn doctor_tries_the_operators_own_profiles() -> Result<(), Failed> {
    let profile = |host: &str| {
        format!(
            "schema = 1\nname = \"mine\"\nextends = \"bash\"\ndescription = \"x\"\n\n\
             [[path]]\nhost = \"{host}\"\nwhy = \"x\"\n"
        )
    };
    let mut met = Vec::new();
    for host in ["/usr/share", "/usr/is-not-there"] {
        let config = configured(&[("sandbox-profiles/mine.toml", &profile(host))])?;
        let (code, output, _) = cofferdam(config.path(), &["doctor"], "")?;
        let mine = output.lines().find(|line| line.contains("profile mine")).unwrap_or_default();
        let tier = output.lines().find(|line| line.starts_with("tier: ")).unwrap_or_default();
        let last = output.lines().last().unwrap_or_default();
        let state = mine.split(' ').next().unwrap_or_default();
        met.push([state, tier, last].map(str::to_owned));
        same(code, Some(i32::from(state != "ok")))?;
    }
    let tier = "tier: namespaces+landlock+seccomp";
    let expected = [
        ["ok", tier, "the default profiles can run"],
        ["missing", tier, "cannot run: mine; can run: bash, bc"],
    ];
    same(met, expected.map(|row| row.map(str::to_owned)).to_vec())
}

/// The tests by their names.
pub const TESTS: &[PlainTest] = &[
    ("the_calculators_profile_runs_alone", the_calculators_profile_runs_alone),
    ("a_granted_path_that_is_not_there_is_named", a_granted_path_that_is_not_there_is_named),
    (
        "doctor_tries_the_default_profiles_whatever_the_policy_uses",
        doctor_tries_the_default_profiles_whatever_the_policy_uses,
    ),
    ("a_slip_of_the_pen_leaves_no_tool_on", a_slip_of_the_pen_leaves_no_tool_on),
    ("an_assignment_prints_no_value", an_assignment_prints_no_value),
    (
        "an_error_after_the_confinement_has_the_colour_that_was_asked_for",
        an_error_after_the_confinement_has_the_colour_that_was_asked_for,
    ),
    ("doctor_tries_the_operators_own_profiles", doctor_tries_the_operators_own_profiles),
];

/// Returns what the tests need and this machine has not.
pub fn lacks() -> Option<&'static str> {
    let doctor =
        Command::new(env!("CARGO_BIN_EXE_cofferdam")).arg("doctor").stdout(Stdio::null()).status();
    (!doctor.is_ok_and(|status| status.success())).then_some("cells")
}
