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

use super::files::{Seen, split};
use super::repository::is_sign;
use cell::mediate::names::{self, DirectoryClass, GIT, HOLDERS, HOOKS, NameClass, OBEYED};
use supervisor::protect::GuardedPaths;

/// Start of names that belong to cofferdam.
const RESERVED: &[u8] = b".cofferdam";
/// The directory of mise's configuration, and the one around it, which has that of other programs too.
const MISE: &str = "mise";
const CONFIG: &str = ".config";
const MISE_CONFIG: &str = "mise runs the hooks of its configuration, once trusted";
const HOOKS_OF_AGENTS: &str = "agents run the hooks in it";

/// Why a change is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// The list of what the host obeys may not be whole.
    Unseen,
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
    /// A link whose way is too long to be looked at.
    LongWay,
    /// A part of the way of one of the host's own links, which would lead there.
    Redirects,
    /// Another spelling of a name, where the filesystem has one file for both.
    SameName,
    /// Neither a file nor a directory nor a link.
    Special,
    /// Too deep in directories to be looked at.
    Deep,
    /// A file that cannot be read.
    Unreadable,
    /// In place of a directory of the host of which something stays.
    InTheWay,
    /// A file of the host in whose place something comes that is held back.
    Replaced,
}

impl Held {
    /// Returns the reason in words.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Unseen => "not everything that the host obeys could be found",
            Self::Obeyed(reason) => reason,
            Self::Repository => {
                "git runs or obeys parts of a repository: its files are never applied"
            }
            Self::Operators => "a name of `[guard] names`",
            Self::Named => "the host's configuration names it as something that runs or is obeyed",
            Self::Reserved => "names that begin with `.cofferdam` are reserved",
            Self::LinkOut => "the link may lead out of the directory",
            Self::LinkToGuarded => "the link leads to what the host obeys",
            Self::LongWay => "following the link takes too long",
            Self::Redirects => {
                "a link on the host would lead out of the directory, or to what the host obeys"
            }
            Self::SameName => "the filesystem takes it for the same name as another one",
            Self::Special => "only files, directories and links are applied",
            Self::Deep => "too deep in directories",
            Self::Unreadable => "it cannot be read",
            Self::InTheWay => "something in the directory stays",
            Self::Replaced => "what takes its place is held back",
        }
    }
}

/// The rules of one directory of the host.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    /// Name of the directory.
    base: Vec<u8>,
    /// Paths that are guarded as they are, below the directory.
    guarded: BTreeSet<PathBuf>,
    /// The guarded paths in which no name is obeyed anyway.
    unnamed: Vec<PathBuf>,
    /// Names that the operator guards.
    also: Vec<Vec<u8>>,
    /// The links of the directory that are not guarded.
    links: Vec<Vec<u8>>,
    /// Why nothing is applied.
    all: Option<Held>,
}

impl Judge {
    /// Makes the rules of the directory at `base` from a scan of it.
    pub(crate) fn new(base: &Path, guarded: &GuardedPaths, also: &BTreeSet<String>) -> Self {
        let also: Vec<_> = also.iter().map(|name| name.clone().into_bytes()).collect();
        let unseen = guarded.unseen().map(|_| Held::Unseen);
        let all: BTreeSet<PathBuf> = guarded.all().map(Path::to_owned).collect();
        Self {
            base: base.file_name().unwrap_or_default().as_bytes().to_vec(),
            unnamed: unnamed(&all),
            guarded: all,
            links: guarded.links().map(|path| path.as_os_str().as_bytes().to_vec()).collect(),
            all: unseen.or_else(|| held_as_a_whole(base, &also)),
            also,
        }
    }

    /// Returns why nothing in the directory is applied.
    pub(crate) fn all(&self) -> Option<Held> {
        self.all
    }

    /// Returns the links of the host that are not guarded, as paths below the directory.
    pub(crate) fn links(&self) -> &[Vec<u8>] {
        &self.links
    }

    /// Returns the directories of repositories that the host has, as paths below the directory, and the
    /// one at the top.
    pub(crate) fn repositories(&self) -> Vec<Vec<u8>> {
        let mut found = BTreeSet::from([GIT.as_bytes().to_vec()]);
        for path in self.guarded.iter().map(|path| path.as_os_str().as_bytes()) {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            let ends = ends.map(|(at, _)| at).chain([path.len()]);
            let mut parts = ends.filter_map(|end| path.get(..end));
            found.extend(parts.find(|part| names::may_be(split(part).1, GIT)).map(<[u8]>::to_vec));
        }
        found.into_iter().collect()
    }

    /// Judges a file at a path. `has_head` is true if its directory on the host has a `HEAD`, with
    /// which other names would make it a repository.
    pub(crate) fn name(&self, path: &[u8], seen: &Seen, has_head: bool) -> Option<Held> {
        let (_, name) = split(path);
        let is_directory = seen.is(libc::S_IFDIR);
        let judged = self.name_of(path, name, has_head).or_else(|| holder(name, is_directory));
        // What it leads to would not be judged as what is in it.
        let leads_on = !is_directory && names::may_be(name, CONFIG);
        judged.or(leads_on.then_some(Held::Obeyed(MISE_CONFIG)))
    }

    /// Judges a part of the way of a link, whatever is there.
    pub(crate) fn way(&self, path: &[u8], has_head: bool) -> Option<Held> {
        let (_, name) = split(path);
        self.name_of(path, name, has_head).or_else(|| holder(name, true))
    }

    /// Judges each part of a path that is longer than `above`, which is the length of its directory.
    pub(crate) fn whole_way(&self, above: usize, path: &[u8]) -> Option<Held> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let ends = ends.map(|(at, _)| at).chain([path.len()]).filter(|end| *end > above);
        ends.filter_map(|end| self.way(path.get(..end)?, false)).next()
    }

    fn name_of(&self, path: &[u8], name: &[u8], has_head: bool) -> Option<Held> {
        if name.len() >= RESERVED.len()
            && name.get(..RESERVED.len()).is_some_and(|start| start.eq_ignore_ascii_case(RESERVED))
        {
            return Some(Held::Reserved);
        }
        let class = NameClass::classify(name);
        let directory = if has_head { DirectoryClass::Headed } else { DirectoryClass::WorkTree };
        if class == NameClass::Obeyed {
            return Some(obeyed(name));
        }
        // Covers `HEAD` itself, wherever it would be made.
        if directory.refuses(class) || (has_head && is_sign(name)) {
            return Some(Held::Repository);
        }
        if names::may_be(name, HOOKS) && names::has_obeyed_below(&self.base, path) {
            return Some(Held::Obeyed(HOOKS_OF_AGENTS));
        }
        let (parent, _) = split(path);
        if names::may_be(name, MISE) && names::may_be(split(parent).1, CONFIG) {
            return Some(Held::Obeyed(MISE_CONFIG));
        }
        if names::is_one_of(&self.also, name) {
            return Some(Held::Operators);
        }
        self.is_guarded(Path::new(OsStr::from_bytes(path))).then_some(Held::Named)
    }

    /// Judges a link by its place: a guarded path must not lead through it.
    pub(crate) fn place_of_link(&self, path: &[u8]) -> Option<Held> {
        let path = Path::new(OsStr::from_bytes(path));
        let is_above = self.guarded.iter().any(|guarded| is_at_or_below(guarded, path));
        is_above.then_some(Held::Named)
    }

    /// Returns true if a path is a guarded one or lies below one.
    fn is_guarded(&self, path: &Path) -> bool {
        self.unnamed.iter().any(|guarded| is_at_or_below(path, guarded))
    }
}

/// Returns the paths that are not held back already by a name in them.
fn unnamed(guarded: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let is_named = |path: &&PathBuf| {
        let path = path.as_os_str().as_bytes();
        let is_obeyed = |part: &[u8]| NameClass::classify(part) == NameClass::Obeyed;
        names::has_obeyed(path) || names::parts(path).any(is_obeyed)
    };
    guarded.iter().filter(|path| !is_named(path)).cloned().collect()
}

/// Judges a name of a directory in which agents run hooks. It may only be a directory, and only in
/// the exact spelling: what a link leads to, or another spelling, is not judged as one.
fn holder(name: &[u8], is_directory: bool) -> Option<Held> {
    let is_exact = || is_directory && HOLDERS.iter().any(|word| word.as_bytes() == name);
    let is_held = NameClass::classify(name) == NameClass::Holder && !is_exact();
    is_held.then_some(Held::Obeyed(HOOKS_OF_AGENTS))
}

/// Returns the reason for a name that is obeyed in any directory.
fn obeyed(name: &[u8]) -> Held {
    let known = OBEYED.iter().find(|(word, _)| names::may_be(name, word));
    known.map_or(Held::Repository, |(_, reason)| Held::Obeyed(reason))
}

/// Judges the directory that has the layer: nothing is applied in one that is obeyed itself. The
/// names around it are not judged, as agents keep work trees in their own directories, apart from
/// that of a repository or of hooks.
fn held_as_a_whole(base: &Path, also: &[Vec<u8>]) -> Option<Held> {
    let path = base.as_os_str().as_bytes();
    let (_, name) = split(path);
    if names::parts(path).any(|part| names::may_be(part, GIT)) {
        return Some(Held::Repository);
    }
    if NameClass::classify(name) == NameClass::Obeyed {
        return Some(obeyed(name));
    }
    let mut parent: &[u8] = b"";
    let is_in_hooks = names::parts(path).any(|part| {
        let is_hooks = names::is_hooks(parent, part);
        parent = part;
        is_hooks
    });
    if is_in_hooks {
        return Some(Held::Obeyed(HOOKS_OF_AGENTS));
    }
    names::is_one_of(also, name).then_some(Held::Operators)
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
    use crate::commands::layers::files::Stamp;

    fn judge() -> Judge {
        let guarded = ["tools/check", "team.gitconfig"].map(PathBuf::from);
        let guarded = guarded.into_iter().collect();
        Judge {
            unnamed: unnamed(&guarded),
            guarded,
            also: vec![b"deploy.sh".to_vec()],
            ..Judge::default()
        }
    }

    fn seen(mode: libc::mode_t) -> Seen {
        let zero = Stamp(0, 0);
        Seen { device: 0, inode: 0, mode, size: 0, modified: zero, changed: zero, owner: (0, 0) }
    }

    fn held(path: &str, kind: libc::mode_t) -> Option<Held> {
        judge().name(path.as_bytes(), &seen(kind), false)
    }

    fn name(path: &str) -> Option<Held> {
        held(path, libc::S_IFDIR)
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
        for path in [".Git\u{200c}", ".g\u{200d}it", ".gi\u{feff}t..", "GIT~12", ".G\u{2064}it"] {
            assert_eq!(name(path), Some(Held::Repository), "{path}");
        }
        for path in [".Hus\u{212a}y", ".hu\u{17f}ky", ".VSCODE .", "vscode~1", "CLAUDE~2"] {
            assert!(matches!(name(path), Some(Held::Obeyed(_))), "{path}");
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
    fn the_configuration_of_mise_is_held_back_in_its_directory_alone() {
        let obeyed = Some(Held::Obeyed(MISE_CONFIG));
        assert_eq!(name(".config/mise"), obeyed);
        assert_eq!(name("a/.Config/MISE"), obeyed);
        assert_eq!(held(".config", libc::S_IFLNK), obeyed);
        for path in [".config", ".config/other", "mise", "config/mise"] {
            assert_eq!(name(path), None, "{path}");
        }
    }

    #[test]
    fn repositories_of_the_host_are_found_by_what_is_guarded_in_them() {
        let guarded = ["sub/.git/hooks", "sub/.git/config", "a/.git", "tools/check"];
        let judge = Judge { guarded: guarded.map(PathBuf::from).into(), ..Judge::default() };
        let expected = [&b".git"[..], b"a/.git", b"sub/.git"].map(<[u8]>::to_vec);
        assert_eq!(judge.repositories(), expected);
    }

    #[test]
    fn a_directory_of_agents_hooks_is_a_directory_of_that_name() {
        for word in HOLDERS {
            assert_eq!(held(word, libc::S_IFDIR), None, "{word}");
            for kind in [libc::S_IFLNK, libc::S_IFREG] {
                assert_eq!(held(word, kind), Some(Held::Obeyed(HOOKS_OF_AGENTS)), "{word}");
            }
            for other in [
                word.to_uppercase(),
                format!("{word}."),
                format!("{word} "),
                format!("a/{word}\u{200c}"),
                format!("{word}:x"),
            ] {
                assert_eq!(name(&other), Some(Held::Obeyed(HOOKS_OF_AGENTS)), "{other}");
            }
        }
        assert_eq!(name("GITHUB~1"), Some(Held::Obeyed(HOOKS_OF_AGENTS)));
    }

    #[test]
    fn hooks_at_the_top_of_a_directory_of_hooks_are_held_back() {
        for base in ["/u/p/.github", "/u/.Clinerules", "/u/.GITHUB."] {
            let judge = Judge::new(Path::new(base), &GuardedPaths::default(), &BTreeSet::new());
            assert_eq!(judge.all(), None, "{base}");
            let held = |path: &str| judge.name(path.as_bytes(), &seen(libc::S_IFDIR), false);
            for path in ["hooks", "Hooks", "HOOKS."] {
                assert_eq!(held(path), Some(Held::Obeyed(HOOKS_OF_AGENTS)), "{base} {path}");
            }
            let way = judge.whole_way(0, b"hooks/x");
            assert_eq!(way, Some(Held::Obeyed(HOOKS_OF_AGENTS)), "{base}");
            for path in ["workflows", "sub/hooks", "hook"] {
                assert_eq!(held(path), None, "{base} {path}");
            }
        }
    }

    #[test]
    fn parts_of_a_repository_are_held_back_where_the_host_has_its_head() {
        let judge = judge();
        for part in ["hooks", "config", "commondir", "info", "objects", "refs", "Refs", "gitdir"] {
            let path = format!("bare/{part}");
            let held = judge.name(path.as_bytes(), &seen(libc::S_IFREG), true);
            assert_eq!(held, Some(Held::Repository), "{part}");
        }
        assert_eq!(judge.name(b"bare/README", &seen(libc::S_IFREG), true), None);
    }

    #[test]
    fn every_part_of_a_way_is_judged() {
        let judge = judge();
        assert!(matches!(judge.whole_way(0, b"a/.vscode/x/y"), Some(Held::Obeyed(_))));
        assert_eq!(judge.whole_way(0, b"tools/check/x"), Some(Held::Named));
        assert_eq!(judge.whole_way(0, b"a/b"), None);
        // The directory itself is not judged.
        assert_eq!(judge.whole_way(8, b".codex/w/b"), None);
    }

    #[test]
    fn nothing_is_applied_in_a_directory_that_is_obeyed_itself() {
        let whole = |path: &str| held_as_a_whole(Path::new(path), &[b"deploy".to_vec()]);
        for path in ["/home/u/p/.git", "/home/u/p/.git/modules/x", "/home/u/.GIT/x"] {
            assert_eq!(whole(path), Some(Held::Repository), "{path}");
        }
        assert!(matches!(whole("/home/u/p/.vscode"), Some(Held::Obeyed(_))));
        assert!(matches!(whole("/home/u/p/.github/hooks"), Some(Held::Obeyed(_))));
        for path in ["/u/p/.github/hooks/x", "/u/.Clinerules/HOOKS/x/y", "/u/.github/hooks/.github"]
        {
            assert_eq!(whole(path), Some(Held::Obeyed(HOOKS_OF_AGENTS)), "{path}");
        }
        assert_eq!(whole("/home/u/Deploy"), Some(Held::Operators));
        // Agents keep work trees in their own directories.
        for path in ["/home/u/.codex/worktrees/p", "/home/u/p", "/home/u/p/.github", "/"] {
            assert_eq!(whole(path), None, "{path}");
        }
    }

    #[test]
    fn a_list_of_guarded_paths_that_may_not_be_whole_holds_everything_back() {
        let none = BTreeSet::new();
        let base = Path::new("/home/u/p");
        assert_eq!(Judge::new(base, &GuardedPaths::default(), &none).all(), None);
        let unseen = GuardedPaths::unseen_because("has more in it");
        assert_eq!(Judge::new(base, &unseen, &none).all(), Some(Held::Unseen));
    }
}
