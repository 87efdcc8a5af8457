//! `cofferdam config`: every value in force and where it comes from, and the JSON Schema of each file.

use std::collections::BTreeSet;
use std::path::Path;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::commands::error::{CliError, print_out};
use crate::commands::format::{Rows, pretty};
use crate::commands::serve::exec_options::{self, ExecFlags};
use crate::commands::settings;
use config::schema::ConfigFile;
use config::{Loaded, ValueSource};

/// Arguments as typed.
#[derive(Debug, Clone, Copy, Args)]
pub struct ConfigArguments {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// Subcommand of `config`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ConfigCommand {
    /// Print each value with its source, and the profiles and policies that are loaded
    Show(ShowArguments),
    /// Print the JSON Schema of a kind of file, from which an editor completes and explains keys
    Schema(SchemaArguments),
}

/// Arguments as typed.
#[derive(Debug, Clone, Copy, Args)]
pub struct SchemaArguments {
    /// Kind of file: cofferdam.toml, a file of policies/ or of sandbox-profiles/
    #[arg(default_value = "server")]
    pub file: SchemaFile,
}

/// Kind of file.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum SchemaFile {
    Server,
    Policy,
    Profile,
}

/// Arguments as typed.
#[derive(Debug, Clone, Copy, Args)]
pub struct ShowArguments {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Runs the command: 0, or 125 if the configuration is broken.
pub fn main(typed: &ConfigArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let typed = match typed.command {
        ConfigCommand::Show(typed) => typed,
        ConfigCommand::Schema(SchemaArguments { file }) => {
            let kind = match file {
                SchemaFile::Server => ConfigFile::Server,
                SchemaFile::Policy => ConfigFile::Policy,
                SchemaFile::Profile => ConfigFile::Profile,
            };
            print_out(&kind.json_schema())?;
            return Ok(0);
        }
    };
    let mut loaded = settings::load(config)?.loaded;
    let exec = loaded.config.exec.clone();
    loaded.config.exec = exec_options::in_force(exec, &ExecFlags::default(), std::env::var_os)?;
    print_out(&if typed.json { pretty(&json(&loaded))? } else { text(&loaded) })?;
    Ok(0)
}

/// Returns the files of the rules, each once.
fn policy_files(loaded: &Loaded) -> BTreeSet<&str> {
    loaded.policy.rules().iter().map(|rule| rule.file.as_str()).collect()
}

/// Returns the name of each profile and its file.
fn profile_files(loaded: &Loaded) -> impl Iterator<Item = (&str, &str)> {
    loaded.profiles.iter().map(|profile| {
        let account = loaded.profiles.account(&profile.name);
        let file = account.and_then(|account| account.files.last());
        (profile.name.as_str(), file.map_or("", String::as_str))
    })
}

fn text(loaded: &Loaded) -> String {
    let mut values = Rows::default();
    let mut files = Rows::default();
    let settings = loaded.config.shown();
    let width = settings.iter().map(|setting| setting.value.chars().count()).max().unwrap_or(0);
    for setting in &settings {
        values.add(setting.key, format!("{:<width$}  {}", setting.value, setting.source));
    }
    for (name, file) in profile_files(loaded) {
        files.add(format!("profile {name}"), file);
    }
    for file in policy_files(loaded) {
        files.add("policy", file);
    }
    format!("configuration: {}\n\n{}\n{}", loaded.origin, values.text(), files.text())
}

fn json(loaded: &Loaded) -> Value {
    let source = |source: &ValueSource| match source {
        ValueSource::Default => json!({ "kind": "default" }),
        ValueSource::Given(name) => json!({ "kind": "environment", "name": name }),
        ValueSource::File { file, line } => json!({ "kind": "file", "file": file, "line": line }),
    };
    let settings = loaded.config.shown();
    let values = settings.iter().map(|setting| {
        json!({
            "key": setting.key,
            "value": setting.value,
            "source": source(&setting.source),
        })
    });
    let profiles = profile_files(loaded).map(|(name, file)| json!({ "name": name, "file": file }));
    json!({
        "origin": loaded.origin.to_string(),
        "values": values.collect::<Vec<_>>(),
        "profiles": profiles.collect::<Vec<_>>(),
        "policies": policy_files(loaded),
    })
}
