//! The tools as an agent sees them: names, descriptions, schemas, annotations.
//!
//! Schemas are written out rather than derived: a model reads every word of them, and a derived
//! schema says `["integer", "null"]` for an optional field.

mod calculator;
mod exec;
mod files;
mod history;
mod info;
mod jobs;
mod shell;
mod steps;

use rmcp::model::{Tool, ToolAnnotations, object};
use serde_json::{Value, json};

use super::arguments::MAX_PRECISION;
use super::exec::Options;
use super::rules::Rules;

/// Returns every tool in the order of the list. Descriptions state the rules in force.
pub fn tools(rules: &Rules, options: &Options) -> Vec<Tool> {
    let mut tools = vec![
        shell::bash(rules),
        jobs::output(),
        jobs::input(),
        jobs::list(),
        jobs::kill(),
        calculate(rules),
        calculate_advanced(rules),
        calculator::batch(rules),
        calculator::plot(rules),
        calculator::functions(),
        calculator::stats(),
        calculator::history(),
        set_precision(),
        sandbox_rules(),
        exec::bash_exec(rules, options),
        exec::bash_exec_stream(options),
        steps::pipeline(options),
        exec::get_working_dir(),
        exec::set_working_dir(),
    ];
    tools.extend(info::tools());
    tools.extend([history::search(), history::replay(options)]);
    tools.extend(steps::macros(options));
    tools.extend(files::tools());
    tools
}

/// Instructions of the server to a model.
pub const INSTRUCTIONS: &str = "Commands run in a sandbox: bash keeps a shell for each session, \
    in a contained cell of its own; the reply says when a shell has ended. Calculations get a \
    fresh cell each. Call sandbox_rules to see paths, limits and network before trying to work around a refusal.";

fn tool(name: &'static str, title: &str, description: String, input: Value, output: Value) -> Tool {
    Tool::new(name, description, object(input))
        .with_title(title)
        .with_raw_output_schema(std::sync::Arc::new(object(output)))
}

/// Returns the schema of refused system calls, for every result that has them.
pub(super) fn denials() -> Value {
    json!({
        "type": "array",
        "description": "System calls that were refused.",
        "items": {
            "type": "object",
            "properties": {
                "syscall": { "type": "string" },
                "count": { "type": "integer", "minimum": 1, "description": "10000 means at least." },
                "grant": { "type": "string", "description": "What an operator can grant; absent when nothing grants it." }
            },
            "required": ["syscall", "count"],
            "additionalProperties": false
        }
    })
}

/// Returns the schema of changes in the workspace, for the results of commands.
pub(super) fn files_changed() -> Value {
    let file = json!({
        "type": "object",
        "properties": {
            "path": { "type": "string", "description": "From /workspace on; / ends a directory, @ a symbolic link." },
            "size": { "type": "integer", "minimum": 0 },
            "mode": { "type": "string" },
            "executable": { "type": "boolean" }
        },
        "required": ["path", "size", "mode"],
        "additionalProperties": false
    });
    json!({
        "type": "object",
        "description": "Files of /workspace that changed since it was looked at before; absent when none did.",
        "properties": {
            "created": { "type": "array", "items": file },
            "modified": { "type": "array", "items": file },
            "deleted": { "type": "array", "items": { "type": "string" } },
            "more": { "type": "integer", "minimum": 1, "description": "Changes that are not listed." },
            "incomplete": { "type": "boolean", "description": "Not all of /workspace was looked at." }
        },
        "additionalProperties": false
    })
}

fn precision_schema(description: &str) -> Value {
    json!({
        "type": "integer", "minimum": 0, "maximum": MAX_PRECISION, "description": description
    })
}

/// Returns the schema of a calculation's time limit; it never exceeds the operator's.
fn time_schema(rules: &Rules) -> Value {
    json!({
        "type": "number", "exclusiveMinimum": 0, "default": rules.limits.calculator_timeout_s,
        "description": format!("Seconds; at most {}", rules.limits.calculator_timeout_s)
    })
}

/// Present where there are any.
fn warnings_schema() -> Value {
    let about = "What bc warned of, and a timeout that was lowered; absent when there is nothing.";
    json!({ "type": "array", "items": { "type": "string" }, "description": about })
}

fn calculator_output(echo: &str, echoed: &str) -> Value {
    let mut output = json!({
        "type": "object",
        "properties": {
            "result": { "type": "string", "description": "The value, or empty when nothing was printed." },
            "precision": precision_schema("Decimal places in force."),
            "executionTimeMs": { "type": "integer", "minimum": 0 },
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

/// Annotates a tool that only reads, is repeatable, and reaches nothing outside.
fn pure() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).idempotent(true).open_world(false)
}

fn calculate(rules: &Rules) -> Tool {
    let description = format!(
        "Evaluate a mathematical expression with bc, correctly rounded, at arbitrary precision. \
         Operators + - * / ^ % and comparisons; pi, e; sqrt, exp, ln, log10, pow(x, y), sin, cos, \
         tan, fact, gcd, isprime, mean and more (calculate_functions lists them). -2^2 is 4, as bc \
         has it. At most {} s.",
        rules.limits.calculator_timeout_s
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
            "timeout": time_schema(rules)
        },
        "required": ["expression"],
        "additionalProperties": false
    });
    let output = calculator_output("expression", "The expression as given.");
    tool("calculate", "Calculate", description, input, output).annotate(pure())
}

fn calculate_advanced(rules: &Rules) -> Tool {
    let description = format!(
        "Run a bc script of many lines, with variables, functions and control flow. The result \
         is all that it prints, with bc's own rounding: results are cut off, not rounded. At \
         most {} s.",
        rules.limits.calculator_timeout_s
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
            "timeout": time_schema(rules)
        },
        "required": ["script"],
        "additionalProperties": false
    });
    let output = calculator_output("script", "The first 100 characters of the script.");
    tool("calculate_advanced", "Run a bc script", description, input, output).annotate(pure())
}

fn set_precision() -> Tool {
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
    tool("set_precision", "Set precision", description.to_owned(), schema(), schema()).annotate(
        ToolAnnotations::new()
            .read_only(false)
            .destructive(false)
            .idempotent(true)
            .open_world(false),
    )
}

fn sandbox_rules() -> Tool {
    let description = "Show what commands may do here: the profile in force, its limits, the \
        paths and programs in a cell, the network, and how the protections are held.";
    let input = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    tool("sandbox_rules", "Show the sandbox rules", description.to_owned(), input, rules_output())
        .annotate(pure())
}

fn rules_output() -> Value {
    let text = json!({ "type": "string" });
    let texts = json!({ "type": "array", "items": text });
    let count = json!({ "type": "integer", "minimum": 0 });
    let limits = [
        "timeout_s",
        "most_timeout_s",
        "calculator_timeout_s",
        "cpu_s",
        "memory_bytes",
        "processes",
        "open_files",
        "file_size_bytes",
        "workspace_bytes",
        "tmp_bytes",
        "shm_bytes",
        "inodes",
        "command_bytes",
        "stdin_bytes",
        "env_bytes",
    ];
    let mut limit_schema: serde_json::Map<String, Value> =
        limits.iter().map(|name| ((*name).to_owned(), count.clone())).collect();
    limit_schema.insert("output_bytes".to_owned(), count);
    json!({
        "type": "object",
        "properties": {
            "profile": text, "description": text, "tier": text, "memory_held_by": text,
            "network": text, "workspace": text, "read_only_paths": texts, "programs": text,
            "proc": text, "socket_families": texts,
            "env": { "type": "object", "additionalProperties": text },
            "limits": {
                "type": "object", "properties": limit_schema, "required": limits,
                "additionalProperties": false
            },
            "to_change": text
        },
        "required": ["profile", "description", "tier", "memory_held_by", "network", "workspace",
            "read_only_paths", "programs", "proc", "socket_families", "env", "limits", "to_change"],
        "additionalProperties": false
    })
}

#[cfg(test)]
mod tests {
    use policy::Policy;
    use policy::tools::NAMES;
    use profile::Profiles;

    use super::*;

    #[test]
    fn no_shipped_flag_list_has_the_name_of_a_tool() -> Result<(), profile::document::Mistake> {
        let policy = Policy::parse(&policy::shipped(), &Profiles::compiled_in())?;
        assert!(!policy.commands().is_empty());
        let taken = policy.commands().iter().find(|command| NAMES.contains(&command.name.as_str()));
        assert_eq!(taken, None);
        Ok(())
    }
}
