//! What the operator grants to cells: paths, tool chains, a cache, sockets and an identity for commits.
//!
//! [`request`] has what is asked for, as typed and as checked. `GrantPlan::resolve` looks it up on the host and puts
//! it in force, for every command that grants something.

pub(crate) mod cache;
pub(crate) mod cache_upkeep;
pub(crate) mod config_paths;
mod git_identity;
mod git_index;
mod held_paths;
pub(crate) mod host_programs;
mod lookup;
pub(crate) mod repository;
pub mod request;
pub(crate) mod sockets;
pub(crate) mod tier;
pub(crate) mod toolchains;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::commands::error::CliError;
use crate::commands::layer_reader::ServedLayer;
use crate::commands::layers::size::LayerLimits;
use crate::commands::layers::store;
use crate::commands::settings::Settings;
use cache::WorkspaceCache;
use config::profile::toolchains::ToolchainChoice;
use model::egress::Egress;
use model::job::{Access, GrantId, Workspace};
use model::outcome::in_words;
use model::profile::{HostPath, PATH, PathKind, Presence, SCRIPT_PROGRAMS};
use model::receipt::Tier;
use repository::RepositoryElsewhere;
use request::{GrantRequest, GrantsFor};
use supervisor::{FileId, Granted, LayerDirectory, PrivateCells};
use toolchains::FoundToolchains;

/// Grants in force: every path was looked up, and every socket is open.
#[derive(Debug)]
pub struct GrantPlan {
    /// Configuration with the grants, for the supervisor and the front end.
    pub settings: Settings,
    /// Workspace of each call.
    pub workspace: Workspace,
}

impl GrantPlan {
    /// Looks up what is requested, and adds it to the configuration. Adds too what is granted without a flag, except
    /// for a call whose refusals are learnt: tool chains, the workspace's cache, the operator's identity for commits and
    /// configured sockets.
    ///
    /// # Errors
    /// A path, a socket or a profile that is unknown or that is never granted.
    pub(super) fn resolve(
        mut request: GrantRequest,
        mut settings: Settings,
    ) -> Result<Self, CliError> {
        let typed = request.mounts.len();
        let has_defaults = !matches!(request.cells, GrantsFor::LearningCall(_));
        // Without namespaces there are no mounts at other paths.
        let has_mounts = has_defaults && settings.tier == Tier::Full;
        let mut elsewhere = RepositoryElsewhere::default();
        // Scripts of a project compare their paths with `/workspace`.
        if has_mounts && !request.has_scripts && settings.loaded.config.git_elsewhere.value {
            elsewhere = RepositoryElsewhere::find(&mut request.mounts).if_grantable(&settings);
            if request.is_frozen {
                elsewhere.mounts.iter_mut().for_each(|mount| mount.access = Access::ReadOnly);
            }
            request.mounts.extend(elsewhere.mounts.iter().cloned());
        }
        for (name, value) in elsewhere.variables() {
            request.additions.env.entry(name.to_owned()).or_insert(value);
        }
        if has_mounts {
            add_toolchains(&mut request, &mut settings)?;
        }
        check_profile(&request, &settings)?;
        settings.add(&request.additions);
        if let Some(name) = request.cells.profile() {
            settings.profiles = vec![settings.profile(name)?.clone()];
        }
        if request.is_frozen {
            settings.profiles.iter_mut().for_each(|profile| profile.egress = Egress::default());
        }
        let mut workspace = Workspace::Fresh;
        if !request.mounts.is_empty() {
            let is_server = request.cells == GrantsFor::Server;
            let mut granted = lookup::grant_all(&settings, &request.mounts, is_server)?;
            let is_workspace = |granted: &Granted| granted.cell == Path::new(request::WORKSPACE);
            let is_readable =
                |granted: &&Granted| granted.access == Access::ReadOnly && !is_workspace(granted);
            let readable = granted.iter().take(typed).filter(is_readable);
            settings.readable = readable.map(|granted| granted.cell.clone()).collect();
            match is_server && !granted.iter().any(is_workspace) {
                true => settings.private_cells = PrivateCells::WithFirstSet,
                false => workspace = Workspace::Granted(GrantId(0)),
            }
            let config = &settings.loaded.config;
            let limits =
                LayerLimits { bytes: config.layer_bytes.value, files: config.layer_files.value };
            let keep = config.workspace_keep.value;
            let layer = take_layers(&mut granted, &request, limits, keep)?;
            settings.served_layer = layer.filter(|_| is_server);
            elsewhere.place(&mut granted)?;
            settings.workspace_path = other_workspace_path(&granted);
            settings.granted = vec![granted];
        }
        if request.has_scripts {
            add_script_sdk(&mut settings)?;
        }
        if has_defaults {
            git_identity::grant(&mut settings, elsewhere.git.as_deref());
            settings.grant_sockets(&request.sockets)?;
        }
        for remark in &elsewhere.remarks {
            eprintln!("cofferdam: {remark}");
        }
        Ok(Self { settings, workspace })
    }

    /// Grants the directories of a project once more, read-only: for tools whose metadata declares that they change no
    /// file.
    pub(super) fn add_read_only_tools(&mut self) {
        let granted = &mut self.settings.granted;
        let is_writable = |granted: &Granted| granted.access != Access::ReadOnly;
        let Some(grants) = granted.first().filter(|grants| grants.iter().any(is_writable)) else {
            return;
        };
        let read_only = |granted: &Granted| Granted { access: Access::ReadOnly, ..granted.clone() };
        let grants = grants.iter().map(read_only).collect();
        if let Ok(number) = u16::try_from(granted.len()) {
            self.settings.read_only = Some(Workspace::Granted(GrantId(number)));
            granted.push(grants);
        }
    }
}

/// Returns the path in addition to `/workspace` at which cells have the workspace.
fn other_workspace_path(granted: &[Granted]) -> Option<PathBuf> {
    let linked = granted.iter().find(|granted| granted.is_linked);
    let workspace = granted.iter().find(|granted| granted.cell == Path::new(request::WORKSPACE));
    let is_same = |granted: &&Granted| {
        granted.cell == granted.host && workspace.is_some_and(|one| one.host == granted.host)
    };
    let other = linked.or_else(|| granted.iter().find(is_same))?;
    Some(other.cell.clone())
}

/// Takes a layer for each directory whose changes are kept apart. A directory that is granted at two paths has one.
/// Then removes other layers that were not used for `keep` days. Returns the layer of the workspace.
///
/// # Errors
/// A directory that cannot have a layer, or a layer that is above its limits.
fn take_layers(
    granted: &mut [Granted],
    request: &GrantRequest,
    limits: LayerLimits,
    keep: Option<u32>,
) -> Result<Option<ServedLayer>, CliError> {
    let mut of_workspace = None;
    let mut taken: BTreeMap<PathBuf, LayerDirectory> = BTreeMap::new();
    for granted in granted.iter_mut().filter(|granted| granted.access == Access::Layer) {
        if let Some(layer) = taken.get(&granted.host) {
            granted.layer = Some(layer.clone());
            continue;
        }
        let layer = store::take(&granted.host, request.layer.as_deref(), &granted.also, limits)?;
        let file = FileId::of_file(&layer.directory).map_err(|errno| {
            CliError::new(format!("--cow: the layer cannot be looked at: {errno}"))
        })?;
        if granted.cell == Path::new(request::WORKSPACE) {
            of_workspace = Some(ServedLayer::of(&layer, file));
        }
        let is_frozen = request.is_frozen;
        let directory = LayerDirectory { host: layer.path, file, is_frozen };
        taken.insert(granted.host.clone(), directory.clone());
        granted.layer = Some(directory);
        // Never dropped: the filter of the confined process refuses flock(2), by which a drop unlocks.
        std::mem::forget(layer.lock);
    }
    if let Some(days) = keep.filter(|_| !taken.is_empty()) {
        store::remove_unused(days);
    }
    Ok(of_workspace)
}

/// Checks that the profile of the only call takes grants.
///
/// # Errors
/// An unknown profile, or one without a workspace, for which something is granted.
fn check_profile(request: &GrantRequest, settings: &Settings) -> Result<(), CliError> {
    let Some(name) = request.cells.profile() else { return Ok(()) };
    if settings.profile(name)?.workspace {
        return Ok(());
    }
    let error = |flag: &str| CliError::new(format!("{flag}: profile `{name}` has no workspace"));
    if !request.additions.egress.is_empty() {
        return Err(error("--egress")
            .with_hint("it is for programs of a shell: write `[[egress]]` in the profile"));
    }
    if !request.mounts.is_empty() {
        return Err(error("--ro, --rw").with_hint("use --profile bash, or one with a `workspace`"));
    }
    Ok(())
}

/// Adds the tool chains that are found, and the cache of a workspace whose cells have them. Variables that were typed are
/// kept.
///
/// # Errors
/// Tool chains of a server that has no workspace.
fn add_toolchains(request: &mut GrantRequest, settings: &mut Settings) -> Result<(), CliError> {
    let config = &settings.loaded.config;
    let configured = &config.toolchains.value;
    let typed = request.toolchains.as_ref();
    let found = FoundToolchains::detect(typed, configured, &request.mounts);
    let is_server = request.cells == GrantsFor::Server;
    if is_server && !found.names.is_empty() && request.mounts.is_empty() {
        return Err(CliError::new("--toolchains: no directory is granted as the workspace")
            .with_hint("name one too: --workspace DIR"));
    }
    found.print_withheld();
    request.mounts.extend(found.mounts);
    let additions = &mut request.additions;
    additions.downloaded = found.downloaded;
    additions.downloaded.retain(|name, _| !additions.env.contains_key(name));
    let mut env: BTreeMap<String, String> = found.env;
    if *typed.unwrap_or(configured) != ToolchainChoice::None
        && let Some(cache) = WorkspaceCache::prepare(config.cache.value, &request.mounts)
    {
        request.mounts.extend(cache.mounts);
        for (name, value) in cache.env {
            env.entry(name).or_insert(value);
        }
        settings.upkeep = cache.upkeep.map(Arc::new);
    }
    for (name, value) in env {
        additions.env.entry(name).or_insert(value);
    }
    Ok(())
}

/// Gives cells with a workspace the functions for the scripts of a project and its `jq`, this program by another name.
///
/// # Errors
/// A program that was removed since it was started.
fn add_script_sdk(settings: &mut Settings) -> Result<(), CliError> {
    let program = std::env::current_exe().and_then(std::fs::canonicalize).map_err(|error| {
        CliError::new(format!("the file of this program: {}", in_words(&error)))
            .with_hint("start it again from where it is installed")
    })?;
    for profile in settings.profiles.iter_mut().filter(|profile| profile.workspace) {
        profile.script_sdk = projects::SDK;
        profile.paths.push(HostPath {
            host: program.clone(),
            cell: Path::new(SCRIPT_PROGRAMS).join("jq"),
            kind: PathKind::Tree,
            presence: Presence::Required,
        });
        // Last in PATH: a jq of the host is preferred, if there is one.
        let path = profile.environment().get("PATH").copied().unwrap_or(PATH).to_owned();
        profile.env.insert("PATH".to_owned(), format!("{path}:{SCRIPT_PROGRAMS}"));
    }
    Ok(())
}
