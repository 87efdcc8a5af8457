//! The program under test where everybody can start it: the directory that it was built in may be closed
//! to others, as those of root and temporary ones are.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A copy of a program in a directory that everybody may enter; it goes with this value.
#[derive(Debug)]
pub struct Copied {
    directory: tempfile::TempDir,
}

impl Copied {
    /// Copies `program`. While another thread forks, what was just written cannot be executed
    /// (ETXTBSY): copy before there are threads, or once.
    pub fn of(program: &Path) -> std::io::Result<Self> {
        let directory = world_directory()?;
        let copied = Self { directory };
        std::fs::copy(program, copied.path())?;
        std::fs::set_permissions(copied.path(), PermissionsExt::from_mode(0o755))?;
        Ok(copied)
    }

    /// The path of the copy.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("cofferdam")
    }
}

/// A directory that everybody may enter, as temporary directories are not.
pub fn world_directory() -> std::io::Result<tempfile::TempDir> {
    let directory = tempfile::Builder::new().prefix("cofferdam-test-").tempdir()?;
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755))?;
    Ok(directory)
}
