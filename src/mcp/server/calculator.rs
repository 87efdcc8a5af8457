//! The calculator's tools: from arguments to results, each noted in the session's ledger.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, JsonObject};
use rmcp::service::RequestContext;

use super::super::arguments::calculator::{
    BatchArguments, FunctionsArguments, HistoryArguments, PlotArguments, StatsArguments,
    USUAL_HISTORY,
};
use super::super::arguments::{
    AdvancedArguments, Arguments, CalculateArguments, Precision, Seconds, parse,
};
use super::super::backend::{Backend, Calculated, Refused};
use super::super::reply::{self, calculations};
use super::Server;
use calc::ledger::Ledger;
use model::call::{InvalidCall, seconds};

impl<B: Backend> Server<B> {
    pub(super) async fn calculate(
        &self,
        arguments: Option<JsonObject>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let CalculateArguments { expression, precision, timeout } = parse(arguments)?;
        let (precision, within) = (self.precision(precision), within(timeout)?);
        let started = Instant::now();
        let asked = expression.clone();
        let run = |turn| self.0.backend.calculate(asked, precision, within, turn);
        let done = self.turn(context, run).await;
        self.note_one(CalculateArguments::TOOL, &expression, precision, &done, started);
        let (done, lowered) = (done?, self.lowered(within));
        let told = reply::calculated(&done, &expression, precision.places());
        Ok(calculations::with_warnings(told, lowered))
    }

    pub(super) async fn calculate_advanced(
        &self,
        arguments: Option<JsonObject>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let AdvancedArguments { script, precision, timeout } = parse(arguments)?;
        let (precision, within) = (self.precision(precision), within(timeout)?);
        let started = Instant::now();
        let asked = script.clone();
        let run = |turn| self.0.backend.calculate_advanced(asked, precision, within, turn);
        let done = self.turn(context, run).await;
        self.note_one(AdvancedArguments::TOOL, &script, precision, &done, started);
        let done = done?;
        let told = reply::scripted(&done, &script, precision.places());
        let warnings = done.warnings.iter().cloned().chain(self.lowered(within));
        Ok(calculations::with_warnings(told, warnings))
    }

    pub(super) async fn calculate_batch(
        &self,
        arguments: Option<JsonObject>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let BatchArguments { expressions, precision, timeout } = parse(arguments)?;
        let (precision, within) = (self.precision(precision), within(timeout)?);
        let started = Instant::now();
        let asked = expressions.0.clone();
        let run = |turn| self.0.backend.calculate_batch(asked, precision, within, turn);
        let done = self.turn(context, run).await;
        let count = u32::try_from(expressions.0.len()).unwrap_or(u32::MAX).max(1);
        let (tool, share) = (BatchArguments::TOOL, started.elapsed() / count);
        for (place, expression) in expressions.0.iter().enumerate() {
            let told = match &done {
                Ok(done) => match done.entries.get(place) {
                    Some(Ok((result, _))) => Ok(result.as_str()),
                    Some(Err(error)) => Err(error.as_str()),
                    None => continue,
                },
                Err(refused) => Err(refused.message.as_str()),
            };
            self.ledger(|ledger| {
                ledger.note(tool, expression, Some(precision.places()), told, share);
            });
        }
        let told = calculations::batch(&done?, &expressions.0, precision.places());
        Ok(calculations::with_warnings(told, self.lowered(within)))
    }

    pub(super) async fn calculate_plot(
        &self,
        arguments: Option<JsonObject>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let arguments = parse::<PlotArguments>(arguments)?;
        let (within, started) = (within(arguments.timeout)?, Instant::now());
        let plot = arguments.plot();
        let asked = plot.clone();
        let run = |turn| self.0.backend.calculate_plot(asked, within, turn);
        let done = self.turn(context, run).await;
        let told = done.as_ref().map(|_| "a plot").map_err(|refused| refused.message.as_str());
        self.ledger(|ledger| {
            ledger.note(PlotArguments::TOOL, &plot.expression, None, told, started.elapsed());
        });
        Ok(calculations::with_warnings(calculations::plot(&done?, &plot), self.lowered(within)))
    }

    pub(super) fn calculate_stats(
        &self,
        arguments: Option<JsonObject>,
    ) -> Result<CallToolResult, Refused> {
        parse::<StatsArguments>(arguments)?;
        let pending = self.0.backend.pending();
        Ok(self.ledger(|ledger| calculations::stats(ledger.statistics(), pending)))
    }

    pub(super) fn calculate_history(
        &self,
        arguments: Option<JsonObject>,
    ) -> Result<CallToolResult, Refused> {
        let HistoryArguments { limit } = parse(arguments)?;
        let limit = limit.map_or(USUAL_HISTORY, |limit| limit.0);
        Ok(calculations::history(&self.ledger(|ledger| ledger.latest(usize::from(limit)))))
    }

    pub(super) fn calculate_functions(
        arguments: Option<JsonObject>,
    ) -> Result<CallToolResult, Refused> {
        parse::<FunctionsArguments>(arguments)?;
        Ok(calculations::functions())
    }

    fn note_one(
        &self,
        tool: &'static str,
        text: &str,
        precision: Precision,
        done: &Result<Calculated, Refused>,
        started: Instant,
    ) {
        let told = done.as_ref().map(|done| done.result.as_str());
        let told = told.map_err(|refused| refused.message.as_str());
        let took = started.elapsed();
        self.ledger(|ledger| ledger.note(tool, text, Some(precision.places()), told, took));
    }

    fn ledger<T>(&self, with: impl FnOnce(&mut Ledger) -> T) -> T {
        with(&mut self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells of a time that is longer than a calculation may take.
    fn lowered(&self, within: Option<Duration>) -> Option<String> {
        let most = Duration::from_secs(self.0.backend.rules().limits.calculator_timeout_s);
        let asked = within.filter(|asked| *asked > most)?.as_secs_f64();
        Some(format!("timeout {asked} s was lowered to {} s, the most there is", most.as_secs()))
    }

    /// Returns the precision of one calculation: its own, else the session's.
    fn precision(&self, asked: Option<Precision>) -> Precision {
        let session =
            || Precision::new(self.0.precision.load(std::sync::atomic::Ordering::Acquire));
        asked.or_else(session).unwrap_or(Precision::DEFAULT)
    }
}

/// Returns the time that a calculation asks for, if any.
fn within(timeout: Option<Seconds>) -> Result<Option<Duration>, InvalidCall> {
    timeout.map(|Seconds(value)| seconds("timeout", value)).transpose()
}
