//! The look at granted directories before a start: one walk of each, within one budget.
//!
//! A workspace that a cell has left must not hold up a later start, nor prevent it: no link is
//! followed, entries and time are counted, and what is not looked at is left to the guard of names.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::GuardedPaths;
use super::configured::files_for_all;
use super::reader::Reader;
use super::tree::{End, Kind, Led, Place, Trees, shared};
use cell::mediate::names;

/// Entries that are looked at, at most, and for how long.
const ENTRIES: usize = 1_000_000;
const TIME: Duration = Duration::from_millis(200);
/// Of that, for walking.
const WALK: Duration = Duration::from_millis(150);
/// For the names at the top of a granted directory, before that, and for what they lead to.
const TOP: Duration = Duration::from_millis(50);
/// Entries that are looked at however long that takes: a busy machine must not cost a small
/// directory its mounts.
const ASSURED: usize = 5_000;
/// Names that are looked at in directories that were not listed, at most.
const NAMES: usize = 50_000;
/// Cost of reading a file, in entries.
const FILE: usize = 50;
/// Places that are guarded by name, at most: each is compared with every name that a cell makes.
const MOST_NAMED: usize = 1_000;
/// Longer paths are not looked at: as mounts they could not be named.
const LONGEST: usize = 3_500;

/// The entries and the time that are left.
#[derive(Debug)]
pub(crate) struct Budget {
    spent: usize,
    entries: usize,
    /// Up to here time does not count.
    assured: usize,
    start: Instant,
    time: Duration,
}

impl Budget {
    pub(crate) fn new(entries: usize, time: Duration) -> Self {
        Self { spent: 0, entries, assured: ASSURED, start: Instant::now(), time }
    }

    /// Takes `entries` from it; false once there is nothing left.
    pub(crate) fn spend(&mut self, entries: usize) -> bool {
        self.spent = self.spent.saturating_add(entries);
        // The clock is looked at now and then only.
        let look = self.spent > self.assured && self.spent % 64 < entries;
        if self.spent > self.entries || (look && self.start.elapsed() > self.time) {
            self.entries = 0;
        }
        !self.is_spent()
    }

    fn is_spent(&self) -> bool {
        self.spent > self.entries
    }

    /// Adds the last part of it, for configurations.
    fn add_last(&mut self) {
        self.time = TIME;
        self.assured = self.spent.saturating_add(ASSURED);
        self.entries = self.assured.max(ENTRIES);
    }
}

/// The known places of the granted directories so far.
#[derive(Debug)]
pub(crate) struct Scan {
    pub trees: Trees,
    pub found: Vec<GuardedPaths>,
    pub budget: Budget,
    /// Started when there is something to read.
    pub reader: Option<Reader>,
    /// Files that become read-only by one name and have others.
    pub shared: BTreeSet<(u64, u64)>,
    /// Repositories whose configuration is to be read, each with the directories that it is for.
    pub repositories: Vec<Repository>,
    /// Those whose configuration was read.
    pub done: BTreeSet<Repository>,
    /// Repositories' own directories whose submodules and linked worktrees are still to be listed.
    pub unlisted: Vec<Place>,
    /// Files of configuration that git reads for every repository.
    pub for_all: Vec<PathBuf>,
}

/// A repository's own directory, and from where its hooks are run; resolved paths of the host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Repository {
    /// Linked worktrees, which a cell can make many of, come after all others.
    pub is_linked: bool,
    pub git: PathBuf,
    pub tops: Vec<PathBuf>,
}

impl Scan {
    pub(crate) fn new(trees: Trees) -> Self {
        let found = (0..trees.len()).map(|_| GuardedPaths::default()).collect();
        let budget = Budget::new(ENTRIES, WALK);
        Self {
            trees,
            found,
            budget,
            reader: None,
            shared: BTreeSet::new(),
            repositories: Vec::new(),
            done: BTreeSet::new(),
            unlisted: Vec::new(),
            for_all: files_for_all(|name| std::env::var_os(name)),
        }
    }

    /// Looks by name at what the host obeys at the top of each granted directory and at the
    /// repositories around it, before any listing: however many entries a cell has left, they
    /// cannot keep these from being found. Each step has time of its own.
    pub(crate) fn tops(&mut self) {
        let roots = (0..self.trees.len()).map(|tree| Place { tree, path: PathBuf::new() });
        let roots: Vec<Place> = roots.collect();
        self.budget = Budget::new(ENTRIES, TOP);
        for root in &roots {
            self.repositories_by_name(root);
        }
        self.enclosing();
        self.budget = Budget::new(ENTRIES, TOP);
        self.configurations();
        self.budget = Budget::new(ENTRIES, TOP);
        for root in &roots {
            self.obeyed_by_name(root);
        }
        self.budget = Budget::new(ENTRIES, WALK);
    }

    /// Looks by name at the repositories that a directory is or has, and lists nothing.
    fn repositories_by_name(&mut self, directory: &Place) {
        let git = directory.below(Path::new(names::GIT));
        match self.trees.kind(&self.trees.host(&git)) {
            Some(Kind::Directory) => self.main_repository(&git),
            Some(kind) => self.obeyed(&git, kind),
            None => {}
        }
        if self.trees.kind(&self.trees.host(&directory.below(Path::new(names::HEAD)))).is_some() {
            self.bare_repository(directory);
        }
    }

    /// Looks by name at what else the host obeys in a directory.
    fn obeyed_by_name(&mut self, directory: &Place) {
        for word in names::HOLDERS {
            let place = directory.below(Path::new(word));
            if let Some(kind) = self.trees.kind(&self.trees.host(&place)) {
                self.holder(&place, kind);
            }
        }
        let also = self.trees.also(directory.tree);
        let known = names::OBEYED.iter().map(|(word, _)| OsStr::new(word));
        for word in known.chain(also.iter().map(|word| OsStr::from_bytes(word))) {
            let place = directory.below(Path::new(word));
            match self.trees.kind(&self.trees.host(&place)) {
                Some(Kind::Link) => drop(self.link(&place)),
                // The walk looks at the entries of a directory.
                Some(Kind::Directory | Kind::File | Kind::Other) => self.cover(&place),
                None => {}
            }
        }
    }

    /// Looks at every granted directory, and then into repositories' own: however many entries a cell has left
    /// there, they keep nothing of the work trees from being found.
    pub(crate) fn walk(&mut self) {
        for tree in 0..self.trees.len() {
            self.walk_tree(Place { tree, path: PathBuf::new() });
        }
        if self.is_spent() {
            self.budget = Budget::new(ENTRIES, TOP);
        }
        for git in std::mem::take(&mut self.unlisted) {
            self.submodules(&git);
            self.worktrees(&git);
            if self.is_spent() && self.has_others(&git) {
                self.note(&git, "has submodules or worktrees that could not be looked at in time");
            }
        }
        self.budget.add_last();
    }

    /// Breadth first: what lies near the top is looked at before the budget ends.
    fn walk_tree(&mut self, root: Place) {
        let mut left = VecDeque::from([root]);
        while let Some(directory) = left.pop_front() {
            if directory.path.as_os_str().len() > LONGEST {
                self.note(&directory, "lies too deep to be looked at");
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
                    (names::NameClass::Head { .. }, _) => self.bare_repository(&directory),
                    (names::NameClass::Holder, kind) => {
                        self.holder(&here, kind);
                        if kind == Kind::Directory {
                            left.push_back(here);
                        }
                    }
                    (_, Kind::Directory) => left.push_back(here),
                    (_, Kind::File | Kind::Link | Kind::Other) => {}
                }
            }
            if self.budget.is_spent() {
                self.unwalked(directory, left);
                return;
            }
        }
    }

    /// Looks by name into the directory whose listing was broken off and into those that are still to be listed, within
    /// a budget of their own: what the host obeys in them becomes read-only, and is not looked through.
    fn unwalked(&mut self, directory: Place, left: VecDeque<Place>) {
        let which = left.front().unwrap_or(&directory);
        self.note(which, "and more could not be looked at in time");
        let rest = std::mem::replace(&mut self.budget, Budget::new(NAMES, TOP));
        // The top of a granted directory was looked at before.
        let below = |directory: &Place| !directory.path.as_os_str().is_empty();
        for directory in [directory].into_iter().chain(left).filter(below) {
            if !self.budget.spend(2 + names::OBEYED.len()) {
                break;
            }
            self.repositories_by_name(&directory);
            self.obeyed_by_name(&directory);
        }
        self.budget = rest;
    }

    /// Entries of a directory that the walk has to know of, within the budget: those of plain files
    /// are only counted.
    pub(crate) fn entries(&mut self, directory: &Place) -> Vec<(PathBuf, Kind)> {
        let also = self.trees.also(directory.tree);
        self.listed(directory, |name, kind| {
            matches!(kind, Kind::Directory | Kind::Link)
                || names::NameClass::classify(name) != names::NameClass::Plain
                || names::is_one_of(&also, name)
        })
    }

    /// All entries of a directory, within the budget.
    fn all_entries(&mut self, directory: &Place) -> Vec<(PathBuf, Kind)> {
        self.listed(directory, |_, _| true)
    }

    fn listed(
        &mut self,
        directory: &Place,
        matters: impl Fn(&[u8], Kind) -> bool,
    ) -> Vec<(PathBuf, Kind)> {
        let trees = &self.trees;
        let budget = &mut self.budget;
        let mut entries = Vec::new();
        // An empty one takes time as well.
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
            // Neither may the cell list it, or it is gone or replaced since it was listed.
            Ok(()) | Err(Errno::EACCES | Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
            Err(_) => self.note(directory, "cannot be listed"),
        }
        entries
    }

    /// A name that the host obeys wherever it lies.
    fn obeyed(&mut self, place: &Place, kind: Kind) {
        let is_git =
            place.path.file_name().is_some_and(|name| names::may_be(name.as_bytes(), names::GIT));
        match (kind, is_git) {
            (Kind::Directory, true) => self.repository(place),
            (Kind::Directory, false) => self.directory(place),
            (Kind::File | Kind::Other, true) => {
                self.cover(place);
                self.git_file(&self.trees.host(place));
            }
            (Kind::File | Kind::Other, false) => self.cover(place),
            (Kind::Link, _) => {
                if let Some((to, Kind::Directory)) = self.link(place)
                    && is_git
                {
                    self.repository(&to);
                }
            }
        }
    }

    /// A directory in which hooks of agents may be. Where it is a link, all that it leads to is guarded.
    fn holder(&mut self, place: &Place, kind: Kind) {
        let hooks = place.below(Path::new(names::HOOKS));
        match (kind, self.trees.kind(&self.trees.host(&hooks))) {
            (Kind::Link, _) => drop(self.link(place)),
            (Kind::Directory, Some(kind)) => self.obeyed(&hooks, kind),
            (Kind::Directory, None) | (Kind::File | Kind::Other, _) => {}
        }
    }

    /// Guards a directory with all that is in it, and what links in it lead to.
    pub(crate) fn directory(&mut self, place: &Place) {
        self.cover(place);
        let mut left = VecDeque::from([place.clone()]);
        while let Some(directory) = left.pop_front() {
            for (name, kind) in self.all_entries(&directory) {
                let here = directory.below(&name);
                match kind {
                    Kind::Directory if here.path.as_os_str().len() <= LONGEST => {
                        left.push_back(here)
                    }
                    Kind::Link => drop(self.link(&here)),
                    Kind::File => {
                        let looked = self.trees.look(&self.trees.host(&here)).ok();
                        self.shared.extend(looked.and_then(|(_, found)| shared(&found)));
                    }
                    Kind::Directory | Kind::Other => {}
                }
            }
            if self.budget.is_spent() {
                self.note(place, "has more in it than could be looked at in time");
                return;
            }
        }
    }

    /// Guards what a link leads to that the host obeys, and the links on the way. Returns it, where
    /// it is in a granted directory.
    pub(crate) fn link(&mut self, place: &Place) -> Option<(Place, Kind)> {
        let host = self.trees.host(place);
        let from = host.parent()?;
        let name = host.file_name()?;
        match self.lead(place, from, Path::new(name)) {
            End::At(to, kind) => {
                if self.is_whole(&to, place) {
                    self.note(place, "leads to a directory that holds it, which stays writable");
                }
                Some((to, kind))
            }
            End::Absent(_) => None,
            End::Outside(_) => {
                self.note(place, "leads out of the directory: what it leads to is not guarded");
                None
            }
            End::Nowhere => {
                self.note(place, "is a link that cannot be followed");
                None
            }
        }
    }

    /// Guards what `path` leads to from the resolved directory `from`, for what `who` names there.
    pub(crate) fn lead(&mut self, who: &Place, from: &Path, path: &Path) -> End {
        if !self.budget.spend(1) {
            self.note(who, "names more than could be looked at in time");
            return End::Nowhere;
        }
        let led = self.follow(from, path);
        for link in led.links {
            self.name(link);
        }
        match &led.end {
            End::At(place, _) if self.is_whole(place, who) => {}
            End::At(place, kind) => {
                self.name(place.clone());
                match kind {
                    Kind::Directory if self.is_new(place) => self.directory(place),
                    Kind::Directory | Kind::File | Kind::Link | Kind::Other => self.cover(place),
                }
            }
            End::Absent(place) => self.name(place.clone()),
            End::Outside(_) | End::Nowhere => {}
        }
        led.end
    }

    /// Follows a path, within the budget.
    pub(crate) fn follow(&mut self, from: &Path, path: &Path) -> Led {
        if self.is_spent() {
            return Led { links: Vec::new(), end: End::Nowhere, looks: 0 };
        }
        let led = self.trees.follow(from, path);
        self.budget.spend(led.looks);
        led
    }

    /// Returns whether nothing more is looked at.
    pub(crate) fn is_spent(&self) -> bool {
        self.budget.is_spent()
    }

    /// The resolved path that `path` leads to, if anything.
    pub(crate) fn resolved(&mut self, from: &Path, path: &Path) -> Option<PathBuf> {
        match self.follow(from, path).end {
            End::At(place, _) => Some(self.trees.host(&place)),
            End::Outside(path) => Some(path),
            End::Absent(_) | End::Nowhere => None,
        }
    }

    /// Returns whether a place holds the one that leads to it, or is a granted directory itself.
    pub(crate) fn is_whole(&self, place: &Place, who: &Place) -> bool {
        let holds = place.tree == who.tree && who.path.starts_with(&place.path);
        place.path.as_os_str().is_empty() || (holds && place.path != who.path)
    }

    /// Returns whether a place or one above it becomes read-only.
    fn is_covered(&self, place: &Place) -> bool {
        let found = self.found.get(place.tree);
        found.is_some_and(|found| found.obeyed.iter().any(|above| place.path.starts_with(above)))
    }

    fn is_new(&self, place: &Place) -> bool {
        let found = self.found.get(place.tree);
        found.is_none_or(|found| !found.obeyed.contains(&place.path))
    }

    /// Reads a file of the host, within the budget.
    pub(crate) fn read(&mut self, host: &Path, most: usize) -> Result<Vec<u8>, Errno> {
        if !self.budget.spend(1) {
            return Err(Errno::ETIME);
        }
        self.trees.look(host)?;
        if !self.budget.spend(FILE) {
            return Err(Errno::ETIME);
        }
        self.trees.read(host, most)
    }

    /// Has a place become read-only.
    pub(crate) fn cover(&mut self, place: &Place) {
        if let Ok((_, found)) = self.trees.look(&self.trees.host(place)) {
            self.shared.extend(shared(&found));
        }
        if let Some(found) = self.found.get_mut(place.tree)
            && !found.obeyed.contains(&place.path)
        {
            found.obeyed.push(place.path.clone());
        }
    }

    /// Guards other names of files that become read-only by one: whoever has such a name can write
    /// to the file. This takes another walk, which few directories need.
    pub(crate) fn other_names(&mut self) {
        if self.shared.is_empty() {
            return;
        }
        let roots = (0..self.trees.len()).map(|tree| Place { tree, path: PathBuf::new() });
        let mut left: VecDeque<Place> = roots.collect();
        while let Some(directory) = left.pop_front() {
            for (name, kind) in self.all_entries(&directory) {
                let here = directory.below(&name);
                match kind {
                    Kind::Directory if here.path.as_os_str().len() <= LONGEST => {
                        left.push_back(here)
                    }
                    Kind::File => {
                        let looked = self.trees.look(&self.trees.host(&here));
                        let found = looked.ok().and_then(|(_, found)| shared(&found));
                        let is_other = found.is_some_and(|found| self.shared.contains(&found));
                        if is_other && !self.is_covered(&here) {
                            self.cover(&here);
                            self.name(here);
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

    /// Has a directory stay where it is.
    pub(crate) fn pin(&mut self, place: &Place) {
        if let Some(found) = self.found.get_mut(place.tree) {
            found.pinned.push(place.path.clone());
        }
    }

    /// Keeps a place from being made or written to by its name, unless a name on the way does so.
    pub(crate) fn name(&mut self, place: Place) {
        let path = place.path.as_os_str().as_bytes();
        if names::has_obeyed(path) || path.is_empty() {
            return;
        }
        let Some(found) = self.found.get_mut(place.tree) else { return };
        if found.named.len() < MOST_NAMED {
            found.named.insert(place.path);
        } else {
            let root = Place { tree: place.tree, path: PathBuf::new() };
            self.note(&root, "has more places that links lead to than can be guarded by name");
        }
    }

    /// Says of a place that it is guarded by its name alone, or not at all.
    pub(crate) fn note(&mut self, place: &Place, why: &'static str) {
        if let Some(found) = self.found.get_mut(place.tree) {
            found.notes.insert((place.path.clone(), why));
        }
    }
}

impl Place {
    pub(crate) fn below(&self, name: &Path) -> Self {
        Self { tree: self.tree, path: self.path.join(name) }
    }
}

/// Places without doubles, in order.
pub(crate) fn sorted(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}
