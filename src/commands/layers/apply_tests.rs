//! Interrupted applies, and a host that changes meanwhile: directories in place of an overlay's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::{SFlag, mknod};

use super::super::changes;
use super::super::files::Stamp;
use super::super::journal::{AppliedFiles, finish, is_unfinished, record};
use super::super::judge::Judge;
use super::*;

type Tested<T> = std::io::Result<T>;

/// A layer with a change of each kind, and its directory.
struct Fixture {
    held: tempfile::TempDir,
    layer: OwnedFd,
    upper: OwnedFd,
    host: OwnedFd,
    owner: Owner,
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
        let owner = Owner::of(&fstat(&host)?);
        // Later than all of the above: the host has not changed since.
        let Stamp(seconds, fraction) = Stamp::now()?;
        Ok(Self { held, layer, upper, host, owner, since: Stamp(seconds + 60, fraction) })
    }

    fn changes(&self) -> Tested<Vec<Change>> {
        self.changes_at(&[])
    }

    fn changes_at(&self, only: &[&[u8]]) -> Tested<Vec<Change>> {
        let applied = AppliedFiles::read(&self.layer)?;
        let judge = Judge::default();
        Ok(changes::list(&self.upper, &self.host, self.since, &judge, &applied, only)?)
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

    fn path(&self, name: &str) -> PathBuf {
        self.held.path().join(name)
    }

    fn staging_name(&self) -> String {
        journal::staging_left(&self.layer).unwrap_or_default()
    }

    fn finish(&self) -> Result<Finished, Stopped> {
        finish(&self.layer, &self.upper, &self.host, self.owner)
    }

    /// Stages all changes and writes the journal, as an apply that is killed then.
    fn recorded(&self) -> Tested<(OwnedFd, Vec<Step>)> {
        self.recorded_of(&self.changes()?)
    }

    fn recorded_of(&self, changes: &[Change]) -> Tested<(OwnedFd, Vec<Step>)> {
        let (staging, steps) = self.staged_of(changes)?;
        record(&self.layer, &staging, &self.host, self.since, steps.clone())?;
        Ok((staging, steps))
    }

    fn staged(&self) -> Tested<(OwnedFd, Vec<Step>)> {
        self.staged_of(&self.changes()?)
    }

    fn staged_of(&self, changes: &[Change]) -> Tested<(OwnedFd, Vec<Step>)> {
        let changes: Vec<&Change> = changes.iter().collect();
        let mut staging = Staging::make(&self.layer, &self.host, &self.upper, self.owner)?;
        let (steps, left) = staging.stage(&changes)?;
        assert_eq!(left, []);
        Ok((staging.directory, steps))
    }
}

fn take(host: &OwnedFd, staging: &OwnedFd, number: usize, step: &Step) -> Result<(), Left> {
    let owner = Owner::of(&fstat(host)?);
    journal::take(host, staging, owner, number, step).map(drop)
}

fn stopped(why: Stopped) -> std::io::Error {
    std::io::Error::other(why)
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
        let (staging, steps) = fixture.recorded()?;
        for (number, step) in steps.iter().enumerate().take(cut) {
            assert_eq!(take(&fixture.host, &staging, number, step), Ok(()), "{step:?}");
        }
        let finished = fixture.finish().map_err(stopped)?;
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
    let finished = fixture.finish().map_err(stopped)?;
    assert_eq!(finished.done, 0);
    assert_eq!(fixture.tree()?, before);
    assert_eq!(fixture.changes()?, changes);
    assert!(!is_unfinished(&fixture.layer)?);
    Ok(())
}

#[test]
fn what_the_host_changes_after_the_journal_was_written_stays_the_hosts() -> Tested<()> {
    let fixture = Fixture::new()?;
    fixture.recorded()?;
    let path = |name: &str| fixture.held.path().join("host").join(name);
    for name in ["changed", "removed", "old/a", "script"] {
        fs::write(path(name), "the host's own version\n")?;
    }
    let finished = fixture.finish().map_err(stopped)?;
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
    let own = format!("host/{}/{number}", fixture.staging_name());
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
    let expected: [&[u8]; 8] = [
        b"becomes-link",
        b"changed",
        b"kind",
        b"old/a",
        b"old/deep/b",
        b"old/deep",
        b"old",
        b"removed",
    ];
    assert_eq!(conflicts, expected);
    Ok(())
}

#[test]
fn an_apply_without_its_staging_directory_is_neither_finished_nor_forgotten() -> Tested<()> {
    let fixture = Fixture::new()?;
    let before = fixture.tree()?;
    let changes = fixture.changes()?;
    fixture.recorded()?;
    let name = fixture.staging_name();
    let staging = fixture.path("host").join(&name);
    let aside = fixture.path("aside");
    fs::rename(&staging, &aside)?;
    let lost = Err(Stopped::StagingLost(name.clone()));
    assert_eq!(fixture.finish().map(|finished| finished.done), lost);
    assert_eq!(fixture.tree()?, before);
    // Another directory at its name is neither used nor removed, nor is a link to the right one.
    fs::create_dir(&staging)?;
    fs::set_permissions(&staging, PermissionsExt::from_mode(0o700))?;
    fs::write(staging.join("0"), "another\n")?;
    assert_eq!(fixture.finish().map(|finished| finished.done), lost);
    assert_eq!(fs::read_to_string(staging.join("0"))?, "another\n");
    fs::remove_dir_all(&staging)?;
    symlink(&aside, &staging)?;
    assert_eq!(fixture.finish().map(|finished| finished.done), lost);
    fs::remove_file(&staging)?;
    assert_eq!(fixture.tree()?, before);
    assert_eq!(fixture.changes()?, changes);
    // Put back, it is finished.
    fs::rename(&aside, &staging)?;
    assert_eq!(fixture.finish().map(|finished| finished.left), Ok(Vec::new()));
    assert_eq!(fixture.tree()?, expected());
    Ok(())
}

#[test]
fn a_directory_that_is_left_after_the_journal_is_removed() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (staging, steps) = fixture.recorded()?;
    for (number, step) in steps.iter().enumerate() {
        assert_eq!(take(&fixture.host, &staging, number, step), Ok(()));
    }
    fs::remove_file(fixture.path("layer/journal.json"))?;
    assert!(is_unfinished(&fixture.layer)?);
    assert_eq!(fixture.finish().map(|finished| finished.done), Ok(0));
    assert_eq!(fixture.tree()?, expected());
    assert!(!is_unfinished(&fixture.layer)?);
    // The layer shows no change, though its files were not removed.
    assert_eq!(fixture.changes()?, []);
    Ok(())
}

#[test]
fn a_staging_directory_without_its_identity_is_removed_only_if_it_is_empty() -> Tested<()> {
    for (made, is_left) in [(None, false), (Some(None), false), (Some(Some("file")), true)] {
        let fixture = Fixture::new()?;
        let name = format!(".cofferdam-apply-{:032x}", 7);
        let record = format!("{{\"version\":1,\"name\":\"{name}\",\"identity\":null}}");
        fs::write(fixture.path("layer/staged.json"), record)?;
        let staging = fixture.path("host").join(&name);
        if let Some(file) = made {
            fs::create_dir(&staging)?;
            if let Some(file) = file {
                fs::write(staging.join(file), "the host's\n")?;
            }
        }
        assert_eq!(fixture.finish().map(|finished| finished.done), Ok(0));
        assert_eq!(staging.exists(), is_left, "{made:?}");
        assert!(!is_unfinished(&fixture.layer)?);
    }
    Ok(())
}

#[test]
fn a_journal_that_this_version_cannot_read_is_kept() -> Tested<()> {
    for (text, why) in [
        (&b"{\"version\":2,\"steps\":\"otherwise\"}"[..], Stopped::OtherVersion),
        (b"{\"version\":1}", Stopped::Damaged),
        (b"", Stopped::Damaged),
        (b"not JSON", Stopped::Damaged),
    ] {
        let fixture = Fixture::new()?;
        let before = fixture.tree()?;
        fixture.recorded()?;
        fs::write(fixture.path("layer/journal.json"), text)?;
        assert_eq!(fixture.finish().map(|finished| finished.done), Err(why));
        assert_eq!(fs::read(fixture.path("layer/journal.json"))?, text);
        File::options()
            .write(true)
            .open(fixture.path("layer/journal.json"))?
            .set_len((256 << 20) + 1)?;
        assert_eq!(fixture.finish().map(|finished| finished.done), Err(Stopped::Damaged));
        fs::remove_dir_all(fixture.path("host").join(fixture.staging_name()))?;
        assert_eq!(fixture.tree()?, before);
    }
    Ok(())
}

#[test]
fn an_apply_is_finished_where_the_device_has_another_number_now() -> Tested<()> {
    let fixture = Fixture::new()?;
    fixture.recorded()?;
    let device = fstat(&fixture.host)?.st_dev;
    let journal = fs::read_to_string(fixture.path("layer/journal.json"))?;
    let another = journal.replace(&format!("\"device\":{device}"), "\"device\":987654321");
    assert_ne!(another, journal);
    fs::write(fixture.path("layer/journal.json"), another)?;
    assert_eq!(fixture.finish().map(|finished| finished.left), Ok(Vec::new()));
    assert_eq!(fixture.tree()?, expected());
    Ok(())
}

#[test]
fn a_file_that_cannot_be_staged_keeps_no_other_back() -> Tested<()> {
    let fixture = Fixture::new()?;
    let mut changes = fixture.changes()?;
    for change in &mut changes {
        // As if a cell had changed the file after it was judged.
        if let Some(new) = change.new.as_mut().filter(|_| change.path == b"script") {
            new.size += 1;
        }
        // As if the filesystem did not take the file.
        if change.path == b"new/deep/file" {
            change.kind = Kind::Other;
        }
    }
    let changes: Vec<&Change> = changes.iter().collect();
    let mut staging = Staging::make(&fixture.layer, &fixture.host, &fixture.upper, fixture.owner)?;
    let (steps, left) = staging.stage(&changes)?;
    let expected_left = vec![
        (b"new/deep/file".to_vec(), Left::Errno(Errno::EINVAL)),
        (b"script".to_vec(), Left::Changed),
    ];
    assert_eq!(left, expected_left);
    record(&fixture.layer, &staging.directory, &fixture.host, fixture.since, steps)?;
    assert_eq!(fixture.finish().map(|finished| finished.left), Ok(Vec::new()));
    let mut rest = expected();
    for path in ["host/new/deep/file", "host/script"] {
        rest.remove(path);
    }
    assert_eq!(fixture.tree()?, rest);
    Ok(())
}

#[test]
fn files_deeper_than_the_longest_path_are_applied() -> Tested<()> {
    let fixture = Fixture::new()?;
    let name = c_name(&[b'n'; 255])?;
    let path = |depth: usize| {
        let names: Vec<&[u8]> = std::iter::repeat_n(name.to_bytes(), depth).collect();
        names.join(&b'/')
    };
    let added = |depth: usize, directory: &OwnedFd| -> Tested<Change> {
        let new = look(directory, &name)?;
        let kind = new.as_ref().map_or(Kind::Other, Kind::of);
        Ok(Change {
            path: path(depth),
            act: Act::Add,
            kind,
            new,
            old: None,
            target: None,
            held: None,
            is_conflict: false,
            is_movable: true,
        })
    };
    let mut directories = Vec::new();
    let mut inner = fixture.upper.try_clone()?;
    let mut outer = fixture.host.try_clone()?;
    for depth in 0..40 {
        mkdirat(&inner, name.as_c_str(), Mode::S_IRWXU)?;
        let above = inner;
        inner = openat(&above, name.as_c_str(), DIRECTORY, Mode::empty())?;
        // The host has some of the directories.
        if depth < 20 {
            mkdirat(&outer, name.as_c_str(), Mode::S_IRWXU)?;
            outer = openat(&outer, name.as_c_str(), DIRECTORY, Mode::empty())?;
        } else {
            directories.push((depth + 1, above));
        }
    }
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT;
    drop(openat(&inner, name.as_c_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
    directories.push((41, inner));
    let changes = directories.iter().map(|(depth, above)| added(*depth, above));
    let changes = changes.collect::<Tested<Vec<Change>>>()?;
    // A list holds all of that back: the guarded names are not found so deep.
    let listed = fixture.changes()?;
    let listed = listed.iter().filter(|change| change.path.starts_with(name.to_bytes()));
    let listed: Vec<_> = listed.map(|change| (change.path.clone(), change.held)).collect();
    assert_eq!(listed, [(path(12), Some(super::super::judge::Held::Deep))]);
    let (_, steps) = fixture.recorded_of(&changes)?;
    assert_eq!(steps.len(), 21);
    assert_eq!(fixture.finish().map(|finished| finished.left), Ok(Vec::new()));
    let deepest = open_directory(&fixture.host, &path(40))?;
    assert!(look(&deepest, &name)?.is_some_and(|seen| seen.is(libc::S_IFREG)));
    assert!(matches!(open_directory(&fixture.upper, &path(21)), Err(Errno::ENOENT)));
    cell::removal::remove_all(&fixture.upper, "n")?;
    Ok(cell::removal::remove_all(&fixture.host, "n")?)
}

impl Fixture {
    /// Waits until the kernel's clock for files has moved on, and makes the layer as of now.
    fn begin(&mut self) -> Tested<()> {
        std::thread::sleep(std::time::Duration::from_millis(20));
        self.since = Stamp::now()?;
        Ok(())
    }

    fn conflicts(&self) -> Tested<Vec<String>> {
        let changes = self.changes()?;
        let conflicts = changes.iter().filter(|change| change.is_conflict);
        Ok(conflicts.map(|change| String::from_utf8_lossy(&change.path).into_owned()).collect())
    }
}

#[test]
fn an_edit_of_the_host_during_an_apply_stays_a_conflict_for_the_next() -> Tested<()> {
    let mut fixture = Fixture::new()?;
    fixture.begin()?;
    let (staging, steps) = fixture.staged()?;
    record(&fixture.layer, &staging, &fixture.host, fixture.since, steps.clone())?;
    for (number, step) in steps.iter().enumerate() {
        assert_eq!(take(&fixture.host, &staging, number, step), Ok(()), "{step:?}");
    }
    // After their steps, and before they are noted: one is edited, one made again, one left alone.
    fs::write(fixture.path("host/changed"), "the host's edit\n")?;
    fs::write(fixture.path("host/removed"), "made by the host\n")?;
    fixture.finish().map_err(stopped)?;
    // Cells go on.
    for name in ["changed", "removed", "script"] {
        fs::write(fixture.path("upper").join(name), "the agent's next version\n")?;
    }
    assert_eq!(fixture.conflicts()?, ["changed", "removed"]);
    let changes = fixture.changes()?;
    let script = changes.iter().find(|change| change.path == b"script");
    assert!(script.is_some_and(Change::is_applicable), "the control: {changes:?}");
    Ok(())
}

#[test]
fn a_directory_that_the_host_moves_in_during_an_apply_is_not_taken_for_the_layers() -> Tested<()> {
    for is_moved in [false, true] {
        let mut fixture = Fixture::new()?;
        fs::create_dir_all(fixture.path("other/moved"))?;
        fs::write(fixture.path("other/moved/old"), "older than the layer\n")?;
        fs::create_dir(fixture.path("host/mixed"))?;
        fs::write(fixture.path("host/mixed/stays"), "")?;
        fs::create_dir(fixture.path("upper/mixed"))?;
        fs::write(fixture.path("upper/mixed/new"), "")?;
        fixture.begin()?;
        let (staging, steps) = fixture.staged()?;
        record(&fixture.layer, &staging, &fixture.host, fixture.since, steps)?;
        if is_moved {
            fs::rename(fixture.path("other/moved"), fixture.path("host/mixed/moved"))?;
        }
        fixture.finish().map_err(stopped)?;
        // Cells remove the whole directory.
        match fs::remove_dir_all(fixture.path("upper/mixed")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        mknod(&fixture.path("upper/mixed"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
        let conflicts = fixture.conflicts()?;
        let expected: &[&str] = match is_moved {
            true => &["mixed/moved/old", "mixed/moved", "mixed/new", "mixed/stays", "mixed"],
            false => &[],
        };
        assert_eq!(conflicts, expected, "moved: {is_moved}");
    }
    Ok(())
}

#[test]
fn what_the_host_moved_into_a_removed_directory_is_a_conflict() -> Tested<()> {
    for hidden in ["whiteout", "opaque"] {
        let mut fixture = Fixture::new()?;
        fs::create_dir_all(fixture.path("other/moved/deep"))?;
        fs::write(fixture.path("other/moved/deep/file"), "older than the layer\n")?;
        fs::create_dir_all(fixture.path("host/still"))?;
        fs::write(fixture.path("host/still/a"), "")?;
        mknod(&fixture.path("upper/still"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
        if hidden == "opaque" {
            fs::remove_file(fixture.path("upper/old"))?;
            fs::create_dir_all(fixture.path("upper/old/moved/deep"))?;
            fs::write(fixture.path("upper/old/moved/deep/file"), "the agent's\n")?;
            let directory = File::open(fixture.path("upper/old"))?;
            sys::xattr::set(&directory, super::super::files::OPAQUE, b"y")?;
        }
        fixture.begin()?;
        assert_eq!(fixture.conflicts()?, Vec::<String>::new(), "before, {hidden}");
        fs::rename(fixture.path("other/moved"), fixture.path("host/old/moved"))?;
        // With a change in it, the directory looks as if it had always been there.
        fs::write(fixture.path("host/old/moved/later"), "")?;
        let conflicts = fixture.conflicts()?;
        for path in ["old/a", "old/deep/b", "old/moved/deep/file", "old/moved/later"] {
            assert!(conflicts.iter().any(|one| one == path), "{hidden}, {path}: {conflicts:?}");
        }
        assert!(!conflicts.iter().any(|one| one.starts_with("still")), "{conflicts:?}");
        let applicable = fixture.changes()?;
        let applicable: Vec<&Change> =
            applicable.iter().filter(|change| change.is_applicable()).collect();
        let mut staging =
            Staging::make(&fixture.layer, &fixture.host, &fixture.upper, fixture.owner)?;
        let (steps, _) = staging.stage(&applicable)?;
        record(&fixture.layer, &staging.directory, &fixture.host, fixture.since, steps)?;
        fixture.finish().map_err(stopped)?;
        let file = fixture.path("host/old/moved/deep/file");
        assert_eq!(fs::read_to_string(file)?, "older than the layer\n", "{hidden}");
        assert!(!fixture.path("host/still").exists(), "the control");
    }
    Ok(())
}

#[test]
fn a_repository_by_its_content_is_one_unit() -> Tested<()> {
    let mut fixture = Fixture::new()?;
    for repository in ["bare", "gone.git", "nested/work"] {
        fs::create_dir_all(fixture.path("host").join(repository).join("objects/aa"))?;
        fs::create_dir_all(fixture.path("host").join(repository).join("refs/heads"))?;
        for file in ["HEAD", "objects/aa/b", "packed-refs", "description"] {
            fs::write(fixture.path("host").join(repository).join(file), "before\n")?;
        }
    }
    // A directory with a HEAD only, to which signs of a repository are added.
    fs::create_dir_all(fixture.path("host/lib"))?;
    fs::write(fixture.path("host/lib/HEAD"), "a source\n")?;
    for path in
        ["upper/bare/refs/heads", "upper/lib/refs", "upper/lib/objects", "upper/new/repo/refs"]
    {
        fs::create_dir_all(fixture.path(path))?;
    }
    for path in [
        "upper/bare/description",
        "upper/bare/refs/heads/main",
        "upper/lib/refs/x",
        "upper/lib/plain",
        "upper/new/repo/HEAD",
        "upper/new/repo/config",
    ] {
        fs::write(fixture.path(path), "the agent's\n")?;
    }
    mknod(&fixture.path("upper/bare/HEAD"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
    mknod(&fixture.path("upper/gone.git"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
    mknod(&fixture.path("upper/nested"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
    fixture.begin()?;
    let changes = fixture.changes()?;
    let held = changes.iter().filter(|change| change.held.is_some());
    let held: Vec<String> =
        held.map(|change| String::from_utf8_lossy(&change.path).into_owned()).collect();
    let expected = [
        "bare",
        "gone.git",
        "lib/objects",
        "lib/refs",
        "lib/refs/x",
        "nested/work",
        "nested",
        "new/repo",
    ];
    assert_eq!(held, expected);
    assert!(changes.iter().any(|change| change.path == b"lib/plain" && change.is_applicable()));
    Ok(())
}

#[test]
fn a_list_of_some_paths_is_a_part_of_the_whole_list() -> Tested<()> {
    let fixture = Fixture::new()?;
    let whole = fixture.changes()?;
    let paths = |changes: &[Change]| -> Vec<String> {
        changes.iter().map(|change| String::from_utf8_lossy(&change.path).into_owned()).collect()
    };
    for (only, expected) in [
        (&["new/deep"][..], &["new", "new/deep", "new/deep/file"][..]),
        (&["old", "changed"], &["changed", "old/a", "old/deep/b", "old/deep", "old"]),
        (&["old/deep/b"], &["old/deep/b", "old/deep", "old"]),
        (&["ne", "new/deep/fil", "missing"], &["new", "new/deep"]),
    ] {
        let only: Vec<&[u8]> = only.iter().map(|path| path.as_bytes()).collect();
        let listed = fixture.changes_at(&only)?;
        assert_eq!(paths(&listed), expected);
        assert!(listed.iter().all(|change| whole.contains(change)));
    }
    assert_eq!(fixture.changes_at(&[b""])?, whole);
    Ok(())
}

#[test]
fn what_cannot_be_applied_alone_is_held_back_together() -> Tested<()> {
    let mut fixture = Fixture::new()?;
    // A directory of the host, and a file, in whose place comes a link that leads out.
    fs::remove_file(fixture.path("upper/kind"))?;
    fs::write(fixture.path("host/kind/k"), "kept\n")?;
    symlink("/etc", fixture.path("upper/kind"))?;
    fs::create_dir_all(fixture.path("host/held"))?;
    fs::write(fixture.path("host/held/.envrc"), "the host's\n")?;
    fs::write(fixture.path("host/held/plain"), "the host's\n")?;
    mknod(&fixture.path("upper/held"), SFlag::S_IFCHR, Mode::S_IRUSR, 0)?;
    fixture.begin()?;
    let changes = fixture.changes()?;
    let of = |path: &str| {
        let found = changes.iter().filter(|change| change.path == path.as_bytes());
        found.map(|change| change.held).collect::<Vec<_>>()
    };
    use super::super::judge::Held;
    assert_eq!(of("kind"), [Some(Held::Replaced), Some(Held::LinkOut)]);
    assert_eq!(of("kind/k"), [Some(Held::Replaced)]);
    assert_eq!(of("held"), [Some(Held::InTheWay)]);
    assert_eq!(of("held/plain"), [None]);
    assert!(matches!(of("held/.envrc").as_slice(), [Some(Held::Obeyed(_))]));
    Ok(())
}

#[test]
fn the_top_is_known_after_an_apply_without_the_staging_directory() -> Tested<()> {
    for is_changed in [false, true] {
        let mut fixture = Fixture::new()?;
        fixture.begin()?;
        fixture.recorded()?;
        if is_changed {
            fs::write(fixture.path("host/made-by-the-host"), "")?;
        }
        fixture.finish().map_err(stopped)?;
        let top = Seen::from(&fstat(&fixture.host)?);
        let applied = AppliedFiles::read(&fixture.layer)?;
        assert_eq!(applied.has(b"", &top), !is_changed, "changed by the host: {is_changed}");
    }
    Ok(())
}

#[test]
fn a_file_of_the_host_stays_if_its_replacement_cannot_be_staged() -> Tested<()> {
    let fixture = Fixture::new()?;
    fs::write(fixture.path("host/kind/below"), "kept\n")?;
    let mut changes = fixture.changes()?;
    for change in changes.iter_mut().filter(|change| change.act == Act::Add) {
        // As if a cell had changed the file after it was judged, with the same size and time.
        if let Some(new) = change.new.as_mut().filter(|_| change.path == b"kind") {
            new.changed.1 += 1;
        }
    }
    let changes: Vec<&Change> = changes.iter().collect();
    let mut staging = Staging::make(&fixture.layer, &fixture.host, &fixture.upper, fixture.owner)?;
    let (steps, left) = staging.stage(&changes)?;
    let expected_left =
        ["kind", "kind/below", "kind"].map(|path| (path.as_bytes().to_vec(), Left::Changed));
    assert_eq!(left, expected_left);
    record(&fixture.layer, &staging.directory, &fixture.host, fixture.since, steps)?;
    assert_eq!(fixture.finish().map(|finished| finished.left), Ok(Vec::new()));
    let mut rest = expected();
    rest.insert("host/kind".to_owned(), "directory".to_owned());
    rest.insert("host/kind/below".to_owned(), "0 kept\n".to_owned());
    assert_eq!(fixture.tree()?, rest);
    Ok(())
}

#[test]
fn a_directory_of_the_layer_that_its_owner_cannot_write_to_does_not_stop_an_apply() -> Tested<()> {
    let closed_to = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    for (mode, is_held) in [(0o500, false), (0o500, true), (0o100, false), (0o000, true)] {
        let mut fixture = Fixture::new()?;
        let mut changes = fixture.changes()?;
        // A file that an apply does not take, so that its directory stays in the layer.
        changes.retain(|change| !is_held || change.path != b"new/deep/file");
        fixture.recorded_of(&changes)?;
        sys::xattr::set(open(&fixture.path("upper/new/deep"))?, super::super::files::OPAQUE, b"y")?;
        closed_to(&fixture.path("upper/new/deep"), mode)?;
        closed_to(&fixture.path("upper/new"), mode)?;
        let finished = as_user(&mut fixture, Fixture::finish)?.map_err(stopped)?;
        assert_eq!(finished.left, [], "{mode:o}");
        assert!(!is_unfinished(&fixture.layer)?);
        if mode == 0o500 && !is_held {
            assert_eq!(fs::read_dir(fixture.path("upper"))?.count(), 0);
        }
    }
    Ok(())
}

/// Gives the files of a fixture to a user, and calls a function with that user's rights to files.
fn as_user<T>(fixture: &mut Fixture, act: impl FnOnce(&Fixture) -> T) -> Tested<T> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(act(fixture));
    }
    let (uid, gid) = (4711, 4711);
    let mut all = vec![fixture.held.path().to_owned()];
    while let Some(path) = all.pop() {
        std::os::unix::fs::lchown(&path, Some(uid), Some(gid))?;
        if path.symlink_metadata()?.is_dir() {
            for entry in fs::read_dir(&path)? {
                all.push(entry?.path());
            }
        }
    }
    fixture.owner = Owner::of(&fstat(&fixture.host)?);
    nix::unistd::setfsgid(nix::unistd::Gid::from_raw(gid));
    nix::unistd::setfsuid(nix::unistd::Uid::from_raw(uid));
    let done = act(fixture);
    nix::unistd::setfsuid(nix::unistd::Uid::from_raw(0));
    nix::unistd::setfsgid(nix::unistd::Gid::from_raw(0));
    Ok(done)
}

#[test]
fn what_is_put_in_a_staged_directory_does_not_reach_the_host() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (_, steps) = fixture.recorded()?;
    let number = steps.iter().position(|step| step.path() == b"new").unwrap_or_default();
    let staged = fixture.path("host").join(fixture.staging_name()).join(number.to_string());
    fs::create_dir(staged.join("hooks"))?;
    fs::write(staged.join("hooks/evil.json"), "evil\n")?;
    fs::set_permissions(&staged, PermissionsExt::from_mode(0o6755))?;
    assert_eq!(fixture.finish().map(|finished| finished.left), Ok(Vec::new()));
    assert_eq!(fixture.tree()?, expected());
    let made = fixture.path("host/new").metadata()?.permissions().mode();
    assert_eq!(made & 0o7777, 0o755);
    Ok(())
}

#[test]
fn another_directory_in_place_of_a_staged_one_is_not_taken_for_it() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (_, steps) = fixture.recorded()?;
    let number = steps.iter().position(|step| step.path() == b"new").unwrap_or_default();
    let staged = fixture.path("host").join(fixture.staging_name()).join(number.to_string());
    fs::rename(&staged, fixture.path("aside"))?;
    symlink(fixture.path("aside"), &staged)?;
    let finished = fixture.finish().map_err(stopped)?;
    assert!(finished.left.contains(&(b"new".to_vec(), Left::Changed)));
    assert!(!fixture.path("host/new").exists());
    assert_eq!(fs::read_to_string(fixture.path("upper/new/deep/file"))?, "new\n");
    Ok(())
}

#[test]
fn a_staged_file_that_is_lost_or_changed_is_not_taken_for_applied() -> Tested<()> {
    for (path, change) in [("script", None), ("changed", None), ("script", Some("another text\n"))]
    {
        let fixture = Fixture::new()?;
        let before = fs::read_to_string(fixture.path("host").join(path)).ok();
        let layers = fs::read_to_string(fixture.path("upper").join(path))?;
        let (_, steps) = fixture.recorded()?;
        let number = steps.iter().position(|step| step.path() == path.as_bytes());
        let number = number.unwrap_or_default().to_string();
        let staged = fixture.path("host").join(fixture.staging_name()).join(number);
        match change {
            None => fs::remove_file(&staged)?,
            Some(text) => fs::write(&staged, text)?,
        }
        let finished = fixture.finish().map_err(stopped)?;
        assert_eq!(finished.left, [(path.as_bytes().to_vec(), Left::Changed)], "{path}");
        assert_eq!(fs::read_to_string(fixture.path("host").join(path)).ok(), before, "{path}");
        assert_eq!(fs::read_to_string(fixture.path("upper").join(path))?, layers, "{path}");
    }
    Ok(())
}

#[test]
fn a_second_save_during_a_step_is_kept() -> Tested<()> {
    for (path, is_free) in [("changed", true), ("changed", false), ("removed", true)] {
        let fixture = Fixture::new()?;
        let (_, steps) = fixture.recorded()?;
        let number = steps.iter().position(|step| step.path() == path.as_bytes());
        let number = number.unwrap_or_default().to_string();
        let own = fixture.path("host").join(fixture.staging_name()).join(number);
        // As after the exchange back: the second save is in the staging directory, the first one in
        // its place.
        fs::write(fixture.path("second"), "second\n")?;
        fs::rename(fixture.path("second"), &own)?;
        fs::write(fixture.path("host").join(path), "the first save\n")?;
        if !is_free {
            fs::write(fixture.path("host/changed.cofferdam-kept"), "the host's\n")?;
        }
        let finished = fixture.finish().map_err(stopped)?;
        assert_eq!(finished.left, [(path.as_bytes().to_vec(), Left::Changed)]);
        let end = if is_free { "" } else { "-2" };
        let kept = fixture.path("host").join(format!("{path}.cofferdam-kept{end}"));
        assert_eq!(fs::read_to_string(fixture.path("host").join(path))?, "the first save\n");
        assert_eq!(fs::read_to_string(kept)?, "second\n");
        assert!(!own.exists() && !is_unfinished(&fixture.layer)?);
    }
    Ok(())
}

#[test]
fn a_directory_among_the_staged_files_is_neither_removed_nor_moved() -> Tested<()> {
    let fixture = Fixture::new()?;
    let (_, steps) = fixture.recorded()?;
    let number = steps.iter().position(|step| step.path() == b"script").unwrap_or_default();
    let own = fixture.path("host").join(fixture.staging_name()).join(number.to_string());
    fs::remove_file(&own)?;
    fs::create_dir(&own)?;
    fs::write(own.join("file"), "the host's\n")?;
    fixture.finish().map_err(stopped)?;
    assert_eq!(fs::read_to_string(own.join("file"))?, "the host's\n");
    assert!(!fixture.path("host/script").exists() && !is_unfinished(&fixture.layer)?);
    Ok(())
}

#[test]
fn an_apply_that_is_given_up_leaves_no_staging_directory() -> Tested<()> {
    for (has_journal, is_changed) in [(false, false), (true, false), (true, true)] {
        let fixture = Fixture::new()?;
        let (_, steps) = if has_journal { fixture.recorded()? } else { fixture.staged()? };
        let number = steps.iter().position(|step| step.path() == b"removed").unwrap_or_default();
        let staging = fixture.path("host").join(fixture.staging_name());
        if is_changed {
            fs::rename(fixture.path("host/removed"), staging.join(number.to_string()))?;
            fs::write(staging.join(number.to_string()), "saved meanwhile\n")?;
        }
        journal::give_up(&fixture.layer, &fixture.host, fixture.owner).map_err(stopped)?;
        assert!(!staging.exists());
        let kept = fs::read_to_string(fixture.path("host/removed.cofferdam-kept")).ok();
        assert_eq!(kept.as_deref(), is_changed.then_some("saved meanwhile\n"));
    }
    Ok(())
}
