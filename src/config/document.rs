//! Parses a TOML file into a value, or reports the mistake in it: file, line, column, and the
//! nearest valid key.

mod error;
mod item;
#[macro_use]
mod keys;
mod parsed;
mod read;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use model::nearest::nearest;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use error::ReadError;
pub use item::{Content, Item, Table};
pub use keys::{FileKey, Form, KeyTable, one_line};
pub use read::{Read, Reason, parsed, text, word};

/// The schema version that this version reads, for all three kinds of files.
pub(crate) const SCHEMA: i64 = 1;

/// A mistake in a file, with its position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Mistake {
    /// The file's name as the operator knows it.
    pub file: String,
    /// Line and column, both starting at 1; columns count characters.
    pub line: usize,
    pub column: usize,
    pub message: String,
    pub hint: Option<String>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

/// The name and text of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub file: String,
    pub text: Cow<'static, str>,
    /// The parsed content of a shipped file.
    parsed: Option<&'static parsed::Node>,
    /// Home directory of the file's author, for `~/`; `None` for a shipped file.
    pub(crate) home: Option<PathBuf>,
}

impl Document {
    pub fn new(file: &str, text: &str) -> Self {
        Self { file: file.to_owned(), text: Cow::Owned(text.to_owned()), parsed: None, home: None }
    }

    /// Sets the home directory of the file's author.
    #[must_use]
    pub fn with_home(self, home: Option<PathBuf>) -> Self {
        Self { home, ..self }
    }

    /// Returns a shipped document, by its path in the source tree.
    #[must_use]
    pub fn shipped(path: &str, text: &'static str) -> Self {
        let file = format!("embedded:{path}");
        let text = Cow::Borrowed(text);
        Self { file, text, parsed: parsed::shipped(path), home: None }
    }

    /// Returns true for a shipped document.
    #[must_use]
    pub fn is_shipped(&self) -> bool {
        self.parsed.is_some()
    }

    /// Reads the document as a `T`.
    ///
    /// # Errors
    /// The text is not TOML, has another schema version, or is not a `T`.
    pub fn read<T: Read>(&self) -> Result<T, Mistake> {
        self.open(T::read)
    }

    /// Calls `read` with the table of the whole document.
    ///
    /// # Errors
    /// The text is not TOML, has another schema version, or `read` fails.
    pub fn open<T>(
        &self,
        read: impl FnOnce(Item<'_>) -> Result<T, ReadError>,
    ) -> Result<T, Mistake> {
        if let Some(node) = self.parsed {
            return read(Item::shipped(node)).map_err(|error| self.unfit(error));
        }
        let table = DeTable::parse(&self.text).map_err(|error| self.malformed(&error))?;
        // First, so that a newer file is reported as such and not as a list of unknown keys.
        if let Some(schema) = table.get_ref().get("schema")
            && let DeValue::Integer(number) = schema.get_ref()
            && i64::from_str_radix(number.as_str(), number.radix()) != Ok(SCHEMA)
        {
            let message = format!("schema {} is not one this version reads", number.as_str());
            let hint = format!("this version reads `schema = {SCHEMA}`");
            return Err(self.mistake(schema.span(), message).with_hint(hint));
        }
        let value = Spanned::new(table.span(), DeValue::Table(table.into_inner()));
        read(Item::parsed(&value)).map_err(|error| self.unfit(error))
    }

    /// Returns the number of the line, from 1, with a byte of the text.
    #[must_use]
    pub fn line(&self, byte: usize) -> usize {
        let before = self.text.get(..byte).unwrap_or(&self.text);
        memchr::memchr_iter(b'\n', before.as_bytes()).count() + 1
    }

    /// Makes a mistake at a byte range of the text.
    pub fn mistake(&self, span: Range<usize>, message: impl Into<String>) -> Mistake {
        let before = self.text.get(..span.start).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Mistake {
            file: self.file.clone(),
            line: self.line(span.start),
            column: before.get(line_start..).unwrap_or("").chars().count() + 1,
            message: message.into(),
            hint: None,
        }
    }

    fn malformed(&self, error: &toml::de::Error) -> Mistake {
        let message: String = error.message().lines().collect::<Vec<_>>().join(": ");
        self.mistake(error.span().unwrap_or(0..0), message)
    }

    /// Turns an error about this document into a mistake with its place.
    pub fn unfit(&self, error: ReadError) -> Mistake {
        let message: String = error.message.lines().collect::<Vec<_>>().join(": ");
        let hint = error.hint.or_else(|| hint_for(&message));
        let mistake = self.mistake(error.span, message);
        Mistake { hint, ..mistake }
    }
}

impl Mistake {
    /// Adds a hint to the mistake.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Derives a hint from the message of the reader, which lists the valid names: ``unknown field `x`,
/// expected one of `a`, `b` ``.
fn hint_for(message: &str) -> Option<String> {
    if message.starts_with("missing field `why`") {
        return Some(read::REASONS.to_owned());
    }
    let rest = ["unknown field `", "unknown variant `"]
        .iter()
        .find_map(|start| message.strip_prefix(start))?;
    let (unknown, expected) = rest.split_once("`, expected ")?;
    let valid = expected.split('`').skip(1).step_by(2);
    nearest(unknown, valid).map(|name| format!("did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use toml::Spanned;

    use super::*;

    table! {
        struct Sample {
            _schema "schema": i64,
            _timeout "timeout": i64 = 0,
            _grants "grants": Vec<Reason> = Vec::new(),
        }
    }

    table! {
        struct Reason {
            _why "why": String,
        }
    }

    words! {
        enum Word {
            One = "one",
        }
    }

    table! {
        struct Lists {
            _numbers "numbers": Vec<u8> = Vec::new(),
            words: std::collections::BTreeMap<Spanned<String>, Spanned<Word>> = Default::default(),
        }
    }

    fn message_of(text: &str) -> String {
        Document::new("a.toml", text)
            .read::<Sample>()
            .map_or_else(|mistake| mistake.to_string(), |sample| format!("{sample:?}"))
    }

    #[test]
    fn an_unknown_key_is_reported_with_its_position_and_the_nearest_key() {
        assert_eq!(
            message_of("schema = 1\n\n  timeuot = 3\n"),
            "a.toml:3:3: unknown field `timeuot`, expected one of `schema`, `timeout`, `grants`\n\
             hint: did you mean `timeout`?"
        );
    }

    #[test]
    fn a_key_unlike_any_valid_one_gets_no_suggestion() {
        assert_eq!(
            message_of("schema = 1\nzzz = 3\n"),
            "a.toml:2:1: unknown field `zzz`, expected one of `schema`, `timeout`, `grants`"
        );
    }

    #[test]
    fn transposed_letters_are_recognised_in_a_short_word() {
        assert_eq!(nearest("wyh", ["matches", "why", "when"]), Some("why"));
        assert_eq!(nearest("xyz", ["matches", "why", "when"]), None);
    }

    #[test]
    fn a_missing_why_is_reported_at_its_grant() {
        assert_eq!(
            message_of("schema = 1\n[[grants]]\n"),
            "a.toml:2:1: missing field `why`\n\
             hint: every grant and every rule says why it is there"
        );
    }

    #[test]
    fn a_value_that_does_not_fit_is_named_at_its_own_place() {
        let cases = [
            ("numbers = [1, 2, 300]", "1:18: invalid value: integer `300`, expected u8"),
            ("numbers = [1, \"2\"]", "1:15: invalid type: string \"2\", expected u8"),
            ("numbers = 18446744073709551616", "1:11: number too large to fit in target type"),
            ("numbers = 2026-01-01", "1:11: invalid type: date, expected a sequence"),
            ("words = { a = \"two\" }", "1:15: unknown variant `two`, expected `one`"),
            ("words = { a = 1 }", "1:15: invalid type: integer `1`, expected a string"),
        ];
        for (text, message) in cases {
            let read = Document::new("a", text).read::<Lists>();
            let mistake = read.err().map(|mistake| mistake.to_string());
            assert_eq!(mistake, Some(format!("a:{message}")), "{text}");
        }
        let read = Document::new("a", "words = { b = \"one\" }").read::<Lists>();
        let words = read.map(|lists| lists.words).unwrap_or_default();
        let places: Vec<_> = words.iter().map(|(key, word)| (key.span(), word.span())).collect();
        assert_eq!(places, [(10..11, 14..19)]);
    }

    #[test]
    fn another_schema_is_reported_before_any_unknown_key() {
        assert_eq!(
            message_of("# new\nschema = 2\nnovel = true\n"),
            "a.toml:2:10: schema 2 is not one this version reads\n\
             hint: this version reads `schema = 1`"
        );
    }

    #[test]
    fn columns_count_characters() {
        let document = Document::new("a.toml", "a = 1\nä = 2");
        let mistake = document.mistake(9..10, "here");
        assert_eq!((mistake.line, mistake.column), (2, 3));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC*") {
            let _read = message_of(&text);
        }

        #[test]
        fn text_that_looks_like_toml_never_panics(
            text in "(schema|why|grants|\\[\\[|\\]\\]|\\[|\\]|=|\"|\n| |1|\\{|\\}|,|`|é)*"
        ) {
            let _read = message_of(&text);
        }
    }
}
