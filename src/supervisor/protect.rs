//! What the host may later run out of a granted directory is read-only in the cell (rulings R6).
//!
//! An agent that writes `.git/hooks/post-commit` waits for its user's next commit. So each such
//! place that is there when the grant is made gets a read-only mount over itself, and each directory
//! on the way to it a mount of its own, which keeps it from being renamed out of the way.
//!
//! What is not there yet cannot be mounted over: `cell::guard` keeps it from being made.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::configured;
use crate::cell::guard::names::{GIT, GIT_PARTS, HEAD, is_obeyed, may_be};
use crate::cell::{c_path, errno_of};
use crate::sys::mount::{Reach, attach, attribute, clone_tree, set_attributes};

/// The walk goes this deep, and looks at so many entries; a directory that has more is refused
/// rather than guarded in part.
const DEEPEST: usize = 32;
const MOST_ENTRIES: usize = 1_000_000;

/// Places to guard below a granted directory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// Become read-only.
    obeyed: Vec<PathBuf>,
    /// Stay writable, and stay where they are.
    pinned: Vec<PathBuf>,
    /// Are not there, and must not be made: a configuration names them.
    absent: Vec<PathBuf>,
    /// Repositories: their own directories, which hold their configuration.
    repositories: Vec<PathBuf>,
}

impl Found {
    /// What must stay where it is, parents first: the directories named, and all between `root` and
    /// a guarded place. The kernel refuses to rename a mount, not a directory with one beneath.
    fn pins(&self, root: &Path) -> BTreeSet<PathBuf> {
        let places = self.obeyed.iter().chain(&self.pinned).chain(&self.absent);
        let parents = places.flat_map(|place| {
            place.ancestors().skip(1).take_while(|parent| *parent != root).map(Path::to_owned)
        });
        parents.chain(self.pinned.iter().cloned()).collect()
    }
}

/// Guards what is beneath `root`, a mount of the template that may be written to; `host` is its
/// path there. Returns places beneath that a configuration names, there or not.
///
/// # Errors
/// The place that could not be guarded: then the directory is not granted.
pub fn guard(root: &Path, host: &Path) -> Result<Vec<PathBuf>, (PathBuf, Errno)> {
    let mut found = Found::default();
    let mut left = MOST_ENTRIES;
    walk(root, 0, &mut left, &mut found)?;
    let mut named = Vec::new();
    for repository in std::mem::take(&mut found.repositories) {
        for place in configured::places(&repository, root, host) {
            match first_absent(root, &place).map_err(|errno| (place.clone(), errno))? {
                Some(absent) => {
                    named.push(absent.clone());
                    found.absent.push(absent);
                }
                None => {
                    named.push(place.clone());
                    found.obeyed.push(place);
                }
            }
        }
    }
    for path in found.pins(root) {
        mount_over_itself(&path, 0).map_err(|errno| (path, errno))?;
    }
    for path in found.obeyed {
        mount_over_itself(&path, attribute::RDONLY).map_err(|errno| (path, errno))?;
    }
    Ok(named)
}

/// The first part of `place`, from `root` down, that is not there; `None` where all of it is.
fn first_absent(root: &Path, place: &Path) -> Result<Option<PathBuf>, Errno> {
    let below = place.strip_prefix(root).map_err(|_| Errno::EINVAL)?;
    let mut path = root.to_owned();
    for part in below {
        path.push(part);
        match path.symlink_metadata() {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Some(path)),
            Err(error) => return Err(errno_of(&error)),
        }
    }
    Ok(None)
}

fn mount_over_itself(path: &Path, more: u64) -> Result<(), Errno> {
    // A symbolic link is ELOOP here: it could be replaced, and what it names lies elsewhere.
    let target = c_path(path)?;
    let tree = clone_tree(&target)?;
    set_attributes(&tree, attribute::NOSUID | attribute::NODEV | more, Reach::Recursive)?;
    attach(tree, &target)
}

fn walk(
    directory: &Path,
    depth: usize,
    left: &mut usize,
    found: &mut Found,
) -> Result<(), (PathBuf, Errno)> {
    let here = |errno| (directory.to_owned(), errno);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        // What we may not list, the cell may not either: it has no more rights than we.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => return Err(here(errno_of(&error))),
    };
    for entry in entries {
        let entry = entry.map_err(|error| here(errno_of(&error)))?;
        *left = left.checked_sub(1).ok_or_else(|| here(Errno::EFBIG))?;
        let kind = entry.file_type().map_err(|error| here(errno_of(&error)))?;
        let (name, path) = (entry.file_name(), entry.path());
        let is = |word: &str| may_be(name.as_bytes(), word);
        if is(GIT) {
            repository(path, kind.is_dir(), found);
        } else if is_obeyed(name.as_bytes()) {
            found.obeyed.push(path);
        } else if is(HEAD) {
            // A bare repository, or what `objects` and `refs` would make one.
            guard_parts(directory, found);
        } else if kind.is_dir() {
            if depth == DEEPEST {
                return Err((path, Errno::ENAMETOOLONG));
            }
            walk(&path, depth + 1, left, found)?;
        }
    }
    Ok(())
}

/// A repository's own directory, or the file that stands for it in worktrees and submodules.
fn repository(path: PathBuf, is_directory: bool, found: &mut Found) {
    if !is_directory {
        found.obeyed.push(path);
        return;
    }
    guard_parts(&path, found);
    submodules(&path.join("modules"), 0, found);
    // Linked worktrees, each with what is its own.
    for worktree in std::fs::read_dir(path.join("worktrees")).into_iter().flatten().flatten() {
        guard_parts(&worktree.path(), found);
    }
    found.pinned.push(path);
}

fn guard_parts(git: &Path, found: &mut Found) {
    let parts = GIT_PARTS.iter().map(|part| git.join(part));
    found.obeyed.extend(parts.filter(|part| part.symlink_metadata().is_ok()));
    found.repositories.push(git.to_owned());
}

/// Submodules keep their own git directories here, named by their paths.
fn submodules(directory: &Path, depth: usize, found: &mut Found) {
    // None, or one that the cell may not list either.
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let inside = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    for path in inside.filter(|_| depth < DEEPEST) {
        if path.join("HEAD").exists() {
            guard_parts(&path, found);
            submodules(&path.join("modules"), depth + 1, found);
        } else {
            submodules(&path, depth + 1, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obeyed_places_are_found_in_nested_repositories_too() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let at = |path: &str| root.path().join(path);
        let modules = ".git/modules/lib/one/hooks";
        let deep = "sub/deep/.git/hooks";
        for directory in [".git/hooks", modules, deep, ".vscode", "src", "tree", "bare/hooks"] {
            std::fs::create_dir_all(at(directory))?;
        }
        std::fs::write(at("bare/HEAD"), "ref: refs/heads/main")?;
        for file in
            [".git/config", ".git/modules/lib/one/HEAD", "sub/.envrc", "src/envrc", "tree/.git"]
        {
            std::fs::write(at(file), "")?;
        }
        let mut found = Found::default();
        let walked = walk(root.path(), 0, &mut 100, &mut found);
        assert_eq!(walked, Ok(()));
        found.obeyed.sort();
        found.pinned.sort();
        found.repositories.sort();
        let paths = |names: &[&str]| names.iter().map(|name| at(name)).collect::<Vec<_>>();
        assert_eq!(
            found,
            Found {
                obeyed: paths(&[
                    ".git/config",
                    ".git/hooks",
                    modules,
                    ".vscode",
                    "bare/hooks",
                    "sub/.envrc",
                    "sub/deep/.git/hooks",
                    "tree/.git",
                ]),
                pinned: paths(&[".git", "sub/deep/.git"]),
                absent: Vec::new(),
                repositories: paths(&[".git", ".git/modules/lib/one", "bare", "sub/deep/.git"]),
            }
        );
        Ok(())
    }

    #[test]
    fn every_directory_on_the_way_to_a_guarded_place_stays_where_it_is() {
        let root = Path::new("r");
        let found = Found {
            obeyed: vec!["r/a/b/.envrc".into()],
            pinned: vec!["r/c/.git".into()],
            absent: vec!["r/d/hooks".into()],
            repositories: Vec::new(),
        };
        let pins: Vec<_> = found.pins(root).into_iter().collect();
        assert_eq!(pins, ["r/a", "r/a/b", "r/c", "r/c/.git", "r/d"].map(PathBuf::from));
    }

    #[test]
    fn a_directory_with_too_many_entries_is_refused_not_guarded_in_part() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        for name in 0..5 {
            std::fs::write(root.path().join(name.to_string()), "")?;
        }
        let refused = walk(root.path(), 0, &mut 4, &mut Found::default());
        assert_eq!(refused, Err((root.path().to_owned(), Errno::EFBIG)));
        Ok(())
    }
}
