//! Reasons why a root could not be built, or a part of the host not granted.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use cell::errno_of;
use model::profile::SocketName;

/// The directory in which a root is built. It exists on every system, and in our mount namespace
/// nothing else needs it.
pub(crate) const STAGE: &str = "/tmp";

/// Why a template could not be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("`{}` is not on this host", path.display())]
    Missing { path: PathBuf },
    #[error("`{}` cannot be put in the cell: {errno}", path.display())]
    Path { path: PathBuf, errno: Errno },
    #[error(
        "`{}` is neither a directory nor a regular file\n\
         hint: a socket is granted by name, with --socket and `unix_sockets`",
        path.display()
    )]
    Special { path: PathBuf },
    #[error("{0}")]
    Grant(#[from] GrantError),
    #[error("{what}: {errno}")]
    System { what: &'static str, errno: Errno },
}

/// Adds the name of the step to a failed call.
pub(crate) trait DuringBuild<T> {
    /// Returns the value, or the error with the step.
    fn during(self, what: &'static str) -> Result<T, TemplateError>;
}

impl<T> DuringBuild<T> for nix::Result<T> {
    fn during(self, what: &'static str) -> Result<T, TemplateError> {
        self.map_err(|errno| TemplateError::System { what, errno })
    }
}

impl<T> DuringBuild<T> for std::io::Result<T> {
    fn during(self, what: &'static str) -> Result<T, TemplateError> {
        self.map_err(|error| TemplateError::System { what, errno: errno_of(&error) })
    }
}

/// Why a part of the host could not be prepared for cells.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    #[error("`{}` cannot be granted: {errno}", path.display())]
    Directory { path: PathBuf, errno: Errno },
    #[error(
        "`{}` cannot be granted by root here: {errno}\n\
         hint: for root's cells it is mounted with their ids, which a container or a filesystem may refuse; start \
         cofferdam as an ordinary user (setpriv --reuid=1000 --regid=1000 --clear-groups; docker and podman: --user \
         1000:1000)",
        path.display()
    )]
    IdMapped { path: PathBuf, errno: Errno },
    #[error(
        "`{}` is a link, so what is granted beyond it would move with it\n\
         hint: grant it at the place that the link leads to",
        path.display()
    )]
    Link { path: PathBuf },
    #[error(
        "`{}` is not there, so nothing can be granted at it\nhint: make it: mkdir -p '{}'",
        path.display(),
        path.display()
    )]
    NoPlace { path: PathBuf },
    #[error(
        "`{}` is neither a directory nor a regular file\n\
         hint: a socket is granted by name, with --socket and `unix_sockets`",
        path.display()
    )]
    Special { path: PathBuf },
    #[error(
        "`{}` is closed to its owner, so what the host obeys in it, or by it, cannot be guarded\n\
         hint: a command may have closed it: look into it, and open it: chmod u+rwx '{}'",
        path.display(),
        path.display()
    )]
    Closed { path: PathBuf },
    #[error("`{}` was replaced while it was being granted\nhint: start again", path.display())]
    Replaced { path: PathBuf },
    #[error(
        "`{}` cannot be shown through a layer: other filesystems are mounted below it\n\
         hint: grant a directory without mounts below it, or this one with --rw",
        path.display()
    )]
    MountsBelow { path: PathBuf },
    #[error("the socket `{name}` cannot be granted: {errno}")]
    Socket { name: SocketName, errno: Errno },
}

impl GrantError {
    /// Explains why a grant could not be opened.
    pub(crate) fn held(path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        match [Errno::ESTALE, Errno::ELOOP].contains(&errno) {
            true => Self::Replaced { path },
            false => Self::Directory { path, errno },
        }
    }
}

pub(crate) fn refused(path: &Path, error: &std::io::Error) -> TemplateError {
    TemplateError::Path { path: path.to_owned(), errno: errno_of(error) }
}
