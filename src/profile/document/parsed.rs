//! The shipped files as parsed by `build.rs`, so that their TOML is not parsed at each start.
//!
//! The same types as for other files define the meaning of the content and its mistakes; only the
//! deserialiser differs. An operator's files are parsed when they are read.

use serde::Deserializer;
use serde::de::value::{BorrowedStrDeserializer, Error, MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;

/// A value of a file, with its byte range there.
#[derive(Debug, PartialEq, Eq)]
pub struct Node {
    from: usize,
    to: usize,
    value: Value,
}

/// Type of a TOML value, as far as configuration files use it.
#[derive(Debug, PartialEq, Eq)]
enum Value {
    Text(Text),
    Whole(i64),
    /// A number with a decimal point, as text.
    Fraction(Text),
    Flag(bool),
    /// A range of [`Shipped::nodes`].
    List(Part),
    /// A range of [`Shipped::entries`].
    Table(Part),
}

/// A range of [`Shipped::text`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Text {
    at: usize,
    long: usize,
}

/// A range of a list that is shared by all files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    first: usize,
    count: usize,
}

/// The content of all files. The lists contain no pointers, which would have to be relocated at
/// each start, page by page.
struct Shipped {
    text: &'static str,
    nodes: &'static [Node],
    entries: &'static [(Text, Node)],
    /// Files by their path in the source tree.
    files: &'static [(Text, Node)],
}

static SHIPPED: Shipped = include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

impl Text {
    fn words(self) -> &'static str {
        SHIPPED.text.get(self.at..self.at + self.long).unwrap_or_default()
    }
}

impl Part {
    fn slice<T>(self, all: &'static [T]) -> &'static [T] {
        all.get(self.first..self.first + self.count).unwrap_or_default()
    }
}

/// Returns the content of a shipped file, by its path in the source tree.
pub(crate) fn shipped(path: &str) -> Option<&'static Node> {
    SHIPPED.files.iter().find(|(name, _)| name.words() == path).map(|(_, node)| node)
}

impl IntoDeserializer<'static> for &'static Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl Deserializer<'static> for &'static Node {
    type Error = Error;

    fn deserialize_any<V: Visitor<'static>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Text(text) => visitor.visit_borrowed_str(text.words()),
            Value::Whole(number) => visitor.visit_i64(number),
            Value::Fraction(number) => {
                visitor.visit_f64(number.words().parse().map_err(serde::de::Error::custom)?)
            }
            Value::Flag(flag) => visitor.visit_bool(flag),
            Value::List(part) => {
                visitor.visit_seq(SeqDeserializer::new(part.slice(SHIPPED.nodes).iter()))
            }
            Value::Table(part) => {
                let entries = part.slice(SHIPPED.entries).iter();
                let entries = entries.map(|(key, node)| (key.words(), node));
                visitor.visit_map(MapDeserializer::new(entries))
            }
        }
    }

    fn deserialize_option<V: Visitor<'static>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    /// Supports `Spanned`, which requests a struct of this name with three fields: start and end of
    /// the value, and the value.
    fn deserialize_struct<V: Visitor<'static>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match fields {
            [_, _, _] if name.starts_with("$__serde_spanned") => {
                visitor.visit_map(SpannedFields { node: self, fields: fields.iter() })
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'static>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'static>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.value {
            Value::Text(text) => {
                BorrowedStrDeserializer::new(text.words()).deserialize_enum(name, variants, visitor)
            }
            Value::Whole(_)
            | Value::Fraction(_)
            | Value::Flag(_)
            | Value::List(_)
            | Value::Table(_) => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        <V: Visitor<'static>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// A value with its position.
struct SpannedFields {
    node: &'static Node,
    /// The remaining fields: start and end of the value, and the value.
    fields: std::slice::Iter<'static, &'static str>,
}

impl MapAccess<'static> for SpannedFields {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'static>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let key = self.fields.as_slice().first();
        key.map(|key| seed.deserialize(BorrowedStrDeserializer::new(key))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'static>>(&mut self, seed: V) -> Result<V::Value, Error> {
        self.fields.next();
        match self.fields.len() {
            2 => seed.deserialize(self.node.from.into_deserializer()),
            1 => seed.deserialize(self.node.to.into_deserializer()),
            _ => seed.deserialize(self.node),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use toml::Spanned;
    use toml::de::{DeTable, DeValue};

    use super::*;

    /// Formats a value of a parsed TOML text with the positions of all its parts.
    fn formatted(value: &Spanned<DeValue<'_>>) -> String {
        let span = value.span();
        let value = match value.get_ref() {
            DeValue::String(text) => format!("{text:?}"),
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(flag) => flag.to_string(),
            DeValue::Array(values) => {
                format!("[{}]", values.iter().map(formatted).collect::<Vec<_>>().join(", "))
            }
            DeValue::Table(table) => entries(table),
            other @ DeValue::Datetime(_) => format!("{other:?}"),
        };
        format!("{}..{} {value}", span.start, span.end)
    }

    fn entries(table: &DeTable<'_>) -> String {
        let entry =
            |(key, value): (&Spanned<_>, _)| format!("{:?}: {}", key.get_ref(), formatted(value));
        format!("{{{}}}", table.iter().map(entry).collect::<Vec<_>>().join(", "))
    }

    /// Formats a compiled-in value in the same way.
    fn here(node: &Node) -> String {
        format!("{}..{} {}", node.from, node.to, value(&node.value))
    }

    fn value(value: &Value) -> String {
        match value {
            Value::Text(text) => format!("{:?}", text.words()),
            Value::Whole(number) => number.to_string(),
            Value::Fraction(number) => number.words().to_owned(),
            Value::Flag(flag) => flag.to_string(),
            Value::List(part) => {
                let nodes = part.slice(SHIPPED.nodes).iter().map(here);
                format!("[{}]", nodes.collect::<Vec<_>>().join(", "))
            }
            Value::Table(part) => {
                let entry =
                    |(key, node): &(Text, Node)| format!("{:?}: {}", key.words(), here(node));
                let entries = part.slice(SHIPPED.entries).iter().map(entry);
                format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
            }
        }
    }

    #[test]
    fn every_shipped_file_is_compiled_in_as_its_text_says() -> std::io::Result<()> {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut seen = 0;
        for directory in ["policies", "sandbox-profiles", "sandbox-profiles/egress"] {
            for entry in std::fs::read_dir(root.join(directory))? {
                let entry = entry?;
                if entry.path().is_dir() {
                    continue;
                }
                let name = entry.file_name().into_string().unwrap_or_default();
                let path = format!("{directory}/{name}");
                let text = std::fs::read_to_string(root.join(&path))?;
                let table = DeTable::parse(&text).map_err(std::io::Error::other)?;
                let here = shipped(&path).map(|node| value(&node.value));
                assert_eq!(here, Some(entries(table.get_ref())), "{path}");
                seen += 1;
            }
        }
        assert_eq!(seen, SHIPPED.files.len(), "a file is compiled in and no longer there");
        Ok(())
    }

    #[test]
    fn a_value_is_deserialised_with_its_position() -> Result<(), Box<dyn std::error::Error>> {
        #[derive(Debug, Deserialize)]
        struct File {
            name: Spanned<String>,
            extends: Option<Spanned<String>>,
            absent: Option<bool>,
        }
        let path = "sandbox-profiles/bash.toml";
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let text = std::fs::read_to_string(root.join(path))?;
        let node = shipped(path).ok_or("not compiled in")?;
        let file = File::deserialize(node)?;
        assert_eq!(text.get(file.name.span()), Some("\"bash\""));
        assert_eq!(file.name.get_ref(), "bash");
        assert_eq!(file.extends.map(Spanned::into_inner).as_deref(), Some("base"));
        assert_eq!(file.absent, None);
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Less {
            #[serde(rename = "name")]
            _name: String,
        }
        let refused = Less::deserialize(node).map_err(|error| error.to_string());
        let refused = refused.err().unwrap_or_default();
        assert!(refused.starts_with("unknown field `"), "{refused}");
        assert!(refused.ends_with("`, expected `name`"), "{refused}");
        Ok(())
    }
}
