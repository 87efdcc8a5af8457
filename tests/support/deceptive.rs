//! Text that hides or turns what is around it, or that a terminal obeys, and a look for it in messages.

use serde_json::{Value, json};

/// Characters of each class: what a terminal obeys, direction, tags, no width, blank letters, separators, private use,
/// unassigned.
pub(crate) const HOSTILE: &str = "\u{1b}[2J\u{7}\u{8}\u{7f}\u{9b}31m\u{202e}\u{2066}\u{e0041}\u{e0100}\u{200b}\u{ad}\u{feff}\
                                  \u{3164}\u{2028}\u{2029}\u{fff9}\u{e000}\u{378}";

/// Returns the same as escapes of printf(1), so that a command's own text contains no such character.
pub(crate) fn written() -> String {
    HOSTILE.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// Returns what a message shows of it.
pub(crate) fn raw(message: &Value) -> Vec<char> {
    match message {
        Value::String(text) => {
            HOSTILE.chars().filter(|one| !one.is_ascii_graphic() && text.contains(*one)).collect()
        }
        Value::Array(all) => all.iter().flat_map(raw).collect(),
        Value::Object(fields) => {
            let names = fields.keys().flat_map(|name| raw(&json!(name)));
            names.chain(fields.values().flat_map(raw)).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}
