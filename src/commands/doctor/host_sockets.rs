//! Probes of sockets of the host that cells can connect to: granted ones, and those in trees shown unchanged.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::layer::{ProbeResult, missing, ok, weak};
use crate::commands::error::CliError;
use crate::commands::grants::sockets;
use crate::commands::settings::Settings;
use cell::sealed;
use model::profile::{PathKind, Profile, SocketName};

/// Number of sockets that are named.
const MAX_NAMES: usize = 3;

/// Examines the sockets that the configuration names, if it names any.
pub(super) fn granted(settings: &Settings) -> Option<ProbeResult> {
    let configured = &settings.loaded.config.nested_sockets;
    let requests = sockets::configured(&configured.value, &configured.source.to_string());
    if requests.is_empty() {
        return None;
    }
    let names = requests.keys().map(SocketName::to_string).collect::<Vec<_>>().join(", ");
    if !settings.takes_sockets() {
        let how = format!("{names}: no profile in use has `unix_sockets`, and no cell has them");
        return Some(weak(how).with_remedy(sockets::LET_A_PROFILE));
    }
    Some(match sockets::open_all(&requests) {
        Ok(_) => ok(format!("{names}: of their owner alone")),
        Err(CliError { message, hint, .. }) => ProbeResult { remedy: hint, ..missing(message) },
    })
}

/// Looks for sockets in the trees that the profiles in use show without an overlay.
pub(super) fn visible(settings: &Settings) -> ProbeResult {
    // Without /proc no socket can be listed; the profiles' trees are still read-only.
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    describe(&sockets_below(&table, &open_trees(&settings.profiles), is_socket))
}

/// Returns the resolved directories that the cells of these profiles have unchanged.
fn open_trees(profiles: &[Profile]) -> Vec<PathBuf> {
    let paths = profiles.iter().flat_map(|profile| &profile.paths);
    let trees = paths.filter(|path| path.kind == PathKind::Tree);
    let mut trees: Vec<_> = trees.filter_map(|path| path.host.canonicalize().ok()).collect();
    trees.retain(|tree| !sealed::is_sealed(tree) && tree.is_dir());
    trees.sort();
    trees.dedup();
    trees
}

/// Returns the sockets of a table of `/proc/net/unix` that lie below one of `trees`.
fn sockets_below(table: &str, trees: &[PathBuf], is_there: fn(&Path) -> bool) -> Vec<PathBuf> {
    let paths = table.lines().skip(1).filter_map(path).filter_map(|path| {
        // The table has the path of bind(2), which may contain links.
        Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
    });
    let shown = |path: &PathBuf| {
        !sealed::is_sealed(path) && trees.iter().any(|tree| path.starts_with(tree))
    };
    let mut sockets: Vec<PathBuf> = paths.filter(shown).filter(|path| is_there(path)).collect();
    sockets.sort();
    sockets.dedup();
    sockets
}

/// Returns the path at the end of a line, after seven fields (proc_net_unix(5)).
fn path(line: &str) -> Option<&Path> {
    let mut rest = line;
    for _ in 0..7 {
        rest = rest.trim_start();
        rest = rest.get(rest.find(' ')?..)?;
    }
    let path = rest.strip_prefix(' ')?;
    path.starts_with('/').then(|| Path::new(path))
}

fn is_socket(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket())
}

fn describe(sockets: &[PathBuf]) -> ProbeResult {
    if sockets.is_empty() {
        return ok(
            "none is bound now in what cells have of /usr; in /usr/local and the other paths of \
             a profile none can be connected to",
        );
    }
    let names: Vec<_> =
        sockets.iter().take(MAX_NAMES).map(|path| path.display().to_string()).collect();
    let more = match sockets.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    weak(format!("cells can connect to {}{more}", names.join(", ")))
        .with_remedy("have the service make its socket in /run")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::layer::LayerState;

    const TABLE: &str = "\
Num       RefCount Protocol Flags    Type St Inode Path
ffff8fb28121ec00: 00000002 00000000 00010000 0001 01  9007 /usr/bin/socket with a blank
ffff8fb28121ec00: 00000002 00000000 00010000 0001 01 19008 /usr/local/bin/socket
ffff8fb28121ec00: 00000002 00000000 00010000 0001 01 19009 /run/socket
ffff8fb28121ec00: 00000002 00000000 00010000 0001 01 19010 @/usr/bin/abstract
ffff8fb28121ec00: 00000003 00000000 00000000 0001 03 19011
";

    #[test]
    fn sockets_in_trees_that_are_shown_as_they_are_are_found() {
        let trees = [PathBuf::from("/usr")];
        let expected = [PathBuf::from("/usr/bin/socket with a blank")];
        assert_eq!(sockets_below(TABLE, &trees, |_| true), expected);
        assert!(sockets_below(TABLE, &trees, |_| false).is_empty());
        assert!(sockets_below(TABLE, &[], |_| true).is_empty());
    }

    #[test]
    fn a_socket_that_cells_reach_is_weak_and_named() {
        assert_eq!(describe(&[]).state, LayerState::Ok);
        let layer = describe(&["/usr/a", "/usr/b", "/usr/c", "/usr/d"].map(PathBuf::from));
        assert_eq!(layer.state, LayerState::Weak);
        assert_eq!(layer.how, "cells can connect to /usr/a, /usr/b, /usr/c and 1 more");
    }
}
