//! The reading of a resource: which one is asked for, and what its provider's output is.

use serde_json::{Map, Value};

use crate::launch::{self, ScriptLaunch};
use crate::output::{INVALID, NOT_FOUND, ScriptEnd, ScriptError, ScriptOutput};
use crate::resources::{PageSource, ScriptResource, percent_decoded, provider};
use crate::stream::StreamLimits;
use crate::watcher::reports::PATH_BYTES;
use crate::{Project, ROOT, ui};

/// Length of the longest URI in bytes.
const URI_BYTES: usize = 4096;
/// Bytes in which a NUL marks a content as binary.
const LOOKED_AT: usize = 1024;
/// Kinds of content that are no text, by the beginning of their MIME type.
const BINARY: [&str; 4] = ["image/", "audio/", "video/", "application/octet-stream"];

/// A resource that a client asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedResource {
    pub uri: String,
    /// Name of the program that reads it.
    pub provider: String,
    pub mime_type: String,
    /// File of a page, in the project; empty for all others.
    pub(crate) file: String,
    /// HTML of a page that was made when the project was read.
    pub html: Option<String>,
    pub meta: Option<Map<String, Value>>,
}

/// Content of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceContent {
    Text(String),
    Bytes(Vec<u8>),
}

/// A resource that a client wants to be notified of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchableResource {
    /// A file of the project, by its path.
    File { uri: String, path: String },
    /// Content that stays the same until the lists change.
    Constant { uri: String },
    /// Content that can change without a notice: only its provider reads it.
    Unknown { provider: String },
}

impl ScriptLaunch {
    /// Prepares the reading of a resource.
    pub fn reading(project: &Project, asked: &AskedResource, mark: String) -> Self {
        let mut env = launch::variables(project);
        env.extend(launch::named(&[
            ("MCP_RESOURCE_URI", &asked.uri),
            ("MCP_RESOURCES_ROOTS", ROOT),
            ("MCPBASH_PROVIDERS_DIR", &format!("{ROOT}/{}", project.layout.providers)),
            ("COFFERDAM_PROVIDER", &asked.provider),
            ("COFFERDAM_PAGE", &asked.file),
        ]));
        let settings = &project.settings;
        let limits = StreamLimits { output: settings.resource_bytes, ..settings.stream };
        let downloads = launch::downloads(project, &mut env);
        Self {
            words: launch::runner("provider", None),
            stdin: launch::input(&mark, "", &[]),
            downloads,
            ..Self::alone(env, settings.default_seconds, mark, limits)
        }
    }

    /// Makes the content of a resource from the output of its provider.
    ///
    /// # Errors
    /// The error that the provider's exit code stands for, or the end of its cell.
    pub fn content(
        &self,
        asked: &AskedResource,
        output: &ScriptOutput,
    ) -> Result<ResourceContent, ScriptError> {
        let failed = |message: &str| Err(ScriptError::internal(message));
        match &output.end {
            ScriptEnd::Exited => {}
            ScriptEnd::TimedOut | ScriptEnd::Idle => {
                return failed("Resource was not read in its time");
            }
            ScriptEnd::Cancelled => return failed("Reading was cancelled"),
            ScriptEnd::Stopped(how) => return failed(how),
        }
        let max = self.limits.output;
        let Some(report) = &output.report else { return Err(too_long(max)) };
        let Some(report) = self.report(report) else {
            return failed("Resource could not be read");
        };
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        match report.exit_code {
            0 if report.output.len() > max => Err(too_long(max)),
            0 => Ok(content(&asked.mime_type, report.output)),
            2 => failed("Resource outside allowed roots"),
            3 => Err(ScriptError::new(NOT_FOUND, "Resource not found")),
            4 => Err(ScriptError::new(INVALID, "Invalid resource URI")),
            6 => failed("Resource is too large"),
            _ => failed(&format!("Resource could not be fetched: {line}")),
        }
    }
}

fn too_long(max: usize) -> ScriptError {
    ScriptError::internal(format!("Resource exceeded {max} bytes"))
}

impl Project {
    /// Finds what a client asks for by URI or by name: a resource, or an address that a template describes.
    pub fn resource(&self, asked: &str) -> Option<AskedResource> {
        let by = |is: &dyn Fn(&ScriptResource) -> bool| self.resources.iter().find(|one| is(one));
        // A resource whose name is the address of another cannot be read by it.
        let found = by(&|one| one.uri == asked).or_else(|| by(&|one| one.name == asked));
        let asked = match found {
            Some(one) => AskedResource {
                uri: one.uri.clone(),
                provider: one.provider.clone(),
                mime_type: one.mime_type.clone(),
                file: one.page.as_ref().and_then(PageSource::file).unwrap_or_default().to_owned(),
                html: one.page.as_ref().and_then(PageSource::html).map(str::to_owned),
                meta: one.meta.clone(),
            },
            None => {
                let mut templates = self.templates.iter();
                let template = templates.find(|one| describes(&one.uri_template, asked))?;
                let mime_type = template.mime_type.as_deref().unwrap_or("text/plain");
                AskedResource {
                    uri: asked.to_owned(),
                    provider: provider(asked),
                    mime_type: mime_type.to_owned(),
                    file: String::new(),
                    html: None,
                    meta: None,
                }
            }
        };
        Some(asked).filter(is_named)
    }

    /// Finds what a client wants to be notified of, by URI or by name.
    pub fn watchable(&self, asked: &str) -> Option<WatchableResource> {
        let AskedResource { uri, provider, file, html, .. } = self.resource(asked)?;
        if html.is_some() || provider == "echo" {
            return Some(WatchableResource::Constant { uri });
        }
        let path = if file.is_empty() { project_path(&uri) } else { Some(file) };
        let is_file = provider == "file" || provider == ui::PROVIDER;
        Some(match path.filter(|path| is_file && path.len() <= PATH_BYTES) {
            Some(path) => WatchableResource::File { uri, path },
            None => WatchableResource::Unknown { provider },
        })
    }

    /// Returns true if resources of a provider are downloads: of `https` and `git`, unless the project has a provider
    /// of this name.
    pub fn fetches(&self, provider: &str) -> bool {
        ["https", "git"].contains(&provider) && !self.providers.iter().any(|name| name == provider)
    }

    /// Makes the content of a resource that was downloaded.
    ///
    /// # Errors
    /// One that is longer than the operator allows.
    pub fn fetched_content(
        &self,
        asked: &AskedResource,
        bytes: Vec<u8>,
    ) -> Result<ResourceContent, ScriptError> {
        let max = self.settings.resource_bytes;
        match bytes.len() > max {
            true => Err(too_long(max)),
            false => Ok(content(&asked.mime_type, &bytes)),
        }
    }
}

pub(crate) fn content(mime_type: &str, output: &[u8]) -> ResourceContent {
    let head = output.get(..LOOKED_AT).unwrap_or(output);
    let is_binary = head.contains(&0) || BINARY.iter().any(|kind| mime_type.starts_with(kind));
    match std::str::from_utf8(output) {
        Ok(text) if !is_binary => ResourceContent::Text(text.to_owned()),
        Ok(_) | Err(_) => ResourceContent::Bytes(output.to_vec()),
    }
}

/// Returns true for a URI that fits a variable, and a provider whose name leads to no other folder.
fn is_named(asked: &AskedResource) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-_+".contains(c);
    let provider = &asked.provider;
    let is_provider = !provider.is_empty() && provider.len() <= 64 && provider.chars().all(is_word);
    is_provider && asked.uri.len() <= URI_BYTES && !asked.uri.contains('\0')
}

/// Returns true if a URI has the fixed parts of a template, in their order, with something for each variable.
fn describes(template: &str, uri: &str) -> bool {
    let Some((before, mut rest)) = template.split_once('{') else { return false };
    let Some(mut uri) = uri.strip_prefix(before) else { return false };
    while let Some((_, behind)) = rest.split_once('}') {
        let mut characters = uri.chars();
        if characters.next().is_none() {
            return false;
        }
        let value = characters.as_str();
        match behind.split_once('{') {
            None => return behind.is_empty() || value.ends_with(behind),
            Some((fixed, next)) => {
                let Some(at) = value.find(fixed) else { return false };
                uri = value.get(at + fixed.len()..).unwrap_or_default();
                rest = next;
            }
        }
    }
    false
}

/// Returns the path in the project that a `file://` URI has, as the provider of files reads it.
fn project_path(uri: &str) -> Option<String> {
    let path = percent_decoded(uri.strip_prefix("file://")?)?;
    let below = match path.strip_prefix('/') {
        Some(_) => path.strip_prefix(ROOT)?.strip_prefix('/')?,
        None => &path,
    };
    let parts = below.split('/').filter(|part| !part.is_empty() && *part != ".");
    let parts: Vec<&str> = parts.collect();
    (!parts.is_empty() && !parts.contains(&"..")).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_describes_what_has_its_fixed_parts_and_its_variables() {
        let log = "file:///var/log/{service}/{date}.log";
        for (template, uri, expected) in [
            (log, "file:///var/log/web/today.log", true),
            (log, "file:///var/log/web/a/b.log", true),
            (log, "file:///var/log/web/.log", false),
            (log, "file:///var/log//today.log", false),
            (log, "file:///etc/web/today.log", false),
            ("file:///{path}", "file:///a", true),
            ("file:///{path}", "file:///", false),
            ("git+https://{repo}/{ref}/{path}", "git+https://a/b/c", true),
            ("none", "none", false),
            ("bad://{open", "bad://x", false),
        ] {
            assert_eq!(describes(template, uri), expected, "{template} {uri}");
        }
    }

    #[test]
    fn content_is_text_unless_its_kind_or_a_byte_says_otherwise() {
        let bytes = |bytes: &[u8]| ResourceContent::Bytes(bytes.to_vec());
        assert_eq!(
            content("text/plain", "\u{e9}".as_bytes()),
            ResourceContent::Text("\u{e9}".into())
        );
        assert_eq!(content("text/plain", b"a\0"), bytes(b"a\0"));
        assert_eq!(content("text/plain", b"\xff"), bytes(b"\xff"));
        assert_eq!(content("image/png", b"a"), bytes(b"a"));
    }

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
            assert_eq!(project_path(uri).as_deref(), path, "{uri}");
        }
    }
}
