//! `cofferdam profile`: lists profiles, shows the grants of one with their reasons, and checks
//! files.

mod view;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::commands::error::{CliError, print_out};
use crate::commands::format::{Rows, plain, pretty};
use crate::commands::learn::{self, LearnArguments};
use crate::commands::{check_files, settings};
use config::HostContext;
use config::profile::Profiles;
use model::job::ProfileName;
use model::profile::Profile;
use view::View;

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
pub struct ProfileArguments {
    #[command(subcommand)]
    pub command: ProfileCommand,
}

/// Subcommand of `profile`.
#[derive(Debug, Clone, Subcommand)]
pub enum ProfileCommand {
    /// List the profiles that are loaded
    List(ListArguments),
    /// Show everything that a profile grants, refuses and requires, and why
    Show(ShowArguments),
    /// Check files, without putting them in force
    Check(CheckArguments),
    /// Run a command and print, as TOML, the system calls that its profile refused it
    Learn(LearnArguments),
}

/// Arguments as typed.
#[derive(Debug, Clone, Copy, Args)]
pub struct ListArguments {
    /// Print one JSON array
    #[arg(long)]
    pub json: bool,
}

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  cofferdam profile show bash")]
pub struct ShowArguments {
    /// The profile
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  cofferdam profile check sandbox-profiles/mine.toml\n\n\
    Exit codes: 0 every file is valid; 125 a mistake, reported as file:line:column")]
pub struct CheckArguments {
    /// Files to check; they may extend and replace the profiles in force
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// Runs the command.
pub fn main(typed: &ProfileArguments, config: Option<&Path>) -> Result<u8, CliError> {
    match &typed.command {
        ProfileCommand::List(typed) => list(*typed, config),
        ProfileCommand::Show(typed) => show(typed, config),
        ProfileCommand::Check(typed) => check(typed, config),
        ProfileCommand::Learn(typed) => learn::main(typed, config),
    }
}

fn list(typed: ListArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let profiles = settings::load(config)?.loaded.profiles;
    if typed.json {
        let listed = profiles.iter().map(|profile| {
            json!({
                "name": profile.name.as_str(),
                "description": profile.description,
                "file": file(&profiles, profile),
            })
        });
        print_out(&pretty(&listed.collect::<Vec<Value>>())?)?;
        return Ok(0);
    }
    let mut rows = Rows::default();
    for profile in profiles.iter() {
        rows.add(profile.name.as_str(), &profile.description);
        rows.add("", file(&profiles, profile).unwrap_or(""));
    }
    print_out(&rows.text())?;
    Ok(0)
}

/// Returns the file that defines the profile.
fn file<'p>(profiles: &'p Profiles, profile: &Profile) -> Option<&'p str> {
    profiles.account(&profile.name)?.files.last().map(String::as_str)
}

fn show(typed: &ShowArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let profiles = settings::load(config)?.loaded.profiles;
    let name = ProfileName::new(&typed.name);
    let pair = name.and_then(|name| Some((profiles.get(&name)?, profiles.account(&name)?)));
    let (profile, account) = pair.ok_or_else(|| unknown(&profiles, &typed.name))?;
    let view = View::new(profile, account);
    print_out(&if typed.json { pretty(&view.json())? } else { view.text() })?;
    Ok(0)
}

fn unknown(profiles: &Profiles, name: &str) -> CliError {
    let error = CliError::new(format!("there is no profile `{}`", name.escape_default()));
    match profiles.nearest(name) {
        Some(near) => error.with_hint(format!("did you mean `{near}`?")),
        None => error.with_hint("`cofferdam profile list` shows those that are loaded"),
    }
}

/// Checks that the cells of root can reach the paths of a profile: they run as another user, and only its owner can enter
/// a directory such as `/root`.
fn check_reach(profile: &Profile) -> Result<(), CliError> {
    let is_root = nix::unistd::geteuid().is_root();
    for path in profile.paths.iter().filter(|_| is_root) {
        if let Some(closed) = closed_directory(&path.host) {
            let host = path.host.display();
            let closed = closed.display();
            let name = &profile.name;
            return Err(CliError::new(format!(
                "profile `{name}`: {host} cannot be put in a cell: root's cells run as another user, and {closed} lets only its owner in"
            ))
            .with_hint(format!("grant it for a call instead (`--ro {host}`), or move it to where others may go")));
        }
    }
    Ok(())
}

/// Returns the first directory in a path that others cannot enter.
fn closed_directory(path: &Path) -> Option<PathBuf> {
    // A link may lead into such a directory.
    let path = path.canonicalize().ok()?;
    let mut directories: Vec<&Path> = path.ancestors().skip(1).collect();
    directories.reverse();
    let is_closed = |directory: &&&Path| {
        directory.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o001 == 0)
    };
    directories.iter().find(is_closed).map(|directory| directory.to_path_buf())
}

fn check(typed: &CheckArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let sources = config::sources(config, &HostContext::of_this_process())
        .map_err(|error| CliError::new(error.to_string()))?;
    let documents = check_files::documents(&typed.files)?;
    let shipped = config::profile::shipped();
    let profiles = check_files::together(&documents, |files| {
        Profiles::stacked(&[&shipped, &sources.profiles, files])
    })?;
    let given = |file: &str| documents.iter().any(|document| document.file == file);
    let mut text = String::new();
    for profile in profiles.iter().filter(|p| file(&profiles, p).is_some_and(given)) {
        check_reach(profile)?;
        let file = file(&profiles, profile).unwrap_or("");
        let description = plain(&profile.description);
        text.push_str(&format!("{}: profile `{}`: {description}\n", plain(file), profile.name));
    }
    for document in &documents {
        let used = |profile: &Profile| file(&profiles, profile) == Some(document.file.as_str());
        if !profiles.iter().any(used) {
            let note = "it can be extended, but not used, for nothing in it grants `exec`";
            text.push_str(&format!("{}: {note}\n", plain(&document.file)));
        }
    }
    print_out(&text)?;
    Ok(0)
}
