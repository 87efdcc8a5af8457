//! Values that were calculated before: an agent that asks twice waits once.
//!
//! One server has one policy and one set of profiles for as long as it runs, so that expression and
//! precision are the whole key. Only values are kept, and only those that a second evaluation would
//! give again: no errors, nothing that a limit cut short.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::Evaluated;
use super::library;
use super::rewrite::{Expression, Shape};

/// Most values kept; the oldest goes first.
const VALUES: usize = 1024;
/// Longest value kept, in bytes: with its expression, a few megabytes at most in all.
const VALUE_BYTES: usize = 2048;

type Key = (String, u32);

/// The cache of one server.
#[derive(Debug, Default)]
pub struct Cache(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    values: HashMap<Key, String>,
    /// Keys in the order they came.
    order: VecDeque<Key>,
}

impl Cache {
    /// The value, if it is known.
    pub fn get(&self, expression: &str, precision: u32) -> Option<String> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.values.get(&(expression.to_owned(), precision)).cloned()
    }

    /// Forgets every value.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Kept::default();
    }

    /// Keeps the value of a calculation that would give the same again.
    pub fn put(&self, done: &Evaluated) {
        if done.exact == Some(false)
            || done.result.len() > VALUE_BYTES
            || !repeatable(&done.expression)
        {
            return;
        }
        let key = (done.expression.clone(), done.precision);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.values.insert(key.clone(), done.result.clone()).is_none() {
            kept.order.push_back(key);
        }
        if kept.order.len() > VALUES
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.values.remove(&oldest);
        }
    }
}

/// Whether an expression has nothing in it but numbers and functions of them: what else a bc of
/// this host knows, random numbers perhaps, is evaluated each time.
fn repeatable(expression: &str) -> bool {
    library::resolved(expression)
        .is_ok_and(|text| matches!(Expression::new(&text).shape(), Shape::Pure | Shape::Integer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(expression: &str, precision: u32, exact: Option<bool>) -> Evaluated {
        let (result, expression) = ("0.5".to_owned(), expression.to_owned());
        Evaluated { result, expression, precision, exact }
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
    fn what_a_second_evaluation_might_not_give_again_is_not_kept() {
        let cache = Cache::default();
        cache.put(&done("1/2", 20, Some(false)));
        assert_eq!(cache.get("1/2", 20), None, "its digits are not sure");
        for expression in ["a=1/2", "rand()", "scale", "irand(6)/2"] {
            cache.put(&done(expression, 20, None));
            assert_eq!(cache.get(expression, 20), None, "{expression}");
        }
        let long = Evaluated { result: "7".repeat(VALUE_BYTES + 1), ..done("2^9999", 20, None) };
        cache.put(&long);
        assert_eq!(cache.get("2^9999", 20), None, "it is too long");
    }

    #[test]
    fn the_oldest_value_goes_when_there_are_too_many() {
        let cache = Cache::default();
        for number in 0..=VALUES {
            cache.put(&done(&format!("{number}/2"), 20, None));
        }
        assert_eq!(cache.get("0/2", 20), None);
        assert_eq!(cache.get("1/2", 20), Some("0.5".to_owned()));
        assert_eq!(cache.get(&format!("{VALUES}/2"), 20), Some("0.5".to_owned()));
    }
}
