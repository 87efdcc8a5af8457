//! Interrupted applies, and a host that changes meanwhile: directories in place of an overlay's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use nix::sys::stat::{SFlag, mknod};

use super::super::changes;
use super::super::files::Stamp;
use super::super::journal::{AppliedFiles, finish, is_unfinished, record, take};
use super::super::judge::Judge;
use super::*;

type Tested<T> = std::io::Result<T>;

const ID: &str = "project-1";

/// A layer with a change of each kind, and its directory.
struct Fixture {
    held: tempfile::TempDir,
    layer: OwnedFd,
    upper: OwnedFd,
    host: OwnedFd,
    since: Stamp,
}

fn open(path: &Path) -> Tested<OwnedFd> {
    Ok(OwnedFd::from(File::open(path)?))
}

impl Fixture {
    fn new() -> Tested<Self> {
        let held = tempfile::tempdir()?;
        let root = held.path();
        for directory in ["layer", "upper/new/deep", "upper/kind", "host/old/deep", "host/kind"] {
            fs::create_dir_all(root.join(directory))?;
        }
        for (path, text) in [
            ("host/changed", "before\n"),
            ("host/removed", "gone\n"),
            ("host/old/a", "a\n"),
            ("host/old/deep/b", "b\n"),
            ("host/stays", "stays\n"),
            ("host/becomes-link", "file\n"),
            ("upper/changed", "after\n"),
            ("upper/new/deep/file", "new\n"),
            ("upper/script", "#!/bin/sh\n"),
        ] {
            fs::write(root.join(path), text)?;
        }
        fs::remove_dir(root.join("upper/kind"))?;
        fs::write(root.join("upper/kind"), "was a directory\n")?;
        fs::set_permissions(root.join("upper/script"), PermissionsExt::from_mode(0o4755))?;
        symlink("changed", root.join("upper/becomes-link"))?;
        for whiteout in ["upper/removed", "upper/old"] {
            mknod(&root.join(whiteout), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
        }
        let layer = open(&root.join("layer"))?;
        let upper = open(&root.join("upper"))?;
        let host = open(&root.join("host"))?;
        // Later than all of the above: the host has not changed since.
        let Stamp(seconds, fraction) = Stamp::now()?;
        Ok(Self { held, layer, upper, host, since: Stamp(seconds + 60, fraction) })
    }

    fn changes(&self) -> Tested<Vec<Change>> {
        let applied = AppliedFiles::read(&self.layer)?;
        let judge = Judge::default();
        Ok(changes::list(&self.upper, &self.host, self.since, &judge, &applied)?)
    }

    /// Returns each path of the host with its kind and contents.
    fn tree(&self) -> Tested<BTreeMap<String, String>> {
        let mut tree = BTreeMap::new();
        let mut left = vec![self.held.path().join("host")];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(&directory)? {
                let path = entry?.path();
                let name = path.strip_prefix(self.held.path()).unwrap_or(&path);
                let metadata = path.symlink_metadata()?;
                let text = if metadata.is_dir() {
                    left.push(path.clone());
                    "directory".to_owned()
                } else if metadata.is_symlink() {
                    format!("link to {}", fs::read_link(&path)?.display())
                } else {
                    let set_id = metadata.permissions().mode() & 0o6000;
                    format!("{set_id:o} {}", fs::read_to_string(&path)?)
                };
                tree.insert(name.display().to_string(), text);
            }
        }
        Ok(tree)
    }

    fn staged(&self) -> Tested<(OwnedFd, Vec<Step>)> {
        let changes = self.changes()?;
        let changes: Vec<&Change> = changes.iter().collect();
        let staging = Staging::make(&self.layer, ID, &self.host, &self.upper)?;
        let (steps, left) = staging.stage(&changes)?;
        assert_eq!(left, []);
        Ok((staging.directory, steps))
    }
}

fn expected() -> BTreeMap<String, String> {
    [
        ("host/changed", "0 after\n"),
        ("host/stays", "0 stays\n"),
        ("host/becomes-link", "link to changed"),
        ("host/kind", "0 was a directory\n"),
        ("host/new", "directory"),
        ("host/new/deep", "directory"),
        ("host/new/deep/file", "0 new\n"),
        ("host/script", "0 #!/bin/sh\n"),
    ]
    .into_iter()
    .map(|(path, text)| (path.to_owned(), text.to_owned()))
    .collect()
}

#[test]
fn an_apply_that_is_killed_after_any_step_is_finished() -> Tested<()> {
    let count = Fixture::new()?.staged()?.1.len();
    assert_eq!(count, 13);
    for cut in 0..=count {
        let fixture = Fixture::new()?;
        let (staging, steps) = fixture.staged()?;
        record(&fixture.layer, &staging, &fixture.host, fixture.since, steps.clone())?;
        for (number, step) in steps.iter().enumerate().take(cut) {
            assert_eq!(take(&fixture.host, &staging, number, step), Ok(()), "{step:?}");
        }
        let finished = finish(&fixture.layer, &fixture.upper, &fixture.host, ID)?;
        assert_eq!((finished.done, finished.left), (count, Vec::new()), "killed after {cut} steps");
        assert_eq!(fixture.tree()?, expected(), "killed after {cut} steps");
        assert!(!is_unfinished(&fixture.layer)?);
        // The layer has no change left, and no file.
        assert_eq!(fixture.changes()?, []);
        assert_eq!(fs::read_dir(fixture.held.path().join("upper"))?.count(), 0);
    }
    Ok(())
}

#[test]
fn an_apply_that_is_killed_before_its_journal_is_written_has_changed_nothing() -> Tested<()> {
    let fixture = Fixture::new()?;
    let before = fixture.tree()?;
    let changes = fixture.changes()?;
    fixture.staged()?;
    assert!(is_unfinished(&fixture.layer)?);
    let finished = finish(&fixture.layer, &fixture.upper, &fixture.host, ID)?;
    assert_eq!(finished.done, 0);
    assert_eq!(fixture.tree()?, before);
    assert_eq!(fixture.changes()?, changes);
    assert!(!is_unfinished(&fixture.layer)?);
    Ok(())
}

#[test]
fn what_the_host_changes_after_the_journal_was_written_stays_the_hosts() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (staging, steps) = fixture.staged()?;
    record(&fixture.layer, &staging, &fixture.host, fixture.since, steps)?;
    let path = |name: &str| fixture.held.path().join("host").join(name);
    for name in ["changed", "removed", "old/a", "script"] {
        fs::write(path(name), "the host's own version\n")?;
    }
    let finished = finish(&fixture.layer, &fixture.upper, &fixture.host, ID)?;
    let left: BTreeSet<(Vec<u8>, String)> =
        finished.left.into_iter().map(|(path, why)| (path, format!("{why:?}"))).collect();
    let changed = ["changed", "removed", "old/a", "script"].map(|name| (name, "Changed"));
    let expected_left: BTreeSet<(Vec<u8>, String)> = changed
        .into_iter()
        .chain([("old", "NotEmpty")])
        .map(|(name, why)| (name.as_bytes().to_vec(), why.to_owned()))
        .collect();
    assert_eq!(left, expected_left);
    for name in ["changed", "removed", "old/a", "script"] {
        assert_eq!(fs::read_to_string(path(name))?, "the host's own version\n", "{name}");
    }
    // Both versions are kept: the layer still has its own.
    let layers = fixture.held.path().join("upper");
    assert_eq!(fs::read_to_string(layers.join("changed"))?, "after\n");
    Ok(())
}

#[test]
fn a_file_that_slips_in_during_an_exchange_is_put_back() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (staging, steps) = fixture.staged()?;
    let number = steps.iter().position(|step| step.path() == b"changed").unwrap_or_default();
    let step = steps.get(number).ok_or(std::io::ErrorKind::NotFound)?;
    // As after a kill between the exchange and its check: another file came out than was judged.
    let host = fixture.held.path().join("host");
    fs::write(host.join("slipped"), "slipped in\n")?;
    let own = format!("host/.cofferdam-apply-{ID}/{number}");
    fs::rename(fixture.held.path().join(&own), host.join("changed"))?;
    fs::rename(host.join("slipped"), fixture.held.path().join(&own))?;
    assert_eq!(take(&fixture.host, &staging, number, step), Err(Left::Changed));
    assert_eq!(fs::read_to_string(host.join("changed"))?, "slipped in\n");
    Ok(())
}

#[test]
fn a_file_of_the_host_that_changed_since_the_layer_was_made_is_a_conflict() -> Tested<()> {
    let mut fixture = Fixture::new()?;
    assert!(fixture.changes()?.iter().all(|change| !change.is_conflict));
    fixture.since = Stamp(0, 0);
    let changes = fixture.changes()?;
    let conflicts = changes.iter().filter(|change| change.is_conflict);
    let conflicts: Vec<&[u8]> = conflicts.map(|change| change.path.as_slice()).collect();
    let expected: [&[u8]; 5] = [b"becomes-link", b"changed", b"old/a", b"old/deep/b", b"removed"];
    assert_eq!(conflicts, expected);
    Ok(())
}
