//! Trial of a granted directory: a cell writes into one, as with `run --rw`.
//!
//! A child runs it: a supervisor learns its grants at its start, and one that cannot mount a grant does not start.

use std::path::Path;
use std::process::{Command, Stdio};

use super::layer::{ProbeResult, missing, ok, weak};
use crate::commands::format::plain;
use model::outcome::in_words;

/// Name of the layer.
pub(super) const NAME: &str = "granted directory";
/// Granted directory, below a temporary one.
const GRANTED: &str = "granted";
/// Directory of the user's caches for the trial, next to it. Otherwise the cache of the granted directory would stay in
/// the user's own.
const CACHES: &str = "caches";
/// File that the cell writes.
const FILE: &str = "written";

/// Tries a grant of a temporary directory. Needs a caller that may still start programs.
pub(super) fn probe(config: Option<&Path>) -> ProbeResult {
    let directory = match tempfile::Builder::new().prefix("cofferdam-doctor-").tempdir() {
        Ok(directory) => directory,
        Err(error) => {
            let error = in_words(&error);
            return weak(format!("not tried: no directory can be made: {error}"))
                .with_remedy("set TMPDIR to a directory that can be written to");
        }
    };
    match write_from_cell(config, directory.path()) {
        Ok(()) => ok("a cell wrote to a directory that it was granted, which the host sees"),
        Err(Failed { reason, hint }) => {
            let hint = hint.unwrap_or_else(|| "see the lines above".to_owned());
            missing(reason).with_remedy(hint)
        }
    }
}

/// Reason why a cell could not write, and the hint of its error.
struct Failed {
    reason: String,
    hint: Option<String>,
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self { reason: in_words(&error).to_string(), hint: None }
    }
}

/// Runs a cell that writes into a directory below `temporary`.
fn write_from_cell(config: Option<&Path>, temporary: &Path) -> Result<(), Failed> {
    let directory = &temporary.join(GRANTED);
    std::fs::create_dir(directory)?;
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command.args(["run", "--rw"]).arg(directory).args(["--", "bash", "-c"]);
    command.arg(format!("echo granted > {FILE}"));
    command.current_dir(directory).stdin(Stdio::null());
    command.env("XDG_CACHE_HOME", temporary.join(CACHES));
    let output = command.output()?;
    // A file that is missing or unreadable fails the comparison.
    let text = std::fs::read_to_string(directory.join(FILE)).unwrap_or_default();
    if output.status.success() && text == "granted\n" {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut lines = errors.lines();
    let first = lines.next().unwrap_or("a cell could not write to it");
    let first = first.strip_prefix("cofferdam: ").unwrap_or(first);
    let hint = lines.find_map(|line| line.strip_prefix("hint: "));
    Err(Failed { reason: plain(first), hint: hint.map(plain) })
}
