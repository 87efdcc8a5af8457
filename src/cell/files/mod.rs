//! Reports the files that a call changes in the workspace: init scans it before and after the call,
//! and compares the two scans.
//!
//! Only init can do this: it is inside the cell, so that no path leads out of it, no program of the
//! cell can reach its memory, and it outlives a shell's command. A scan is limited in time, entries
//! and memory, and the report says if it was cut. It runs in small steps, between which init
//! watches memory and answers calls as usual.
//!
//! The report is not evidence: a program that wants to hide a change can (for example by setting times back
//! through a mapping). It informs a client that wants to know the results of a command.

mod compare;
mod scan;
mod tree;

use std::time::SystemTime;

use model::outcome::FilesChanged;
use scan::{Progress, Scan};
use tree::Tree;

/// Purpose of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// A program is about to start: the files are recorded and not reported.
    Begin,
    /// A command of a session has ended.
    Count,
}

/// State of the workspace at the last scan.
#[derive(Debug)]
pub struct Files {
    /// Memory limit of the cell in bytes; it bounds the size of a scan.
    memory: u64,
    before: Tree,
    /// When the scan [`Files::before`] began.
    since: SystemTime,
    under_way: Option<(Scan, SystemTime, Then)>,
}

impl Files {
    /// Starts from an empty workspace. Otherwise a scan must come before the program runs.
    pub fn new(memory: u64) -> Self {
        Self { memory, before: Tree::empty(), since: SystemTime::now(), under_way: None }
    }

    /// Begins a scan.
    pub fn begin(&mut self, then: Then) {
        self.under_way = Some((Scan::begin(self.memory), SystemTime::now(), then));
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Takes one step of the scan. When it is complete, returns its purpose and the changes since
    /// the previous scan.
    pub fn step(&mut self) -> Option<(Then, FilesChanged)> {
        let (scan, ..) = self.under_way.as_mut()?;
        if scan.step() == Progress::More {
            return None;
        }
        let (scan, began, then) = self.under_way.take()?;
        let (root, after) = scan.done();
        let changed = compare::compare(&self.before, &after, root.as_ref(), self.since);
        self.before = after;
        self.since = began;
        Some((then, changed))
    }

    /// Scans to the end at once, when init has nothing else to do. If the first scan is still
    /// running, the program has not started, so that nothing has changed.
    pub fn last(&mut self) -> FilesChanged {
        if let Some((.., Then::Begin)) = self.under_way {
            return FilesChanged::none();
        }
        self.begin(Then::Count);
        loop {
            if let Some((_, changed)) = self.step() {
                return changed;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Files, Then};

    #[test]
    fn a_program_that_ends_before_the_first_look_has_changed_nothing() {
        let mut files = Files::new(1 << 30);
        files.begin(Then::Begin);
        assert!(files.last().is_nothing());
    }
}
