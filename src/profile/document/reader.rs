//! One reader of configuration for both kinds of file: those that are compiled in and those that were parsed now.
//!
//! Each type of a file is big, and the code that reads one is made once for each reader: with a reader for each kind the
//! program had a megabyte more.

use std::fmt::{self, Display};
use std::ops::Range;
use std::slice;

use serde::Deserializer;
use serde::de::value::{BorrowedStrDeserializer, UsizeDeserializer};
use serde::de::{
    self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::Spanned;
use toml::de::{DeInteger, DeString, DeTable, DeValue};
use toml::map;

use super::parsed::{Entry, Node, Value};

/// What does not fit the type that is read, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Error {
    pub message: String,
    pub span: Option<Range<usize>>,
}

impl Error {
    /// Returns the error with its place, unless it has one: the innermost is the nearest.
    fn at(self, span: Range<usize>) -> Self {
        Self { span: self.span.or(Some(span)), ..self }
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: Display>(message: T) -> Self {
        Self { message: message.to_string(), span: None }
    }
}

/// A value of either kind of file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Item<'de> {
    Shipped(&'static Node),
    Parsed(&'de Spanned<DeValue<'de>>),
}

/// A value without its place.
enum Content<'de> {
    Text(&'de str),
    Whole(i64),
    /// A whole number above those.
    Large(u64),
    Fraction(f64),
    Flag(bool),
    Date,
    List(Items<'de>),
    Table(Entries<'de>),
}

impl<'de> Item<'de> {
    fn span(self) -> Range<usize> {
        match self {
            Self::Shipped(node) => node.from..node.to,
            Self::Parsed(value) => value.span(),
        }
    }

    fn content(self) -> Result<Content<'de>, Error> {
        Ok(match self {
            Self::Shipped(node) => match &node.value {
                Value::Text(text) => Content::Text(text.words()),
                Value::Whole(number) => Content::Whole(*number),
                Value::Fraction(number) => Content::Fraction(fraction(number.words())?),
                Value::Flag(flag) => Content::Flag(*flag),
                Value::List(part) => Content::List(Items::Shipped(part.nodes().iter())),
                Value::Table(part) => Content::Table(Entries::Shipped(part.entries().iter())),
            },
            Self::Parsed(value) => match value.get_ref() {
                DeValue::String(text) => Content::Text(text),
                DeValue::Integer(number) => whole(number)?,
                DeValue::Float(number) => Content::Fraction(fraction(number.as_str())?),
                DeValue::Boolean(flag) => Content::Flag(*flag),
                DeValue::Datetime(_) => Content::Date,
                DeValue::Array(values) => Content::List(Items::Parsed(values.iter())),
                DeValue::Table(table) => Content::Table(Entries::Parsed(table.iter())),
            },
        })
    }

    fn visited<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.content()? {
            Content::Text(text) => visitor.visit_borrowed_str(text),
            Content::Whole(number) => visitor.visit_i64(number),
            Content::Large(number) => visitor.visit_u64(number),
            Content::Fraction(number) => visitor.visit_f64(number),
            Content::Flag(flag) => visitor.visit_bool(flag),
            Content::Date => Err(de::Error::invalid_type(Unexpected::Other("date"), &visitor)),
            Content::List(items) => visitor.visit_seq(List(items)),
            Content::Table(entries) => visitor.visit_map(Table { entries, value: None }),
        }
    }
}

fn whole<'de>(number: &DeInteger<'_>) -> Result<Content<'de>, Error> {
    let digits = number.as_str();
    let radix = number.radix();
    let large = || u64::from_str_radix(digits, radix).map(Content::Large);
    i64::from_str_radix(digits, radix)
        .map(Content::Whole)
        .or_else(|_| large())
        .map_err(de::Error::custom)
}

fn fraction(digits: &str) -> Result<f64, Error> {
    digits.parse().map_err(de::Error::custom)
}

impl<'de> Deserializer<'de> for Item<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.visited(visitor).map_err(|error| error.at(self.span()))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self).map_err(|error| error.at(self.span()))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self).map_err(|error| error.at(self.span()))
    }

    /// Serves `Spanned`, which asks for a struct of this name, whose three fields are where its value starts,
    /// where it ends, and the value.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match is_spanned(name, fields) {
            true => {
                let place = Place { value: self, span: self.span(), fields: fields.iter() };
                visitor.visit_map(place).map_err(|error| error.at(self.span()))
            }
            false => self.deserialize_any(visitor),
        }
    }

    /// Reads an enum whose values are words: no file has others.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.content() {
            Ok(Content::Text(text)) => BorrowedStrDeserializer::new(text)
                .deserialize_enum(name, variants, visitor)
                .map_err(|error: Error| error.at(self.span())),
            Ok(_) | Err(_) => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        <V: Visitor<'de>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// Values of a list.
enum Items<'de> {
    Shipped(slice::Iter<'static, Node>),
    Parsed(slice::Iter<'de, Spanned<DeValue<'de>>>),
}

impl<'de> Iterator for Items<'de> {
    type Item = Item<'de>;

    fn next(&mut self) -> Option<Item<'de>> {
        match self {
            Self::Shipped(nodes) => nodes.next().map(Item::Shipped),
            Self::Parsed(values) => values.next().map(Item::Parsed),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Shipped(nodes) => nodes.size_hint(),
            Self::Parsed(values) => values.size_hint(),
        }
    }
}

struct List<'de>(Items<'de>);

impl<'de> SeqAccess<'de> for List<'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        self.0.next().map(|item| seed.deserialize(item)).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.size_hint().0)
    }
}

/// Keys and values of a table.
enum Entries<'de> {
    Shipped(slice::Iter<'static, Entry>),
    Parsed(map::Iter<'de, Spanned<DeString<'de>>, Spanned<DeValue<'de>>>),
}

impl<'de> Iterator for Entries<'de> {
    type Item = (Key<'de>, Item<'de>);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Shipped(entries) => entries.next().map(|(key, node)| {
                // The place of a key is not kept, and nothing asks for it.
                (Key { text: key.words(), span: node.from..node.to }, Item::Shipped(node))
            }),
            Self::Parsed(entries) => entries.next().map(|(key, value)| {
                (Key { text: key.get_ref(), span: key.span() }, Item::Parsed(value))
            }),
        }
    }
}

struct Table<'de> {
    entries: Entries<'de>,
    /// Value of the key that was read last.
    value: Option<Item<'de>>,
}

impl<'de> MapAccess<'de> for Table<'de> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let value = self.value.take().ok_or_else(|| de::Error::custom("a value without a key"))?;
        seed.deserialize(value)
    }
}

/// Key of a table, and its place.
struct Key<'de> {
    text: &'de str,
    span: Range<usize>,
}

impl<'de> Deserializer<'de> for Key<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.text).map_err(|error: Error| error.at(self.span))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match is_spanned(name, fields) {
            true => {
                let value = BorrowedStrDeserializer::new(self.text);
                visitor.visit_map(Place { value, span: self.span, fields: fields.iter() })
            }
            false => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        BorrowedStrDeserializer::new(self.text)
            .deserialize_enum(name, variants, visitor)
            .map_err(|error: Error| error.at(self.span))
    }

    forward_to_deserialize_any! {
        <V: Visitor<'de>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// Returns true for the struct as which `Spanned` asks for a value with its place.
fn is_spanned(name: &str, fields: &[&str]) -> bool {
    fields.len() == 3 && name.starts_with("$__serde_spanned")
}

/// A value with its place.
struct Place<T> {
    value: T,
    span: Range<usize>,
    /// Fields that are still to be read: where the value starts, where it ends, and the value.
    fields: slice::Iter<'static, &'static str>,
}

impl<'de, T: Deserializer<'de, Error = Error> + Copy> MapAccess<'de> for Place<T> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let key = self.fields.as_slice().first();
        key.map(|key| seed.deserialize(BorrowedStrDeserializer::new(key))).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let number = |at: usize| -> UsizeDeserializer<Error> { at.into_deserializer() };
        self.fields.next();
        match self.fields.len() {
            2 => seed.deserialize(number(self.span.start)),
            1 => seed.deserialize(number(self.span.end)),
            _ => seed.deserialize(self.value),
        }
    }
}

/// Makes the table of a whole file a value, as tables within it are.
pub(super) fn value<'i>(table: Spanned<DeTable<'i>>) -> Spanned<DeValue<'i>> {
    let span = table.span();
    Spanned::new(span, DeValue::Table(table.into_inner()))
}
