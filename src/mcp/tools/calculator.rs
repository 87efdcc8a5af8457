//! The calculator's tools beyond one expression, as an agent sees them.

use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::super::arguments::calculator::{MOST_HISTORY, USUAL_HISTORY};
use super::super::rules::Rules;
use super::{precision_schema, pure, time_schema, tool, warnings_schema};
use calc::plot::{HEIGHT, WIDTH};
use calc::{ENTRY_TIME, EXPRESSION_CHARACTERS, MOST_EXPRESSIONS};

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

pub(super) fn batch(rules: &Rules) -> Tool {
    let description = format!(
        "Evaluate up to {MOST_EXPRESSIONS} expressions, each as calculate would: each has its own \
         result or error, in the order given, and none sees another's variables. Each has a time of \
         its own, {} s unless told.",
        ENTRY_TIME.as_secs()
    );
    let input = json!({
        "type": "object",
        "properties": {
            "expressions": {
                "type": "array", "minItems": 1, "maxItems": MOST_EXPRESSIONS,
                "items": { "type": "string", "minLength": 1, "maxLength": EXPRESSION_CHARACTERS },
                "description": "Mathematical expressions to evaluate"
            },
            "precision": precision_schema(
                "Decimal places of every result; without it, what set_precision set, at first 20"
            ),
            "timeout": json!({
                "type": "number", "exclusiveMinimum": 0, "default": ENTRY_TIME.as_secs(),
                "description": format!(
                    "Seconds of each expression; at most {}", rules.limits.calculator_timeout_s
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
                        "error": { "type": "string", "description": "Why there is no result." }
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
    tool("calculate_batch", "Calculate many", description, input, output).annotate(pure())
}

pub(super) fn plot(rules: &Rules) -> Tool {
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
            "timeout": time_schema(rules)
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
    tool("calculate_plot", "Plot a function", description.to_owned(), input, output)
        .annotate(pure())
}

/// Annotates a tool whose result changes with each calculation, and which changes nothing itself.
fn about_the_session() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).idempotent(false).open_world(false)
}

fn counts() -> Vec<(String, Value)> {
    let names = ["calculations", "errors", "totalTimeMs", "averageTimeMs"];
    names.iter().map(|name| ((*name).to_owned(), count())).collect()
}

pub(super) fn stats() -> Tool {
    let description = "Show how many calculations this session made, how many failed, and how \
        long they took, in all and for each tool, and how many calls run or wait now.";
    let input = json!({ "type": "object", "properties": {}, "additionalProperties": false });
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
    tool("calculate_stats", "Show calculation statistics", description.to_owned(), input, output)
        .annotate(about_the_session())
}

pub(super) fn history() -> Tool {
    let description = format!(
        "Show this session's last calculations, the newest first: expression, precision, and \
         result or error. The last {MOST_HISTORY} are remembered, long texts by their beginning."
    );
    let input = json!({
        "type": "object",
        "properties": {
            "limit": {
                "type": "integer", "minimum": 1, "maximum": MOST_HISTORY, "default": USUAL_HISTORY,
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
    tool("calculate_history", "Show past calculations", description, input, output)
        .annotate(about_the_session())
}

pub(super) fn functions() -> Tool {
    let description = "List the functions and constants that expressions can use besides bc's \
        own: powers and logarithms, trigonometry, whole numbers, statistics, interest, bases.";
    let input = json!({ "type": "object", "properties": {}, "additionalProperties": false });
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
    tool("calculate_functions", "List functions", description.to_owned(), input, output)
        .annotate(pure())
}
