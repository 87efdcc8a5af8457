//! Pieces of a root: detached copies of the host's mounts, on their way into a template.

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
use cell::{c_path, sealed};
use model::job::Access;
use model::profile::{HostPath, PathKind, Presence, Profile, SCRIPT_PROGRAMS};
use sys::lookup::{self, Follow};
use sys::mount::{
    Filesystem, Reach, attach, attach_held, attribute, clone_held, clone_tree, open_resolved,
    set_attributes,
};

/// Devices of every cell, bound one by one.
pub(crate) const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Where a process finds the file that it runs.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// A mount on its way into the template.
pub(crate) struct DetachedMount {
    source: Source,
    pub target: PathBuf,
    kind: Kind,
}

/// The source of a mount.
enum Source {
    /// A detached mount.
    Tree(OwnedFd),
    /// A directory of the host, held, to be shown as an overlay.
    Sealed(OwnedFd),
    /// A detached mount of a directory that cannot be one.
    Open(OwnedFd),
}

impl Source {
    /// Makes the mount of it, an overlay with `empty` beneath where it is to be one.
    fn mount(self, empty: &OwnedFd) -> Result<(OwnedFd, Placed), Errno> {
        match self {
            Self::Tree(tree) => Ok((tree, Placed::AsItIs)),
            Self::Open(tree) => Ok((tree, Placed::Open)),
            Self::Sealed(directory) => match sealed::overlay(&directory, empty) {
                Ok((filesystem, mount)) => Ok((mount, Placed::Sealed(filesystem))),
                // For any reason: the cell gets other means against sockets then.
                Err(_) => Ok((read_only(&directory)?, Placed::Open)),
            },
        }
    }
}

/// How a piece stands in its root.
pub(crate) enum Placed {
    AsItIs,
    /// As this overlay.
    Sealed(Filesystem),
    /// As it is, though an overlay was wanted.
    Open,
}

/// Symbolic links of the host that a cell gets as links, such as `/bin`.
pub(crate) type Links = Vec<(PathBuf, PathBuf)>;

/// Takes a detached copy of every mount that the profile lists, while the host is in sight.
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
                let own = own_program(&path.host).filter(|_| error.kind() == PermissionDenied);
                let own = own.ok_or_else(|| refused(&path.host, &error))?;
                let copy = DetachedMount::of_copy(own, &path.cell);
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
    // Parents before what lies in them.
    pieces.sort_by(|one, other| one.target.cmp(&other.target));
    Ok((pieces, links))
}

/// A program with its interpreter and its libraries, each file by itself.
fn gather_program(path: &HostPath, pieces: &mut Vec<DetachedMount>) -> Result<(), TemplateError> {
    pieces.push(DetachedMount::take(&path.host, &path.cell)?);
    let needed = program::libraries(&path.host).map_err(|error| refused(&path.host, &error))?;
    for library in needed {
        pieces.push(DetachedMount::take(&library, &library)?);
    }
    Ok(())
}

impl DetachedMount {
    /// Takes what is at `host`, read-only: a directory as an overlay where `sealed` says so, else a detached
    /// copy of the mount.
    fn take(host: &Path, cell: &Path) -> Result<Self, TemplateError> {
        let here = |errno| TemplateError::Path { path: host.to_owned(), errno };
        // Resolved here, in our copy of the host's mounts, and opened without following a link.
        let resolved = host.canonicalize().map_err(|error| refused(host, &error))?;
        let held = c_path(&resolved).and_then(|path| open_resolved(&path)).map_err(here)?;
        let kind = match file_type(&held).map_err(here)? {
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFREG => Kind::File,
            // One bound by itself would lead to whoever listens on the host.
            _ => return Err(TemplateError::Special { path: host.to_owned() }),
        };
        let source = match kind {
            Kind::Directory if !sealed::is_sealed(&resolved) => {
                Source::Tree(read_only(&held).map_err(here)?)
            }
            // The stage is about to be mounted in it.
            Kind::Directory if Path::new(STAGE).starts_with(&resolved) => {
                Source::Open(read_only(&held).map_err(here)?)
            }
            Kind::Directory => Source::Sealed(held),
            Kind::File => Source::Tree(read_only(&held).map_err(here)?),
        };
        Ok(Self { source, target: cell.to_owned(), kind })
    }

    /// A read-only filesystem with a copy of `program`, which takes the place of the directory that `cell` is in.
    fn of_copy(mut program: File, cell: &Path) -> std::io::Result<Self> {
        let (directory, name) =
            cell.parent().zip(cell.file_name()).ok_or(ErrorKind::InvalidInput)?;
        // Any other directory has more in it, which the copy would cover.
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
        // A mount becomes read-only only when no file on it is open for writing.
        drop(copy);
        set_attributes(&mount, attribute::RDONLY, Reach::One)?;
        Ok(Self {
            source: Source::Tree(mount),
            target: directory.to_owned(),
            kind: Kind::Directory,
        })
    }

    /// The directory of other software in a tree of the distribution's, by itself.
    fn local(tree: &HostPath) -> Result<Option<Self>, TemplateError> {
        let local = Path::new(sealed::LOCAL);
        let is_there = || local.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
        match local.strip_prefix(&tree.host) {
            Ok(below) if !sealed::is_sealed(&tree.host) && is_there() => {
                Self::take(local, &tree.cell.join(below)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Takes a directory or a regular file that was granted: a directory to be read as an overlay, anything else as a
    /// detached copy of the mount.
    pub(crate) fn take_granted(granted: &Granted) -> Result<Self, TemplateError> {
        let Granted { host, cell, access, .. } = granted;
        let here = |errno| TemplateError::Path { path: host.clone(), errno };
        let held = granted.hold().map_err(|errno| GrantError::held(host, errno))?;
        let kind = match file_type(&held).map_err(here)? {
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFREG => Kind::File,
            _ => return Err(TemplateError::Special { path: host.clone() }),
        };
        // The stage is mounted in a directory that it lies in, which then cannot be a layer.
        let holds_stage = Path::new(STAGE).starts_with(host);
        let source = match (access, kind) {
            (Access::ReadOnly, Kind::Directory) if !holds_stage => Source::Sealed(held),
            (Access::ReadOnly, _) => Source::Tree(read_only(&held).map_err(here)?),
            (Access::ReadWrite | Access::Unguarded | Access::Cache, _) => {
                let tree = clone_held(&held).map_err(here)?;
                set_attributes(&tree, attributes(*access), Reach::Recursive).map_err(here)?;
                Source::Tree(tree)
            }
        };
        Ok(Self { source, target: cell.clone(), kind })
    }

    /// Takes a device, at the same path.
    fn device(path: &Path) -> Result<Self, Errno> {
        let source = Source::Tree(clone_tree(&c_path(path)?)?);
        Ok(Self { source, target: path.to_owned(), kind: Kind::File })
    }

    /// Attaches the mount below the stage, where a file or directory is made for it.
    pub(crate) fn place(self, empty: &OwnedFd) -> Result<Placed, TemplateError> {
        let here = relative(&self.target);
        stand_in(&here, self.kind).map_err(|error| refused(&self.target, &error))?;
        let target = c_path(&here).during("naming a mount")?;
        let at = |errno| TemplateError::Path { path: self.target.clone(), errno };
        let (mount, placed) = self.source.mount(empty).map_err(at)?;
        attach(&mount, &target).map_err(at)?;
        Ok(placed)
    }

    /// Attaches the mount of a grant. It may lie within another grant, whose files cells write: no link on the way
    /// leads anywhere.
    pub(crate) fn place_in_grants(self, empty: &OwnedFd) -> Result<Placed, TemplateError> {
        let Self { source, target, kind } = self;
        let at = |errno| TemplateError::Path { path: target.clone(), errno };
        let place = stand_in_without_links(&relative(&target), kind).map_err(at)?;
        let (mount, placed) = source.mount(empty).map_err(at)?;
        attach_held(&mount, &place).map_err(at)?;
        Ok(placed)
    }

    pub(crate) fn set(&self, attributes: u64, reach: Reach) -> Result<(), Errno> {
        let (Source::Tree(mount) | Source::Sealed(mount) | Source::Open(mount)) = &self.source;
        set_attributes(mount, attributes, reach)
    }
}

/// A detached, read-only copy of the mount that is held, with all that is mounted below.
fn read_only(held: &OwnedFd) -> Result<OwnedFd, Errno> {
    let tree = clone_held(held)?;
    let flags = attribute::RDONLY | attribute::NOSUID | attribute::NODEV;
    set_attributes(&tree, flags, Reach::Recursive)?;
    Ok(tree)
}

fn file_type(held: &OwnedFd) -> Result<libc::mode_t, Errno> {
    nix::sys::stat::fstat(held).map(|status| status.st_mode & libc::S_IFMT)
}

/// The second layer of overlays, on the stage.
pub(crate) fn empty_directory() -> std::io::Result<OwnedFd> {
    let path = hidden_here().join("empty");
    directories(&path)?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(open(&path, flags, Mode::empty())?)
}

/// The device that is the controlling terminal of whoever opens it.
const CONTROLLING_TERMINAL: &str = "tty";

/// Takes the devices of a cell; one whose call has a terminal has `/dev/tty` too.
pub(crate) fn devices(profile: &Profile) -> Result<Vec<DetachedMount>, TemplateError> {
    let terminal = profile.terminal.map(|_| CONTROLLING_TERMINAL);
    DEVICES
        .into_iter()
        .chain(terminal)
        .map(|name| {
            let path = Path::new("/dev").join(name);
            let here = |errno| TemplateError::Path { path: path.clone(), errno };
            let piece = DetachedMount::device(&path).map_err(here)?;
            // Read-only is about the node's own mode and times: writing to the device goes on.
            let flags = attribute::RDONLY | attribute::NOSUID | attribute::NOEXEC;
            piece.set(flags, Reach::One).map_err(here)?;
            Ok(piece)
        })
        .collect()
}

/// Opens this program's own file, if `host` is its path. It is reached without its path: a directory on the way may be
/// closed to the supervisor, as root's home is to one that root has started.
fn own_program(host: &Path) -> Option<File> {
    let own = std::fs::read_link(OWN_PROGRAM).ok()?;
    if own == host { File::open(OWN_PROGRAM).ok() } else { None }
}

/// An absolute path of the cell as a path below the current directory, the stage.
pub(crate) fn relative(path: &Path) -> PathBuf {
    let below = path.strip_prefix("/").unwrap_or(path);
    if below.as_os_str().is_empty() { PathBuf::from(".") } else { below.to_owned() }
}

pub(crate) fn hidden_here() -> PathBuf {
    relative(Path::new(HIDDEN))
}

/// Makes a directory and its parents, as others may read them.
pub(crate) fn directories(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Makes the empty file or directory that a mount covers.
pub(crate) fn stand_in(path: &Path, kind: Kind) -> std::io::Result<()> {
    match kind {
        Kind::Directory => directories(path),
        Kind::File => match write_file(path, "") {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            // Most stand in a directory that is there.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                path.parent().map_or(Ok(()), directories)?;
                write_file(path, "")
            }
            made => made,
        },
    }
}

/// Holds the file or directory at a path below the current directory, and makes what is missing of it name by name.
pub(crate) fn stand_in_without_links(path: &Path, kind: Kind) -> Result<OwnedFd, Errno> {
    let held = |parent: BorrowedFd<'_>, name: &CStr| {
        lookup::open(parent, name, libc::O_PATH | libc::O_CLOEXEC, 0, Follow::Nothing)
    };
    let mut place = open(".", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let mut names = path.components().peekable();
    while let Some(name) = names.next() {
        let name = c_path(Path::new(name.as_os_str()))?;
        let is_file = names.peek().is_none() && kind == Kind::File;
        place = match held(place.as_fd(), &name) {
            Err(Errno::ENOENT) => {
                let made = match is_file {
                    true => {
                        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
                        lookup::open(&place, &name, flags, 0o644, Follow::Nothing).map(drop)
                    }
                    false => mkdirat(&place, name.as_c_str(), Mode::from_bits_truncate(0o755)),
                };
                made?;
                held(place.as_fd(), &name)?
            }
            there => there?,
        };
    }
    Ok(place)
}

/// Writes a new file that everybody may read.
pub(crate) fn write_file(path: &Path, text: impl AsRef<[u8]>) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o644).open(path)?.write_all(text.as_ref())
}
