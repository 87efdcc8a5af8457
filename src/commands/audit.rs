//! `cofferdam audit`: checks the audit log's chain, and shows its lines.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::commands::error::{CliError, print_out};
use crate::commands::format::acts;
use crate::commands::settings;
use model::clock;
use model::units::{InvalidUnit, Time};
use service::audit::read::{self, Unverified};

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam audit verify\n  \
    cofferdam audit show --tool bash --since 30m\n\n\
    Exit codes: 0 done, and the log is whole; 1 its chain is broken; 125 it cannot be read")]
pub struct AuditArguments {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum AuditCommand {
    /// Check the chain of a log and its rotated files: 0 if it is whole, 1 if not
    Verify {
        /// The log; without it, the one that is configured
        file: Option<PathBuf>,
    },
    /// Show the lines of a log and its rotated files
    Show {
        /// The log; without it, the one that is configured
        file: Option<PathBuf>,
        /// Only lines of this tool
        #[arg(long)]
        tool: Option<String>,
        /// Only lines since a time, such as 2026-01-31T12:00, or of the last 30m
        #[arg(long, value_name = "TIME", value_parser = since)]
        since: Option<String>,
        /// The lines as they are
        #[arg(long)]
        json: bool,
    },
}

fn since(text: &str) -> Result<String, String> {
    if text.contains('-') {
        return Ok(text.to_owned());
    }
    let time: Time = text.parse().map_err(|error: InvalidUnit| error.to_string())?;
    Ok(clock::ago(time.0))
}

/// Runs the command.
pub fn main(typed: &AuditArguments, config: Option<&Path>) -> Result<u8, CliError> {
    match &typed.command {
        AuditCommand::Verify { file } => verify(&log(file.as_deref(), config)?),
        AuditCommand::Show { file, tool, since, json } => {
            let mut text = String::new();
            let wanted = |fields: &Value| {
                let field = |name| fields.get(name).and_then(Value::as_str);
                tool.as_deref().is_none_or(|tool| field("tool") == Some(tool))
                    && since.as_deref().is_none_or(|since| field("time") >= Some(since))
            };
            read::records(&log(file.as_deref(), config)?, |line, fields| {
                if wanted(fields) {
                    text.push_str(&if *json { line.to_owned() } else { shown(fields) });
                    text.push('\n');
                }
            })
            .map_err(|error| CliError::new(format!("audit: {error}")))?;
            print_out(&text)?;
            Ok(0)
        }
    }
}

fn log(file: Option<&Path>, config: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(file) = file {
        return Ok(file.to_owned());
    }
    let settings = settings::load(config)?;
    settings.loaded.config.audit_file.value.clone().ok_or_else(|| {
        CliError::new("audit: no log is configured")
            .with_hint("name the file, or set `[audit] file`")
    })
}

fn verify(file: &Path) -> Result<u8, CliError> {
    match read::verify(file) {
        Ok(chain) => {
            let gone = if chain.first > 1 { ", older lines are gone" } else { "" };
            print_out(&format!(
                "whole: {} lines in {} files, {} to {}{gone}\nlast hash: {}\n",
                chain.lines, chain.files, chain.first, chain.last.seq, chain.last.hash
            ))?;
            Ok(0)
        }
        Err(Unverified::Broken(broken)) => {
            print_out(&format!("broken: {broken}\n"))?;
            Ok(1)
        }
        Err(error @ Unverified::Read { .. }) => Err(CliError::new(format!("audit: {error}"))),
    }
}

/// Formats a line for people. Quoted text was escaped when it was written, but a file may have been
/// changed.
fn shown(fields: &Value) -> String {
    let words = ["time", "event", "tool", "job", "decision", "outcome", "rule", "profile", "why"]
        .into_iter()
        .filter_map(|name| fields.get(name)?.as_str())
        .chain(fields.pointer("/command/start").and_then(Value::as_str));
    let numbers = ["exit_code", "signal", "limit", "duration_ms", "lost"]
        .into_iter()
        .filter_map(|name| Some(format!("{name}={}", fields.get(name)?)));
    let words = words.map(|word| word.chars().flat_map(plain).collect::<String>());
    words.chain(numbers).collect::<Vec<_>>().join("  ")
}

/// Escapes a character that a terminal acts on or that hides text; returns any other unchanged.
fn plain(c: char) -> Vec<char> {
    if acts(c) { c.escape_default().collect() } else { vec![c] }
}
