//! Runs bc in cells.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::capture::Captured;
use calc::{BcRun, CalcError, Evaluate};
use model::call::{Argv, Asked, Call, Env, InvalidCall, Stdin};
use model::defaults::CALCULATOR_TIMEOUT;
use model::outcome::{Failure, LimitKind, Outcome};
use model::receipt::Receipt;

use super::{Caller, Refusal, Report};
use crate::refused::Refused;
use crate::workbench::Workbench;

/// Runs bc in cells, until cancelled.
#[derive(Debug)]
pub(crate) struct InCells<'bench> {
    workbench: &'bench Workbench,
    caller: Caller,
    /// Of the last cell that ran, without its output: a calculation may need several, all of one profile.
    last: Mutex<Option<Report>>,
    /// Why a cell was refused.
    refusal: Mutex<Option<Refusal>>,
    /// When the time that was asked for ends, and that time.
    end: Option<(Instant, Duration)>,
}

impl<'bench> InCells<'bench> {
    pub(crate) fn new(workbench: &'bench Workbench, caller: Caller) -> Self {
        Self { workbench, caller, last: Mutex::default(), refusal: Mutex::default(), end: None }
    }

    /// Bounds the total time of the calculation.
    #[must_use]
    pub(crate) fn within(self, time: Option<Duration>) -> Self {
        let time = time.filter(|time| *time < CALCULATOR_TIMEOUT);
        Self { end: time.map(|time| (Instant::now() + time, time)), ..self }
    }

    /// Decides and records a call whose value is remembered, without running a cell.
    ///
    /// # Errors
    /// The policy denies it, or it cannot be recorded where every call must be.
    pub(crate) fn remembered(&self, expression: &str) -> Result<(), CalcError> {
        let call = call("calculate", expression.to_owned(), CALCULATOR_TIMEOUT);
        let call = call.map_err(|error| CalcError::Invalid(error.to_string()))?;
        self.workbench.remembered(self.caller.named(call)).map_err(|refusal| self.refused(refusal))
    }

    fn refused(&self, refusal: Refusal) -> CalcError {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
        CalcError::Refused
    }

    /// Takes the reason why a cell was refused, if one was.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the receipt of the calculation's cell.
    pub(crate) fn receipt(self) -> Option<Receipt> {
        let last = self.last.into_inner().unwrap_or_else(PoisonError::into_inner);
        last.and_then(|report| report.receipt)
    }

    /// Keeps a result as the output of the last cell, so that `bash_output` can read all of it; returns its handle.
    pub(crate) fn keep(&self, result: &str) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let stdout = Captured::of(result.as_bytes());
        self.workbench.keep(&Report { stdout, ..last })
    }
}

impl Evaluate for InCells<'_> {
    async fn bc(
        &self,
        tool: &'static str,
        program: String,
        wall: Duration,
    ) -> Result<BcRun, CalcError> {
        let left = self.end.map(|(end, _)| end.saturating_duration_since(Instant::now()));
        let wall = left.map_or(wall, |left| left.min(wall));
        if let (true, Some((_, time))) = (wall.is_zero(), self.end) {
            return Err(CalcError::Timeout(time));
        }
        let call =
            call(tool, program, wall).map_err(|error| CalcError::Invalid(error.to_string()))?;
        let options = self.workbench.options(self.workbench.surroundings(&call.tool));
        let report = self.workbench.run(call, options, &self.caller).await;
        let mut report = report.map_err(|refusal| self.refused(refusal))?;
        let run = ended(&report);
        if report.receipt.is_some() {
            report.stdout = Captured::of(&[]);
            report.stderr = Captured::of(&[]);
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        }
        match (run, self.end) {
            // The whole of it is what was asked for.
            (Err(CalcError::Timeout(ran)), Some((_, time)))
                if ran.as_millis() >= wall.as_millis() =>
            {
                Err(CalcError::Timeout(time))
            }
            (done, _) => done,
        }
    }
}

/// Returns why a calculation has no result, with what protected the cell that ran.
pub(crate) fn uncalculated(cells: InCells<'_>, error: CalcError) -> Refused {
    let refusal = cells.refusal().map(Refused::from);
    refusal.unwrap_or_else(|| error.into()).protected_by(cells.receipt())
}

/// Builds a call that a prestarted `bc` can serve: it differs from the profile's `ahead` only in its input.
fn call(tool: &'static str, program: String, wall: Duration) -> Result<Call, InvalidCall> {
    Ok(Call {
        tool: tool.into(),
        argv: Argv::new(["bc", "-l", "-q"].map(str::to_owned).to_vec())?,
        script: None,
        stdin: Stdin::text("program", program)?,
        // Otherwise bc breaks numbers at 70 columns with a backslash.
        env: Env::new([("BC_LINE_LENGTH".to_owned(), "0".to_owned())].into())?,
        cwd: None,
        asked: Asked { wall: Some(wall), ..Asked::default() },
        profile: None,
        only: None,
        correlation: None,
    })
}

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
        Outcome::Failed(Failure::NotFound { .. }) => Err(CalcError::Internal(
            "bc not found\nhint: the operator can install bc where the profile looks for it"
                .to_owned(),
        )),
        Outcome::Failed(failure) => Err(CalcError::Internal(failure.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use calc::{PRECISION, calculate, calculate_advanced};
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
    fn futures_can_move_between_threads(bc: &InCells<'_>) {
        fn moves(_: impl Send) {}
        moves(calculate(bc, String::new(), PRECISION));
        moves(calculate_advanced(bc, "", PRECISION));
    }
}
