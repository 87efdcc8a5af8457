//! Symbolic links on the way to what the operator grants: a cell may have made them.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;

use super::error::CliError;
use super::format::plain;
use super::run_arguments::MountRequest;
use cell::mediate::names;
use model::job::Access;

/// Links that one path may lead through (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Checks the links on the way to each grant. One in a directory that cells can write to is refused: the cell of an
/// earlier start may have made it. Any other of the user's own is told, as a grant of an earlier start may have
/// had it.
///
/// # Errors
/// The grant, the link, and what it leads to.
pub(super) fn check(mounts: &[MountRequest]) -> Result<(), CliError> {
    let writable: Vec<PathBuf> = mounts
        .iter()
        .filter(|mount| mount.access != Access::ReadOnly)
        .filter_map(|mount| mount.host.canonicalize().ok())
        .collect();
    for MountRequest { host, access, .. } in mounts {
        // What cannot be resolved is refused with its own reason.
        let (Ok(links), Ok(target)) = (on_the_way(host), host.canonicalize()) else { continue };
        let shown = |path: &Path| plain(&path.display().to_string());
        let is_written = |link: &&PathBuf| writable.iter().any(|grant| link.starts_with(grant));
        if let Some(link) = links.iter().find(is_written) {
            let message = format!(
                "`{}` cannot be granted: it leads through the link `{}`, which cells can make",
                shown(host),
                shown(link)
            );
            let hint = format!("grant `{}`, if that is meant", shown(&target));
            return Err(CliError::new(message).with_hint(hint));
        }
        let is_guarded = |path: &Path| path.components().any(|part| obeyed(part.as_os_str()));
        if *access != Access::ReadOnly
            && !links.is_empty()
            && !is_guarded(host)
            && is_guarded(&target)
        {
            let message = format!(
                "`{}` cannot be granted for writing: a link leads it to `{}`, which the host obeys",
                shown(host),
                shown(&target)
            );
            return Err(
                CliError::new(message).with_hint("grant it by its own path, if that is meant")
            );
        }
        if links.iter().any(|link| is_the_users(link)) {
            eprintln!(
                "cofferdam: `{}` leads through a link to `{}`, which is granted",
                shown(host),
                shown(&target)
            );
        }
    }
    Ok(())
}

/// Returns whether a name is guarded in a workspace.
fn obeyed(name: &OsStr) -> bool {
    let name = name.as_bytes();
    names::is_obeyed(name) || names::may_be(name, names::GIT)
}

/// Returns whether a cell of this user's can have made a link: not one of the system's, nor one beside the system's
/// own directories.
fn is_the_users(link: &Path) -> bool {
    let is_roots = |link: &Path| link.symlink_metadata().is_ok_and(|found| found.uid() == 0);
    let by_root = nix::unistd::geteuid().is_root();
    link.parent() != Some(Path::new("/")) && (by_root || !is_roots(link))
}

/// Returns every link that resolving an absolute path meets, each with the links before it resolved.
fn on_the_way(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut left: VecDeque<OsString> = names(path).collect();
    let mut here = PathBuf::from("/");
    let mut links = Vec::new();
    while let Some(name) = left.pop_front() {
        if name == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&name);
        if !next.symlink_metadata()?.is_symlink() {
            here = next;
            continue;
        }
        let text = std::fs::read_link(&next)?;
        links.push(next);
        if links.len() > MOST_LINKS {
            return Err(Errno::ELOOP.into());
        }
        if text.is_absolute() {
            here = PathBuf::from("/");
        }
        names(&text).rev().for_each(|name| left.push_front(name));
    }
    Ok(links)
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_link_on_the_way_is_found_where_it_lies() -> io::Result<()> {
        let held = tempfile::tempdir()?;
        let root = held.path().canonicalize()?;
        std::fs::create_dir_all(root.join("a/b"))?;
        symlink("a", root.join("one"))?;
        symlink("../one/b", root.join("a/two"))?;
        symlink("loop", root.join("loop"))?;
        let found = |path: &str| on_the_way(&root.join(path));
        assert_eq!(found("a/b")?, Vec::<PathBuf>::new());
        assert_eq!(found("one/b")?, [root.join("one")]);
        assert_eq!(found("one/two")?, ["one", "a/two", "one"].map(|name| root.join(name)));
        assert_eq!(found("a/b/../two/.")?, ["a/two", "one"].map(|name| root.join(name)));
        assert!(found("loop").is_err());
        assert!(found("none").is_err());
        Ok(())
    }
}
