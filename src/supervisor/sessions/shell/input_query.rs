//! Questions to init about the inputs of the calls that run, one at a time about each.
//!
//! The front end asks as often as it likes; init is sent the next question about an input when it has
//! answered the one before, so that it is never behind and the supervisor never waits for it.

use super::{Shell, ShellEvent, ShellStage};
use crate::cells::cell::Cell;
use cell::report::{InputFile, ToInit};
use model::outcome::Waits;
use model::wire::CallId;

/// Questions about one call.
#[derive(Debug, Default)]
pub(super) struct InputQuery {
    /// The last question that init has: its number in this shell, and the front end's.
    sent: Option<(u32, u32)>,
    /// True until init has answered it.
    open: bool,
    /// It comes after the answer.
    next: Option<u32>,
}

impl InputQuery {
    /// Sends the next question, if the command has an input that stays open.
    fn send_next(&mut self, input: Option<InputFile>, cell: &Cell, last: &mut u32) {
        let Some(input) = input.filter(|_| !self.open) else { return };
        let Some(theirs) = self.next.take() else { return };
        let number = last.wrapping_add(1);
        match cell.tell(&ToInit::AskInput { number, input }) {
            Ok(()) => {
                *last = number;
                self.sent = Some((number, theirs));
                self.open = true;
            }
            // If init is gone, its pidfd reports that; else the next question may be accepted.
            Err(errno) => tracing::debug!(%errno, "a session's cell could not be asked"),
        }
    }

    /// Takes an answer; returns the front end's number of its question.
    fn answered(&mut self, number: u32) -> Option<u32> {
        let (_, theirs) = self.sent.filter(|(sent, _)| *sent == number)?;
        self.open = false;
        Some(theirs)
    }
}

impl Shell {
    /// Asks whether a call waits for its input.
    pub(crate) fn ask_input(&mut self, call: CallId, number: u32) {
        let current = self.current.as_mut().filter(|current| current.call == call);
        let asking = match current {
            Some(current) => Some(&mut current.asking),
            None => self.jobs.iter_mut().find(|job| job.call == call).map(|job| &mut job.asking),
        };
        if let Some(asking) = asking {
            asking.next = Some(number);
        }
        self.ask_next();
    }

    /// Sends the questions that init can be sent.
    pub(super) fn ask_next(&mut self) {
        if self.stage == ShellStage::Running
            && let Some(current) = &mut self.current
        {
            let input = current.pending.input_file;
            current.asking.send_next(input, &self.cell, &mut self.questions);
        }
        for job in &mut self.jobs {
            job.asking.send_next(job.pending.input_file, &self.cell, &mut self.questions);
        }
    }

    /// Handles init's answer, or its report that a process waits for input now.
    pub(super) fn answered(&mut self, number: u32, waits: Waits) -> ShellEvent {
        let jobs = self.jobs.iter_mut().map(|job| (job.call, &mut job.asking));
        let current = self.current.iter_mut().map(|current| (current.call, &mut current.asking));
        let mut all = current.chain(jobs);
        let about = all.find_map(|(call, asking)| Some((call, asking.answered(number)?)));
        let Some((call, number)) = about else { return ShellEvent::None };
        self.ask_next();
        ShellEvent::Input(call, number, waits)
    }
}
