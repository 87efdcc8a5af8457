//! Calculations: `bc` runs in cells, or a remembered result is returned.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::capture::Captured;
use crate::capture::text::render;
use crate::refused::Refused;
use crate::report::{Batch, BatchValue, Calculated, Exact, Plotted, Shortened, ValueOrigin};
use crate::request::Precision;
use crate::{Caller, Refusal, Report, Scope};
use calc::plot::Plot;
use calc::{BcRun, CalcError, Evaluate, ScriptDigits};
use model::call::{Argv, Asked, Call, Env, InvalidCall, Stdin};
use model::defaults::{CALCULATOR_TIMEOUT, INLINE_CHARACTERS};
use model::outcome::{Failure, LimitKind, Outcome};
use model::receipt::Receipt;

/// A calculation, for which bc runs in cells until it is cancelled.
#[derive(Debug)]
pub struct Calculation<'s> {
    scope: &'s Scope,
    caller: Caller,
    started: Instant,
    /// Report of the last cell that ran, without its output: a calculation may need several, all of one profile.
    last: Mutex<Option<Report>>,
    /// Reason why a cell was refused.
    refusal: Mutex<Option<Refusal>>,
    /// Total time that the client allows, if it is less than the calculator's own.
    time: Option<Duration>,
}

impl<'s> Calculation<'s> {
    /// Prepares a calculation that takes at most `time` in all.
    pub fn new(scope: &'s Scope, time: Option<Duration>, caller: Caller) -> Self {
        let time = time.filter(|time| *time < CALCULATOR_TIMEOUT);
        let started = Instant::now();
        Self { scope, caller, started, last: Mutex::default(), refusal: Mutex::default(), time }
    }

    /// Evaluates one expression and rounds it to `precision` decimal places.
    ///
    /// # Errors
    /// The reason why it has no value.
    pub async fn one(
        self,
        expression: String,
        precision: Precision,
    ) -> Result<Calculated, Refused> {
        let places = u32::from(precision.places());
        if let Some(result) = self.scope.cache.get(&expression, places) {
            return match self.remembered(&expression) {
                Ok(()) => Ok(self.calculated(result, ValueOrigin::Remembered)),
                Err(error) => Err(self.failed(error)),
            };
        }
        let done = match calc::calculate(&self, expression, places).await {
            Ok(done) => done,
            Err(error) => return Err(self.failed(error)),
        };
        self.scope.cache.put(&done);
        let shortened = self.shortened(&done.result, INLINE_CHARACTERS);
        let exact = if done.exact == Some(false) { Exact::No } else { Exact::Yes };
        let origin = ValueOrigin::InCell(self.receipt().map(Box::new));
        Ok(Calculated { exact, shortened, ..self.calculated(done.result, origin) })
    }

    /// Runs a bc script and returns every line of its output.
    ///
    /// # Errors
    /// The reason why it has no result.
    pub async fn script(
        self,
        script: String,
        precision: Precision,
        digits: ScriptDigits,
    ) -> Result<Calculated, Refused> {
        let places = u32::from(precision.places());
        let done = match calc::calculate_advanced(&self, &script, places, digits).await {
            Ok(done) => done,
            Err(error) => return Err(self.failed(error)),
        };
        let shortened = self.shortened(&done.result, INLINE_CHARACTERS);
        let warnings = done.warnings;
        let origin = ValueOrigin::InCell(self.receipt().map(Box::new));
        Ok(Calculated { warnings, shortened, ..self.calculated(done.result, origin) })
    }

    /// Evaluates each expression on its own, in at most `time` each; the error of one stands in its own entry.
    ///
    /// # Errors
    /// The reason why not one of them was evaluated.
    pub async fn batch(
        self,
        expressions: Vec<String>,
        precision: Precision,
        time: Option<Duration>,
    ) -> Result<Batch, Refused> {
        let places = u32::from(precision.places());
        let entries = match calc::calculate_batch(&self, &expressions, places, time).await {
            Ok(entries) => entries,
            Err(error) => return Err(self.failed(error)),
        };
        // All results together have the room of one output: each its share, if they need more.
        let lengths = entries.iter().filter_map(|entry| entry.as_ref().ok());
        let length: usize = lengths.map(|(result, _)| result.len()).sum();
        let max_characters = match length > INLINE_CHARACTERS {
            true => INLINE_CHARACTERS / entries.len().max(1),
            false => INLINE_CHARACTERS,
        };
        let entry = |entry: calc::BatchEntry| match entry {
            Ok((result, sure)) => {
                let shortened = self.shortened(&result, max_characters);
                let exact = if sure == Some(false) { Exact::No } else { Exact::Yes };
                Ok(BatchValue { result, shortened, exact })
            }
            Err(error) => Err(error.in_full()),
        };
        let entries = entries.into_iter().map(entry).collect();
        let took = self.started.elapsed();
        Ok(Batch { entries, took, receipt: self.receipt(), unrecorded: self.unrecorded() })
    }

    /// Plots a function.
    ///
    /// # Errors
    /// The reason why there is no plot.
    pub async fn plot(self, plot: Plot) -> Result<Plotted, Refused> {
        match calc::plot::calculate_plot(&self, &plot).await {
            Ok(drawn) => {
                let took = self.started.elapsed();
                Ok(Plotted { drawn, took, receipt: self.receipt(), unrecorded: self.unrecorded() })
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Decides and records a call whose value is remembered, without running a cell.
    ///
    /// # Errors
    /// The policy denies it, or it cannot be recorded where every call must be.
    fn remembered(&self, expression: &str) -> Result<(), CalcError> {
        let call = call("calculate", expression.to_owned(), CALCULATOR_TIMEOUT)?;
        let decided = self.scope.workbench.remembered(self.caller.named(call));
        decided.map_err(|refusal| self.refused(refusal))
    }

    fn refused(&self, refusal: Refusal) -> CalcError {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
        CalcError::Refused
    }

    /// Makes the refusal of a calculation without a result, with what protected the cell that ran.
    fn failed(&self, error: CalcError) -> Refused {
        let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
        refusal.map_or_else(|| error.into(), Refused::from).protected_by(self.receipt())
    }

    /// Takes the receipt of the calculation's cell.
    fn receipt(&self) -> Option<Receipt> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        last.and_then(|report| report.receipt)
    }

    fn unrecorded(&self) -> Option<(u64, String)> {
        self.scope.workbench.audit.trouble()
    }

    fn calculated(&self, result: String, ran: ValueOrigin) -> Calculated {
        let took = self.started.elapsed();
        let unrecorded = self.unrecorded();
        let exact = Exact::Yes;
        let warnings = Vec::new();
        Calculated { result, shortened: None, exact, warnings, took, ran, unrecorded }
    }

    /// Shortens a result of more than `max_characters` to its head and tail, and keeps the whole as the output of the last
    /// cell, for `bash_output`.
    fn shortened(&self, result: &str, max_characters: usize) -> Option<Shortened> {
        // A result is text of bc and ASCII but for strings of a script.
        if result.chars().count() <= max_characters {
            return None;
        }
        let whole = Captured::of(result.as_bytes());
        let text = render(&whole, &Captured::of(&[]), max_characters).stdout;
        let number = |c: char| c.is_ascii_digit() || c == '.' || c == '-';
        let digits = result.chars().filter(char::is_ascii_digit).count();
        let digits = result.chars().all(number).then_some(digits);
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let report = last.filter(|_| self.scope.lists("bash_output"));
        let output_id =
            report.and_then(|last| self.scope.workbench.keep(&Report { stdout: whole, ..last }));
        Some(Shortened { text, digits, output_id })
    }
}

impl Evaluate for Calculation<'_> {
    async fn bc(
        &self,
        tool: &'static str,
        program: String,
        wall: Duration,
    ) -> Result<BcRun, CalcError> {
        let left = self.time.map(|time| time.saturating_sub(self.started.elapsed()));
        let wall = left.map_or(wall, |left| left.min(wall));
        if let (true, Some(time)) = (wall.is_zero(), self.time) {
            return Err(CalcError::Timeout(time));
        }
        let call = call(tool, program, wall)?;
        let workbench = &self.scope.workbench;
        let options = workbench.options(workbench.job_context(&call.tool));
        let report = workbench.run(call, options, &self.caller).await;
        let mut report = report.map_err(|refusal| self.refused(refusal))?;
        let run = ended(&report);
        if report.receipt.is_some() {
            report.stdout = Captured::of(&[]);
            report.stderr = Captured::of(&[]);
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        }
        match (run, self.time) {
            // Reports the time that was asked for, not what was left of it for the last cell.
            (Err(CalcError::Timeout(ran)), Some(time)) if ran.as_millis() >= wall.as_millis() => {
                Err(CalcError::Timeout(time))
            }
            (done, _) => done,
        }
    }
}

/// Builds a call that a prestarted `bc` can serve: it differs from the profile's `ahead` only in its input.
fn call(tool: &'static str, program: String, wall: Duration) -> Result<Call, CalcError> {
    let invalid = |error: InvalidCall| CalcError::Invalid(error.to_string());
    Ok(Call {
        tool: tool.into(),
        argv: Argv::new(["bc", "-l", "-q"].map(str::to_owned).to_vec()).map_err(invalid)?,
        script: None,
        stdin: Stdin::text("program", program).map_err(invalid)?,
        // Otherwise bc breaks numbers at 70 columns with a backslash.
        env: Env::new([("BC_LINE_LENGTH".to_owned(), "0".to_owned())].into()).map_err(invalid)?,
        cwd: None,
        asked: Asked { wall: Some(wall), ..Asked::default() },
        profile: None,
        only: None,
        correlation: None,
    })
}

/// Returns what bc printed, or why it has no answer.
fn ended(report: &Report) -> Result<BcRun, CalcError> {
    let stderr = String::from_utf8_lossy(report.stderr.head()).into_owned();
    match &report.ended.outcome {
        Outcome::Exited { code: 0 } => {
            let Some(stdout) = report.stdout.whole() else {
                return Err(CalcError::Limit(LimitKind::Output));
            };
            Ok(BcRun {
                stdout: String::from_utf8_lossy(&stdout).into_owned(),
                stderr,
                took: report.ended.usage.wall,
            })
        }
        // bc says so when it gets no more memory, and exits.
        Outcome::Exited { .. } if stderr.to_lowercase().contains("out of memory") => {
            Err(CalcError::Limit(LimitKind::Memory))
        }
        Outcome::Exited { code } => Err(CalcError::Internal(format!("bc exited with code {code}"))),
        Outcome::Signaled { signal } => {
            Err(CalcError::Internal(format!("bc was ended by signal {signal}")))
        }
        Outcome::Timeout => Err(CalcError::Timeout(report.limits.wall)),
        // bc is one process and never waits: the two times are one to the caller, and the shorter ends it.
        Outcome::Limit(LimitKind::Cpu) => {
            Err(CalcError::Timeout(report.limits.cpu.min(report.limits.wall)))
        }
        Outcome::Limit(kind) => Err(CalcError::Limit(*kind)),
        Outcome::Cancelled => Err(CalcError::Cancelled),
        Outcome::Failed(Failure::NotFound { .. }) => Err(CalcError::NoBc),
        Outcome::Failed(failure) => Err(CalcError::Internal(failure.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use calc::{PRECISION, ScriptDigits, calculate, calculate_advanced};
    use config::profile::Profiles;
    use model::job::Limits;
    use model::outcome::Ended;

    use super::*;
    use crate::report::Clamped;

    #[test]
    fn a_calculation_differs_in_its_input_alone_from_what_its_profile_executes_ahead() {
        let profiles =
            Profiles::parse(&config::profile::shipped(), &[]).map_err(|error| error.to_string());
        let bc =
            profiles.map(|profiles| profiles.iter().find(|it| it.name.as_str() == "bc").cloned());
        let ahead = bc.map(|bc| bc.and_then(|bc| bc.ahead).map(|ahead| (ahead.argv, ahead.env)));
        let call = call("calculate", "1".to_owned(), CALCULATOR_TIMEOUT);
        assert_eq!(ahead, Ok(call.ok().map(|call| (call.argv, call.env))));
    }

    #[test]
    fn a_calculation_that_takes_too_long_has_one_text_whichever_time_ended_it() {
        let seconds = Duration::from_secs;
        let error_of = |outcome: Outcome, wall: u64, cpu: u64| {
            let limits = Limits { wall: seconds(wall), cpu: seconds(cpu), ..Limits::none() };
            let report = Report {
                ended: Ended { outcome, ..Ended::failed(Failure::Lost) },
                receipt: None,
                stdout: Captured::of(&[]),
                stderr: Captured::of(&[]),
                cwd: "/tmp".to_owned(),
                limits,
                clamped: Clamped::No,
                took: Duration::ZERO,
            };
            ended(&report).map_err(|error| error.to_string())
        };
        let expected = |text: &str| Err(text.to_owned());
        let after_30 = expected("Calculation timeout after 30s");
        assert_eq!(error_of(Outcome::Timeout, 30, 40), after_30);
        assert_eq!(error_of(Outcome::Limit(LimitKind::Cpu), 30, 30), after_30);
        // An operator's profile may have less of it than of time.
        let after_5 = expected("Calculation timeout after 5s");
        assert_eq!(error_of(Outcome::Limit(LimitKind::Cpu), 30, 5), after_5);
    }

    /// Servers run calls on many threads: these futures must be able to move between them.
    #[expect(dead_code, reason = "that it compiles is the test")]
    fn futures_can_move_between_threads(bc: &Calculation<'_>) {
        fn moves(_: impl Send) {}
        moves(calculate(bc, String::new(), PRECISION));
        moves(calculate_advanced(bc, "", PRECISION, ScriptDigits::Rounded));
    }
}
