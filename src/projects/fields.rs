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

    /// Takes an object; an empty one counts as absent.
    pub(crate) fn object(&mut self, key: &str) -> Option<Map<String, Value>> {
        let read = |mut value: Value| value.as_object_mut().map(std::mem::take);
        self.take(key, "an object", read).filter(|object| !object.is_empty())
    }

    /// Takes a list; an empty one counts as absent.
    pub(crate) fn list(&mut self, key: &str) -> Option<Vec<Value>> {
        let read = |mut value: Value| value.as_array_mut().map(std::mem::take);
        self.take(key, "a list", read).filter(|list| !list.is_empty())
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
    let document = serde_json::from_str(&text);
    let document = document.map_err(|error| ProjectMistake::of_json(path, &error))?;
    let Value::Object(object) = document else {
        return Err(ProjectMistake::new(path, "is not a JSON object"));
    };
    Ok(Some(object))
}
