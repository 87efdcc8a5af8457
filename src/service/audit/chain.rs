//! Hash chaining of log lines: sealing a line to the one before, and checking a line. Does no I/O.
//!
//! `prev` and `hash` are the last fields of a line. `hash` is the SHA-256 of the line without
//! `,"hash":"…"`, so a checker need not serialize JSON as this program does; `prev` is the `hash`
//! of the line before.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// `prev` of the first line.
pub const FIRST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The end of a chain, which the next line continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tip {
    /// Sequence number of the last line; 0 before the first.
    pub seq: u64,
    /// `hash` of the last line.
    pub hash: String,
}

impl Tip {
    /// Returns the tip before the first line.
    pub fn start() -> Self {
        Self { seq: 0, hash: FIRST.to_owned() }
    }
}

/// A fault of a line by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadLine {
    #[error("it has no `hash` at its end: it was cut short or is not of this log")]
    NoHash,
    #[error("its content does not have the hash it states: it was changed")]
    Changed,
    #[error("it is not JSON with `seq` and `prev`")]
    NotARecord,
}

/// A line whose hash is right, with its place in the chain.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    pub seq: u64,
    pub prev: String,
    pub hash: String,
    pub fields: Value,
}

impl Checked {
    pub(crate) fn tip(&self) -> Tip {
        Tip { seq: self.seq, hash: self.hash.clone() }
    }
}

#[derive(Serialize)]
struct Sealed<'a, T> {
    seq: u64,
    time: &'a str,
    #[serde(flatten)]
    record: &'a T,
    prev: &'a str,
}

/// Returns the line after `tip` with its newline, and the new tip.
///
/// # Errors
/// If `record` cannot be serialized as JSON.
pub fn seal<T: Serialize>(
    tip: &Tip,
    time: &str,
    record: &T,
) -> Result<(String, Tip), serde_json::Error> {
    let seq = tip.seq.saturating_add(1);
    let body = serde_json::to_string(&Sealed { seq, time, record, prev: &tip.hash })?;
    let hash = sha256(body.as_bytes());
    let open = body.strip_suffix('}').unwrap_or(&body);
    Ok((format!("{open},\"hash\":\"{hash}\"}}\n"), Tip { seq, hash }))
}

/// Checks the hash of a line, which must come without its newline.
///
/// # Errors
/// What is wrong with the line.
pub fn check(line: &[u8]) -> Result<Checked, BadLine> {
    const MARK: &str = ",\"hash\":\"";
    let text = std::str::from_utf8(line).map_err(|_| BadLine::NoHash)?;
    let (open, rest) = text.rsplit_once(MARK).ok_or(BadLine::NoHash)?;
    let hash = rest.strip_suffix("\"}").filter(|hash| hash.len() == FIRST.len());
    let hash = hash.ok_or(BadLine::NoHash)?;
    if sha256(format!("{open}}}").as_bytes()) != hash {
        return Err(BadLine::Changed);
    }
    let fields: Value = serde_json::from_str(text).map_err(|_| BadLine::NotARecord)?;
    let seq = fields.get("seq").and_then(Value::as_u64).ok_or(BadLine::NotARecord)?;
    let prev = fields.get("prev").and_then(Value::as_str).ok_or(BadLine::NotARecord)?.to_owned();
    Ok(Checked { seq, prev, hash: hash.to_owned(), fields })
}

/// Returns the SHA-256 in lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_line_checks_and_a_changed_one_does_not() {
        let sealed =
            seal(&Tip::start(), "2026-01-01T00:00:00.000Z", &serde_json::json!({"a": "b"}));
        let Ok((line, tip)) = sealed else { panic!("sealed") };
        let checked = check(line.trim_end().as_bytes());
        assert_eq!(checked.as_ref().map(Checked::tip), Ok(tip));
        assert_eq!(checked.map(|checked| checked.prev), Ok(FIRST.to_owned()));
        let changed = line.trim_end().replace("\"b\"", "\"c\"");
        assert_eq!(check(changed.as_bytes()), Err(BadLine::Changed));
        assert_eq!(check(b"{\"a\":1}"), Err(BadLine::NoHash));
        assert_eq!(check(line.as_bytes().split_at(40).0), Err(BadLine::NoHash));
    }

    #[test]
    fn hashes_are_those_of_sha256sum() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), expected);
    }
}
