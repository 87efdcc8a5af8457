//! `cofferdam review`: what cells changed in a layer of a directory, for a person to apply or discard.

mod commit_files;
mod commits;
pub(crate) mod confine;
pub(crate) mod diff;
pub(crate) mod digest;
mod operators_git;
pub(crate) mod print;
mod repository_owners;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use nix::errno::Errno;
use serde_json::Value;

use crate::commands::error::{CliError, print_out};
use crate::commands::format::plain;
use crate::commands::layers::applied::AppliedFiles;
use crate::commands::layers::apply::{Failed, apply};
use crate::commands::layers::change::{Act, Change, Kind};
use crate::commands::layers::changes;
use crate::commands::layers::judge::Judge;
use crate::commands::layers::layer::{self, Layer};
use crate::commands::layers::staging_directory;
use crate::commands::layers::store;
use crate::commands::settings;
use digest::Unlisted;
use model::job::Access;
use model::outcome::in_words;
use supervisor::{FileId, Granted, protect};

/// Exit code if a layer has changes left.
pub(crate) const LEFT: u8 = 1;
/// Maximum number of attempts to list a layer while cells change it.
const MAX_ATTEMPTS: u8 = 5;

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam run --cow . -- make format\n  \
    cofferdam review\n  \
    cofferdam review --diff\n  \
    cofferdam review --apply src README.md\n  \
    cofferdam review --apply --if DIGEST\n  \
    cofferdam review --commits\n  \
    cofferdam review ~/project --discard\n  \
    cofferdam review ~/project --discard --if DIGEST\n\n\
    Exit codes: 0 no changes are left; 1 changes are left, held back or in conflict; 125 failed")]
pub struct ReviewArguments {
    /// The directory that was granted; without it, the current one
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// The layer, if the directory has several
    #[arg(long, value_name = "ID")]
    layer: Option<String>,
    /// List the layers of all directories
    #[arg(long, conflicts_with_all = ["directory", "layer", "diff", "apply", "discard", "commits"])]
    list: bool,
    /// Show the lines that changed
    #[arg(long, conflicts_with_all = ["apply", "discard", "json"])]
    diff: bool,
    /// Write the changes to the directory, or those at these paths in it
    #[arg(long, value_name = "PATH", num_args = 0.., group = "changing")]
    apply: Option<Vec<OsString>>,
    /// Apply or discard only if the changes are still those of the list with this digest
    #[arg(long = "if", value_name = "DIGEST", requires = "changing")]
    only_if: Option<String>,
    /// Remove the layer and all changes in it
    #[arg(long, group = "changing")]
    discard: bool,
    /// Fetch the commits of the layer into refs/cofferdam/ID of your repository, with your git
    #[arg(long, conflicts_with_all = ["diff", "apply", "discard", "json"])]
    commits: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// If the list is too long, list the repositories of the directory alone
    #[arg(long, hide = true, requires = "json")]
    repositories: bool,
}

/// Runs the command.
pub fn main(typed: &ReviewArguments, config: Option<&Path>) -> Result<u8, CliError> {
    if typed.list {
        return list(typed.json);
    }
    let directory = typed.directory.clone().unwrap_or_else(|| PathBuf::from("."));
    let shown = plain(&directory.display().to_string());
    let directory = directory.canonicalize().map_err(|error| {
        CliError::new(format!("review: `{shown}` cannot be used: {}", in_words(&error)))
    })?;
    let Some(mut layer) = choose(&directory, typed.layer.as_deref())? else {
        if let Some([path, ..]) = typed.apply.as_deref() {
            let path = print::quoted(trimmed(path));
            let why = format!("review: no change at `{path}`: no layer has changes to `{shown}`");
            return Err(CliError::new(why)
                .with_hint("DIR comes first: cofferdam review DIR --apply [PATH…]"));
        }
        match typed.json {
            true => print_out("{\"changes\":[]}\n")?,
            false => eprintln!("cofferdam: no layer has changes to `{shown}`"),
        }
        return Ok(0);
    };
    if typed.discard && typed.only_if.is_none() {
        return discard(layer);
    }
    let mut also = settings::load_one(config)?.loaded.config.guard_names.value;
    // The starts may have had another configuration: their names count too.
    also.extend(layer.base.guard_names.iter().cloned());
    if typed.commits {
        let rows = rows(&layer, config)?;
        let host = layer.host().map_err(|errno| replaced(&layer, errno))?;
        let judge = judge(&layer, &host, &also)?;
        return commits::bring_out(&mut layer, &judge, &rows, config);
    }
    let is_changing = typed.apply.is_some() || typed.discard;
    if is_changing {
        layer.lock().map_err(|errno| in_use(&layer, errno))?;
    }
    if typed.apply.is_some() {
        layer.begin_apply().map_err(|errno| failed("the layers cannot be locked", errno))?;
    }
    let host = layer.host().map_err(|errno| replaced(&layer, errno))?;
    // Before the confinement: it may have to be opened to its owner again.
    layer.upper().map_err(|errno| failed("the layer cannot be read", errno))?;
    // Likewise: another process parses the host's configuration for it.
    let judge = judge(&layer, &host, &also)?;
    let output = print::Output::detect(typed.json);
    confine::confine(&layer, &host, is_changing)?;
    if let Some(seen) = typed.only_if.as_deref().filter(|_| typed.discard) {
        return discard_seen(layer, &judge, seen);
    }
    if typed.apply.is_some() {
        // Never continued: its changes were judged before the host changed.
        layer
            .end_interrupted()
            .map_err(|why| failed("an interrupted apply cannot be ended", why))?;
    }
    let Some(paths) = &typed.apply else {
        let unlisted = Unlisted::of(&layer);
        let mut list = listed(&layer, &judge, &[]);
        if list == Err(Errno::EFBIG) && typed.repositories {
            list = listed_at(&layer, &judge, &judge.repositories());
        }
        let listed = list.map_err(not_listed)?;
        let digest = unlisted.digest(&listed);
        match typed.diff {
            true => diff::print(&layer, &host, &listed, digest.as_deref(), &output)?,
            false => output.list(&layer, &listed, digest.as_deref())?,
        }
        return Ok(if listed.is_empty() { 0 } else { LEFT });
    };
    apply_at(layer, &judge, paths, typed.only_if.as_deref(), &output)
}

/// Applies the changes at these paths, and removes the layer if no changes are left.
fn apply_at(
    layer: Layer,
    judge: &Judge,
    paths: &[OsString],
    only_if: Option<&str>,
    output: &print::Output,
) -> Result<u8, CliError> {
    let paths: Vec<&[u8]> = paths.iter().map(|path| trimmed(path)).collect();
    let unlisted = Unlisted::of(&layer);
    // Paths to which the list is limited, if all of it is too long.
    let mut only: &[&[u8]] = &[];
    let mut list = listed(&layer, judge, only);
    if list == Err(Errno::EFBIG) && only_if.is_none() && !paths.is_empty() {
        only = &paths;
        list = listed(&layer, judge, only);
    }
    let list = list.map_err(not_listed)?;
    if let Some(seen) = only_if {
        check_seen(&unlisted, &list, seen, "applied")?;
    }
    let chosen = chosen(&list, &paths)?;
    let finished = apply(&layer, &chosen).map_err(not_applied)?;
    let left = listed(&layer, judge, only).map_err(not_listed)?;
    output.applied(&layer, &finished, &left)?;
    if !only.is_empty() {
        eprintln!("cofferdam: other changes of the layer are not listed: there are too many");
    }
    if !left.is_empty() || !only.is_empty() {
        return Ok(LEFT);
    }
    layer.discard().map_err(|errno| failed("the layer cannot be removed", errno))?;
    Ok(0)
}

/// Checks that a list has the digest of the one that was seen.
///
/// # Errors
/// Another digest, or none, with what was not `done`.
fn check_seen(
    unlisted: &Unlisted,
    list: &[Change],
    seen: &str,
    done: &str,
) -> Result<(), CliError> {
    let now = unlisted.digest(list);
    if now.as_deref() == Some(seen) {
        return Ok(());
    }
    let now = now.map_or(String::new(), |now| format!("; its digest is {now} now"));
    Err(CliError::new(format!("review: nothing was {done}: the list has changed"))
        .with_hint(format!("look at it again{now}")))
}

/// Lists the changes by another review, which is confined while it reads the layer.
fn rows(layer: &Layer, config: Option<&Path>) -> Result<Value, CliError> {
    let failed =
        |reason: String| CliError::new(format!("review: the layer cannot be listed: {reason}"));
    let program = std::env::current_exe().map_err(|error| failed(in_words(&error).to_string()))?;
    let mut command = Command::new(program);
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    command
        .args(["review", "--json", "--repositories", "--layer", &layer.id])
        .arg(layer.base.path());
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| failed(in_words(&error).to_string()))?;
    serde_json::from_slice(&output.stdout).map_err(|_| failed("see the lines above".to_owned()))
}

/// Lists all layers.
fn list(json: bool) -> Result<u8, CliError> {
    let all = store::all().map_err(|errno| failed("the layers cannot be listed", errno))?;
    let output = print::Output::detect(json);
    let mut left = false;
    let mut rows = Vec::new();
    for id in &all.unreadable {
        eprintln!("cofferdam: the layer {id} cannot be read by this version");
    }
    for layer in all.layers {
        let has_changes = layer.has_changes();
        left |= has_changes;
        rows.push((layer, has_changes));
    }
    output.layers(&rows)?;
    Ok(if left { LEFT } else { 0 })
}

/// Chooses the layer of a directory, or of the nearest directory around it that has one.
fn choose(directory: &Path, id: Option<&str>) -> Result<Option<Layer>, CliError> {
    let all = store::all().map_err(|errno| failed("the layers cannot be listed", errno))?;
    let mut layers = all.layers;
    if let Some(id) = id {
        let position = layers.iter().position(|layer| layer.id == id);
        let Some(position) = position else {
            return Err(CliError::new(format!("review: no layer `{id}`"))
                .with_hint("cofferdam review --list shows the layers"));
        };
        return Ok(Some(layers.swap_remove(position)));
    }
    layers.retain(Layer::has_changes);
    for above in directory.ancestors() {
        let of_above = |layer: &Layer| layer.base.path() == above;
        match layers.iter().filter(|layer| of_above(layer)).count() {
            0 => {}
            1 => return Ok(layers.into_iter().find(of_above)),
            _ => {
                let ids = layers.iter().filter(|layer| of_above(layer));
                let ids: Vec<&str> = ids.map(|layer| layer.id.as_str()).collect();
                return Err(CliError::new("review: the directory has several layers")
                    .with_hint(format!("choose one with --layer: {}", ids.join(", "))));
            }
        }
    }
    Ok(None)
}

fn discard(mut layer: Layer) -> Result<u8, CliError> {
    layer.lock().map_err(|errno| in_use(&layer, errno))?;
    // What was written stays, nothing else is written, and no journal keeps the layer.
    if let Err(why) = layer.end_interrupted() {
        eprintln!("cofferdam: an interrupted apply was not ended: {why}");
        if let Some(name) = staging_directory::left(&layer.directory) {
            let directory = plain(&layer.base.path().display().to_string());
            eprintln!(
                "cofferdam: files that it was about to replace may be in `{name}` of {directory}"
            );
        }
    }
    remove(layer)
}

/// Removes a layer, which is locked, if the list of its changes has this digest.
fn discard_seen(layer: Layer, judge: &Judge, seen: &str) -> Result<u8, CliError> {
    // Its list has no digest: some of the changes may be on the host.
    if layer.is_unfinished() {
        let why = "review: nothing was discarded: an apply of the layer was interrupted, \
                   so that some of its changes may be on the host";
        return Err(CliError::new(why).with_hint(
            "--apply judges the rest again and writes it; --discard without --if leaves the rest out",
        ));
    }
    let unlisted = Unlisted::of(&layer);
    let list = listed(&layer, judge, &[]).map_err(not_listed)?;
    check_seen(&unlisted, &list, seen, "discarded")?;
    remove(layer)
}

fn remove(layer: Layer) -> Result<u8, CliError> {
    let id = layer.id.clone();
    layer.discard().map_err(|errno| failed("the layer cannot be removed", errno))?;
    eprintln!("cofferdam: discarded the layer {id}");
    Ok(0)
}

/// Finds what the host obeys in the directory by its own configuration.
pub(crate) fn judge(
    layer: &Layer,
    host: &OwnedFd,
    also: &BTreeSet<String>,
) -> Result<Judge, CliError> {
    let path = layer.base.path();
    let replaced = |errno| replaced(layer, errno);
    let mut granted = Granted::now(path.clone(), path, Access::ReadWrite).map_err(replaced)?;
    // The path may lead to another directory than the one that is held.
    if granted.file != FileId::of_file(host).map_err(replaced)? {
        return Err(replaced(Errno::ESTALE));
    }
    granted.also = also.iter().map(|name| name.clone().into_bytes()).collect();
    let found = protect::scan_whole(&[granted])
        .map_err(|error| CliError::new(format!("review: {error}")))?;
    // A file has no layer, so that there is one list.
    let guarded = found.into_iter().next().unwrap_or_default();
    if let Some(reason) = guarded.unseen() {
        eprintln!("cofferdam: everything is held back, as a part of the directory {reason}");
    }
    Ok(Judge::new(&layer.base.path(), &guarded, also))
}

fn listed(layer: &Layer, judge: &Judge, only: &[&[u8]]) -> Result<Vec<Change>, Errno> {
    let attempt = || {
        let upper = layer.upper()?;
        let applied = AppliedFiles::read(&layer.directory)?;
        changes::list(&upper, &layer.host()?, layer.base.since, judge, &applied, only)
    };
    let mut result = attempt();
    for _ in 1..MAX_ATTEMPTS {
        // Cells that use the layer may remove what is being listed.
        if !matches!(result, Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL)) {
            break;
        }
        result = attempt();
    }
    result
}

/// Lists the changes at paths of the host.
fn listed_at(layer: &Layer, judge: &Judge, paths: &[Vec<u8>]) -> Result<Vec<Change>, Errno> {
    let only: Vec<&[u8]> = paths.iter().map(Vec::as_slice).collect();
    listed(layer, judge, &only)
}

fn not_listed(errno: Errno) -> CliError {
    if errno != Errno::EFBIG {
        return failed("the layer cannot be listed", errno);
    }
    CliError::new(format!(
        "review: the layer has too many changes to list: more than {}, or {} MiB of paths",
        changes::MAX_CHANGES,
        changes::MAX_BYTES >> 20
    ))
    .with_hint("name paths with --apply to write only these; --discard removes the layer")
}

/// Chooses the changes at these paths, with the directories that they need; all without a path.
///
/// # Errors
/// A path without a change.
fn chosen<'c>(changes: &'c [Change], paths: &[&[u8]]) -> Result<Vec<&'c Change>, CliError> {
    for path in paths {
        if !changes.iter().any(|change| is_at_or_below(&change.path, path)) {
            let path = print::quoted(path);
            return Err(CliError::new(format!("review: no change at `{path}`"))
                .with_hint("paths are those of the list, from the top of the directory"));
        }
    }
    let is_wanted = |change: &&Change| {
        paths.is_empty() || paths.iter().any(|path| is_at_or_below(&change.path, path))
    };
    // A directory that is added around a path, and a file of the host in whose place it comes.
    let is_around = |change: &&Change| {
        (change.act == Act::Add) == (change.kind == Kind::Directory)
            && change.act != Act::Change
            && paths.iter().any(|path| is_below(path, &change.path))
    };
    let wanted = changes.iter().filter(|change| is_wanted(change) || is_around(change));
    Ok(wanted.filter(|change| change.is_applicable()).collect())
}

fn trimmed(path: &OsStr) -> &[u8] {
    let mut path = path.as_bytes();
    path = path.strip_prefix(b"./").unwrap_or(path);
    while let Some(shorter) = path.strip_suffix(b"/") {
        path = shorter;
    }
    if path == b"." { b"" } else { path }
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path != directory && is_at_or_below(path, directory)
}

fn is_at_or_below(path: &[u8], directory: &[u8]) -> bool {
    let rest = path.strip_prefix(directory);
    directory.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn failed(what: &str, why: impl std::fmt::Display) -> CliError {
    CliError::new(format!("review: {what}: {why}"))
}

fn not_applied(why: Failed) -> CliError {
    match why {
        Failed::Before(errno) => {
            let less = match [Errno::ENOSPC, Errno::EDQUOT, Errno::EFBIG].contains(&errno) {
                true => "; name paths to apply less at a time, and leave out large files",
                false => "",
            };
            let hint = format!("the layer and the directory are as before{less}");
            failed("nothing was applied", errno).with_hint(hint)
        }
        Failed::During(stopped) => failed("some changes may not have been applied", stopped)
            .with_hint(
                "the next `cofferdam review --apply` judges what is left again, and writes it",
            ),
    }
}

fn in_use(layer: &Layer, errno: Errno) -> CliError {
    match errno == Errno::EBUSY {
        true => CliError::new(format!("review: the layer {} is in use", layer.id))
            .with_hint("end the server or the run that uses it; listing and --diff work meanwhile"),
        false => failed("the layer cannot be locked", errno),
    }
}

fn replaced(layer: &Layer, errno: Errno) -> CliError {
    let path = plain(&layer.base.path().display().to_string());
    CliError::new(format!("review: `{path}` cannot be used: {errno}")).with_hint(format!(
        "the layer belongs to the directory that was there; its files are in {}",
        plain(&layer.path.join(layer::UPPER).display().to_string())
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_chooses_what_is_at_or_below_it() {
        assert!(is_at_or_below(b"a/b", trimmed(OsStr::new("./a/"))));
        assert!(is_at_or_below(b"a", trimmed(OsStr::new("a"))));
        assert!(!is_at_or_below(b"ab", trimmed(OsStr::new("a"))));
        assert!(is_at_or_below(b"ab", trimmed(OsStr::new("."))));
    }
}
