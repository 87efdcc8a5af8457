//! Carries out calls of declared tools: asks the breaker, waits for a turn, asks the hooks, runs the cell, and runs it
//! again where the tool declares that.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::Scope;
use crate::cli::breaker::Pass;
use crate::cli::state::ToolState;
use crate::cli::{
    self, AboutCall, Declared, DeclaredRequest, DeclaredResult, ErrorType, ToolError,
};
use crate::refused::Refused;
use crate::workbench::Workbench;
use crate::{Caller, Refusal, Report};
use config::policy::conduct::Retries;
use model::call::{Call, Correlation};
use model::outcome::{Failure, Outcome};

/// One call of a declared tool.
pub(super) struct DeclaredCall<'c> {
    pub(super) workbench: &'c Workbench,
    pub(super) declared: &'c Declared,
    pub(super) request: &'c DeclaredRequest,
    pub(super) caller: &'c Caller,
    pub(super) about: AboutCall<'c>,
}

impl Scope {
    /// Runs one of [`Scope::commands`]; the result reports an error in its arguments.
    ///
    /// # Errors
    /// A refusal that is not the tool's own: by policy, or because the call cannot be recorded.
    pub async fn command(
        &self,
        declared: &Declared,
        request: DeclaredRequest,
        caller: Caller,
    ) -> Result<DeclaredResult, Refused> {
        let given = request.correlation.as_deref();
        let of_request = caller.correlation.as_ref().map(Correlation::as_str);
        let correlation = cli::correlation(given.or(of_request));
        let about = AboutCall::of(declared, &request, &correlation);
        let call = match cli::call(declared, &request, &correlation) {
            Ok(call) => call,
            Err(bad) => {
                self.workbench.audit.invalid(about.tool, &bad.to_string());
                info!(tool = about.tool, correlation_id = about.correlation, "tool.invalid");
                return Ok(DeclaredResult::refused(bad.into(), about));
            }
        };
        if request.dry_run {
            let grant = self.workbench.only_decided(call, declared.command.changes)?;
            return Ok(DeclaredResult::would_run(declared, &grant, about));
        }
        let Some(state) = self.workbench.shared.tools.get(about.tool) else {
            let error = ToolError::new(ErrorType::Unknown, "the tool has no state");
            return Ok(DeclaredResult::refused(error, about));
        };
        let started = Instant::now();
        info!(tool = about.tool, correlation_id = about.correlation, "tool.start");
        let workbench = &self.workbench;
        let request = &request;
        let of_tool = DeclaredCall { workbench, declared, request, caller: &caller, about };
        let done = of_tool.run(call, state).await;
        let kind = match &done {
            Ok(result) => result.error_type,
            Err(_) => Some(ErrorType::ExecutionError),
        };
        let took = started.elapsed();
        state.count(kind, took);
        if let Some(result) = done.as_ref().ok().filter(|result| result.receipt.is_some()) {
            state.add_readings(&result.readings);
        }
        info!(
            tool = about.tool,
            correlation_id = about.correlation,
            returncode = done.as_ref().ok().map(|result| result.returncode),
            error_type = kind.map(ErrorType::name),
            duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            truncated = done.as_ref().ok().map(DeclaredResult::is_cut),
            "tool.end"
        );
        done
    }
}

impl DeclaredCall<'_> {
    /// Runs `call` as the tool's breaker, queue and hooks let it.
    async fn run(&self, call: Call, state: &ToolState) -> Result<DeclaredResult, Refused> {
        let Self { declared, caller, about, .. } = *self;
        // Before anything is done on behalf of the call: a hook, a turn, a look at the breaker.
        let named = caller.named(call.clone());
        let grant = self.workbench.may_call(named, declared.command.changes)?;
        let breaker = state.breaker(&self.workbench.principal);
        let pass = match breaker.pass() {
            Ok(pass) => pass,
            Err(left) => return Ok(DeclaredResult::refused(open(left, about), about)),
        };
        let exhausted = |refusal: &Refusal| {
            let error = ToolError::new(ErrorType::ResourceExhausted, refusal.in_full());
            DeclaredResult::refused(error, about)
        };
        // Held until the call has ended; a cancelled call finds its cancelled token in the cell's queue.
        let _turn = match state.queue.turn(&self.workbench.principal, &caller.cancel).await {
            Ok(turn) => turn,
            Err(full) => return Ok(exhausted(&full)),
        };
        // A call that a hook refuses says nothing of the program: the pass is dropped without a verdict.
        let call = match self.asked_of_hooks(call, &grant).await {
            Ok(call) => call,
            Err(error) => return Ok(DeclaredResult::refused(error, about)),
        };
        let argv = call.argv.words().to_vec();
        match self.attempts(call).await {
            Ok((report, attempts)) => {
                verdict(pass, &report.ended.outcome);
                let ran = report.receipt.is_some();
                let result = DeclaredResult::of(declared, report, attempts, about);
                Ok(match ran {
                    true => self.read_by_hooks(&argv, result).await,
                    false => result,
                })
            }
            Err(refusal) if refusal.is_full_queue() => Ok(exhausted(&refusal)),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Runs the call until it has a result or no attempt is left; returns the last report and the attempts.
    async fn attempts(&self, call: Call) -> Result<(Report, u32), Refusal> {
        let Self { declared, caller, .. } = *self;
        let changes = declared.command.changes;
        let retries = &declared.command.conduct.retries;
        let mut attempt = 1;
        let mut delay = retries.delay;
        loop {
            let context = self.workbench.command_in_default_workspace(&call, changes);
            let options = self.workbench.options(context);
            let report = self.workbench.run(call.clone(), options, caller).await?;
            if attempt > retries.times || !has_no_result(&report.ended.outcome, retries) {
                return Ok((report, attempt));
            }
            let tool = &declared.command.name;
            let correlation_id = call.correlation.as_ref().map(Correlation::as_str);
            warn!(
                tool,
                correlation_id,
                attempt,
                outcome = report.ended.outcome.name(),
                "tool.retry"
            );
            tokio::select! {
                () = caller.cancel.cancelled() => return Ok((report, attempt)),
                () = tokio::time::sleep(delay) => {}
            }
            delay = delay.saturating_mul(2);
            attempt += 1;
        }
    }
}

/// Makes the error of a call while the breaker is open for this time yet.
fn open(left: Duration, about: AboutCall<'_>) -> ToolError {
    let left = left.as_secs_f64().ceil();
    let message =
        format!("calls of {} fail, so none is made now; one is tried in {left:.0} s", about.tool);
    ToolError::new(ErrorType::CircuitBreakerOpen, message)
}

/// Returns true if another attempt may have the result that this one has not.
fn has_no_result(outcome: &Outcome, retries: &Retries) -> bool {
    match outcome {
        Outcome::Exited { code } => retries.codes.contains(code),
        Outcome::Timeout | Outcome::Limit(_) => true,
        Outcome::Failed(failure) => matches!(
            failure,
            Failure::Busy { .. }
                | Failure::Setup { .. }
                | Failure::Unmeasured { .. }
                | Failure::Network { .. }
        ),
        Outcome::Signaled { .. } | Outcome::Cancelled => false,
    }
}

/// Reports to the breaker how a call ended. Any exit code counts as a success; a cancelled call does not count.
fn verdict(pass: Pass<'_>, outcome: &Outcome) {
    match outcome {
        Outcome::Exited { .. } => pass.succeeded(),
        Outcome::Cancelled | Outcome::Failed(Failure::Busy { .. }) => drop(pass),
        Outcome::Signaled { .. } | Outcome::Timeout | Outcome::Limit(_) | Outcome::Failed(_) => {
            pass.failed();
        }
    }
}
