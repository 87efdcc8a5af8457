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
pub const GIT_PARTS: [&str; 4] = ["hooks", "config", "config.worktree", COMMONDIR];
pub const COMMONDIR: &str = "commondir";
pub const OBJECTS: &str = "objects";

/// Whether a filesystem may take `name` for `word`, which is ASCII: letters in either case, what
/// Windows' filesystems leave out (trailing dots and blanks, `:` and what follows), and what
/// Unicode's folding leaves out or turns into ASCII. In doubt it may.
#[must_use]
pub fn may_be(name: &[u8], word: &str) -> bool {
    let stem = name.split(|byte| *byte == b':').next().unwrap_or_default();
    let stem = stem.trim_suffix_of(b". ");
    // Of all that is not ASCII, only the long s and the Kelvin sign fold to ASCII letters.
    let mut rest = stem;
    let folded = std::iter::from_fn(|| {
        loop {
            let (byte, after) = match rest {
                [0xc5, 0xbf, after @ ..] => (b's', after),
                [0xe2, 0x84, 0xaa, after @ ..] => (b'k', after),
                [byte, after @ ..] => (*byte, after),
                [] => return None,
            };
            rest = after;
            if byte.is_ascii() {
                return Some(byte.to_ascii_lowercase());
            }
        }
    });
    folded.eq(word.bytes().map(|byte| byte.to_ascii_lowercase()))
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
            // A branch may be called `config`, and a remote has a HEAD. Without objects of its
            // own, or another's by a `commondir`, no directory of branches is a repository.
            (Kind::Part | Kind::Head { .. }, Self::Branches) => false,
            (Kind::Objects | Kind::Commondir, Self::Branches) => true,
            (Kind::Objects, Self::WorkTree | Self::Headed | Self::Repository | Self::Inside) => {
                false
            }
            (Kind::Head { .. }, Self::Repository) => false,
            (Kind::Head { .. }, Self::WorkTree | Self::Headed | Self::Inside) => true,
            (Kind::Part | Kind::Commondir, Self::WorkTree) => false,
            (Kind::Part | Kind::Commondir, Self::Headed | Self::Repository | Self::Inside) => true,
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
        assert_eq!(Kind::of("hoo\u{212a}s".as_bytes()), Kind::Part);
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
        assert_eq!(Kind::of(b"config.lock"), Kind::Plain);
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
        for place in [Place::WorkTree, Place::Headed, Place::Branches, Place::Inside] {
            let refuses = |kind| place.refuses(kind);
            let whole = [Kind::Head { exact: true }, Kind::Part, Kind::Objects];
            assert!(whole.into_iter().any(refuses), "{place:?}");
            let linked = [Kind::Head { exact: true }, Kind::Commondir];
            assert!(linked.into_iter().any(refuses), "{place:?}");
            assert!(refuses(Kind::Obeyed), "{place:?}");
        }
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
