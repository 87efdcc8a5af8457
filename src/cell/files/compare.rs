//! Compares two scans of a workspace: files that were created, modified or deleted between them.

use std::cmp::Ordering;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;

use super::tree::{Stamp, Tree};
use model::outcome::{Change, FileChange, FilesChanged};
use sys::lookup::{self, Follow};

/// Maximum number of changes that are listed; all others are only counted.
const MAX_LISTED: usize = 100;
/// Maximum bytes of the listed paths together.
const MAX_LISTED_BYTES: usize = 16 << 10;
/// Maximum number of absent entries that are looked up again if a scan was cut.
const MAX_LOOKUPS: usize = 1000;
/// How far the clock of file timestamps may lag behind (time(7), jiffies).
const COARSE: Duration = Duration::from_millis(10);

/// Compares two scans. If either is incomplete, only certain changes are reported: `since` is the
/// start of `before`, and absent entries are looked up again from `root`.
pub(crate) fn compare(
    before: &Tree,
    after: &Tree,
    root: Option<&OwnedFd>,
    since: SystemTime,
) -> FilesChanged {
    let mut changed = Changed {
        reported: FilesChanged {
            is_whole: before.is_whole && after.is_whole,
            ..FilesChanged::none()
        },
        bytes: 0,
    };
    let since = since.checked_sub(COARSE).and_then(|since| since.duration_since(UNIX_EPOCH).ok());
    let since = since.map_or(0, |since| i128::try_from(since.as_nanos()).unwrap_or(i128::MAX));
    let mut old = 0;
    let mut new = 0;
    let mut lookups = 0;
    loop {
        match (before.entry(old), after.entry(new)) {
            (None, None) => return changed.reported,
            (Some((was, stamp)), there) if there.is_none_or(|(path, _)| was < path) => {
                old += 1;
                if after.is_whole || (lookups < MAX_LOOKUPS && is_gone(root, was)) {
                    changed.add(Change::Deleted, was, stamp);
                }
                lookups += 1;
            }
            (was, Some((path, stamp))) => {
                new += 1;
                let known = was.filter(|(was, _)| was.cmp(&path) == Ordering::Equal);
                old += usize::from(known.is_some());
                match known {
                    Some((_, known)) if stamp.differs(known) => {
                        changed.add(Change::Modified, path, stamp);
                    }
                    Some(_) => {}
                    None if before.is_whole => changed.add(Change::Created, path, stamp),
                    // A cut scan may have missed it: only a recent timestamp proves that it was
                    // touched.
                    None if stamp.changed >= since => changed.add(Change::Modified, path, stamp),
                    None => {}
                }
            }
            (Some(_), None) => return changed.reported,
        }
    }
}

fn is_gone(root: Option<&OwnedFd>, path: &[u8]) -> bool {
    let (Some(root), Ok(path)) = (root, CString::new(path)) else { return false };
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    lookup::open(root, &path, flags, 0, Follow::Beneath).err() == Some(Errno::ENOENT)
}

/// Returns true for what git keeps below `.git`, which tells a reader nothing. Hooks are programs that
/// git runs, except for the samples that it copies into each repository.
fn is_git_internal(path: &[u8]) -> bool {
    let mut names = path.split(|byte| *byte == b'/');
    if names.by_ref().all(|name| name != b".git") {
        return false;
    }
    match (names.next(), names.next_back()) {
        (None, _) => false,
        (Some(b"hooks"), Some(hook)) => hook.ends_with(b".sample"),
        (Some(_), _) => true,
    }
}

struct Changed {
    reported: FilesChanged,
    /// Length of the listed paths together.
    bytes: usize,
}

impl Changed {
    fn add(&mut self, change: Change, path: &[u8], stamp: &Stamp) {
        if is_git_internal(path) {
            self.reported.below_git = self.reported.below_git.saturating_add(1);
            return;
        }
        let count = match change {
            Change::Created => &mut self.reported.created,
            Change::Modified => &mut self.reported.modified,
            Change::Deleted => &mut self.reported.deleted,
        };
        *count = count.saturating_add(1);
        if self.reported.listed.len() == MAX_LISTED || self.bytes + path.len() > MAX_LISTED_BYTES {
            return;
        }
        self.bytes += path.len();
        self.reported.listed.push(FileChange {
            change,
            path: path.to_vec(),
            kind: stamp.kind(),
            size: stamp.size,
            mode: u16::try_from(stamp.mode & 0o7777).unwrap_or(0),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u32 = 0o100_644;
    const DIRECTORY: u32 = 0o040_755;

    fn tree(entries: &[(&str, u32, i128)]) -> Tree {
        let mut tree = Tree::within(1 << 30);
        for (path, mode, changed) in entries {
            let stamp = Stamp { mode: *mode, size: 1, inode: 1, modified: 0, changed: *changed };
            assert_eq!(tree.add(b"", path.as_bytes(), stamp), Ok(()));
        }
        tree.sort();
        tree
    }

    fn reported(before: &Tree, after: &Tree) -> (Vec<(Change, String)>, bool) {
        let since = UNIX_EPOCH + Duration::from_secs(1);
        let changed = compare(before, after, None, since);
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let listed = changed.listed.iter().map(|one| (one.change, text(&one.path))).collect();
        (listed, changed.is_whole)
    }

    fn all(changes: &[(Change, &str)]) -> Vec<(Change, String)> {
        changes.iter().map(|(change, path)| (*change, (*path).to_owned())).collect()
    }

    #[test]
    fn created_modified_and_deleted_entries_are_reported_and_no_others() {
        let before = tree(&[("a", FILE, 1), ("b", FILE, 1), ("c", FILE, 1), ("d", DIRECTORY, 1)]);
        let after = tree(&[("0", FILE, 1), ("b", FILE, 2), ("c", FILE, 1), ("d", DIRECTORY, 9)]);
        let changes = [(Change::Created, "0"), (Change::Deleted, "a"), (Change::Modified, "b")];
        assert_eq!(reported(&before, &after), (all(&changes), true));
        assert_eq!(reported(&after, &after), (Vec::new(), true));
        let last = tree(&[("b", FILE, 2)]);
        let gone = [(Change::Deleted, "0"), (Change::Deleted, "c"), (Change::Deleted, "d")];
        assert_eq!(reported(&after, &last), (all(&gone), true));
    }

    #[test]
    fn a_cut_scan_reports_only_certain_changes() {
        let second = 1_000_000_000;
        let mut cut = tree(&[("a", FILE, 1)]);
        cut.is_whole = false;
        let after = tree(&[("a", FILE, 1), ("new", FILE, second), ("unseen", FILE, 5)]);
        assert_eq!(reported(&cut, &after), (all(&[(Change::Modified, "new")]), false));
        // An entry missing from a cut scan may still exist.
        assert_eq!(reported(&after, &cut), (Vec::new(), false));
    }

    #[test]
    fn what_git_keeps_is_counted_and_hooks_are_listed() {
        let after = tree(&[
            (".git", DIRECTORY, 1),
            (".git/HEAD", FILE, 1),
            (".git/hooks", DIRECTORY, 1),
            (".git/hooks/pre-commit", FILE, 1),
            (".git/hooks/pre-push.sample", FILE, 1),
            (".git/objects/ab/cd", FILE, 1),
            (".gitignore", FILE, 1),
            ("a.git/HEAD", FILE, 1),
            ("sub/.git", FILE, 1),
            ("sub/b/.git/index", FILE, 1),
        ]);
        let changed = compare(&Tree::empty(), &after, None, UNIX_EPOCH);
        let listed = [".git", ".git/hooks/pre-commit", ".gitignore", "a.git/HEAD", "sub/.git"];
        let paths: Vec<_> = changed.listed.iter().map(|one| one.path.as_slice()).collect();
        assert_eq!(paths, listed.map(str::as_bytes));
        assert_eq!((changed.created, changed.below_git), (5, 5));
        let only = FilesChanged { below_git: 1, ..FilesChanged::none() };
        assert!(!only.is_nothing());
    }

    #[test]
    fn a_hundred_are_listed_and_the_rest_is_counted() {
        let names: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
        let entries: Vec<_> = names.iter().map(|name| (name.as_str(), FILE, 1)).collect();
        let changed = compare(&Tree::empty(), &tree(&entries), None, UNIX_EPOCH);
        assert_eq!((changed.listed.len(), changed.created), (MAX_LISTED, 300));
    }
}
