//! The guarded names: those that programs of the host run or obey by themselves, and the
//! directories where they do.

/// Names that editors, shells, agents and version control run or obey in any directory, each with
/// the reason why it is guarded.
pub const OBEYED: [(&str, &str); 58] = [
    (".envrc", "direnv runs it as a shell script, once allowed"),
    (".vscode", "Visual Studio Code runs its tasks and takes paths of programs from its settings"),
    (".idea", "JetBrains' editors run its run configurations and file watchers"),
    (".claude", "Claude Code runs its hooks and obeys its permissions"),
    (".mcp.json", "agents start the servers that it names"),
    (".cursor", "Cursor starts the servers of its mcp.json and runs its hooks"),
    (".gemini", "Gemini CLI starts the servers of its settings and loads its extensions"),
    (".codex", "Codex obeys its configuration, which names servers and programs to notify"),
    ("opencode.json", "opencode starts the servers and formatters that it names"),
    ("opencode.jsonc", "opencode starts the servers and formatters that it names"),
    (".opencode", "opencode loads its plugins and obeys its permissions"),
    (".devcontainer", "editors run its initializeCommand on the host"),
    (".devcontainer.json", "editors run its initializeCommand on the host"),
    (".zed", "Zed runs its tasks and the language servers that its settings name"),
    (".helix", "Helix starts the language servers that its languages.toml names"),
    (".run", "JetBrains' editors run its run configurations"),
    (".exrc", "vi and vim run its commands, where exrc is set"),
    (".nvim.lua", "Neovim runs it, once trusted"),
    (".roo", "Roo Code starts the servers of its mcp.json"),
    (".kiro", "Kiro runs its hooks and starts the servers of its settings"),
    (".qwen", "Qwen Code starts the servers of its settings and loads its extensions"),
    (".amazonq", "Amazon Q starts the servers of its mcp.json"),
    (".continue", "Continue starts the servers of its configuration"),
    (".windsurf", "Windsurf runs its workflows"),
    (".trae", "Trae starts the servers of its mcp.json"),
    ("crush.json", "Crush starts the servers that it names"),
    (".crush.json", "Crush starts the servers that it names"),
    (".aider.conf.yml", "aider runs its lint and test commands"),
    (".hg", "Mercurial runs the hooks and extensions of its hgrc"),
    (".sl", "Sapling runs the hooks and extensions of its configuration"),
    (".jj", "Jujutsu runs the programs that its repository's configuration names"),
    (".husky", "husky's git hooks run the files in it"),
    (".vimrc", "vim runs its commands, where exrc is set"),
    (".gvimrc", "gvim runs its commands, where exrc is set"),
    (".nvimrc", "Neovim runs its commands, where exrc is set"),
    (".vim", "coc.nvim starts the language servers that its coc-settings.json names"),
    (".lazygit.yml", "lazygit runs the commands that it names"),
    (".kilocode", "Kilo Code starts the servers of its mcp.json"),
    (".factory", "Factory's droid runs its hooks and starts the servers of its mcp.json"),
    (".openhands", "OpenHands runs its setup.sh and its hooks"),
    (".iflow", "iFlow CLI starts the servers of its settings"),
    (".codebuddy", "CodeBuddy runs the hooks of its settings"),
    (".qoder", "Qoder runs the hooks of its settings"),
    (".grok", "Grok CLI starts the servers of its settings"),
    (".tabnine", "Tabnine starts the servers of its mcp_servers.json"),
    (".pi", "pi loads its extensions"),
    (".repo", "repo runs the program in it"),
    ("mise.toml", "mise runs its hooks and sets its variables, once trusted"),
    (".mise.toml", "mise runs its hooks and sets its variables, once trusted"),
    ("mise.local.toml", "mise runs its hooks and sets its variables, once trusted"),
    (".mise.local.toml", "mise runs its hooks and sets its variables, once trusted"),
    (".mise", "mise runs the hooks of its configuration, once trusted"),
    (".Rprofile", "R runs it at its start"),
    (".ghci", "GHCi runs its commands at its start"),
    (".irbrc", "irb runs it at its start"),
    (".pryrc", "pry runs it at its start"),
    (".pdbrc", "Python's debugger runs its commands at its start"),
    (".octaverc", "Octave runs it at its start"),
];
/// Directories in which agents run hooks, but which are otherwise used in daily work: only
/// [`HOOKS`] in them is guarded. They can only be made as directories, and by their exact name.
pub const HOLDERS: [&str; 2] = [".github", ".clinerules"];
pub const HOOKS: &str = "hooks";
/// Prefix of the temporary names that init makes; no cell may make one. Git ignores references that
/// begin with a dot. The clerk, a program of the cell, uses the prefix `.cofferdam-`.
pub(crate) const INIT_PREFIX: &str = ".cofferdam.";
/// Start of the name of a directory in which an apply of a layer prepares files of the host.
pub const STAGING_PREFIX: &str = ".cofferdam-apply-";
/// The user's directory of workspace caches: no link in a guarded grant may have it in its text.
/// Any name may be made in a cache, and a program of the host that followed such a link would obey
/// it.
pub const CACHES: &str = "cofferdam-caches";
/// The directory of a repository, or the file that points to it.
pub const GIT: &str = ".git";
/// The file that makes a directory a repository to git, together with `objects` and `refs`, which
/// many directories have (git's is_git_directory). Without it the other parts have no effect.
pub const HEAD: &str = "HEAD";
/// Parts of a repository that git runs or obeys. `commondir`, in a linked worktree, names where git
/// finds its hooks and its `config`, and `gitdir` names the worktree, by which a later start knows it.
/// Git writes a new configuration to a lock file and renames it, so that the locks are guarded too.
/// Lazygit runs the commands of `lazygit.yml`.
pub const GIT_PARTS: [&str; 8] = [
    HOOKS,
    CONFIG,
    "config.worktree",
    "config.lock",
    "config.worktree.lock",
    COMMONDIR,
    GITDIR,
    "lazygit.yml",
];
pub const CONFIG: &str = "config";
pub const COMMONDIR: &str = "commondir";
/// The file of a linked worktree that names the `.git` in it.
pub const GITDIR: &str = "gitdir";
pub(crate) const OBJECTS: &str = "objects";
/// Chooses, in a repository's `info`, which of the configured programs processes a file. Git makes
/// no other file of this name in a repository, and a directory that contains one could be renamed
/// to `info`.
pub const ATTRIBUTES: &str = "attributes";
/// Names, in a repository's `objects/info`, more directories of the host from which git reads
/// objects. Git makes no other file of this name in a repository.
pub(crate) const ALTERNATES: &str = "alternates";

/// Starts of names that no cell makes in a repository, since git on the host checks nothing in these
/// files: lists of packs, by which `git maintenance` removes packs of other repositories; the shared
/// part of an index, with paths outside of the work tree; changes that the next merge applies; a new
/// list of conflicts. In lower case.
const UNCHECKED: [&str; 4] =
    ["multi-pack-index", "sharedindex", "merge_autostash", "merge_rr.lock"];

/// Conflicts and their resolutions, which git on the host records if the directory exists: by a link
/// in the work tree of any file, for the next cell to read.
pub const RESOLUTIONS: &str = "rr-cache";

/// Files of a repository with paths that git opens (`records`). In other directories these are ordinary names.
pub const INDEX: &str = "index";
pub const MERGE_RR: &str = "MERGE_RR";
/// The list of the tables with references (reftable), in which git checks no path.
pub(crate) const TABLES: &str = "tables.list";
/// The new ones of these, which git on the host renames without a look at what a cell has made of them.
pub(crate) const LOCKS: [&str; 2] = ["index.lock", "tables.list.lock"];

/// Directories of a repository with those of its submodules and of its linked worktrees.
pub(crate) const OTHERS: [&str; 2] = ["modules", "worktrees"];

/// Directories of a repository with remotes in an older format, one file each: git fetches from and
/// pushes to the URL in the file, as with a configured remote (gitrepository-layout(5)). Among
/// references these are ordinary names.
pub const OLD_REMOTES: [&str; 2] = ["remotes", "branches"];
/// The directory of [`ATTRIBUTES`] in a repository. If it were a link, git would find other
/// attributes.
pub const INFO: &str = "info";

/// Returns true if a filesystem might treat `name` and `word` as the same name.
#[must_use]
pub fn may_be(name: &[u8], word: &str) -> bool {
    may_be_same(name, word.as_bytes())
}

/// Maximum number of letters that [`NameClass::classify`] compares: more than the longest word
/// above has.
const MAX_LETTERS: usize = 24;

/// A name that is folded once, for comparisons with many words.
struct Letters {
    bytes: [u8; MAX_LETTERS],
    /// Number of letters; `None` if there are more than any word has.
    length: Option<usize>,
}

impl Letters {
    fn fold(name: &[u8]) -> Self {
        let mut bytes = [0; MAX_LETTERS];
        let mut letters = folded(name);
        let mut length = 0;
        for (slot, letter) in bytes.iter_mut().zip(&mut letters) {
            *slot = letter;
            length += 1;
        }
        let is_whole = length < MAX_LETTERS;
        Self { bytes, length: is_whole.then_some(length) }
    }

    fn may_be(&self, word: &str) -> bool {
        let letters = self.length.and_then(|length| self.bytes.get(..length));
        letters.is_some_and(|letters| letters.iter().copied().eq(folded(word.as_bytes())))
    }
}

/// Returns true if a filesystem might treat two names as the same. Covers upper and lower case,
/// parts that Windows' filesystems ignore (trailing dots and blanks, `:` and the rest), letters
/// that Unicode's case folding drops or maps to ASCII, and the short name that VFAT gives to
/// `word`.
#[must_use]
pub fn may_be_same(name: &[u8], word: &[u8]) -> bool {
    folded(name).eq(folded(word)) || may_be_short(name, word)
}

/// Folds a name to lower case ASCII, and skips letters that have no ASCII form.
fn folded(name: &[u8]) -> impl Iterator<Item = u8> {
    let stem = name.split(|byte| *byte == b':').next().unwrap_or_default();
    let mut rest = stem.trim_end_bytes(b". ");
    let mut more: &[u8] = b"";
    std::iter::from_fn(move || {
        loop {
            if let [byte, after @ ..] = more {
                more = after;
                return Some(*byte);
            }
            // All characters that fold to ASCII letters (CaseFolding.txt, C and F): the long s, the
            // Kelvin sign, the sharp s and the ligatures.
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

/// Returns a path with only the letters by which [`may_be_same`] compares its names. Names without
/// ASCII letters are all equal in it.
#[must_use]
pub fn letters(path: &[u8]) -> Vec<u8> {
    parts(path).map(|part| folded(part).collect::<Vec<u8>>()).collect::<Vec<_>>().join(&b'/')
}

/// Returns true if a name has the form of VFAT's short name for `word`, such as `GIT~1` for `.git`:
/// first letters, perhaps a hash of four digits, a tilde and a number.
fn may_be_short(name: &[u8], word: &[u8]) -> bool {
    let letters = word.iter().skip_while(|byte| **byte == b'.').take_while(|byte| **byte != b'.');
    // A fast exit for most names.
    let first = name.iter().zip(letters.clone()).take(2);
    if first.filter(|(a, b)| a.eq_ignore_ascii_case(b)).count() < 2 {
        return false;
    }
    let stem = name.split(|byte| *byte == b'.').next().unwrap_or_default();
    let mut halves = stem.splitn(2, |byte| *byte == b'~');
    let (Some(start), Some(number)) = (halves.next(), halves.next()) else { return false };
    let same = start.iter().zip(letters).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    let hash = start.get(same..).unwrap_or_default();
    same >= 2
        && matches!(hash.len(), 0 | 4)
        && hash.iter().all(u8::is_ascii_hexdigit)
        && !number.is_empty()
        && number.iter().all(u8::is_ascii_digit)
}

/// Returns true if a name is one of [`OBEYED`].
#[must_use]
pub fn is_obeyed(name: &[u8]) -> bool {
    OBEYED.iter().any(|(word, _)| may_be(name, word))
}

/// Returns true if the directory at this path is one of [`HOLDERS`] and `name` is [`HOOKS`].
#[must_use]
pub fn is_hooks(directory: &[u8], name: &[u8]) -> bool {
    let holder = directory.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    may_be(name, HOOKS) && HOLDERS.iter().any(|word| may_be(holder, word))
}

/// Returns true if a name may begin with this text, which is in lower case.
fn begins_with(name: &[u8], prefix: &str) -> bool {
    folded(name).take(prefix.len()).eq(prefix.bytes())
}

/// Returns true for the name of a directory of [`STAGING_PREFIX`].
fn is_staging(name: &[u8]) -> bool {
    begins_with(name, STAGING_PREFIX) || may_be_short(name, STAGING_PREFIX.as_bytes())
}

/// Returns true if a part of a path is obeyed in any directory, is a hooks directory of an agent, or
/// one in which an apply prepares files.
#[must_use]
pub fn has_obeyed(path: &[u8]) -> bool {
    has_obeyed_below(b"", path)
}

/// Returns the same for a path below a directory of this name, which is not judged itself.
#[must_use]
pub fn has_obeyed_below(directory: &[u8], path: &[u8]) -> bool {
    let mut parent = directory;
    parts(path).any(|part| {
        let is_guarded = is_obeyed(part) || is_hooks(parent, part) || is_staging(part);
        parent = part;
        is_guarded
    })
}

/// Returns true if a name matches one that the operator guards.
#[must_use]
pub fn is_one_of(words: &[Vec<u8>], name: &[u8]) -> bool {
    words.iter().any(|word| may_be_same(name, word))
}

/// Returns true for most unguarded names, judging by the first letter. Short names have a tilde,
/// and names that do not begin with an ASCII letter or digit must be folded first.
fn is_plain(name: &[u8]) -> bool {
    const FIRST_LETTERS: [u8; 10] = [b'h', b'c', b'o', b'a', b'r', b'b', b'i', b'l', b'g', b'm'];
    let may_be_second = |letter: u8| {
        let second = name.get(1).filter(|second| second.is_ascii_alphanumeric());
        second.is_none_or(|second| second.eq_ignore_ascii_case(&letter))
    };
    let is_plain = |first: &u8| match first.to_ascii_lowercase() {
        b's' => !may_be_second(b'h'),
        b't' => !may_be_second(b'a'),
        first => first.is_ascii_alphanumeric() && !FIRST_LETTERS.contains(&first),
    };
    name.first().is_some_and(is_plain) && !name.contains(&b'~')
}

/// Returns true if a link with this text may lead the host into a cache.
#[must_use]
pub(crate) fn leads_to_caches(text: &[u8]) -> bool {
    parts(text).any(|part| may_be(part, CACHES))
}

/// Iterates over the parts of a path.
pub fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
}

trait TrimEnd {
    fn trim_end_bytes(&self, set: &[u8]) -> &[u8];
}

impl TrimEnd for [u8] {
    fn trim_end_bytes(&self, set: &[u8]) -> &[u8] {
        let mut rest = self;
        while let [before @ .., last] = rest
            && set.contains(last)
        {
            rest = before;
        }
        rest
    }
}

/// The guard's classification of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameClass {
    /// Not guarded.
    Plain,
    /// Obeyed in any directory.
    Obeyed,
    /// [`HEAD`]: in this spelling, or in another one that a case-insensitive filesystem treats as
    /// the same.
    Head {
        exact: bool,
    },
    /// Obeyed inside a repository.
    Part,
    Commondir,
    Objects,
    /// [`ATTRIBUTES`], `ALTERNATES`, [`RESOLUTIONS`], or one that begins as `UNCHECKED`.
    Attributes,
    /// One of [`HOLDERS`].
    Holder,
    /// One of [`OLD_REMOTES`].
    OldRemotes,
    /// [`INFO`], which may only be a directory.
    Info,
    /// [`INDEX`].
    Index,
    /// [`MERGE_RR`].
    Conflicts,
    /// [`TABLES`].
    Tables,
    /// One of [`LOCKS`].
    Lock,
}

impl NameClass {
    #[must_use]
    pub fn classify(name: &[u8]) -> Self {
        if is_plain(name) {
            return Self::Plain;
        }
        let letters = Letters::fold(name);
        let is = |word: &str| letters.may_be(word) || may_be_short(name, word.as_bytes());
        let is_own = || begins_with(name, INIT_PREFIX) || is_staging(name);
        if is(GIT) || OBEYED.iter().any(|(word, _)| is(word)) || is_own() {
            Self::Obeyed
        } else if is(HEAD) {
            Self::Head { exact: name == HEAD.as_bytes() }
        } else if is(COMMONDIR) {
            Self::Commondir
        } else if GIT_PARTS.iter().any(|word| is(word)) {
            Self::Part
        } else if is(OBJECTS) {
            Self::Objects
        } else if HOLDERS.iter().any(|word| is(word)) {
            Self::Holder
        } else if is(ATTRIBUTES)
            || is(ALTERNATES)
            || is(RESOLUTIONS)
            || UNCHECKED.iter().any(|start| begins_with(name, start))
        {
            Self::Attributes
        } else if OLD_REMOTES.iter().any(|word| is(word)) {
            Self::OldRemotes
        } else if is(INFO) {
            Self::Info
        } else if is(INDEX) {
            Self::Index
        } else if is(MERGE_RR) {
            Self::Conflicts
        } else if is(TABLES) {
            Self::Tables
        } else if LOCKS.iter().any(|word| is(word)) {
            Self::Lock
        } else {
            Self::Plain
        }
    }
}

/// The guard's classification of the directory that contains a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryClass {
    /// Outside of every repository's directory.
    WorkTree,
    /// The same, but with a `HEAD` in it: a bare repository, or a directory that could become one.
    Headed,
    /// The top of a repository's directory.
    Repository,
    /// Git's files of branches and tags: these may have the name of a repository part, but not
    /// `HEAD`.
    Branches,
    /// Directories in which git makes a `HEAD`, for a remote or in the logs.
    Remotes,
    /// Elsewhere among references and their logs.
    References,
    /// Elsewhere below a repository's directory.
    Inside,
}

impl DirectoryClass {
    /// Returns true if a name of this class must not be made in the directory.
    ///
    /// Among references the answer depends only on the path and not on existing files: two cells,
    /// or a cell and the host, could otherwise each make one part of a repository between the
    /// other's check and its call.
    #[must_use]
    pub fn refuses(self, kind: NameClass) -> bool {
        match (kind, self) {
            (NameClass::Plain | NameClass::Holder, _) => false,
            (NameClass::Obeyed, _) => true,
            (
                NameClass::Attributes
                | NameClass::OldRemotes
                | NameClass::Info
                | NameClass::Index
                | NameClass::Conflicts
                | NameClass::Tables
                | NameClass::Lock,
                _,
            ) => {
                matches!(self, Self::Headed | Self::Repository | Self::Inside)
            }
            (NameClass::Part, Self::Branches | Self::WorkTree) => false,
            (NameClass::Head { .. }, Self::Remotes | Self::Repository) => false,
            // References cannot become a repository without one of these.
            (
                NameClass::Objects | NameClass::Commondir,
                Self::Branches | Self::Remotes | Self::References,
            ) => true,
            (
                NameClass::Objects,
                Self::WorkTree | Self::Headed | Self::Repository | Self::Inside,
            ) => false,
            (
                NameClass::Head { .. },
                Self::WorkTree | Self::Headed | Self::Branches | Self::References | Self::Inside,
            ) => true,
            (
                NameClass::Part,
                Self::Headed | Self::Repository | Self::Remotes | Self::References | Self::Inside,
            ) => true,
            (NameClass::Commondir, Self::WorkTree) => false,
            (NameClass::Commondir, Self::Headed | Self::Repository | Self::Inside) => true,
        }
    }
}

/// Position of a directory relative to the first `.git` in its path, which decides its
/// [`DirectoryClass`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The path has no `.git`.
    Without,
    /// The path ends with the first `.git`.
    Top,
    Inside,
    /// `refs`, and `logs/refs`.
    Refs,
    /// `logs`.
    Logs,
    /// `refs/heads`, `refs/tags` and everything below, and the same in the logs.
    Branches,
    /// `refs/remotes` and everything below, and the same in the logs.
    Remotes,
    /// Elsewhere below `refs` or `logs`.
    References,
}

impl Depth {
    #[must_use]
    pub fn of_path(path: &[u8]) -> Self {
        parts(path).fold(Self::Without, Self::below)
    }

    /// Returns the depth of the subdirectory `name`.
    #[must_use]
    pub fn below(self, name: &[u8]) -> Self {
        match self {
            Self::Without if may_be(name, GIT) => Self::Top,
            Self::Without => Self::Without,
            Self::Top if may_be(name, "refs") => Self::Refs,
            Self::Top if may_be(name, "logs") => Self::Logs,
            // Deeper these words may be parts of a submodule's name, which a cell can choose.
            Self::Top | Self::Inside => Self::Inside,
            Self::Logs if may_be(name, "refs") => Self::Refs,
            // Another spelling may name the same directory, so that it gets the rights of neither.
            Self::Refs if matches!(name, b"heads" | b"tags") => Self::Branches,
            Self::Refs if name == b"remotes" => Self::Remotes,
            Self::Refs | Self::Logs | Self::References => Self::References,
            Self::Branches => Self::Branches,
            Self::Remotes => Self::Remotes,
        }
    }

    /// Returns true if references or their logs are stored here.
    #[must_use]
    pub fn is_of_references(self) -> bool {
        match self {
            Self::Refs | Self::Logs | Self::Branches | Self::Remotes | Self::References => true,
            Self::Without | Self::Top | Self::Inside => false,
        }
    }
}

/// Kinds of files that may be renamed from one directory to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renames {
    /// Any file: the names inside it stay in directories of the same class.
    Anything,
    /// Files other than directories; git moves logs this way.
    Files,
    /// Only regular files.
    Regular,
    Nothing,
}

/// Decides which files may be renamed from one directory and name to another. A remote's directory
/// may contain a `HEAD`, and one of branches a `config`: elsewhere these would be parts of a
/// repository.
#[must_use]
pub fn renames(source: (Depth, &[u8]), target: (Depth, &[u8])) -> Renames {
    let (from, name) = source;
    let (to, new) = target;
    if from == Depth::Without && to == Depth::Without {
        return Renames::Anything;
    }
    let before = from.below(name);
    let after = to.below(new);
    if before == after && from != Depth::Without && to != Depth::Without {
        Renames::Anything
    } else if from.is_of_references() && to.is_of_references() {
        Renames::Files
    } else {
        Renames::Nothing
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
