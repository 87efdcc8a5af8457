//! The binary's command line, and what `doctor` leaves in a home.

use std::process::{Command, Output, Stdio};

fn cofferdam(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(env!("CARGO_BIN_EXE_cofferdam")).args(arguments).output()
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    match cofferdam(arguments) {
        Ok(output) => (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ),
        Err(error) => (None, String::new(), error.to_string()),
    }
}

#[test]
fn version_and_help_succeed_on_standard_output() {
    let version = format!("cofferdam {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["--version"]), (Some(0), version, String::new()));
    for command in [&["--help"][..], &["run", "--help"], &["serve", "--help"], &["calc", "--help"]]
    {
        let (code, stdout, stderr) = run(command);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{command:?}");
        assert!(stdout.contains("Examples:"), "{command:?} has no examples:\n{stdout}");
    }
}

#[test]
fn a_wrong_command_line_exits_with_125() {
    for arguments in [&["frobnicate"][..], &["run"], &["run", "--memory", "lots", "ls"], &[]] {
        let (code, stdout, stderr) = run(arguments);
        assert_eq!((code, stdout.as_str()), (Some(125), ""), "{arguments:?}");
        assert!(!stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn an_unknown_option_gets_the_nearest_name() {
    let (code, stdout, stderr) = run(&["run", "--timeot", "3", "--", "ls"]);
    assert_eq!((code, stdout.as_str()), (Some(125), ""));
    assert!(stderr.contains("'--timeot'") && stderr.contains("'--timeout'"), "{stderr}");
    let (_, _, stderr) = run(&["profile", "learn", "--nosuchflag", "--", "ls"]);
    assert!(stderr.contains("unexpected argument '--nosuchflag'"), "{stderr}");
    // Options behind the program are the program's.
    let (code, stdout, _) = run(&["run", "printf", "%s ", "--timeout", "-x"]);
    assert_eq!((code, stdout.as_str()), (Some(0), "--timeout -x "));
}

#[test]
fn pages_are_in_the_help() {
    let (_, stdout, _) = run(&["--help"]);
    for command in ["completions", "man", "audit"] {
        assert!(stdout.contains(&format!("\n  {command} ")), "{command}: {stdout}");
    }
}

#[test]
fn make_install_includes_manuals_and_completions() -> std::io::Result<()> {
    let target = tempfile::tempdir()?;
    let root = tempfile::tempdir()?;
    std::fs::create_dir(target.path().join("release"))?;
    let program = target.path().join("release/cofferdam");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cofferdam"), program)?;
    let make = |what: &str| {
        let mut make = Command::new("make");
        make.current_dir(env!("CARGO_MANIFEST_DIR")).args(["-s", what, "PREFIX=/usr"]);
        make.arg(format!("DESTDIR={}", root.path().display()));
        make.env("CARGO_TARGET_DIR", target.path()).output()
    };
    let expected = [
        "bin/cofferdam",
        "share/bash-completion/completions/cofferdam",
        "share/fish/vendor_completions.d/cofferdam.fish",
        "share/man/man1/cofferdam-run.1",
        "share/man/man1/cofferdam.1",
        "share/zsh/site-functions/_cofferdam",
    ];
    let there = || {
        let size =
            |name: &&str| root.path().join("usr").join(name).metadata().map(|file| file.len());
        expected
            .into_iter()
            .filter(|name| size(name).is_ok_and(|size| size > 0))
            .collect::<Vec<_>>()
    };
    let installed = make("install")?;
    assert_eq!(there(), expected, "{installed:?}");
    let removed = make("uninstall")?;
    assert_eq!(there(), [""; 0], "{removed:?}");
    let left = std::fs::read_dir(root.path().join("usr/share/man/man1"))?.count();
    assert_eq!(left, 0, "manual pages");
    Ok(())
}

#[test]
fn a_refusal_is_one_line_and_a_hint_on_standard_error() {
    let expected = "cofferdam: --env: `A` has no `=`\nhint: write --env NAME=VALUE\n";
    assert_eq!(run(&["run", "--env", "A", "ls"]), (Some(125), String::new(), expected.to_owned()));
}

/// Runs the binary and returns what it wrote to standard error, with these variables about colour and no others.
fn errors_with(colour: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    let output = command.args(["run", "--env", "A", "ls"]).envs(colour.iter().copied()).output();
    output.map_or_else(
        |error| error.to_string(),
        |output| String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn errors_have_colour_only_where_it_is_taken() {
    let plain = "cofferdam: --env: `A` has no `=`\nhint: write --env NAME=VALUE\n";
    assert_eq!(errors_with(&[]), plain);
    let painted = "\u{1b}[1m\u{1b}[31mcofferdam:\u{1b}[0m --env: `A` has no `=`\n\
        \u{1b}[1m\u{1b}[36mhint:\u{1b}[0m write --env NAME=VALUE\n";
    assert_eq!(errors_with(&[("CLICOLOR_FORCE", "1")]), painted);
    assert_eq!(errors_with(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]), plain);
}

#[test]
fn doctor_leaves_nothing_in_the_home() -> std::io::Result<()> {
    let home = tempfile::tempdir()?;
    let granted = tempfile::tempdir()?;
    let run = |words: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_cofferdam"))
            .args(words)
            .current_dir(granted.path())
            .env("HOME", home.path())
            .env_remove("XDG_CACHE_HOME")
            .stdin(Stdio::null())
            .output()
    };
    let output = run(&["doctor"])?;
    assert!(String::from_utf8_lossy(&output.stdout).contains("granted directory"), "{output:?}");
    assert_eq!(std::fs::read_dir(home.path())?.count(), 0);
    // The control: a command with a workspace keeps a cache there.
    let output = run(&["run", "--rw", ".", "--", "true"])?;
    assert_eq!(home.path().join(".cache").exists(), output.status.success(), "{output:?}");
    Ok(())
}
