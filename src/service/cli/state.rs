//! The state of each declared tool of a server: its turns, its breaker, and the counts of its calls.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::Declared;
use super::advice::ErrorType;
use super::breaker::{Breaker, BreakerState};
use crate::queue::Queue;

/// State of every offered tool, by its name.
#[derive(Debug, Default)]
pub(crate) struct ToolStates(BTreeMap<String, ToolState>);

/// State of one tool.
#[derive(Debug)]
pub(crate) struct ToolState {
    pub(crate) queue: Queue,
    pub(crate) breaker: Breaker,
    counts: Mutex<Counts>,
}

/// Counts of the calls that have ended.
#[derive(Debug, Clone, Default)]
struct Counts {
    calls: u64,
    errors: BTreeMap<ErrorType, u64>,
    time: Duration,
    /// Kind of the last call's error.
    last: Option<ErrorType>,
}

/// Health of a tool, in the reference implementation's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolHealth {
    Healthy,
    /// Its breaker refuses calls.
    Degraded,
    /// Its program was not there when it was last called.
    Unhealthy,
}

/// Figures of a tool, for health and metrics.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolFigures {
    pub health: ToolHealth,
    pub breaker: BreakerState,
    /// Calls that run or wait.
    pub pending: usize,
    /// Calls that have ended, and of those the ones with an error, by its kind.
    pub calls: u64,
    pub errors: BTreeMap<ErrorType, u64>,
    /// Wall time of all of them, in seconds.
    pub seconds: f64,
}

impl ToolStates {
    /// Makes the states of these tools.
    pub(crate) fn of(commands: &[Declared]) -> Self {
        let state = |declared: &Declared| {
            let conduct = &declared.command.conduct;
            let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
            let state = ToolState {
                queue: Queue::new(size(conduct.concurrency), size(conduct.queue)),
                breaker: Breaker::new(&declared.command.name, conduct.breaker),
                counts: Mutex::default(),
            };
            (declared.command.name.clone(), state)
        };
        Self(commands.iter().map(state).collect())
    }

    pub(crate) fn get(&self, tool: &str) -> Option<&ToolState> {
        self.0.get(tool)
    }

    /// Returns the figures of every tool, by its name.
    pub(crate) fn figures(&self) -> BTreeMap<String, ToolFigures> {
        self.0.iter().map(|(name, state)| (name.clone(), state.figures())).collect()
    }
}

impl ToolState {
    /// Counts a call that has ended.
    pub(crate) fn count(&self, error: Option<ErrorType>, took: Duration) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.calls += 1;
        counts.time = counts.time.saturating_add(took);
        // A call that the breaker refused says nothing new of the program.
        if error != Some(ErrorType::CircuitBreakerOpen) {
            counts.last = error;
        }
        if let Some(kind) = error {
            *counts.errors.entry(kind).or_default() += 1;
        }
    }

    pub(crate) fn figures(&self) -> ToolFigures {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let breaker = self.breaker.state();
        let health = match (counts.last, breaker) {
            (Some(ErrorType::NotFound), _) => ToolHealth::Unhealthy,
            (_, BreakerState::Open | BreakerState::HalfOpen) => ToolHealth::Degraded,
            (_, BreakerState::Closed) => ToolHealth::Healthy,
        };
        let Counts { calls, errors, time, last: _ } = counts;
        let pending = self.queue.pending();
        ToolFigures { health, breaker, pending, calls, errors, seconds: time.as_secs_f64() }
    }
}
