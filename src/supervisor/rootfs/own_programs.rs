//! cofferdam's own programs in the roots of cells: `cofferdam-clerk`, which reads and writes files
//! in cells that can have a shell, and `cofferdam-runner`, which starts the scripts of a project.

use std::io::{Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::detached::{directories, relative};
use model::call::{CLERK, RUNNER};
use model::profile::Profile;

/// Writes the programs that cells of the profile may need below the current directory, the stage.
/// Returns their directory in the cell, if there are any.
///
/// # Errors
/// The error of mkdir(2), open(2) or write(2).
pub(crate) fn install(profile: &Profile) -> Result<Option<PathBuf>> {
    let clerk = (profile.can_hold_a_shell(), CLERK, helpers::CLERK);
    let runner = (!profile.script_sdk.is_empty(), RUNNER, helpers::RUNNER);
    let mut directory = None;
    for (_, path, program) in [clerk, runner].into_iter().filter(|(is_needed, ..)| *is_needed) {
        let path = Path::new(path);
        let above = path.parent().unwrap_or(Path::new("/"));
        directories(&relative(above))?;
        let mut options = std::fs::OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o555);
        options.open(relative(path))?.write_all(program)?;
        directory = Some(above.to_owned());
    }
    Ok(directory)
}
