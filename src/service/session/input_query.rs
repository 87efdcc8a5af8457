//! Asks the supervisor for each command: does it wait for input?

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::Command;
use model::outcome::Waits;

/// Time to wait for an answer: init gives it at once.
const ANSWER: Duration = Duration::from_millis(300);

/// Questions about one command's input, with the last answer.
#[derive(Debug)]
pub(crate) struct InputQuery {
    /// Number of the last question; answers to earlier ones are ignored.
    asked: AtomicU32,
    waits: watch::Receiver<(u32, Waits)>,
}

impl InputQuery {
    pub(crate) fn new(waits: watch::Receiver<(u32, Waits)>) -> Self {
        Self { asked: AtomicU32::new(0), waits }
    }

    /// Returns the answer to the last question.
    fn answer(&self) -> Option<Waits> {
        let (number, waits) = *self.waits.borrow();
        (number > 0 && number == self.asked.load(Ordering::Acquire)).then_some(waits)
    }
}

impl Command {
    /// Asks again, after the input has changed or time has passed. About a command whose input is not open the
    /// question is whether it waits for a terminal.
    pub(super) fn query_input(&self) {
        let number = self.query.asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        self.control.ask_input(number);
    }

    /// Returns true if it waits for input or for a terminal, by the last answer.
    pub(crate) fn waits(&self) -> bool {
        let is_asked = self.input.is_open() || self.input.is_absent();
        is_asked && !self.is_over() && self.query.answer() == Some(Waits::Yes)
    }

    /// Returns true if it waits for input, by the last answer.
    pub(crate) fn waits_for_input(&self) -> bool {
        self.input.is_open() && self.waits()
    }

    /// Returns true if it waits for a terminal that it does not have, by the last answer.
    pub(crate) fn waits_for_terminal(&self) -> bool {
        self.input.is_absent() && self.waits()
    }

    /// Resolves when it waits for input or for a terminal; that may never happen.
    pub(super) async fn waiting(&self) {
        let mut changes = self.query.waits.clone();
        while !self.waits() {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Asks again, and waits for the answer.
    pub(super) async fn query_input_now(&self) {
        if self.is_over() {
            return;
        }
        let mut changes = self.query.waits.clone();
        self.query_input();
        let answer =
            async { while self.query.answer().is_none() && changes.changed().await.is_ok() {} };
        // Without an answer nothing is known, and nothing is claimed.
        timeout(ANSWER, answer).await.unwrap_or_default();
    }
}
