//! A value of a TOML file with its place: of a shipped file, which was parsed when the program was built, or of a file
//! that is parsed when it is read.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeInteger, DeTable, DeValue};

use super::error::ReadError;
use super::parsed::{Entry, Node, Value};

/// A value with its place.
#[derive(Debug, Clone, Copy)]
pub struct Item<'d>(Source<'d>);

#[derive(Debug, Clone, Copy)]
enum Source<'d> {
    Shipped(&'static Node),
    Parsed(&'d Spanned<DeValue<'d>>),
}

/// A value without its place.
pub enum Content<'d> {
    Text(&'d str),
    Whole(i128),
    Fraction(f64),
    Flag(bool),
    Date,
    List(List<'d>),
    Table(Table<'d>),
}

/// The values of a list.
#[derive(Clone, Copy)]
pub struct List<'d> {
    shipped: &'static [Node],
    parsed: Option<&'d DeArray<'d>>,
}

/// The keys and values of a table.
#[derive(Clone, Copy)]
pub struct Table<'d> {
    shipped: &'static [Entry],
    parsed: Option<&'d DeTable<'d>>,
}

impl<'d> Item<'d> {
    pub(super) fn shipped(node: &'static Node) -> Self {
        Self(Source::Shipped(node))
    }

    pub(super) fn parsed(value: &'d Spanned<DeValue<'d>>) -> Self {
        Self(Source::Parsed(value))
    }

    /// Returns the byte range of the value in the file.
    #[must_use]
    pub fn span(self) -> Range<usize> {
        match self.0 {
            Source::Shipped(node) => node.from..node.to,
            Source::Parsed(value) => value.span(),
        }
    }

    /// Returns the value.
    ///
    /// # Errors
    /// A number that is too large.
    pub fn content(self) -> Result<Content<'d>, ReadError> {
        Ok(match self.0 {
            Source::Shipped(node) => match &node.value {
                Value::Text(text) => Content::Text(text.words()),
                Value::Whole(number) => Content::Whole((*number).into()),
                Value::Fraction(number) => Content::Fraction(self.fraction(number.words())?),
                Value::Flag(flag) => Content::Flag(*flag),
                Value::List(part) => Content::List(List { shipped: part.nodes(), parsed: None }),
                Value::Table(part) => {
                    Content::Table(Table { shipped: part.entries(), parsed: None })
                }
            },
            Source::Parsed(value) => match value.get_ref() {
                DeValue::String(text) => Content::Text(text),
                DeValue::Integer(number) => Content::Whole(self.whole(number)?),
                DeValue::Float(number) => Content::Fraction(self.fraction(number.as_str())?),
                DeValue::Boolean(flag) => Content::Flag(*flag),
                DeValue::Datetime(_) => Content::Date,
                DeValue::Array(values) => {
                    Content::List(List { shipped: &[], parsed: Some(values) })
                }
                DeValue::Table(table) => {
                    Content::Table(Table { shipped: &[], parsed: Some(table) })
                }
            },
        })
    }

    fn whole(self, number: &DeInteger<'_>) -> Result<i128, ReadError> {
        let digits = number.as_str();
        let radix = number.radix();
        i64::from_str_radix(digits, radix)
            .map(i128::from)
            .or_else(|_| u64::from_str_radix(digits, radix).map(i128::from))
            .map_err(|error| self.error(error.to_string()))
    }

    fn fraction(self, digits: &str) -> Result<f64, ReadError> {
        digits.parse().map_err(|error: std::num::ParseFloatError| self.error(error.to_string()))
    }

    /// Makes an error about this value.
    pub fn error(self, message: impl Into<String>) -> ReadError {
        ReadError::new(self.span(), message)
    }

    /// Makes the error about a value of another type than `expected` names.
    #[must_use]
    pub fn unexpected(self, expected: &str) -> ReadError {
        let found = match self.content() {
            Ok(Content::Text(text)) => format!("string {text:?}"),
            Ok(Content::Whole(number)) => format!("integer `{number}`"),
            Ok(Content::Fraction(number)) => format!("floating point `{number}`"),
            Ok(Content::Flag(flag)) => format!("boolean `{flag}`"),
            Ok(Content::Date) => "date".to_owned(),
            Ok(Content::List(_)) => "sequence".to_owned(),
            Ok(Content::Table(_)) => "map".to_owned(),
            Err(error) => return error,
        };
        self.error(format!("invalid type: {found}, expected {expected}"))
    }

    /// Returns the values of a list.
    ///
    /// # Errors
    /// The value is no list.
    pub fn items(self) -> Result<impl Iterator<Item = Self>, ReadError> {
        let Content::List(list) = self.content()? else {
            return Err(self.unexpected("a sequence"));
        };
        Ok(list.items())
    }

    /// Returns the keys and values of a table.
    ///
    /// # Errors
    /// The value is no table.
    pub fn table(self) -> Result<Table<'d>, ReadError> {
        let Content::Table(table) = self.content()? else {
            return Err(self.unexpected("a table"));
        };
        Ok(table)
    }
}

impl<'d> List<'d> {
    fn items(self) -> impl Iterator<Item = Item<'d>> {
        let parsed = self.parsed.into_iter().flat_map(|values| values.iter());
        self.shipped.iter().map(Item::shipped).chain(parsed.map(Item::parsed))
    }
}

impl<'d> Table<'d> {
    /// Returns the keys with their places, and their values. In a shipped file the place of a key
    /// is that of its value.
    pub(super) fn entries(self) -> impl Iterator<Item = (Spanned<&'d str>, Item<'d>)> {
        let shipped = self.shipped.iter().map(|(key, node)| {
            (Spanned::new(node.from..node.to, key.words()), Item::shipped(node))
        });
        let parsed =
            self.parsed.into_iter().flat_map(|table| table.iter()).map(|(key, value)| {
                (Spanned::new(key.span(), &**key.get_ref()), Item::parsed(value))
            });
        shipped.chain(parsed)
    }

    /// Returns the names of the keys, and their values.
    pub fn named(self) -> impl Iterator<Item = (&'d str, Item<'d>)> {
        self.entries().map(|(key, value)| (*key.get_ref(), value))
    }

    /// Returns the value of a key.
    #[must_use]
    pub fn get(self, key: &str) -> Option<Item<'d>> {
        match self.parsed {
            Some(table) => table.get(key).map(Item::parsed),
            None => {
                let entry = self.shipped.iter().find(|(name, _)| name.words() == key);
                entry.map(|(_, node)| Item::shipped(node))
            }
        }
    }

    /// Checks that the table has only these keys.
    ///
    /// # Errors
    /// The first other key.
    pub fn only(self, names: &[&str], more: &[&str]) -> Result<(), ReadError> {
        let is_unknown = |key: &str| !names.contains(&key) && !more.contains(&key);
        match self.entries().find(|(key, _)| is_unknown(key.get_ref())) {
            None => Ok(()),
            Some((key, _)) => {
                let names: Vec<&str> = names.iter().chain(more).copied().collect();
                Err(ReadError::unknown(key.span(), "field", key.get_ref(), &names))
            }
        }
    }
}
