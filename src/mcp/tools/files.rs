//! `edit`, `put_file` and `get_file`: files of /workspace.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;

use super::results::{EditResult, GetResult, PutResult};
use super::schema::{SessionName, pure, runs, tool};
use crate::arguments::{BadArguments, Named};
use crate::calls::ClientCalls;
use crate::context::Context;
use crate::reply::files::{RequestSummary, filed};
use crate::tool_entry::{BuiltIn, CallResult, InForce};
use model::call::{FilePath, InvalidCall};
use service::files::FILE_BYTES;
use service::refused::Refused;
use service::request::{ClerkRequest, FileRequest, Overwrite};
use service::session::DEFAULT;

/// Bytes of a `get_file` answer by default.
pub(crate) const DEFAULT_LENGTH: usize = 1 << 20;

/// Arguments of `edit`: those of the text editor tool that models know.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditArguments {
    pub(crate) command: EditCommand,
    /// Inside /workspace; a relative path starts there.
    #[schemars(length(min = 1))]
    pub(crate) path: String,
    /// For create: the file's content.
    pub(crate) file_text: Option<String>,
    /// For str_replace: the text to replace, exactly as it is in the file.
    pub(crate) old_str: Option<String>,
    /// For str_replace: the text to put in its place; without it, none.
    pub(crate) new_str: Option<String>,
    /// For insert: the line behind which the text goes; 0 is before the first.
    pub(crate) insert_line: Option<usize>,
    /// For insert: the text, without line numbers.
    pub(crate) insert_text: Option<String>,
    /// For view of a file: first and last line, from 1 on; -1 is the last.
    #[schemars(with = "Option<[i64; 2]>")]
    pub(crate) view_range: Option<(i64, i64)>,
    /// Whose /workspace, as with bash. A granted directory is the same for all.
    #[schemars(with = "Option<SessionName>")]
    pub(crate) session: Option<String>,
}

/// Command of `edit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(description = "")]
pub(crate) enum EditCommand {
    View,
    Create,
    StrReplace,
    Insert,
}

/// Arguments of `put_file`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PutFileArguments {
    /// Inside /workspace; a relative path starts there.
    #[schemars(length(min = 1))]
    pub(crate) path: String,
    /// Text.
    #[schemars(length(max = FILE_BYTES))]
    pub(crate) content: Option<String>,
    /// Bytes, in place of content.
    pub content_base64: Option<String>,
    /// Permissions in octal; without it 644, or what the replaced file has.
    #[schemars(extend("pattern" = "^0?[0-7]{3}$"))]
    pub(crate) mode: Option<String>,
    /// Whether a file that is there may be replaced.
    #[serde(default)]
    pub(crate) overwrite: bool,
    /// Whose /workspace, as with bash. A granted directory is the same for all.
    #[schemars(with = "Option<SessionName>")]
    pub(crate) session: Option<String>,
}

/// Arguments of `get_file`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GetFileArguments {
    /// Inside /workspace; a relative path starts there.
    #[schemars(length(min = 1))]
    pub(crate) path: String,
    /// The first byte.
    #[serde(default)]
    pub(crate) offset: u64,
    /// The most bytes.
    #[schemars(range(min = 1, max = FILE_BYTES), extend("default" = DEFAULT_LENGTH))]
    pub(crate) length: Option<usize>,
    /// Whose /workspace, as with bash. A granted directory is the same for all.
    #[schemars(with = "Option<SessionName>")]
    pub(crate) session: Option<String>,
}

/// Returns the session whose shell is asked, if the workspace is a session's.
fn session_name(session: Option<String>) -> String {
    session.unwrap_or_else(|| DEFAULT.to_owned())
}

fn bad(message: String) -> BadArguments {
    BadArguments { message, hint: None }
}

/// Returns a field that a command requires.
fn needed<T>(command: &str, field: &str, value: Option<T>) -> Result<T, BadArguments> {
    value.ok_or_else(|| bad(format!("edit: `{command}` needs `{field}`")))
}

fn bounded(field: &'static str, bytes: Vec<u8>) -> Result<Vec<u8>, InvalidCall> {
    if bytes.len() > FILE_BYTES {
        return Err(InvalidCall::TooLong { field, bytes: bytes.len(), limit: FILE_BYTES });
    }
    Ok(bytes)
}

impl EditArguments {
    /// Converts them to a request.
    ///
    /// # Errors
    /// A field that is missing or out of its bounds.
    pub(crate) fn request(self) -> Result<FileRequest, Refused> {
        let path = FilePath::new("path", &self.path)?;
        let request = match self.command {
            EditCommand::View => {
                let (first, last) = lines(self.view_range)?;
                ClerkRequest::View { first, last }
            }
            EditCommand::Create => {
                let text = needed("create", "file_text", self.file_text)?;
                let bytes = bounded("file_text", text.into_bytes())?;
                ClerkRequest::Put { bytes, mode: None, over: Overwrite::Any }
            }
            EditCommand::StrReplace => {
                let old = needed("str_replace", "old_str", self.old_str)?;
                if old.is_empty() {
                    return Err(bad("edit: `old_str` is empty".to_owned()).into());
                }
                let new = bounded("new_str", self.new_str.unwrap_or_default().into_bytes())?;
                ClerkRequest::Replace { old: bounded("old_str", old.into_bytes())?, new }
            }
            EditCommand::Insert => {
                let after = needed("insert", "insert_line", self.insert_line)?;
                // The older name of the same field.
                let text = needed("insert", "insert_text", self.insert_text.or(self.new_str))?;
                ClerkRequest::Insert { after, text: bounded("insert_text", text.into_bytes())? }
            }
        };
        Ok(FileRequest { path, request, session: session_name(self.session) })
    }
}

/// Returns the first and last line; 0 stands for the last line of the file.
fn lines(range: Option<(i64, i64)>) -> Result<(usize, usize), BadArguments> {
    let Some((first, last)) = range else { return Ok((1, 0)) };
    let number = |value: i64| usize::try_from(value).ok().filter(|number| *number > 0);
    match (number(first), number(last)) {
        (Some(first), _) if last == -1 => Ok((first, 0)),
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        (_, _) => {
            let hint = "the first line is 1; -1 as the second is the last line of the file";
            let message = format!("edit: `view_range` [{first}, {last}] is no range of lines");
            Err(BadArguments { message, hint: Some(hint.to_owned()) })
        }
    }
}

impl PutFileArguments {
    /// Converts them to a request.
    ///
    /// # Errors
    /// A field that is missing or out of its bounds.
    pub(crate) fn request(self) -> Result<FileRequest, Refused> {
        let path = FilePath::new("path", &self.path)?;
        let bytes = match (self.content, self.content_base64) {
            (Some(text), None) => bounded("content", text.into_bytes())?,
            (None, Some(coded)) => {
                let decoded = STANDARD.decode(coded.trim());
                let bytes =
                    decoded.map_err(|error| bad(format!("put_file: `content_base64`: {error}")))?;
                bounded("content_base64", bytes)?
            }
            (Some(_), Some(_)) | (None, None) => {
                let why = "put_file: one of `content` and `content_base64` is needed";
                return Err(bad(why.to_owned()).into());
            }
        };
        let mode = self.mode.as_deref().map(permissions).transpose()?;
        let over = if self.overwrite { Overwrite::Any } else { Overwrite::Nothing };
        Ok(FileRequest {
            path,
            request: ClerkRequest::Put { bytes, mode, over },
            session: session_name(self.session),
        })
    }
}

/// Parses permissions in octal digits, without set-id and sticky bits.
fn permissions(digits: &str) -> Result<u16, BadArguments> {
    let mode = u16::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o777);
    let plain = digits.len() <= 4 && digits.bytes().all(|digit| digit.is_ascii_digit());
    mode.filter(|_| plain).ok_or_else(|| {
        bad("put_file: `mode` must be permissions in octal, such as 644 or 755".to_owned())
    })
}

impl GetFileArguments {
    /// Converts them to a request.
    ///
    /// # Errors
    /// A field that is out of its bounds.
    pub(crate) fn request(self) -> Result<FileRequest, Refused> {
        let path = FilePath::new("path", &self.path)?;
        let length = self.length.unwrap_or(DEFAULT_LENGTH);
        if !(1..=FILE_BYTES).contains(&length) {
            let why = format!("get_file: `length` must be 1 to {FILE_BYTES} bytes");
            return Err(bad(why).into());
        }
        let request = ClerkRequest::Get { offset: self.offset, length };
        Ok(FileRequest { path, request, session: session_name(self.session) })
    }
}

/// Reads or writes a file, as a call of `tool`.
async fn call_file_tool(
    calls: &ClientCalls,
    tool: &'static str,
    request: FileRequest,
    context: &Context,
) -> CallResult {
    if request.request.writes() && calls.client.rules().has_private_workspace() {
        calls.check_continuity("write the file by the command that needs it")?;
    }
    let summary = RequestSummary::new(&request);
    let run = |turn| service::files::file(&calls.client, tool, request, turn);
    let report = calls.turn(context, run).await?;
    Ok(filed(&summary, &report))
}

impl BuiltIn for EditArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "View, create and edit text files in /workspace, as they are in the sandbox. \
            `view` shows a file with line numbers, or a directory two levels deep; `create` makes or \
            overwrites a file; `str_replace` replaces a text that stands in the file exactly once; \
            `insert` puts text behind a line.";
        tool::<Self, EditResult>("Edit a file", description).annotate(runs())
    }

    async fn call(mut self, calls: &ClientCalls, context: &Context) -> CallResult {
        self.path = calls.client.in_workspace(self.path);
        call_file_tool(calls, Self::TOOL, self.request()?, context).await
    }
}

impl BuiltIn for PutFileArguments {
    fn describe(_: &InForce) -> Tool {
        let description = format!(
            "Put a file into /workspace: text, or any bytes as base64; at most {FILE_BYTES} bytes. \
             Directories on the way are made. It appears whole or not at all."
        );
        tool::<Self, PutResult>("Put a file", description).annotate(runs())
    }

    async fn call(mut self, calls: &ClientCalls, context: &Context) -> CallResult {
        self.path = calls.client.in_workspace(self.path);
        call_file_tool(calls, Self::TOOL, self.request()?, context).await
    }
}

impl BuiltIn for GetFileArguments {
    fn describe(_: &InForce) -> Tool {
        let description = format!(
            "Get a file of /workspace: as text where it is UTF-8, else as base64; at most \
             {FILE_BYTES} bytes in one call."
        );
        tool::<Self, GetResult>("Get a file", description).annotate(pure())
    }

    async fn call(mut self, calls: &ClientCalls, context: &Context) -> CallResult {
        self.path = calls.client.in_workspace(self.path);
        call_file_tool(calls, Self::TOOL, self.request()?, context).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(text: &str) -> Result<ClerkRequest, String> {
        let arguments: EditArguments = serde_json::from_str(text).map_err(|bad| bad.to_string())?;
        arguments.request().map(|asked| asked.request).map_err(|refused| refused.message)
    }

    fn put(text: &str) -> Result<ClerkRequest, String> {
        let arguments: PutFileArguments =
            serde_json::from_str(text).map_err(|bad| bad.to_string())?;
        arguments.request().map(|asked| asked.request).map_err(|refused| refused.message)
    }

    #[test]
    fn each_command_of_edit_takes_its_fields() {
        let view = |range: &str| edit(&format!(r#"{{"command":"view","path":"a"{range}}}"#));
        assert_eq!(view(""), Ok(ClerkRequest::View { first: 1, last: 0 }));
        assert_eq!(view(r#","view_range":[2,-1]"#), Ok(ClerkRequest::View { first: 2, last: 0 }));
        assert_eq!(view(r#","view_range":[2,3]"#), Ok(ClerkRequest::View { first: 2, last: 3 }));
        for range in ["0,1", "3,2", "1,0", "-1,-1"] {
            let result = view(&format!(r#","view_range":[{range}]"#));
            assert!(
                result.is_err_and(|result| result.ends_with("is no range of lines")),
                "{range}"
            );
        }
        let replace = edit(r#"{"command":"str_replace","path":"a","old_str":"b"}"#);
        assert_eq!(replace, Ok(ClerkRequest::Replace { old: b"b".to_vec(), new: Vec::new() }));
        let insert = |field: &str| {
            edit(&format!(r#"{{"command":"insert","path":"a","insert_line":0,"{field}":"b"}}"#))
        };
        let expected = Ok(ClerkRequest::Insert { after: 0, text: b"b".to_vec() });
        assert_eq!((insert("insert_text"), insert("new_str")), (expected.clone(), expected));
        let missing = edit(r#"{"command":"create","path":"a"}"#);
        assert_eq!(missing, Err("edit: `create` needs `file_text`".to_owned()));
    }

    #[test]
    fn a_path_is_inside_the_workspace() {
        for path in ["/etc/passwd", "../x", "/workspace/../etc", "/tmp/x", "/workspacex", "/"] {
            let result = edit(&format!(r#"{{"command":"view","path":"{path}"}}"#));
            let expected = format!("path must be a path inside /workspace, not {path}");
            assert_eq!(result, Err(expected));
        }
        assert!(edit(r#"{"command":"view","path":"/workspace/a/../b"}"#).is_ok());
    }

    #[test]
    fn bytes_come_as_text_or_as_base64_and_not_as_both() {
        let bytes = |fields: &str| put(&format!(r#"{{"path":"a",{fields}}}"#));
        let request = |bytes: &[u8], mode| ClerkRequest::Put {
            bytes: bytes.to_vec(),
            mode,
            over: Overwrite::Nothing,
        };
        assert_eq!(bytes(r#""content":"é""#), Ok(request("é".as_bytes(), None)));
        assert_eq!(bytes(r#""content_base64":"/wA=""#), Ok(request(b"\xff\0", None)));
        assert_eq!(bytes(r#""content":"x","mode":"0755""#), Ok(request(b"x", Some(0o755))));
        for wrong in [
            r#""content":"x","content_base64":"AA==""#,
            r#""mode":"644""#,
            r#""content_base64":"%""#,
            r#""content":"x","mode":"4755""#,
            r#""content":"x","mode":"+7""#,
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
