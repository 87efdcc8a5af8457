//! Fields of metadata, read by their types: a value of another type is a mistake, and as if it were absent.

use serde_json::{Map, Value};

use crate::ProjectMistake;
use crate::tree::Tree;

/// One JSON object of metadata, and the place that it is from.
#[derive(Debug)]
pub(crate) struct Fields<'m> {
    place: String,
    object: Map<String, Value>,
    mistakes: &'m mut Vec<ProjectMistake>,
}

impl<'m> Fields<'m> {
    pub(crate) fn new(
        place: &str,
        object: Map<String, Value>,
        mistakes: &'m mut Vec<ProjectMistake>,
    ) -> Self {
        Self { place: place.to_owned(), object, mistakes }
    }

    /// Takes a field, if `read` accepts its value.
    fn take<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.object.remove(key).filter(|value| !value.is_null())?;
        let taken = read(value);
        if taken.is_none() {
            self.mistakes
                .push(ProjectMistake::new(&self.place, format!("`{key}`: expected {expected}")));
        }
        taken
    }

    pub(crate) fn text(&mut self, key: &str) -> Option<String> {
        let read = |value: Value| value.as_str().map(str::to_owned);
        self.take(key, "a string", read).filter(|text| !text.is_empty())
    }

    /// Takes a whole number of seconds above 0.
    pub(crate) fn seconds(&mut self, key: &str) -> Option<u64> {
        self.take(key, "a whole number of seconds above 0", |value| {
            value.as_u64().filter(|seconds| *seconds > 0)
        })
    }

    pub(crate) fn flag(&mut self, key: &str) -> Option<bool> {
        self.take(key, "true or false", |value| value.as_bool())
    }

    pub(crate) fn object(&mut self, key: &str) -> Option<Map<String, Value>> {
        self.take(key, "an object", |value| match value {
            Value::Object(object) => Some(object),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => None,
        })
    }

    /// Takes an object, or whatever else there is as an empty one.
    pub(crate) fn schema(&mut self, keys: [&str; 2]) -> Option<Map<String, Value>> {
        let [first, second] = keys;
        self.object(first).filter(|schema| !schema.is_empty()).or_else(|| self.object(second))
    }

    pub(crate) fn list(&mut self, key: &str) -> Option<Vec<Value>> {
        self.take(key, "a list", |value| match value {
            Value::Array(list) => Some(list),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Object(_) => None,
        })
    }
}

/// Parses a file of metadata; `None` if it is absent.
///
/// # Errors
/// A file that cannot be used, or that is no JSON object.
pub(crate) fn json_object(
    tree: &Tree,
    path: &str,
) -> Result<Option<Map<String, Value>>, ProjectMistake> {
    let Some(text) = tree.text(path)? else { return Ok(None) };
    tree.take_values(path, &text)?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_),
        ) => Err(ProjectMistake::new(path, "is not a JSON object")),
        Err(error) => Err(ProjectMistake::of_json(path, &error)),
    }
}
