//! Runs the hooks of a project before it is served: in a cell of `cofferdam run`, without a network, with the project
//! read-only.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::commands::error::CliError;
use crate::commands::format::plain;
use model::outcome::in_words;
use projects::ProjectLayout;
use projects::hooks::{self, HookResults};

/// Maximum time of all hooks of a project.
const MAX_TIME: &str = "20s";
/// Maximum bytes that hooks may print.
const MAX_OUTPUT: &str = "1M";

/// Runs these hooks, by their paths in the project.
///
/// # Errors
/// Hooks that failed: the project is incomplete without their results.
pub(in crate::commands) fn run(
    directory: &Path,
    hooks: &[&str],
    layout: &ProjectLayout,
    config: Option<&Path>,
) -> Result<HookResults, CliError> {
    let failed = |reason: String| {
        CliError::new(format!("project {}: {reason}", directory.display()))
            .with_hint("the output of the hooks is above; cofferdam project doctor runs them too")
    };
    let mark = mark().map_err(|error| failed(in_words(&error)))?;
    let program = std::env::current_exe().map_err(|error| failed(in_words(&error)))?;
    let absolute = std::path::absolute(directory).map_err(|error| failed(in_words(&error)))?;
    let mut granted = absolute.into_os_string();
    granted.push(":/workspace");
    let mut command = Command::new(program);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command.env_remove("MCPBASH_REMOTE_TOKEN");
    command.args([
        "run",
        "--no-tty",
        "--toolchains",
        "none",
        "--timeout",
        MAX_TIME,
        "--output",
        MAX_OUTPUT,
    ]);
    command.arg("--ro").arg(granted).args(["--", "bash", "-c"]);
    command.arg(OsString::from(hooks::script(hooks, &mark, layout)));
    let output = command.stdin(Stdio::null()).output().map_err(|error| failed(in_words(&error)))?;
    print_errors(&output.stderr);
    if !output.status.success() {
        let code = output.status.code().unwrap_or(-1);
        return Err(failed(format!("its hooks could not be run (exit code {code})")));
    }
    hooks::read(&output.stdout, &mark).map_err(|error| failed(plain(&error.to_string())))
}

/// Prints the hooks' standard error line by line, escaped for the operator's terminal.
fn print_errors(stderr: &[u8]) {
    let text = String::from_utf8_lossy(stderr);
    text.lines().for_each(|line| eprintln!("{}", plain(line)));
}

/// Makes a random word, which hooks cannot guess.
pub(super) fn mark() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
