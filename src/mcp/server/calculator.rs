//! The client's state for the calculator's tools: its precision and its ledger.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::super::arguments::Seconds;
use super::Server;
use calc::ledger::Ledger;
use model::call::{InvalidCall, seconds};
use service::refused::Refused;
use service::report::Calculated;
use service::request::Precision;

impl Server {
    pub(crate) fn note_one(
        &self,
        tool: &'static str,
        text: &str,
        precision: Precision,
        done: &Result<Calculated, Refused>,
        started: Instant,
    ) {
        let answer = done.as_ref().map(|done| done.result.as_str());
        let answer = answer.map_err(|refused| refused.message.as_str());
        let took = started.elapsed();
        self.ledger(|ledger| ledger.note(tool, text, Some(precision.places()), answer, took));
    }

    pub(crate) fn ledger<T>(&self, with: impl FnOnce(&mut Ledger) -> T) -> T {
        with(&mut self.0.client.state().ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the note for a requested time that is longer than a calculation may take.
    pub(crate) fn lowered(&self, within: Option<Duration>) -> Option<String> {
        let most = Duration::from_secs(self.0.client.rules().limits.calculator_timeout_s);
        let asked = within.filter(|asked| *asked > most)?.as_secs_f64();
        Some(format!("timeout {asked} s was lowered to {} s, the most there is", most.as_secs()))
    }

    /// Returns the precision of one calculation: its own, else the client's.
    pub(crate) fn precision(&self, asked: Option<Precision>) -> Precision {
        asked.unwrap_or_else(|| self.0.client.state().precision.get())
    }
}

/// Returns the time that a calculation asks for, if any.
pub(crate) fn within(timeout: Option<Seconds>) -> Result<Option<Duration>, InvalidCall> {
    timeout.map(|Seconds(value)| seconds("timeout", value)).transpose()
}
