//! The user's directory of layers: a layer is made by the first start that grants its directory with
//! `--cow`, taken again by later ones, and removed once it has no changes left.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{Flock, open, openat};
use nix::sys::stat::{Mode, fstat, mkdirat};
use sha2::{Digest, Sha256};

use super::files::{DIRECTORY, Identity, look, open_directory_at};
use super::layer::{Layer, begin, read_base};
use super::lock::lock;
use super::records::Stopped;
use super::size::{Excess, LayerLimits, excess};
use crate::commands::error::CliError;
use crate::commands::format::{plain, shell_word};
use cell::{c_path, errno_of};
use model::accounts;
use model::units::Size;

/// Maximum number of layers of one directory.
const MAX_LAYERS: u8 = 32;
/// Attempts to lock a layer that reviews remove meanwhile.
const MAX_REMOVALS: u8 = 10;

/// Returns the user's directory of layers (XDG Base Directory Specification, `XDG_STATE_HOME`).
pub(crate) fn directory() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let named = named.filter(|path| path.is_absolute());
    let state = named.or_else(|| Some(accounts::home()?.join(".local/state")))?;
    Some(state.join("cofferdam/layers"))
}

/// Takes a layer for cells: one of the directory that no other start uses, or a new one. With a
/// `chosen` one, only that. The layer keeps the names that the operator `guards`, for its review.
///
/// # Errors
/// The reason why changes cannot be kept.
pub(crate) fn take(
    host: &Path,
    chosen: Option<&str>,
    guards: &[Vec<u8>],
    limits: LayerLimits,
) -> Result<Layer, CliError> {
    let failed = |errno| cannot_be_made(host, errno);
    let layers = create_directory().map_err(failed)?;
    let held = open_directory_at(host).map_err(failed)?;
    let status = fstat(&held).map_err(failed)?;
    let identity = Identity::of(&held).map_err(failed)?;
    for number in 1..=MAX_LAYERS {
        let id = format!("{}-{number}", label(host));
        if chosen.is_some_and(|chosen| chosen != id) {
            continue;
        }
        let name = c_path(id.as_ref()).map_err(failed)?;
        if chosen.is_some() && look(&layers.directory, &name).map_err(failed)?.is_none() {
            continue;
        }
        let Some((directory, path, lock)) = layers.locked(&id).map_err(failed)? else { continue };
        let base = match read_base(&directory) {
            Ok(base) => Some(base),
            Err(Errno::ENOENT) if chosen.is_some() => continue,
            Err(Errno::ENOENT) => None,
            // Written by another version, or by hand: it is left as it is.
            Err(_) => continue,
        };
        // The directory was replaced: the changes are to another one.
        if base.as_ref().is_some_and(|base| !base.is_of(host, identity)) {
            continue;
        }
        let base = match base {
            Some(base) => base,
            None => begin(&directory, host, identity, &status).map_err(failed)?,
        };
        let mut layer = Layer { id, path, directory, base, lock: Some(lock), applying: None };
        layer.make_ready(&status, guards).map_err(|stopped| not_ready(host, &layer.id, stopped))?;
        // A person who names it has seen what it is, and `review --commits` brings something out.
        if chosen.is_none() {
            check_size(&layer, limits)?;
        }
        return Ok(layer);
    }
    if let Some(chosen) = chosen {
        let chosen = plain(chosen);
        let message = format!("--layer: `{chosen}` is in use, or is no layer of the directory");
        return Err(CliError::new(message).with_hint("cofferdam review --list shows the layers"));
    }
    Err(failed(Errno::EUSERS).with_hint("cofferdam review --list shows the layers; discard some"))
}

fn not_ready(host: &Path, id: &str, stopped: Stopped) -> CliError {
    match stopped {
        Stopped::Errno(errno) => cannot_be_made(host, errno),
        Stopped::OtherVersion | Stopped::Damaged | Stopped::StagingLost(_) => CliError::new(
            format!("--cow: an interrupted apply of the layer {id} cannot be ended: {stopped}"),
        )
        .with_hint(format!("cofferdam review --layer {id} --discard removes it")),
    }
}

/// Checks that a layer is not above its limits.
fn check_size(layer: &Layer, limits: LayerLimits) -> Result<(), CliError> {
    let measured = layer.upper().and_then(|upper| excess(&upper, limits));
    let found = measured.map_err(|errno| {
        CliError::new(format!("--cow: the layer {} cannot be measured: {errno}", layer.id))
            .with_hint(format!("cofferdam review --layer {} shows it", layer.id))
    })?;
    found.map_or(Ok(()), |excess| Err(too_large(layer, excess, limits)))
}

fn too_large(layer: &Layer, excess: Excess, limits: LayerLimits) -> CliError {
    let LayerLimits { bytes, files } = limits;
    let (what, key) = match excess {
        Excess::Bytes => (format!("takes more than {}", Size(bytes)), "layer_bytes"),
        Excess::Files => (format!("has more than {files} files"), "layer_files"),
    };
    let path = layer.base.path();
    CliError::new(format!("--cow: the layer {} {what}, the limit of a layer", layer.id)).with_hint(format!(
        "cofferdam review {} shows, applies or discards its changes; `[workspace] {key}` sets the limit",
        shell_word(&path.display().to_string())
    ))
}

fn cannot_be_made(host: &Path, errno: Errno) -> CliError {
    let path = plain(&host.display().to_string());
    let error = CliError::new(format!("--cow: no layer can be made for `{path}`: {errno}"));
    if errno == Errno::EOPNOTSUPP {
        return error.with_hint(
            "the filesystem of the layers has no user attributes; set XDG_STATE_HOME to a directory on ext4, xfs \
             or btrfs",
        );
    }
    if errno == Errno::EPERM {
        return error.with_hint("the directory of the layers must belong to you alone");
    }
    error
}

/// Removes the layers that no start has used for this many days, and in which nothing has changed since
/// then. Says which; layers of an interrupted apply stay.
pub(crate) fn remove_unused(days: u32) {
    let all = match all() {
        Ok(all) => all,
        Err(errno) => return eprintln!("cofferdam: the layers cannot be listed: {errno}"),
    };
    for mut layer in all.layers {
        let id = layer.id.clone();
        let directory = plain(&layer.base.path().display().to_string());
        match layer.lock_unused(days).and_then(|is_unused| match is_unused {
            true => layer.discard().map(|()| true),
            false => Ok(false),
        }) {
            Ok(true) => eprintln!(
                "cofferdam: removed the layer {id} with the changes to {directory}: not used for {days} days"
            ),
            Ok(false) => {}
            Err(errno) => eprintln!("cofferdam: the layer {id} cannot be removed: {errno}"),
        }
    }
}

/// All layers of the user, and the names in their directory that are no layer which this version can
/// read.
#[derive(Debug, Default)]
pub(crate) struct All {
    pub layers: Vec<Layer>,
    pub unreadable: Vec<String>,
}

/// Opens all layers, without locking them.
///
/// # Errors
/// The directory of the layers cannot be read.
pub(crate) fn all() -> Result<All, Errno> {
    let Some(path) = directory() else { return Ok(All::default()) };
    let layers = match Layers::open(&path) {
        Err(Errno::ENOENT) => return Ok(All::default()),
        layers => layers?,
    };
    let mut ids = Vec::new();
    for entry in Dir::openat(&layers.directory, ".", DIRECTORY, Mode::empty())?.into_iter() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            ids.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        }
    }
    ids.sort();
    let mut all = All::default();
    for name in ids {
        let opened = openat(&layers.directory, name.as_os_str(), DIRECTORY, Mode::empty());
        let read = opened.and_then(|directory| Ok((read_base(&directory)?, directory)));
        match (read, name.to_str()) {
            (Ok((base, directory)), Some(id)) => {
                let path = layers.path.join(id);
                all.layers.push(Layer {
                    id: id.to_owned(),
                    path,
                    directory,
                    base,
                    lock: None,
                    applying: None,
                });
            }
            // A layer that is being made or removed.
            (Err(Errno::ENOENT), _) => {}
            (Ok(_) | Err(_), _) => all.unreadable.push(name.to_string_lossy().into_owned()),
        }
    }
    Ok(all)
}

/// The directory of the layers, which is this user's alone.
struct Layers {
    directory: OwnedFd,
    /// Path without links.
    path: PathBuf,
}

impl Layers {
    fn open(path: &Path) -> Result<Self, Errno> {
        let path = path.canonicalize().map_err(|error| errno_of(&error))?;
        let directory = open(&path, DIRECTORY, Mode::empty())?;
        let status = fstat(&directory)?;
        let is_private =
            status.st_uid == nix::unistd::geteuid().as_raw() && status.st_mode & 0o077 == 0;
        if is_private { Ok(Self { directory, path }) } else { Err(Errno::EPERM) }
    }

    /// Makes the directory of a layer, if it is missing, and locks it. `None` if a start or another
    /// review uses the layer.
    fn locked(&self, id: &str) -> Result<Option<(OwnedFd, PathBuf, Flock<File>)>, Errno> {
        for _ in 0..MAX_REMOVALS {
            match mkdirat(&self.directory, id, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
            let locked = openat(&self.directory, id, DIRECTORY, Mode::empty())
                .and_then(|directory| Ok((lock(&directory)?, directory)));
            match locked {
                Ok((lock, directory)) => {
                    return Ok(lock.map(|lock| (directory, self.path.join(id), lock)));
                }
                // A review has just removed the layer.
                Err(Errno::ENOENT | Errno::ESTALE) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }
}

fn create_directory() -> Result<Layers, Errno> {
    let path = directory().ok_or(Errno::ENOENT)?;
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(&path).map_err(|error| errno_of(&error))?;
    Layers::open(&path)
}

/// Returns the first part of the ids of a directory's layers: its name in plain characters, and a
/// hash of its path.
fn label(host: &Path) -> String {
    let name = host.file_name().unwrap_or(OsStr::new("root")).as_bytes();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let name =
        name.iter().take(40).map(|byte| if is_plain(*byte) { char::from(*byte) } else { '_' });
    let digest = Sha256::digest(host.as_os_str().as_bytes());
    let digest: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{digest}", name.collect::<String>())
}
