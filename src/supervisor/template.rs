//! The root that cells of one key inherit: built once, read-only, in a mount namespace of its own.
//!
//! A cell's mount namespace is a copy of the template's, in a less privileged user namespace:
//! the kernel locks every mount in it together with its flags (mount_namespaces(7)).

use std::ffi::CString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;

use super::{Access, Kind, WorkspaceGrant, program, protect};
use crate::cell::mounts::{self, HIDDEN, Slot};
use crate::cell::{ProcKind, c_path, errno_of, payload};
use crate::profile::{HostPath, PathKind, Presence, ProcView, Profile};
use crate::sys::mount::{Reach, attach, attribute, clone_tree, new_filesystem, set_attributes};

use super::synthetic;

/// Where a root is put together before it becomes one. It exists on every system, and in our
/// own namespace covering it hides nothing from anybody.
const STAGE: &str = "/tmp";
/// Devices of every cell, bound one by one.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Why a template could not be built.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("`{}` is not on this host", path.display())]
    Missing { path: PathBuf },
    #[error("`{}` cannot be put in the cell: {errno}", path.display())]
    Path { path: PathBuf, errno: Errno },
    #[error("{what}: {errno}")]
    System { what: &'static str, errno: Errno },
}

trait During<T> {
    fn during(self, what: &'static str) -> Result<T, TemplateError>;
}

impl<T> During<T> for nix::Result<T> {
    fn during(self, what: &'static str) -> Result<T, TemplateError> {
        self.map_err(|errno| TemplateError::System { what, errno })
    }
}

impl<T> During<T> for std::io::Result<T> {
    fn during(self, what: &'static str) -> Result<T, TemplateError> {
        self.map_err(|error| TemplateError::System { what, errno: errno_of(&error) })
    }
}

/// What is needed to build templates.
#[derive(Debug)]
pub struct Workshop<'a> {
    /// The supervisor's first mount namespace: a copy of the host's.
    pub base: OwnedFd,
    pub proc: &'a OwnedFd,
    pub proc_kind: ProcKind,
}

/// A finished template.
#[derive(Debug)]
pub struct Template {
    pub namespace: OwnedFd,
    pub hidden: OwnedFd,
    pub masks: Vec<(CString, CString)>,
    pub by_slot: Vec<CString>,
    /// Paths with something of the host beneath, as the cell has them.
    pub readable: Vec<PathBuf>,
    /// Granted directories as the cell has them, and those of them that may be written to.
    pub granted: Vec<PathBuf>,
    pub writable: Vec<PathBuf>,
}

/// A mount on its way into the template.
struct Piece {
    tree: OwnedFd,
    target: PathBuf,
    kind: Kind,
}

/// What was put into a root, by what cells may do with it.
struct Placed {
    by_slot: Vec<CString>,
    readable: Vec<PathBuf>,
    granted: Vec<PathBuf>,
    writable: Vec<PathBuf>,
}

impl Workshop<'_> {
    /// Builds the template of `profile` with `grant` and leaves the caller in it.
    ///
    /// # Errors
    /// A required path that is not there, or the step that failed.
    pub fn build(
        &self,
        profile: &Profile,
        grant: Option<&WorkspaceGrant>,
    ) -> Result<Template, TemplateError> {
        self.fresh_namespace()?;
        let (pieces, links) = gather(profile)?;
        let devices = devices()?;
        let granted = granted(grant)?;
        enter_stage()?;
        skeleton(profile).during("making the root's directories")?;
        let mut readable = Vec::new();
        for (path, text) in links {
            link(&path, &text).map_err(|error| refused(&path, &error))?;
        }
        for piece in pieces.into_iter().chain(devices) {
            readable.push(piece.target.clone());
            piece.place()?;
        }
        let (by_slot, writable) = place_grants(grant, granted)?;
        let grants = grant.iter().flat_map(|grant| &grant.directories);
        let granted = grants.map(|directory| directory.cell.clone()).collect();
        synthetic::etc(Path::new("etc")).during("writing /etc")?;
        synthetic::store(&hidden_here(), &profile.limits).during("writing the hidden store")?;
        self.proc_for_cells(profile.proc)?;
        become_root()?;
        let namespace = self.finish()?;
        self.hold(profile, namespace, Placed { by_slot, readable, granted, writable })
    }

    /// A new copy of the host's mounts, to take pieces from.
    fn fresh_namespace(&self) -> Result<(), TemplateError> {
        setns(&self.base, CloneFlags::CLONE_NEWNS).during("entering the first namespace")?;
        unshare(CloneFlags::CLONE_NEWNS).during("making a mount namespace")
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
                    what: "mounting /proc (parts of the outer /proc are masked)",
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
        namespace: OwnedFd,
        placed: Placed,
    ) -> Result<Template, TemplateError> {
        let masks = match profile.proc {
            ProcView::Own => synthetic::masks(self.proc).during("listing /proc")?,
            ProcView::None => Vec::new(),
        };
        let directory = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let hidden = open(HIDDEN, directory, Mode::empty()).during("opening the hidden store")?;
        let Placed { by_slot, readable, granted, writable } = placed;
        Ok(Template { namespace, hidden, masks, by_slot, readable, granted, writable })
    }

    /// Leaves the caller in a root with nothing in it, and lets the host's mounts go.
    ///
    /// # Errors
    /// The step that failed.
    pub fn close(self) -> Result<(), TemplateError> {
        self.fresh_namespace()?;
        enter_stage()?;
        become_root()?;
        let root = open("/", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            .during("opening the empty root")?;
        set_attributes(root, attribute::RDONLY, Reach::One).during("making the root read-only")
    }
}

/// Symbolic links of the host that a cell gets as links, such as `/bin`.
type Links = Vec<(PathBuf, PathBuf)>;

/// Takes a detached copy of every mount that the profile lists, while the host is in sight.
fn gather(profile: &Profile) -> Result<(Vec<Piece>, Links), TemplateError> {
    let mut pieces = Vec::new();
    let mut links = Vec::new();
    for path in &profile.paths {
        let metadata = match std::fs::symlink_metadata(&path.host) {
            Ok(metadata) => metadata,
            Err(_) if path.presence == Presence::Optional => continue,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(TemplateError::Missing { path: path.host.clone() });
            }
            Err(error) => return Err(refused(&path.host, &error)),
        };
        match path.kind {
            PathKind::Tree if metadata.is_symlink() && path.host == path.cell => {
                let text =
                    std::fs::read_link(&path.host).map_err(|error| refused(&path.host, &error))?;
                links.push((path.cell.clone(), text));
            }
            PathKind::Tree => pieces.push(Piece::take(&path.host, &path.cell)?),
            PathKind::Program => gather_program(path, &mut pieces)?,
        }
    }
    // Parents before what lies in them.
    pieces.sort_by(|one, other| one.target.cmp(&other.target));
    Ok((pieces, links))
}

/// A program with its interpreter and its libraries, each file by itself.
fn gather_program(path: &HostPath, pieces: &mut Vec<Piece>) -> Result<(), TemplateError> {
    pieces.push(Piece::take(&path.host, &path.cell)?);
    let needed = program::libraries(&path.host).map_err(|error| refused(&path.host, &error))?;
    for library in needed {
        pieces.push(Piece::take(&library, &library)?);
    }
    Ok(())
}

impl Piece {
    /// A detached, read-only copy of the mount at `host`.
    fn take(host: &Path, cell: &Path) -> Result<Self, TemplateError> {
        let here = |errno| TemplateError::Path { path: host.to_owned(), errno };
        let piece = Self::take_as_is(host, cell).map_err(here)?;
        let flags = attribute::RDONLY | attribute::NOSUID | attribute::NODEV;
        set_attributes(&piece.tree, flags, Reach::Recursive).map_err(here)?;
        Ok(piece)
    }

    fn take_as_is(host: &Path, cell: &Path) -> Result<Self, Errno> {
        // Resolved here, in our copy of the host's mounts, and opened without following a link.
        let host = host.canonicalize().map_err(|error| errno_of(&error))?;
        let tree = clone_tree(&c_path(&host)?)?;
        let mode = nix::sys::stat::fstat(&tree)?.st_mode;
        let directory = mode & libc::S_IFMT == libc::S_IFDIR;
        let kind = if directory { Kind::Directory } else { Kind::File };
        Ok(Self { tree, target: cell.to_owned(), kind })
    }

    /// Attaches the mount below the stage, where a file or directory is made for it.
    fn place(self) -> Result<(), TemplateError> {
        let here = relative(&self.target);
        stand_in(&here, self.kind).map_err(|error| refused(&self.target, &error))?;
        let target = c_path(&here).during("naming a mount")?;
        attach(&self.tree, &target)
            .map_err(|errno| TemplateError::Path { path: self.target.clone(), errno })
    }
}

fn refused(path: &Path, error: &std::io::Error) -> TemplateError {
    TemplateError::Path { path: path.to_owned(), errno: errno_of(error) }
}

fn devices() -> Result<Vec<Piece>, TemplateError> {
    DEVICES
        .iter()
        .map(|name| {
            let path = Path::new("/dev").join(name);
            let here = |errno| TemplateError::Path { path: path.clone(), errno };
            let piece = Piece::take_as_is(&path, &path).map_err(here)?;
            // Read-only is about the node's own mode and times: writing to the device goes on.
            let flags = attribute::RDONLY | attribute::NOSUID | attribute::NOEXEC;
            set_attributes(&piece.tree, flags, Reach::One).map_err(here)?;
            Ok(piece)
        })
        .collect()
}

/// Copies of the granted directories, taken before the stage hides any of them.
fn granted(grant: Option<&WorkspaceGrant>) -> Result<Vec<Piece>, TemplateError> {
    let mut pieces = Vec::new();
    for directory in grant.iter().flat_map(|grant| &grant.directories) {
        if !directory.by_slot.is_empty() {
            // Made by main, with the cells' ids: attached by descriptor.
            continue;
        }
        let here = |errno| TemplateError::Path { path: directory.host.clone(), errno };
        let piece = Piece::take_as_is(&directory.host, &directory.cell).map_err(here)?;
        set_attributes(&piece.tree, directory.access.attributes(), Reach::Recursive)
            .map_err(here)?;
        pieces.push(piece);
    }
    Ok(pieces)
}

/// Puts granted directories in place: at their path, or in the hidden store by slot.
fn place_grants(
    grant: Option<&WorkspaceGrant>,
    pieces: Vec<Piece>,
) -> Result<(Vec<CString>, Vec<PathBuf>), TemplateError> {
    for piece in pieces {
        piece.place()?;
    }
    let guard = |place: &Path, access: Access| match access {
        Access::ReadOnly => Ok(()),
        Access::ReadWrite => {
            protect::guard(place).map_err(|(path, errno)| TemplateError::Path { path, errno })
        }
    };
    let mut by_slot = Vec::new();
    let mut writable = Vec::new();
    for (index, directory) in grant.iter().flat_map(|grant| &grant.directories).enumerate() {
        if directory.access == Access::ReadWrite {
            writable.push(directory.cell.clone());
        }
        if directory.by_slot.is_empty() {
            guard(&relative(&directory.cell), directory.access)?;
            continue;
        }
        stand_in(&relative(&directory.cell), directory.kind)
            .map_err(|error| refused(&directory.cell, &error))?;
        for (mount, slot) in directory.by_slot.iter().zip(0..) {
            let here = |errno| TemplateError::Path { path: directory.host.clone(), errno };
            let place = place_slot(mount, slot, by_slot.len(), directory.kind).map_err(here)?;
            guard(&place, directory.access)?;
        }
        debug_assert_eq!(index, by_slot.len(), "main prepares all directories of a grant or none");
        by_slot.push(c_path(&directory.cell).during("naming a grant")?);
    }
    Ok((by_slot, writable))
}

fn place_slot(mount: &OwnedFd, slot: Slot, index: usize, kind: Kind) -> Result<PathBuf, Errno> {
    let mut buffer = [0; 64];
    let path = mounts::slot_path(&mut buffer, slot, index)?;
    let path = relative(Path::new(path.to_str().map_err(|_| Errno::EINVAL)?));
    stand_in(&path, kind).map_err(|error| errno_of(&error))?;
    attach(mount, &c_path(&path)?)?;
    Ok(path)
}

/// An absolute path of the cell as a path below the current directory, the stage.
fn relative(path: &Path) -> PathBuf {
    let below = path.strip_prefix("/").unwrap_or(path);
    if below.as_os_str().is_empty() { PathBuf::from(".") } else { below.to_owned() }
}

fn hidden_here() -> PathBuf {
    relative(Path::new(HIDDEN))
}

/// Covers the stage with the filesystem of the new root and goes there.
fn enter_stage() -> Result<(), TemplateError> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), STAGE, Some("tmpfs"), flags, Some("size=8m,nr_inodes=8k,mode=0755"))
        .during("mounting the new root")?;
    nix::unistd::chdir(STAGE).during("entering the new root")
}

/// Makes the stage the root of this namespace and lets the host's mounts go.
fn become_root() -> Result<(), TemplateError> {
    crate::sys::mount::pivot_here().during("changing the root")?;
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

/// Makes a directory and its parents, as others may read them.
pub fn directories(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Makes the empty file or directory that a mount covers.
fn stand_in(path: &Path, kind: Kind) -> std::io::Result<()> {
    match kind {
        Kind::Directory => directories(path),
        Kind::File => path.parent().map_or(Ok(()), directories).and_then(|()| touch(path)),
    }
}

fn touch(path: &Path) -> std::io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(()),
        Err(_) => write_file(path, ""),
    }
}

/// Writes a new file that everybody may read.
pub fn write_file(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o644).open(path)?.write_all(text.as_bytes())
}

fn link(path: &Path, text: &Path) -> std::io::Result<()> {
    let here = relative(path);
    here.parent().map_or(Ok(()), directories)?;
    symlink(text, here)
}

impl Access {
    fn attributes(self) -> u64 {
        let always = attribute::NOSUID | attribute::NODEV;
        match self {
            Self::ReadOnly => always | attribute::RDONLY,
            Self::ReadWrite => always,
        }
    }
}
