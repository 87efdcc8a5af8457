//! Finds paths in a granted directory that git's configuration names, because git runs or obeys
//! these too.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;

use super::budget::Extent;
use super::grammar::Whole;
use super::reader::{FileSettings, MAX_TEXT, Reader, Variable};
use super::rights::Rights;
use super::scan::{Repository, Scan, sorted};
use super::settings::{Meaning, named_by};
use super::tree::{Content, GrantPath, Kind, Named, Target, path_of};
use model::accounts;

/// Maximum depth of includes, as in git (config.c: MAX_INCLUDE_DEPTH).
const MAX_INCLUDE_DEPTH: usize = 10;

/// Maximum number of directories from which hooks and commands of one repository are run.
const MAX_TOPS: usize = 64;
/// Maximum number of words of one command that are looked at.
const MAX_WORDS: usize = 200;

/// Configuration files outside of repositories that git reads for this user.
const USER_FILES: [&str; 2] = [".gitconfig", ".config/git/config"];
const SYSTEM_FILE: &str = "/etc/gitconfig";

/// Returns the configuration files that git reads for every repository (git-config(1)), given the
/// environment variables.
pub(crate) fn files_for_all(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let path = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = accounts::home();
    let user_files = home.iter().flat_map(|home| USER_FILES.map(|name| home.join(name)));
    // The usual files count too: a git started by another program may not have the variables.
    let named = [
        path("XDG_CONFIG_HOME").map(|directory| directory.join("git/config")),
        path("GIT_CONFIG_GLOBAL"),
        path("GIT_CONFIG_SYSTEM"),
    ];
    sorted(user_files.chain(named.into_iter().flatten()).chain([SYSTEM_FILE.into()]).collect())
}

/// Hooks that git runs (githooks(5)), for a hooks directory that cannot be guarded as a whole.
const HOOKS: &str = "applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit \
    prepare-commit-msg commit-msg post-commit pre-rebase post-checkout post-merge pre-push pre-receive \
    update proc-receive post-receive post-update reference-transaction push-to-checkout pre-auto-gc \
    post-rewrite sendemail-validate fsmonitor-watchman p4-changelist p4-prepare-changelist \
    p4-post-changelist p4-pre-submit post-index-change";

/// The settings of one repository's configuration that were collected so far.
#[derive(Default)]
struct Gathered {
    seen: BTreeSet<(PathBuf, Rights)>,
    settings: Vec<FileSettings>,
}

/// A value, and the rights for what it names.
struct Value<T> {
    text: T,
    rights: Rights,
}

impl Value<&[u8]> {
    fn path(&self) -> PathBuf {
        expanded(self.text, self.rights)
    }
}

impl Scan {
    /// Guards the paths that the configurations of all repositories name.
    pub(crate) fn configurations(&mut self) {
        let mut repositories = std::mem::take(&mut self.repositories);
        repositories.retain(|repository| self.done.insert(repository.clone()));
        // Repositories near the top first: a cell can make further ones.
        repositories.sort_by_key(|one| (one.is_linked, one.git.components().count()));
        if !self.is_for_all_guarded {
            self.configurations_for_all();
            self.is_for_all_guarded = !self.is_spent();
        }
        for repository in repositories {
            if !self.is_spent() {
                self.configuration(repository.clone());
            }
            if self.is_spent() {
                // A later step has more time.
                self.done.remove(&repository);
                self.repositories.push(repository);
            }
        }
        if self.is_spent() {
            // Some files may not have been read in time; a later step has more.
            self.known.clear();
        }
    }

    /// Guards the paths that the configuration of one repository names.
    fn configuration(&mut self, mut repository: Repository) {
        let git = repository.git.clone();
        repository.rights = self.trees.rights_in(&git, repository.rights);
        let origin = self.nearest(&git);
        let common = self.common(&git, repository.rights);
        let mut gathered = Gathered::default();
        let files =
            [(&common.path, "config", common.rights), (&git, "config.worktree", repository.rights)];
        for (from, name, rights) in files {
            // Inside a granted directory its name is guarded as a part of a repository.
            let depth = usize::from(self.trees.locate(from).is_none());
            let named = Named { from, path: Path::new(name), rights };
            self.gather(&origin, named, depth, &mut gathered);
        }
        self.gather_for_all(&origin, &mut gathered);
        let settings = gathered.settings;
        for value in valued(&settings, Meaning::WorkTree) {
            let named = Named { from: &git, path: &value.path(), rights: value.rights };
            if let Some(top) = self.resolved(named) {
                repository.tops.push(top.path);
                repository.rights = repository.rights.at_most(top.rights);
            }
        }
        repository.tops.push(git);
        repository.tops = sorted(repository.tops);
        self.guard_named(&origin, &repository, &settings);
    }

    /// Adds the settings of the files that git reads for every repository. These are the user's, so
    /// that root reads its own with its rights.
    fn gather_for_all(&mut self, origin: &GrantPath, gathered: &mut Gathered) {
        for file in self.for_all.clone() {
            let named = Named { from: Path::new("/"), path: &file, rights: Rights::Own };
            self.gather(origin, named, 1, gathered);
        }
    }

    /// Guards the files that git reads for every repository, and the absolute paths that they name,
    /// even if no repository was found.
    fn configurations_for_all(&mut self) {
        let origin = GrantPath { tree: 0, path: PathBuf::new() };
        let mut gathered = Gathered::default();
        self.gather_for_all(&origin, &mut gathered);
        let nowhere = Repository {
            is_linked: false,
            git: PathBuf::from("/"),
            tops: vec![PathBuf::from("/")],
            rights: Rights::Own,
        };
        self.guard_named(&origin, &nowhere, &gathered.settings);
    }

    /// Adds the settings of a file and of all files that it includes.
    fn gather(
        &mut self,
        origin: &GrantPath,
        named: Named<'_>,
        depth: usize,
        gathered: &mut Gathered,
    ) {
        let found = match depth {
            // The file is guarded already.
            0 => self.follow(named),
            _ => self.guard_path(origin, named),
        };
        let rights = found.rights;
        let file = match found.end {
            Target::InGrant(path, Kind::File) => self.trees.host(&path),
            Target::Outside(path) => path,
            Target::InGrant(..) | Target::Missing(_) | Target::Unresolved => return,
        };
        // An include is relative to the path of the including file, not to the target of a link.
        let parent = named.path.parent().map(|path| Named { path, ..named });
        let directory = parent.and_then(|parent| self.resolved(parent));
        let seen = (file, rights);
        let Some(directory) = directory.filter(|_| gathered.seen.insert(seen.clone())) else {
            return;
        };
        let settings = match self.known.get(&seen) {
            Some(settings) => settings.clone(),
            None => {
                // A later step tries again to read a file that could not be read.
                let Some(settings) = self.settings(origin, &seen.0, rights) else { return };
                self.known.insert(seen, settings.clone());
                settings
            }
        };
        gathered.settings.push(settings.clone());
        for value in valued(&[settings], Meaning::Include).filter(|_| depth <= MAX_INCLUDE_DEPTH) {
            let path = value.path();
            let named = Named { from: &directory.path, path: &path, rights: value.rights };
            self.gather(origin, named, depth + 1, gathered);
        }
    }

    /// Returns the settings of one file; `None` if it could not be read now.
    fn settings(
        &mut self,
        origin: &GrantPath,
        file: &Path,
        rights: Rights,
    ) -> Option<FileSettings> {
        match self.read(file, MAX_TEXT + 1, rights, origin) {
            Ok(Content { bytes, rights }) => {
                let variables = Rc::new(self.variables(origin, bytes));
                Some(FileSettings { variables, rights })
            }
            // A file that this user may not read cannot be read by the cell, nor by git as this
            // user, unless a cell has closed a directory above it. If root took another user's rights
            // for it, that is noted.
            Err(Errno::EACCES) => {
                self.denied(file, rights);
                Some(FileSettings { variables: Rc::default(), rights })
            }
            Err(Errno::ENOENT | Errno::EINVAL | Errno::ELOOP | Errno::ENOTDIR) => {
                Some(FileSettings { variables: Rc::default(), rights })
            }
            Err(Errno::EOPNOTSUPP) => {
                self.note_unseen(origin, "has a configuration that the kernel makes up: not read");
                Some(FileSettings { variables: Rc::default(), rights })
            }
            Err(_) => {
                self.note_unseen(origin, "has a configuration that could not be read in time");
                None
            }
        }
    }

    /// Parses the settings of one file. If that fails, everything that looks like a path counts.
    fn variables(&mut self, origin: &GrantPath, mut text: Vec<u8>) -> Vec<Variable> {
        if text.len() > MAX_TEXT {
            self.note_unseen(
                origin,
                "has a configuration of more than 1 MiB, of which that much was read",
            );
            text.truncate(MAX_TEXT);
        }
        let mut read = self.parsed(&text);
        if self.extent == Extent::Whole && read.is_err() {
            // A busy machine may have kept the process waiting.
            self.reader = None;
            read = self.parsed(&text);
        }
        match read {
            Ok((variables, Whole::Yes | Whole::No)) => variables,
            Err(_) => {
                // Start another process for the next file.
                self.reader = None;
                self.note_unseen(
                    origin,
                    "has a configuration that could not be understood: each file that it seems to name is read-only",
                );
                let key = b"external".to_vec();
                vec![Variable { section: b"diff".to_vec(), key, value: text }]
            }
        }
    }

    fn parsed(&mut self, text: &[u8]) -> Result<(Vec<Variable>, Whole), Errno> {
        match &self.reader {
            Some(reader) => reader.read(text),
            None => Reader::start().and_then(|reader| self.reader.insert(reader).read(text)),
        }
    }

    fn guard_named(
        &mut self,
        origin: &GrantPath,
        repository: &Repository,
        settings: &[FileSettings],
    ) {
        let tops = repository.tops.iter().take(self.extent.limit(MAX_TOPS));
        for value in valued(settings, Meaning::Hooks) {
            let path = value.path();
            for top in tops.clone() {
                self.hooks(origin, repository.named(top, &path, value.rights));
            }
        }
        for value in valued(settings, Meaning::Path) {
            let path = value.path();
            for top in tops.clone() {
                let found = self.guard_path(origin, repository.named(top, &path, value.rights));
                if let Target::InGrant(path, Kind::Directory) = found.end
                    && self.is_whole(&path, origin)
                {
                    self.guard_whole(&path);
                }
            }
        }
        for Value { text, rights } in commands(settings) {
            if self.is_spent() {
                self.note_unseen(origin, "names more than could be looked at in time");
                return;
            }
            self.command(origin, repository, &text, rights);
        }
    }

    /// Guards a directory of hooks; if it has the repository in it, each hook there.
    fn hooks(&mut self, origin: &GrantPath, named: Named<'_>) {
        let found = self.guard_path(origin, named);
        if let Target::InGrant(path_in_grant, Kind::Directory) = found.end
            && self.is_whole(&path_in_grant, origin)
        {
            let directory = self.trees.host(&path_in_grant);
            for hook in HOOKS.split_ascii_whitespace() {
                let path = Path::new(hook);
                self.guard_path(origin, Named { from: &directory, path, rights: found.rights });
            }
        }
    }

    /// Guards files that a command names: each word that is a path, and each later word that names
    /// an existing file, such as a script after its interpreter.
    fn command(
        &mut self,
        origin: &GrantPath,
        repository: &Repository,
        command: &[u8],
        rights: Rights,
    ) {
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"!;|&()<>'\"`$=".contains(byte);
        let words =
            command.split(is_end).filter(|word| !word.is_empty() && !word.starts_with(b"-"));
        // The path of a program may have such characters: as the whole value, or as a quoted word.
        let whole = |word: &Vec<u8>| word.contains(&b'/') && word.iter().any(is_end);
        let whole = shell_words(command).into_iter().chain([command.to_vec()]).filter(whole);
        let words = words.enumerate().map(|(index, word)| (index, Cow::Borrowed(word)));
        let words = whole.map(|word| (0, Cow::Owned(word))).chain(words);
        for (index, word) in words.take(self.extent.limit(MAX_WORDS)) {
            let word = word.as_ref();
            let path = expanded(word, rights);
            let is_path = word.contains(&b'/');
            // In a repository's own directory these are references, to which git writes.
            let is_reference =
                word.ends_with(b"HEAD") || word.starts_with(b"refs/") || word.starts_with(b"logs/");
            for top in repository.tops.iter().take(self.extent.limit(MAX_TOPS)) {
                if is_reference && *top == repository.git {
                    continue;
                }
                let named = repository.named(top, &path, rights);
                match self.follow(named).end {
                    // A directory is not a command; it only has to remain one.
                    Target::InGrant(directory, Kind::Directory) if is_path => self.pin(&directory),
                    Target::InGrant(_, Kind::File) if index > 0 => {
                        drop(self.guard_path(origin, named))
                    }
                    Target::InGrant(..)
                    | Target::Missing(_)
                    | Target::Outside(_)
                    | Target::Unresolved
                        if is_path =>
                    {
                        self.guard_path(origin, named);
                    }
                    Target::InGrant(..)
                    | Target::Missing(_)
                    | Target::Outside(_)
                    | Target::Unresolved => {}
                }
            }
        }
    }
}

impl Repository {
    /// Returns a path that a setting names, for a lookup from one of the directories.
    fn named<'p>(&self, top: &'p Path, path: &'p Path, rights: Rights) -> Named<'p> {
        // An absolute path has nothing of the directories, which another user may have named.
        let rights = if path.is_absolute() { rights } else { rights.at_most(self.rights) };
        Named { from: top, path, rights }
    }
}

/// Returns the commands of settings.
fn commands(settings: &[FileSettings]) -> Vec<Value<Cow<'_, [u8]>>> {
    let aliases = valued(settings, Meaning::Alias)
        .map(|Value { text, rights }| Value { text: Cow::Owned(programs_of_alias(text)), rights });
    let urls = valued(settings, Meaning::Url).filter_map(|Value { text, rights }| {
        text.strip_prefix(b"ext::").map(|text| Value { text: Cow::Borrowed(text), rights })
    });
    let commands = valued(settings, Meaning::Command)
        .map(|Value { text, rights }| Value { text: Cow::Borrowed(text), rights });
    commands.chain(urls).chain(aliases).collect()
}

/// Commands of git that run no argument except option values. Neither an alias nor another program
/// can have these names.
const HARMLESS: [&[u8]; 24] = [
    b"add",
    b"blame",
    b"branch",
    b"checkout",
    b"cherry-pick",
    b"clean",
    b"commit",
    b"describe",
    b"diff",
    b"grep",
    b"log",
    b"ls-files",
    b"merge",
    b"mv",
    b"reset",
    b"restore",
    b"rev-parse",
    b"rm",
    b"shortlog",
    b"show",
    b"stash",
    b"status",
    b"switch",
    b"tag",
];

/// Returns the words of an alias that may name programs. All of them after a `!`, or if the first
/// word is not one of [`HARMLESS`], such as another alias. Otherwise the option values, which git
/// may run (`-O x`, `--exec=x`). If there are quotes, several words may belong together, and all
/// are kept.
fn programs_of_alias(value: &[u8]) -> Vec<u8> {
    let is_quote = |byte: &u8| matches!(byte, b'\'' | b'"' | b'\\');
    let words: Vec<&[u8]> = value.split(u8::is_ascii_whitespace).collect();
    let is_harmless = words.first().is_some_and(|first| HARMLESS.contains(first));
    if !is_harmless || value.iter().any(is_quote) {
        return value.to_vec();
    }
    let is_kept = |(index, word): (usize, &&[u8])| {
        let after = index.checked_sub(1).and_then(|before| words.get(before));
        let is_value = word.contains(&b'=') || after.is_some_and(|word| word.starts_with(b"-"));
        is_value.then(|| word.to_vec())
    };
    let kept: Vec<Vec<u8>> = words.iter().enumerate().filter_map(is_kept).collect();
    // The first word of a command is searched in PATH; these words are not commands.
    [b"git".to_vec()].into_iter().chain(kept).collect::<Vec<_>>().join(&b' ')
}

/// Returns the words of a command that are quoted in part, as a shell reads them (sh(1), "Quoting").
fn shell_words(command: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word = Vec::new();
    let mut is_quoted = false;
    let mut quote = None;
    let mut bytes = command.iter().copied();
    loop {
        match (bytes.next(), quote) {
            (None, _) | (Some(b' ' | b'\t' | b'\n'), None) => {
                words.extend(Some(std::mem::take(&mut word)).filter(|_| is_quoted));
                is_quoted = false;
                if bytes.len() == 0 {
                    return words;
                }
            }
            (Some(b'\\'), None | Some(b'"')) => {
                is_quoted = true;
                word.extend(bytes.next());
            }
            (Some(byte), Some(open)) if byte == open => quote = None,
            (Some(byte @ (b'\'' | b'"')), None) => {
                is_quoted = true;
                quote = Some(byte);
            }
            (Some(byte), _) => word.push(byte),
        }
    }
}

/// Returns the values of settings with this meaning.
fn valued(settings: &[FileSettings], what: Meaning) -> impl Iterator<Item = Value<&[u8]>> {
    settings.iter().flat_map(move |file| {
        let named = file
            .variables
            .iter()
            .filter(move |variable| !variable.value.is_empty() && meaning(variable) == Some(what));
        named.map(|variable| Value { text: variable.value.as_slice(), rights: file.rights })
    })
}

fn meaning(variable: &Variable) -> Option<Meaning> {
    named_by(&variable.section, &variable.key)
}

/// Expands the first part of a path like git (path.c: interpolate_path). The home of another user's
/// configuration is that user's: root's git obeys no repository of others (safe.directory).
pub(super) fn expanded(value: &[u8], rights: Rights) -> PathBuf {
    let value = value.strip_prefix(b":(optional)").unwrap_or(value);
    if let Some(rest) = value.strip_prefix(b"%(prefix)/") {
        return Path::new("/usr").join(path_of(rest));
    }
    let Some(rest) = value.strip_prefix(b"~") else { return path_of(value) };
    let mut parts = rest.splitn(2, |byte| *byte == b'/');
    let user = parts.next().unwrap_or_default();
    let below = parts.next().unwrap_or_default();
    let home = match (user, rights) {
        (b"", Rights::Own) => accounts::home(),
        (b"", Rights::Of(uid)) => accounts::home_of_id(uid),
        (user, _) => std::str::from_utf8(user).ok().and_then(accounts::home_of),
    };
    home.map_or_else(|| path_of(value), |home| home.join(path_of(below)))
}
