//! The operator's commands at a terminal: the configuration in force, its decisions, and mistakes in files.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use tempfile::TempDir;

mod config;
mod metrics;
mod policy;
mod profile;

/// A configuration directory that only its owner can write.
struct Configured {
    directory: TempDir,
}

/// The exit code, standard output and standard error.
type Finished = (Option<i32>, String, String);

impl Configured {
    fn with(files: &[(&str, &str)]) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        fs::set_permissions(directory.path(), Permissions::from_mode(0o700))?;
        for (name, text) in files {
            let path = directory.path().join(name);
            let parent = path.parent().unwrap_or(directory.path());
            fs::create_dir_all(parent)?;
            fs::set_permissions(parent, Permissions::from_mode(0o700))?;
            fs::write(&path, text)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        }
        Ok(Self { directory })
    }

    /// Returns the output of a command, with the directory's own name replaced by `DIR`.
    fn run(&self, arguments: &[&str]) -> io::Result<Finished> {
        self.run_with(&[], arguments)
    }

    /// Runs the program like [`Configured::run`], with these variables in the environment.
    fn run_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> io::Result<Finished> {
        let directory = fs::canonicalize(self.directory.path())?;
        let output = Command::new(env!("CARGO_BIN_EXE_cofferdam"))
            .arg("--config")
            .arg(&directory)
            .args(arguments)
            .envs(variables.iter().copied())
            .current_dir(&directory)
            .output()?;
        let name = directory.to_string_lossy().into_owned();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&name, "DIR");
        Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
    }
}

/// Nothing configured: what is compiled in.
fn shipped() -> io::Result<Configured> {
    Configured::with(&[])
}

fn well(stdout: &str) -> Finished {
    (Some(0), stdout.to_owned(), String::new())
}

fn refused(stderr: &str) -> Finished {
    (Some(125), String::new(), stderr.to_owned())
}

const TEAM: &str = r#"schema = 1

[[rule]]
id = "sums"
tools = ["calculate"]
action = "allow"
profile = "bc"
limits = { timeout = "5s", memory = "64M" }
why = "the team needs sums"
matches = [{ tool = "calculate" }]
not_matches = [{ tool = "bash" }]

[[rule]]
id = "no-scripts"
tools = ["calculate_advanced"]
action = "deny"
why = "sums are enough"
matches = [{ tool = "calculate_advanced" }]
"#;

const SMALL: &str = r#"schema = 1
name = "small"
description = "bash with less memory"
extends = "bash"

[[syscalls]]
why = "a database under test uses it"
names = ["io_setup"]

[limits]
memory = "512M"
workspace = "64M"
tmp = "64M"
"#;
