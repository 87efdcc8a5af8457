//! The compiled-in profiles.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::layer::Layer;
use super::resolve::resolve;
use crate::document::Document;
use model::job::ProfileName;
use model::profile::Profile;

/// A file of `sandbox-profiles/`.
struct File {
    name: &'static str,
    /// True for a profile that can only be extended: it has no `exec`, and no call uses it.
    only_extended: bool,
    text: &'static str,
    document: OnceLock<Document>,
    /// `None` if the file has a mistake; the tests parse all files.
    layer: OnceLock<Option<Layer<'static>>>,
}

impl File {
    const fn new(name: &'static str, text: &'static str) -> Self {
        let only_extended = false;
        Self { name, only_extended, text, document: OnceLock::new(), layer: OnceLock::new() }
    }

    const fn for_others(mut self) -> Self {
        self.only_extended = true;
        self
    }
}

static FILES: [File; 14] = [
    File::new("base", include_str!("../sandbox-profiles/base.toml")).for_others(),
    File::new("bash", include_str!("../sandbox-profiles/bash.toml")),
    File::new("bc", include_str!("../sandbox-profiles/bc.toml")),
    File::new("cli", include_str!("../sandbox-profiles/cli.toml")).for_others(),
    File::new("cli-curl", include_str!("../sandbox-profiles/cli-curl.toml")),
    File::new("cli-dig", include_str!("../sandbox-profiles/cli-dig.toml")),
    File::new("cli-file", include_str!("../sandbox-profiles/cli-file.toml")),
    File::new("cli-jq", include_str!("../sandbox-profiles/cli-jq.toml")),
    File::new("cli-net", include_str!("../sandbox-profiles/cli-net.toml")).for_others(),
    File::new("cli-nmap", include_str!("../sandbox-profiles/cli-nmap.toml")),
    File::new("cli-ping", include_str!("../sandbox-profiles/cli-ping.toml")),
    File::new("cli-traceroute", include_str!("../sandbox-profiles/cli-traceroute.toml")),
    File::new("nested", include_str!("../sandbox-profiles/nested.toml")),
    File::new("project-fetch", include_str!("../sandbox-profiles/project-fetch.toml")),
];

impl File {
    fn document(&self) -> &Document {
        self.document.get_or_init(|| {
            Document::shipped(&format!("sandbox-profiles/{}.toml", self.name), self.text)
        })
    }

    /// Parses the file once, for all profiles that extend it.
    fn layer(&'static self) -> Option<&'static Layer<'static>> {
        let read = || {
            let document = self.document();
            Some(Layer::new(document, document.read().ok()?))
        };
        self.layer.get_or_init(read).as_ref()
    }
}

/// Returns the files of the compiled-in profiles.
#[must_use]
pub fn shipped() -> Vec<Document> {
    FILES.iter().map(|file| file.document().clone()).collect()
}

/// Returns the names of the profiles that a call can use.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().filter(|file| !file.only_extended).map(|file| file.name)
}

/// A profile as it is decoded at a start, which takes a tenth of the time of reading its files.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Prepared {
    /// Without its calls, whose numbers depend on the architecture.
    profile: Profile,
    x86_64: Calls,
    aarch64: Calls,
}

/// Numbers of a profile's calls in rising order.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Calls {
    allowed: Vec<u32>,
    quiet: Vec<u32>,
}

/// The profiles that a server without other configuration uses. A test makes these bytes from the files again.
const PREPARED: [(&str, &[u8]); 2] = [
    ("bash", include_bytes!("prepared/bash.postcard")),
    ("bc", include_bytes!("prepared/bc.postcard")),
];

/// Returns a profile. `None` if there is none of this name, or if it has a mistake; the tests read all profiles.
pub(super) fn profile(name: &ProfileName) -> Option<Profile> {
    match PREPARED.iter().find(|(prepared, _)| *prepared == name.as_str()) {
        Some((_, bytes)) => {
            let Prepared { mut profile, x86_64, aarch64 } = postcard::from_bytes(bytes).ok()?;
            let calls = if cfg!(target_arch = "aarch64") { aarch64 } else { x86_64 };
            profile.calls = calls.allowed.into_iter().collect();
            profile.quiet = calls.quiet.into_iter().collect();
            Some(profile)
        }
        None => resolve(name, &chain(name.as_str())?).ok(),
    }
}

/// Returns the chain of a profile: its ancestors' files, the furthest first, and its own. `None` if
/// there is no such profile.
pub(super) fn chain(name: &str) -> Option<Vec<&'static Layer<'static>>> {
    let layer = |wanted: &str| FILES.iter().find(|file| file.name == wanted)?.layer();
    let mut chain = vec![layer(name)?];
    while let Some(extends) = chain.first().and_then(|layer| layer.written.extends.as_ref()) {
        chain.insert(0, layer(extends.get_ref())?);
    }
    Some(chain)
}

#[cfg(test)]
#[path = "shipped_tests.rs"]
mod tests;
