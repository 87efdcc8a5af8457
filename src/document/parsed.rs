//! The files that are compiled in, as `build.rs` parsed them: a start does not read their TOML again.
//!
//! What a text means for us, and what is a mistake in it, is decided by the same types as ever; only
//! their reader is another. A file of an operator's own is parsed when it is read.

use serde::Deserializer;
use serde::de::value::{BorrowedStrDeserializer, Error, MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;

/// A value of a file, and its bytes there.
#[derive(Debug, PartialEq, Eq)]
pub struct Node {
    pub from: usize,
    pub to: usize,
    pub value: Value,
}

/// What a value of TOML is, as far as our files have such.
#[derive(Debug, PartialEq, Eq)]
pub enum Value {
    Text(&'static str),
    Whole(i64),
    Flag(bool),
    List(&'static [Node]),
    Table(&'static [(&'static str, Node)]),
}

/// What [`Shipped`] has for each file: its path in the sources, and its content.
type Shipped = &'static [(&'static str, Node)];

static SHIPPED: Shipped = include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

/// The content of a file that is compiled in, by its path in the sources.
pub fn shipped(path: &str) -> Option<&'static Node> {
    SHIPPED.iter().find(|(name, _)| *name == path).map(|(_, node)| node)
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
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::Whole(number) => visitor.visit_i64(number),
            Value::Flag(flag) => visitor.visit_bool(flag),
            Value::List(nodes) => visitor.visit_seq(SeqDeserializer::new(nodes.iter())),
            Value::Table(entries) => {
                let entries = entries.iter().map(|(key, node)| (*key, node));
                visitor.visit_map(MapDeserializer::new(entries))
            }
        }
    }

    fn deserialize_option<V: Visitor<'static>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    /// A `Spanned` asks for a struct of this name, whose three fields are where its value starts, where
    /// it ends, and the value.
    fn deserialize_struct<V: Visitor<'static>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match fields {
            [start, end, value] if name.starts_with("$__serde_spanned") => {
                visitor.visit_map(Place { node: self, left: vec![value, end, start] })
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
                BorrowedStrDeserializer::new(text).deserialize_enum(name, variants, visitor)
            }
            Value::Whole(_) | Value::Flag(_) | Value::List(_) | Value::Table(_) => {
                self.deserialize_any(visitor)
            }
        }
    }

    forward_to_deserialize_any! {
        <V: Visitor<'static>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// A value with where it stands.
struct Place {
    node: &'static Node,
    /// Fields that are still to be told, the next one last.
    left: Vec<&'static str>,
}

impl MapAccess<'static> for Place {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'static>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let key = self.left.last();
        key.map(|key| seed.deserialize(BorrowedStrDeserializer::new(key))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'static>>(&mut self, seed: V) -> Result<V::Value, Error> {
        self.left.pop();
        match self.left.len() {
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

    /// What the text has, written as [`Debug`] writes a [`Node`].
    fn told(value: &Spanned<DeValue<'_>>) -> String {
        let span = value.span();
        let value = match value.get_ref() {
            DeValue::String(text) => format!("Text({text:?})"),
            DeValue::Integer(number) => format!("Whole({})", number.as_str()),
            DeValue::Boolean(flag) => format!("Flag({flag})"),
            DeValue::Array(values) => {
                format!("List([{}])", values.iter().map(told).collect::<Vec<_>>().join(", "))
            }
            DeValue::Table(table) => format!("Table({})", entries(table)),
            other @ (DeValue::Float(_) | DeValue::Datetime(_)) => format!("{other:?}"),
        };
        format!("Node {{ from: {}, to: {}, value: {value} }}", span.start, span.end)
    }

    fn entries(table: &DeTable<'_>) -> String {
        let entry =
            |(key, value): (&Spanned<_>, _)| format!("({:?}, {})", key.get_ref(), told(value));
        format!("[{}]", table.iter().map(entry).collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn every_shipped_file_is_here_as_its_text_has_it() -> std::io::Result<()> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut seen = 0;
        for directory in ["policies", "sandbox-profiles"] {
            for entry in std::fs::read_dir(root.join(directory))? {
                let name = entry?.file_name().into_string().unwrap_or_default();
                let path = format!("{directory}/{name}");
                let text = std::fs::read_to_string(root.join(&path))?;
                let table = DeTable::parse(&text).map_err(std::io::Error::other)?;
                let here = shipped(&path).map(|node| format!("{:?}", node.value));
                assert_eq!(here, Some(format!("Table({})", entries(table.get_ref()))), "{path}");
                seen += 1;
            }
        }
        assert_eq!(seen, SHIPPED.len(), "a file is compiled in and no longer there");
        Ok(())
    }

    #[test]
    fn a_value_is_read_with_its_place() {
        static FILE: Node = Node {
            from: 0,
            to: 20,
            value: Value::Table(&[
                ("name", Node { from: 7, to: 12, value: Value::Text("one") }),
                ("many", Node { from: 14, to: 20, value: Value::List(&[]) }),
            ]),
        };
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            name: Spanned<String>,
            many: Vec<u8>,
            absent: Option<bool>,
        }
        let read = File::deserialize(&FILE)
            .map(|file| (file.name.span(), file.name.into_inner(), file.many, file.absent));
        assert_eq!(read, Ok((7..12, "one".to_owned(), Vec::new(), None)));
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Less {
            #[serde(rename = "name")]
            _name: String,
        }
        let refused = Less::deserialize(&FILE).map_err(|error| error.to_string());
        assert_eq!(refused.err().as_deref(), Some("unknown field `many`, expected `name`"));
    }
}
