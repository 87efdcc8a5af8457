//! Sockets of the host that cells can see: those in trees that are shown unchanged.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::doctor::{LayerCheck, LayerState};
use cell::sealed;
use model::profile::{PathKind, Profile};

/// Number of sockets that are named.
const SHOWN: usize = 3;

/// Looks for sockets in the trees that these profiles show without an overlay.
pub fn layer(profiles: &[Profile]) -> LayerCheck {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    told(&found(&table, &open_trees(profiles), is_socket))
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
fn found(table: &str, trees: &[PathBuf], is_there: fn(&Path) -> bool) -> Vec<PathBuf> {
    let paths = table.lines().skip(1).filter_map(path).filter_map(|path| {
        // The table has the path as it was bound: a link may be on the way.
        Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
    });
    let shown = |path: &PathBuf| {
        !sealed::is_sealed(path) && trees.iter().any(|tree| path.starts_with(tree))
    };
    let mut found: Vec<PathBuf> = paths.filter(shown).filter(|path| is_there(path)).collect();
    found.sort();
    found.dedup();
    found
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

fn told(found: &[PathBuf]) -> LayerCheck {
    let name = "sockets of the host".to_owned();
    if found.is_empty() {
        let how = "none is bound now in what cells have of /usr; in /usr/local and the other paths of \
                   a profile none can be connected to";
        return LayerCheck { name, state: LayerState::Ok, how: how.to_owned(), remedy: None };
    }
    let names: Vec<_> = found.iter().take(SHOWN).map(|path| path.display().to_string()).collect();
    let more = match found.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let how = format!("cells can connect to {}{more}", names.join(", "));
    let remedy = "have the service make its socket in /run".to_owned();
    LayerCheck { name, state: LayerState::Weak, how, remedy: Some(remedy) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(found(TABLE, &trees, |_| true), expected);
        assert!(found(TABLE, &trees, |_| false).is_empty());
        assert!(found(TABLE, &[], |_| true).is_empty());
    }

    #[test]
    fn a_socket_that_cells_reach_is_weak_and_named() {
        assert_eq!(told(&[]).state, LayerState::Ok);
        let layer = told(&["/usr/a", "/usr/b", "/usr/c", "/usr/d"].map(PathBuf::from));
        assert_eq!(layer.state, LayerState::Weak);
        assert_eq!(layer.how, "cells can connect to /usr/a, /usr/b, /usr/c and 1 more");
    }
}
