//! Reads JSON in which no key is repeated: of two values for one key, another reader could take the other one.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Reads an object whose keys, at each level, are all different.
///
/// # Errors
/// Text that is no such object.
pub(super) fn object(text: &[u8]) -> serde_json::Result<Map<String, Value>> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = UniqueKeys.deserialize(&mut reader)?;
    reader.end()?;
    let Value::Object(object) = value else {
        return Err(serde_json::Error::custom("is no object"));
    };
    Ok(object)
}

/// Makes a value of JSON without repeated keys.
struct UniqueKeys;

impl<'de> DeserializeSeed<'de> for UniqueKeys {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without repeated keys")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = from.next_element_seed(Self)? {
            all.push(value);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = from.next_key::<String>()? {
            let value = from.next_value_seed(Self)?;
            if all.insert(key, value).is_some() {
                return Err(A::Error::custom("a key is repeated"));
            }
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_read_as_they_are() {
        let text = r#"{"a": [1, -2, 0.5, true, null, "x"], "b": {"a": {}}}"#;
        let read = object(text.as_bytes()).ok().map(Value::Object);
        assert_eq!(read, Some(json!({"a": [1, -2, 0.5, true, null, "x"], "b": {"a": {}}})));
    }

    #[test]
    fn a_repeated_key_is_refused_at_each_level_and_however_it_is_written() {
        for text in [
            r#"{"a": 1, "a": 1}"#,
            r#"{"a": 1, "\u0061": 2}"#,
            r#"{"x": {"a": 1, "a": 1}}"#,
            r#"{"x": [{"a": 1, "a": 1}]}"#,
            "[]",
            "{} {}",
            "{",
        ] {
            assert!(object(text.as_bytes()).is_err(), "{text}");
        }
    }
}
