//! Fields of a reply that describe the protection of a call, and a missing audit record.

use std::time::Duration;

use serde_json::{Value, json};

use super::to_value;
use model::outcome::Timings;
use model::receipt::Receipt;

/// Returns a receipt as JSON, with the protections that its tier lacks, if any.
pub fn receipt_fields(receipt: &Receipt) -> Value {
    let mut value = to_value(receipt);
    // Keys of cells with egress, and of cells with a network namespace.
    let optional =
        [("measured", "interfaces"), ("measured", "network_namespace"), ("configured", "egress")];
    for (part, key) in optional {
        if let Some(part) = value.get_mut(part).and_then(Value::as_object_mut)
            && part.get(key).is_some_and(Value::is_null)
        {
            part.remove(key);
        }
    }
    // Said among the protections that are lacking, where it matters.
    if let Some(configured) = value.get_mut("configured").and_then(Value::as_object_mut) {
        configured.remove("core_handler");
    }
    let lacks = receipt.lacks();
    if let Some(map) = value.as_object_mut()
        && !lacks.is_empty()
    {
        map.insert("lacks".to_owned(), json!(lacks));
    }
    value
}

/// Adds the timings in microseconds to a receipt.
pub(super) fn with_timings(receipt: &Receipt, timings: &Timings) -> Value {
    let mut value = receipt_fields(receipt);
    if let Some(map) = value.as_object_mut() {
        let micros = |time: Duration| json!(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let phases = timings.named().map(|(name, time)| (name.to_owned(), micros(time)));
        map.insert("timings_us".to_owned(), Value::Object(phases.into_iter().collect()));
    }
    value
}

/// Returns the number of lines that the audit log lacks and the reason: `{lost, why}`.
pub fn unrecorded_fields((lost, why): &(u64, String)) -> Value {
    json!({ "lost": lost, "why": why })
}
