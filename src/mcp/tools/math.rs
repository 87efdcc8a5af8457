//! The calculator beyond one expression: batches, plots, its functions, and past calculations.

use std::fmt;
use std::time::Instant;

use rmcp::model::{Tool, ToolAnnotations};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::{Value, json};

use super::built_in::BuiltIn;
use super::schema::{no_arguments, precision_schema, pure, time_schema, tool, warnings_schema};
use crate::arguments::{Arguments, Named, Seconds};
use crate::context::Context;
use crate::reply::calculations;
use crate::server::Server;
use crate::server::calculator::within;
use crate::tool_entry::{CallResult, InForce};
use calc::ledger::REMEMBERED;
use calc::plot::{HEIGHT, Plot, WIDTH};
use calc::{ENTRY_TIME, EXPRESSION_CHARACTERS, MAX_EXPRESSIONS};
use service::request::Precision;

/// Default number of calculations that `calculate_history` returns.
pub(crate) const USUAL_HISTORY: u16 = 20;

/// Arguments of `calculate_batch`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalculateBatchArguments {
    pub(crate) expressions: Expressions,
    pub(crate) precision: Option<Precision>,
    pub(crate) timeout: Option<Seconds>,
}

impl Arguments for CalculateBatchArguments {
    const FIELDS: &'static [&'static str] = &["expressions", "precision", "timeout"];
}

/// 1 to [`MAX_EXPRESSIONS`] expressions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expressions(pub Vec<String>);

impl<'de> Deserialize<'de> for Expressions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expressions = Vec::<String>::deserialize(deserializer)?;
        if expressions.is_empty() || expressions.len() > MAX_EXPRESSIONS {
            let expected = format!("1 to {MAX_EXPRESSIONS} expressions");
            return Err(de::Error::invalid_length(expressions.len(), &expected.as_str()));
        }
        Ok(Self(expressions))
    }
}

/// Arguments of `calculate_plot`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalculatePlotArguments {
    pub(crate) expression: String,
    pub(crate) variable: Option<String>,
    pub(crate) from: RangeEnd,
    pub(crate) to: RangeEnd,
    pub(crate) width: Option<WholeNumber<{ WIDTH.0 }, { WIDTH.2 }>>,
    pub(crate) height: Option<WholeNumber<{ HEIGHT.0 }, { HEIGHT.2 }>>,
    pub(crate) timeout: Option<Seconds>,
}

impl Arguments for CalculatePlotArguments {
    const FIELDS: &'static [&'static str] =
        &["expression", "variable", "from", "to", "width", "height", "timeout"];
}

impl CalculatePlotArguments {
    /// Returns the plot, with defaults for absent fields.
    pub(crate) fn plot(self) -> Plot {
        Plot {
            expression: self.expression,
            variable: self.variable.unwrap_or_else(|| "x".to_owned()),
            from: self.from.0,
            to: self.to.0,
            width: self.width.map_or(WIDTH.1, |width| width.0),
            height: self.height.map_or(HEIGHT.1, |height| height.0),
        }
    }
}

/// An end of a range: a number, or an expression such as `-2*pi`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RangeEnd(String);

impl<'de> Deserialize<'de> for RangeEnd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EndVisitor;
        impl Visitor<'_> for EndVisitor {
            type Value = RangeEnd;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or an expression")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<RangeEnd, E> {
                Ok(RangeEnd(text.to_owned()))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<RangeEnd, E> {
                Ok(RangeEnd(value.to_string()))
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<RangeEnd, E> {
                Ok(RangeEnd(value.to_string()))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<RangeEnd, E> {
                // Without an exponent, which bc does not accept.
                Ok(RangeEnd(value.to_string()))
            }
        }
        deserializer.deserialize_any(EndVisitor)
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WholeNumber<const MIN: u16, const MAX: u16>(pub u16);

impl<'de, const MIN: u16, const MAX: u16> Deserialize<'de> for WholeNumber<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = f64::deserialize(deserializer)?;
        // JSON has one kind of number: `20.0` is a whole number there.
        let whole = (MIN..=MAX).find(|whole| f64::from(*whole) == given);
        let expected = format!("a whole number from {MIN} to {MAX}");
        let unexpected = de::Unexpected::Float(given);
        whole.map(Self).ok_or_else(|| de::Error::invalid_value(unexpected, &expected.as_str()))
    }
}

/// Maximum calculations that `calculate_history` returns: all that are kept.
pub(crate) const MAX_HISTORY: u16 = 200;
const _: () = assert!(REMEMBERED == 200);

/// Arguments of `calculate_history`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalculateHistoryArguments {
    pub(crate) limit: Option<WholeNumber<1, MAX_HISTORY>>,
}

impl Arguments for CalculateHistoryArguments {
    const FIELDS: &'static [&'static str] = &["limit"];
}

/// Arguments of `calculate_stats`, which has no fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalculateStatsArguments {}

impl Arguments for CalculateStatsArguments {
    const FIELDS: &'static [&'static str] = &[];
}

/// Arguments of `calculate_functions`, which has no fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalculateFunctionsArguments {}

impl Arguments for CalculateFunctionsArguments {
    const FIELDS: &'static [&'static str] = &[];
}

impl BuiltIn for CalculateBatchArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = format!(
            "Evaluate up to {MAX_EXPRESSIONS} expressions, each as calculate would: each has its own \
             result or error, in the order given, and none sees another's variables. Each has a time of \
             its own, {} s unless told.",
            ENTRY_TIME.as_secs()
        );
        let input = json!({
            "type": "object",
            "properties": {
                "expressions": {
                    "type": "array", "minItems": 1, "maxItems": MAX_EXPRESSIONS,
                    "items": { "type": "string", "minLength": 1, "maxLength": EXPRESSION_CHARACTERS },
                    "description": "Mathematical expressions to evaluate"
                },
                "precision": precision_schema(
                    "Decimal places of every result; without it, what set_precision set, at first 20"
                ),
                "timeout": json!({
                    "type": "number", "exclusiveMinimum": 0, "default": ENTRY_TIME.as_secs(),
                    "description": format!(
                        "Seconds of each expression; at most {}", in_force.rules.limits.calculator_timeout_s
                    )
                })
            },
            "required": ["expressions"],
            "additionalProperties": false
        });
        let text = json!({ "type": "string" });
        let output = json!({
            "type": "object",
            "properties": {
                "results": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "expression": text, "result": text,
                            "exact": { "type": "boolean", "description": "Present and false when not every digit is sure." },
                            "error": { "type": "string", "description": "Why there is no result." },
                            "truncated": { "type": "boolean" }, "digits": count(), "output_id": text,
                            "notes": { "type": "array", "items": text }
                        },
                        "required": ["expression"], "additionalProperties": false
                    }
                },
                "errors": count(),
                "precision": precision_schema("Decimal places in force."),
                "executionTimeMs": count(),
                "warnings": warnings_schema()
            },
            "required": ["results", "errors", "precision", "executionTimeMs"],
            "additionalProperties": false
        });
        tool::<Self>("Calculate many", description, input, output).annotate(pure())
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let Self { expressions, precision, timeout } = self;
        let precision = server.precision(precision);
        let within = within(timeout)?;
        let started = Instant::now();
        let asked = expressions.0.clone();
        let run = |turn| server.0.client.calculate_batch(asked, precision, within, turn);
        let done = server.turn(context, run).await;
        let count = u32::try_from(expressions.0.len()).unwrap_or(u32::MAX).max(1);
        let tool = Self::TOOL;
        let share = started.elapsed() / count;
        for (place, expression) in expressions.0.iter().enumerate() {
            let outcome = match &done {
                Ok(done) => match done.entries.get(place) {
                    Some(Ok(value)) => Ok(value.result.as_str()),
                    Some(Err(error)) => Err(error.as_str()),
                    None => continue,
                },
                Err(refused) => Err(refused.message.as_str()),
            };
            server.ledger(|ledger| {
                ledger.note(tool, expression, Some(precision.places()), outcome, share);
            });
        }
        let result = calculations::batch(&done?, &expressions.0, precision.places());
        Ok(calculations::with_warnings(result, server.lowered(within)))
    }
}

impl BuiltIn for CalculatePlotArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "Draw a function as an ASCII plot with axes and labels. Where the function \
            has no value, as at a singularity, a column stays empty; values far from all others are \
            left out and counted.";
        let size = |(least, usual, most): (u16, u16, u16), about: &str| {
            json!({
                "type": "integer", "minimum": least, "maximum": most, "default": usual,
                "description": about
            })
        };
        let end = |about: &str| {
            json!({
                "anyOf": [{ "type": "number" }, { "type": "string" }], "description": about
            })
        };
        let input = json!({
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string", "minLength": 1, "maxLength": EXPRESSION_CHARACTERS,
                    "description": "One expression in the variable, such as 'sin(x)/x'"
                },
                "variable": { "type": "string", "default": "x", "description": "Its name" },
                "from": end("Where the plot begins: a number, or an expression such as '-2*pi'"),
                "to": end("Where it ends"),
                "width": size(WIDTH, "Columns"),
                "height": size(HEIGHT, "Rows"),
                "timeout": time_schema(&in_force.rules)
            },
            "required": ["expression", "from", "to"],
            "additionalProperties": false
        });
        let number = json!({ "type": "number" });
        let output = json!({
            "type": "object",
            "properties": {
                "plot": { "type": "string", "description": "The drawing, a line for each row." },
                "expression": { "type": "string" }, "variable": { "type": "string" },
                "from": number, "to": number,
                "min": { "type": "number", "description": "The least value computed." },
                "max": { "type": "number", "description": "The greatest." },
                "gaps": { "type": "integer", "minimum": 0, "description": "Columns without a value." },
                "beyond": { "type": "integer", "minimum": 0, "description": "Columns whose value is beyond the rows shown." },
                "executionTimeMs": count(),
                "warnings": warnings_schema()
            },
            "required": ["plot", "expression", "variable", "from", "to", "min", "max", "gaps", "beyond",
                "executionTimeMs"],
            "additionalProperties": false
        });
        tool::<Self>("Plot a function", description.to_owned(), input, output).annotate(pure())
    }

    async fn call(self, server: &Server, context: &Context) -> CallResult {
        let within = within(self.timeout)?;
        let started = Instant::now();
        let plot = self.plot();
        let asked = plot.clone();
        let run = |turn| server.0.client.calculate_plot(asked, within, turn);
        let done = server.turn(context, run).await;
        let outcome = done.as_ref().map(|_| "a plot").map_err(|refused| refused.message.as_str());
        server.ledger(|ledger| {
            ledger.note(Self::TOOL, &plot.expression, None, outcome, started.elapsed());
        });
        Ok(calculations::with_warnings(calculations::plot(&done?, &plot), server.lowered(within)))
    }
}

impl BuiltIn for CalculateFunctionsArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "List the functions and constants that expressions can use besides bc's \
            own: powers and logarithms, trigonometry, whole numbers, statistics, interest, bases.";
        let input = no_arguments();
        let text = json!({ "type": "string" });
        let output = json!({
            "type": "object",
            "properties": {
                "functions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "form": text, "gives": text, "section": text,
                            "domain": { "type": "string", "description": "Where it has a value." }
                        },
                        "required": ["form", "gives", "section"], "additionalProperties": false
                    }
                }
            },
            "required": ["functions"],
            "additionalProperties": false
        });
        tool::<Self>("List functions", description.to_owned(), input, output).annotate(pure())
    }

    async fn call(self, _: &Server, _: &Context) -> CallResult {
        Ok(calculations::functions())
    }
}

impl BuiltIn for CalculateStatsArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Show how many calculations this session made, how many failed, and how \
            long they took, in all and for each tool, and how many calls run or wait now.";
        let input = no_arguments();
        let one: serde_json::Map<String, Value> = counts().into_iter().collect();
        let names: Vec<String> = one.keys().cloned().collect();
        let each = json!({
            "type": "object", "properties": one.clone(), "required": names.clone(),
            "additionalProperties": false
        });
        let mut all = one;
        all.insert("tools".to_owned(), json!({ "type": "object", "additionalProperties": each }));
        all.insert("pending".to_owned(), count());
        let required: Vec<String> = all.keys().cloned().collect();
        let output = json!({
            "type": "object", "properties": all, "required": required, "additionalProperties": false
        });
        tool::<Self>("Show calculation statistics", description.to_owned(), input, output)
            .annotate(about_the_session())
    }

    async fn call(self, server: &Server, _: &Context) -> CallResult {
        let pending = server.0.client.pending();
        Ok(server.ledger(|ledger| calculations::stats(ledger.statistics(), pending)))
    }
}

impl BuiltIn for CalculateHistoryArguments {
    fn describe(_: &InForce) -> Tool {
        let description = format!(
            "Show this session's last calculations, the newest first: expression, precision, and \
             result or error. The last {MAX_HISTORY} are remembered, long texts by their beginning."
        );
        let input = json!({
            "type": "object",
            "properties": {
                "limit": {
                    "type": "integer", "minimum": 1, "maximum": MAX_HISTORY, "default": USUAL_HISTORY,
                    "description": "How many"
                }
            },
            "additionalProperties": false
        });
        let text = json!({ "type": "string" });
        let output = json!({
            "type": "object",
            "properties": {
                "calculations": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "number": { "type": "integer", "minimum": 1, "description": "Counted in the session." },
                            "tool": text, "expression": text, "precision": count(), "result": text,
                            "error": text
                        },
                        "required": ["number", "tool", "expression"], "additionalProperties": false
                    }
                }
            },
            "required": ["calculations"],
            "additionalProperties": false
        });
        tool::<Self>("Show past calculations", description, input, output)
            .annotate(about_the_session())
    }

    async fn call(self, server: &Server, _: &Context) -> CallResult {
        let Self { limit } = self;
        let limit = limit.map_or(USUAL_HISTORY, |limit| limit.0);
        Ok(calculations::history(&server.ledger(|ledger| ledger.latest(usize::from(limit)))))
    }
}

/// Annotates a tool whose result changes with each calculation, and which changes nothing itself.
fn about_the_session() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).idempotent(false).open_world(false)
}

fn counts() -> Vec<(String, Value)> {
    let names = ["calculations", "errors", "totalTimeMs", "averageTimeMs"];
    names.iter().map(|name| ((*name).to_owned(), count())).collect()
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed parse is a failed test")]
mod tests {
    use super::*;
    use crate::arguments::parse;

    fn error_of<A: Arguments + fmt::Debug>(text: &str) -> String {
        parse::<A>(serde_json::from_str(text).unwrap()).unwrap_err().message
    }

    #[test]
    fn a_plot_has_its_usual_size_and_its_ends_are_numbers_or_expressions() {
        let text = r#"{"expression":"t^2","variable":"t","from":-1e-7,"to":"2*pi"}"#;
        let plot =
            parse::<CalculatePlotArguments>(serde_json::from_str(text).unwrap()).unwrap().plot();
        let expected = Plot {
            expression: "t^2".to_owned(),
            variable: "t".to_owned(),
            from: "-0.0000001".to_owned(),
            to: "2*pi".to_owned(),
            width: 72,
            height: 20,
        };
        assert_eq!(plot, expected);
    }

    #[test]
    fn what_is_out_of_range_is_named_with_its_range() {
        let plot =
            error_of::<CalculatePlotArguments>(r#"{"expression":"x","from":0,"to":1,"width":201}"#);
        let expected = "calculate_plot: `width`: invalid value: floating point `201.0`, expected a whole number from 20 to 200";
        assert_eq!(plot, expected);
        let many = format!(r#"{{"expressions":[{}"1"]}}"#, r#""1","#.repeat(100));
        for (text, given) in [(r#"{"expressions":[]}"#, 0), (many.as_str(), 101)] {
            let expected = format!(
                "calculate_batch: `expressions`: invalid length {given}, expected 1 to 100 expressions"
            );
            assert_eq!(error_of::<CalculateBatchArguments>(text), expected);
        }
    }
}
