//! `edit`, `put_file` and `get_file`: files of /workspace.

use rmcp::model::Tool;
use serde_json::{Value, json};

use super::schema::{pure, runs, tool};
use super::{BuiltIn, CallResult, Context, InForce};
use crate::arguments::Named;
use crate::files::arguments::{EditArguments, GOT, GetFileArguments, PutFileArguments};
use crate::server::Server;
use service::Backend;
use service::files::FILE_BYTES;

impl BuiltIn for EditArguments {
    fn describe(_: &InForce) -> Tool {
        let description = "View, create and edit text files in /workspace, as they are in the sandbox. \
            `view` shows a file with line numbers, or a directory two levels deep; `create` makes or \
            overwrites a file; `str_replace` replaces a text that stands in the file exactly once; \
            `insert` puts text behind a line.";
        let text = |about: &str| json!({ "type": "string", "description": about });
        let input = json!({
            "type": "object",
            "properties": {
                "command": { "type": "string", "enum": ["view", "create", "str_replace", "insert"] },
                "path": path(),
                "file_text": text("For create: the file's content."),
                "old_str": text("For str_replace: the text to replace, exactly as it is in the file."),
                "new_str": text("For str_replace: the text to put in its place; without it, none."),
                "insert_line": {
                    "type": "integer", "minimum": 0,
                    "description": "For insert: the line behind which the text goes; 0 is before the first."
                },
                "insert_text": text("For insert: the text, without line numbers."),
                "view_range": {
                    "type": "array", "items": { "type": "integer" }, "minItems": 2, "maxItems": 2,
                    "description": "For view of a file: first and last line, from 1 on; -1 is the last."
                },
                "session": session()
            },
            "required": ["command", "path"],
            "additionalProperties": false
        });
        let count = json!({ "type": "integer", "minimum": 0 });
        let output = json!({
            "type": "object",
            "properties": {
                "path": { "type": "string" },
                "kind": { "type": "string", "enum": ["file", "directory"], "description": "Of what was viewed." },
                "entries": { "type": "array", "items": { "type": "string" }, "description": "Of a directory; / ends a directory, @ a symbolic link." },
                "truncated": { "type": "boolean", "description": "Whether a directory has more." },
                "text": { "type": "string", "description": "Lines with their numbers." },
                "first_line": count, "last_line": count,
                "done": { "type": "string", "enum": ["created", "replaced", "edited"] },
                "line": { "type": "integer", "minimum": 1, "description": "Where the change begins." },
                "snippet": { "type": "string", "description": "The change and the lines around it." },
                "lines": { "type": "integer", "minimum": 0, "description": "Of the whole file." },
                "size": count,
                "sha256": { "type": "string" }
            },
            "required": ["path"],
            "additionalProperties": false
        });
        tool::<Self>("Edit a file", description.to_owned(), input, output).annotate(runs())
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.file(Self::TOOL, self.asked()?, context).await
    }
}

impl BuiltIn for PutFileArguments {
    fn describe(_: &InForce) -> Tool {
        let description = format!(
            "Put a file into /workspace: text, or any bytes as base64; at most {FILE_BYTES} bytes. \
             Directories on the way are made. It appears whole or not at all."
        );
        let input = json!({
            "type": "object",
            "properties": {
                "path": path(),
                "content": { "type": "string", "maxLength": FILE_BYTES, "description": "Text." },
                "content_base64": { "type": "string", "description": "Bytes, in place of content." },
                "mode": {
                    "type": "string", "pattern": "^0?[0-7]{3}$",
                    "description": "Permissions in octal; without it 644, or what the replaced file has."
                },
                "overwrite": {
                    "type": "boolean", "default": false,
                    "description": "Whether a file that is there may be replaced."
                },
                "session": session()
            },
            "required": ["path"],
            "additionalProperties": false
        });
        let output = json!({
            "type": "object",
            "properties": {
                "path": { "type": "string" },
                "done": { "type": "string", "enum": ["created", "replaced"] },
                "size": { "type": "integer", "minimum": 0 },
                "sha256": { "type": "string" }
            },
            "required": ["path", "done", "size", "sha256"],
            "additionalProperties": false
        });
        tool::<Self>("Put a file", description, input, output).annotate(runs())
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.file(Self::TOOL, self.asked()?, context).await
    }
}

impl BuiltIn for GetFileArguments {
    fn describe(_: &InForce) -> Tool {
        let description = format!(
            "Get a file of /workspace: as text where it is UTF-8, else as base64; at most \
             {FILE_BYTES} bytes in one call."
        );
        let count = json!({ "type": "integer", "minimum": 0 });
        let input = json!({
            "type": "object",
            "properties": {
                "path": path(),
                "offset": {
                    "type": "integer", "minimum": 0, "default": 0, "description": "The first byte."
                },
                "length": {
                    "type": "integer", "minimum": 1, "maximum": FILE_BYTES, "default": GOT,
                    "description": "The most bytes."
                },
                "session": session()
            },
            "required": ["path"],
            "additionalProperties": false
        });
        let output = json!({
            "type": "object",
            "properties": {
                "path": { "type": "string" },
                "size": { "type": "integer", "minimum": 0, "description": "Of the whole file." },
                "mode": { "type": "string" },
                "offset": count, "bytes": count,
                "next_offset": { "type": "integer", "minimum": 0, "description": "Where to read on; absent at the end." },
                "content": { "type": "string" },
                "content_base64": { "type": "string", "description": "In place of content, where the bytes are not text." },
                "sha256": { "type": "string", "description": "Of a file that is told whole." }
            },
            "required": ["path", "size", "mode", "offset", "bytes"],
            "additionalProperties": false
        });
        tool::<Self>("Get a file", description, input, output).annotate(pure())
    }

    async fn call<B: Backend>(self, server: &Server<B>, context: &Context) -> CallResult {
        server.file(Self::TOOL, self.asked()?, context).await
    }
}

fn path() -> Value {
    json!({
        "type": "string", "minLength": 1,
        "description": "Inside /workspace; a relative path starts there."
    })
}

fn session() -> Value {
    json!({
        "type": "string", "default": "default", "minLength": 1, "maxLength": 64,
        "pattern": "^[A-Za-z0-9._-]+$",
        "description": "Whose /workspace, as with bash. A granted directory is the same for all."
    })
}
