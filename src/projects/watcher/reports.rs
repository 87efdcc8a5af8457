//! Messages between the process that watches a project and the front end, and the parts of a project that they carry.
//!
//! The front end accepts only lists from that process: the settings of the operator stay as they were at the start.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Serialize};

use crate::json::take_values;
use crate::{Project, ScriptPrompt, ScriptResource, ScriptTemplate, ScriptTool};

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
        if let Self::Updated(paths) = &report
            && paths.len() > WATCHED_FILES
        {
            return Err(serde_json::Error::custom("has more files than are watched"));
        }
        Ok(report)
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

impl ListedChanges {
    /// Compares the lists of a project with those of an earlier reading, as a client sees them.
    pub fn between(before: &Project, now: &Project) -> Self {
        let resources = same(&now.resources, &before.resources, resource)
            && same(&now.templates, &before.templates, template);
        Self {
            tools: !same(&now.tools, &before.tools, tool),
            resources: !resources,
            prompts: !same(&now.prompts, &before.prompts, prompt),
        }
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
