//! Why the supervisor did not start: on main's side, and on its own.

use nix::errno::Errno;

use crate::rootfs::error::GrantError;
use model::outcome::in_words;

/// The least hard limit on open files: the supervisor has some for each template and each cell.
pub(crate) const OPEN_FILES_LEAST: u64 = 256;

/// Why there is no supervisor. Each has its remedy in `cofferdam doctor`.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the supervisor must start before any thread: {threads} are running")]
    Threads { threads: usize },
    #[error("/proc cannot be read: {}", in_words(.0))]
    NoProc(#[source] std::io::Error),
    #[error("this kernel or container refuses user namespaces: {0}")]
    Clone(#[source] Errno),
    #[error("the supervisor's ids cannot be mapped: {0}")]
    Maps(#[source] Errno),
    #[error("the instance lock cannot be taken: {}", in_words(.error))]
    Lock { error: std::io::Error },
    #[error("{most} instances are running already")]
    NoInstance { most: u32 },
    #[error("{most} open files are allowed here, and {OPEN_FILES_LEAST} are needed")]
    OpenFiles { most: u64 },
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error("signals cannot be set to what they usually do: {0}")]
    Signals(#[source] Errno),
    #[error("the limit of core files cannot be set: {0}")]
    CoreLimit(#[source] Errno),
    #[error("no private directory for cells: {}", in_words(.0))]
    Store(#[source] std::io::Error),
    #[error("the gateway, by which cells reach a network, cannot be started: {0}")]
    Gateway(String),
    #[error("the link cannot be made: {0}")]
    Link(#[source] Errno),
}

/// A step that failed, with the errno it failed with.
pub(crate) struct StepError(pub String, pub Errno);

/// Names the step of the start in which a call failed.
pub(crate) trait DuringBoot<T> {
    fn during(self, step: &str) -> Result<T, StepError>;
}

impl<T> DuringBoot<T> for Result<T, Errno> {
    fn during(self, step: &str) -> Result<T, StepError> {
        self.map_err(|errno| StepError(step.to_owned(), errno))
    }
}
