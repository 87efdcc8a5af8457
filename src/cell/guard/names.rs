//! Names that the host runs or obeys by themselves, and where: what rulings R6 guards.

/// Names that editors, shells and agents run or obey, wherever they lie.
pub const OBEYED: [&str; 5] = [".envrc", ".vscode", ".idea", ".claude", ".mcp.json"];
/// A repository's own directory, or the file that stands for it.
pub const GIT: &str = ".git";
/// What makes a directory a repository to git, with `objects` and `refs`, which many have (git's
/// is_git_directory). Without it the other parts mean nothing.
pub const HEAD: &str = "HEAD";
/// Parts of a repository that git runs or obeys.
/// `commondir`, which a linked worktree's has, names where git finds its hooks and its `config`.
/// The locks become what they are named after: git writes a new configuration there, and renames.
pub const GIT_PARTS: [&str; 6] =
    ["hooks", "config", "config.worktree", "config.lock", "config.worktree.lock", COMMONDIR];
pub const COMMONDIR: &str = "commondir";
pub const OBJECTS: &str = "objects";

/// Whether a filesystem may take `name` for `word`. In doubt it may.
#[must_use]
pub fn may_be(name: &[u8], word: &str) -> bool {
    may_be_same(name, word.as_bytes())
}

/// Whether a filesystem may take two names for one: letters in either case, what Windows'
/// filesystems leave out (trailing dots and blanks, `:` and what follows), what Unicode's folding
/// leaves out or turns into ASCII, and the short name that VFAT gives to `word`.
#[must_use]
pub fn may_be_same(name: &[u8], word: &[u8]) -> bool {
    folded(name).eq(folded(word)) || may_be_short(name, word)
}

/// A name in lower case ASCII; what is not ASCII and does not fold to it is left out.
fn folded(name: &[u8]) -> impl Iterator<Item = u8> {
    let stem = name.split(|byte| *byte == b':').next().unwrap_or_default();
    let mut rest = stem.trim_suffix_of(b". ");
    let mut more: &[u8] = b"";
    std::iter::from_fn(move || {
        loop {
            if let [byte, after @ ..] = more {
                more = after;
                return Some(*byte);
            }
            // All that folds to ASCII letters (CaseFolding.txt, C and F): the long s, the Kelvin
            // sign, the sharp s and the ligatures.
            let step: (&[u8], &[u8]) = match rest {
                [0xc5, 0xbf, after @ ..] => (b"s", after),
                [0xe2, 0x84, 0xaa, after @ ..] => (b"k", after),
                [0xc3, 0x9f, after @ ..] | [0xe1, 0xba, 0x9e, after @ ..] => (b"ss", after),
                [0xef, 0xac, 0x80, after @ ..] => (b"ff", after),
                [0xef, 0xac, 0x81, after @ ..] => (b"fi", after),
                [0xef, 0xac, 0x82, after @ ..] => (b"fl", after),
                [0xef, 0xac, 0x83, after @ ..] => (b"ffi", after),
                [0xef, 0xac, 0x84, after @ ..] => (b"ffl", after),
                [0xef, 0xac, 0x85 | 0x86, after @ ..] => (b"st", after),
                [byte, after @ ..] if byte.is_ascii() => {
                    rest = after;
                    return Some(byte.to_ascii_lowercase());
                }
                [_, after @ ..] => (b"", after),
                [] => return None,
            };
            (more, rest) = step;
        }
    })
}

/// Whether a name has the shape of a short name for `word`, as `GIT~1` for `.git` (vfat): first
/// letters, perhaps a hash of four digits, a tilde and a number.
fn may_be_short(name: &[u8], word: &[u8]) -> bool {
    let stem = name.split(|byte| *byte == b'.').next().unwrap_or_default();
    let mut halves = stem.splitn(2, |byte| *byte == b'~');
    let (Some(start), Some(number)) = (halves.next(), halves.next()) else { return false };
    let letters = word.iter().skip_while(|byte| **byte == b'.').take_while(|byte| **byte != b'.');
    let same = start.iter().zip(letters).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    let hash = start.get(same..).unwrap_or_default();
    same >= 2
        && matches!(hash.len(), 0 | 4)
        && hash.iter().all(u8::is_ascii_hexdigit)
        && !number.is_empty()
        && number.iter().all(u8::is_ascii_digit)
}

/// The parts of an absolute path.
pub fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

trait TrimSuffix {
    fn trim_suffix_of(&self, set: &[u8]) -> &[u8];
}

impl TrimSuffix for [u8] {
    fn trim_suffix_of(&self, set: &[u8]) -> &[u8] {
        let mut rest = self;
        while let [before @ .., last] = rest
            && set.contains(last)
        {
            rest = before;
        }
        rest
    }
}

/// What a name is to the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing by itself.
    Plain,
    /// Obeyed wherever it lies.
    Obeyed,
    /// [`HEAD`], as it is written; or in other letters, which matters where the case does not.
    Head {
        exact: bool,
    },
    /// Obeyed within a repository.
    Part,
    Commondir,
    Objects,
}

impl Kind {
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        let is = |word: &str| may_be(name, word);
        if is(GIT) || OBEYED.iter().any(|word| is(word)) {
            Self::Obeyed
        } else if is(HEAD) {
            Self::Head { exact: name == HEAD.as_bytes() }
        } else if is(COMMONDIR) {
            Self::Commondir
        } else if GIT_PARTS.iter().any(|word| is(word)) {
            Self::Part
        } else if is(OBJECTS) {
            Self::Objects
        } else {
            Self::Plain
        }
    }
}

/// What the directory is that a name is made in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Outside of every repository's own directory.
    WorkTree,
    /// The same, with a `HEAD` in it: a bare repository, or what could become one.
    Headed,
    /// The top of a repository's own directory.
    Repository,
    /// Below it, where git keeps files by the names of branches and remotes.
    Branches,
    /// Such a place with a HEAD, as a remote has.
    Remote,
    /// Such a place with a branch that is called as a part of a repository.
    Settled,
    /// Elsewhere below it.
    Inside,
}

impl Place {
    /// Whether a name of this kind must not be made in it.
    #[must_use]
    pub fn refuses(self, kind: Kind) -> bool {
        match (kind, self) {
            (Kind::Plain, _) => false,
            (Kind::Obeyed, _) => true,
            // A branch may be called `config`, and a remote has a HEAD, but no directory has both:
            // what else makes a repository could be moved in and out, and a socket, which nobody
            // is asked about, can stand for `objects`.
            (Kind::Part, Self::Branches | Self::Settled) => false,
            (Kind::Head { .. }, Self::Branches | Self::Remote | Self::Repository) => false,
            (Kind::Objects | Kind::Commondir, Self::Branches | Self::Remote | Self::Settled) => {
                true
            }
            (Kind::Objects, Self::WorkTree | Self::Headed | Self::Repository | Self::Inside) => {
                false
            }
            (Kind::Head { .. }, Self::WorkTree | Self::Headed | Self::Settled | Self::Inside) => {
                true
            }
            (Kind::Part | Kind::Commondir, Self::WorkTree) => false,
            (Kind::Part, Self::Headed | Self::Repository | Self::Remote | Self::Inside) => true,
            (Kind::Commondir, Self::Headed | Self::Repository | Self::Inside) => true,
        }
    }
}

/// The part of a directory's path that tells its [`Place`]: what follows the first `.git` in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// There is none.
    Without,
    /// It ends with it.
    Top,
    /// Below `refs` or `logs`, or one of these.
    Branches,
    Inside,
}

impl Depth {
    #[must_use]
    pub fn of(path: &[u8]) -> Self {
        let mut parts = path.split(|byte| *byte == b'/');
        if !parts.any(|part| may_be(part, GIT)) {
            return Self::Without;
        }
        let mut below = parts.filter(|part| !part.is_empty()).peekable();
        if below.peek().is_none() {
            Self::Top
        } else if below.any(holds_branches) {
            Self::Branches
        } else {
            Self::Inside
        }
    }
}

fn holds_branches(name: &[u8]) -> bool {
    may_be(name, "refs") || may_be(name, "logs")
}

/// Whether a rename from one directory and name to another leaves all below it in places of the
/// same kind: a remote's directory may hold a `HEAD` and a branch called `config`, and elsewhere
/// the two would be half a repository.
#[must_use]
pub fn lets_rename((from, name): (Depth, &[u8]), (to, new): (Depth, &[u8])) -> bool {
    match (from, to) {
        (Depth::Without, Depth::Without) | (Depth::Branches, Depth::Branches) => true,
        (Depth::Top | Depth::Inside, Depth::Top | Depth::Inside) => {
            !holds_branches(name) && !holds_branches(new)
        }
        (Depth::Without | Depth::Branches | Depth::Top | Depth::Inside, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_however_a_filesystem_may_spell_it() {
        let spellings =
            [".git", ".GIT", ".Git", ".git.", ".git. .", ".git::$INDEX_ALLOCATION", ".g\u{200c}it"];
        for name in spellings {
            assert_eq!(Kind::of(name.as_bytes()), Kind::Obeyed, "{name}");
        }
        assert_eq!(Kind::of(".v\u{17f}code".as_bytes()), Kind::Obeyed);
        for name in ["hoo\u{212a}s", "con\u{fb01}g", "config.lock", "CONFIG~1.WOR"] {
            assert_eq!(Kind::of(name.as_bytes()), Kind::Part, "{name}");
        }
        for name in ["git~1", "GIT~2", "GI3F2A~1", "VSCODE~1", "mcp~1.jso"] {
            assert_eq!(Kind::of(name.as_bytes()), Kind::Obeyed, "{name}");
        }
        for name in ["git~", "git~x", "g~1", "digit~1", ".envrc.~1~", "gist~1"] {
            assert_eq!(Kind::of(name.as_bytes()), Kind::Plain, "{name}");
        }
        let named = "\u{e4}.h\u{fc}sky".as_bytes();
        assert!(may_be_same(named, named) && !may_be_same(b".husk", named));
        for name in ["git", ".gitignore", ".github", ".envrc.example", "envrc", "..git", ""] {
            assert_eq!(Kind::of(name.as_bytes()), Kind::Plain, "{name}");
        }
    }

    #[test]
    fn what_makes_a_repository_is_told_from_what_lies_in_one() {
        assert_eq!(Kind::of(b"HEAD"), Kind::Head { exact: true });
        assert_eq!(Kind::of(b"head"), Kind::Head { exact: false });
        assert_eq!(Kind::of(b"HEAD.lock"), Kind::Plain);
        assert_eq!(Kind::of(b"FETCH_HEAD"), Kind::Plain);
        assert_eq!(Kind::of(b"config"), Kind::Part);
        assert_eq!(Kind::of(b"config.worktree"), Kind::Part);
        assert_eq!(Kind::of(b"commondir"), Kind::Commondir);
        assert_eq!(Kind::of(b"objects"), Kind::Objects);
    }

    #[test]
    fn the_path_of_a_directory_tells_how_deep_in_a_repository_it_is() {
        let depths = [
            ("/workspace", Depth::Without),
            ("/workspace/git/refs", Depth::Without),
            ("/workspace/.git", Depth::Top),
            ("/workspace/sub/.git/refs", Depth::Branches),
            ("/workspace/.git/logs/refs/heads", Depth::Branches),
            ("/workspace/.git/modules/lib/refs/remotes/origin", Depth::Branches),
            ("/workspace/.git/modules/lib", Depth::Inside),
            ("/workspace/.git/objects/pack", Depth::Inside),
        ];
        for (path, depth) in depths {
            assert_eq!(Depth::of(path.as_bytes()), depth, "{path}");
        }
    }

    #[test]
    fn no_directory_can_come_to_have_all_that_makes_it_a_repository_with_settings() {
        // Settings need a HEAD beside them, and objects: in each place one of the three is refused,
        // but at the top of a repository that is there, whose settings are.
        let beside = [Place::Branches, Place::Remote, Place::Settled];
        for place in [Place::WorkTree, Place::Headed, Place::Inside].into_iter().chain(beside) {
            let refuses = |kind| place.refuses(kind);
            let whole = [Kind::Head { exact: true }, Kind::Part, Kind::Objects];
            assert!(whole.into_iter().any(refuses), "{place:?}");
            let linked = [Kind::Head { exact: true }, Kind::Commondir];
            assert!(linked.into_iter().any(refuses), "{place:?}");
            assert!(refuses(Kind::Obeyed), "{place:?}");
        }
        // Beside a HEAD no settings come to be, and beside settings no HEAD.
        assert!(Place::Remote.refuses(Kind::Part));
        assert!(Place::Settled.refuses(Kind::Head { exact: true }));
        assert!(Place::Repository.refuses(Kind::Part));
        assert!(Place::Repository.refuses(Kind::Commondir));
        assert!(!Place::Repository.refuses(Kind::Head { exact: true }));
    }

    #[test]
    fn no_rename_makes_a_directory_of_branches_something_else() {
        use Depth::{Branches, Inside, Top, Without};
        let lets = |from: (Depth, &str), to: (Depth, &str)| {
            lets_rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()))
        };
        assert!(lets((Without, "refs"), (Without, "logs")));
        assert!(lets((Branches, "origin"), (Branches, "refs")));
        assert!(lets((Top, "HEAD.lock"), (Top, "HEAD")));
        assert!(lets((Inside, "a"), (Top, "b")));
        let refused = [
            ((Branches, "origin"), (Inside, "lib")),
            ((Branches, "origin"), (Without, "lib")),
            ((Without, "x"), (Branches, "x")),
            ((Top, "refs"), (Top, "x")),
            ((Inside, "x"), (Inside, "Logs")),
        ];
        for (from, to) in refused {
            assert!(!lets(from, to), "{from:?} to {to:?}");
        }
    }
}
