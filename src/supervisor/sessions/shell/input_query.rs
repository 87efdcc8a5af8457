//! Questions to init about the input of the call that runs, one at a time.
//!
//! The front end asks as often as it likes; init is sent the next question when it has answered the
//! one before, so that it is never behind and the supervisor never waits for it.

use super::{Shell, ShellEvent, ShellStage};
use cell::report::ToInit;
use model::outcome::Waits;

/// Questions about one call.
#[derive(Debug, Default)]
pub(super) struct InputQuery {
    /// Init has it, and has not answered.
    sent: Option<u32>,
    /// It comes after the answer.
    next: Option<u32>,
}

impl Shell {
    /// Asks whether the call that runs waits for its input. Without an input that stays open there
    /// is nothing to ask.
    pub(crate) fn ask_input(&mut self, number: u32) {
        if let Some(current) = &mut self.current {
            current.asking.next = Some(number);
        }
        self.ask_next();
    }

    fn ask_next(&mut self) {
        let Some(current) = self.current.as_mut().filter(|_| self.stage == ShellStage::Running)
        else {
            return;
        };
        let Some(input) = current.pending.input_file else { return };
        if current.asking.sent.is_some() {
            return;
        }
        let Some(number) = current.asking.next.take() else { return };
        match self.cell.tell(&ToInit::AskInput { number, input }) {
            Ok(()) => current.asking.sent = Some(number),
            // Init is gone, which its pidfd tells; else the next question may be taken.
            Err(errno) => tracing::debug!(%errno, "a session's cell could not be asked"),
        }
    }

    /// Init has answered, or has seen that somebody waits now.
    pub(super) fn answered(&mut self, number: u32, waits: Waits) -> ShellEvent {
        let Some(current) = &mut self.current else { return ShellEvent::None };
        let call = current.call;
        if current.asking.sent == Some(number) {
            current.asking.sent = None;
        }
        self.ask_next();
        ShellEvent::Input(call, number, waits)
    }
}
