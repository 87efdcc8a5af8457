//! The template: the read-only root that cells of one key inherit, built once in a separate mount
//! namespace.
//!
//! A cell's mount namespace is a copy of the template's, in a less privileged user namespace: the
//! kernel locks all its mounts and their flags (mount_namespaces(7)).

use std::collections::BTreeSet;
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
use cell::ids::CellIds;
use cell::late_files::LateFiles;
use cell::mounts::{self, HIDDEN};
use cell::sealed::Overlays;
use cell::size::Sizes;
use cell::slot::Slot;
use cell::sockets::Sockets;
use cell::{Clocks, ProcKind, c_path, landlock};
use model::profile::{ProcView, Profile};
use sys::mount::{Reach, attach, attribute, clone_one, new_filesystem, set_attributes};

use super::detached::{
    devices, directories, empty_directory, gather, hidden_here, relative, write_file,
};
use super::error::{DuringBuild, STAGE, TemplateError, refused};
use super::late::{EarlyReader, late_files};
use super::own_programs;
use super::packages::{self, PackageFiles};
use super::synthetic;

/// Everything needed to build templates.
#[derive(Debug)]
pub(crate) struct TemplateBuilder<'a> {
    /// The supervisor's first mount namespace: a copy of the host's.
    pub base: OwnedFd,
    pub proc: &'a OwnedFd,
    pub proc_kind: ProcKind,
    pub clocks: Clocks,
    /// Maximum number of cells alive at once.
    pub cells: u16,
    /// The host's `/etc` with the digests of packages, if a profile shows unchanged files of it.
    pub packages: Option<Rc<PackageFiles>>,
}

/// The mount namespace that becomes a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespace {
    /// A copy of the first one, which further templates need.
    New,
    /// The first one itself, for the last template: this saves a copy of the host's mounts whose
    /// removal makes the kernel wait for all processors.
    First,
}

/// A finished template.
#[derive(Debug)]
pub(crate) struct Template {
    pub namespace: OwnedFd,
    pub hidden: OwnedFd,
    pub devices: OwnedFd,
    /// The devpts of the only cell of `run`.
    pub terminals: Option<Rc<OwnedFd>>,
    pub sizes: Sizes,
    pub facts: Vec<(CString, CString)>,
    pub by_slot: Vec<CString>,
    pub sockets: Sockets,
    /// Paths that contain files of the host, as the cell sees them.
    pub readable: Vec<PathBuf>,
    /// Granted directories and files, as the cell sees them.
    pub granted: Vec<PathBuf>,
    /// True if `granted` contains a directory, which may contain sockets.
    pub has_directory: bool,
    /// Directories of the profile and of grants that are overlays.
    pub overlays: Overlays,
    /// Files that are made while the first cell is built.
    pub late: LateFiles,
    /// True if a directory could not be an overlay: other means must prevent connections to the
    /// host's sockets in it.
    pub is_open: bool,
    /// The writable part of `granted`.
    pub writable: Vec<PathBuf>,
    /// The part of `writable` in which guarded names must not be made.
    pub guarded: Vec<PathBuf>,
    /// The part of `writable` that is shown through layers: cells may make any name and any socket
    /// in it.
    pub layers: Vec<PathBuf>,
    /// The workspace's cache, in which any name may be made.
    pub cache: Option<PathBuf>,
    /// Paths in guarded directories that a link or a configuration refers to, existing or not.
    pub named: Vec<PathBuf>,
    /// Read-only files in guarded directories that have other names too: device and inode number of each.
    pub shared: BTreeSet<(u64, u64)>,
    /// Names that the operator guards in these.
    pub also: Rc<[Vec<u8>]>,
    /// Directories of repositories that are granted by themselves, of submodules and of linked worktrees.
    pub repositories: Vec<PathBuf>,
    /// True if `/workspace` is a link to a granted directory.
    pub has_link: bool,
    /// Paths in these that are not fully guarded, with the reason.
    pub notes: Vec<String>,
}

impl Template {
    /// Returns true if the cell has directories that may contain sockets of the host.
    pub(crate) fn shows_sockets(&self) -> bool {
        self.has_directory || self.is_open
    }
}

impl TemplateBuilder<'_> {
    /// Builds the template of `profile` with `grant`, and leaves the caller inside it. `early` is the process that has
    /// begun with its late files.
    ///
    /// # Errors
    /// A required path is missing, or a step failed.
    pub(crate) fn build(
        &self,
        profile: &Profile,
        grant: &KeyGrant,
        ids: CellIds,
        namespace: Namespace,
        early: Option<EarlyReader>,
    ) -> Result<Template, TemplateError> {
        self.enter(namespace)?;
        let (pieces, links) = gather(profile)?;
        let devices = devices(profile)?;
        let uuids = match profile.proc {
            ProcView::Own => synthetic::hold_uuids(),
            ProcView::None => None,
        };
        let granted = granted(&grant.directories)?;
        let socket_mounts = sockets::take(&grant.sockets)?;
        enter_stage(self.cells, profile.packaged_etc)?;
        skeleton(profile, grant.workspace_link()).during("making the root's directories")?;
        let empty = empty_directory().during("making an empty directory")?;
        let mut shown = PlacedMounts::default();
        shown
            .readable
            .extend(own_programs::install(profile).during("placing cofferdam's programs")?);
        for (path, text) in links {
            link(&path, &text).map_err(|error| refused(&path, &error))?;
        }
        for piece in pieces.into_iter().chain(devices) {
            shown.place(piece, &empty)?;
        }
        let terminals = terminals_of_run(profile, ids).during("mounting /dev/pts")?;
        let mut grants = place_grants(&grant.directories, granted, &empty)?;
        grants.sockets = sockets::place(&grant.sockets, socket_mounts, ids)?;
        synthetic::etc(Path::new("etc"), profile.egress.class).during("writing /etc")?;
        synthetic::trust(&profile.trust).during("writing certificates")?;
        if !profile.trust.is_empty() {
            shown.trust().during("placing certificates")?;
        }
        if let (Some(identity), false) = (&profile.git_identity, grant.directories.is_empty()) {
            synthetic::git_identity(Path::new("etc"), identity).during("writing /etc/gitconfig")?;
        }
        synthetic::script_sdk(profile.script_sdk).during("writing the functions for scripts")?;
        synthetic::store(&hidden_here(), &profile.limits, self.cells, self.clocks)
            .during("writing the hidden store")?;
        self.proc_for_cells(profile.proc)?;
        if profile.proc == ProcView::Own {
            synthetic::settings(uuids).during("making the settings of /proc")?;
        }
        if profile.workspace {
            temporary_files()?;
        }
        become_root()?;
        // A separate mount, because the root's becomes read-only for the supervisor too.
        let writable = clone_one(c"/").during("holding the root")?;
        let namespace = self.finish()?;
        self.hold(profile, (namespace, Rc::new(writable), terminals), shown, grants, early)
    }

    /// Enters a copy of the host's mounts, from which parts are taken.
    fn enter(&self, namespace: Namespace) -> Result<(), TemplateError> {
        setns(&self.base, CloneFlags::CLONE_NEWNS).during("entering the first namespace")?;
        match namespace {
            Namespace::New => unshare(CloneFlags::CLONE_NEWNS).during("making a mount namespace"),
            Namespace::First => Ok(()),
        }
    }

    /// Mounts a procfs without any mounts on top: otherwise the kernel would refuse a cell its own
    /// procfs, whether for the program or only for init's memory watch (mount_too_revealing in the
    /// kernel). In a cell without `/proc` it is in the hidden store.
    fn proc_for_cells(&self, view: ProcView) -> Result<(), TemplateError> {
        let target = match (view, self.proc_kind) {
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
        directories(&target).during("mounting /proc")?;
        let flags = attribute::NOSUID | attribute::NODEV | attribute::NOEXEC;
        let proc = new_filesystem(c"proc", flags).during("mounting /proc")?;
        let target = c_path(&target).during("mounting /proc")?;
        attach(proc, &target).during("mounting /proc")
    }

    /// Makes the new root read-only and opens its namespace.
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
        held: (OwnedFd, Rc<OwnedFd>, Option<OwnedFd>),
        shown: PlacedMounts,
        grants: PlacedGrants,
        early: Option<EarlyReader>,
    ) -> Result<Template, TemplateError> {
        let (namespace, root, terminals) = held;
        let facts = match profile.proc {
            ProcView::Own => synthetic::covers().during("naming the facts of /proc")?,
            ProcView::None => Vec::new(),
        };
        let directory = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let hidden = open(HIDDEN, directory, Mode::empty()).during("opening the hidden store")?;
        let devices = open("/dev", directory, Mode::empty()).during("opening the root's /dev")?;
        let paths: Vec<PathBuf> = shown.readable.iter().chain(&grants.all).cloned().collect();
        let late = late_files(profile, &root, self.packages.as_ref(), &paths, early);
        let sizes = Sizes::new(root, self.cells, profile.limits.memory, self.clocks);
        let PlacedGrants {
            by_slot,
            sockets,
            all: granted,
            has_directory,
            writable,
            guarded,
            layers,
            cache,
            named,
            shared,
            also,
            repositories,
            has_link,
            notes,
            overlays: grant_overlays,
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
            overlays: Overlays::new(overlays, grant_overlays),
            late,
            is_open,
            writable,
            guarded,
            layers,
            cache,
            named,
            shared,
            also,
            repositories,
            has_link,
            notes,
        })
    }

    /// Moves the caller out of the host's mounts: into a finished template, from which cells are
    /// cloned anyway, or into an empty root if there is no template.
    ///
    /// Always making a separate root would cost every start an unmount of all the host's mounts,
    /// which takes half a millisecond because the kernel waits for all processors (umount2 calls
    /// `synchronize_rcu`).
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) fn close(self, whole: Option<&OwnedFd>) -> Result<(), TemplateError> {
        if let Some(template) = whole {
            return setns(template, CloneFlags::CLONE_NEWNS).during("staying in a template");
        }
        self.enter(Namespace::New)?;
        enter_stage(0, false)?;
        become_root()?;
        let root = open("/", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            .during("opening the empty root")?;
        set_attributes(root, attribute::RDONLY, Reach::One).during("making the root read-only")
    }
}

/// Mounts the filesystem of the new root over the stage, with room for a file per cell and for
/// copies of packages' files, and changes to it.
fn enter_stage(cells: u16, has_packages: bool) -> Result<(), TemplateError> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let packages = if has_packages { packages::MAX_KILOBYTES } else { 0 };
    let kilobytes = 8192 + 4 * u32::from(cells) + packages;
    let inodes = 8192 + u32::from(cells);
    let options = format!("size={kilobytes}k,nr_inodes={inodes},mode=0755");
    mount(Some("tmpfs"), STAGE, Some("tmpfs"), flags, Some(options.as_str()))
        .during("mounting the new root")?;
    nix::unistd::chdir(STAGE).during("entering the new root")
}

/// Makes the stage the root of this namespace and detaches the host's mounts.
fn become_root() -> Result<(), TemplateError> {
    sys::mount::pivot_here().map_err(|errno| {
        let what = if errno == Errno::EINVAL {
            "changing the root (an initramfs cannot be left; `cofferdam doctor` has the remedy)"
        } else {
            "changing the root"
        };
        TemplateError::System { what, errno }
    })?;
    umount2(".", MntFlags::MNT_DETACH).during("detaching the host's mounts")?;
    nix::unistd::chdir("/").during("entering the new root")
}

/// Makes the directories and links of every root, in addition to those of the profile. If `workspace`
/// is given, `/workspace` is a link to it.
fn skeleton(profile: &Profile, workspace: Option<&Path>) -> std::io::Result<()> {
    for path in ["dev/shm", "etc", "mnt"] {
        directories(Path::new(path))?;
    }
    match workspace {
        Some(path) if profile.workspace => symlink(path, "workspace")?,
        None if profile.workspace => directories(Path::new("workspace"))?,
        Some(_) | None => {}
    }
    directories(&hidden_here().join("slot"))?;
    if profile.can_hold_a_shell() {
        directories(&relative(Path::new(mounts::HIDDEN_MAILBOX)))?;
        directories(&relative(Path::new(mounts::MAILBOX)))?;
    }
    if profile.has_tty_device() {
        // Empty, and a link to nothing, unless a devpts is mounted.
        directories(&relative(Path::new(mounts::TERMINALS)))?;
        symlink("pts/ptmx", "dev/ptmx")?;
    }
    if profile.proc == ProcView::Own {
        directories(Path::new("proc"))?;
        directories(Path::new("sys"))?;
        symlink("/proc/self/fd", "dev/fd")?;
        for (number, name) in ["stdin", "stdout", "stderr"].iter().enumerate() {
            symlink(format!("/proc/self/fd/{number}"), Path::new("dev").join(name))?;
        }
    }
    let canary = hidden_here().join(landlock::CANARY.to_str().unwrap_or_default());
    write_file(&canary, "Landlock refuses this file.\n")
}

/// Mounts the devpts of the only cell of `run`, where the kernel permits it. Only a call that has a
/// terminal needs it.
fn terminals_of_run(profile: &Profile, ids: CellIds) -> Result<Option<OwnedFd>, Errno> {
    if !profile.makes_terminals {
        return Ok(None);
    }
    let target = mounts::TERMINALS.trim_start_matches('/');
    match terminals::mount_at(target, ids.of_slot(Slot::new(0))?) {
        Ok(terminals) => Ok(Some(terminals)),
        Err(errno) if profile.terminal.is_some() => Err(errno),
        Err(errno) => {
            tracing::debug!(%errno, "programs cannot make pseudo-terminals here");
            Ok(None)
        }
    }
}

/// Makes `/var/tmp` a link to `/tmp`, unless a grant lies below it.
fn temporary_files() -> Result<(), TemplateError> {
    directories(Path::new("var")).during("making /var")?;
    match symlink("/tmp", "var/tmp") {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made.during("making /var/tmp"),
    }
}

fn link(path: &Path, text: &Path) -> std::io::Result<()> {
    let here = relative(path);
    here.parent().map_or(Ok(()), directories)?;
    symlink(text, here)
}
