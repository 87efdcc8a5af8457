//! Short form of a declared tool: the parts that follow from `command`, and flags that are written
//! as a caller sees them.

use std::path::Path;

use toml::Spanned;

use super::{NO_FLAG, is_flag};
use crate::document::{Document, Mistake, Reason};
use crate::policy::decimal::Decimal;
use crate::policy::flags::{Flag, Positional, PositionalEgress, Takes};
use crate::policy::reach::TargetReach;
use crate::policy::values::{Type, WORD_BYTES, WordType};

/// Maximum number of paths that a call of a tool without declared fields names.
const MAX_PATHS: usize = 16;

/// Returns the name of the tool for a command: `cli_` and the file name, in characters that a name
/// may have.
pub(super) fn tool_name(command: &str) -> String {
    let file = Path::new(command).file_name().and_then(|name| name.to_str()).unwrap_or(command);
    let letter = |c: char| match c {
        _ if c.is_ascii_alphanumeric() => c.to_ascii_lowercase(),
        _ => '_',
    };
    format!("cli_{}", file.chars().map(letter).collect::<String>())
}

/// Returns the field of a tool without declared fields.
pub(super) fn path() -> Positional {
    Positional {
        name: "path".to_owned(),
        also: None,
        takes: any(WordType::Path),
        min: 0,
        max: MAX_PATHS,
        prefix: String::new(),
        egress: PositionalEgress::Any,
        why: "files or directories to work on".to_owned(),
    }
}

/// Reads a flag: `-l`, `--indent 0..7` or `--indent=0..7`.
pub(super) fn flag(
    document: &Document,
    text: &Spanned<String>,
    why: &Reason,
) -> Result<Flag, Mistake> {
    let mistake = |message: &str| document.mistake(text.span(), message);
    let (name, takes) = match text.get_ref().split_once([' ', '=']) {
        None => (text.get_ref().as_str(), Takes::Nothing),
        Some((name, value)) => {
            let Some(kind) = kind(value) else {
                let message = "the value of a flag is TEXT, PATH, HOST, NETWORK, TARGET, PORTS, \
                               URL, numbers (0..7) or words (json|text)";
                return Err(mistake(message));
            };
            match text.get_ref().as_bytes().get(name.len()) {
                Some(b'=') => (name, Takes::Equals(any(kind))),
                Some(_) | None => (name, Takes::Next(any(kind))),
            }
        }
    };
    match is_flag(name) {
        true => Ok(Flag { name: name.to_owned(), takes, times: 1, why: why.as_str().to_owned() }),
        false => Err(mistake(NO_FLAG)),
    }
}

/// Returns the type that the value of a flag in short form names.
fn kind(value: &str) -> Option<WordType> {
    if let Some((low, high)) = value.split_once("..") {
        let is_decimal = value.replace("..", "").contains('.');
        let low: Decimal = low.parse().ok()?;
        let high: Decimal = high.parse().ok()?;
        return match (low <= high, is_decimal) {
            (false, _) => None,
            (true, true) => Some(WordType::Decimal(low..=high)),
            (true, false) => Some(WordType::Int(low.whole()?..=high.whole()?)),
        };
    }
    if value.contains('|') {
        let words: Vec<String> = value.split('|').map(str::to_owned).collect();
        let is_word = |word: &String| !word.is_empty() && !word.starts_with('-');
        return words.iter().all(is_word).then_some(WordType::Choice(words));
    }
    match value {
        "TEXT" => Some(WordType::Text),
        "PATH" => Some(WordType::Path),
        "HOST" => Some(WordType::Host),
        "NETWORK" => Some(WordType::Cidr),
        "TARGET" => Some(WordType::Target),
        "PORTS" => Some(WordType::Ports),
        "URL" => Some(WordType::Url),
        _ => None,
    }
}

/// Returns a type without further constraints.
fn any(kind: WordType) -> Type {
    Type { kind, pattern: None, max_bytes: WORD_BYTES, reach: TargetReach::default() }
}
