//! Probes of directories that a grant would open: the current one, and those of tool chains.

use std::path::Path;

use super::layer::{ProbeResult, ok, weak};
use crate::commands::grants::repository::RepositoryElsewhere;
use crate::commands::grants::toolchains::FoundToolchains;
use crate::commands::layers::layer::Layer;
use crate::commands::layers::store;
use crate::commands::settings::Settings;
use config::profile::toolchains::ToolchainChoice;
use model::accounts;
use model::job::Access;
use model::units::Size;
use supervisor::{Granted, protect};

/// Lists names in the current directory that would not be fully guarded if it were granted.
pub(super) fn current() -> Option<ProbeResult> {
    let host = std::env::current_dir().ok()?.canonicalize().ok()?;
    let home = accounts::home().and_then(|home| home.canonicalize().ok());
    if host == Path::new("/") || home.as_deref() == Some(host.as_path()) {
        // This directory is never granted.
        return None;
    }
    let granted = Granted::now(host.clone(), host.clone(), Access::ReadWrite).ok()?;
    let guards = protect::scan(&[granted]).ok()?;
    let notes: Vec<String> = guards.iter().flat_map(|guards| guards.notes(&host)).collect();
    (!notes.is_empty()).then(|| {
        let notes = notes.join("; ");
        weak(format!("not guarded in full, where it is granted for writing: {notes}")).with_remedy(
            "put in place of each link what it leads to, grant a smaller directory, or grant it \
                 read-only",
        )
    })
}

/// Reports the part of this directory's repository that lies elsewhere, if there is one.
pub(super) fn repository(settings: &Settings) -> Option<ProbeResult> {
    if !settings.loaded.config.git_elsewhere.value {
        return None;
    }
    let host = std::env::current_dir().ok()?.canonicalize().ok()?;
    let remarks = RepositoryElsewhere::remarks_on(&host);
    let text = remarks.join("; ");
    // Cells do not have all of it where a remark speaks of a grant.
    let is_whole = !text.contains("grant");
    (!remarks.is_empty()).then(|| match is_whole {
        true => ok(text),
        false => weak(text).with_remedy("add the grant to `run` or `serve`, if that is meant"),
    })
}

/// Counts the layers that starts with `--cow` have left, if there are any.
pub(super) fn layers() -> Option<ProbeResult> {
    let all = match store::all() {
        Ok(all) => all,
        Err(errno) => {
            let fault = format!("the directory of the layers cannot be used: {errno}");
            return Some(weak(fault).with_remedy("it must belong to you alone, with mode 0700"));
        }
    };
    if all.layers.is_empty() && all.unreadable.is_empty() {
        return None;
    }
    let count = |is: fn(&Layer) -> bool| all.layers.iter().filter(|layer| is(layer)).count();
    let changed = count(Layer::has_changes);
    let used = count(Layer::is_in_use);
    let text = format!("{} kept, {changed} with changes, {used} in use", all.layers.len());
    let unfinished: Vec<&str> = all
        .layers
        .iter()
        .filter(|layer| !layer.is_in_use() && layer.is_unfinished())
        .map(|layer| layer.id.as_str())
        .collect();
    if !unfinished.is_empty() {
        let ids = unfinished.join(", ");
        return Some(weak(format!("{text}; an apply was interrupted: {ids}")).with_remedy(
            "`cofferdam review --layer ID --apply` writes the rest, `--discard` removes the layer",
        ));
    }
    if !all.unreadable.is_empty() {
        let names = all.unreadable.join(", ");
        return Some(
            weak(format!("{text}; not of this version: {names}"))
                .with_remedy("review them with the version that made them, or remove them by hand"),
        );
    }
    Some(ok(format!("{text}; `cofferdam review --list` shows them")))
}

/// Lists the tool chains that cells with a workspace have.
pub(super) fn toolchains(settings: &Settings) -> ProbeResult {
    let config = &settings.loaded.config;
    let choice = &config.toolchains.value;
    let cache = config.cache.value;
    let found = FoundToolchains::detect(Some(choice), choice, &[]);
    let mut how = match (choice, found.names.is_empty()) {
        (ToolchainChoice::None, _) => "none, as `[toolchains] grant` says".to_owned(),
        (_, true) => "none found outside of /usr".to_owned(),
        (_, false) => format!("read-only, with a workspace: {}", found.names.join(", ")),
    };
    for [path, secret] in found.shown_withheld() {
        how += &format!("; not {path}, since {secret} may hold a credential");
    }
    if cache > 0 && *choice != ToolchainChoice::None {
        how += &format!("; a cache of {} for each workspace", Size(cache));
    }
    ok(how)
}
