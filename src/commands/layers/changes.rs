//! The changes that a layer has: its upper directory compared with the directory of the host.
//!
//! Overlayfs keeps a removed file as a character device 0/0, and marks a directory that replaces one
//! of the host with `user.overlay.opaque` (overlayfs, "whiteouts and opaque directories"). Cells can
//! make neither by themselves.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::openat;
use nix::sys::stat::{Mode, fstat};

use super::applied::AppliedFiles;
use super::change::{Act, Change, Kind, link};
use super::entries::{
    MAX_NAMES, has_origin, is_opaque, is_same, may_be_moved, open_readable, sorted,
};
use super::files::{DIRECTORY, Seen, Stamp, c_name, is_whiteout, look, open_file, split};
use super::judge::{Held, Judge};
use super::links;
use super::repository::{becomes_repository, has_head, is_repository};
use super::spelling::spelled_twice;
use super::together::{is_below, settle};
use cell::mediate::names::{self, GIT};
use sys::lookup::may_fold;

/// Maximum number of changes that are listed.
pub(crate) const MAX_CHANGES: usize = MAX_NAMES;
/// Maximum depth of directories that are looked at; each takes two descriptors.
const MAX_DEPTH: u16 = 128;
/// Longest path of a directory that is looked at: in a longer one the guarded names are not found
/// before a start.
const MAX_PATH_BYTES: usize = 3_000;
/// Maximum number of bytes of all paths and texts of links, which are in memory several times.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// Lists the changes in the order of their paths, removals before what takes their place. With
/// `only`, the changes at these paths, and those of the directories on the way to them.
///
/// # Errors
/// EFBIG: there are more than [`MAX_CHANGES`], or their paths are longer than [`MAX_BYTES`]. Otherwise the errno of a directory that cannot be read.
pub(crate) fn list(
    upper: &OwnedFd,
    host: &OwnedFd,
    since: Stamp,
    judge: &Judge,
    applied: &AppliedFiles,
    only: &[&[u8]],
) -> Result<Vec<Change>, Errno> {
    let mut walk =
        Walk { judge, since, applied, only, changes: Vec::new(), bytes: 0, path: Vec::new() };
    let held = match is_repository(host)? || becomes_repository(upper, host)? {
        true => Some(Held::Repository),
        false => judge.all(),
    };
    walk.merged(upper, Some(host), Place { held, ..Place::default() })?;
    links::judge(host, judge, applied, &mut walk.changes)?;
    settle(&mut walk.changes);
    Ok(walk.changes)
}

/// State that a directory has from those around it.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    held: Option<Held>,
    is_conflict: bool,
    /// True if the host's names are not shown in it.
    is_opaque: bool,
    /// True if its filesystem may take two spellings of a name for the same.
    folds: bool,
    depth: u16,
}

struct Walk<'a> {
    judge: &'a Judge,
    since: Stamp,
    applied: &'a AppliedFiles,
    /// Paths to which the list is limited; all if there is no such path.
    only: &'a [&'a [u8]],
    changes: Vec<Change>,
    /// Number of bytes of paths and of texts of links in the changes.
    bytes: usize,
    path: Vec<u8>,
}

impl Walk<'_> {
    /// Compares a directory of the layer with that of the host, if it has one there.
    fn merged(
        &mut self,
        upper: &OwnedFd,
        host: Option<&OwnedFd>,
        mut place: Place,
    ) -> Result<(), Errno> {
        let mut is_headed = false;
        if let Some(host) = host {
            is_headed = has_head(host)?;
            place.folds = may_fold(host)?;
        }
        let names = match place.folds {
            // Another spelling of a name counts too.
            true => sorted(upper)?,
            false => self.names(upper)?,
        };
        let doubled = match (place.folds, host) {
            (true, Some(host)) => {
                let is_there = |name: &CStr| look(host, name).map(|seen| seen.is_some());
                spelled_twice(&names, &sorted(host)?, is_there)?
            }
            (true, None) => spelled_twice(&names, &[], |_| Ok(false))?,
            (false, _) => BTreeSet::new(),
        };
        for name in &names {
            let held = place.held.or(doubled.contains(name).then_some(Held::SameName));
            let place = Place { held, ..place };
            self.below(name.as_bytes(), |walk| walk.entry(upper, host, name, is_headed, place))?;
        }
        if let Some(host) = host.filter(|_| place.is_opaque) {
            for name in self.names(host)?.iter().filter(|name| names.binary_search(name).is_err()) {
                self.below(name.as_bytes(), |walk| walk.removed(host, name, is_headed, place))?;
            }
        }
        Ok(())
    }

    /// Returns the names of the directory at the present path that the list may include, in order. On the
    /// way to the paths of a limited list only their names are looked up, however many others there are.
    fn names(&self, directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
        let is_whole =
            |only: &&[u8]| only.is_empty() || self.path == *only || is_below(&self.path, only);
        if self.only.is_empty() || self.only.iter().any(is_whole) {
            return sorted(directory);
        }
        let mut names = BTreeSet::new();
        for only in self.only {
            let rest = match self.path.is_empty() {
                true => Some(*only),
                false if is_below(only, &self.path) => only.get(self.path.len() + 1..),
                false => None,
            };
            let Some(rest) = rest else { continue };
            let name = c_name(rest.split(|byte| *byte == b'/').next().unwrap_or_default())?;
            if look(directory, &name)?.is_some() {
                names.insert(name);
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Calls a function with the path extended by a name, if the list includes that.
    fn below(
        &mut self,
        name: &[u8],
        look: impl FnOnce(&mut Self) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let length = self.path.len();
        if length > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
        let done = if self.is_wanted() { look(self) } else { Ok(()) };
        self.path.truncate(length);
        done
    }

    /// Returns true if the list includes the present path, or one below it.
    fn is_wanted(&self) -> bool {
        let is_near = |only: &&[u8]| {
            only.is_empty()
                || self.path == *only
                || is_below(&self.path, only)
                || is_below(only, &self.path)
        };
        self.only.is_empty() || self.only.iter().any(is_near)
    }

    fn entry(
        &mut self,
        upper: &OwnedFd,
        host: Option<&OwnedFd>,
        name: &CStr,
        is_headed: bool,
        place: Place,
    ) -> Result<(), Errno> {
        let Some(new) = look(upper, name)? else { return Ok(()) };
        let old = host.map_or(Ok(None), |host| look(host, name))?;
        if is_whiteout(upper, name, &new)? {
            return match host {
                Some(host) => self.removed(host, name, is_headed, place),
                None => Ok(()),
            };
        }
        let judged = self.judge.name(&self.path, &new, is_headed);
        let place = Place { held: place.held.or(judged), ..place };
        let kind = Kind::of(&new);
        let is_directory = |seen: &Seen| seen.is(libc::S_IFDIR);
        match (kind, old) {
            (Kind::Directory, Some(old)) if is_directory(&old) => {
                return self.directory(upper, host, name, place);
            }
            (_, Some(old)) if is_directory(&old) || kind == Kind::Directory => {
                // Another kind of file takes the place: a removal, then an addition.
                if let Some(host) = host {
                    let first = self.changes.len();
                    self.removed(host, name, is_headed, place)?;
                    let removed = self.changes.get(first..).unwrap_or_default();
                    if removed.iter().any(|change| !change.is_applicable()) {
                        let held = place.held.or(Some(Held::InTheWay));
                        return self.added(upper, name, new, Place { held, ..place });
                    }
                }
                return self.added(upper, name, new, place);
            }
            (_, None) => {
                let was_there = self.may_be_removed(upper, host, name, &new)?;
                let is_conflict = place.is_conflict || was_there;
                return self.added(upper, name, new, Place { is_conflict, ..place });
            }
            (_, Some(_)) => {}
        }
        let (Some(host), Some(old)) = (host, old) else { return Ok(()) };
        match kind {
            Kind::File if old.is(libc::S_IFREG) && is_same(upper, host, name, &new, &old)? => {
                return Ok(());
            }
            Kind::Link if old.is(libc::S_IFLNK) && link(upper, name)? == link(host, name)? => {
                return Ok(());
            }
            Kind::File | Kind::Link | Kind::Other | Kind::Directory => {}
        }
        let is_conflict = place.is_conflict || self.has_changed(&old);
        let mut change = self.change(Act::Change, kind, Some(new), Place { is_conflict, ..place });
        change.old = Some(old);
        self.push_file(change, upper, name)
    }

    /// Looks at a directory that both have.
    fn directory(
        &mut self,
        upper: &OwnedFd,
        host: Option<&OwnedFd>,
        name: &CStr,
        mut place: Place,
    ) -> Result<(), Errno> {
        let Some(host) = host else { return Ok(()) };
        place.depth += 1;
        let inner = open_readable(upper, name)?;
        let outer = open_readable(host, name)?;
        let is_deep = self.is_deep(place);
        let (Some(inner), Some(outer), false) = (inner, outer, is_deep) else {
            let held = if is_deep { Held::Deep } else { Held::Unreadable };
            return self.whole(upper, host, name, held, place);
        };
        // A whole repository is one line: nothing in it is applied.
        if names::may_be(name.to_bytes(), GIT)
            || is_repository(&outer)?
            || becomes_repository(&inner, &outer)?
        {
            return self.whole(upper, host, name, Held::Repository, place);
        }
        // Names of the host are hidden in everything below an opaque directory.
        place.is_opaque |= is_opaque(&inner)?;
        let parent = Seen::from(&fstat(host)?);
        let seen = Seen::from(&fstat(&outer)?);
        let is_moved = match place.is_opaque {
            true => seen.changed.may_be_since(self.since),
            false => may_be_moved(&seen, &parent, self.since),
        };
        place.is_conflict |= is_moved && !self.applied.has(&self.path, &seen);
        self.merged(&inner, Some(&outer), place)
    }

    /// Adds one line for a directory that both have, and of which nothing is applied.
    fn whole(
        &mut self,
        upper: &OwnedFd,
        host: &OwnedFd,
        name: &CStr,
        held: Held,
        place: Place,
    ) -> Result<(), Errno> {
        let held = place.held.or(Some(held));
        let place = Place { held, is_conflict: false, ..place };
        let mut change = self.change(Act::Change, Kind::Directory, look(upper, name)?, place);
        change.old = look(host, name)?;
        self.push(change)
    }

    /// Adds a file that the host does not have, with everything in it.
    fn added(
        &mut self,
        upper: &OwnedFd,
        name: &CStr,
        new: Seen,
        mut place: Place,
    ) -> Result<(), Errno> {
        let kind = Kind::of(&new);
        let change = self.change(Act::Add, kind, Some(new), place);
        if kind != Kind::Directory {
            return self.push_file(change, upper, name);
        }
        self.push(change)?;
        if names::may_be(name.to_bytes(), GIT) {
            return self.hold_last(Held::Repository);
        }
        place.depth += 1;
        if self.is_deep(place) {
            return self.hold_last(Held::Deep);
        }
        match open_readable(upper, name)? {
            Some(inner) if is_repository(&inner)? => self.hold_last(Held::Repository),
            Some(inner) => self.merged(&inner, None, place),
            None => self.hold_last(Held::Unreadable),
        }
    }

    /// Lists the removal of a file of the host, and of everything in it.
    fn removed(
        &mut self,
        host: &OwnedFd,
        name: &CStr,
        is_headed: bool,
        mut place: Place,
    ) -> Result<(), Errno> {
        let Some(old) = look(host, name)? else { return Ok(()) };
        let judged = self.judge.name(&self.path, &old, is_headed);
        place.held = place.held.or(judged);
        place.depth += 1;
        // A file in a directory that was moved here has its old time; the directory has a new one. One
        // in which names came or left has that too: what is in it may have been moved there.
        place.is_conflict |= self.has_changed(&old);
        let kind = Kind::of(&old);
        let mut held = place.held;
        if kind == Kind::Directory {
            held = held.or(self.removed_from(host, name, place)?);
        }
        if kind == Kind::Other {
            held = held.or(Some(Held::Special));
        }
        let mut change = self.change(Act::Delete, kind, None, Place { held, ..place });
        change.old = Some(old);
        self.push(change)
    }

    /// Lists the removal of everything in a directory of the host. Returns why it stays whole.
    fn removed_from(
        &mut self,
        host: &OwnedFd,
        name: &CStr,
        mut place: Place,
    ) -> Result<Option<Held>, Errno> {
        if names::may_be(name.to_bytes(), GIT) {
            return Ok(Some(Held::Repository));
        }
        if self.is_deep(place) {
            return Ok(Some(Held::Deep));
        }
        let Some(inner) = open_readable(host, name)? else {
            return Ok(Some(Held::Unreadable));
        };
        if is_repository(&inner)? {
            return Ok(Some(Held::Repository));
        }
        place.folds = may_fold(&inner)?;
        let is_headed = has_head(&inner)?;
        for name in self.names(&inner)? {
            self.below(name.to_bytes(), |walk| walk.removed(&inner, &name, is_headed, place))?;
        }
        Ok(None)
    }

    /// Adds a file that is no directory, judged by what it is.
    fn push_file(&mut self, mut change: Change, upper: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        match change.kind {
            Kind::Link => change.target = Some(link(upper, name)?),
            Kind::Other => change.held = change.held.or(Some(Held::Special)),
            Kind::File | Kind::Directory => {}
        }
        self.push(change)
    }

    fn has_changed(&self, old: &Seen) -> bool {
        old.changed.may_be_since(self.since) && !self.applied.has(&self.path, old)
    }

    /// Returns true if what is in a directory is not looked at.
    fn is_deep(&self, place: Place) -> bool {
        place.depth > MAX_DEPTH || self.path.len() > MAX_PATH_BYTES
    }

    /// Returns true if a file, directory or link may have begun as one of the host that the host has removed
    /// since.
    fn may_be_removed(
        &self,
        upper: &OwnedFd,
        host: Option<&OwnedFd>,
        name: &CStr,
        new: &Seen,
    ) -> Result<bool, Errno> {
        let Some(host) = host else { return Ok(false) };
        let directory = Seen::from(&fstat(host)?);
        let (path, _) = split(&self.path);
        if !directory.changed.may_be_since(self.since) || self.applied.has(path, &directory) {
            return Ok(false);
        }
        let opened = match Kind::of(new) {
            Kind::File => open_file(upper, name),
            // Cells cannot move one that began as the host's.
            Kind::Directory => openat(upper, name, DIRECTORY, Mode::empty()),
            // It has no attributes. A copy of the host's has the time that the host's had.
            Kind::Link => return Ok(!new.modified.may_be_since(self.since)),
            Kind::Other => return Ok(false),
        };
        match opened {
            Ok(file) => {
                Ok(has_origin(&file)? || (new.is(libc::S_IFDIR) && self.applied.knew(&self.path)))
            }
            Err(Errno::EACCES | Errno::EPERM) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    fn hold_last(&mut self, held: Held) -> Result<(), Errno> {
        if let Some(last) = self.changes.last_mut() {
            last.held = last.held.or(Some(held));
        }
        Ok(())
    }

    /// Returns a change of the present path.
    fn change(&self, act: Act, kind: Kind, new: Option<Seen>, place: Place) -> Change {
        Change {
            path: self.path.clone(),
            act,
            kind,
            new,
            old: None,
            target: None,
            held: place.held,
            is_conflict: place.is_conflict,
            is_movable: !place.is_opaque,
        }
    }

    fn push(&mut self, change: Change) -> Result<(), Errno> {
        let target = change.target.as_ref().map_or(0, Vec::len);
        self.bytes = self.bytes.saturating_add(change.path.len()).saturating_add(target);
        if self.changes.len() >= MAX_CHANGES || self.bytes > MAX_BYTES {
            return Err(Errno::EFBIG);
        }
        self.changes.push(change);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_all_paths_are_bounded() {
        let judge = Judge::default();
        let applied = AppliedFiles::default();
        let mut walk = Walk {
            judge: &judge,
            since: Stamp(0, 0),
            applied: &applied,
            only: &[],
            changes: Vec::new(),
            bytes: 0,
            path: vec![b'n'; 1 << 20],
        };
        let mut change = walk.change(Act::Add, Kind::Link, None, Place::default());
        change.target = Some(vec![b't'; 1 << 20]);
        for _ in 0..32 {
            assert_eq!(walk.push(change.clone()), Ok(()));
        }
        assert_eq!(walk.push(change), Err(Errno::EFBIG));
    }
}
