//! Reads the operator's name and address for commits from git's configuration, and no other setting.

use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

use super::held_paths::read_regular;
use crate::commands::settings::Settings;
use model::accounts;
use model::job::Access;
use model::profile::GitIdentity;
use supervisor::Granted;
use supervisor::protect::grammar::{self, WrittenSetting};

/// Depth to which git follows includes (config.c: MAX_INCLUDE_DEPTH).
const MAX_DEPTH: usize = 10;
/// Maximum number of files that are read: files that include each other do not end soon.
const MAX_FILES: usize = 64;
/// Maximum bytes of a file that is read; git's files have a few kilobytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Gives cells the operator's identity for commits, if a directory that they may write to is a repository. `elsewhere` is
/// the directory that git uses for the workspace, if it lies outside.
pub(super) fn grant(settings: &mut Settings, elsewhere: Option<&Path>) {
    if !settings.loaded.config.git_identity.value {
        return;
    }
    let is_writable = |granted: &&Granted| granted.access != Access::ReadOnly;
    let granted = settings.granted.iter().flatten().filter(is_writable);
    let git = match elsewhere
        .filter(|git| granted.clone().any(|granted| git.starts_with(&granted.host)))
    {
        Some(git) => Some(git.to_owned()),
        None => granted
            .map(|granted| granted.host.join(".git"))
            // Not through a link, which may lead to a filesystem that does not answer.
            .find(|git| git.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())),
    };
    let Some(git) = git else { return };
    let identity = read(git).unwrap_or_default();
    for profile in settings.profiles.iter_mut().filter(|profile| profile.workspace) {
        profile.git_identity = Some(identity.clone());
        // A git that is not the distribution's has another default path.
        profile.env.insert("GIT_CONFIG_SYSTEM".to_owned(), "/etc/gitconfig".to_owned());
    }
}

/// Returns the identity that git would use for a commit in a repository, given its directory, without the repository's settings. `None` if no
/// file sets one, or if it depends on a condition that is not understood here: a commit with a wrong address is worse
/// than a commit that git refuses.
fn read(git: PathBuf) -> Option<GitIdentity> {
    let mut reading = Reading {
        git,
        home: accounts::home(),
        identity: GitIdentity::default(),
        is_sure: true,
        files_left: MAX_FILES,
    };
    for file in reading.files() {
        reading.file(&file, 0);
    }
    let Reading { identity, is_sure, .. } = reading;
    (is_sure && identity != GitIdentity::default()).then_some(identity)
}

/// An identity as far as it was read.
struct Reading {
    /// The directory of the repository, which conditions match.
    git: PathBuf,
    home: Option<PathBuf>,
    identity: GitIdentity,
    /// False if git may read another identity.
    is_sure: bool,
    /// Number of files that may still be read.
    files_left: usize,
}

/// A setting that has to do with the identity.
enum Step {
    Name(String),
    Email(String),
    Include { condition: Option<String>, path: Vec<u8> },
}

impl Reading {
    /// Returns the files in git's order: later ones override earlier ones (git-config(1), FILES).
    fn files(&self) -> Vec<PathBuf> {
        let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let system = named("GIT_CONFIG_SYSTEM").unwrap_or_else(|| "/etc/gitconfig".into());
        let global = match named("GIT_CONFIG_GLOBAL") {
            Some(file) => vec![file],
            None => {
                let xdg = named("XDG_CONFIG_HOME").filter(|path| !path.as_os_str().is_empty());
                let xdg = xdg.or_else(|| Some(self.home.as_ref()?.join(".config")));
                let in_home = self.home.as_ref().map(|home| home.join(".gitconfig"));
                xdg.map(|xdg| xdg.join("git/config")).into_iter().chain(in_home).collect()
            }
        };
        std::iter::once(system).chain(global).collect()
    }

    fn file(&mut self, file: &Path, depth: usize) {
        if depth > MAX_DEPTH || self.files_left == 0 {
            self.is_sure = false;
            return;
        }
        self.files_left -= 1;
        // Git ignores a file that it may not read.
        let Some(text) = plain_file(file) else { return };
        let mut steps = Vec::new();
        let whole = grammar::settings(&text, |setting| steps.extend(step(&setting)));
        if whole == grammar::Whole::No {
            self.is_sure = false;
        }
        for step in steps {
            match step {
                Step::Name(name) => self.identity.name = Some(name),
                Step::Email(email) => self.identity.email = Some(email),
                Step::Include { condition, path } => {
                    let path = self.expanded(&path, file);
                    self.include(condition.as_deref(), &path, file, depth);
                }
            }
        }
    }

    fn include(&mut self, condition: Option<&str>, path: &Path, from: &Path, depth: usize) {
        match condition.map(|condition| self.holds(condition, from)) {
            None | Some(Some(true)) => self.file(path, depth + 1),
            Some(Some(false)) => {}
            Some(None) => {
                let before = self.identity.clone();
                self.file(path, depth + 1);
                self.is_sure &= self.identity == before;
            }
        }
    }

    /// Returns true if the condition of an include holds. `None` if that is not known here.
    fn holds(&self, condition: &str, from: &Path) -> Option<bool> {
        let (kind, pattern) = condition.split_once(':')?;
        let case_sensitive = match kind {
            "gitdir" => true,
            "gitdir/i" => false,
            _ => return None,
        };
        let mut pattern = match (pattern.strip_prefix("./"), pattern.strip_prefix("~/")) {
            (Some(below), _) => format!("{}/{below}", from.parent()?.to_str()?),
            (None, Some(below)) => format!("{}/{below}", self.home.as_ref()?.to_str()?),
            (None, None) if pattern.starts_with('/') => pattern.to_owned(),
            (None, None) => format!("**/{pattern}"),
        };
        if pattern.ends_with('/') {
            pattern.push_str("**");
        }
        let pattern = Pattern::new(&pattern).ok()?;
        let options = MatchOptions {
            case_sensitive,
            require_literal_separator: true,
            require_literal_leading_dot: false,
        };
        Some(pattern.matches_path_with(&self.git, options))
    }

    /// Replaces `~` in the path of an include as git does. Relative paths start at the directory of the file.
    fn expanded(&self, path: &[u8], from: &Path) -> PathBuf {
        let as_path = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        match (path.strip_prefix(b"~/"), &self.home) {
            (Some(below), Some(home)) => home.join(as_path(below)),
            _ => from.parent().unwrap_or(from).join(as_path(path)),
        }
    }
}

/// Reads a regular file. Other kinds are not opened for reading: a FIFO would wait for a writer, and a device may act.
fn plain_file(path: &Path) -> Option<Vec<u8>> {
    let held = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path).ok()?;
    read_regular(&held.into(), MAX_FILE_BYTES)
}

fn step(setting: &WrittenSetting<'_>) -> Option<Step> {
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).ok();
    let value = setting.value.filter(|value| !value.is_empty())?;
    match (setting.section, setting.subsection, setting.key) {
        (b"user", None, b"name") => text(value).map(Step::Name),
        (b"user", None, b"email") => text(value).map(Step::Email),
        (b"include", None, b"path") => Some(Step::Include { condition: None, path: value.into() }),
        (b"includeif", Some(condition), b"path") => {
            let condition = Some(String::from_utf8_lossy(condition).into_owned());
            Some(Step::Include { condition, path: value.into() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Failed = Box<dyn std::error::Error>;

    /// Reads the identity for `/home/me/work/p` from a configuration, with another file in its directory.
    fn read(config: &str, other: &str) -> Result<(GitIdentity, bool), Failed> {
        let home = tempfile::tempdir()?;
        std::fs::write(home.path().join("config"), config)?;
        std::fs::write(home.path().join("other"), other)?;
        let mut reading = Reading {
            git: "/home/me/work/p/.git".into(),
            home: Some("/home/me".into()),
            identity: GitIdentity::default(),
            is_sure: true,
            files_left: MAX_FILES,
        };
        reading.file(&home.path().join("config"), 0);
        Ok((reading.identity, reading.is_sure))
    }

    fn identity(name: &str, email: &str) -> GitIdentity {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        GitIdentity { name: some(name), email: some(email) }
    }

    #[test]
    fn name_and_address_are_read_and_nothing_else() -> Result<(), Failed> {
        let config = "[user]\n name = Me \\\"x\\\"\n email = me@example.org\n signingkey = k\n[user \"x\"]\n name = no\n\
            [core]\n editor = evil\n";
        assert_eq!(read(config, "")?, (identity("Me \"x\"", "me@example.org"), true));
        Ok(())
    }

    #[test]
    fn files_that_include_each_other_leave_no_identity() -> Result<(), Failed> {
        let circle = "[include]\n path = config\n".repeat(6);
        let (_, is_sure) = read(&format!("[user]\n name = Me\n{circle}"), "")?;
        assert!(!is_sure);
        Ok(())
    }

    #[test]
    fn an_include_counts_where_its_condition_holds() -> Result<(), Failed> {
        let config = "[user]\n email = a@b\n";
        let other = "[user]\n email = work@b\n";
        let holds = [
            "gitdir:~/work/",
            "gitdir:/home/me/**",
            "gitdir/i:~/WORK/",
            "gitdir:p/.git",
            "gitdir:work/",
        ];
        let fails = ["gitdir:~/other/", "gitdir:~/WORK/", "gitdir:/home/me/work", "gitdir:q/"];
        for (conditions, email) in [(&holds[..], "work@b"), (&fails[..], "a@b")] {
            for condition in conditions {
                let config = format!("{config}[includeIf \"{condition}\"]\n path = other\n");
                assert_eq!(read(&config, other)?, (identity("", email), true), "{condition}");
            }
        }
        let config =
            format!("{config}[include]\n path = other\n path = config\n path = /nothing\n");
        assert_eq!(read(&config, other)?.0, identity("", "a@b"), "and no circle is endless");
        Ok(())
    }

    #[test]
    fn a_condition_that_is_not_understood_leaves_no_identity() -> Result<(), Failed> {
        let config = "[user]\n email = a@b\n[includeIf \"onbranch:main\"]\n path = other\n";
        assert!(!read(config, "[user]\n email = c@d\n")?.1);
        assert!(read(config, "[core]\n pager = less\n")?.1, "unless it says nothing about it");
        assert!(!read("[user\n email = a@b\n", "")?.1, "nor does a file that git refuses");
        Ok(())
    }
}
