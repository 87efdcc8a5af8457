//! The program under test where everybody can start it: the directory that it was built in may be closed
//! to others, as those of root and temporary ones are.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A copy of a program in a directory that every user may enter; removed on drop.
#[derive(Debug)]
pub struct Copied {
    directory: tempfile::TempDir,
}

impl Copied {
    /// Copies `program`, in a process apart: a file that this one has open for writing while another of its threads forks
    /// cannot be executed (ETXTBSY).
    pub fn of(program: &Path) -> std::io::Result<Self> {
        let directory = world_directory()?;
        let copied = Self { directory };
        let copy = Command::new("cp").arg(program).arg(copied.path()).output()?;
        if !copy.status.success() {
            return Err(std::io::Error::other(String::from_utf8_lossy(&copy.stderr).into_owned()));
        }
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
