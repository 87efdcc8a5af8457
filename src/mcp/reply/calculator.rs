//! Results of the calculator, with the reference implementation's fields.

use rmcp::model::CallToolResult;
use serde_json::{Value, json};

use super::{RECEIPT_KEY, meta, pretty, result};
use service::report::{Calculated, ValueOrigin};

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
    let mut result = result(text, false);
    result.structured_content = Some(fields);
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
    let fields = json!({ "precision": precision });
    let mut result = result(format!("precision is now {precision} decimal places"), false);
    result.structured_content = Some(fields);
    result
}
