//! `[nested]` of `cofferdam.toml`: sockets of the host for the profiles that take them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml::Spanned;

use super::settings::Kind;
use crate::document::{Item, Read, ReadError};
use model::profile::SocketName;

/// Sockets by name. The type of each file is checked when it is granted.
pub type SocketSettings = BTreeMap<SocketName, PathBuf>;

type Written = BTreeMap<Spanned<String>, Spanned<PathBuf>>;

/// Sockets of the host by name.
pub struct SocketPaths;

impl Kind for SocketPaths {
    type Value = SocketSettings;
    type Written = Written;

    fn read(item: Item<'_>) -> Result<SocketSettings, ReadError> {
        let one = |(name, path): (Spanned<String>, Spanned<PathBuf>)| {
            let key = SocketName::new(name.get_ref()).ok_or_else(|| {
                let message =
                    "a socket's name is lower-case letters, digits and dashes, at most 32";
                ReadError::new(name.span(), message)
            })?;
            match path.get_ref().is_absolute() {
                true => Ok((key, path.into_inner())),
                false => Err(ReadError::new(path.span(), "a path must be absolute")),
            }
        };
        Written::read(item)?.into_iter().map(one).collect()
    }

    fn show(sockets: &SocketSettings) -> String {
        let one = |(name, path): (&SocketName, &PathBuf)| format!("{name} = {}", path.display());
        sockets.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}
