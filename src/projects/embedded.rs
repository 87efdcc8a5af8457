//! Files that a script returns with its result, as they come out of its cell.

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Map, Value, json};

use crate::ROOT;
use crate::reading::{ResourceContent, content};

/// Reads the files that `lib/embed.sh` printed behind a script, as blocks of a result's content. The list ends
/// where something else stands.
pub(crate) fn blocks(mut printed: &[u8]) -> Vec<Value> {
    let mut blocks = Vec::new();
    while let Some((file, rest)) = split(printed) {
        blocks.extend(block(&file));
        printed = rest;
    }
    blocks
}

/// A file that a script named.
struct NamedFile<'o> {
    /// Path and kind, as the script gave them.
    entry: Map<String, Value>,
    bytes: &'o [u8],
}

/// Splits the first file off.
fn split(printed: &[u8]) -> Option<(NamedFile<'_>, &[u8])> {
    let (entry, behind) = line(printed)?;
    let (length, behind) = line(behind)?;
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    let entry = serde_json::from_slice(entry).ok()?;
    let (bytes, rest) = behind.split_at_checked(length)?;
    Some((NamedFile { entry, bytes }, rest))
}

fn line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b'\n')?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

fn block(file: &NamedFile<'_>) -> Option<Value> {
    let text = |key: &str| file.entry.get(key)?.as_str().filter(|text| !text.is_empty());
    let path = text("path")?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let below = if path.starts_with('/') { "" } else { ROOT };
    let uri = text("uri").map_or_else(|| format!("file://{below}{slash}{path}"), str::to_owned);
    let given = text("mimeType");
    let resource = match content(given.unwrap_or_default(), file.bytes) {
        ResourceContent::Text(text) => {
            json!({ "uri": uri, "mimeType": given.unwrap_or("text/plain"), "text": text })
        }
        ResourceContent::Bytes(bytes) => {
            let blob = BASE64_STANDARD.encode(bytes);
            let kind = given.unwrap_or("application/octet-stream");
            json!({ "uri": uri, "mimeType": kind, "blob": blob })
        }
    };
    Some(json!({ "type": "resource", "resource": resource }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_text_or_bytes_and_end_where_one_is_cut_off() {
        let printed = b"{\"path\":\"a\",\"mimeType\":null}\n3\nb\nc{\"path\":\"/d\",\"uri\":\"x:y\"}\n1\n\0{\"path\":\"e\"}\n9\nf";
        let text = json!({"uri": "file:///workspace/a", "mimeType": "text/plain", "text": "b\nc"});
        let bytes = json!({"uri": "x:y", "mimeType": "application/octet-stream", "blob": "AA=="});
        let block = |resource: Value| json!({"type": "resource", "resource": resource});
        assert_eq!(blocks(printed), [block(text), block(bytes)]);
        assert_eq!(blocks(b""), Vec::<Value>::new());
        assert_eq!(blocks(b"no JSON\n1\na"), Vec::<Value>::new());
    }
}
