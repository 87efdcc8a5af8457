//! The circuit breaker of a tool: after failures in a row its calls are refused for a while, then one is tried.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use config::policy::conduct::BreakerLimits;

/// Circuit breaker of one tool.
#[derive(Debug)]
pub(crate) struct Breaker {
    tool: String,
    limits: BreakerLimits,
    state: Mutex<State>,
}

/// State of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Calls run; so many of the last ones failed in a row, the last one at this time.
    Closed { failures: u32, since: Instant },
    /// Calls are refused.
    Open { since: Instant },
    /// One call is on trial; others are refused until it has ended.
    OnTrial { since: Instant },
}

/// State of a breaker, in the reference implementation's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    Closed,
    Open,
    HalfOpen,
}

impl BreakerState {
    /// Returns the word for logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

impl State {
    fn closed() -> Self {
        Self::Closed { failures: 0, since: Instant::now() }
    }

    /// Returns the time of the last failure, or that at which it was closed.
    fn since(self) -> Instant {
        match self {
            Self::Closed { since, .. } | Self::Open { since } | Self::OnTrial { since } => since,
        }
    }

    fn shown(self) -> BreakerState {
        match self {
            Self::Closed { .. } => BreakerState::Closed,
            Self::Open { .. } => BreakerState::Open,
            Self::OnTrial { .. } => BreakerState::HalfOpen,
        }
    }
}

/// Leave of a breaker for one call. A pass that is dropped without a verdict, as that of a cancelled call is, says
/// nothing about the tool.
#[derive(Debug)]
pub(crate) struct Pass<'b> {
    breaker: &'b Breaker,
    on_trial: bool,
}

impl Breaker {
    pub(crate) fn new(tool: &str, limits: BreakerLimits) -> Self {
        let state = Mutex::new(State::closed());
        Self { tool: tool.to_owned(), limits, state }
    }

    /// Lets a call through.
    ///
    /// # Errors
    /// The time after which the next call is tried, while calls are refused.
    pub(crate) fn pass(&self) -> Result<Pass<'_>, Duration> {
        let mut state = self.lock();
        let on_trial = match *state {
            State::Closed { .. } => false,
            State::Open { since } => {
                let left = self.limits.recovery.saturating_sub(since.elapsed());
                if !left.is_zero() {
                    return Err(left);
                }
                self.change(&mut state, State::OnTrial { since });
                true
            }
            State::OnTrial { .. } => return Err(Duration::ZERO),
        };
        Ok(Pass { breaker: self, on_trial })
    }

    /// Returns the state. An open breaker whose time is over is still open until a call comes.
    pub(crate) fn state(&self) -> BreakerState {
        self.lock().shown()
    }

    /// Returns the time of the last failure, or that at which it was closed.
    pub(crate) fn since(&self) -> Instant {
        self.lock().since()
    }

    /// Returns true if its failures need not be remembered for a client that has left: there are none,
    /// or the time for which calls are refused has passed since the last one.
    pub(crate) fn is_over(&self) -> bool {
        let state = *self.lock();
        match state {
            State::Closed { failures: 0, .. } => true,
            State::Closed { .. } | State::Open { .. } => {
                state.since().elapsed() >= self.limits.recovery
            }
            State::OnTrial { .. } => false,
        }
    }

    /// Closes it, and forgets the failures: by the operator's word. Returns the state before.
    pub(crate) fn reset(&self) -> BreakerState {
        let mut state = self.lock();
        let before = state.shown();
        self.change(&mut state, State::closed());
        before
    }

    fn change(&self, state: &mut State, next: State) {
        let old = state.shown();
        let new = next.shown();
        *state = next;
        if old != new {
            tracing::warn!(
                tool = self.tool,
                old = old.name(),
                new = new.name(),
                "circuit_breaker.state_changed"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment, so the state is whole even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// Counts the call as one that worked.
    pub(crate) fn succeeded(mut self) {
        self.on_trial = false;
        let mut state = self.breaker.lock();
        match *state {
            State::Closed { .. } | State::OnTrial { .. } => {
                self.breaker.change(&mut state, State::closed());
            }
            // Others have failed since this call began.
            State::Open { .. } => {}
        }
    }

    /// Counts the call as a failure.
    pub(crate) fn failed(mut self) {
        self.on_trial = false;
        let mut state = self.breaker.lock();
        let open = State::Open { since: Instant::now() };
        match *state {
            State::Closed { failures, .. } if failures + 1 < self.breaker.limits.failures => {
                *state = State::Closed { failures: failures + 1, since: Instant::now() };
            }
            State::Closed { .. } | State::OnTrial { .. } => self.breaker.change(&mut state, open),
            State::Open { .. } => {}
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.on_trial {
            let mut state = self.breaker.lock();
            if let State::OnTrial { since } = *state {
                self.breaker.change(&mut state, State::Open { since });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECOVERY: Duration = Duration::from_secs(60);

    fn breaker() -> Breaker {
        Breaker::new("cli_x", BreakerLimits { failures: 2, recovery: RECOVERY })
    }

    fn fail(breaker: &Breaker) {
        breaker.pass().expect("it is closed").failed();
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let breaker = breaker();
        fail(&breaker);
        breaker.pass().expect("closed").succeeded();
        fail(&breaker);
        assert_eq!(breaker.state(), BreakerState::Closed);
        fail(&breaker);
        assert_eq!(breaker.state(), BreakerState::Open);
        assert_eq!(breaker.pass().map(drop), Err(RECOVERY));
    }

    #[tokio::test(start_paused = true)]
    async fn after_its_time_one_call_is_tried_and_its_end_decides() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        tokio::time::advance(RECOVERY).await;
        let trial = breaker.pass().expect("its time is over");
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert_eq!(breaker.pass().map(drop), Err(Duration::ZERO), "one at a time");
        trial.failed();
        assert_eq!(breaker.pass().map(drop), Err(RECOVERY), "its time begins anew");
        tokio::time::advance(RECOVERY).await;
        breaker.pass().expect("tried again").succeeded();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_trial_decides_nothing() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        tokio::time::advance(RECOVERY).await;
        drop(breaker.pass().expect("tried"));
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.pass().expect("the next is tried at once").succeeded();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reset_closes_it_and_forgets_what_failed() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        assert_eq!(breaker.reset(), BreakerState::Open);
        assert_eq!(breaker.state(), BreakerState::Closed);
        fail(&breaker);
        assert_eq!(breaker.state(), BreakerState::Closed, "one failure is not two");
        fail(&breaker);
        let late = breaker.pass().map(drop);
        assert_eq!(late, Err(RECOVERY));
        // A call on trial that ends after the reset opens nothing.
        tokio::time::advance(RECOVERY).await;
        let trial = breaker.pass().expect("its time is over");
        assert_eq!(breaker.reset(), BreakerState::HalfOpen);
        drop(trial);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_over_after_the_time_for_which_calls_are_refused() {
        let breaker = breaker();
        assert!(breaker.is_over());
        for failures in 1..=2 {
            fail(&breaker);
            assert!(!breaker.is_over(), "{failures}");
            tokio::time::advance(RECOVERY - Duration::from_millis(1)).await;
            assert!(!breaker.is_over(), "{failures}");
        }
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(breaker.is_over());
        let trial = breaker.pass().expect("its time is over");
        assert!(!breaker.is_over(), "its end decides");
        trial.succeeded();
        assert!(breaker.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_ends_late_does_not_close_what_others_opened() {
        let breaker = breaker();
        let late = breaker.pass().expect("closed");
        fail(&breaker);
        fail(&breaker);
        late.succeeded();
        assert_eq!(breaker.state(), BreakerState::Open);
    }
}
