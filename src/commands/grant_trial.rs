//! The trial of a granted directory by `doctor`: a cell writes into one, as `run --rw` has it.
//!
//! A process of its own does it: what a supervisor is granted it must be told at its start, and one that cannot take a
//! grant does not start at all.

use std::path::Path;
use std::process::{Command, Stdio};

use super::doctor::{LayerCheck, LayerState};
use super::format::plain;
use model::outcome::in_words;

/// Name of the layer.
pub(crate) const NAME: &str = "granted directory";
/// File that the cell writes.
const FILE: &str = "written";

/// Tries a grant with a directory that is made for it. Needs a caller that may still start programs.
pub(crate) fn layer(config: Option<&Path>) -> LayerCheck {
    let directory = match tempfile::Builder::new().prefix("cofferdam-doctor-").tempdir() {
        Ok(directory) => directory,
        Err(error) => {
            let how = format!("not tried: no directory can be made: {}", in_words(&error));
            let remedy = "set TMPDIR to a directory that can be written to";
            return layer_of(LayerState::Weak, how, Some(remedy.to_owned()));
        }
    };
    match written(config, directory.path()) {
        Ok(()) => {
            let how = "a cell wrote to a directory that it was granted, which the host sees";
            layer_of(LayerState::Ok, how.to_owned(), None)
        }
        Err((how, remedy)) => layer_of(LayerState::Missing, how, Some(remedy)),
    }
}

fn layer_of(state: LayerState, how: String, remedy: Option<String>) -> LayerCheck {
    LayerCheck { name: NAME.to_owned(), state, how, remedy }
}

/// Has a cell write into the directory. Returns why it could not, and the way out.
fn written(config: Option<&Path>, directory: &Path) -> Result<(), (String, String)> {
    let failed = |what: &str| (what.to_owned(), "see the lines above".to_owned());
    let program = std::env::current_exe().map_err(|error| failed(&in_words(&error).to_string()))?;
    let mut command = Command::new(program);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command.args(["run", "--rw"]).arg(directory).args(["--", "bash", "-c"]);
    command.arg(format!("echo granted > {FILE}"));
    command.current_dir(directory).stdin(Stdio::null());
    let output = command.output().map_err(|error| failed(&in_words(&error).to_string()))?;
    let text = std::fs::read_to_string(directory.join(FILE)).unwrap_or_default();
    if output.status.success() && text == "granted\n" {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut lines = errors.lines();
    let first = lines.next().unwrap_or("a cell could not write to it");
    let first = first.strip_prefix("cofferdam: ").unwrap_or(first);
    let hint = lines.find_map(|line| line.strip_prefix("hint: "));
    Err((plain(first), hint.map_or_else(|| failed("").1, plain)))
}
