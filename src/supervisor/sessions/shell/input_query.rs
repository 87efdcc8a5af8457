//! Questions to init about the inputs of the calls that run, one at a time about each.
//!
//! The front end asks as often as it likes; init is sent the next question about an input when it has
//! answered the one before, so that it is never behind and the supervisor never waits for it.

use crate::cells::cell::Cell;
use crate::sessions::mailbox::PendingCall;
use cell::report::ToInit;

/// Questions about one call.
#[derive(Debug, Default)]
pub(super) struct InputQuery {
    /// The last question that init has: its number in this shell, and the front end's.
    sent: Option<(u32, u32)>,
    /// True until init has answered that question.
    is_open: bool,
    /// The front end's number of the question that comes after the answer.
    next: Option<u32>,
}

impl InputQuery {
    /// Notes a question of the front end, in place of one that was not sent yet.
    pub(super) fn ask(&mut self, number: u32) {
        self.next = Some(number);
    }

    /// Sends the next question: whether the input is waited for if it stays open, else whether a terminal is.
    pub(super) fn send_next(&mut self, pending: &PendingCall, cell: &Cell, last: &mut u32) {
        if self.is_open {
            return;
        }
        let Some(theirs) = self.next.take() else { return };
        let number = last.wrapping_add(1);
        let question = match pending.input_file {
            Some(input) => ToInit::AskInput { number, input },
            None => ToInit::AskTerminal { number, call: pending.number },
        };
        match cell.send(&question) {
            Ok(()) => {
                *last = number;
                self.sent = Some((number, theirs));
                self.is_open = true;
            }
            // If init is gone, its pidfd reports that; else the next question may be accepted.
            Err(errno) => tracing::debug!(%errno, "a session's cell could not be asked"),
        }
    }

    /// Takes an answer; returns the front end's number of its question.
    pub(super) fn answered(&mut self, number: u32) -> Option<u32> {
        let (_, theirs) = self.sent.filter(|(sent, _)| *sent == number)?;
        self.is_open = false;
        Some(theirs)
    }
}
