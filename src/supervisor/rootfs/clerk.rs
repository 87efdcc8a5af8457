//! `cofferdam-clerk` in the root of cells that can hold a shell: what reads and writes files there.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::detached::{directories, relative};
use model::call::CLERK;

/// Puts the program below the current directory, the stage. The directory that it is in, as cells
/// have it.
///
/// # Errors
/// What mkdir(2), open(2) or write(2) say.
pub(crate) fn place() -> std::io::Result<&'static Path> {
    let path = Path::new(CLERK);
    let directory = path.parent().unwrap_or(Path::new("/"));
    directories(&relative(directory))?;
    let mut options = std::fs::OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o555)
        .open(relative(path))?
        .write_all(helpers::CLERK)?;
    Ok(directory)
}
