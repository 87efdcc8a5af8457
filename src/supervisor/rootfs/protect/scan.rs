//! Scans granted directories before a start: one walk through each, within a common budget.
//!
//! A workspace that a cell has left must neither delay nor prevent a later start: no link is
//! followed, entries and time are limited, and the name guard covers everything that was not
//! scanned.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use super::budget::{Budget, Extent};
use super::guarded::GuardedPaths;
use super::reader::{FileSettings, Reader};
use super::rights::Rights;
use super::tree::{GrantPath, Kind, Named, Target, Trees, shared};
use cell::mediate::names;

/// Part of the time for the walk.
const WALK_TIME: Duration = Duration::from_millis(150);
/// Time for the names at the top of a granted directory, before the walk, and for the paths that
/// they lead to.
const TOP_TIME: Duration = Duration::from_millis(50);
/// Maximum number of names that are looked up in directories that were not listed.
const MAX_NAMES: usize = 50_000;
/// Maximum number of paths that are guarded by name: each is compared with every name that a cell
/// makes.
const MAX_NAMED: usize = 1_000;
/// Maximum length of a path: longer ones could not be mounted.
const MAX_PATH_BYTES: usize = 3_500;

/// State of a scan of the granted directories.
#[derive(Debug)]
pub(crate) struct Scan {
    pub extent: Extent,
    pub trees: Trees,
    pub guarded: Vec<GuardedPaths>,
    pub budget: Budget,
    /// Started with the first repository, to prepare itself while names are looked up, or when there is a file to parse.
    pub reader: Option<Reader>,
    /// Guarded directories.
    pub directories: Vec<GrantPath>,
    /// Files that become read-only under one name but have others.
    pub shared: BTreeSet<(u64, u64)>,
    /// Repositories whose configuration must be read, each with the directories that it applies to.
    pub repositories: Vec<Repository>,
    /// Repositories whose configuration was read.
    pub done: BTreeSet<Repository>,
    /// Repository directories whose submodules and linked worktrees must be listed.
    pub unlisted: Vec<GrantPath>,
    /// Configuration files that git reads for every repository.
    pub for_all: Vec<PathBuf>,
    /// True if the paths that those name are guarded.
    pub is_for_all_guarded: bool,
    /// Configuration files that were already read with these rights, shared between repositories.
    pub known: BTreeMap<(PathBuf, Rights), FileSettings>,
    /// A directory that keeps a configuration of git from being read.
    pub refused: Option<PathBuf>,
}

/// A repository's directory, and the directories from which its hooks are run, as resolved paths of
/// the host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Repository {
    /// Linked worktrees, which a cell can make in large numbers, come after all others.
    pub is_linked: bool,
    pub git: PathBuf,
    pub tops: Vec<PathBuf>,
    /// Rights with which these were found.
    pub rights: Rights,
}

impl Scan {
    pub(crate) fn new(trees: Trees, for_all: Vec<PathBuf>, extent: Extent) -> Self {
        let guarded = (0..trees.len()).map(|_| GuardedPaths::default()).collect();
        Self {
            extent,
            budget: extent.budget(WALK_TIME),
            trees,
            guarded,
            reader: None,
            directories: Vec::new(),
            shared: BTreeSet::new(),
            repositories: Vec::new(),
            done: BTreeSet::new(),
            unlisted: Vec::new(),
            for_all,
            is_for_all_guarded: false,
            known: BTreeMap::new(),
            refused: None,
        }
    }

    /// Checks the files that the host obeys at the top of each granted directory, and the
    /// repositories around it, by name and before any listing: a large number of entries left by a
    /// cell cannot hide these. Each step has a separate time limit.
    pub(crate) fn tops(&mut self) {
        let roots = (0..self.trees.len()).map(|tree| GrantPath { tree, path: PathBuf::new() });
        let roots: Vec<GrantPath> = roots.collect();
        self.budget = self.extent.budget(TOP_TIME);
        for root in &roots {
            match self.trees.is_repository(root.tree) {
                true => self.repository(root),
                false => self.repositories_by_name(root),
            }
        }
        self.enclosing();
        self.budget = self.extent.budget(TOP_TIME);
        self.configurations();
        self.budget = self.extent.budget(TOP_TIME);
        for root in &roots {
            self.top_holder(root);
            self.obeyed_by_name(root);
        }
        self.budget = self.extent.budget(WALK_TIME);
    }

    /// Checks by name whether a directory is or contains a repository, without listing it.
    fn repositories_by_name(&mut self, directory: &GrantPath) {
        let git = directory.below(Path::new(names::GIT));
        match self.trees.kind(&self.trees.host(&git)) {
            Some(Kind::Directory) => {
                if self.reader.is_none() {
                    // A failure is reported with the first file that cannot be parsed.
                    self.reader = Reader::start().ok();
                }
                self.main_repository(&git);
            }
            Some(kind) => self.obeyed(&git, kind),
            None => {}
        }
        if self.trees.kind(&self.trees.host(&directory.below(Path::new(names::HEAD)))).is_some() {
            self.bare_repository(directory);
        }
    }

    /// Guards the hooks in a granted directory that is one of [`names::HOLDERS`] itself. The name
    /// guard does not know the names around a granted directory.
    fn top_holder(&mut self, root: &GrantPath) {
        let host = self.trees.host(root);
        let name = host.file_name().unwrap_or_default().as_bytes();
        if names::NameClass::classify(name) == names::NameClass::Holder {
            self.holder(root, Kind::Directory);
            self.guard_name(root.below(Path::new(names::HOOKS)));
        }
    }

    /// Checks the other names that the host obeys in a directory, without listing it.
    fn obeyed_by_name(&mut self, directory: &GrantPath) {
        for word in names::HOLDERS {
            let path = directory.below(Path::new(word));
            if let Some(kind) = self.trees.kind(&self.trees.host(&path)) {
                self.holder(&path, kind);
            }
        }
        let also = self.trees.also(directory.tree);
        let known = names::OBEYED.iter().map(|(word, _)| OsStr::new(word));
        for word in known.chain(also.iter().map(|word| OsStr::from_bytes(word))) {
            let path = directory.below(Path::new(word));
            match self.trees.kind(&self.trees.host(&path)) {
                Some(Kind::Link) => drop(self.link(&path)),
                // The walk handles the entries of a directory.
                Some(Kind::Directory | Kind::File | Kind::Other) => self.cover(&path),
                None => {}
            }
        }
    }

    /// Walks through every granted directory, and afterwards through repositories' directories: a
    /// large number of entries in these cannot hide those of work trees.
    pub(crate) fn walk(&mut self) {
        for tree in 0..self.trees.len() {
            self.walk_tree(GrantPath { tree, path: PathBuf::new() });
        }
        if self.is_spent() {
            self.budget = self.extent.budget(TOP_TIME);
        }
        for git in std::mem::take(&mut self.unlisted) {
            self.submodules(&git);
            self.worktrees(&git);
            if self.is_spent() && self.has_others(&git) {
                self.note_unseen(
                    &git,
                    "has submodules or worktrees that could not be looked at in time",
                );
            }
        }
        self.budget.extend_for_configurations();
    }

    /// Walks breadth first, so that entries near the top are read before the budget is exhausted.
    fn walk_tree(&mut self, root: GrantPath) {
        let mut queue = VecDeque::from([root]);
        while let Some(directory) = queue.pop_front() {
            if directory.path.as_os_str().len() > MAX_PATH_BYTES {
                self.note_unseen(&directory, "lies too deep to be looked at");
                continue;
            }
            for (name, kind) in self.entries(&directory) {
                let here = directory.below(&name);
                let bytes = name.as_os_str().as_bytes();
                match (names::NameClass::classify(bytes), kind) {
                    _ if names::is_one_of(&self.trees.also(directory.tree), bytes) => {
                        self.obeyed(&here, kind);
                    }
                    (names::NameClass::Obeyed, _) => self.obeyed(&here, kind),
                    (names::NameClass::Head { exact }, kind) => {
                        let head = directory.below(Path::new(names::HEAD));
                        // Cells may use other spellings where these are other names.
                        if exact || self.trees.kind(&self.trees.host(&head)).is_some() {
                            self.bare_repository(&directory);
                        }
                        if kind == Kind::Directory {
                            queue.push_back(here);
                        }
                    }
                    (names::NameClass::Holder, kind) => {
                        self.holder(&here, kind);
                        if kind == Kind::Directory {
                            queue.push_back(here);
                        }
                    }
                    (_, Kind::Directory) => queue.push_back(here),
                    (_, Kind::Link) if self.extent == Extent::Whole => self.keep_link(here),
                    (_, Kind::File | Kind::Link | Kind::Other) => {}
                }
            }
            if self.budget.is_spent() {
                self.unwalked(directory, queue);
                return;
            }
        }
    }

    /// Keeps a link of which the host obeys nothing by itself.
    fn keep_link(&mut self, path: GrantPath) {
        if let Some(guarded) = self.guarded.get_mut(path.tree) {
            guarded.links.push(path.path);
        }
    }

    /// Checks by name in the directory whose listing was interrupted and in those that were not
    /// listed, within a separate budget. Files that the host obeys in them become read-only, but
    /// are not scanned further.
    fn unwalked(&mut self, directory: GrantPath, queue: VecDeque<GrantPath>) {
        let first = queue.front().unwrap_or(&directory);
        self.note_unseen(first, "and more could not be looked at in time");
        let rest = std::mem::replace(&mut self.budget, Budget::new(MAX_NAMES, TOP_TIME));
        // The top of a granted directory was checked before.
        let below = |directory: &GrantPath| !directory.path.as_os_str().is_empty();
        for directory in [directory].into_iter().chain(queue).filter(below) {
            if !self.budget.spend(2 + names::OBEYED.len()) {
                break;
            }
            self.repositories_by_name(&directory);
            self.obeyed_by_name(&directory);
        }
        self.budget = rest;
    }

    /// Returns the entries of a directory that the walk needs, within the budget. Plain files are
    /// only counted.
    pub(crate) fn entries(&mut self, directory: &GrantPath) -> Vec<(PathBuf, Kind)> {
        let also = self.trees.also(directory.tree);
        self.listed(directory, |name, kind| {
            matches!(kind, Kind::Directory | Kind::Link)
                || names::NameClass::classify(name) != names::NameClass::Plain
                || names::is_one_of(&also, name)
        })
    }

    /// Returns all entries of a directory, within the budget.
    fn all_entries(&mut self, directory: &GrantPath) -> Vec<(PathBuf, Kind)> {
        self.listed(directory, |_, _| true)
    }

    fn listed(
        &mut self,
        directory: &GrantPath,
        matters: impl Fn(&[u8], Kind) -> bool,
    ) -> Vec<(PathBuf, Kind)> {
        let trees = &self.trees;
        let budget = &mut self.budget;
        let mut entries = Vec::new();
        // Listing an empty directory takes time too.
        if !budget.spend(1) {
            return entries;
        }
        let listed = trees.list(&trees.host(directory), |name, kind| {
            if !budget.spend(1) {
                return ControlFlow::Break(());
            }
            if matters(name, kind) {
                entries.push((PathBuf::from(OsStr::from_bytes(name)), kind));
            }
            ControlFlow::Continue(())
        });
        match listed {
            // Removed or replaced since.
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
            Err(Errno::EACCES) => self.unlistable(directory),
            Err(_) => self.note_unseen(directory, "cannot be listed"),
        }
        entries
    }

    /// Checks by name in a directory that cannot be listed. Programs of the host that know the names
    /// in it may still enter it.
    fn unlistable(&mut self, directory: &GrantPath) {
        let host = self.trees.host(directory);
        let git = self.trees.stat(&host.join(names::GIT)).map(|_| ());
        if git == Err(Errno::EACCES) || !self.budget.spend(2 + names::OBEYED.len()) {
            return;
        }
        self.repositories_by_name(directory);
        self.obeyed_by_name(directory);
        // Git obeys no repository in the directory of another user (safe.directory).
        let user = self.trees.user();
        let is_own = self.trees.stat(&host).is_ok_and(|(_, status)| status.st_uid == user);
        if self.extent == Extent::Whole && (is_own || git != Err(Errno::ENOENT)) {
            self.note_unseen(directory, "cannot be listed");
        }
    }

    /// Refuses the granted directories where a configuration of git cannot be read because of a
    /// directory above it.
    pub(crate) fn denied(&mut self, file: &Path, rights: Rights) {
        let rights = self.trees.rights_in(file.parent().unwrap_or(file), rights);
        if !self.trees.is_unguarded(file) && !self.trees.is_unreadable(file, rights) {
            self.refused = self.refused.take().or(self.trees.closed_above(file, rights));
        }
    }

    /// Returns a directory because of which it is not known what the host obeys.
    pub(crate) fn closed(&mut self) -> Option<PathBuf> {
        self.refused.take().or_else(|| self.trees.take_closed())
    }

    /// Returns true if the budget is exhausted.
    pub(crate) fn is_spent(&self) -> bool {
        self.budget.is_spent()
    }

    /// Guards a name that the host obeys in any directory.
    fn obeyed(&mut self, path: &GrantPath, kind: Kind) {
        let is_git =
            path.path.file_name().is_some_and(|name| names::may_be(name.as_bytes(), names::GIT));
        match (kind, is_git) {
            (Kind::Directory, true) => self.repository(path),
            (Kind::Directory, false) => self.directory(path),
            (Kind::File | Kind::Other, true) => {
                self.cover(path);
                self.git_file(&self.trees.host(path));
            }
            (Kind::File | Kind::Other, false) => self.cover(path),
            (Kind::Link, _) => {
                if let Some((to, Kind::Directory)) = self.link(path)
                    && is_git
                {
                    self.repository(&to);
                    // Its work tree is where the link is.
                    let tops = self.trees.host(path).parent().map(Path::to_owned);
                    let tops = tops.into_iter().collect();
                    let git = self.trees.host(&to);
                    let rights = Rights::Own;
                    self.repositories.push(Repository { is_linked: false, git, tops, rights });
                }
            }
        }
    }

    /// Guards the hooks in a directory that may contain hooks of agents. If it is a link, its whole
    /// target is guarded.
    fn holder(&mut self, path: &GrantPath, kind: Kind) {
        let hooks = path.below(Path::new(names::HOOKS));
        match (kind, self.trees.kind(&self.trees.host(&hooks))) {
            (Kind::Link, _) => drop(self.link(path)),
            (Kind::Directory, Some(kind)) => self.obeyed(&hooks, kind),
            (Kind::Directory, None) | (Kind::File | Kind::Other, _) => {}
        }
    }

    /// Guards a directory. Its entries are looked at after everything that a name leads to: a cell may have made any
    /// number of them before the directory was guarded.
    pub(crate) fn directory(&mut self, path: &GrantPath) {
        self.cover(path);
        if !self.directories.contains(path) {
            self.directories.push(path.clone());
        }
    }

    /// Guards the targets of links in the guarded directories, and notes files in them that have other names.
    pub(crate) fn contents(&mut self) {
        self.budget = self.extent.budget(WALK_TIME);
        let mut next = 0;
        // Links lead to further directories.
        while let Some(path) = self.directories.get(next).cloned() {
            self.contents_of(&path);
            next += 1;
        }
    }

    fn contents_of(&mut self, path: &GrantPath) {
        let mut queue = VecDeque::from([path.clone()]);
        while let Some(directory) = queue.pop_front() {
            for (name, kind) in self.all_entries(&directory) {
                let here = directory.below(&name);
                match kind {
                    Kind::Directory if here.path.as_os_str().len() <= MAX_PATH_BYTES => {
                        queue.push_back(here)
                    }
                    Kind::Link => drop(self.link(&here)),
                    Kind::File => {
                        let stat = self.trees.stat(&self.trees.host(&here)).ok();
                        self.shared.extend(stat.and_then(|(_, stat)| shared(&stat)));
                    }
                    Kind::Directory | Kind::Other => {}
                }
            }
            if self.budget.is_spent() {
                self.note_unseen(path, "has more in it than could be looked at in time");
                return;
            }
        }
    }

    /// Guards the target of a link that the host obeys, and the links on the way. Returns the
    /// target if it is in a granted directory.
    pub(crate) fn link(&mut self, path: &GrantPath) -> Option<(GrantPath, Kind)> {
        let host = self.trees.host(path);
        let from = host.parent()?;
        let name = host.file_name()?;
        let named = Named { from, path: Path::new(name), rights: Rights::Own };
        match self.guard_path(path, named).end {
            Target::InGrant(to, kind) => {
                if self.is_whole(&to, path) {
                    self.note(path, "leads to a directory that holds it, which stays writable");
                    self.guard_whole(&to);
                }
                Some((to, kind))
            }
            Target::Missing(_) => None,
            Target::Outside(_) => {
                self.note(path, "leads out of the directory: what it leads to is not guarded");
                None
            }
            Target::Unresolved => {
                self.note(path, "is a link that cannot be followed");
                None
            }
        }
    }

    /// Returns true if `path` contains `origin`, which refers to it, or is a granted directory
    /// itself.
    pub(crate) fn is_whole(&self, path: &GrantPath, origin: &GrantPath) -> bool {
        let holds = path.tree == origin.tree && origin.path.starts_with(&path.path);
        path.path.as_os_str().is_empty() || (holds && path.path != origin.path)
    }

    /// Records a directory of which everything is obeyed, although a cell may write to it.
    pub(crate) fn guard_whole(&mut self, path: &GrantPath) {
        if let Some(guarded) = self.guarded.get_mut(path.tree) {
            guarded.whole.insert(path.path.clone());
        }
    }

    /// Returns true if a path or one of its parents becomes read-only.
    fn is_covered(&self, path: &GrantPath) -> bool {
        let guarded = self.guarded.get(path.tree);
        guarded.is_some_and(|guarded| {
            guarded.obeyed.iter().any(|parent| path.path.starts_with(parent))
        })
    }

    pub(crate) fn is_new(&self, path: &GrantPath) -> bool {
        let guarded = self.guarded.get(path.tree);
        guarded.is_none_or(|guarded| !guarded.obeyed.contains(&path.path))
    }

    /// Marks a path as read-only.
    pub(crate) fn cover(&mut self, path: &GrantPath) {
        if let Ok((_, stat)) = self.trees.stat(&self.trees.host(path)) {
            self.shared.extend(shared(&stat));
        }
        for GrantPath { tree, path } in self.trees.everywhere(path) {
            if let Some(guarded) = self.guarded.get_mut(tree)
                && !guarded.obeyed.contains(&path)
            {
                guarded.obeyed.push(path);
            }
        }
    }

    /// Guards the other names of files that become read-only under one name, as the file could be
    /// written to through them. This needs a second walk, which few directories require.
    pub(crate) fn other_names(&mut self) {
        if self.shared.is_empty() {
            return;
        }
        let roots = (0..self.trees.len()).map(|tree| GrantPath { tree, path: PathBuf::new() });
        let mut queue: VecDeque<GrantPath> = roots.collect();
        while let Some(directory) = queue.pop_front() {
            for (name, kind) in self.all_entries(&directory) {
                let here = directory.below(&name);
                match kind {
                    Kind::Directory if here.path.as_os_str().len() <= MAX_PATH_BYTES => {
                        queue.push_back(here)
                    }
                    Kind::File => {
                        let stat = self.trees.stat(&self.trees.host(&here));
                        let file = stat.ok().and_then(|(_, stat)| shared(&stat));
                        let is_other = file.is_some_and(|file| self.shared.contains(&file));
                        if is_other && !self.is_covered(&here) {
                            self.cover(&here);
                            self.guard_name(here);
                        }
                    }
                    Kind::Directory | Kind::Link | Kind::Other => {}
                }
            }
            if self.is_spent() {
                self.note(
                    &directory,
                    "may have other names of guarded files: there was no time to look",
                );
                return;
            }
        }
    }

    /// Prevents a directory from being renamed.
    pub(crate) fn pin(&mut self, path: &GrantPath) {
        for GrantPath { tree, path } in self.trees.everywhere(path) {
            if let Some(guarded) = self.guarded.get_mut(tree) {
                guarded.pinned.push(path);
            }
        }
    }

    /// Guards a path by name, so that it cannot be made or written to, unless a name in it is
    /// guarded anyway.
    pub(crate) fn guard_name(&mut self, place: GrantPath) {
        for place in self.trees.everywhere(&place) {
            self.guard_name_in(place);
        }
    }

    fn guard_name_in(&mut self, place: GrantPath) {
        let path = place.path.as_os_str().as_bytes();
        if names::has_obeyed(path) || path.is_empty() {
            return;
        }
        let Some(guarded) = self.guarded.get_mut(place.tree) else { return };
        if guarded.named.len() < MAX_NAMED || self.extent == Extent::Whole {
            guarded.named.insert(place.path);
        } else {
            let root = GrantPath { tree: place.tree, path: PathBuf::new() };
            self.note_unseen(
                &root,
                "has more places that links lead to than can be guarded by name",
            );
        }
    }

    /// Records that something on the host was not looked at, so that the paths are not all that the
    /// host obeys.
    pub(crate) fn note_unseen(&mut self, path: &GrantPath, reason: &'static str) {
        // A configuration outside of the granted directories may name files in each of them.
        for guarded in &mut self.guarded {
            guarded.unseen = guarded.unseen.or(Some(reason));
        }
        self.note(path, reason);
    }

    /// Records that a path is guarded only by name, or not at all.
    pub(crate) fn note(&mut self, path: &GrantPath, reason: &'static str) {
        if let Some(guarded) = self.guarded.get_mut(path.tree) {
            guarded.notes.insert((path.path.clone(), reason));
        }
    }
}

impl GrantPath {
    pub(crate) fn below(&self, name: &Path) -> Self {
        Self { tree: self.tree, path: self.path.join(name) }
    }
}

/// Returns the paths sorted and without duplicates.
pub(crate) fn sorted(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}
