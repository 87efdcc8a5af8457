//! Results of the calculator.

use std::time::Duration;

use serde_json::{Value, json};

use super::millis;
use calc::plot::{Drawn, Plot};
use model::receipt::Receipt;

/// Result of a calculation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calculated {
    /// Empty when nothing was printed.
    pub result: String,
    /// Result of comparing two working scales: exact if they agree on every digit shown.
    pub exact: Exact,
    /// Warnings of bc.
    pub warnings: Vec<String>,
    pub took: Duration,
    pub ran: ValueOrigin,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    /// Calculated in a cell that had this protection.
    InCell(Option<Box<Receipt>>),
    /// Calculated before by this server: no cell ran.
    Remembered,
}

/// Result of a batch of calculations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Value of each expression, or the reason why it has none.
    pub entries: Vec<Result<(String, Exact), String>>,
    pub took: Duration,
    pub receipt: Option<Receipt>,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

/// A plotted function.
#[derive(Debug, Clone, PartialEq)]
pub struct Plotted {
    pub drawn: Drawn,
    pub took: Duration,
    pub receipt: Option<Receipt>,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exact {
    Yes,
    No,
}

impl Calculated {
    /// Returns the fields of an expression's value, with `exact: false` if digits may be wrong.
    pub fn fields(&self, expression: &str, precision: u8) -> Value {
        let mut fields = json!({
            "result": self.result,
            "expression": expression,
            "precision": precision,
            "executionTimeMs": millis(self.took),
        });
        if let (Exact::No, Some(map)) = (self.exact, fields.as_object_mut()) {
            map.insert("exact".to_owned(), Value::Bool(false));
        }
        fields
    }

    /// Returns the fields of what a script printed, with the first 100 characters of the script.
    pub fn script_fields(&self, script: &str, precision: u8) -> Value {
        let mut shown: String = script.chars().take(100).collect();
        if shown.len() < script.len() {
            shown.push('…');
        }
        json!({
            "result": self.result,
            "script": shown,
            "precision": precision,
            "executionTimeMs": millis(self.took),
        })
    }
}

impl Batch {
    /// Returns the fields of each value: an error of an expression is data.
    pub fn fields(&self, expressions: &[String], precision: u8) -> Value {
        let entry = |(expression, entry): (&String, &Result<(String, Exact), String>)| match entry {
            Ok((result, Exact::Yes)) => json!({ "expression": expression, "result": result }),
            Ok((result, Exact::No)) => {
                json!({ "expression": expression, "result": result, "exact": false })
            }
            Err(error) => json!({ "expression": expression, "error": error }),
        };
        let results: Vec<Value> = expressions.iter().zip(&self.entries).map(entry).collect();
        json!({
            "results": results,
            "errors": self.entries.iter().filter(|entry| entry.is_err()).count(),
            "precision": precision,
            "executionTimeMs": millis(self.took),
        })
    }
}

impl Plotted {
    /// Returns the fields of the drawing and of what was asked for.
    pub fn fields(&self, plot: &Plot) -> Value {
        let drawn = &self.drawn;
        json!({
            "plot": drawn.plot, "expression": plot.expression, "variable": plot.variable,
            "from": drawn.from, "to": drawn.to, "min": drawn.lowest, "max": drawn.highest,
            "gaps": drawn.gaps, "beyond": drawn.beyond, "executionTimeMs": millis(self.took),
        })
    }
}
