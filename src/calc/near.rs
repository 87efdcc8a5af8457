//! Proves results with a second working scale that is only a little finer than the first one.
//!
//! A scale twice as fine shows two things: the error of the first value, and if the value is exact
//! or a tie between two results. A scale that is a little finer shows the error as well. An exact
//! value or a tie has a run of zeros or nines after the requested places; such a value is left to
//! the scale twice as fine. In addition, both values must agree in some places beyond the result.

use super::decimal::Decimal;
use super::evaluate::{Sure, Value};
use super::library::{self, Gives};
use super::tokens::{Expression, Kind};

/// Slow functions of bc. Without one, evaluating at twice the scale takes no noticeable time.
const COSTLY: [&str; 5] = ["s", "c", "a", "l", "e"];
/// Number of digits beyond the result that must not be a run, and in which both values must agree.
const EXTRA_DIGITS: usize = 6;

/// Difference between the two scales.
const EXTRA_PLACES: u32 = 12;

/// Returns the finer scale.
pub(super) fn scale(first: u32) -> u32 {
    first + EXTRA_PLACES
}

/// Returns true if an expression without state is to be tried at such a scale first.
pub(super) fn suffices_for(expression: &Expression<'_>) -> bool {
    let tokens = expression.tokens();
    let costly = |name: &str| COSTLY.contains(&name) || library::gives(name) == Some(Gives::Number);
    tokens.iter().any(|token| token.kind == Kind::Name && costly(token.text))
}

/// Returns the result to `places` if the two values prove it.
pub(super) fn settled(coarse: &Value, fine: &Value, places: usize) -> Option<String> {
    let has_run = |number: &Decimal| number.runs(places + 1, EXTRA_DIGITS);
    if (coarse.sure, fine.sure) != (Sure::Yes, Sure::Yes)
        || has_run(&coarse.number)
        || has_run(&fine.number)
    {
        return None;
    }
    fine.number.agreed(&coarse.number, places + EXTRA_DIGITS)?;
    fine.number.agreed(&coarse.number, places)
}

#[cfg(test)]
mod tests {
    use super::super::evaluate::value;
    use super::*;

    #[test]
    fn values_that_may_be_exact_or_differ_beyond_the_result_prove_nothing() {
        let result = |coarse: &str, fine: &str| settled(&value(coarse)?, &value(fine)?, 2);
        assert_eq!(result(".1234567891", ".123456789123"), Some("0.12".into()));
        for (coarse, fine) in [
            // Exact, a tie, and just below one.
            (".1250000000", ".125000000000"),
            (".1249999999", ".124999999999"),
            (".12", ".12"),
            // Equal in the places of the result, but not beyond.
            (".1234567", ".1234588888"),
            // Marked as doubtful by the library.
            ("~.1234567891", "~.123456789123"),
        ] {
            assert_eq!(result(coarse, fine), None, "{coarse} {fine}");
        }
    }
}
