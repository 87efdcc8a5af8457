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
    /// The shortened form of a result that is too long for a reply.
    pub shortened: Option<Shortened>,
    /// Result of comparing two working scales: exact if they agree on every digit shown.
    pub exact: Exact,
    /// Warnings of bc.
    pub warnings: Vec<String>,
    pub took: Duration,
    pub ran: ValueOrigin,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

/// Head and tail of a result that is too long for a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortened {
    /// Both, with a note between them.
    pub text: String,
    /// Number of digits of the whole, if it is one number.
    pub digits: Option<usize>,
    /// Handle by which `bash_output` reads the whole, if the client has that tool.
    pub output_id: Option<String>,
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
    /// Value of each expression, or the reason why it has no value.
    pub entries: Vec<Result<BatchValue, String>>,
    pub took: Duration,
    pub receipt: Option<Receipt>,
    /// Number of lines missing from the audit log, and the reason, while it cannot be written.
    pub unrecorded: Option<(u64, String)>,
}

/// Value of one expression of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchValue {
    pub result: String,
    pub shortened: Option<Shortened>,
    pub exact: Exact,
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

impl Shortened {
    /// Returns the result as it is shown: head and tail, or the whole if it is not shortened.
    fn shown<'a>(shortened: &'a Option<Self>, result: &'a str) -> &'a str {
        shortened.as_ref().map_or(result, |shortened| &shortened.text)
    }

    fn note(&self) -> String {
        let whole = match self.digits {
            Some(digits) => {
                format!("the result has {digits} digits and is shown by its head and tail")
            }
            None => "the result is shown by its head and tail".to_owned(),
        };
        match &self.output_id {
            Some(id) => format!("{whole}; bash_output with output_id {id} reads the rest of it"),
            None => whole,
        }
    }
}

/// Adds to the fields of a value what is to be said about how it is shown.
fn add_remarks(fields: &mut Value, shortened: Option<&Shortened>, scale: Option<String>) {
    let Some(fields) = fields.as_object_mut() else { return };
    if let Some(shortened) = shortened {
        fields.insert("truncated".to_owned(), Value::Bool(true));
        let digits = shortened.digits.map(|digits| ("digits".to_owned(), json!(digits)));
        let id = shortened.output_id.as_ref().map(|id| ("output_id".to_owned(), json!(id)));
        fields.extend(digits.into_iter().chain(id));
    }
    let notes: Vec<String> = scale.into_iter().chain(shortened.map(Shortened::note)).collect();
    if !notes.is_empty() {
        fields.insert("notes".to_owned(), json!(notes));
    }
}

impl Calculated {
    /// Returns the fields of an expression's value, with `exact: false` if digits may be wrong.
    pub fn fields(&self, expression: &str, precision: u8) -> Value {
        let mut fields = json!({
            "result": Shortened::shown(&self.shortened, &self.result),
            "expression": expression,
            "precision": precision,
            "executionTimeMs": millis(self.took),
        });
        if let (Exact::No, Some(map)) = (self.exact, fields.as_object_mut()) {
            map.insert("exact".to_owned(), Value::Bool(false));
        }
        add_remarks(&mut fields, self.shortened.as_ref(), self.scale_note(expression, precision));
        fields
    }

    /// Returns a note on a `scale` in the expression that had no effect, if there is one.
    pub fn scale_note(&self, expression: &str, precision: u8) -> Option<String> {
        calc::scale_note(expression, &self.result, precision.into())
    }

    /// Returns the fields of what a script printed, with the first 100 characters of the script.
    pub fn script_fields(&self, script: &str, precision: u8) -> Value {
        let mut shown: String = script.chars().take(100).collect();
        if shown.len() < script.len() {
            shown.push('…');
        }
        let mut fields = json!({
            "result": Shortened::shown(&self.shortened, &self.result),
            "script": shown,
            "precision": precision,
            "executionTimeMs": millis(self.took),
        });
        add_remarks(&mut fields, self.shortened.as_ref(), None);
        fields
    }
}

impl Batch {
    /// Returns the fields of each value: an error of an expression is data.
    pub fn fields(&self, expressions: &[String], precision: u8) -> Value {
        let entry = |(expression, entry): (&String, &Result<BatchValue, String>)| {
            let value = match entry {
                Ok(value) => value,
                Err(error) => return json!({ "expression": expression, "error": error }),
            };
            let shown = Shortened::shown(&value.shortened, &value.result);
            let mut fields = json!({ "expression": expression, "result": shown });
            if let (Exact::No, Some(map)) = (value.exact, fields.as_object_mut()) {
                map.insert("exact".to_owned(), Value::Bool(false));
            }
            let scale = calc::scale_note(expression, &value.result, precision.into());
            add_remarks(&mut fields, value.shortened.as_ref(), scale);
            fields
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
