//! Messages between the process that watches a project and the front end, and the parts of a project that they carry.
//!
//! The front end accepts only lists from that process: the settings of the operator stay as they were at the start.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Serialize};

use crate::hooks::POLICY;
use crate::json::take_values;
use crate::tools::ScriptTool;
use crate::{AskedResource, HOOKS, Project, ROOT, ScriptPrompt, ScriptResource, ScriptTemplate};

/// Bytes of the longest message, without its length.
pub const FRAME_BYTES: usize = 128 << 20;
/// Files that are watched at once, for all clients.
pub const WATCHED_FILES: usize = 1024;
/// Maximum length of the path of a watched file, in bytes.
pub const PATH_BYTES: usize = 1024;

/// Values of the longest report: twice those of a project's metadata.
const REPORT_VALUES: usize = 2_000_000;

/// Report of the process that watches a project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum WatchReport {
    /// The project as it is now.
    Lists(Box<Project>),
    /// `register.json` or the directory cannot be used, for this reason: no list can be trusted.
    Broken(String),
    /// The project cannot be read again, for this reason: the last lists stay.
    Unread(String),
    /// These files have another content.
    Updated(Vec<String>),
    /// The order of this number is in force.
    Ordered(u64),
    /// The kernel does not report changes, for this reason: they are polled every two seconds.
    Polled(String),
    /// Nothing is watched, for this reason.
    Unwatched(String),
}

impl WatchReport {
    /// Reads a report, into no more values than are of use.
    ///
    /// # Errors
    /// A text that is no report, or a longer one than there is.
    pub fn read(text: &[u8]) -> serde_json::Result<Self> {
        let text = std::str::from_utf8(text).map_err(serde_json::Error::custom)?;
        take_values(text, &mut { REPORT_VALUES })?;
        let report = serde_json::from_str(text)?;
        match &report {
            Self::Updated(paths) if paths.len() > WATCHED_FILES => {
                Err(serde_json::Error::custom("has more files than are watched"))
            }
            Self::Lists(_)
            | Self::Broken(_)
            | Self::Unread(_)
            | Self::Updated(_)
            | Self::Ordered(_)
            | Self::Polled(_)
            | Self::Unwatched(_) => Ok(report),
        }
    }
}

/// Order to that process: the files whose content is watched, all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchOrder {
    pub number: u64,
    /// By its path in the project, the time in nanoseconds since the epoch from which a change of it counts that came
    /// before the order.
    pub files: BTreeMap<String, u64>,
}

/// Puts the length of a message before it; `None` if it is too long.
pub fn framed(message: &impl Serialize) -> Option<Vec<u8>> {
    let text = serde_json::to_vec(message).ok().filter(|text| text.len() <= FRAME_BYTES)?;
    let length = u32::try_from(text.len()).ok()?;
    Some([&length.to_le_bytes()[..], &text].concat())
}

/// Lists that look different to a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListedChanges {
    pub tools: bool,
    /// Resources or their templates.
    pub resources: bool,
    pub prompts: bool,
}

/// A resource that a client wants to hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchableResource {
    /// A file of the project, by its path.
    File { uri: String, path: String },
    /// It stays the same until the lists change.
    Constant { uri: String },
    /// Its provider alone knows if it changes.
    Unknown { provider: String },
}

impl Project {
    /// Takes over what the operator said about the project as it was before.
    #[must_use]
    pub fn following(mut self, before: &Self) -> Self {
        self.settings = before.settings.clone();
        self.granted = before.granted.clone();
        if before.has_named_roots {
            (self.roots, self.has_named_roots) = (before.roots.clone(), true);
        }
        // While an editor replaces the file, calls are decided by the last version, or refused.
        if before.hooks.contains(&POLICY) && !self.hooks.contains(&POLICY) {
            self.hooks = HOOKS
                .into_iter()
                .filter(|hook| *hook == POLICY || self.hooks.contains(hook))
                .collect();
        }
        if before.is_written { self.written_by_scripts() } else { self }
    }

    /// Returns which lists have changed for a client.
    pub fn listed_changes(&self, before: &Self) -> ListedChanges {
        let tools = same(&self.tools, &before.tools, tool);
        let resources = same(&self.resources, &before.resources, resource)
            && same(&self.templates, &before.templates, template);
        let prompts = same(&self.prompts, &before.prompts, prompt);
        ListedChanges { tools: !tools, resources: !resources, prompts: !prompts }
    }

    /// Finds what a client wants to hear of, by URI or by name.
    pub fn watchable(&self, asked: &str) -> Option<WatchableResource> {
        let AskedResource { uri, provider, file, html, .. } = self.resource(asked)?;
        if html.is_some() || provider == "echo" {
            return Some(WatchableResource::Constant { uri });
        }
        let path = if file.is_empty() { path_of(&uri) } else { Some(file) };
        let is_file = provider == "file" || provider == crate::ui::PROVIDER;
        Some(match path.filter(|path| is_file && path.len() <= PATH_BYTES) {
            Some(path) => WatchableResource::File { uri, path },
            None => WatchableResource::Unknown { provider },
        })
    }
}

/// Compares two lists as a client sees them.
fn same<'l, T, S: PartialEq>(one: &'l [T], other: &'l [T], shown: impl Fn(&'l T) -> S) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| shown(one) == shown(other))
}

/// Parts of a tool that are listed.
fn tool(one: &ScriptTool) -> impl PartialEq + use<'_> {
    let texts = (&one.name, &one.path, &one.description, &one.timeout);
    let schemas = (&one.input_schema, &one.output_schema);
    (texts, schemas, &one.icons, &one.annotations, &one.meta)
}

/// Parts of a resource that are listed.
fn resource(one: &ScriptResource) -> impl PartialEq + use<'_> {
    let texts = (&one.name, &one.description, &one.uri, &one.mime_type);
    (texts, &one.icons, &one.annotations, &one.meta)
}

/// All of a template is listed.
fn template(one: &ScriptTemplate) -> impl PartialEq + use<'_> {
    one
}

/// Parts of a prompt that are listed.
fn prompt(one: &ScriptPrompt) -> impl PartialEq + use<'_> {
    (&one.name, &one.description, &one.arguments, &one.icons, &one.metadata)
}

/// Returns the path in the project that a `file://` URI has, as the provider of files reads it.
fn path_of(uri: &str) -> Option<String> {
    let text = uri.strip_prefix("file://")?;
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next()?).to_digit(16);
        bytes.push(match byte {
            b'%' => u8::try_from(digit()? * 16 + digit()?).ok()?,
            byte => byte,
        });
    }
    let path = String::from_utf8(bytes).ok().filter(|path| !path.contains('\0'))?;
    let below = match path.strip_prefix('/') {
        Some(_) => path.strip_prefix(ROOT)?.strip_prefix('/')?,
        None => &path,
    };
    let parts: Vec<&str> =
        below.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    (!parts.is_empty() && !parts.contains(&"..")).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_project_has_one_path_and_no_other_file_has_one() {
        for (uri, path) in [
            ("file://./resources/a.txt", Some("resources/a.txt")),
            ("file:///workspace/resources//./a%20b", Some("resources/a b")),
            ("file://a", Some("a")),
            ("file:///etc/passwd", None),
            ("file:///workspace", None),
            ("file:///workspaces/a", None),
            ("file:///workspace/../etc/passwd", None),
            ("file://./a/%2e%2e/%2e%2e/b", None),
            ("file://%00", None),
            ("file://%zz", None),
            ("file://%", None),
            ("file://", None),
            ("echo://a", None),
        ] {
            assert_eq!(path_of(uri).as_deref(), path, "{uri}");
        }
    }
}
