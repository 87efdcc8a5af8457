//! The state of each declared tool of a server: its turns, its breaker, and the counts of its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::Declared;
use super::advice::ErrorType;
use super::breaker::{Breaker, BreakerState};
use super::output::Readings;
use crate::queue::Queue;
use config::policy::Principal;
use config::policy::conduct::BreakerLimits;
use config::policy::hooks::{ReaderHealth, ReaderMetric};

/// Maximum value of a counter: up to it, an f64 counts each unit.
const MAX_COUNTED: f64 = 9_007_199_254_740_992.0;

/// Maximum number of breakers of one tool that are kept for clients that have left.
const MAX_LEFT: usize = 1024;

/// State of every offered tool, by its name.
#[derive(Debug, Default)]
pub(crate) struct ToolStates(BTreeMap<String, ToolState>);

/// State of one tool.
#[derive(Debug)]
pub(crate) struct ToolState {
    pub(crate) queue: Arc<Queue>,
    name: String,
    limits: BreakerLimits,
    /// A breaker of each client: calls of one that fail say nothing about those of another.
    breakers: Mutex<BTreeMap<Principal, ClientBreaker>>,
    /// True if its cells had no such program when the server started.
    missing: bool,
    counts: Mutex<Counts>,
}

/// The breaker of one client.
#[derive(Debug)]
struct ClientBreaker {
    breaker: Arc<Breaker>,
    /// True from the removal of the client until its next call.
    has_left: bool,
}

/// Counts of the calls that have ended.
#[derive(Debug, Clone, Default)]
struct Counts {
    calls: u64,
    errors: BTreeMap<ErrorType, u64>,
    time: Duration,
    slowest: Duration,
    /// End of the last call that says something of the program.
    last: Option<LastEnd>,
    /// Numbers that readers found, by reader.
    readings: BTreeMap<String, Reading>,
    /// Health by the readers of the last call that ran, with the reason.
    reported: Option<(ReaderHealth, String)>,
}

/// Numbers that one reader found in the outputs of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reading {
    #[serde(serialize_with = "metric_name")]
    pub metric: ReaderMetric,
    /// The sum of all numbers of a counter, the last number of a gauge.
    pub value: f64,
}

impl Reading {
    /// Adds the number that was found in one output.
    ///
    /// A counter never falls, whatever a program prints, except that one at its maximum begins again, as
    /// readers of metrics expect of a counter that was reset: it would otherwise hide all later numbers.
    fn add(&mut self, metric: ReaderMetric, number: f64) {
        match metric {
            ReaderMetric::Counter if (0.0..=MAX_COUNTED).contains(&number) => {
                let has_room = number <= MAX_COUNTED - self.value;
                self.value = if has_room { self.value + number } else { number };
            }
            ReaderMetric::Counter => {}
            ReaderMetric::Gauge => self.value = number,
        }
    }
}

fn metric_name<S: Serializer>(metric: &ReaderMetric, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(metric.name())
}

/// End of a call, as the health of its tool counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastEnd {
    /// The program was there, whatever it answered.
    Found,
    NotFound,
}

/// Health of a tool, in the reference implementation's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolHealth {
    Healthy,
    /// Its breaker refuses calls, or a reader of its output says so.
    Degraded,
    /// Its program is missing, according to the last call or to the check at the start, or a reader
    /// of its output says so.
    Unhealthy,
}

impl From<ReaderHealth> for ToolHealth {
    fn from(reported: ReaderHealth) -> Self {
        match reported {
            ReaderHealth::Degraded => Self::Degraded,
            ReaderHealth::Unhealthy => Self::Unhealthy,
        }
    }
}

impl ToolHealth {
    /// Returns the word that reports have.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// Figures of a tool, for health and metrics.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolFigures {
    pub health: ToolHealth,
    /// Reason of the operator's reader, if it decides the health.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub breaker: BreakerState,
    /// Calls that run or wait.
    pub pending: usize,
    /// Calls that have ended, and of those the ones with an error, by its kind.
    pub calls: u64,
    pub errors: BTreeMap<ErrorType, u64>,
    /// Wall time of all of them, and of the slowest, in seconds.
    pub seconds: f64,
    pub slowest: f64,
    /// Numbers that readers found in outputs, by reader.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub readings: BTreeMap<String, Reading>,
}

impl ToolStates {
    /// Makes the states of these tools; the programs of those in `missing` were not found.
    pub(crate) fn of(commands: &[Declared], missing: &BTreeSet<String>) -> Self {
        let state = |declared: &Declared| {
            let conduct = &declared.command.conduct;
            let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
            let state = ToolState {
                queue: Queue::new(size(declared.terms.concurrency), size(conduct.queue)),
                name: declared.command.name.clone(),
                limits: declared.terms.breaker,
                breakers: Mutex::default(),
                missing: missing.contains(&declared.command.name),
                counts: Mutex::default(),
            };
            (declared.command.name.clone(), state)
        };
        Self(commands.iter().map(state).collect())
    }

    /// Registers a client with the queue of every tool.
    pub(crate) fn register(&self, client: &Principal) {
        self.0.values().for_each(|state| state.queue.register(client));
    }

    /// Takes back a registration with the queue of every tool.
    pub(crate) fn unregister(&self, client: &Principal) {
        self.0.values().for_each(|state| state.queue.unregister(client));
    }

    pub(crate) fn get(&self, tool: &str) -> Option<&ToolState> {
        self.0.get(tool)
    }

    /// Returns the states of all tools.
    pub(crate) fn all(&self) -> impl Iterator<Item = &ToolState> {
        self.0.values()
    }

    /// Returns the figures of every tool, by its name.
    pub(crate) fn figures(&self) -> BTreeMap<String, ToolFigures> {
        self.0.iter().map(|(name, state)| (name.clone(), state.figures())).collect()
    }
}

impl ToolState {
    /// Returns the breaker of a client's calls.
    pub(crate) fn breaker(&self, client: &Principal) -> Arc<Breaker> {
        let mut breakers = self.breakers();
        let made = || ClientBreaker {
            breaker: Arc::new(Breaker::new(&self.name, self.limits)),
            has_left: false,
        };
        let one = breakers.entry(client.clone()).or_insert_with(made);
        one.has_left = false;
        Arc::clone(&one.breaker)
    }

    /// Drops the breaker of a client that has left, once its failures need not be remembered: a client
    /// that comes back with another token is still refused, and has one trial after that.
    pub(crate) fn forget(&self, client: &Principal) {
        let mut breakers = self.breakers();
        if let Some(one) = breakers.get_mut(client) {
            one.has_left = true;
        }
        drop_old(&mut breakers);
    }

    fn breakers(&self) -> MutexGuard<'_, BTreeMap<Principal, ClientBreaker>> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes every client's breaker. Returns true if one was not closed.
    pub(crate) fn reset(&self) -> bool {
        let breakers = self.breakers();
        let open = breakers.values().filter(|one| one.breaker.reset() != BreakerState::Closed);
        open.count() > 0
    }

    /// Returns the state of the breaker that lets the least through.
    fn strictest(&self) -> BreakerState {
        let mut breakers = self.breakers();
        drop_old(&mut breakers);
        let counted = breakers.values().filter(|one| !one.has_left || !one.breaker.is_over());
        let states = counted.map(|one| one.breaker.state());
        let rank = |state: &BreakerState| match state {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        };
        states.max_by_key(rank).unwrap_or(BreakerState::Closed)
    }

    /// Counts a call that has ended.
    pub(crate) fn count(&self, error: Option<ErrorType>, took: Duration) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.calls += 1;
        counts.time = counts.time.saturating_add(took);
        counts.slowest = counts.slowest.max(took);
        match error {
            Some(ErrorType::NotFound) => counts.last = Some(LastEnd::NotFound),
            None | Some(ErrorType::ExecutionError | ErrorType::Timeout) => {
                counts.last = Some(LastEnd::Found);
            }
            // The program was not asked.
            Some(
                ErrorType::CircuitBreakerOpen
                | ErrorType::ResourceExhausted
                | ErrorType::ValidationError
                | ErrorType::Unknown,
            ) => {}
        }
        if let Some(kind) = error {
            *counts.errors.entry(kind).or_default() += 1;
        }
    }

    /// Adds what the readers found in the output of a call that ran.
    pub(crate) fn add_readings(&self, found: &Readings) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.reported.clone_from(&found.health);
        for (name, metric, number) in &found.numbers {
            let new = Reading { metric: *metric, value: 0.0 };
            counts.readings.entry(name.clone()).or_insert(new).add(*metric, *number);
        }
    }

    pub(crate) fn figures(&self) -> ToolFigures {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let breaker = self.strictest();
        let missing = counts.last.map_or(self.missing, |last| last == LastEnd::NotFound);
        let health = match (missing, breaker) {
            (true, _) => ToolHealth::Unhealthy,
            (false, BreakerState::Open | BreakerState::HalfOpen) => ToolHealth::Degraded,
            (false, BreakerState::Closed) => ToolHealth::Healthy,
        };
        let Counts { calls, errors, time, slowest, readings, reported, last: _ } = counts;
        let worse = reported.filter(|(reported, _)| ToolHealth::from(*reported) > health);
        let (health, reason) = match worse {
            Some((reported, why)) => (ToolHealth::from(reported), Some(why)),
            None => (health, None),
        };
        let seconds = time.as_secs_f64();
        let slowest = slowest.as_secs_f64();
        let pending = self.queue.pending();
        ToolFigures { health, reason, breaker, pending, calls, errors, seconds, slowest, readings }
    }
}

/// Drops the breakers of clients that have left, and that are closed and have no failure to remember, and of
/// too many the one with the oldest failure. One of a call that has not ended is kept.
fn drop_old(breakers: &mut BTreeMap<Principal, ClientBreaker>) {
    let is_idle = |one: &ClientBreaker| one.has_left && Arc::strong_count(&one.breaker) == 1;
    breakers.retain(|_, one| {
        let is_needed = !one.breaker.is_over() || one.breaker.state() != BreakerState::Closed;
        !is_idle(one) || is_needed
    });
    let left = || breakers.iter().filter(|(_, one)| is_idle(one));
    if left().count() > MAX_LEFT {
        let oldest = left().min_by_key(|(_, one)| one.breaker.since());
        if let Some(client) = oldest.map(|(client, _)| client.clone()) {
            breakers.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECOVERY: Duration = Duration::from_secs(60);

    fn state() -> ToolState {
        ToolState {
            queue: Queue::new(1, 1),
            name: "cli_x".to_owned(),
            limits: BreakerLimits { failures: 2, recovery: RECOVERY },
            breakers: Mutex::default(),
            missing: false,
            counts: Mutex::default(),
        }
    }

    fn fail(state: &ToolState, client: &Principal) {
        state.breaker(client).pass().expect("it is closed").failed();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_and_comes_back_is_still_refused() {
        let state = state();
        let client = Principal::named("c");
        fail(&state, &client);
        state.forget(&client);
        fail(&state, &client);
        state.forget(&client);
        assert_eq!(state.breaker(&client).pass().map(drop), Err(RECOVERY), "both count");
        state.forget(&client);
        assert_eq!(state.strictest(), BreakerState::Open);
        tokio::time::advance(RECOVERY).await;
        assert_eq!(state.strictest(), BreakerState::Closed, "its time is over");
        fail(&state, &client);
        state.forget(&client);
        assert_eq!(state.breaker(&client).pass().map(drop), Err(RECOVERY), "one trial");
        tokio::time::advance(RECOVERY).await;
        state.breaker(&client).pass().expect("tried again").succeeded();
        state.forget(&client);
        assert!(state.breakers().is_empty());
        // The control: one that stays keeps its breaker until a call is tried.
        fail(&state, &client);
        fail(&state, &client);
        tokio::time::advance(RECOVERY).await;
        assert_eq!(state.strictest(), BreakerState::Open);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_of_clients_that_have_left_is_bounded() {
        let state = state();
        let client = |number: usize| Principal::named(format!("c{number}"));
        let late = state.breaker(&client(0));
        state.forget(&client(0));
        assert_eq!(state.breakers().len(), 1, "a call has not ended");
        drop(late);
        state.forget(&client(0));
        assert_eq!(state.breakers().len(), 0, "it had no failure");
        for number in 0..MAX_LEFT + 2 {
            fail(&state, &client(number));
            tokio::time::advance(Duration::from_millis(1)).await;
            state.forget(&client(number));
        }
        assert_eq!(state.breakers().len(), MAX_LEFT);
        let late = state.breaker(&client(2));
        state.forget(&client(2));
        fail(&state, &client(MAX_LEFT + 2));
        state.forget(&client(MAX_LEFT + 2));
        drop(late);
        let breakers = state.breakers();
        assert!(!breakers.contains_key(&client(1)), "the oldest");
        assert!(breakers.contains_key(&client(2)), "its call had not ended");
    }

    #[test]
    fn a_counter_counts_on_whatever_a_program_prints() {
        let after = |metric, numbers: &[f64]| {
            let mut reading = Reading { metric, value: 0.0 };
            numbers.iter().for_each(|number| reading.add(metric, *number));
            reading.value
        };
        let counter = |numbers: &[f64]| after(ReaderMetric::Counter, numbers);
        assert_eq!(counter(&[2.0, 0.5, 3.0]), 5.5);
        assert_eq!(counter(&[2.0, -1.0, f64::NAN, f64::INFINITY, f64::MAX, 1.0]), 3.0);
        assert_eq!(counter(&[MAX_COUNTED]), MAX_COUNTED);
        assert_eq!(counter(&[MAX_COUNTED, 1.0, 1.0]), 2.0);
        assert_eq!(counter(&[MAX_COUNTED, MAX_COUNTED, 7.0]), 7.0);
        assert_eq!(after(ReaderMetric::Gauge, &[2.0, -1.0, f64::MAX]), f64::MAX);
    }
}
