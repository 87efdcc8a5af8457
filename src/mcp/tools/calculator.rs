//! The calculator: one expression, a script, and the precision of both.

use std::time::Instant;

use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Value, json};

use super::built_in::BuiltIn;
use super::schema::{precision_schema, pure, sets, time_schema, tool, warnings_schema};
use crate::arguments::{Arguments, Named, Seconds};
use crate::context::Context;
use crate::reply::{self, calculations};
use crate::server::Server;
use crate::server::calculator::within;
use crate::tool_entry::{CallResult, InForce};
use service::refused::Refused;
use service::request::Precision;

/// Arguments of `calculate`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalculateArguments {
    pub(crate) expression: String,
    pub(crate) precision: Option<Precision>,
    pub(crate) timeout: Option<Seconds>,
}

impl Arguments for CalculateArguments {
    const FIELDS: &'static [&'static str] = &["expression", "precision", "timeout"];
}

/// Arguments of `calculate_advanced`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalculateAdvancedArguments {
    pub(crate) script: String,
    pub(crate) precision: Option<Precision>,
    pub(crate) timeout: Option<Seconds>,
}

impl Arguments for CalculateAdvancedArguments {
    const FIELDS: &'static [&'static str] = &["script", "precision", "timeout"];
}

/// Arguments of `set_precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetPrecisionArguments {
    pub(crate) precision: Precision,
}

impl Arguments for SetPrecisionArguments {
    const FIELDS: &'static [&'static str] = &["precision"];
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
        let input = json!({
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string", "minLength": 1, "maxLength": 10_000,
                    "description": "Mathematical expression to evaluate (e.g., '2+2', 'sqrt(144)', '1/3')"
                },
                "precision": precision_schema(
                    "Decimal places for the result; without it, what set_precision set, at first 20"
                ),
                "timeout": time_schema(&in_force.rules)
            },
            "required": ["expression"],
            "additionalProperties": false
        });
        let output = calculator_output("expression", "The expression as given.");
        tool::<Self>("Calculate", description, input, output).annotate(pure())
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
        let input = json!({
            "type": "object",
            "properties": {
                "script": {
                    "type": "string", "minLength": 1, "maxLength": 10_000,
                    "description": "Multi-line bc script with variables, loops or functions"
                },
                "precision": precision_schema(
                    "Decimal places (bc's scale) at the start of the script; without it, what set_precision set, at first 20"
                ),
                "timeout": time_schema(&in_force.rules)
            },
            "required": ["script"],
            "additionalProperties": false
        });
        let output = calculator_output("script", "The first 100 characters of the script.");
        tool::<Self>("Run a bc script", description, input, output).annotate(pure())
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
        let schema = || {
            json!({
                "type": "object",
                "properties": { "precision": precision_schema("Number of decimal places (0-100)") },
                "required": ["precision"],
                "additionalProperties": false
            })
        };
        let description = "Set the default precision (decimal places) for later calculations of this \
            session. A calculation that names its own precision is not affected.";
        tool::<Self>("Set precision", description.to_owned(), schema(), schema()).annotate(sets())
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

fn calculator_output(echo: &str, echoed: &str) -> Value {
    let mut output = json!({
        "type": "object",
        "properties": {
            "result": { "type": "string", "description": "The value, or empty when nothing was printed." },
            "precision": precision_schema("Decimal places in force."),
            "executionTimeMs": { "type": "integer", "minimum": 0 },
            "truncated": { "type": "boolean", "description": "Present and true if `result` is the head and tail of a longer one." },
            "digits": { "type": "integer", "minimum": 0, "description": "Of a number that is shortened: how many it has." },
            "output_id": { "type": "string", "description": "Of a shortened result: by it bash_output reads the rest." },
            "notes": { "type": "array", "items": { "type": "string" } },
            "warnings": warnings_schema()
        },
        "required": ["result", echo, "precision", "executionTimeMs"],
        "additionalProperties": false
    });
    if let Some(properties) = output.get_mut("properties").and_then(Value::as_object_mut) {
        properties.insert(echo.to_owned(), json!({ "type": "string", "description": echoed }));
        if echo == "expression" {
            let exact = "Present and false when not every digit is sure.";
            properties
                .insert("exact".to_owned(), json!({ "type": "boolean", "description": exact }));
        }
    }
    output
}
