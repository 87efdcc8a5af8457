//! Reasons why the supervisor did not start, for main and for the supervisor itself.

use nix::errno::Errno;

use crate::rootfs::error::GrantError;
use model::outcome::in_words;

/// Minimum hard limit on open files: the supervisor needs some for each template and each cell.
pub(crate) const MIN_OPEN_FILES: u64 = 256;

/// Why there is no supervisor. `cofferdam doctor` shows a remedy for each reason.
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
    #[error("{limit} instances are running already")]
    NoInstance { limit: u32 },
    #[error("{limit} open files are allowed here, and {MIN_OPEN_FILES} are needed")]
    OpenFiles { limit: u64 },
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

/// A failed step with its errno.
pub(crate) struct StepError(pub String, pub Errno);

/// Adds the name of the step to a failed call.
pub(crate) trait DuringBoot<T> {
    fn during(self, step: &str) -> Result<T, StepError>;
}

impl<T> DuringBoot<T> for Result<T, Errno> {
    fn during(self, step: &str) -> Result<T, StepError> {
        self.map_err(|errno| StepError(step.to_owned(), errno))
    }
}
