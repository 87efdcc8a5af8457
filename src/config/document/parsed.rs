//! The shipped files as parsed by `build.rs`, so that their TOML is not parsed at each start.
//!
//! `item` presents them like the files of an operator, which are parsed when they are read.

/// A value of a file, with its byte range there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) value: Value,
}

/// Type of a TOML value, as far as configuration files use it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
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
pub(super) struct Text {
    at: usize,
    long: usize,
}

/// A range of a list that is shared by all files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    first: usize,
    count: usize,
}

/// A key and its value.
pub(super) type Entry = (Text, Node);

/// The content of all files. The lists contain no pointers, which would have to be relocated at each
/// start, page by page.
struct Shipped {
    text: &'static str,
    nodes: &'static [Node],
    entries: &'static [Entry],
    /// Files by their path in the source tree.
    files: &'static [Entry],
}

static SHIPPED: Shipped = include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

impl Text {
    pub(super) fn words(self) -> &'static str {
        SHIPPED.text.get(self.at..self.at + self.long).unwrap_or_default()
    }
}

impl Part {
    pub(super) fn nodes(self) -> &'static [Node] {
        self.of(SHIPPED.nodes)
    }

    pub(super) fn entries(self) -> &'static [Entry] {
        self.of(SHIPPED.entries)
    }

    fn of<T>(self, all: &'static [T]) -> &'static [T] {
        all.get(self.first..self.first + self.count).unwrap_or_default()
    }
}

/// Returns the content of a file that is compiled in, by its path in the sources.
pub(super) fn shipped(path: &str) -> Option<&'static Node> {
    SHIPPED.files.iter().find(|(name, _)| name.words() == path).map(|(_, node)| node)
}

#[cfg(test)]
mod tests {
    use toml::Spanned;
    use toml::de::{DeTable, DeValue};

    use super::super::{Item, Read};
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
                let nodes = part.nodes().iter().map(here);
                format!("[{}]", nodes.collect::<Vec<_>>().join(", "))
            }
            Value::Table(part) => {
                let entry = |(key, node): &Entry| format!("{:?}: {}", key.words(), here(node));
                let entries = part.entries().iter().map(entry);
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
        let path = "sandbox-profiles/bash.toml";
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let text = std::fs::read_to_string(root.join(path))?;
        let node = shipped(path).ok_or("not compiled in")?;
        let item = Item::shipped(node);
        let table = item.table().map_err(|error| error.message)?;
        let get = |key: &str| table.get(key).ok_or("no such key");
        let name = Spanned::<String>::read(get("name")?).map_err(|error| error.message)?;
        assert_eq!(text.get(name.span()), Some("\"bash\""));
        assert_eq!(name.get_ref(), "bash");
        let extends = String::read(get("extends")?).map_err(|error| error.message)?;
        assert_eq!(extends, "base");
        assert!(table.get("absent").is_none());
        let refused = table.only(&["name"], &[]).map_err(|error| error.message);
        let refused = refused.err().unwrap_or_default();
        assert!(refused.starts_with("unknown field `"), "{refused}");
        assert!(refused.ends_with("`, expected `name`"), "{refused}");
        Ok(())
    }
}
