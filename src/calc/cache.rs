//! Caches calculated values, so that a repeated calculation returns at once.
//!
//! The key is the expression and the precision, as a server has one policy and one set of profiles
//! while it runs. Only values are cached that a second evaluation would return again: no errors,
//! and no values that a limit left inexact.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::Evaluated;
use super::library;
use super::rewrite::Shape;
use super::tokens::Expression;

/// Maximum number of cached values; the oldest is removed first.
const MAX_VALUES: usize = 1024;
/// Maximum size of a cached value in bytes, so that the cache takes a few megabytes at most.
const MAX_VALUE_BYTES: usize = 2048;

type Key = (String, u32);

/// The cache of one server.
#[derive(Debug, Default)]
pub struct Cache(Mutex<Values>);

#[derive(Debug, Default)]
struct Values {
    by_key: HashMap<Key, String>,
    /// Keys from the oldest to the newest.
    order: VecDeque<Key>,
}

impl Cache {
    /// Returns the value if it is cached.
    pub fn get(&self, expression: &str, precision: u32) -> Option<String> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.by_key.get(&(expression.to_owned(), precision)).cloned()
    }

    /// Removes all values.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Values::default();
    }

    /// Adds the value of a calculation if a second one would return the same.
    pub fn put(&self, done: &Evaluated) {
        if done.exact == Some(false)
            || done.result.len() > MAX_VALUE_BYTES
            || !repeatable(&done.expression)
        {
            return;
        }
        let key = (done.expression.clone(), done.precision);
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.by_key.insert(key.clone(), done.result.clone()).is_none() {
            cached.order.push_back(key);
        }
        if cached.order.len() > MAX_VALUES
            && let Some(oldest) = cached.order.pop_front()
        {
            cached.by_key.remove(&oldest);
        }
    }
}

/// Returns true if an expression consists only of numbers and functions of them. Extensions of the
/// host's bc, such as random numbers, are evaluated each time.
fn repeatable(expression: &str) -> bool {
    library::resolved(expression)
        .is_ok_and(|text| matches!(Expression::new(&text).shape(), Shape::Pure | Shape::Integer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(expression: &str, precision: u32, exact: Option<bool>) -> Evaluated {
        Evaluated { result: "0.5".to_owned(), expression: expression.to_owned(), precision, exact }
    }

    #[test]
    fn a_value_is_known_by_its_expression_and_its_precision() {
        let cache = Cache::default();
        assert_eq!(cache.get("1/2", 20), None);
        cache.put(&done("1/2", 20, None));
        assert_eq!(cache.get("1/2", 20), Some("0.5".to_owned()));
        assert_eq!(cache.get("1/2", 21), None);
        assert_eq!(cache.get("1/3", 20), None);
    }

    #[test]
    fn values_that_a_second_evaluation_may_not_return_are_not_cached() {
        let cache = Cache::default();
        cache.put(&done("1/2", 20, Some(false)));
        assert_eq!(cache.get("1/2", 20), None, "its digits are not sure");
        for expression in ["a=1/2", "rand()", "scale", "irand(6)/2"] {
            cache.put(&done(expression, 20, None));
            assert_eq!(cache.get(expression, 20), None, "{expression}");
        }
        let long =
            Evaluated { result: "7".repeat(MAX_VALUE_BYTES + 1), ..done("2^9999", 20, None) };
        cache.put(&long);
        assert_eq!(cache.get("2^9999", 20), None, "it is too long");
    }

    #[test]
    fn the_oldest_value_is_removed_when_there_are_too_many() {
        let cache = Cache::default();
        for number in 0..=MAX_VALUES {
            cache.put(&done(&format!("{number}/2"), 20, None));
        }
        assert_eq!(cache.get("0/2", 20), None);
        assert_eq!(cache.get("1/2", 20), Some("0.5".to_owned()));
        assert_eq!(cache.get(&format!("{MAX_VALUES}/2"), 20), Some("0.5".to_owned()));
    }
}
