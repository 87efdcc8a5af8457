//! The host's files in a root: those of the profile, and those that the operator granted.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::detached::{DetachedMount, Placed, relative, stand_in};
use super::error::{DuringBuild, TemplateError, refused};
use super::granted::{Granted, Kind};
use super::grants::PathGrant;
use cell::mounts::{self, Slot};
use cell::sockets::Sockets;
use cell::{c_path, errno_of, sealed};
use model::job::Access;
use model::profile::TRUST;
use sys::mount::{Filesystem, Reach, attach, attribute, clone_tree, set_attributes};

/// Copies of the granted directories, taken before the stage hides any of them.
pub(crate) fn granted(grants: &[PathGrant]) -> Result<Vec<DetachedMount>, TemplateError> {
    // Others are made by main, with the cells' ids: attached by descriptor.
    let shared = grants.iter().filter(|grant| grant.by_slot.is_empty());
    shared.map(|grant| DetachedMount::take_granted(&grant.granted)).collect()
}

/// The mounts that a root has by its profile.
#[derive(Debug, Default)]
pub(crate) struct PlacedMounts {
    /// Paths as the cell has them.
    pub readable: Vec<PathBuf>,
    pub overlays: Vec<Filesystem>,
    pub is_open: bool,
}

impl PlacedMounts {
    pub(crate) fn place(
        &mut self,
        piece: DetachedMount,
        empty: &OwnedFd,
    ) -> Result<(), TemplateError> {
        // Of what lies beneath another the rule for that one says the same.
        if !self.readable.iter().any(|path| piece.target.starts_with(path)) {
            self.readable.push(piece.target.clone());
        }
        match piece.place(empty)? {
            Placed::AsItIs => {}
            Placed::Sealed(overlay) => self.overlays.push(overlay),
            Placed::Open => self.is_open = true,
        }
        Ok(())
    }

    /// Puts the certificates that the cell trusts over the host's, for programs that look for them nowhere else. Where
    /// that cannot be an overlay (mounts may lie below it), the bundle alone is replaced.
    pub(crate) fn trust(&mut self) -> Result<(), Errno> {
        const HOSTS: &str = "etc/ssl/certs";
        const BUNDLE: &str = "ca-certificates.crt";
        let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
        if !is_directory(Path::new(HOSTS)) {
            return Ok(());
        }
        let hold = |path: &Path| {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            open(path, flags, Mode::empty())
        };
        let own = relative(Path::new(TRUST));
        let place = Path::new(HOSTS);
        if let Ok((filesystem, mount)) = sealed::overlay(&hold(&own)?, &hold(place)?) {
            self.overlays.push(filesystem);
            return attach(&mount, &c_path(place)?);
        }
        if !place.join(BUNDLE).exists() {
            return Ok(());
        }
        let bundle = clone_tree(&c_path(&own.join(BUNDLE))?)?;
        set_attributes(&bundle, attribute::RDONLY, Reach::One)?;
        attach(&bundle, &c_path(&place.join(BUNDLE))?)
    }
}

/// The operator's grants in a root, as the cell has their paths.
#[derive(Debug, Default)]
pub(crate) struct PlacedGrants {
    pub by_slot: Vec<CString>,
    pub sockets: Sockets,
    /// Read-only directories among them, where the kernel makes overlays of them.
    pub overlays: Vec<Filesystem>,
    pub all: Vec<PathBuf>,
    pub has_directory: bool,
    pub writable: Vec<PathBuf>,
    pub guarded: Vec<PathBuf>,
    pub cache: Option<PathBuf>,
    pub named: Vec<PathBuf>,
    pub also: Rc<[Vec<u8>]>,
    pub notes: Vec<String>,
}

/// Puts granted directories in place: at their path, or in the hidden store by slot.
pub(crate) fn place_grants(
    granted: &[PathGrant],
    pieces: Vec<DetachedMount>,
    empty: &OwnedFd,
) -> Result<PlacedGrants, TemplateError> {
    let mut grants = PlacedGrants::default();
    for piece in pieces {
        match piece.place_in_grants(empty)? {
            Placed::Sealed(overlay) => grants.overlays.push(overlay),
            // A cell with a granted directory has init connect its sockets in any case.
            Placed::AsItIs | Placed::Open => {}
        }
    }
    for (index, grant) in granted.iter().enumerate() {
        let cell = &grant.granted.cell;
        grants.add(grant);
        if grant.by_slot.is_empty() {
            grants.guard(&relative(cell), grant)?;
            continue;
        }
        stand_in(&relative(cell), grant.kind).map_err(|error| refused(cell, &error))?;
        for (mount, slot) in grant.by_slot.iter().zip(Slot::all()) {
            let here = |errno| TemplateError::Path { path: cell.clone(), errno };
            let place = slot_place(slot, grants.by_slot.len(), grant.kind).map_err(here)?;
            let overlay = match grant.is_layer {
                // Where the kernel makes none of an idmapped mount, cells see the mount itself.
                true => overlay_of(mount, empty).ok(),
                false => None,
            };
            let shown = overlay.as_ref().map_or(mount, |(_, overlay)| overlay);
            c_path(&place).and_then(|path| attach(shown, &path)).map_err(here)?;
            grants.overlays.extend(overlay.map(|(filesystem, _)| filesystem));
            grants.guard(&place, grant)?;
        }
        debug_assert_eq!(
            index,
            grants.by_slot.len(),
            "main prepares all directories of a grant or none"
        );
        grants.by_slot.push(c_path(cell).during("naming a grant")?);
    }
    Ok(grants)
}

impl PlacedGrants {
    fn add(&mut self, PathGrant { granted, kind, found, .. }: &PathGrant) {
        let Granted { cell, access, .. } = granted;
        self.all.push(cell.clone());
        self.notes.extend(found.notes(cell));
        self.has_directory |= *kind == Kind::Directory;
        match access {
            Access::ReadOnly => {}
            Access::ReadWrite => {
                self.writable.push(cell.clone());
                self.guarded.push(cell.clone());
                self.also = Rc::clone(&granted.also);
                self.named.extend(found.named.iter().map(|path| cell.join(path)));
            }
            Access::Unguarded => self.writable.push(cell.clone()),
            Access::Cache => {
                self.writable.push(cell.clone());
                self.cache = Some(cell.clone());
            }
        }
    }

    /// Guards what the host obeys in a grant that stands at `place`.
    fn guard(&mut self, place: &Path, grant: &PathGrant) -> Result<(), TemplateError> {
        let PathGrant { granted, kind, found, .. } = grant;
        match (granted.access, kind) {
            (Access::ReadOnly | Access::Cache, _) | (_, Kind::File) => return Ok(()),
            (Access::ReadWrite | Access::Unguarded, Kind::Directory) => {}
        }
        // Told with the path that the cell has: a caller must not learn the host's.
        let as_the_cell_has_it =
            |path: &Path| granted.cell.join(path.strip_prefix(place).unwrap_or(Path::new("")));
        found
            .cover(place)
            .map_err(|(path, errno)| TemplateError::Path { path: as_the_cell_has_it(&path), errno })
    }
}

/// Makes an overlay of a detached mount.
///
/// A layer must be mounted in this namespace. It is put over a directory of the host that nothing needs any
/// longer, and leaves with all mounts of the host: unmounting it would take longer.
fn overlay_of(mount: &OwnedFd, empty: &OwnedFd) -> Result<(Filesystem, OwnedFd), Errno> {
    attach(mount, c"/dev")?;
    sealed::overlay(mount, empty)
}

/// Makes the place of a grant in the store of `slot`.
fn slot_place(slot: Slot, index: usize, kind: Kind) -> Result<PathBuf, Errno> {
    let mut buffer = [0; 64];
    let path = mounts::slot_path(&mut buffer, slot, index)?;
    let path = relative(Path::new(path.to_str().map_err(|_| Errno::EINVAL)?));
    stand_in(&path, kind).map_err(|error| errno_of(&error))?;
    Ok(path)
}
