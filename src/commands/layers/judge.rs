//! Decides which changes of a layer are held back when it is applied: what the host would run or obey
//! by itself, and what could lead it elsewhere.
//!
//! The names are those that a directly granted directory guards (`cell::mediate::names`), with the
//! files that the host's own configuration names (`supervisor::protect`). A cell chose every path
//! that is judged here.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cell::mediate::names::{self, DirectoryClass, HOOKS, NameClass, OBEYED};
use supervisor::protect::GuardedPaths;

/// Start of names that belong to cofferdam.
const RESERVED: &[u8] = b".cofferdam";

/// Why a change is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// A name that a program of the host obeys, with what it does.
    Obeyed(&'static str),
    /// A part of a repository.
    Repository,
    /// A name that the operator guards.
    Operators,
    /// A file that a configuration on the host names, or a link there.
    Named,
    Reserved,
    /// A link that may lead out of the directory, or to what the host obeys.
    LinkOut,
    LinkToGuarded,
    /// Neither a file nor a directory nor a link.
    Special,
    /// Too deep in directories to be looked at.
    Deep,
    /// A file that cannot be read.
    Unreadable,
    /// In place of a directory of the host of which something stays.
    InTheWay,
}

impl Held {
    /// Returns the reason in words.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Obeyed(reason) => reason,
            Self::Repository => {
                "git runs or obeys parts of a repository: its files are never applied"
            }
            Self::Operators => "a name of `[guard] names`",
            Self::Named => "the host's configuration names it as something that runs or is obeyed",
            Self::Reserved => "names that begin with `.cofferdam` are reserved",
            Self::LinkOut => "the link may lead out of the directory",
            Self::LinkToGuarded => "the link leads to what the host obeys",
            Self::Special => "only files, directories and links are applied",
            Self::Deep => "too deep in directories",
            Self::Unreadable => "it cannot be read",
            Self::InTheWay => "something in the directory that it replaces stays",
        }
    }
}

/// The rules of one directory of the host.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    /// Paths that are guarded as they are, below the directory.
    guarded: BTreeSet<PathBuf>,
    /// Names that the operator guards.
    also: Vec<Vec<u8>>,
}

impl Judge {
    pub(crate) fn new(guarded: &GuardedPaths, also: &BTreeSet<String>) -> Self {
        let also = also.iter().map(|name| name.clone().into_bytes()).collect();
        Self { guarded: guarded.all().map(Path::to_owned).collect(), also }
    }

    /// Judges a name in a directory. `has_head` is true if the directory on the host has a `HEAD`,
    /// with which other names would make it a repository.
    pub(crate) fn name(&self, path: &[u8], name: &[u8], has_head: bool) -> Option<Held> {
        if name.len() >= RESERVED.len()
            && name.get(..RESERVED.len()).is_some_and(|start| start.eq_ignore_ascii_case(RESERVED))
        {
            return Some(Held::Reserved);
        }
        let class = NameClass::classify(name);
        let directory = if has_head { DirectoryClass::Headed } else { DirectoryClass::WorkTree };
        if class == NameClass::Obeyed {
            let known = OBEYED.iter().find(|(word, _)| names::may_be(name, word));
            return Some(known.map_or(Held::Repository, |(_, reason)| Held::Obeyed(reason)));
        }
        // Covers `HEAD` itself, wherever it would be made.
        if directory.refuses(class) {
            return Some(Held::Repository);
        }
        if names::may_be(name, HOOKS) && names::has_obeyed(path) {
            return Some(Held::Obeyed("agents run the hooks in it"));
        }
        if names::is_one_of(&self.also, name) {
            return Some(Held::Operators);
        }
        let path = Path::new(OsStr::from_bytes(path));
        if self.is_guarded(path) {
            return Some(Held::Named);
        }
        None
    }

    /// Judges a link at `path` with this text.
    pub(crate) fn link(&self, path: &[u8], text: &[u8]) -> Option<Held> {
        if text.first() == Some(&b'/') {
            return Some(Held::LinkOut);
        }
        let (directory, _) = super::files::split(path);
        let mut target: Vec<&[u8]> = names::parts(directory).collect();
        for part in names::parts(text) {
            match part {
                b"." => {}
                b".." => {
                    if target.pop().is_none() {
                        return Some(Held::LinkOut);
                    }
                }
                part => target.push(part),
            }
        }
        // A `..` behind a name is where that name leads, which a link can change.
        let mut has_name = false;
        for part in names::parts(text) {
            match part {
                b"." => {}
                b".." if has_name => return Some(Held::LinkOut),
                b".." => {}
                _ => has_name = true,
            }
        }
        let target = target.join(&b'/');
        let is_obeyed = |part: &[u8]| {
            NameClass::classify(part) == NameClass::Obeyed || names::is_one_of(&self.also, part)
        };
        if names::parts(&target).any(is_obeyed)
            || names::has_obeyed(&target)
            || self.is_guarded(Path::new(OsStr::from_bytes(&target)))
        {
            return Some(Held::LinkToGuarded);
        }
        // A guarded path that would lead through the link.
        let path = Path::new(OsStr::from_bytes(path));
        let is_above = self.guarded.iter().any(|guarded| is_at_or_below(guarded, path));
        is_above.then_some(Held::Named)
    }

    /// Returns true if a path is a guarded one or lies below one.
    fn is_guarded(&self, path: &Path) -> bool {
        self.guarded.iter().any(|guarded| is_at_or_below(path, guarded))
    }
}

/// Compares paths as a filesystem would that ignores upper and lower case.
fn is_at_or_below(path: &Path, directory: &Path) -> bool {
    let mut names = path.components();
    directory.components().all(|part| {
        names.next().is_some_and(|name| {
            name == part
                || names::may_be_same(name.as_os_str().as_bytes(), part.as_os_str().as_bytes())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge() -> Judge {
        let guarded = ["tools/check", "team.gitconfig"].map(PathBuf::from);
        Judge { guarded: guarded.into_iter().collect(), also: vec![b"deploy.sh".to_vec()] }
    }

    fn name(path: &str) -> Option<Held> {
        let (_, last) = super::super::files::split(path.as_bytes());
        judge().name(path.as_bytes(), last, false)
    }

    #[test]
    fn every_name_that_the_host_obeys_is_held_back_in_any_spelling() {
        for (word, reason) in OBEYED {
            assert_eq!(name(word), Some(Held::Obeyed(reason)), "{word}");
            let upper = format!("deep/er/{}", word.to_uppercase());
            assert_eq!(name(&upper), Some(Held::Obeyed(reason)), "{upper}");
        }
        for path in [".git", "a/.GIT", "git~1", "HEAD", "lib/head", ".git:x", ".git ."] {
            assert_eq!(name(path), Some(Held::Repository), "{path}");
        }
        assert!(matches!(name(".github/hooks"), Some(Held::Obeyed(_))));
        assert_eq!(name("Deploy.SH"), Some(Held::Operators));
        assert_eq!(name("Tools/check"), Some(Held::Named));
        assert_eq!(name("tools/check/below"), Some(Held::Named));
        assert_eq!(name(".Cofferdam-x"), Some(Held::Reserved));
        for path in ["src/main.rs", "tools", "tools/other", "config", "hooks", ".github/workflows"]
        {
            assert_eq!(name(path), None, "{path}");
        }
    }

    #[test]
    fn parts_of_a_repository_are_held_back_where_the_host_has_its_head() {
        let judge = judge();
        for part in ["hooks", "config", "commondir", "info"] {
            let path = format!("bare/{part}");
            let held = judge.name(path.as_bytes(), part.as_bytes(), true);
            assert_eq!(held, Some(Held::Repository), "{part}");
        }
        assert_eq!(judge.name(b"bare/README", b"README", true), None);
    }

    #[test]
    fn a_link_stays_in_the_directory_and_away_from_what_is_obeyed() {
        let link = |path: &str, text: &str| judge().link(path.as_bytes(), text.as_bytes());
        for (path, text) in [
            ("a", "/etc/passwd"),
            ("a", ".."),
            ("a", "../x"),
            ("a/b", "../../x"),
            ("a/b", "c/../../../x"),
            ("a/b", "c/.."),
        ] {
            assert_eq!(link(path, text), Some(Held::LinkOut), "{path} -> {text}");
        }
        for (path, text) in [
            ("a", ".git/config"),
            ("a/b", "../.Envrc"),
            ("x", "tools/check"),
            ("a", ".github/hooks/x"),
        ] {
            assert_eq!(link(path, text), Some(Held::LinkToGuarded), "{path} -> {text}");
        }
        assert_eq!(link("tools", "elsewhere"), Some(Held::Named));
        for (path, text) in [("a", "b"), ("a/b", "../c"), ("a/b", "./c/d"), ("a", "missing")] {
            assert_eq!(link(path, text), None, "{path} -> {text}");
        }
    }
}
