//! Reports of what was done for an agent, as every front door renders them.

mod calculation;
mod command;
mod file;
mod job;

pub use calculation::{Batch, Calculated, Exact, Plotted, ValueOrigin};
pub use command::{
    BashAnswer, Clamped, CommandReport, Cut, Running, SessionFields, SessionReport, ShellState,
    Stream, are_cut,
};
pub use file::FileReport;
pub use job::{InputTaken, JobAnswer, JobEnd, JobOutput, JobState, JobSummary};
