//! The changes that a layer has: its upper directory compared with the directory of the host.
//!
//! Overlayfs keeps a removed file as a character device 0/0, and marks a directory that replaces one
//! of the host with `user.overlay.opaque` (overlayfs, "whiteouts and opaque directories"). Cells can
//! make neither by themselves.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::openat;
use nix::sys::stat::{Mode, fstat};

use super::files::{DIRECTORY, OPAQUE, Seen, Stamp, c_name, is_whiteout, look, open_file, split};
use super::journal::AppliedFiles;
use super::judge::{Held, Judge};
use cell::errno_of;
use cell::mediate::names::{self, GIT, HEAD};
use sys::lookup::read_link;
use sys::xattr;

/// Maximum number of changes that are listed.
const MAX_CHANGES: usize = 200_000;
/// Maximum depth of directories that are looked at; each takes two descriptors.
const MAX_DEPTH: u16 = 128;
/// Longest text of a link, and one byte more.
const LINK_BUFFER: usize = 4097;
/// Set on a file of the layer that began as one of the host; empty in an unprivileged overlay.
const ORIGIN: &CStr = c"user.overlay.origin";
/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Link,
    Other,
}

impl Kind {
    pub(crate) fn of(seen: &Seen) -> Self {
        match seen.mode & libc::S_IFMT {
            libc::S_IFREG => Self::File,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFLNK => Self::Link,
            _ => Self::Other,
        }
    }
}

/// What a layer does to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Add,
    Change,
    Delete,
}

/// A change of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// Path below the directory.
    pub path: Vec<u8>,
    pub act: Act,
    /// Kind of the new file; of the removed one for a removal.
    pub kind: Kind,
    /// The file of the layer; `None` for a removal.
    pub new: Option<Seen>,
    /// The file of the host that is changed or removed.
    pub old: Option<Seen>,
    /// Why it is not applied.
    pub held: Option<Held>,
    /// True if the host's file changed since the layer was made.
    pub is_conflict: bool,
    /// True if the layer keeps this name for itself, so that it is removed there once applied.
    pub is_movable: bool,
}

impl Change {
    pub(crate) fn is_applicable(&self) -> bool {
        self.held.is_none() && !self.is_conflict
    }

    /// Returns true if the file can be executed, and the host's could not.
    pub(crate) fn becomes_executable(&self) -> bool {
        let is_executable = |seen: &Seen| seen.is(libc::S_IFREG) && seen.mode & 0o111 != 0;
        self.new.as_ref().is_some_and(is_executable)
            && !self.old.as_ref().is_some_and(is_executable)
    }
}

/// Lists the changes in the order of their paths, removals before what takes their place.
///
/// # Errors
/// EFBIG: there are too many. Otherwise the errno of a directory that cannot be read.
pub(crate) fn list(
    upper: &OwnedFd,
    host: &OwnedFd,
    since: Stamp,
    judge: &Judge,
    applied: &AppliedFiles,
) -> Result<Vec<Change>, Errno> {
    let mut walk = Walk { judge, since, applied, changes: Vec::new(), path: Vec::new() };
    let top = Place { held: None, is_conflict: false, is_opaque: false, depth: 0 };
    walk.merged(upper, Some(host), top)?;
    Ok(walk.changes)
}

/// What a directory has of those around it.
#[derive(Debug, Clone, Copy)]
struct Place {
    held: Option<Held>,
    is_conflict: bool,
    /// True if the host's names are not shown in it.
    is_opaque: bool,
    depth: u16,
}

struct Walk<'a> {
    judge: &'a Judge,
    since: Stamp,
    applied: &'a AppliedFiles,
    changes: Vec<Change>,
    path: Vec<u8>,
}

impl Walk<'_> {
    /// Compares a directory of the layer with that of the host, if it has one there.
    fn merged(
        &mut self,
        upper: &OwnedFd,
        host: Option<&OwnedFd>,
        place: Place,
    ) -> Result<(), Errno> {
        let names = sorted(upper)?;
        let has_head = match host {
            Some(host) => look(host, &c_name(HEAD.as_bytes())?)?.is_some(),
            None => false,
        };
        for name in &names {
            self.below(name.as_bytes(), |walk| walk.entry(upper, host, name, has_head, place))?;
        }
        if let Some(host) = host.filter(|_| place.is_opaque) {
            for name in sorted(host)?.iter().filter(|name| names.binary_search(name).is_err()) {
                self.below(name.as_bytes(), |walk| walk.removed(host, name, has_head, place))?;
            }
        }
        Ok(())
    }

    /// Calls a function with the path extended by a name.
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
        let done = look(self);
        self.path.truncate(length);
        done
    }

    fn entry(
        &mut self,
        upper: &OwnedFd,
        host: Option<&OwnedFd>,
        name: &CStr,
        has_head: bool,
        place: Place,
    ) -> Result<(), Errno> {
        let Some(new) = look(upper, name)? else { return Ok(()) };
        let old = host.map_or(Ok(None), |host| look(host, name))?;
        if is_whiteout(upper, name, &new)? {
            return match host {
                Some(host) => self.removed(host, name, has_head, place),
                None => Ok(()),
            };
        }
        let judged = self.judge.name(&self.path, name.to_bytes(), has_head);
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
                    self.removed(host, name, has_head, place)?;
                    let removed = self.changes.get(first..).unwrap_or_default();
                    if removed.iter().any(|change| !change.is_applicable()) {
                        let held = place.held.or(Some(Held::InTheWay));
                        return self.added(upper, name, new, Place { held, ..place });
                    }
                }
                return self.added(upper, name, new, place);
            }
            (_, None) => {
                let was_there = kind == Kind::File && self.may_be_removed(upper, host, name)?;
                let is_conflict = place.is_conflict || was_there;
                return self.added(upper, name, new, Place { is_conflict, ..place });
            }
            (_, Some(_)) => {}
        }
        let (Some(host), Some(old)) = (host, old) else { return Ok(()) };
        match kind {
            Kind::File if old.is(libc::S_IFREG) && is_same(upper, host, name, &new, &old)? => {
                Ok(())
            }
            Kind::Link if old.is(libc::S_IFLNK) && link(upper, name)? == link(host, name)? => {
                Ok(())
            }
            Kind::File | Kind::Link | Kind::Other | Kind::Directory => {
                let held = self.contents(upper, name, kind, place.held)?;
                let is_conflict = place.is_conflict || self.has_changed(&old);
                self.push(Act::Change, kind, Some(new), Some(old), held, is_conflict, place)
            }
        }
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
        // A whole repository is one line: nothing in it is applied.
        let is_git = names::may_be(name.to_bytes(), GIT);
        let opened = openat(upper, name, DIRECTORY, Mode::empty());
        let (Ok(inner), false) = (opened, is_git || place.depth > MAX_DEPTH) else {
            let held = place.held.or(Some(match place.depth > MAX_DEPTH {
                true => Held::Deep,
                false => Held::Unreadable,
            }));
            let new = look(upper, name)?;
            let old = look(host, name)?;
            return self.push(Act::Change, Kind::Directory, new, old, held, false, place);
        };
        let outer = openat(host, name, DIRECTORY, Mode::empty())?;
        // Names of the host are hidden in everything below an opaque directory.
        place.is_opaque |= is_opaque(&inner)?;
        let parent = Seen::from(&fstat(host)?);
        let seen = Seen::from(&fstat(&outer)?);
        place.is_conflict |=
            may_be_moved(&seen, &parent, self.since) && !self.applied.has(&self.path, &seen);
        self.merged(&inner, Some(&outer), place)
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
        let held = self.contents(upper, name, kind, place.held)?;
        self.push(Act::Add, kind, Some(new), None, held, place.is_conflict, place)?;
        if kind != Kind::Directory || names::may_be(name.to_bytes(), GIT) {
            return Ok(());
        }
        place.held = held;
        place.depth += 1;
        if place.depth > MAX_DEPTH {
            return self.hold_last(Held::Deep);
        }
        match openat(upper, name, DIRECTORY, Mode::empty()) {
            Ok(inner) => self.merged(&inner, None, place),
            Err(Errno::EACCES) => self.hold_last(Held::Unreadable),
            Err(errno) => Err(errno),
        }
    }

    /// Lists the removal of a file of the host, and of everything in it.
    fn removed(
        &mut self,
        host: &OwnedFd,
        name: &CStr,
        has_head: bool,
        mut place: Place,
    ) -> Result<(), Errno> {
        let Some(old) = look(host, name)? else { return Ok(()) };
        let judged = self.judge.name(&self.path, name.to_bytes(), has_head);
        place.held = place.held.or(judged);
        place.depth += 1;
        let kind = Kind::of(&old);
        if kind == Kind::Directory {
            let parent = Seen::from(&fstat(host)?);
            place.is_conflict |=
                may_be_moved(&old, &parent, self.since) && !self.applied.has(&self.path, &old);
        }
        let mut held = place.held;
        if kind == Kind::Directory && !names::may_be(name.to_bytes(), GIT) {
            match openat(host, name, DIRECTORY, Mode::empty()) {
                Ok(_) if place.depth > MAX_DEPTH => held = held.or(Some(Held::Deep)),
                Ok(inner) => {
                    let has_head = look(&inner, &c_name(HEAD.as_bytes())?)?.is_some();
                    for name in sorted(&inner)? {
                        self.below(name.to_bytes(), |walk| {
                            walk.removed(&inner, &name, has_head, place)
                        })?;
                    }
                }
                Err(Errno::EACCES) => held = held.or(Some(Held::Unreadable)),
                Err(errno) => return Err(errno),
            }
        }
        if kind == Kind::Other {
            held = held.or(Some(Held::Special));
        }
        // Names that come or leave change the time of a directory: what is in it decides.
        let is_conflict = place.is_conflict || (kind != Kind::Directory && self.has_changed(&old));
        self.push(Act::Delete, kind, None, Some(old), held, is_conflict, place)
    }

    /// Judges what a file of the layer is.
    fn contents(
        &self,
        upper: &OwnedFd,
        name: &CStr,
        kind: Kind,
        held: Option<Held>,
    ) -> Result<Option<Held>, Errno> {
        if held.is_some() {
            return Ok(held);
        }
        Ok(match kind {
            Kind::File | Kind::Directory => None,
            Kind::Link => self.judge.link(&self.path, &link(upper, name)?),
            Kind::Other => Some(Held::Special),
        })
    }

    fn has_changed(&self, old: &Seen) -> bool {
        old.changed.may_be_since(self.since) && !self.applied.has(&self.path, old)
    }

    /// Returns true if a file began as one of the host, and the host may have removed that since.
    fn may_be_removed(
        &self,
        upper: &OwnedFd,
        host: Option<&OwnedFd>,
        name: &CStr,
    ) -> Result<bool, Errno> {
        let Some(host) = host else { return Ok(false) };
        let directory = Seen::from(&fstat(host)?);
        let (path, _) = split(&self.path);
        if !directory.changed.may_be_since(self.since) || self.applied.has(path, &directory) {
            return Ok(false);
        }
        match open_file(upper, name) {
            Ok(file) => has_origin(&file),
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

    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of a change, each from another place"
    )]
    fn push(
        &mut self,
        act: Act,
        kind: Kind,
        new: Option<Seen>,
        old: Option<Seen>,
        held: Option<Held>,
        is_conflict: bool,
        place: Place,
    ) -> Result<(), Errno> {
        if self.changes.len() >= MAX_CHANGES {
            return Err(Errno::EFBIG);
        }
        let path = self.path.clone();
        let is_movable = !place.is_opaque;
        self.changes.push(Change { path, act, kind, new, old, held, is_conflict, is_movable });
        Ok(())
    }
}

/// Returns the names in a directory, in order.
fn sorted(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::openat(directory, ".", DIRECTORY, Mode::empty())?.into_iter() {
        let entry = entry?;
        if names.len() > MAX_CHANGES {
            return Err(Errno::EFBIG);
        }
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn is_opaque(directory: &OwnedFd) -> Result<bool, Errno> {
    let mut buffer = [0; 8];
    Ok(xattr::get(directory, OPAQUE, &mut buffer)? == Some(b"y"))
}

fn has_origin(file: &OwnedFd) -> Result<bool, Errno> {
    let mut buffer = [0; 256];
    Ok(xattr::get(file, ORIGIN, &mut buffer)?.is_some())
}

/// Returns true if a directory of the host was moved to its place since the layer was made, with
/// files that are older: a rename changes the time of its status and the contents of its parent, and
/// not its own contents.
fn may_be_moved(directory: &Seen, parent: &Seen, since: Stamp) -> bool {
    directory.changed.may_be_since(since)
        && !directory.modified.may_be_since(since)
        && parent.modified.may_be_since(since)
}

/// Reads the text of a link.
pub(crate) fn link(directory: &OwnedFd, name: &CStr) -> Result<Vec<u8>, Errno> {
    let mut buffer = [0; LINK_BUFFER];
    read_link(directory, name, &mut buffer).map(<[u8]>::to_vec)
}

/// Returns true if two files have the same bytes and can both be executed or not.
fn is_same(
    upper: &OwnedFd,
    host: &OwnedFd,
    name: &CStr,
    new: &Seen,
    old: &Seen,
) -> Result<bool, Errno> {
    let is_executable = |seen: &Seen| seen.mode & 0o111 != 0;
    if new.size != old.size || is_executable(new) != is_executable(old) {
        return Ok(false);
    }
    let opened = open_file(upper, name).and_then(|new| Ok((new, open_file(host, name)?)));
    let (mut one, mut other) = match opened {
        Ok((new, old)) => (File::from(new), File::from(old)),
        Err(Errno::EACCES | Errno::EPERM) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    if fstat(&one)?.st_size != new.size {
        return Ok(false);
    }
    let mut ours = [0; 16 << 10];
    let mut theirs = [0; 16 << 10];
    loop {
        let length = one.read(&mut ours).map_err(|error| errno_of(&error))?;
        let read = ours.get(..length).unwrap_or_default();
        let against = theirs.get_mut(..length).unwrap_or_default();
        if other.read_exact(against).is_err() || read != against {
            return Ok(false);
        }
        if length == 0 {
            return Ok(true);
        }
    }
}
