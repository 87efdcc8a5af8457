//! Places files of the host in a root: those of the profile, and those that the operator granted.

use std::collections::BTreeSet;
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
use cell::mounts;
use cell::slot::Slot;
use cell::sockets::Sockets;
use cell::{c_path, errno_of, sealed};
use model::job::Access;
use model::profile::TRUST;
use sys::mount::{Filesystem, Reach, attach, attribute, clone_tree, set_attributes};

/// Takes copies of the granted directories, before the stage hides any of them.
pub(crate) fn granted(grants: &[PathGrant]) -> Result<Vec<DetachedMount>, TemplateError> {
    // The others have id-mapped mounts, which are attached by descriptor.
    let shared = grants.iter().filter(|grant| grant.by_slot.made().is_empty());
    let take = |grant: &PathGrant| match &grant.overlay {
        Some(overlay) => {
            let Granted { host, cell, .. } = &grant.granted;
            DetachedMount::of_layer(overlay, cell)
                .map_err(|errno| TemplateError::Path { path: host.clone(), errno })
        }
        None => DetachedMount::take_granted(&grant.granted),
    };
    shared.map(take).collect()
}

/// The mounts of a root that come from its profile.
#[derive(Debug, Default)]
pub(crate) struct PlacedMounts {
    /// Paths inside the cell.
    pub readable: Vec<PathBuf>,
    pub overlays: Vec<Filesystem>,
    /// True if a directory could not be made an overlay.
    pub is_open: bool,
}

impl PlacedMounts {
    pub(crate) fn place(
        &mut self,
        piece: DetachedMount,
        empty: &OwnedFd,
    ) -> Result<(), TemplateError> {
        // A path below a readable one needs no separate rule.
        if !self.readable.iter().any(|path| piece.target.starts_with(path)) {
            self.readable.push(piece.target.clone());
        }
        match piece.place(empty)? {
            Placed::Plain => {}
            Placed::Sealed(overlay) => self.overlays.push(overlay),
            Placed::Open => self.is_open = true,
        }
        Ok(())
    }

    /// Replaces the host's certificates by those that the cell trusts, for programs that only read
    /// the host's. If the directory cannot be an overlay, because mounts lie below it, only the
    /// bundle is replaced.
    pub(crate) fn trust(&mut self) -> Result<(), Errno> {
        const HOSTS: &str = "etc/ssl/certs";
        const BUNDLE: &str = "ca-certificates.crt";
        let is_directory =
            |path: &Path| path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
        if !is_directory(Path::new(HOSTS)) {
            return Ok(());
        }
        let hold = |path: &Path| {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            open(path, flags, Mode::empty())
        };
        let trusted = relative(Path::new(TRUST));
        let hosts = Path::new(HOSTS);
        if let Ok((filesystem, mount)) = sealed::overlay(&hold(&trusted)?, &hold(hosts)?) {
            self.overlays.push(filesystem);
            return attach(&mount, &c_path(hosts)?);
        }
        if !hosts.join(BUNDLE).exists() {
            return Ok(());
        }
        let bundle = clone_tree(&c_path(&trusted.join(BUNDLE))?)?;
        set_attributes(&bundle, attribute::RDONLY, Reach::One)?;
        attach(&bundle, &c_path(&hosts.join(BUNDLE))?)
    }
}

/// The operator's grants in a root, with paths inside the cell.
#[derive(Debug, Default)]
pub(crate) struct PlacedGrants {
    pub by_slot: Vec<CString>,
    pub sockets: Sockets,
    /// Overlays of read-only directories among the grants.
    pub overlays: Vec<Filesystem>,
    pub all: Vec<PathBuf>,
    pub has_directory: bool,
    pub writable: Vec<PathBuf>,
    pub guarded: Vec<PathBuf>,
    /// Directories that are shown through a layer.
    pub layers: Vec<PathBuf>,
    pub cache: Option<PathBuf>,
    pub named: Vec<PathBuf>,
    pub shared: BTreeSet<(u64, u64)>,
    pub also: Rc<[Vec<u8>]>,
    /// Directories of repositories that are granted by themselves, of submodules and of linked worktrees.
    pub repositories: Vec<PathBuf>,
    /// True if `/workspace` is a link to one of these.
    pub has_link: bool,
    pub notes: Vec<String>,
}

/// Attaches the granted directories: at their path, or by slot in the hidden store.
pub(crate) fn place_grants(
    granted: &[PathGrant],
    pieces: Vec<DetachedMount>,
    empty: &OwnedFd,
) -> Result<PlacedGrants, TemplateError> {
    let mut grants = PlacedGrants::default();
    for piece in pieces {
        match piece.place_in_grants(empty)? {
            Placed::Sealed(overlay) => grants.overlays.push(overlay),
            // Init connects the sockets of cells with a granted directory in any case.
            Placed::Plain | Placed::Open => {}
        }
    }
    for (index, grant) in granted.iter().enumerate() {
        let cell = &grant.granted.cell;
        grants.add(grant);
        if grant.by_slot.made().is_empty() {
            grants.guard(&relative(cell), grant, empty)?;
            continue;
        }
        stand_in(&relative(cell), grant.kind).map_err(|error| refused(cell, &error))?;
        for (mount, slot) in grant.by_slot.made().iter().zip(Slot::all()) {
            let here = |errno| TemplateError::Path { path: cell.clone(), errno };
            let store_path =
                make_slot_path(slot, grants.by_slot.len(), grant.kind).map_err(here)?;
            let overlay = match grant.is_layer {
                // If the kernel refuses an overlay of an id-mapped mount, cells see the mount
                // itself.
                true => overlay_of(mount, empty).ok(),
                false => None,
            };
            let shown = overlay.as_ref().map_or(mount, |(_, overlay)| overlay);
            c_path(&store_path).and_then(|path| attach(shown, &path)).map_err(here)?;
            grants.overlays.extend(overlay.map(|(filesystem, _)| filesystem));
            grants.guard(&store_path, grant, empty)?;
        }
        debug_assert_eq!(
            index,
            grants.by_slot.len(),
            "all directories of a grant have mounts by slot, or none"
        );
        grants.by_slot.push(c_path(cell).during("naming a grant")?);
    }
    Ok(grants)
}

impl PlacedGrants {
    fn add(&mut self, PathGrant { granted, kind, guarded, .. }: &PathGrant) {
        let Granted { cell, access, .. } = granted;
        self.all.push(cell.clone());
        self.notes.extend(guarded.notes(cell));
        // In a layer no socket is the host's: overlayfs has its own inodes.
        self.has_directory |= *kind == Kind::Directory && *access != Access::Layer;
        self.has_link |= granted.is_linked;
        match access {
            Access::ReadOnly => {}
            Access::ReadWrite | Access::Repository => {
                self.writable.push(cell.clone());
                self.guarded.push(cell.clone());
                self.also = Rc::clone(&granted.also);
                self.named.extend(guarded.named.iter().map(|path| cell.join(path)));
                self.shared.extend(&guarded.shared);
                self.repositories.extend((*access == Access::Repository).then(|| cell.clone()));
                self.repositories.extend(guarded.repositories.iter().map(|path| cell.join(path)));
            }
            Access::Unguarded => self.writable.push(cell.clone()),
            Access::Layer => {
                self.writable.push(cell.clone());
                self.layers.push(cell.clone());
            }
            Access::Cache => {
                self.writable.push(cell.clone());
                self.cache = Some(cell.clone());
            }
        }
    }

    /// Guards files that the host obeys in a grant that is attached at `root`.
    fn guard(
        &mut self,
        root: &Path,
        grant: &PathGrant,
        empty: &OwnedFd,
    ) -> Result<(), TemplateError> {
        let PathGrant { granted, kind, guarded, .. } = grant;
        match (granted.access, kind) {
            (Access::ReadOnly | Access::Cache | Access::Layer, _) | (_, Kind::File) => {
                return Ok(());
            }
            (Access::ReadWrite | Access::Unguarded | Access::Repository, Kind::Directory) => {}
        }
        // Errors name the path inside the cell, as a client must not learn the host's.
        let path_in_cell =
            |path: &Path| granted.cell.join(path.strip_prefix(root).unwrap_or(Path::new("")));
        guarded
            .cover(root, empty)
            .map_err(|(path, errno)| TemplateError::Path { path: path_in_cell(&path), errno })
    }
}

/// Makes an overlay of a detached mount.
///
/// A layer must be attached in this namespace. It is attached over a directory of the host that is
/// not needed any more, and disappears with all mounts of the host; unmounting it separately would
/// take longer.
fn overlay_of(mount: &OwnedFd, empty: &OwnedFd) -> Result<(Filesystem, OwnedFd), Errno> {
    attach(mount, c"/dev")?;
    sealed::overlay(mount, empty)
}

/// Makes the mount point of a grant in the store of `slot`.
fn make_slot_path(slot: Slot, index: usize, kind: Kind) -> Result<PathBuf, Errno> {
    let mut buffer = [0; 64];
    let path = mounts::slot_path(&mut buffer, slot, index)?;
    let path = relative(Path::new(path.to_str().map_err(|_| Errno::EINVAL)?));
    stand_in(&path, kind).map_err(|error| errno_of(&error))?;
    Ok(path)
}
