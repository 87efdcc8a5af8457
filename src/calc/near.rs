//! Where a second working scale that is only a little finer proves as much as one that is twice as fine.
//!
//! Twice as fine shows two things: how wrong the first value was, and whether the value ends (is exact, or
//! lies between two results). A little finer shows the first as well. The second shows in the digits: what
//! ends leaves a run of zeros or nines behind the places that are asked for, and is left to the other way.
//! Then the two values must also agree further than the result is told.

use super::decimal::Decimal;
use super::evaluate::{Sure, Value};
use super::library::{self, Gives};
use super::rewrite::{Expression, Kind};

/// bc's functions whose second value takes it time; where there is none, twice the scale costs nothing.
const COSTLY: [&str; 5] = ["s", "c", "a", "l", "e"];
/// Digits behind the result's last place and the one after it that are no run, and in which both agree.
const BEHIND: usize = 6;

/// Places that it has more.
const FINER: u32 = 12;

/// The finer scale.
pub(super) fn scale(first: u32) -> u32 {
    first + FINER
}

/// Returns whether an expression without state is evaluated at such a scale first.
pub(super) fn serves(expression: &Expression<'_>) -> bool {
    let tokens = expression.tokens();
    let costly = |name: &str| COSTLY.contains(&name) || library::gives(name) == Some(Gives::Number);
    tokens.iter().any(|token| token.kind == Kind::Name && costly(token.text))
}

/// The result to `places`, if the two values settle it.
pub(super) fn settled(coarse: &Value, fine: &Value, places: usize) -> Option<String> {
    let ends = |number: &Decimal| number.runs(places + 1, BEHIND);
    if (coarse.sure, fine.sure) != (Sure::Yes, Sure::Yes)
        || ends(&coarse.number)
        || ends(&fine.number)
    {
        return None;
    }
    fine.number.agreed(&coarse.number, places + BEHIND)?;
    fine.number.agreed(&coarse.number, places)
}

#[cfg(test)]
mod tests {
    use super::super::evaluate::value;
    use super::*;

    #[test]
    fn values_that_may_end_or_that_differ_behind_the_result_settle_nothing() {
        let told = |coarse: &str, fine: &str| settled(&value(coarse)?, &value(fine)?, 2);
        assert_eq!(told(".1234567891", ".123456789123"), Some("0.12".into()));
        for (coarse, fine) in [
            // Exact, a tie, and just below one.
            (".1250000000", ".125000000000"),
            (".1249999999", ".124999999999"),
            (".12", ".12"),
            // Alike as far as the result goes.
            (".1234567", ".1234588888"),
            // A doubt of the library's.
            ("~.1234567891", "~.123456789123"),
        ] {
            assert_eq!(told(coarse, fine), None, "{coarse} {fine}");
        }
    }
}
