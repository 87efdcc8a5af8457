//! JSON of scripts and of metadata, parsed into no more values than are of use: a value takes up to forty times the memory
//! of its text.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Values of the largest document. A client that shows an object shows no more of them.
pub(crate) const VALUES: usize = 200_000;

/// Document that a text begins with.
#[derive(Debug, Default)]
pub(crate) struct FirstDocument {
    /// `None` if the field is absent, or if it has more than [`VALUES`].
    pub(crate) value: Option<Value>,
    /// True if nothing stands behind it.
    pub(crate) is_alone: bool,
    pub(crate) is_too_large: bool,
}

impl FirstDocument {
    /// Parses the document.
    pub(crate) fn of(text: &[u8]) -> Self {
        let mut left = VALUES;
        let mut counted = serde_json::Deserializer::from_slice(text);
        if Counting(&mut left).deserialize(&mut counted).is_err() {
            return Self { is_too_large: left == 0, ..Self::default() };
        }
        let mut values = serde_json::Deserializer::from_slice(text).into_iter::<Value>();
        let value = values.next().and_then(Result::ok);
        let rest = text.get(values.byte_offset()..).unwrap_or_default();
        Self { value, is_alone: rest.trim_ascii().is_empty(), is_too_large: false }
    }

    /// Returns the document, if the text is nothing else.
    pub(crate) fn alone(&self) -> Option<&Value> {
        self.value.as_ref().filter(|_| self.is_alone)
    }
}

/// Levels of the deepest document of metadata. A report of a project holds them some levels deeper, and no parser takes
/// more than 127.
const LEVELS: usize = 100;

/// Returns true for a document of JSON that is nested deeper than metadata may be.
pub(crate) fn is_too_deep(text: &str) -> bool {
    let mut depth = 0usize;
    let mut is_text = false;
    let mut is_escaped = false;
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'[' | b'{' if !is_text => depth += 1,
            b']' | b'}' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > LEVELS {
            return true;
        }
    }
    false
}

/// Takes the values of a document from those that are `left`.
///
/// # Errors
/// A text that is not JSON, or one with more values.
pub(crate) fn take_values(text: &str, left: &mut usize) -> serde_json::Result<()> {
    Counting(left).deserialize(&mut serde_json::Deserializer::from_str(text))
}

/// Counts the values of a document without keeping them.
struct Counting<'c>(&'c mut usize);

impl Counting<'_> {
    fn count<E: Error>(&mut self) -> Result<(), E> {
        *self.0 = self.0.saturating_sub(1);
        match *self.0 {
            0 => Err(E::custom("has too many values")),
            _ => Ok(()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Counting<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(mut self, deserializer: D) -> Result<(), D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counting<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, _value: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _value: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _value: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _value: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _value: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Counting(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<(), A::Error> {
        while object.next_key::<IgnoredAny>()?.is_some() {
            // A key is a text too.
            self.count()?;
            object.next_value_seed(Counting(&mut *self.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_is_the_first_of_a_text_and_has_so_many_values() {
        let first = |text: &str| {
            let first = FirstDocument::of(text.as_bytes());
            (first.value, first.is_alone, first.is_too_large)
        };
        assert_eq!(
            first(" {\"a\": [1, null, -2.5]} \n"),
            (Some(json!({"a": [1, null, -2.5]})), true, false)
        );
        assert_eq!(first("{} {}"), (Some(json!({})), false, false));
        assert_eq!(first("text"), (None, false, false));
        assert_eq!(first(""), (None, false, false));
        let list = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert!(first(&list(VALUES - 2)).0.is_some());
        assert_eq!(first(&list(VALUES)), (None, false, true));
        assert_eq!(
            first(&format!("{{{}\"\":0}}", "\"\":0,".repeat(VALUES / 2))),
            (None, false, true)
        );
        let nested = |levels: usize| "[".repeat(levels) + "\"[\\\"[\"" + &"]".repeat(levels);
        assert_eq!((is_too_deep(&nested(100)), is_too_deep(&nested(101))), (false, true));
        let deep = "[".repeat(10_000);
        assert_eq!(first(&deep), (None, false, false));
    }
}
