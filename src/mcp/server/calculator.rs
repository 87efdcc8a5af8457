//! The calculator's tools: from arguments to results, each noted in the session's ledger.

use std::sync::PoisonError;
use std::time::Duration;

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
        let asked = expression.clone();
        let run = |turn| self.0.backend.calculate(asked, precision, within, turn);
        let done = self.turn(context, run).await;
        self.note_one(CalculateArguments::TOOL, &expression, precision, &done);
        Ok(reply::calculated(&done?, &expression, precision.places()))
    }

    pub(super) async fn calculate_advanced(
        &self,
        arguments: Option<JsonObject>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let AdvancedArguments { script, precision, timeout } = parse(arguments)?;
        let (precision, within) = (self.precision(precision), within(timeout)?);
        let asked = script.clone();
        let run = |turn| self.0.backend.calculate_advanced(asked, precision, within, turn);
        let done = self.turn(context, run).await;
        self.note_one(AdvancedArguments::TOOL, &script, precision, &done);
        Ok(reply::scripted(&done?, &script, precision.places()))
    }

    pub(super) async fn calculate_batch(
        &self,
        arguments: Option<JsonObject>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let BatchArguments { expressions, precision } = parse(arguments)?;
        let precision = self.precision(precision);
        let asked = expressions.0.clone();
        let run = |turn| self.0.backend.calculate_batch(asked, precision, turn);
        let done = self.turn(context, run).await?;
        let count = u32::try_from(done.entries.len()).unwrap_or(u32::MAX).max(1);
        for (expression, entry) in expressions.0.iter().zip(&done.entries) {
            let told = entry.as_ref().map(|(result, _)| result.as_str()).map_err(String::as_str);
            let (tool, share) = (BatchArguments::TOOL, done.took / count);
            self.ledger(|ledger| {
                ledger.note(tool, expression, Some(precision.places()), told, share);
            });
        }
        Ok(calculations::batch(&done, &expressions.0, precision.places()))
    }

    pub(super) async fn calculate_plot(
        &self,
        arguments: Option<JsonObject>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, Refused> {
        let plot = parse::<PlotArguments>(arguments)?.plot();
        let asked = plot.clone();
        let run = |turn| self.0.backend.calculate_plot(asked, turn);
        let done = self.turn(context, run).await;
        let told = done.as_ref().map(|_| "a plot").map_err(|refused| refused.message.as_str());
        let took = done.as_ref().map_or(Duration::ZERO, |done| done.took);
        self.ledger(|ledger| {
            ledger.note(PlotArguments::TOOL, &plot.expression, None, told, took);
        });
        Ok(calculations::plot(&done?, &plot))
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
    ) {
        let told = done.as_ref().map(|done| done.result.as_str());
        let told = told.map_err(|refused| refused.message.as_str());
        let took = done.as_ref().map_or(Duration::ZERO, |done| done.took);
        self.ledger(|ledger| ledger.note(tool, text, Some(precision.places()), told, took));
    }

    fn ledger<T>(&self, with: impl FnOnce(&mut Ledger) -> T) -> T {
        with(&mut self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner))
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
