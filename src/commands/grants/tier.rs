//! The lower tier on the command line: refusals in it, and hints that name it.

use std::path::Path;

use crate::commands::doctor::remedies;
use crate::commands::error::CliError;
use model::job::Access;
use model::receipt::Tier;
use supervisor::{Granted, StartError};

/// Hint for a machine that has no user namespaces.
const NO_NAMESPACES: &str = "`cofferdam doctor` has the remedy; without one, `--tier \
    landlock+seccomp` runs in a weaker tier, which SECURITY.md describes";

/// Hint for root without a directory for the locks that separate its instances.
const NO_LOCK: &str = "root's instances share out host ids by locks in /run/cofferdam: make /run writable (docker and \
    podman: --tmpfs /run; a pod: an emptyDir at /run), or start cofferdam as an ordinary user";

/// Returns the hint for a supervisor that could not be started, unless the error has its own.
pub(crate) fn remedy(error: &StartError) -> Option<&'static str> {
    let hint = match error {
        StartError::Grant(error) if error.to_string().contains("\nhint: ") => return None,
        StartError::OpenFiles { .. } => remedies::OPEN_FILES,
        StartError::Clone(_) => NO_NAMESPACES,
        StartError::Maps(_) if nix::unistd::geteuid().is_root() => remedies::ROOT_WITHOUT_IDS,
        StartError::Lock { .. } => NO_LOCK,
        StartError::Threads { .. }
        | StartError::NoProc(_)
        | StartError::Maps(_)
        | StartError::NoInstance { .. }
        | StartError::Grant(_)
        | StartError::Signals(_)
        | StartError::CoreLimit(_)
        | StartError::Store(_)
        | StartError::Gateway(_)
        | StartError::Link(_) => "`cofferdam doctor` shows what is missing here",
    };
    Some(hint)
}

/// Adapts a grant of `run` to the tier: without mounts, a path in the cell is the path on the host.
///
/// # Errors
/// A grant that needs a mount.
pub(crate) fn granted(tier: Tier, granted: Granted) -> Result<Granted, CliError> {
    match (tier, granted.access) {
        (Tier::Full, _) => return Ok(granted),
        (Tier::Bare, Access::ReadOnly) => {}
        (Tier::Bare, Access::Layer) => {
            return Err(refused("--cow: a layer is an overlay, which takes a mount")
                .with_hint("grant it with --ro; results can be printed"));
        }
        (
            Tier::Bare,
            Access::ReadWrite | Access::Unguarded | Access::Repository | Access::Cache,
        ) => {
            return Err(refused("--rw: what the host obeys in a grant is guarded by mounts")
                .with_hint("grant it with --ro; results can be printed"));
        }
    }
    let usual = granted.host.file_name().map(|name| Path::new("/mnt").join(name));
    if granted.cell != granted.host && Some(&granted.cell) != usual.as_ref() {
        return Err(refused("--ro: another path in the cell takes a mount")
            .with_hint("leave out `:CELL`: the path in the cell is that of the host"));
    }
    Ok(Granted { cell: granted.host.clone(), ..granted })
}

/// Refuses the workspace of a server, which the tier cannot grant.
///
/// # Errors
/// Any workspace in the lower tier.
pub(crate) fn workspace(tier: Tier, granted: Granted) -> Result<Granted, CliError> {
    match tier {
        Tier::Full => Ok(granted),
        Tier::Bare => Err(refused("--workspace: a grant at /workspace takes a mount")
            .with_hint("each call has a private directory to work in")),
    }
}

fn refused(reason: &str) -> CliError {
    CliError::new(format!("{reason}, and the tier landlock+seccomp has none"))
}
