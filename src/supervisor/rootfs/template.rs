//! The root that cells of one key inherit: built once, read-only, in a mount namespace of its own.
//!
//! A cell's mount namespace is a copy of the template's, in a less privileged user namespace:
//! the kernel locks every mount in it together with its flags (mount_namespaces(7)).

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;

use super::grants::KeyGrant;
use super::placement::{PlacedGrants, PlacedMounts, granted, place_grants};
use super::{sockets, terminals};
use cell::mounts::{self, HIDDEN};
use cell::sealed::Overlays;
use cell::size::{self, Sizes};
use cell::sockets::Sockets;
use cell::{Clocks, ProcKind, c_path, payload};
use model::profile::{ProcView, Profile};
use sys::mount::{Reach, attach, attribute, clone_tree, new_filesystem, set_attributes};

use super::detached::{
    devices, directories, empty_directory, gather, hidden_here, relative, write_file,
};
use super::error::{DuringBuild, STAGE, TemplateError, refused};
use super::own_programs;
use super::synthetic;

/// Everything that building templates needs.
#[derive(Debug)]
pub(crate) struct TemplateBuilder<'a> {
    /// The supervisor's first mount namespace: a copy of the host's.
    pub base: OwnedFd,
    pub proc: &'a OwnedFd,
    pub proc_kind: ProcKind,
    pub clocks: Clocks,
    /// Cells that may be alive at once.
    pub cells: u16,
}

/// Which mount namespace becomes a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// A copy of the first, which others are to be made of.
    New,
    /// The first itself, for the last template: nobody copies the host's mounts then only to let them
    /// go, for which the kernel waits for all processors.
    First,
}

/// A finished template.
#[derive(Debug)]
pub(crate) struct Template {
    pub namespace: OwnedFd,
    pub hidden: OwnedFd,
    pub devices: OwnedFd,
    /// The devpts of a call that has a terminal.
    pub terminals: Option<Rc<OwnedFd>>,
    pub sizes: Sizes,
    pub facts: Vec<(CString, CString)>,
    pub by_slot: Vec<CString>,
    pub sockets: Sockets,
    /// Paths with something of the host beneath, as the cell has them.
    pub readable: Vec<PathBuf>,
    /// Granted directories and files as the cell has them, and those of them that may be written to.
    pub granted: Vec<PathBuf>,
    /// True if there is a directory among them, in which sockets may be.
    pub has_directory: bool,
    /// Directories of the profile and of grants that are overlays.
    pub overlays: Overlays,
    /// True if one of them could not be: the host's sockets in it must be kept out by other means.
    pub is_open: bool,
    pub writable: Vec<PathBuf>,
    /// Of these, the ones in which no guarded name may be made.
    pub guarded: Vec<PathBuf>,
    /// The workspace's cache, in which every name may be made.
    pub cache: Option<PathBuf>,
    /// Places in them that links lead to or a configuration names, there or not.
    pub named: Vec<PathBuf>,
    /// Names that the operator guards in them.
    pub also: Rc<[Vec<u8>]>,
    /// Places in them that are not guarded in full, each with the reason.
    pub notes: Vec<String>,
}

impl Template {
    /// Returns whether the cell has directories in which sockets of the host can be found.
    pub(crate) fn shows_sockets(&self) -> bool {
        self.has_directory || self.is_open
    }
}

impl TemplateBuilder<'_> {
    /// Builds the template of `profile` with `grant` and leaves the caller in it.
    ///
    /// # Errors
    /// A required path that is not there, or the step that failed.
    pub(crate) fn build(
        &self,
        profile: &Profile,
        grant: &KeyGrant,
        namespace: Namespace,
    ) -> Result<Template, TemplateError> {
        self.enter(namespace)?;
        let (pieces, links) = gather(profile)?;
        let devices = devices(profile)?;
        let granted = granted(&grant.directories)?;
        let taken = sockets::take(&grant.sockets)?;
        enter_stage(self.cells)?;
        skeleton(profile).during("making the root's directories")?;
        let empty = empty_directory().during("making an empty directory")?;
        let mut shown = PlacedMounts::default();
        shown.readable.extend(own_programs::place(profile).during("placing cofferdam's programs")?);
        for (path, text) in links {
            link(&path, &text).map_err(|error| refused(&path, &error))?;
        }
        for piece in pieces.into_iter().chain(devices) {
            shown.place(piece, &empty)?;
        }
        let terminals = match profile.terminal {
            Some(_) => Some(terminals::mount_shared().during("mounting /dev/pts")?),
            None => None,
        };
        let mut grants = place_grants(&grant.directories, granted, &empty)?;
        grants.sockets = sockets::place(&grant.sockets, taken)?;
        synthetic::etc(Path::new("etc"), profile.egress.class).during("writing /etc")?;
        synthetic::trust(&profile.trust).during("writing certificates")?;
        if !profile.trust.is_empty() {
            shown.trust().during("placing certificates")?;
        }
        if let (Some(identity), false) = (&profile.git_identity, grant.directories.is_empty()) {
            synthetic::git_identity(Path::new("etc"), identity).during("writing /etc/gitconfig")?;
        }
        synthetic::script_sdk(profile.script_sdk).during("writing the functions for scripts")?;
        synthetic::store(&hidden_here(), &profile.limits, self.cells)
            .during("writing the hidden store")?;
        self.proc_for_cells(profile.proc)?;
        become_root()?;
        // A mount of its own: that of the root becomes read-only, for the supervisor as well.
        let sizes = c_path(&Path::new(HIDDEN).join(size::DIRECTORY))
            .and_then(|path| clone_tree(&path))
            .during("holding the sizes")?;
        let namespace = self.finish()?;
        self.hold(profile, (namespace, sizes, terminals), shown, grants)
    }

    /// Enters a copy of the host's mounts, to take pieces from.
    fn enter(&self, namespace: Namespace) -> Result<(), TemplateError> {
        setns(&self.base, CloneFlags::CLONE_NEWNS).during("entering the first namespace")?;
        match namespace {
            Namespace::New => unshare(CloneFlags::CLONE_NEWNS).during("making a mount namespace"),
            Namespace::First => Ok(()),
        }
    }

    /// A procfs that nothing is mounted over: without one in its namespace, the kernel refuses a
    /// cell its own, be it for the program or only for init's memory watch (mount_too_revealing
    /// in the kernel). A cell without `/proc` has it in the store that it covers.
    fn proc_for_cells(&self, view: ProcView) -> Result<(), TemplateError> {
        let place = match (view, self.proc_kind) {
            (ProcView::Own, ProcKind::Own) => PathBuf::from("proc"),
            (ProcView::None, ProcKind::Own) => hidden_here().join("proc"),
            (ProcView::None, ProcKind::Outer) => return Ok(()),
            (ProcView::Own, ProcKind::Outer) => {
                return Err(TemplateError::System {
                    what: "mounting /proc (parts of the outer /proc are masked; `cofferdam doctor` has the remedy)",
                    errno: Errno::EPERM,
                });
            }
        };
        directories(&place).during("mounting /proc")?;
        let flags = attribute::NOSUID | attribute::NODEV | attribute::NOEXEC;
        let proc = new_filesystem(c"proc", flags).during("mounting /proc")?;
        let place = c_path(&place).during("mounting /proc")?;
        attach(proc, &place).during("mounting /proc")
    }

    /// Makes the new root read-only and holds its namespace.
    fn finish(&self) -> Result<OwnedFd, TemplateError> {
        let root = open("/", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            .during("opening the new root")?;
        set_attributes(&root, attribute::RDONLY, Reach::One).during("making the root read-only")?;
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        openat(self.proc, "self/ns/mnt", flags, Mode::empty())
            .during("holding the template's namespace")
    }

    fn hold(
        &self,
        profile: &Profile,
        (namespace, sizes, terminals): (OwnedFd, OwnedFd, Option<OwnedFd>),
        shown: PlacedMounts,
        grants: PlacedGrants,
    ) -> Result<Template, TemplateError> {
        let facts = match profile.proc {
            ProcView::Own => synthetic::covers().during("naming the facts of /proc")?,
            ProcView::None => Vec::new(),
        };
        let directory = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let hidden = open(HIDDEN, directory, Mode::empty()).during("opening the hidden store")?;
        let devices = open("/dev", directory, Mode::empty()).during("opening the root's /dev")?;
        let sizes = Sizes::new(sizes, self.cells, profile.limits.memory, self.clocks);
        let PlacedGrants {
            by_slot,
            sockets,
            all: granted,
            has_directory,
            writable,
            guarded,
            cache,
            named,
            also,
            notes,
            overlays: of_grants,
        } = grants;
        let PlacedMounts { readable, overlays, is_open } = shown;
        Ok(Template {
            terminals: terminals.map(Rc::new),
            namespace,
            hidden,
            devices,
            sizes,
            facts,
            by_slot,
            sockets,
            readable,
            granted,
            has_directory,
            overlays: Overlays::new(overlays, of_grants),
            is_open,
            writable,
            guarded,
            cache,
            named,
            also,
            notes,
        })
    }

    /// Leaves the caller without the host's mounts: in a template that is whole, where every cell is
    /// cloned from anyway, or else in a root with nothing in it.
    ///
    /// A root of its own would cost every start an unmount of all the host's mounts, half a
    /// millisecond, in which the kernel waits for all processors (umount2 takes `synchronize_rcu`).
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) fn close(self, whole: Option<&OwnedFd>) -> Result<(), TemplateError> {
        if let Some(template) = whole {
            return setns(template, CloneFlags::CLONE_NEWNS).during("staying in a template");
        }
        self.enter(Namespace::New)?;
        enter_stage(0)?;
        become_root()?;
        let root = open("/", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            .during("opening the empty root")?;
        set_attributes(root, attribute::RDONLY, Reach::One).during("making the root read-only")
    }
}

/// Covers the stage with the filesystem of the new root, which has a file for each cell, and goes
/// there.
fn enter_stage(cells: u16) -> Result<(), TemplateError> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let kilobytes = 8192 + 4 * u32::from(cells);
    let inodes = 8192 + u32::from(cells);
    let options = format!("size={kilobytes}k,nr_inodes={inodes},mode=0755");
    mount(Some("tmpfs"), STAGE, Some("tmpfs"), flags, Some(options.as_str()))
        .during("mounting the new root")?;
    nix::unistd::chdir(STAGE).during("entering the new root")
}

/// Makes the stage the root of this namespace and lets the host's mounts go.
fn become_root() -> Result<(), TemplateError> {
    sys::mount::pivot_here().map_err(|errno| {
        let what = if errno == Errno::EINVAL {
            "changing the root (an initramfs cannot be left; `cofferdam doctor` has the remedy)"
        } else {
            "changing the root"
        };
        TemplateError::System { what, errno }
    })?;
    umount2(".", MntFlags::MNT_DETACH).during("letting the host's mounts go")?;
    nix::unistd::chdir("/").during("entering the new root")
}

/// Directories and links of every root, besides what the profile lists.
fn skeleton(profile: &Profile) -> std::io::Result<()> {
    for path in ["dev/shm", "etc", "mnt"] {
        directories(Path::new(path))?;
    }
    if profile.workspace {
        directories(Path::new("workspace"))?;
    }
    directories(&hidden_here().join("slot"))?;
    if profile.can_hold_a_shell() {
        directories(&relative(Path::new(mounts::HIDDEN_MAILBOX)))?;
        directories(&relative(Path::new(mounts::MAILBOX)))?;
    }
    if profile.proc == ProcView::Own {
        directories(Path::new("proc"))?;
        symlink("/proc/self/fd", "dev/fd")?;
        for (number, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
            symlink(format!("/proc/self/fd/{number}"), Path::new("dev").join(name))?;
        }
    }
    let canary = hidden_here().join(payload::CANARY.to_str().unwrap_or_default());
    write_file(&canary, "Landlock refuses this file.\n")
}

fn link(path: &Path, text: &Path) -> std::io::Result<()> {
    let here = relative(path);
    here.parent().map_or(Ok(()), directories)?;
    symlink(text, here)
}
