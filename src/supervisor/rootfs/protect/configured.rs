//! Finds paths in a granted directory that git's configuration names, because git runs or obeys
//! these too.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;

use super::grammar::Whole;
use super::reader::{MAX_TEXT, Reader, Variable};
use super::scan::{Extent, Repository, Scan, sorted};
use super::settings::{Meaning, named_by};
use super::tree::{GrantPath, Kind, Target, path_of};
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

/// Settings of several files.
type Settings = Vec<Rc<Vec<Variable>>>;

/// The settings of one repository's configuration that were collected so far.
#[derive(Default)]
struct Gathered {
    seen: BTreeSet<PathBuf>,
    settings: Settings,
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
        for Repository { git, mut tops, .. } in repositories {
            let origin =
                self.trees.locate(&git).unwrap_or(GrantPath { tree: 0, path: PathBuf::new() });
            // A repository outside of the grants is reported for the first of them.
            let common = self.common(&git);
            let mut gathered = Gathered::default();
            for (directory, name) in [(&common, "config"), (&git, "config.worktree")] {
                // Inside a granted directory its name is guarded as a part of a repository.
                let depth = usize::from(self.trees.locate(directory).is_none());
                self.gather(&origin, (directory, Path::new(name)), depth, &mut gathered);
            }
            for file in self.for_all.clone() {
                self.gather(&origin, (Path::new("/"), &file), 1, &mut gathered);
            }
            let settings = gathered.settings;
            let trees = valued(&settings, Meaning::WorkTree);
            tops.extend(trees.filter_map(|value| self.resolved(&git, &expanded(value))));
            tops.push(git.clone());
            self.guard_named(&origin, (&git, &sorted(tops)), &settings);
        }
        if self.is_spent() {
            // Some files may not have been read in time; a later step has more.
            self.known.clear();
        }
    }

    /// Guards the files that git reads for every repository, and the absolute paths that they name,
    /// even if no repository was found.
    fn configurations_for_all(&mut self) {
        let origin = GrantPath { tree: 0, path: PathBuf::new() };
        let root = Path::new("/");
        let mut gathered = Gathered::default();
        for file in self.for_all.clone() {
            self.gather(&origin, (root, &file), 1, &mut gathered);
        }
        let settings = gathered.settings;
        self.guard_named(&origin, (root, &[root.to_owned()]), &settings);
    }

    /// Adds the settings of the file at `path`, relative to `from`, and of all files that it
    /// includes.
    fn gather(
        &mut self,
        origin: &GrantPath,
        file: (&Path, &Path),
        depth: usize,
        gathered: &mut Gathered,
    ) {
        let (from, path) = file;
        let end = match depth {
            // The file is guarded already.
            0 => self.follow(from, path).end,
            _ => self.guard_path(origin, from, path),
        };
        let file = match end {
            Target::InGrant(path, Kind::File) => self.trees.host(&path),
            Target::Outside(path) => path,
            Target::InGrant(..) | Target::Missing(_) | Target::Unresolved => return,
        };
        // An include is relative to the path of the including file, not to the target of a link.
        let directory = path.parent().and_then(|parent| self.resolved(from, parent));
        let Some(directory) = directory.filter(|_| gathered.seen.insert(file.clone())) else {
            return;
        };
        let variables = match self.known.get(&file) {
            Some(variables) => Rc::clone(variables),
            None => {
                // A later step tries again to read a file that could not be read.
                let Some(variables) = self.variables(origin, &file) else { return };
                let variables = Rc::new(variables);
                self.known.insert(file, Rc::clone(&variables));
                variables
            }
        };
        gathered.settings.push(Rc::clone(&variables));
        for value in valued(&[variables], Meaning::Include).filter(|_| depth <= MAX_INCLUDE_DEPTH) {
            self.gather(origin, (&directory, &expanded(value)), depth + 1, gathered);
        }
    }

    /// Returns the settings of one file; `None` if it could not be read now. If parsing fails,
    /// everything that looks like a path counts.
    fn variables(&mut self, origin: &GrantPath, file: &Path) -> Option<Vec<Variable>> {
        let mut text = match self.read(file, MAX_TEXT + 1) {
            Ok(text) => text,
            // A file that this user may not read cannot be read by the cell, nor by git as this
            // user.
            Err(Errno::ENOENT | Errno::EACCES | Errno::EINVAL | Errno::ELOOP | Errno::ENOTDIR) => {
                return Some(Vec::new());
            }
            Err(_) => {
                self.note_unseen(origin, "has a configuration that could not be read in time");
                return None;
            }
        };
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
        Some(match read {
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
        })
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
        repository: (&Path, &[PathBuf]),
        settings: &Settings,
    ) {
        let (git, tops) = repository;
        for value in valued(settings, Meaning::Hooks) {
            let path = expanded(value);
            for top in tops.iter().take(self.extent.limit(MAX_TOPS)) {
                if let Target::InGrant(path_in_grant, Kind::Directory) =
                    self.guard_path(origin, top, &path)
                    && self.is_whole(&path_in_grant, origin)
                {
                    let directory = self.trees.host(&path_in_grant);
                    for hook in HOOKS.split_ascii_whitespace() {
                        self.guard_path(origin, &directory, Path::new(hook));
                    }
                }
            }
        }
        for value in valued(settings, Meaning::Path) {
            for top in tops.iter().take(self.extent.limit(MAX_TOPS)) {
                let end = self.guard_path(origin, top, &expanded(value));
                if let Target::InGrant(path, Kind::Directory) = end
                    && self.is_whole(&path, origin)
                {
                    self.guard_whole(&path);
                }
            }
        }
        let aliases = valued(settings, Meaning::Alias).map(programs_of_alias);
        let urls = valued(settings, Meaning::Url);
        let urls = urls.filter_map(|value| value.strip_prefix(b"ext::"));
        let commands = valued(settings, Meaning::Command).chain(urls);
        let commands = commands.map(<[u8]>::to_vec).chain(aliases);
        for command in commands {
            if self.is_spent() {
                self.note_unseen(origin, "names more than could be looked at in time");
                return;
            }
            self.command(origin, (git, tops), &command);
        }
    }

    /// Guards files that a command names: each word that is a path, and each later word that names
    /// an existing file, such as a script after its interpreter.
    fn command(&mut self, origin: &GrantPath, repository: (&Path, &[PathBuf]), command: &[u8]) {
        let (git, tops) = repository;
        let words =
            command.split(|byte| byte.is_ascii_whitespace() || b"!;|&()<>'\"`$=".contains(byte));
        let words = words.filter(|word| !word.is_empty() && !word.starts_with(b"-"));
        for (index, word) in words.take(self.extent.limit(MAX_WORDS)).enumerate() {
            let path = expanded(word);
            let is_path = word.contains(&b'/');
            // In a repository's own directory these are references, to which git writes.
            let is_reference =
                word.ends_with(b"HEAD") || word.starts_with(b"refs/") || word.starts_with(b"logs/");
            for top in tops.iter().take(self.extent.limit(MAX_TOPS)) {
                if is_reference && top == git {
                    continue;
                }
                match self.follow(top, &path).end {
                    // A directory is not a command; it only has to remain one.
                    Target::InGrant(directory, Kind::Directory) if is_path => self.pin(&directory),
                    Target::InGrant(_, Kind::File) if index > 0 => {
                        drop(self.guard_path(origin, top, &path))
                    }
                    Target::InGrant(..)
                    | Target::Missing(_)
                    | Target::Outside(_)
                    | Target::Unresolved
                        if is_path =>
                    {
                        self.guard_path(origin, top, &path);
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

/// Returns the values of settings with this meaning.
fn valued(settings: &[Rc<Vec<Variable>>], what: Meaning) -> impl Iterator<Item = &[u8]> {
    let all = settings.iter().flat_map(|variables| variables.iter());
    let named =
        all.filter(move |variable| !variable.value.is_empty() && meaning(variable) == Some(what));
    named.map(|variable| variable.value.as_slice())
}

fn meaning(variable: &Variable) -> Option<Meaning> {
    named_by(&variable.section, &variable.key)
}

/// Expands the first part of a path like git (path.c: interpolate_path).
fn expanded(value: &[u8]) -> PathBuf {
    let value = value.strip_prefix(b":(optional)").unwrap_or(value);
    if let Some(rest) = value.strip_prefix(b"%(prefix)/") {
        return Path::new("/usr").join(path_of(rest));
    }
    let Some(rest) = value.strip_prefix(b"~") else { return path_of(value) };
    let mut parts = rest.splitn(2, |byte| *byte == b'/');
    let user = parts.next().unwrap_or_default();
    let below = parts.next().unwrap_or_default();
    let home = match user {
        b"" => accounts::home(),
        user => std::str::from_utf8(user).ok().and_then(accounts::home_of),
    };
    home.map_or_else(|| path_of(value), |home| home.join(path_of(below)))
}
