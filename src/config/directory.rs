//! Finds and reads the directory that configures cofferdam: only files that no other user can write.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{ConfigError, HostContext, Origin};
use crate::document::Document;
use model::accounts;

/// Longest configuration file in bytes (1 MiB).
const FILE_BYTES: u64 = 1 << 20;
/// Write permission for the group and for others.
const OTHERS_WRITE: u32 = 0o022;
/// Any permission for the group or for others.
const OTHERS: u32 = 0o077;
/// Only owners can rename or remove what is in such a directory.
const STICKY: u32 = 0o1000;

/// Contents of a configuration directory; each part is optional.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub server: Option<Document>,
    pub policies: Vec<Document>,
    pub profiles: Vec<Document>,
}

/// Finds the first place that exists. Places named on purpose must exist.
pub(super) fn find(explicit: Option<&Path>, host: &HostContext) -> Result<Origin, ConfigError> {
    if let Some(path) = explicit {
        return named(path).map(Origin::Argument);
    }
    if let Some(path) = set(host.cofferdam_config.as_ref()) {
        // A relative value would mean another directory wherever cofferdam is started.
        if !path.is_absolute() {
            return Err(ConfigError::Relative { path });
        }
        return named(&path).map(Origin::Environment);
    }
    // The XDG specification: a relative value is ignored, an absent one means ~/.config.
    let xdg = set(host.xdg_config_home.as_ref())
        .or_else(|| set(host.home.as_ref()).map(|home| home.join(".config")))
        .filter(|base| base.is_absolute())
        .map(|base| base.join("cofferdam"));
    if let Some(path) = xdg.filter(|path| path.is_dir()) {
        return named(&path).map(Origin::User);
    }
    if host.system.is_dir() {
        return named(&host.system).map(Origin::System);
    }
    Ok(Origin::Embedded)
}

fn set(value: Option<&OsString>) -> Option<PathBuf> {
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the directory without symbolic links, so that what is checked is what is read.
fn named(path: &Path) -> Result<PathBuf, ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    let path = fs::canonicalize(path).map_err(read)?;
    if path.is_dir() { Ok(path) } else { Err(ConfigError::NotADirectory { path }) }
}

/// Reads a directory that [`find`] returned.
pub(super) fn read(directory: &Path, euid: u32) -> Result<Files, ConfigError> {
    check_ancestors(directory, euid)?;
    check_directory(directory, euid)?;
    let server = directory.join("cofferdam.toml");
    Ok(Files {
        server: match server.symlink_metadata() {
            Ok(_) => Some(file(&server, euid)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(ConfigError::Read { path: server, source }),
        },
        policies: files(&directory.join("policies"), euid)?,
        profiles: files(&directory.join("sandbox-profiles"), euid)?,
    })
}

/// Reads one file that was named by itself, its links resolved.
pub(super) fn single(path: &Path, euid: u32) -> Result<Document, ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    let path = fs::canonicalize(path).map_err(read)?;
    check_ancestors(&path, euid)?;
    file(&path, euid)
}

/// Reads one file that holds a secret, which no other user may read.
pub(super) fn secret(path: &Path, euid: u32) -> Result<Document, ConfigError> {
    let document = single(path, euid)?;
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(read)?.mode();
    match mode & OTHERS {
        0 => Ok(document),
        _ => Err(ConfigError::Readable { path: path.to_owned() }),
    }
}

/// Returns the `.toml` files of one directory, by name; an empty list if it does not exist.
fn files(directory: &Path, euid: u32) -> Result<Vec<Document>, ConfigError> {
    let read = |source| ConfigError::Read { path: directory.to_owned(), source };
    match directory.symlink_metadata() {
        Ok(_) => check_directory(directory, euid)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(read(source)),
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|extension| extension == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| file(path, euid)).collect()
}

/// Reads one file. Type, owner and mode are those of the open file, not of a name that could change meanwhile.
fn file(path: &Path, euid: u32) -> Result<Document, ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    // The open of a FIFO, or of a device, could wait or have an effect; its kind is looked at first, and again once open.
    if !fs::metadata(path).map_err(read)?.is_file() {
        return Err(ConfigError::NotAFile { path: path.to_owned() });
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(read)?;
    let metadata = file.metadata().map_err(read)?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES {
        return Err(ConfigError::NotAFile { path: path.to_owned() });
    }
    check_ours(path, &metadata, euid)?;
    let mut text = String::new();
    let length = file.take(FILE_BYTES + 1).read_to_string(&mut text).map_err(read)?;
    // It may have grown since.
    if u64::try_from(length).is_ok_and(|length| length > FILE_BYTES) {
        return Err(ConfigError::NotAFile { path: path.to_owned() });
    }
    Ok(Document::new(&path.display().to_string(), &text).with_home(accounts::home()))
}

fn check_directory(path: &Path, euid: u32) -> Result<(), ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(read)?;
    if !metadata.is_dir() {
        return Err(ConfigError::NotADirectory { path: path.to_owned() });
    }
    check_ours(path, &metadata, euid)
}

fn check_ours(path: &Path, metadata: &Metadata, euid: u32) -> Result<(), ConfigError> {
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Err(ConfigError::Writable { path: path.to_owned() });
    }
    check_owner(path, metadata, euid)
}

fn check_owner(path: &Path, metadata: &Metadata, euid: u32) -> Result<(), ConfigError> {
    let owner = metadata.uid();
    if owner == 0 || owner == euid {
        return Ok(());
    }
    Err(ConfigError::Owner { path: path.to_owned(), owner })
}

/// Checks the directories above: a user who can write to one could replace this configuration.
fn check_ancestors(directory: &Path, euid: u32) -> Result<(), ConfigError> {
    for path in directory.ancestors().skip(1) {
        let read = |source| ConfigError::Read { path: path.to_owned(), source };
        let metadata = fs::metadata(path).map_err(read)?;
        let shared = metadata.mode() & OTHERS_WRITE != 0 && metadata.mode() & STICKY == 0;
        if shared {
            return Err(ConfigError::Writable { path: path.to_owned() });
        }
        check_owner(path, &metadata, euid)?;
    }
    Ok(())
}
