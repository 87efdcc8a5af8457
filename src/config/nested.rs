//! `[nested]` of `cofferdam.toml`: sockets of the host for the profiles that take them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::server::{Reader, Setting};
use model::profile::SocketName;
use profile::document::Mistake;

/// Sockets by name; whether each is one is looked at when it is granted.
pub type SocketSettings = BTreeMap<SocketName, PathBuf>;

/// Sockets of the host that cells may connect to, if their profile has `unix_sockets`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    /// Absolute path of each socket, under the name that cells have it by: `/tmp/mcp-sockets/NAME.sock`. A name has
    /// lower-case letters, digits and dashes, at most 32.
    ///
    /// Default: `{}`. Example: `{ skills = "/run/user/1000/skills.sock" }`.
    sockets: Option<Spanned<BTreeMap<Spanned<String>, Spanned<PathBuf>>>>,
}

/// Returns the sockets that the file names.
pub(super) fn sockets(
    reader: &Reader<'_>,
    written: &Written,
) -> Result<Setting<SocketSettings>, Mistake> {
    let mut sockets = SocketSettings::new();
    for (name, path) in written.sockets.iter().flat_map(|sockets| sockets.get_ref()) {
        let key = SocketName::new(name.get_ref()).ok_or_else(|| {
            let message = "a socket's name is lower-case letters, digits and dashes, at most 32";
            reader.document.mistake(name.span(), message)
        })?;
        if !path.get_ref().is_absolute() {
            return Err(reader.document.mistake(path.span(), "a path must be absolute"));
        }
        sockets.insert(key, path.get_ref().clone());
    }
    Ok(reader.set(written.sockets.as_ref(), sockets.clone(), |_| sockets))
}

/// Returns the sockets in words.
pub(super) fn text(sockets: &SocketSettings) -> String {
    let one = |(name, path): (&SocketName, &PathBuf)| format!("{name} = {}", path.display());
    sockets.iter().map(one).collect::<Vec<_>>().join(", ")
}
