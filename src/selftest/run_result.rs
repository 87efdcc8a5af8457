//! The end and the output of one run of an attack.

use std::time::Duration;

/// End and output of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub took: Duration,
    /// Bytes of both streams.
    pub bytes: u64,
    pub end: RunEnd,
    /// The process group that it was started in.
    pub group: i32,
}

/// Reason for the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// The program itself.
    Own,
    /// A kill that the attack requested.
    Wanted,
    /// A kill because it did not end in time.
    Overdue,
}

impl Ran {
    pub fn said(&self) -> &str {
        self.stdout.trim()
    }

    /// Returns the result on one line.
    pub fn summary(&self) -> String {
        let short =
            |text: &str| text.trim().chars().take(200).collect::<String>().replace('\n', " | ");
        let code = self.code.map_or("a signal".to_owned(), |code| format!("exit {code}"));
        match short(&self.stderr) {
            empty if empty.is_empty() => format!("`{}`, {code}", short(&self.stdout)),
            errors => format!("`{}`, {code}, `{errors}`", short(&self.stdout)),
        }
    }
}
