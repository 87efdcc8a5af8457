//! The calculator: one expression, a script, and the precision of both.

use std::time::Instant;

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;

use super::built_in::BuiltIn;
use super::results::{CalculateResult, ScriptResult};
use super::schema::{extend_calculation, pure, sets, tool};
use crate::arguments::{Named, Seconds};
use crate::context::Context;
use crate::reply::{self, calculations};
use crate::server::Server;
use crate::server::calculator::within;
use crate::tool_entry::{CallResult, InForce};
use calc::EXPRESSION_CHARACTERS;
use service::refused::Refused;
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

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let Self { expression, precision, timeout } = self;
        let precision = server.precision(precision);
        let within = within(timeout)?;
        let started = Instant::now();
        let asked = expression.clone();
        let run = |turn| server.0.client.calculate(asked, precision, within, turn);
        let done = server.turn(context, run).await;
        server.note_one(Self::TOOL, &expression, precision, &done, started);
        let done = done?;
        let lowered = server.lowered(within);
        let result = reply::calculated(&done, &expression, precision.places());
        Ok(calculations::with_warnings(result, lowered))
    }
}

impl BuiltIn for CalculateAdvancedArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = format!(
            "Run a bc script of many lines, with variables, functions and control flow. The result \
             is all that it prints, with bc's own rounding: results are cut off, not rounded. At \
             most {} s.",
            in_force.rules.limits.calculator_timeout_s
        );
        let mut tool = tool::<Self, ScriptResult>("Run a bc script", description).annotate(pure());
        extend_calculation(&mut tool, &in_force.rules);
        tool
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let Self { script, precision, timeout } = self;
        let precision = server.precision(precision);
        let within = within(timeout)?;
        let started = Instant::now();
        let asked = script.clone();
        let run = |turn| server.0.client.calculate_advanced(asked, precision, within, turn);
        let done = server.turn(context, run).await;
        server.note_one(Self::TOOL, &script, precision, &done, started);
        let done = done?;
        let result = reply::scripted(&done, &script, precision.places());
        let warnings = done.warnings.iter().cloned().chain(server.lowered(within));
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

    async fn call(self, server: &Server, _: &Context) -> CallResult {
        if !server.0.continuity.is_session() {
            let alone = "requests of this client stand alone: pass precision per call";
            return Err(Refused::failed(alone));
        }
        server.0.client.state().precision.set(self.precision);
        Ok(reply::precision_set(self.precision.places()))
    }
}
