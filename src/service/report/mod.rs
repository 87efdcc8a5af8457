//! Reports of what was done for an agent, and their JSON, which every front door passes on.

mod calculation;
pub mod changes;
mod ci;
mod command;
mod fields;
mod file;
mod job;
pub mod network;
mod notes;
mod protection;

pub use calculation::{Batch, BatchValue, Calculated, Exact, Plotted, Shortened, ValueOrigin};
pub use ci::runs as runs_in_ci;
pub use command::{
    Clamped, CommandReport, CommandState, Cut, Renewed, RunningReport, SessionAction,
    SessionFields, SessionReport, ShellState, StreamReport, are_cut,
};
pub use fields::{Detail, millis, session_fields, time_text, to_value};
pub use file::FileReport;
pub use job::{InputTaken, JobAnswer, JobEnd, JobOutput, JobSummary};
pub use notes::without_brackets;
pub use protection::{receipt_fields, unrecorded_fields};
