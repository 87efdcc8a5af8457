//! Detached copies of the host's mounts, which become part of a template.

use std::ffi::CStr;
use std::fs::File;
use std::io::ErrorKind::{self, PermissionDenied};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, mkdirat};

use super::error::{DuringBuild, GrantError, STAGE, TemplateError, refused};
use super::granted::{Granted, Kind, attributes};
use super::program;
use cell::mounts::HIDDEN;
use cell::{c_path, errno_of, sealed};
use model::job::Access;
use model::profile::{HostPath, PathKind, Presence, Profile, SCRIPT_PROGRAMS};
use sys::lookup::{self, Follow};
use sys::mount::{
    Filesystem, Reach, attach, attach_held, attribute, clone_held, clone_tree, open_resolved,
    set_attributes,
};

/// Devices of every cell, bound one by one.
pub(crate) const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Link to the program of the reading process.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// A mount that will be part of the template.
pub(crate) struct DetachedMount {
    source: Source,
    pub target: PathBuf,
    kind: Kind,
}

/// The source of a mount.
enum Source {
    /// A detached mount.
    Tree(OwnedFd),
    /// A directory of the host that will be shown as an overlay.
    Sealed(OwnedFd),
    /// A detached mount of a directory that cannot be shown as an overlay.
    Open(OwnedFd),
}

impl Source {
    /// Makes the mount; for an overlay, `empty` is its second layer.
    fn mount(self, empty: &OwnedFd) -> Result<(OwnedFd, Placed), Errno> {
        match self {
            Self::Tree(tree) => Ok((tree, Placed::Plain)),
            Self::Open(tree) => Ok((tree, Placed::Open)),
            Self::Sealed(directory) => match sealed::overlay(&directory, empty) {
                Ok((filesystem, mount)) => Ok((mount, Placed::Sealed(filesystem))),
                // Whatever the reason: the cell is kept from the host's sockets by other means
                // then.
                Err(_) => Ok((read_only(&directory)?, Placed::Open)),
            },
        }
    }
}

/// How a mount was placed in its root.
pub(crate) enum Placed {
    Plain,
    /// Shown through this overlay.
    Sealed(Filesystem),
    /// A plain mount, although an overlay was wanted.
    Open,
}

/// Symbolic links of the host that a cell gets as links, such as `/bin`.
pub(crate) type Links = Vec<(PathBuf, PathBuf)>;

/// Takes a detached copy of every mount that the profile lists, while the host's mounts are
/// visible.
pub(crate) fn gather(profile: &Profile) -> Result<(Vec<DetachedMount>, Links), TemplateError> {
    let mut pieces = Vec::new();
    let mut links = Vec::new();
    for path in &profile.paths {
        let metadata = match std::fs::symlink_metadata(&path.host) {
            Ok(metadata) => metadata,
            Err(_) if path.presence == Presence::Optional => continue,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(TemplateError::Missing { path: path.host.clone() });
            }
            Err(error) => {
                let program = own_program(&path.host).filter(|_| error.kind() == PermissionDenied);
                let program = program.ok_or_else(|| refused(&path.host, &error))?;
                let copy = DetachedMount::copy_of(program, &path.cell);
                pieces.push(copy.map_err(|error| refused(&path.host, &error))?);
                continue;
            }
        };
        match path.kind {
            PathKind::Tree if metadata.is_symlink() && path.host == path.cell => {
                let text =
                    std::fs::read_link(&path.host).map_err(|error| refused(&path.host, &error))?;
                links.push((path.cell.clone(), text));
            }
            PathKind::Tree => {
                pieces.push(DetachedMount::take(&path.host, &path.cell)?);
                pieces.extend(DetachedMount::local(path)?);
            }
            PathKind::Program => gather_program(path, &mut pieces)?,
        }
    }
    // Parents before their children.
    pieces.sort_by(|one, other| one.target.cmp(&other.target));
    Ok((pieces, links))
}

/// Adds a program with its interpreter and its libraries, each as a separate file mount.
fn gather_program(path: &HostPath, pieces: &mut Vec<DetachedMount>) -> Result<(), TemplateError> {
    pieces.push(DetachedMount::take(&path.host, &path.cell)?);
    let needed = program::libraries(&path.host).map_err(|error| refused(&path.host, &error))?;
    for library in needed {
        pieces.push(DetachedMount::take(&library, &library)?);
    }
    Ok(())
}

impl DetachedMount {
    /// Takes the file or directory at `host`, read-only: a directory as an overlay if `sealed`
    /// demands it, anything else as a detached copy of the mount.
    fn take(host: &Path, cell: &Path) -> Result<Self, TemplateError> {
        let here = |errno| TemplateError::Path { path: host.to_owned(), errno };
        // Resolved here, in our copy of the host's mounts, and opened without following links.
        let resolved = host.canonicalize().map_err(|error| refused(host, &error))?;
        let held = c_path(&resolved).and_then(|path| open_resolved(&path)).map_err(here)?;
        let kind = match file_type(&held).map_err(here)? {
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFREG => Kind::File,
            // Bound on its own, it would connect to the host's listener.
            _ => return Err(TemplateError::Special { path: host.to_owned() }),
        };
        let source = match kind {
            Kind::Directory if !sealed::is_sealed(&resolved) => {
                Source::Tree(read_only(&held).map_err(here)?)
            }
            // The stage will be mounted in this directory.
            Kind::Directory if Path::new(STAGE).starts_with(&resolved) => {
                Source::Open(read_only(&held).map_err(here)?)
            }
            Kind::Directory => Source::Sealed(held),
            Kind::File => Source::Tree(read_only(&held).map_err(here)?),
        };
        Ok(Self { source, target: cell.to_owned(), kind })
    }

    /// Makes a read-only filesystem with a copy of `program`, to be mounted over the directory of
    /// `cell`.
    fn copy_of(mut program: File, cell: &Path) -> std::io::Result<Self> {
        let (directory, name) =
            cell.parent().zip(cell.file_name()).ok_or(ErrorKind::InvalidInput)?;
        // The copy would hide the other files of any other directory.
        if directory != Path::new(SCRIPT_PROGRAMS) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let filesystem = Filesystem::open(c"tmpfs")?;
        filesystem.set_to(c"mode", c"0755")?;
        filesystem.create()?;
        let mount = filesystem.mount(attribute::NOSUID | attribute::NODEV)?;
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_CLOEXEC;
        let name = c_path(Path::new(name))?;
        let mut copy = File::from(lookup::open(&mount, &name, flags, 0o755, Follow::Nothing)?);
        std::io::copy(&mut program, &mut copy)?;
        // A mount can become read-only only while no file on it is open for writing.
        drop(copy);
        set_attributes(&mount, attribute::RDONLY, Reach::One)?;
        Ok(Self {
            source: Source::Tree(mount),
            target: directory.to_owned(),
            kind: Kind::Directory,
        })
    }

    /// Takes the directory for locally installed software below a distribution's directory, as a
    /// separate mount.
    fn local(tree: &HostPath) -> Result<Option<Self>, TemplateError> {
        let local = Path::new(sealed::LOCAL);
        let exists = || local.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
        match local.strip_prefix(&tree.host) {
            Ok(below) if !sealed::is_sealed(&tree.host) && exists() => {
                Self::take(local, &tree.cell.join(below)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Takes a granted directory or regular file: a read-only directory as an overlay, anything
    /// else as a detached copy of the mount.
    pub(crate) fn take_granted(granted: &Granted) -> Result<Self, TemplateError> {
        let Granted { host, cell, access, .. } = granted;
        let here = |errno| TemplateError::Path { path: host.clone(), errno };
        let held = granted.hold().map_err(|errno| GrantError::held(host, errno))?;
        let kind = match file_type(&held).map_err(here)? {
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFREG => Kind::File,
            _ => return Err(TemplateError::Special { path: host.clone() }),
        };
        // The stage is mounted in this directory, which therefore cannot be a layer.
        let holds_stage = Path::new(STAGE).starts_with(host);
        let source = match (access, kind) {
            (Access::ReadOnly, Kind::Directory) if !holds_stage => Source::Sealed(held),
            (Access::ReadOnly, _) => Source::Tree(read_only(&held).map_err(here)?),
            // Shown through its overlay only, never by itself.
            (Access::Layer, _) => return Err(here(Errno::EINVAL)),
            (Access::ReadWrite | Access::Unguarded | Access::Repository | Access::Cache, _) => {
                let tree = clone_held(&held).map_err(here)?;
                set_attributes(&tree, attributes(*access), Reach::Recursive).map_err(here)?;
                Source::Tree(tree)
            }
        };
        Ok(Self { source, target: cell.clone(), kind })
    }

    /// Takes the overlay of a layer.
    pub(crate) fn of_layer(overlay: &OwnedFd, cell: &Path) -> Result<Self, Errno> {
        let tree = overlay.try_clone().map_err(|error| errno_of(&error))?;
        Ok(Self { source: Source::Tree(tree), target: cell.to_owned(), kind: Kind::Directory })
    }

    /// Takes a device, for the same path.
    fn device(path: &Path) -> Result<Self, Errno> {
        let source = Source::Tree(clone_tree(&c_path(path)?)?);
        Ok(Self { source, target: path.to_owned(), kind: Kind::File })
    }

    /// Attaches the mount below the stage, and creates its mount point.
    pub(crate) fn place(self, empty: &OwnedFd) -> Result<Placed, TemplateError> {
        let here = relative(&self.target);
        stand_in(&here, self.kind).map_err(|error| refused(&self.target, &error))?;
        let target = c_path(&here).during("naming a mount")?;
        let at = |errno| TemplateError::Path { path: self.target.clone(), errno };
        let (mount, placed) = self.source.mount(empty).map_err(at)?;
        attach(&mount, &target).map_err(at)?;
        Ok(placed)
    }

    /// Attaches the mount of a grant. If the grant lies inside another one, cells can write to
    /// that: links on the path are not followed.
    pub(crate) fn place_in_grants(self, empty: &OwnedFd) -> Result<Placed, TemplateError> {
        let Self { source, target, kind } = self;
        let at = |errno| TemplateError::Path { path: target.clone(), errno };
        let target = stand_in_without_links(&relative(&target), kind).map_err(at)?;
        let (mount, placed) = source.mount(empty).map_err(at)?;
        attach_held(&mount, &target).map_err(at)?;
        Ok(placed)
    }

    pub(crate) fn set(&self, attributes: u64, reach: Reach) -> Result<(), Errno> {
        let (Source::Tree(mount) | Source::Sealed(mount) | Source::Open(mount)) = &self.source;
        set_attributes(mount, attributes, reach)
    }
}

/// Makes a detached, read-only copy of a held mount, including the mounts below it.
pub(crate) fn read_only(held: &OwnedFd) -> Result<OwnedFd, Errno> {
    let tree = clone_held(held)?;
    let flags = attribute::RDONLY | attribute::NOSUID | attribute::NODEV;
    set_attributes(&tree, flags, Reach::Recursive)?;
    Ok(tree)
}

fn file_type(held: &OwnedFd) -> Result<libc::mode_t, Errno> {
    nix::sys::stat::fstat(held).map(|status| status.st_mode & libc::S_IFMT)
}

/// Makes the second layer of overlays, on the stage.
pub(crate) fn empty_directory() -> std::io::Result<OwnedFd> {
    let path = hidden_here().join("empty");
    directories(&path)?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(open(&path, flags, Mode::empty())?)
}

/// The device of the opening process's controlling terminal.
const CONTROLLING_TERMINAL: &str = "tty";
const CONTROLLING_TERMINAL_PATH: &str = "/dev/tty";

/// Takes the devices of a cell, including `/dev/tty` if its programs may have a terminal.
pub(crate) fn devices(profile: &Profile) -> Result<Vec<DetachedMount>, TemplateError> {
    // A container may lack it.
    let has_tty = profile.has_tty_device() && Path::new(CONTROLLING_TERMINAL_PATH).exists();
    let terminal = has_tty.then_some(CONTROLLING_TERMINAL);
    DEVICES
        .into_iter()
        .chain(terminal)
        .map(|name| {
            let path = Path::new("/dev").join(name);
            let here = |errno| TemplateError::Path { path: path.clone(), errno };
            let piece = DetachedMount::device(&path).map_err(here)?;
            // Read-only protects the node's mode and times; writing to the device still works.
            let flags = attribute::RDONLY | attribute::NOSUID | attribute::NOEXEC;
            piece.set(flags, Reach::One).map_err(here)?;
            Ok(piece)
        })
        .collect()
}

/// Opens the program of this process if `host` is its path. The path itself may be inaccessible to
/// the supervisor, such as root's home directory.
fn own_program(host: &Path) -> Option<File> {
    let path = std::fs::read_link(OWN_PROGRAM).ok()?;
    if path == host { File::open(OWN_PROGRAM).ok() } else { None }
}

/// Converts an absolute path of the cell to one relative to the current directory, the stage.
pub(crate) fn relative(path: &Path) -> PathBuf {
    let below = path.strip_prefix("/").unwrap_or(path);
    if below.as_os_str().is_empty() { PathBuf::from(".") } else { below.to_owned() }
}

pub(crate) fn hidden_here() -> PathBuf {
    relative(Path::new(HIDDEN))
}

/// Makes a directory and its parents, readable by others.
pub(crate) fn directories(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Makes the empty file or directory that serves as a mount point.
pub(crate) fn stand_in(path: &Path, kind: Kind) -> std::io::Result<()> {
    match kind {
        Kind::Directory => directories(path),
        Kind::File => match write_file(path, "") {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            // Usually its directory exists.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                path.parent().map_or(Ok(()), directories)?;
                write_file(path, "")
            }
            result => result,
        },
    }
}

/// Opens the file or directory at a path below the current directory. Creates missing parts one by
/// one.
pub(crate) fn stand_in_without_links(path: &Path, kind: Kind) -> Result<OwnedFd, Errno> {
    let open_part = |parent: BorrowedFd<'_>, name: &CStr| {
        lookup::open(parent, name, libc::O_PATH | libc::O_CLOEXEC, 0, Follow::Nothing)
    };
    let mut current = open(".", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut names = path.components().peekable();
    while let Some(name) = names.next() {
        let name = c_path(Path::new(name.as_os_str()))?;
        let is_file = names.peek().is_none() && kind == Kind::File;
        current = match open_part(current.as_fd(), &name) {
            Err(Errno::ENOENT) => {
                let made = match is_file {
                    true => {
                        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
                        lookup::open(&current, &name, flags, 0o644, Follow::Nothing).map(drop)
                    }
                    false => mkdirat(&current, name.as_c_str(), Mode::from_bits_truncate(0o755)),
                };
                made?;
                open_part(current.as_fd(), &name)?
            }
            result => result?,
        };
    }
    Ok(current)
}

/// Writes a new file that all users may read.
pub(crate) fn write_file(path: &Path, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o644).open(path)?.write_all(text.as_ref())
}
