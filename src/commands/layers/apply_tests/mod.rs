//! Applies of a layer with a change of each kind: directories in place of an overlay's.

mod host_changes;
mod interrupted;
mod listed;
mod staged;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::{SFlag, mknod};

use super::*;
use crate::commands::layers::applied::AppliedFiles;
use crate::commands::layers::changes;
use crate::commands::layers::files::Stamp;
use crate::commands::layers::journal::{Interrupted, end, finish, give_up, is_unfinished, record};
use crate::commands::layers::judge::Judge;

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
        staging_directory::left(&self.layer).unwrap_or_default()
    }

    fn finish(&self) -> Result<Finished, Stopped> {
        finish(&self.layer, &self.upper, &self.host, self.owner)
    }

    fn end(&self) -> Result<Interrupted, Stopped> {
        end(&self.layer, &self.upper, &self.host, self.owner)
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

fn take(host: &OwnedFd, staging: &OwnedFd, number: usize, step: &Step) -> Result<(), Left> {
    let owner = Owner::of(&fstat(host)?);
    step::take(host, staging, owner, number, step).map(drop)
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
