//! The calculator: one expression, a script, and the precision of both.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;

use super::results::{CalculateResult, ScriptResult};
use super::schema::{extend_calculation, pure, sets, tool};
use crate::arguments::{Named, Seconds};
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::reply::calculations;
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use calc::ledger::Ledger;
use calc::{EXPRESSION_CHARACTERS, ScriptDigits};
use model::call::{InvalidCall, seconds};
use service::calculate::Calculation;
use service::refused::Refused;
use service::report::Calculated;
use service::request::Precision;

/// Arguments of `calculate`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CalculateArguments {
    /// Mathematical expression to evaluate (e.g., '2+2', 'sqrt(144)', '1/3')
    #[schemars(length(min = 1, max = EXPRESSION_CHARACTERS))]
    pub(crate) expression: String,
    /// Decimal places for the result; without it, what set_precision set, at first 20
    pub(crate) precision: Option<Precision>,
    pub(crate) timeout: Option<Seconds>,
}

/// Arguments of `calculate_advanced`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CalculateAdvancedArguments {
    /// Multi-line bc script with variables, loops or functions
    #[schemars(length(min = 1, max = EXPRESSION_CHARACTERS))]
    pub(crate) script: String,
    /// Decimal places (bc's scale) at the start of the script; without it, what set_precision set, at
    /// first 20
    pub(crate) precision: Option<Precision>,
    /// Round each number to the decimals that bc prints, in place of cutting it off
    #[serde(default)]
    pub(crate) round: bool,
    pub(crate) timeout: Option<Seconds>,
}

/// Arguments of `set_precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPrecisionArguments {
    /// Number of decimal places (0-100)
    pub(crate) precision: Precision,
}

impl BuiltIn for CalculateArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = format!(
            "Evaluate a mathematical expression with bc, correctly rounded, at arbitrary precision. \
             Operators + - * / ^ % and comparisons; pi, e; sqrt, exp, ln, log10, pow(x, y), sin, cos, \
             tan, fact, gcd, isprime, mean and more (calculate_functions lists them). -2^2 is 4, as bc \
             has it. At most {} s.",
            in_force.rules.limits.calculator_timeout_s
        );
        let mut tool = tool::<Self, CalculateResult>("Calculate", description).annotate(pure());
        extend_calculation(&mut tool, &in_force.rules);
        tool
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let Self { expression, precision, timeout } = self;
        let precision = precision_in_force(calls, precision);
        let timeout = parse_timeout(timeout)?;
        let started = Instant::now();
        let asked = expression.clone();
        let run = |turn| Calculation::new(&calls.client, timeout, turn).one(asked, precision);
        let done = calls.turn(context, run).await;
        note_one(calls, Self::TOOL, &expression, precision, &done, started);
        let done = done?;
        let note = lowered_timeout_note(calls, timeout);
        let result = calculations::calculated(&done, &expression, precision.places());
        Ok(calculations::with_warnings(result, note))
    }
}

impl BuiltIn for CalculateAdvancedArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = format!(
            "Run a bc script of many lines, with variables, functions and control flow. The result \
             is all that it prints, as bc prints it: numbers are cut off, and not rounded unless \
             `round` is set. At most {} s.",
            in_force.rules.limits.calculator_timeout_s
        );
        let mut tool = tool::<Self, ScriptResult>("Run a bc script", description).annotate(pure());
        extend_calculation(&mut tool, &in_force.rules);
        tool
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let Self { script, precision, round, timeout } = self;
        let digits = if round { ScriptDigits::Rounded } else { ScriptDigits::CutOff };
        let precision = precision_in_force(calls, precision);
        let timeout = parse_timeout(timeout)?;
        let started = Instant::now();
        let asked = script.clone();
        let run =
            |turn| Calculation::new(&calls.client, timeout, turn).script(asked, precision, digits);
        let done = calls.turn(context, run).await;
        note_one(calls, Self::TOOL, &script, precision, &done, started);
        let done = done?;
        let result = calculations::scripted(&done, &script, precision.places());
        let warnings = done.warnings.iter().cloned().chain(lowered_timeout_note(calls, timeout));
        Ok(calculations::with_warnings(result, warnings))
    }
}

impl BuiltIn for SetPrecisionArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Set the default precision (decimal places) for later calculations of this \
            session. A calculation that names its own precision is not affected.";
        // The result is what was set.
        tool::<Self, Self>("Set precision", description).annotate(sets())
    }

    async fn call(self, calls: &ClientCalls, _: &Context) -> CallResult {
        if !calls.continuity.is_session() {
            let alone = "requests of this client stand alone: pass precision per call";
            return Err(Refused::failed(alone));
        }
        calls.client.state().precision.set(self.precision);
        Ok(calculations::precision_set(self.precision.places()))
    }
}

/// Returns the time that a calculation asks for, if any.
pub(super) fn parse_timeout(timeout: Option<Seconds>) -> Result<Option<Duration>, InvalidCall> {
    timeout.map(|Seconds(value)| seconds("timeout", value)).transpose()
}

/// Returns the precision of one calculation: its own, else the client's.
pub(super) fn precision_in_force(calls: &ClientCalls, own: Option<Precision>) -> Precision {
    own.unwrap_or_else(|| calls.client.state().precision.get())
}

/// Returns the note for a requested time that is longer than a calculation may take.
pub(super) fn lowered_timeout_note(
    calls: &ClientCalls,
    timeout: Option<Duration>,
) -> Option<String> {
    let max = Duration::from_secs(calls.client.rules().limits.calculator_timeout_s);
    let asked = timeout.filter(|asked| *asked > max)?.as_secs_f64();
    Some(format!("timeout {asked} s was lowered to {} s, the most there is", max.as_secs()))
}

/// Calls `with` with the client's calculations so far.
pub(super) fn with_ledger<T>(calls: &ClientCalls, with: impl FnOnce(&mut Ledger) -> T) -> T {
    with(&mut calls.client.state().ledger.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Adds a calculation to the ledger.
fn note_one(
    calls: &ClientCalls,
    tool: &'static str,
    text: &str,
    precision: Precision,
    done: &Result<Calculated, Refused>,
    started: Instant,
) {
    let answer = done.as_ref().map(|done| done.result.as_str());
    let answer = answer.map_err(|refused| refused.message.as_str());
    let took = started.elapsed();
    with_ledger(calls, |ledger| ledger.note(tool, text, Some(precision.places()), answer, took));
}
