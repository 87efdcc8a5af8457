//! Places in a granted directory that git's configuration names: git runs or obeys these too.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;

use super::grammar::Whole;
use super::reader::{MOST, Reader, Variable};
use super::scan::{Repository, Scan, sorted};
use super::tree::{End, Kind, Place, path_of};
use model::accounts;

/// How deep git follows includes (config.c: MAX_INCLUDE_DEPTH).
const DEEPEST: usize = 10;

/// Directories from which hooks and commands of one repository are run, at most.
const MOST_TOPS: usize = 64;

/// Files beside a repository's own that git reads for this user.
const OF_THE_USER: [&str; 2] = [".gitconfig", ".config/git/config"];
const OF_THE_SYSTEM: &str = "/etc/gitconfig";

/// Returns the files of configuration that git reads for every repository (git-config(1)), by these
/// variables of the environment.
pub(crate) fn files_for_all(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let path = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = accounts::home();
    let of_the_user = home.iter().flat_map(|home| OF_THE_USER.map(|name| home.join(name)));
    // A git that another program starts may not have the variables: the usual files count too.
    let named = [
        path("XDG_CONFIG_HOME").map(|directory| directory.join("git/config")),
        path("GIT_CONFIG_GLOBAL"),
        path("GIT_CONFIG_SYSTEM"),
    ];
    sorted(of_the_user.chain(named.into_iter().flatten()).chain([OF_THE_SYSTEM.into()]).collect())
}

/// The kind of path that a setting names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// More configuration, beside the file that names it.
    Include,
    /// The directory of hooks, from where they are run.
    Hooks,
    /// A work tree, from the repository's own directory.
    WorkTree,
    /// A file or directory that is obeyed.
    Place,
    /// A command for a shell or for exec.
    Command,
    /// The same after a `!`; else words for git, of which some may be of a program.
    Alias,
    /// An address, which has a command after `ext::` (git-remote-ext(1)).
    Address,
}

/// Settings by section and key, `*` for any key; subsections do not matter: what is included on a
/// condition counts as included.
const MEANINGS: [(&str, &str, Names); 58] = [
    ("include", "path", Names::Include),
    ("includeif", "path", Names::Include),
    ("core", "hookspath", Names::Hooks),
    ("core", "worktree", Names::WorkTree),
    ("core", "attributesfile", Names::Place),
    ("init", "templatedir", Names::Place),
    ("core", "fsmonitor", Names::Command),
    ("core", "editor", Names::Command),
    ("core", "pager", Names::Command),
    ("core", "sshcommand", Names::Command),
    ("core", "askpass", Names::Command),
    ("core", "gitproxy", Names::Command),
    ("core", "alternaterefscommand", Names::Command),
    ("sequence", "editor", Names::Command),
    ("gpg", "program", Names::Command),
    ("gpg", "defaultkeycommand", Names::Command),
    ("diff", "external", Names::Command),
    ("diff", "command", Names::Command),
    ("diff", "textconv", Names::Command),
    ("merge", "driver", Names::Command),
    ("filter", "clean", Names::Command),
    ("filter", "smudge", Names::Command),
    ("filter", "process", Names::Command),
    ("alias", "*", Names::Alias),
    ("credential", "helper", Names::Command),
    ("difftool", "cmd", Names::Command),
    ("difftool", "path", Names::Command),
    ("mergetool", "cmd", Names::Command),
    ("mergetool", "path", Names::Command),
    ("guitool", "cmd", Names::Command),
    ("browser", "cmd", Names::Command),
    ("browser", "path", Names::Command),
    ("man", "cmd", Names::Command),
    ("man", "path", Names::Command),
    ("interactive", "difffilter", Names::Command),
    ("pager", "*", Names::Command),
    ("uploadpack", "packobjectshook", Names::Command),
    ("remote", "uploadpack", Names::Command),
    ("remote", "receivepack", Names::Command),
    ("remote", "url", Names::Address),
    ("remote", "pushurl", Names::Address),
    ("trailer", "cmd", Names::Command),
    ("trailer", "command", Names::Command),
    ("hook", "command", Names::Command),
    ("submodule", "update", Names::Alias),
    ("gc", "recentobjectshook", Names::Command),
    ("tar", "command", Names::Command),
    ("lfs", "path", Names::Command),
    ("lfs", "clean", Names::Command),
    ("lfs", "smudge", Names::Command),
    ("sendemail", "smtpserver", Names::Command),
    ("sendemail", "tocmd", Names::Command),
    ("sendemail", "sendmailcmd", Names::Command),
    ("sendemail", "cccmd", Names::Command),
    ("sendemail", "headercmd", Names::Command),
    ("imap", "tunnel", Names::Command),
    ("instaweb", "httpd", Names::Command),
    ("svn", "authorsprog", Names::Command),
];

/// Hooks that git runs (githooks(5)), for a directory of hooks that cannot be guarded as a whole.
const HOOKS: &str = "applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit \
    prepare-commit-msg commit-msg post-commit pre-rebase post-checkout post-merge pre-push pre-receive \
    update proc-receive post-receive post-update reference-transaction push-to-checkout pre-auto-gc \
    post-rewrite sendemail-validate fsmonitor-watchman p4-changelist p4-prepare-changelist \
    p4-post-changelist p4-pre-submit post-index-change";

/// Settings, file by file.
type Settings = Vec<Rc<Vec<Variable>>>;
/// Files that were read, for repositories that share them.
type Known = BTreeMap<PathBuf, Rc<Vec<Variable>>>;

/// The known settings of one repository's configuration so far.
struct Gathered<'k> {
    known: &'k mut Known,
    seen: BTreeSet<PathBuf>,
    settings: Settings,
}

impl Scan {
    /// Guards what the configurations of all repositories that were found name.
    pub(crate) fn configurations(&mut self) {
        let mut repositories = std::mem::take(&mut self.repositories);
        repositories.retain(|repository| self.done.insert(repository.clone()));
        // Places near the top first: a cell can make others.
        repositories.sort_by_key(|one| (one.is_linked, one.git.components().count()));
        let known = &mut Known::new();
        self.configurations_for_all(known);
        for Repository { git, mut tops, .. } in repositories {
            let who = self.trees.place(&git).unwrap_or(Place { tree: 0, path: PathBuf::new() });
            let common = self.common(&git);
            let mut gathered = Gathered { known, seen: BTreeSet::new(), settings: Settings::new() };
            for (directory, name) in [(&common, "config"), (&git, "config.worktree")] {
                // In a granted directory its name is guarded as a part of a repository.
                let depth = usize::from(self.trees.place(directory).is_none());
                self.gather(&who, (directory, Path::new(name)), depth, &mut gathered);
            }
            for file in self.for_all.clone() {
                self.gather(&who, (Path::new("/"), &file), 1, &mut gathered);
            }
            let settings = gathered.settings;
            let trees = valued(&settings, Names::WorkTree);
            tops.extend(trees.filter_map(|value| self.resolved(&git, &expanded(value))));
            tops.push(git.clone());
            self.guard_named(&who, (&git, &sorted(tops)), &settings);
        }
    }

    /// Guards what git reads for every repository, and what that names by absolute paths: also where
    /// none was found.
    fn configurations_for_all(&mut self, known: &mut Known) {
        let who = Place { tree: 0, path: PathBuf::new() };
        let root = Path::new("/");
        let mut gathered = Gathered { known, seen: BTreeSet::new(), settings: Settings::new() };
        for file in self.for_all.clone() {
            self.gather(&who, (root, &file), 1, &mut gathered);
        }
        let settings = gathered.settings;
        self.guard_named(&who, (root, &[root.to_owned()]), &settings);
    }

    /// Adds the settings of the file that `path` leads to from a directory, and of all that it includes.
    fn gather(
        &mut self,
        who: &Place,
        (from, path): (&Path, &Path),
        depth: usize,
        gathered: &mut Gathered<'_>,
    ) {
        let end = match depth {
            // It is guarded already.
            0 => self.follow(from, path).end,
            _ => self.lead(who, from, path),
        };
        let file = match end {
            End::At(place, Kind::File) => self.trees.host(&place),
            End::Outside(path) => path,
            End::At(..) | End::Absent(_) | End::Nowhere => return,
        };
        // An include is resolved from the path as it was given, not from the end of a link.
        let directory = path.parent().and_then(|parent| self.resolved(from, parent));
        let Some(directory) = directory.filter(|_| gathered.seen.insert(file.clone())) else {
            return;
        };
        let variables = match gathered.known.get(&file) {
            Some(variables) => Rc::clone(variables),
            None => {
                let variables = Rc::new(self.variables(who, &file));
                gathered.known.insert(file, Rc::clone(&variables));
                variables
            }
        };
        gathered.settings.push(Rc::clone(&variables));
        for value in valued(&[variables], Names::Include).filter(|_| depth <= DEEPEST) {
            self.gather(who, (&directory, &expanded(value)), depth + 1, gathered);
        }
    }

    /// The settings of one file, by the reader; where that fails, whatever looks like a path.
    fn variables(&mut self, who: &Place, file: &Path) -> Vec<Variable> {
        let mut text = match self.read(file, MOST + 1) {
            Ok(text) => text,
            // A file that we may not read, the cell may not either; git will not, as this user.
            Err(Errno::ENOENT | Errno::EACCES | Errno::EINVAL | Errno::ELOOP | Errno::ENOTDIR) => {
                return Vec::new();
            }
            Err(_) => {
                self.note(who, "has a configuration that could not be read in time");
                return Vec::new();
            }
        };
        if text.len() > MOST {
            self.note(who, "has a configuration of more than 1 MiB, of which that much was read");
            text.truncate(MOST);
        }
        let read = match &self.reader {
            Some(reader) => reader.read(&text),
            None => Reader::start().and_then(|reader| self.reader.insert(reader).read(&text)),
        };
        match read {
            Ok((variables, Whole::Yes | Whole::No)) => variables,
            Err(_) => {
                // Another process for the next.
                self.reader = None;
                self.note(who, "has a configuration that could not be understood: each file that it seems to name is read-only");
                let key = b"external".to_vec();
                vec![Variable { section: b"diff".to_vec(), key, value: text }]
            }
        }
    }

    fn guard_named(&mut self, who: &Place, (git, tops): (&Path, &[PathBuf]), settings: &Settings) {
        for value in valued(settings, Names::Hooks) {
            let path = expanded(value);
            for top in tops.iter().take(MOST_TOPS) {
                if let End::At(place, Kind::Directory) = self.lead(who, top, &path)
                    && self.is_whole(&place, who)
                {
                    let directory = self.trees.host(&place);
                    for hook in HOOKS.split_ascii_whitespace() {
                        self.lead(who, &directory, Path::new(hook));
                    }
                }
            }
        }
        for value in valued(settings, Names::Place) {
            for top in tops.iter().take(MOST_TOPS) {
                self.lead(who, top, &expanded(value));
            }
        }
        let aliases = valued(settings, Names::Alias).map(programs_of_alias);
        let addresses = valued(settings, Names::Address);
        let addresses = addresses.filter_map(|value| value.strip_prefix(b"ext::"));
        let commands = valued(settings, Names::Command).chain(addresses);
        let commands = commands.map(<[u8]>::to_vec).chain(aliases);
        for command in commands {
            if self.is_spent() {
                self.note(who, "names more than could be looked at in time");
                return;
            }
            self.command(who, (git, tops), &command);
        }
    }

    /// Guards files that a command names: each word that is a path, and others after the first
    /// that are there, as scripts of an interpreter are.
    fn command(&mut self, who: &Place, (git, tops): (&Path, &[PathBuf]), command: &[u8]) {
        const WORDS: usize = 200;
        let words =
            command.split(|byte| byte.is_ascii_whitespace() || b"!;|&()<>'\"`$=".contains(byte));
        let words = words.filter(|word| !word.is_empty() && !word.starts_with(b"-"));
        for (index, word) in words.take(WORDS).enumerate() {
            let path = expanded(word);
            let is_path = word.contains(&b'/');
            // Of a repository's own these are references, which git writes to.
            let is_reference =
                word.ends_with(b"HEAD") || word.starts_with(b"refs/") || word.starts_with(b"logs/");
            for top in tops.iter().take(MOST_TOPS) {
                if is_reference && top == git {
                    continue;
                }
                match self.follow(top, &path).end {
                    // No command: it only has to stay one.
                    End::At(place, Kind::Directory) if is_path => self.pin(&place),
                    End::At(_, Kind::File) if index > 0 => drop(self.lead(who, top, &path)),
                    End::At(..) | End::Absent(_) | End::Outside(_) | End::Nowhere if is_path => {
                        self.lead(who, top, &path);
                    }
                    End::At(..) | End::Absent(_) | End::Outside(_) | End::Nowhere => {}
                }
            }
        }
    }
}

/// Commands of git that run no word but the value of an option. None can be an alias or a program of another's.
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

/// Words of an alias that may be of a program. After a `!` all are, and where it begins with anything but one of
/// [`HARMLESS`]: another alias, say. Of these git runs the value of an option (`-O x`, `--exec=x`). With a quote among
/// them one word may be several, and all are kept.
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
    // The first word of a command is looked for in PATH, and none of these is that.
    [b"git".to_vec()].into_iter().chain(kept).collect::<Vec<_>>().join(&b' ')
}

/// Values of settings with this meaning.
fn valued(settings: &[Rc<Vec<Variable>>], what: Names) -> impl Iterator<Item = &[u8]> {
    let all = settings.iter().flat_map(|variables| variables.iter());
    let named =
        all.filter(move |variable| !variable.value.is_empty() && meaning(variable) == Some(what));
    named.map(|variable| variable.value.as_slice())
}

fn meaning(variable: &Variable) -> Option<Names> {
    named_by(&variable.section, &variable.key)
}

/// Returns whether a setting names a place; without allocating, for the reader.
pub(crate) fn matters(section: &[u8], key: &[u8]) -> bool {
    named_by(section, key).is_some()
}

fn named_by(section: &[u8], key: &[u8]) -> Option<Names> {
    let found = MEANINGS.iter().find(|(one, other, _)| {
        section == one.as_bytes() && (*other == "*" || key == other.as_bytes())
    });
    found.map(|(_, _, names)| *names)
}

/// A path with what git puts in for its first part (path.c: interpolate_path).
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
