//! Results of the file tools: lines with their numbers, or fields and bytes.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::reply;
use model::defaults::INLINE_CHARACTERS;
use service::capture::deceptive::harmless;
use service::files::{DirectoryEntry, EntryKind, FileAnswer, Region, ReplacedFile};
use service::report::FileReport;
use service::report::changes::name;
use service::request::{ClerkRequest, FileRequest};

/// Parts of a request that are repeated in its reply.
#[derive(Debug)]
pub(crate) struct RequestSummary {
    path: String,
    offset: u64,
    /// SHA-256 of the content that was put.
    sha256: Option<String>,
}

impl RequestSummary {
    pub(crate) fn new(asked: &FileRequest) -> Self {
        let (offset, sha256) = match &asked.request {
            ClerkRequest::Get { offset, .. } => (*offset, None),
            ClerkRequest::Put { bytes, .. } => (0, Some(hash(bytes))),
            ClerkRequest::View { .. }
            | ClerkRequest::Replace { .. }
            | ClerkRequest::Insert { .. } => (0, None),
        };
        Self { path: asked.path.as_str().to_owned(), offset, sha256 }
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes the result of an answered request.
pub(crate) fn filed(about: &RequestSummary, filed: &FileReport) -> CallToolResult {
    let mut fields = Map::from_iter([("path".to_owned(), json!(about.path))]);
    let mut content = match &filed.answer {
        FileAnswer::Lines(region) => lines(region, &mut fields),
        FileAnswer::Directory { entries, is_whole } => {
            directory(about, entries, *is_whole, &mut fields)
        }
        FileAnswer::Put { was, size } => put(about, *was, *size, &mut fields),
        FileAnswer::Edited { line, region, was, dos } => {
            edited(about, *line, region, *was, *dos, &mut fields)
        }
        FileAnswer::Bytes { size, mode, bytes } => got(about, *size, mode, bytes, &mut fields),
    };
    let denied = filed.denials.iter().map(|denial| denial.line());
    let notes: Vec<String> =
        denied.chain(filed.renewed.iter().map(|why| format!("[a new shell: {why}]"))).collect();
    if !notes.is_empty() {
        content.push(ContentBlock::text(notes.join("\n")));
    }
    let is_escaped = fields.contains_key("content") && fields.contains_key("content_base64");
    let remarks = remarks(&filed.answer).into_iter().chain(is_escaped.then_some(ESCAPED));
    let all = remarks.map(str::to_owned).chain(notes);
    reply::push_notes(&mut fields, all.map(|note| bare(&note).to_owned()).collect());
    let mut result = CallToolResult::success(content);
    result.structured_content = Some(Value::Object(fields));
    result.meta = Some(reply::meta(filed.receipt.as_ref(), filed.unrecorded.as_ref()));
    result
}

/// Returns the remarks of an answer that stand in its text only.
fn remarks(answer: &FileAnswer) -> Vec<&'static str> {
    let all = match answer {
        FileAnswer::Put { was, .. } => vec![links(*was)],
        FileAnswer::Edited { was, dos, .. } => vec![links(*was), ends(*dos)],
        FileAnswer::Lines(region) => vec![nul_bytes(region)],
        FileAnswer::Directory { .. } | FileAnswer::Bytes { .. } => Vec::new(),
    };
    all.into_iter().filter(|remark| !remark.is_empty()).collect()
}

/// Remark for a text whose bytes are in the fields too.
const ESCAPED: &str = "[characters that hide or turn text, or that a terminal obeys, are shown as escapes: \
                       `content_base64` has the exact bytes]";

/// Returns a remark without its line break and brackets.
fn bare(remark: &str) -> &str {
    remark.trim_matches(['\n', '[', ']'])
}

/// Returns the remark for an edited file with the line ends of DOS.
fn ends(dos: bool) -> &'static str {
    if dos { "\n[its lines end with CR LF, and so do the new ones]" } else { "" }
}

/// Returns the remark for a file that is not text.
fn nul_bytes(region: &Region) -> &'static str {
    if region.text.contains(&0) { "[it has NUL bytes: get_file reads it as it is]" } else { "" }
}

fn texts(text: String) -> Vec<ContentBlock> {
    vec![ContentBlock::text(text)]
}

/// Numbers lines as `cat -n` does; returns also the number of the last line shown whole or in part.
fn numbered(region: &Region) -> (String, usize) {
    let text = String::from_utf8_lossy(&region.text);
    let mut shown = String::new();
    let mut room = INLINE_CHARACTERS;
    let mut last = region.first;
    for (number, line) in (region.first..).zip(text.split_inclusive('\n')) {
        if room == 0 {
            break;
        }
        // A carriage return is shown, because an agent that replaces text must know of it.
        let line = line.strip_suffix('\n').unwrap_or(line).replace('\r', "\\r");
        let kept: String = harmless(&line).chars().take(room).collect();
        room = room.saturating_sub(kept.chars().count() + 8);
        shown.push_str(&format!("{number:>6}\t{kept}\n"));
        last = number;
    }
    (shown, last)
}

fn lines(region: &Region, fields: &mut Map<String, Value>) -> Vec<ContentBlock> {
    let (text, last) = numbered(region);
    let mut shown = text.clone();
    let wanted = region.first + region.text.iter().filter(|byte| **byte == b'\n').count();
    let wanted = if region.text.ends_with(b"\n") { wanted - 1 } else { wanted };
    if region.text.is_empty() {
        shown.push_str("[the file is empty]");
    } else if !region.is_whole || last < wanted {
        let lines = region.lines;
        let from = region.first;
        shown.push_str(&format!(
            "[lines {from} to {last} of {lines} are shown; `view_range` shows others]"
        ));
    }
    shown.push_str(nul_bytes(region));
    fields.extend([
        ("kind".to_owned(), json!("file")),
        ("size".to_owned(), json!(region.size)),
        ("lines".to_owned(), json!(region.lines)),
        ("first_line".to_owned(), json!(region.first)),
        ("last_line".to_owned(), json!(last)),
        ("text".to_owned(), json!(text)),
    ]);
    texts(shown)
}

fn directory(
    about: &RequestSummary,
    entries: &[DirectoryEntry],
    is_whole: bool,
    fields: &mut Map<String, Value>,
) -> Vec<ContentBlock> {
    let mut sorted: Vec<&DirectoryEntry> = entries.iter().collect();
    sorted.sort();
    let shown = |entry: &&DirectoryEntry| {
        let end = match entry.kind {
            EntryKind::Directory => "/",
            EntryKind::Link => "@",
            EntryKind::File | EntryKind::Other => "",
        };
        name(&entry.path) + end
    };
    let names: Vec<String> = sorted.iter().map(shown).collect();
    let mut text = format!("{}, two levels deep, without hidden names:\n", about.path);
    for name in &names {
        text.push_str(name);
        text.push('\n');
    }
    if !is_whole {
        text.push_str("[there are more]");
    }
    fields.extend([
        ("kind".to_owned(), json!("directory")),
        ("entries".to_owned(), json!(names)),
        ("truncated".to_owned(), json!(!is_whole)),
    ]);
    texts(text)
}

/// Returns the remark for a file that had several names.
fn links(was: ReplacedFile) -> &'static str {
    match was {
        ReplacedFile::File { names } if names > 1 => {
            "\n[it was a hard link: its other names keep what was in it before]"
        }
        ReplacedFile::File { .. } | ReplacedFile::Nothing => "",
    }
}

fn put(
    about: &RequestSummary,
    was: ReplacedFile,
    size: u64,
    fields: &mut Map<String, Value>,
) -> Vec<ContentBlock> {
    let done = match was {
        ReplacedFile::Nothing => "created",
        ReplacedFile::File { .. } => "replaced",
    };
    fields.extend([
        ("done".to_owned(), json!(done)),
        ("size".to_owned(), json!(size)),
        ("sha256".to_owned(), json!(about.sha256)),
    ]);
    texts(format!("{} is {done}: {size} bytes{}", about.path, links(was)))
}

fn edited(
    about: &RequestSummary,
    line: usize,
    region: &Region,
    was: ReplacedFile,
    dos: bool,
    fields: &mut Map<String, Value>,
) -> Vec<ContentBlock> {
    let (snippet, _) = numbered(region);
    let ends = ends(dos);
    fields.extend([
        ("done".to_owned(), json!("edited")),
        ("line".to_owned(), json!(line)),
        ("lines".to_owned(), json!(region.lines)),
        ("size".to_owned(), json!(region.size)),
        ("snippet".to_owned(), json!(snippet)),
    ]);
    let cut = if region.is_whole { "" } else { "[the changed part is longer than what is shown]" };
    let head = format!("{} is changed at line {line}:\n", about.path);
    texts(format!("{head}{snippet}{cut}{}{ends}", links(was)))
}

/// Returns bytes as text if they are text. A character cut at the end is left for the next read.
fn text_of(bytes: &[u8], is_end: bool) -> Option<&str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() && !is_end => {
            std::str::from_utf8(bytes.get(..error.valid_up_to())?).ok()
        }
        Err(_) => None,
    }
    .filter(|text| !text.is_empty() || bytes.is_empty())
}

fn got(
    about: &RequestSummary,
    size: u64,
    mode: &str,
    bytes: &[u8],
    fields: &mut Map<String, Value>,
) -> Vec<ContentBlock> {
    let length = |bytes: &[u8]| u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let is_end = about.offset.saturating_add(length(bytes)) >= size;
    let text = text_of(bytes, is_end);
    let bytes = text.map_or(bytes, str::as_bytes);
    let next = about.offset.saturating_add(length(bytes));
    fields.extend([
        ("size".to_owned(), json!(size)),
        ("mode".to_owned(), json!(mode)),
        ("offset".to_owned(), json!(about.offset)),
        ("bytes".to_owned(), json!(bytes.len())),
    ]);
    if about.offset == 0 && next >= size {
        fields.insert("sha256".to_owned(), json!(hash(bytes)));
    } else if next < size {
        fields.insert("next_offset".to_owned(), json!(next));
    }
    match text {
        Some(text) => {
            let shown = harmless(text);
            let mut content = texts(shown.clone().into_owned());
            if let Cow::Owned(_) = shown {
                fields.insert("content_base64".to_owned(), json!(STANDARD.encode(text)));
                content.push(ContentBlock::text(ESCAPED));
            }
            fields.insert("content".to_owned(), json!(shown));
            content
        }
        None => {
            let coded = STANDARD.encode(bytes);
            fields.insert("content_base64".to_owned(), json!(coded));
            let blob = ResourceContents::blob(coded, uri(&about.path));
            let count = bytes.len();
            let report = format!("[{count} bytes that are not text, as base64]");
            vec![ContentBlock::text(report), ContentBlock::resource(blob)]
        }
    }
}

/// Returns the file's address in the cell, not on the host.
fn uri(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let coded = path.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    format!("file://{}", coded.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(text: &[u8], first: usize) -> Region {
        Region { first, text: text.to_vec(), is_whole: true, lines: 9, size: 99 }
    }

    #[test]
    fn lines_have_their_numbers_and_show_what_is_not_seen() {
        let (text, last) = numbered(&region(b"a\r\n\tb\x1b[0m\n\xff", 9));
        assert_eq!(text, "     9\ta\\r\n    10\t\tb\u{241b}[0m\n    11\t\u{fffd}\n");
        assert_eq!(last, 11);
        let long = "x".repeat(INLINE_CHARACTERS) + "\nmore\n";
        let (text, last) = numbered(&region(long.as_bytes(), 1));
        assert_eq!((text.len(), last), (INLINE_CHARACTERS + 8, 1));
    }

    #[test]
    fn a_character_that_is_cut_in_two_is_left_for_the_next_read() {
        assert_eq!(text_of("aé".as_bytes(), true), Some("aé"));
        assert_eq!(text_of(b"a\xc3", false), Some("a"));
        assert_eq!(text_of(b"a\xc3", true), None);
        assert_eq!(text_of(b"\xff\xfe", false), None);
        assert_eq!(text_of(b"", true), Some(""));
    }

    #[test]
    fn an_address_has_no_byte_that_means_something() {
        assert_eq!(uri("/workspace/a b#é"), "file:///workspace/a%20b%23%C3%A9");
        assert_eq!(name(b"a\nb\xff"), "a\\nb\\xff");
        assert_eq!(name("é".as_bytes()), "é");
    }
}
