//! Results of the calculator.

use std::time::Duration;

use calc::plot::Drawn;
use model::receipt::Receipt;

/// Result of a calculation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calculated {
    /// Empty when nothing was printed.
    pub result: String,
    /// Result of comparing two working scales: exact if they agree on every digit shown.
    pub exact: Exact,
    /// Warnings of bc.
    pub warnings: Vec<String>,
    pub took: Duration,
    pub ran: ValueOrigin,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    /// Calculated in a cell that had this protection.
    InCell(Option<Box<Receipt>>),
    /// Calculated before by this server: no cell ran.
    Remembered,
}

/// Result of a batch of calculations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Value of each expression, or the reason why it has none.
    pub entries: Vec<Result<(String, Exact), String>>,
    pub took: Duration,
    pub receipt: Option<Receipt>,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

/// A plotted function.
#[derive(Debug, Clone, PartialEq)]
pub struct Plotted {
    pub drawn: Drawn,
    pub took: Duration,
    pub receipt: Option<Receipt>,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exact {
    Yes,
    No,
}
