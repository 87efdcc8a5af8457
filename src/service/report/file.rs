//! The report of a request for a file of `/workspace`.

use crate::denied::DenialReport;
use crate::files::FileAnswer;
use model::receipt::Receipt;

/// Result of a request for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReport {
    pub answer: FileAnswer,
    pub denials: Vec<DenialReport>,
    pub receipt: Option<Receipt>,
    /// Reason why the session has a new shell, where it had another.
    pub renewed: Option<String>,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}
