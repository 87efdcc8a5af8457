//! The calculator beyond one expression: batches, plots, its functions, and past calculations.

use std::time::Instant;

use rmcp::model::{Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_json::{Number, json};

use super::calculator::{lowered_timeout_note, parse_timeout, precision_in_force, with_ledger};
use super::results::{BatchResult, PlotResult};
use super::schema::{extend, extend_calculation, fields, pure, tool};
use crate::arguments::{Named, Seconds};
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::reply::calculations::{self, FunctionRows, HistoryRows, SessionStatistics};
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use calc::ledger::REMEMBERED;
use calc::plot::{HEIGHT, Plot, WIDTH};
use calc::{ENTRY_TIME, EXPRESSION_CHARACTERS, MAX_EXPRESSIONS};
use service::calculate::Calculation;
use service::request::Precision;

/// Default number of calculations that `calculate_history` returns.
pub(crate) const DEFAULT_HISTORY: u16 = 20;

/// Arguments of `calculate_batch`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalculateBatchArguments {
    /// Mathematical expressions to evaluate
    pub(crate) expressions: Expressions,
    /// Decimal places of every result; without it, what set_precision set, at first 20
    pub(crate) precision: Option<Precision>,
    pub(crate) timeout: Option<Seconds>,
}

/// 1 to [`MAX_EXPRESSIONS`] expressions.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(description = "")]
pub(crate) struct Expressions(
    #[schemars(
        length(min = 1, max = MAX_EXPRESSIONS),
        inner(length(min = 1, max = EXPRESSION_CHARACTERS))
    )]
    pub Vec<String>,
);

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
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalculatePlotArguments {
    /// One expression in the variable, such as 'sin(x)/x'
    #[schemars(length(min = 1, max = EXPRESSION_CHARACTERS))]
    pub(crate) expression: String,
    /// Its name
    #[schemars(extend("default" = "x"))]
    pub(crate) variable: Option<String>,
    /// Where the plot begins: a number, or an expression such as '-2*pi'
    pub(crate) from: RangeEnd,
    /// Where it ends
    pub(crate) to: RangeEnd,
    /// Columns
    #[schemars(extend("default" = WIDTH.1))]
    pub(crate) width: Option<WholeNumber<{ WIDTH.0 }, { WIDTH.2 }>>,
    /// Rows
    #[schemars(extend("default" = HEIGHT.1))]
    pub(crate) height: Option<WholeNumber<{ HEIGHT.0 }, { HEIGHT.2 }>>,
    pub(crate) timeout: Option<Seconds>,
}

impl CalculatePlotArguments {
    /// Returns the plot, with defaults for absent fields.
    pub(crate) fn plot(self) -> Plot {
        Plot {
            expression: self.expression,
            variable: self.variable.unwrap_or_else(|| "x".to_owned()),
            from: self.from.expression(),
            to: self.to.expression(),
            width: self.width.map_or(WIDTH.1, |width| width.0),
            height: self.height.map_or(HEIGHT.1, |height| height.0),
        }
    }
}

/// An end of a range: a number, or an expression such as `-2*pi`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a number or an expression")]
#[schemars(description = "")]
pub(crate) enum RangeEnd {
    Number(Number),
    Expression(String),
}

impl RangeEnd {
    fn expression(self) -> String {
        let number = match self {
            Self::Expression(text) => return text,
            Self::Number(number) => number,
        };
        // Without an exponent, which bc does not accept.
        let decimal = number.as_f64().filter(|_| number.is_f64());
        decimal.map_or_else(|| number.to_string(), |decimal| decimal.to_string())
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(description = "")]
pub(crate) struct WholeNumber<const MIN: u16, const MAX: u16>(
    #[schemars(range(min = MIN, max = MAX))] pub u16,
);

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalculateHistoryArguments {
    /// How many
    #[schemars(extend("default" = DEFAULT_HISTORY))]
    pub(crate) limit: Option<WholeNumber<1, MAX_HISTORY>>,
}

/// Arguments of `calculate_stats`, which has no fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalculateStatsArguments {}

/// Arguments of `calculate_functions`, which has no fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalculateFunctionsArguments {}

impl BuiltIn for CalculateBatchArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = format!(
            "Evaluate up to {MAX_EXPRESSIONS} expressions, each as calculate would: each has its own \
             result or error, in the order given, and none sees another's variables. Each has a time of \
             its own, {} s unless told.",
            ENTRY_TIME.as_secs()
        );
        let mut tool = tool::<Self, BatchResult>("Calculate many", description).annotate(pure());
        if let Some(fields) = fields(&mut tool) {
            let maximum = in_force.rules.limits.calculator_timeout_s;
            let about = format!("Seconds of each expression; at most {maximum}");
            let time = json!({ "default": ENTRY_TIME.as_secs(), "description": about });
            extend(fields, "timeout", time);
        }
        tool
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let Self { expressions, precision, timeout } = self;
        let precision = precision_in_force(calls, precision);
        let timeout = parse_timeout(timeout)?;
        let started = Instant::now();
        let asked = expressions.0.clone();
        let run =
            |turn| Calculation::new(&calls.client, None, turn).batch(asked, precision, timeout);
        let done = calls.turn(context, run).await;
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
            with_ledger(calls, |ledger| {
                ledger.note(tool, expression, Some(precision.places()), outcome, share);
            });
        }
        let result = calculations::batch(&done?, &expressions.0, precision.places());
        Ok(calculations::with_warnings(result, lowered_timeout_note(calls, timeout)))
    }
}

impl BuiltIn for CalculatePlotArguments {
    fn describe(in_force: &InForce) -> Tool {
        let description = "Draw a function as an ASCII plot with axes and labels. Where the function \
            has no value, as at a singularity, a column stays empty; values far from all others are \
            left out and counted.";
        let mut tool = tool::<Self, PlotResult>("Plot a function", description).annotate(pure());
        extend_calculation(&mut tool, &in_force.rules);
        tool
    }

    async fn call(self, calls: &ClientCalls, context: &Context) -> CallResult {
        let timeout = parse_timeout(self.timeout)?;
        let started = Instant::now();
        let plot = self.plot();
        let asked = plot.clone();
        let run = |turn| Calculation::new(&calls.client, timeout, turn).plot(asked);
        let done = calls.turn(context, run).await;
        let outcome = done.as_ref().map(|_| "a plot").map_err(|refused| refused.message.as_str());
        with_ledger(calls, |ledger| {
            ledger.note(Self::TOOL, &plot.expression, None, outcome, started.elapsed());
        });
        Ok(calculations::with_warnings(
            calculations::plot(&done?, &plot),
            lowered_timeout_note(calls, timeout),
        ))
    }
}

impl BuiltIn for CalculateFunctionsArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "List the functions and constants that expressions can use besides bc's \
            own: powers and logarithms, trigonometry, whole numbers, statistics, interest, bases.";
        tool::<Self, FunctionRows>("List functions", description).annotate(pure())
    }

    async fn call(self, _: &ClientCalls, _: &Context) -> CallResult {
        Ok(calculations::functions())
    }
}

impl BuiltIn for CalculateStatsArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "Show how many calculations this session made, how many failed, and how \
            long they took, in all and for each tool, and how many calls run or wait now.";
        tool::<Self, SessionStatistics>("Show calculation statistics", description)
            .annotate(about_the_session())
    }

    async fn call(self, calls: &ClientCalls, _: &Context) -> CallResult {
        let pending = calls.client.pending();
        Ok(with_ledger(calls, |ledger| calculations::stats(ledger.statistics(), pending)))
    }
}

impl BuiltIn for CalculateHistoryArguments {
    fn describe(_: &InForce) -> Tool {
        let description = format!(
            "Show this session's last calculations, the newest first: expression, precision, and \
             result or error. The last {MAX_HISTORY} are remembered, long texts by their beginning."
        );
        tool::<Self, HistoryRows>("Show past calculations", description)
            .annotate(about_the_session())
    }

    async fn call(self, calls: &ClientCalls, _: &Context) -> CallResult {
        let Self { limit } = self;
        let limit = limit.map_or(DEFAULT_HISTORY, |limit| limit.0);
        Ok(calculations::history(&with_ledger(calls, |ledger| ledger.latest(usize::from(limit)))))
    }
}

/// Annotates a tool whose result changes with each calculation, and which changes nothing itself.
fn about_the_session() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).idempotent(false).open_world(false)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed parse is a failed test")]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, parse};

    fn error_of<A: Arguments + std::fmt::Debug>(text: &str) -> String {
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
    fn a_value_out_of_range_is_named_with_its_range() {
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
