//! Follows links as programs of the host would once changes are applied, and holds back what would
//! lead them out of the directory or to what the host obeys.
//!
//! A person may apply some of the changes only, and an apply may be interrupted. So each name on the
//! way of a link is looked at as the host has it and as each change would make it, and a link is
//! applied only if no combination leads to such a place.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::applied::AppliedFiles;
use super::change::{Act, Change, Kind, link};
use super::files::{c_name, look, open_directory, split};
use super::judge::{Held, Judge};
use super::repository::{has_head, is_repository};
use cell::mediate::names;
use sys::lookup::may_fold;

/// Maximum number of states in which one link is looked at, and longest rest of a way. A link with
/// more is held back.
const MAX_STATES: usize = 1024;
const MAX_REST: usize = 8192;
/// Maximum number of links on one way (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// Maximum number of bytes of ways that are read for one link, and for all links of the layer; as many
/// again are read for those of the host. Cells choose the links.
const MAX_LINK_WORK: usize = 1 << 20;
const MAX_WORK: usize = 256 << 20;

/// Judges the links among the changes, and the changes that lie on the way of the host's links. Links
/// that were `applied` since the directory was looked at are links of the host too.
///
/// # Errors
/// The errno of a directory that cannot be read.
pub(super) fn judge(
    host: &OwnedFd,
    judge: &Judge,
    applied: &AppliedFiles,
    changes: &mut [Change],
) -> Result<(), Errno> {
    let mut ways = Ways::new(host, judge, changes);
    let mut held = ways.of_layer()?;
    let moves_names = |change: &&Change| {
        change.is_applicable() && change.act != Act::Delete && change.kind != Kind::File
    };
    if ways.changes.iter().any(|change| moves_names(&change)) {
        ways.work = 0;
        ways.held.extend(held.iter().map(|(at, _)| *at));
        let mut is_whole = true;
        for path in judge.links().iter().cloned().chain(applied.links()) {
            let Some(text) = ways.text_on_host(&path)? else { continue };
            is_whole &= ways.of_host(&path, &text, &mut held)?;
        }
        if !is_whole {
            let all = ways.changes.iter().enumerate().filter(|(_, change)| moves_names(change));
            held.extend(all.map(|(at, _)| (at, Held::Redirects)));
        }
    }
    for (at, reason) in held {
        if let Some(change) = changes.get_mut(at) {
            change.held = change.held.or(Some(reason));
        }
    }
    Ok(())
}

/// A place to which a link must not lead.
#[derive(Debug)]
struct End {
    held: Held,
    /// Numbers of the changes without which the link does not lead there.
    used: BTreeSet<usize>,
}

/// One version of a name.
#[derive(Debug, Clone)]
enum Version {
    Missing,
    Directory,
    Other,
    Link(Vec<u8>),
}

/// A point on the way of a link.
#[derive(Debug, Clone)]
struct State {
    /// Path below the directory, without links.
    here: Vec<u8>,
    rest: Vec<u8>,
    /// Number of links that were followed.
    links: usize,
    /// True if nothing is there that has names.
    is_missing: bool,
    used: BTreeSet<usize>,
}

/// Facts about a directory on the host.
#[derive(Debug, Clone, Copy)]
struct Directory {
    has_head: bool,
    is_repository: bool,
    folds: bool,
}

struct Ways<'a> {
    host: &'a OwnedFd,
    judge: &'a Judge,
    changes: &'a [Change],
    /// Numbers of the changes of a path, and of a path without regard to spelling.
    by_path: BTreeMap<&'a [u8], Vec<usize>>,
    by_letters: BTreeMap<Vec<u8>, Vec<usize>>,
    directories: BTreeMap<Vec<u8>, Directory>,
    on_host: BTreeMap<Vec<u8>, Version>,
    /// Number of bytes of ways that were read.
    work: usize,
    /// Numbers of the changes that are held back already, so that no way leads through them.
    held: BTreeSet<usize>,
}

/// Result of following a link.
#[derive(Debug, Default)]
struct Found {
    ends: Vec<End>,
    /// States that were not looked at, as the way takes too long.
    left: Vec<State>,
}

impl<'a> Ways<'a> {
    fn new(host: &'a OwnedFd, judge: &'a Judge, changes: &'a [Change]) -> Self {
        let mut by_path: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
        for (at, change) in changes.iter().enumerate().filter(|(_, one)| one.is_applicable()) {
            by_path.entry(&change.path).or_default().push(at);
        }
        Self {
            host,
            judge,
            changes,
            by_path,
            by_letters: BTreeMap::new(),
            directories: BTreeMap::new(),
            on_host: BTreeMap::new(),
            work: 0,
            held: BTreeSet::new(),
        }
    }

    /// Returns the numbers of the layer's links that are held back, each with the reason.
    fn of_layer(&mut self) -> Result<Vec<(usize, Held)>, Errno> {
        let changes = self.changes;
        let mut links: Vec<(usize, &Change, &[u8])> = Vec::new();
        for (at, change) in changes.iter().enumerate().filter(|(_, one)| one.is_applicable()) {
            links.extend(change.target.as_deref().map(|text| (at, change, text)));
        }
        // Short ones first: what is left of the budget at the end concerns long ones.
        links.sort_by_key(|(_, _, text)| text.len());
        let mut held = Vec::new();
        for (at, change, text) in links {
            if let Some(reason) = self.judge.place_of_link(&change.path) {
                held.push((at, reason));
                continue;
            }
            let found = self.follow(&change.path, text, true)?;
            let worst = found.ends.iter().map(|end| end.held);
            let worst = worst.min_by_key(|held| *held != Held::LinkOut);
            let long = (!found.left.is_empty()).then_some(Held::LongWay);
            held.extend(worst.or(long).map(|reason| (at, reason)));
        }
        Ok(held)
    }

    /// Holds back the changes that would lead a link of the host elsewhere, or make its way too long
    /// to be looked at. Returns false if that is not enough, as too much of the way is the host's.
    fn of_host(
        &mut self,
        path: &[u8],
        text: &[u8],
        held: &mut Vec<(usize, Held)>,
    ) -> Result<bool, Errno> {
        loop {
            let found = self.follow(path, text, false)?;
            if found.left.is_empty() {
                // Otherwise the host's own files lead there already.
                if found.ends.iter().all(|end| !end.used.is_empty()) {
                    let used = found.ends.into_iter().flat_map(|end| end.used);
                    held.extend(used.map(|at| (at, Held::Redirects)));
                }
                return Ok(true);
            }
            // Without one of its changes the way does not lead to a state: its links are enough.
            let mut is_shorter = false;
            for state in found.left {
                let is_link =
                    |at: &usize| self.changes.get(*at).is_some_and(|one| one.target.is_some());
                let links: BTreeSet<usize> = state.used.iter().copied().filter(is_link).collect();
                for at in if links.is_empty() { state.used } else { links } {
                    is_shorter |= self.held.insert(at);
                    held.push((at, Held::Redirects));
                }
            }
            if !is_shorter || self.work > MAX_WORK {
                return Ok(false);
            }
        }
    }

    /// Follows the link at a path to the places to which it must not lead. With `is_strict`, a `..` behind
    /// a name that is missing counts, as that name may become a link later; without it, only what the
    /// host's own files do not lead to already.
    fn follow(&mut self, path: &[u8], text: &[u8], is_strict: bool) -> Result<Found, Errno> {
        let (directory, _) = split(path);
        let mut ends = Vec::new();
        let start_of_work = self.work;
        let start = State {
            here: directory.to_vec(),
            rest: Vec::new(),
            links: 0,
            is_missing: false,
            used: BTreeSet::new(),
        };
        let mut states = Vec::new();
        match entered(&start, text) {
            Some(state) => states.push(state),
            None => ends.push(End { held: Held::LinkOut, used: BTreeSet::new() }),
        }
        let mut seen = HashSet::new();
        while let Some(state) = states.pop() {
            if !seen.insert((state.here.clone(), state.rest.clone(), state.used.clone())) {
                continue;
            }
            self.work = self.work.saturating_add(state.rest.len() + state.here.len() + 64);
            let is_long = seen.len() > MAX_STATES || state.rest.len() > MAX_REST;
            let is_spent = self.work - start_of_work > MAX_LINK_WORK || self.work > MAX_WORK;
            if is_long || is_spent {
                states.push(state);
                break;
            }
            self.step(state, is_strict, &mut states, &mut ends)?;
        }
        Ok(Found { ends, left: states })
    }

    /// Takes the next part of a way.
    fn step(
        &mut self,
        mut state: State,
        is_strict: bool,
        states: &mut Vec<State>,
        ends: &mut Vec<End>,
    ) -> Result<(), Errno> {
        let Some(part) = state.take_part() else { return Ok(()) };
        let end = |held: Held, used: BTreeSet<usize>| End { held, used };
        if part == b".." {
            if state.is_missing {
                ends.extend(is_strict.then(|| end(Held::LinkOut, state.used)));
            } else if state.here.is_empty() {
                ends.push(end(Held::LinkOut, state.used));
            } else {
                state.here = split(&state.here).0.to_vec();
                states.push(state);
            }
            return Ok(());
        }
        let directory = self.directory(&state.here)?;
        let path = joined(&state.here, &part);
        if directory.is_repository || self.judge.way(&path, directory.has_head).is_some() {
            ends.push(end(Held::LinkToGuarded, state.used));
            return Ok(());
        }
        if state.is_missing {
            states.push(State { here: path, ..state });
            return Ok(());
        }
        for (version, change) in self.versions(&path, directory.folds)? {
            let mut next = state.clone();
            next.used.extend(change);
            match version {
                Version::Directory => states.push(State { here: path.clone(), ..next }),
                Version::Missing | Version::Other => {
                    states.push(State { here: path.clone(), is_missing: true, ..next });
                }
                // The kernel follows no more either.
                Version::Link(_) if next.links >= MAX_LINKS => {}
                Version::Link(text) => match entered(&next, &text) {
                    Some(next) => states.push(next),
                    None => ends.push(end(Held::LinkOut, next.used)),
                },
            }
        }
        Ok(())
    }

    /// Returns what may be at a path: what the host has, and what each change would make of it.
    fn versions(
        &mut self,
        path: &[u8],
        folds: bool,
    ) -> Result<Vec<(Version, Option<usize>)>, Errno> {
        let mut versions = vec![(self.version_on_host(path)?, None)];
        let numbers = match folds {
            false => self.by_path.get(path).cloned().unwrap_or_default(),
            true => self.in_any_spelling(path),
        };
        for at in numbers {
            let Some(change) = self.changes.get(at).filter(|_| !self.held.contains(&at)) else {
                continue;
            };
            let version = match (change.act, change.kind, &change.target) {
                (Act::Delete, ..) => Version::Missing,
                (_, Kind::Directory, _) => Version::Directory,
                (_, _, Some(text)) => Version::Link(text.clone()),
                (_, Kind::File | Kind::Link | Kind::Other, None) => Version::Other,
            };
            versions.push((version, Some(at)));
        }
        Ok(versions)
    }

    fn in_any_spelling(&mut self, path: &[u8]) -> Vec<usize> {
        if self.by_letters.is_empty() {
            for (path, numbers) in &self.by_path {
                self.by_letters.entry(names::letters(path)).or_default().extend(numbers);
            }
        }
        self.by_letters.get(&names::letters(path)).cloned().unwrap_or_default()
    }

    /// Returns what is known of a directory; of one that the host does not have, what is known of the
    /// nearest around it.
    fn directory(&mut self, path: &[u8]) -> Result<Directory, Errno> {
        if let Some(known) = self.directories.get(path) {
            return Ok(*known);
        }
        let known = match open_directory(self.host, path) {
            Ok(held) => Directory {
                has_head: has_head(&held)?,
                is_repository: is_repository(&held)?,
                folds: may_fold(&held)?,
            },
            Err(Errno::EACCES) => Directory { has_head: true, is_repository: true, folds: true },
            Err(errno) if !path.is_empty() && is_absent(errno) => {
                let around = self.directory(split(path).0)?;
                Directory { has_head: false, is_repository: false, ..around }
            }
            Err(errno) => return Err(errno),
        };
        self.directories.insert(path.to_vec(), known);
        Ok(known)
    }

    fn version_on_host(&mut self, path: &[u8]) -> Result<Version, Errno> {
        if let Some(known) = self.on_host.get(path) {
            return Ok(known.clone());
        }
        let (directory, name) = split(path);
        let version = match open_directory(self.host, directory) {
            Ok(held) => match look(&held, &c_name(name)?) {
                Ok(None) => Version::Missing,
                Ok(Some(seen)) => match Kind::of(&seen) {
                    Kind::Directory => Version::Directory,
                    Kind::Link => Version::Link(link(&held, &c_name(name)?)?),
                    Kind::File | Kind::Other => Version::Other,
                },
                // Longer than any name of the filesystem.
                Err(Errno::ENAMETOOLONG | Errno::EACCES) => Version::Missing,
                Err(errno) => return Err(errno),
            },
            Err(errno) if is_absent(errno) || errno == Errno::EACCES => Version::Missing,
            Err(errno) => return Err(errno),
        };
        self.on_host.insert(path.to_vec(), version.clone());
        Ok(version)
    }

    fn text_on_host(&mut self, path: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        Ok(match self.version_on_host(path)? {
            Version::Link(text) => Some(text),
            Version::Missing | Version::Directory | Version::Other => None,
        })
    }
}

/// Returns true if an open failed because the directory is not there, or only through a link.
fn is_absent(errno: Errno) -> bool {
    let absent = [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP, Errno::ENAMETOOLONG, Errno::EXDEV];
    absent.contains(&errno)
}

/// Returns the state with a link's text ahead of the rest; `None` for an absolute path.
fn entered(state: &State, text: &[u8]) -> Option<State> {
    if text.first() == Some(&b'/') {
        return None;
    }
    let rest = [text, &state.rest].join(&b'/');
    Some(State { rest, links: state.links + 1, ..state.clone() })
}

impl State {
    /// Takes the first part of the rest that is a name or `..`.
    fn take_part(&mut self) -> Option<Vec<u8>> {
        loop {
            let start = self.rest.iter().position(|byte| *byte != b'/')?;
            self.rest.drain(..start);
            let end = self.rest.iter().position(|byte| *byte == b'/').unwrap_or(self.rest.len());
            let part: Vec<u8> = self.rest.drain(..end).collect();
            if part != b"." {
                return Some(part);
            }
        }
    }
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match directory.is_empty() {
        true => name.to_vec(),
        false => [directory, name].join(&b'/'),
    }
}

#[cfg(test)]
#[path = "links_tests.rs"]
mod tests;
