//! `cofferdam policy`: checks rules against their examples, explains decisions for a tool, and makes tools.

pub(crate) mod agreement;
mod help_text;
mod new_tool;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::commands::error::{CliError, print_out};
use crate::commands::format::{Rows, limits, limits_json, plain, pretty};
use crate::commands::{check_files, settings};
use config::policy::pattern::LazyRegex;
use config::policy::tools;
use config::policy::{Denial, Effect, Policy, Principal, Rule, Terms};
use config::profile::Profiles;
use config::{HostContext, Loaded};
use model::call::Asked;
use model::job::ProfileName;
use model::nearest::nearest;
use model::units::{Size, Time};

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
pub struct PolicyArguments {
    #[command(subcommand)]
    pub command: PolicyCommand,
}

/// Subcommand of `policy`.
#[derive(Debug, Clone, Subcommand)]
pub enum PolicyCommand {
    /// Check the policies in force, or these files, and print each rule with its examples
    Check(CheckArguments),
    /// Show the decision for calls of a tool, with its rule and the reason
    Explain(ExplainArguments),
    /// Print a policy file with a tool for a program, made from its own help, to review and complete
    NewTool(new_tool::NewToolArguments),
}

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam policy check\n  \
    cofferdam policy check policies/team.toml\n\n\
    Exit codes: 0 every file is valid; 125 a mistake, reported as file:line:column")]
pub struct CheckArguments {
    /// Check these together, and not the policies in force
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  cofferdam policy explain bash")]
pub struct ExplainArguments {
    /// The tool, as callers name it
    #[arg(value_name = "TOOL")]
    pub tool: String,
    /// Show the decision for this client: one of `[[http.tokens]]`, http, or local
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub client: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn main(typed: &PolicyArguments, config: Option<&Path>) -> Result<u8, CliError> {
    match &typed.command {
        PolicyCommand::Check(typed) => check(typed, config),
        PolicyCommand::Explain(typed) => explain(typed, config),
        PolicyCommand::NewTool(typed) => new_tool::main(typed, config),
    }
}

fn check(typed: &CheckArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let sources = config::sources(config, &HostContext::of_this_process())
        .map_err(|error| CliError::new(error.to_string()))?;
    let profiles = Profiles::parse(&config::profile::shipped(), &sources.profiles)
        .map_err(|mistake| CliError::new(mistake.to_string()))?;
    let documents = match typed.files.as_slice() {
        [] if sources.policies.is_empty() => config::policy::shipped(),
        [] => sources.policies,
        files => check_files::documents(files)?,
    };
    let policy = check_files::together(&documents, |files| Policy::parse(files, &profiles))?;
    let mut text: String = policy.rules().iter().map(rule_text).collect();
    let rules = policy.rules().len();
    let files = documents.len();
    text.push_str(&format!(
        "{}, {}: every example holds\n",
        count(rules, "rule"),
        count(files, "file")
    ));
    if rules == 0 {
        text.push_str("no rule: every tool is denied\n");
    }
    print_out(&text)?;
    Ok(0)
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn rule_text(rule: &Rule) -> String {
    let mut rows = Rows::default();
    let tools = rule.tools.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let lowered_limits = match &rule.effect {
        Effect::Allow { profile, choice, limits, egress } => {
            rows.add("  allows", format!("{tools} under profile `{profile}`"));
            if !choice.is_empty() {
                rows.add("  choice", names(choice.iter()));
            }
            if let Some(ids) = egress {
                let ids = ids.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                rows.add("  egress", if ids.is_empty() { "none" } else { &ids });
            }
            lowered(limits)
        }
        Effect::Deny if rule.commands.is_empty() => {
            rows.add("  denies", tools);
            String::new()
        }
        Effect::Deny => {
            rows.add("  about", tools);
            String::new()
        }
    };
    if !rule.commands.is_empty() {
        let expressions = rule.commands.iter().map(LazyRegex::text).collect::<Vec<_>>();
        rows.add("  denies", format!("commands that match {}", expressions.join(", ")));
    }
    if !rule.clients.is_empty() {
        rows.add("  of", rule.clients.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
    }
    rows.add("  why", &rule.why);
    if !lowered_limits.is_empty() {
        rows.add("  lowers", lowered_limits);
    }
    rows.add("  matches", rule.matches.join(", "));
    if !rule.not_matches.is_empty() {
        rows.add("  matches not", rule.not_matches.join(", "));
    }
    format!("{}:{}: rule `{}`\n{}", plain(&rule.file), rule.line, rule.id, rows.text())
}

/// Lists the profiles that a call may name.
fn names<'p>(profiles: impl Iterator<Item = &'p ProfileName>) -> String {
    profiles.map(ProfileName::as_str).collect::<Vec<_>>().join(", ")
}

/// Lists the limits that a rule lowers.
fn lowered(limits: &Asked) -> String {
    let Asked { wall, memory, processes, output } = *limits;
    let listed = [
        wall.map(|time| format!("timeout to {}", Time(time))),
        memory.map(|bytes| format!("memory to {}", Size(bytes))),
        processes.map(|count| format!("processes to {count}")),
        output.map(|bytes| format!("output to {}", Size(bytes))),
    ];
    listed.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn explain(typed: &ExplainArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let loaded = settings::load(config)?.loaded;
    agreement::check_client(&loaded, &typed.client, "--client")?;
    let tool = typed.tool.as_str();
    let rules = loaded.policy.rules();
    let ruled: BTreeSet<&str> =
        rules.iter().flat_map(|rule| rule.tools.iter()).map(String::as_str).collect();
    if !tools::NAMES.contains(&tool) && !ruled.contains(tool) {
        let error = CliError::new(format!("there is no tool `{}`", tool.escape_default()));
        let names = tools::NAMES.iter().copied().chain(ruled);
        return Err(match nearest(tool, names) {
            Some(near) => error.with_hint(format!("did you mean `{near}`?")),
            None => error.with_hint(format!("the tools are {}", tools::NAMES.join(", "))),
        });
    }
    let policy = loaded.policy.for_client(&Principal::named(typed.client.as_str()));
    let loaded = Loaded { policy, ..loaded };
    let explained = explained(&loaded, tool);
    print_out(&if typed.json { pretty(&explained.json(tool))? } else { explained.text(tool) })?;
    Ok(0)
}

/// Decision for the calls of one tool.
enum Explained<'p> {
    Allowed {
        terms: Terms<'p>,
        rule: Option<&'p Rule>,
    },
    Denied {
        denial: Denial,
        rule: Option<&'p Rule>,
    },
    /// The tool runs nothing, so no rule applies.
    NoRule,
}

fn explained<'p>(loaded: &'p Loaded, tool: &str) -> Explained<'p> {
    let rule = |id: &str| loaded.policy.rules().iter().find(|rule| rule.id == id);
    if !tools::asks_a_rule(tool) {
        return Explained::NoRule;
    }
    match loaded.policy.terms(tool, &loaded.profiles) {
        Ok(terms) => Explained::Allowed { rule: rule(terms.rule), terms },
        Err(denial) => Explained::Denied { rule: rule(&denial.rule), denial },
    }
}

/// Reason shown for a tool to which no rule applies.
const NO_RULE: &str = "it runs nothing, so no rule is asked";

impl Explained<'_> {
    fn text(&self, tool: &str) -> String {
        let mut rows = Rows::default();
        rows.add("tool", tool);
        let named = |id: &str, rule: Option<&Rule>| match rule {
            Some(rule) => format!("{id} ({}:{})", rule.file, rule.line),
            None => id.to_owned(),
        };
        match self {
            Self::Allowed { terms, rule } => {
                rows.add("decision", "allowed");
                rows.add("rule", named(terms.rule, *rule));
                rows.add("why", rule.map_or("", |rule| &rule.why));
                let profile = terms.profile;
                rows.add("profile", format!("{}: {}", profile.name, profile.description));
                if !terms.choice.is_empty() {
                    rows.add("choice", names(terms.choice.iter().copied()));
                }
                for (at, (key, value)) in limits(&terms.limits).into_iter().enumerate() {
                    rows.add(if at == 0 { "limits" } else { "" }, format!("{key} {value}"));
                }
            }
            Self::Denied { denial, rule } => {
                rows.add("decision", "denied");
                rows.add("rule", named(&denial.rule, *rule));
                rows.add("why", &denial.why);
                rows.add("hint", &denial.hint);
            }
            Self::NoRule => {
                rows.add("decision", "allowed");
                rows.add("why", NO_RULE);
            }
        }
        rows.text()
    }

    fn json(&self, tool: &str) -> Value {
        let location =
            |rule: Option<&Rule>| rule.map(|rule| json!({ "file": rule.file, "line": rule.line }));
        match self {
            Self::Allowed { terms, rule } => json!({
                "tool": tool,
                "decision": "allowed",
                "rule": terms.rule,
                "place": location(*rule),
                "why": rule.map(|rule| &rule.why),
                "profile": terms.profile.name.as_str(),
                "choice": terms.choice,
                "limits": limits_json(&terms.limits),
            }),
            Self::Denied { denial, rule } => json!({
                "tool": tool,
                "decision": "denied",
                "rule": denial.rule,
                "place": location(*rule),
                "why": denial.why,
                "hint": denial.hint,
            }),
            Self::NoRule => json!({ "tool": tool, "decision": "allowed", "why": NO_RULE }),
        }
    }
}
