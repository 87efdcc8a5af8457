//! `project doctor`: shows what a project has, lacks and may do, and runs its health checks if hooks are allowed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::{hooks, repair};
use crate::commands::error::{CliError, print_out};
use crate::commands::format::{plain, pretty};
use crate::commands::settings;
use model::profile::PATH;
use projects::ProjectSettings;
use projects::hooks::{HEALTH, POLICY};

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  cofferdam project doctor ./my-tools --project-hooks\n\n\
    Exit codes: 0 ready; 1 with advice or something absent; 2 it would not be served; 125 it cannot be read")]
pub(super) struct DoctorArguments {
    /// The project's directory
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Run its health checks too, in a cell without a network
    #[arg(long)]
    project_hooks: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    Good,
    Advice,
    Bad,
}

impl Weight {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Advice => "note",
            Self::Bad => "bad",
        }
    }
}

/// Prints the findings: 0, 1 or 2 by the worst of them.
pub(super) fn main(typed: &DoctorArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let directory = &typed.directory;
    let project = super::read(directory)?;
    let settings = super::settings(&settings::load(config)?.loaded.config.project);
    let has_hooks =
        typed.project_hooks || settings.as_ref().is_ok_and(|settings| settings.has_hooks);
    let mut findings = vec![(
        Weight::Good,
        format!(
            "{} tools, {} resources, {} templates, {} prompts, {} completions",
            project.tools.len(),
            project.resources.len(),
            project.templates.len(),
            project.prompts.len(),
            project.completions.len()
        ),
    )];
    match &settings {
        Ok(settings) => findings.extend(settings_findings(settings)),
        Err(error) => findings.push((Weight::Bad, error.text())),
    }
    let mistakes = project.mistakes.iter().map(ToString::to_string);
    let advice = mistakes.chain(repair::advice(&project));
    findings.extend(advice.map(|text| (Weight::Advice, text)));
    for hook in &project.hooks {
        let use_of_it = if has_hooks { "is run" } else { "is not run without --project-hooks" };
        let refuses = !has_hooks && *hook == POLICY;
        let (weight, more) = match (has_hooks, refuses) {
            (true, _) => (Weight::Good, ""),
            (false, true) => (Weight::Bad, ": every call is refused"),
            (false, false) => (Weight::Advice, ""),
        };
        findings.push((weight, format!("{hook} {use_of_it}{more}")));
    }
    if has_hooks && project.hooks.contains(&HEALTH) {
        let health = hooks::run(directory, &[HEALTH], &project.layout, config)?.health;
        findings.extend(health.into_iter().map(|(program, is_present)| match is_present {
            true => (Weight::Good, format!("{program} is there")),
            false => (Weight::Bad, format!("{program} is absent in the cell")),
        }));
    }
    findings.push(applet());
    print(&findings, typed.json)
}

/// Lists settings that were changed to allowed values, and the hosts of downloads.
fn settings_findings(settings: &ProjectSettings) -> Vec<(Weight, String)> {
    let changed = settings.changes.iter().map(|text| (Weight::Advice, text.clone()));
    let hosts = settings.hosts.join(", ");
    let hosts = (!hosts.is_empty()).then(|| (Weight::Good, format!("downloads reach {hosts}")));
    let has = |program: &str| {
        PATH.split(':').any(|directory| Path::new(directory).join(program).exists())
    };
    let absent = ["curl", "git"].into_iter().filter(|program| !has(program));
    let absent = absent
        .map(|program| (Weight::Advice, format!("{program} is not there, which downloads use")));
    let absent: Vec<_> = absent.filter(|_| hosts.is_some()).collect();
    changed.chain(hosts).chain(absent).collect()
}

/// Checks that cells with other ids than the operator's can run this program as their jq.
fn applet() -> (Weight, String) {
    let metadata = std::env::current_exe().and_then(|program| program.metadata());
    match metadata.map(|metadata| metadata.permissions().mode()) {
        Ok(mode) if mode & 0o005 == 0o005 => (Weight::Good, "scripts have jq".to_owned()),
        Ok(_) | Err(_) => (
            Weight::Bad,
            "the file of cofferdam is not for all to run: scripts have no jq (chmod a+rx)"
                .to_owned(),
        ),
    }
}

/// Prints the findings. Returns the exit code.
fn print(findings: &[(Weight, String)], is_json: bool) -> Result<u8, CliError> {
    let worst = findings.iter().map(|(weight, _)| *weight).max().unwrap_or(Weight::Good);
    let lines =
        findings.iter().map(|(weight, text)| format!("{:5} {}\n", weight.word(), plain(text)));
    let list =
        findings.iter().map(|(weight, text)| json!({ "state": weight.word(), "what": text }));
    print_out(&match is_json {
        true => pretty(&json!({ "state": worst.word(), "findings": list.collect::<Vec<_>>() }))?,
        false => lines.collect(),
    })?;
    Ok(match worst {
        Weight::Good => 0,
        Weight::Advice => 1,
        Weight::Bad => 2,
    })
}
