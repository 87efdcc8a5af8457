//! Results of the calculator's tools.

use rmcp::model::{CallToolResult, ContentBlock};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::{RECEIPT_KEY, meta, meta_if_any, of_fields, pretty, with_fields};
use calc::ledger::{LedgerEntry, Statistics};
use calc::library;
use calc::plot::Plot;
use service::report::{Batch, Calculated, Plotted, ValueOrigin, to_value};

/// Makes the result of `calculate`, with `exact: false` if digits may be wrong.
pub(crate) fn calculated(done: &Calculated, expression: &str, precision: u8) -> CallToolResult {
    calculator(done, done.fields(expression, precision))
}

/// Makes the result of `calculate_advanced`, with the first 100 characters of the script.
pub(crate) fn scripted(done: &Calculated, script: &str, precision: u8) -> CallToolResult {
    calculator(done, done.script_fields(script, precision))
}

fn calculator(done: &Calculated, fields: Value) -> CallToolResult {
    let text = if done.result.is_empty() { "nothing printed".to_owned() } else { pretty(&fields) };
    let mut result = with_fields(text, fields);
    let (receipt, remembered) = match &done.ran {
        ValueOrigin::InCell(receipt) => (receipt.as_deref(), None),
        ValueOrigin::Remembered => (None, Some(json!({ "cached": true, "cell": "none ran" }))),
    };
    let mut meta = meta(receipt, done.unrecorded.as_ref());
    if let Some(remembered) = remembered {
        meta.0.insert(RECEIPT_KEY.to_owned(), remembered);
    }
    result.meta = Some(meta).filter(|meta| !meta.0.is_empty());
    result
}

/// Makes the result of `set_precision`.
pub(crate) fn precision_set(precision: u8) -> CallToolResult {
    let text = format!("precision is now {precision} decimal places");
    with_fields(text, json!({ "precision": precision }))
}

/// Makes the result of `calculate_batch`: an error of an expression is data.
pub fn batch(done: &Batch, expressions: &[String], precision: u8) -> CallToolResult {
    let fields = done.fields(expressions, precision);
    let mut result = with_fields(pretty(&fields), fields);
    result.meta = meta_if_any(done.receipt.as_ref(), done.unrecorded.as_ref());
    result
}

/// Makes the result of `calculate_plot`: the drawing is its text.
pub fn plot(done: &Plotted, plot: &Plot) -> CallToolResult {
    let drawn = &done.drawn;
    let mut text = drawn.plot.clone();
    for (columns, what) in
        [(drawn.gaps, "have no value"), (drawn.beyond, "have a value beyond the rows shown")]
    {
        if columns > 0 {
            text.push_str(&format!("[columns that {what}: {columns}]\n"));
        }
    }
    let mut result = with_fields(text, done.fields(plot));
    result.meta = meta_if_any(done.receipt.as_ref(), done.unrecorded.as_ref());
    result
}

/// Result of `calculate_stats`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SessionStatistics<'a> {
    #[serde(flatten)]
    statistics: &'a Statistics,
    pending: usize,
}

/// Makes the result of `calculate_stats`, with the number of calls that run or are queued now.
pub fn stats(statistics: &Statistics, pending: usize) -> CallToolResult {
    of_fields(to_value(&SessionStatistics { statistics, pending }))
}

/// Result of `calculate_history`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct HistoryRows<'a> {
    calculations: &'a [LedgerEntry],
}

/// Makes the result of `calculate_history`.
pub fn history(entries: &[LedgerEntry]) -> CallToolResult {
    of_fields(to_value(&HistoryRows { calculations: entries }))
}

/// Result of `calculate_functions`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct FunctionRows {
    functions: Vec<FunctionRow>,
}

/// A function that expressions can use.
#[derive(Serialize, JsonSchema)]
struct FunctionRow {
    form: &'static str,
    gives: &'static str,
    section: &'static str,
    /// Where it has a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'static str>,
}

/// Makes the result of `calculate_functions`.
pub fn functions() -> CallToolResult {
    let functions = library::functions().map(|function| FunctionRow {
        form: function.form,
        gives: function.about,
        section: function.section,
        domain: function.domain,
    });
    let functions = functions.collect();
    with_fields(library::described(), to_value(&FunctionRows { functions }))
}

/// Adds warnings to a result, if there are any.
pub(crate) fn with_warnings(
    mut result: CallToolResult,
    warnings: impl IntoIterator<Item = String>,
) -> CallToolResult {
    let warnings: Vec<String> = warnings.into_iter().collect();
    for warning in &warnings {
        result.content.push(ContentBlock::text(format!("warning: {warning}")));
    }
    if let (false, Some(fields)) =
        (warnings.is_empty(), result.structured_content.as_mut().and_then(Value::as_object_mut))
    {
        fields.insert("warnings".to_owned(), Value::from(warnings));
    }
    result
}
