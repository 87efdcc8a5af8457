//! The one reader of configuration: how each type of a file is made from a value of TOML.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use model::units::{Processors, Size, Time};
use toml::Spanned;

use super::error::ReadError;
use super::item::{Content, Item, Table};
use super::keys::Form;

/// Hint about a reason that is missing or blank.
pub(super) const REASONS: &str = "every grant and every rule says why it is there";

/// A type that a value of a file becomes.
pub trait Read: Sized {
    /// Reads a value.
    ///
    /// # Errors
    /// The value does not fit.
    fn read(item: Item<'_>) -> Result<Self, ReadError>;

    /// Returns the form of the values, for the JSON Schema and the reference.
    fn form() -> Form;

    /// Returns the value of a key that is absent, unless the key is required.
    fn absent() -> Option<Self> {
        None
    }
}

impl<'d> Table<'d> {
    /// Reads the value of a key of `table`. `absent` is its value where the key is absent, unless
    /// the type has one.
    ///
    /// # Errors
    /// The value is no `T`, or the key is missing.
    pub fn key<T: Read>(
        self,
        table: Item<'d>,
        key: &str,
        absent: Option<fn() -> T>,
    ) -> Result<T, ReadError> {
        match self.get(key) {
            Some(item) => T::read(item),
            None => absent
                .map(|absent| absent())
                .or_else(T::absent)
                .ok_or_else(|| table.error(format!("missing field `{key}`"))),
        }
    }
}

macro_rules! whole_numbers {
    ($($number:ident)*) => { $(
        impl Read for $number {
            fn read(item: Item<'_>) -> Result<Self, ReadError> {
                let Content::Whole(number) = item.content()? else {
                    return Err(item.unexpected(stringify!($number)));
                };
                let expected = stringify!($number);
                let invalid = format!("invalid value: integer `{number}`, expected {expected}");
                Self::try_from(number).map_err(|_| item.error(invalid))
            }

            fn form() -> Form {
                Form::plain("whole number", r#""type": "integer", "minimum": 0"#)
            }
        }
    )* };
}

whole_numbers!(u8 u32 u64 usize i64);

impl Read for bool {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        let Content::Flag(flag) = item.content()? else {
            return Err(item.unexpected("a boolean"));
        };
        Ok(flag)
    }

    fn form() -> Form {
        Form::plain("`true` or `false`", r#""type": "boolean""#)
    }
}

impl Read for String {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        text(item).map(str::to_owned)
    }

    fn form() -> Form {
        Form::plain("text", r#""type": "string""#)
    }
}

/// Reason for a grant, a rule or an entry of a file. A blank one is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(String);

impl Reason {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Read for Reason {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        let text = text(item)?;
        match text.trim().is_empty() {
            true => Err(item.error("`why` is blank").with_hint(REASONS)),
            false => Ok(Self(text.to_owned())),
        }
    }

    fn form() -> Form {
        String::form()
    }
}

impl Read for PathBuf {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        text(item).map(Self::from)
    }

    fn form() -> Form {
        Form::plain("path", r#""type": "string""#)
    }
}

/// Returns the text of a value.
///
/// # Errors
/// The value is no text.
pub fn text<'d>(item: Item<'d>) -> Result<&'d str, ReadError> {
    let Content::Text(text) = item.content()? else {
        return Err(item.unexpected("a string"));
    };
    Ok(text)
}

/// Reads one of several words.
///
/// # Errors
/// The value is another word, or no text.
pub fn word<T: Copy>(item: Item<'_>, words: &[(&str, T)]) -> Result<T, ReadError> {
    let found = text(item)?;
    words.iter().find(|(word, _)| *word == found).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        ReadError::unknown(item.span(), "variant", found, &names)
    })
}

/// Reads a value that is parsed from text.
///
/// # Errors
/// The value is no text, or it cannot be parsed.
pub fn parsed<T: FromStr<Err: Display>>(item: Item<'_>) -> Result<T, ReadError> {
    text(item)?.parse().map_err(|error: T::Err| item.error(error.to_string()))
}

/// Reads a number with its unit, or a bare number.
fn unit<T: FromStr<Err: Display>>(item: Item<'_>) -> Result<T, ReadError> {
    let number = match item.content()? {
        Content::Text(text) => text.parse(),
        Content::Whole(number) => number.to_string().parse(),
        Content::Fraction(number) => number.to_string().parse(),
        Content::Flag(_) | Content::Date | Content::List(_) | Content::Table(_) => {
            let expected = "a whole number with its unit, such as \"30s\" or \"64M\"";
            return Err(item.unexpected(expected));
        }
    };
    number.map_err(|error: T::Err| item.error(error.to_string()))
}

impl Read for Time {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        unit(item)
    }

    fn form() -> Form {
        let rule =
            r#""type": ["string", "number"], "pattern": "^\\s*[0-9]+(\\.[0-9]+)?(ms|s|m|h)?\\s*$""#;
        Form::plain("time", rule)
    }
}

impl Read for Size {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        unit(item)
    }

    fn form() -> Form {
        let rule = r#""type": ["string", "integer"], "pattern": "^\\s*[0-9]+([KkMmGgTt](B|iB)?|[Bb])?\\s*$""#;
        Form::plain("size", rule)
    }
}

impl Read for Processors {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        unit(item)
    }

    fn form() -> Form {
        let rule = r#""type": ["number", "string"], "pattern": "^\\s*[0-9]+(\\.[0-9]{1,2})?\\s*$""#;
        Form::plain("number, two decimals at most", rule)
    }
}

impl<T: Read> Read for Spanned<T> {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        T::read(item).map(|value| Self::new(item.span(), value))
    }

    fn form() -> Form {
        T::form()
    }
}

impl<T: Read> Read for Option<T> {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        T::read(item).map(Some)
    }

    fn form() -> Form {
        T::form()
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: Read> Read for Vec<T> {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        item.items()?.map(T::read).collect()
    }

    fn form() -> Form {
        Form::List(Box::new(T::form()))
    }
}

impl<T: Read + Ord> Read for BTreeSet<T> {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        item.items()?.map(T::read).collect()
    }

    fn form() -> Form {
        Form::List(Box::new(T::form()))
    }
}

impl<T: Read> Read for (T, T) {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        let mut items = item.items()?;
        match (items.next(), items.next(), items.next()) {
            (Some(first), Some(second), None) => Ok((T::read(first)?, T::read(second)?)),
            _ => Err(item.error("a list of two values is expected")),
        }
    }

    fn form() -> Form {
        Form::Pair(Box::new(T::form()))
    }
}

impl<T: Read> Read for BTreeMap<Spanned<String>, T> {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        let entries = item.table()?.entries();
        let read = |(key, value): (Spanned<&str>, _)| {
            let name = key.get_ref().to_string();
            T::read(value).map(|value| (Spanned::new(key.span(), name), value))
        };
        entries.map(read).collect()
    }

    fn form() -> Form {
        Form::Map(Box::new(T::form()))
    }
}

impl<T: Read> Read for BTreeMap<String, T> {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        let entries = item.table()?.entries();
        let read = |(key, value): (Spanned<&str>, _)| {
            T::read(value).map(|value| (key.get_ref().to_string(), value))
        };
        entries.map(read).collect()
    }

    fn form() -> Form {
        Form::Map(Box::new(T::form()))
    }
}
