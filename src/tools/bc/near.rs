//! Where a second working scale that is only a little finer proves as much as one that is twice as fine.
//!
//! Twice as fine shows three things: how wrong the first value was, whether the value ends (is exact, or
//! lies between two results), and what was too small to be seen at all. A little finer shows the first as
//! well. The second shows in the digits: what ends leaves a run of zeros or nines behind the places that
//! are asked for, and is left to the other way. For the third nothing may be too small unseen: all that
//! an expression adds, divides by and applies a function to must be of a size that a float follows
//! ([`Estimate::firm`]), so that what is cut off is known in advance to stay below the guard places.
//! Then the two values must also agree further than the result is told.

use super::estimate::Estimate;
use super::evaluate::{Sure, Value};
use super::rewrite::{Expression, Kind};
use super::{GUARD, decimal::Decimal};

/// Functions whose second value takes bc its time; where there is none, twice the scale costs nothing.
const COSTLY: [&str; 5] = ["s", "c", "a", "l", "e"];
/// The library's that are smooth, and that [`Estimate::firm`] knows of.
pub(super) const SMOOTH: [&str; 6] = ["pi", "tau", "e_", "phi", "exp", "ln"];
/// Digits behind the result's last place and the one after it that are no run, and in which both agree.
const BEHIND: usize = 6;
/// Most places that are added for a loss that is foreseen.
const MOST_PLACES: u32 = 20;

/// The finer scale.
pub(super) fn scale(first: u32) -> u32 {
    first + GUARD
}

/// Whether an expression without state may be evaluated at such a scale first.
pub(super) fn serves(expression: &Expression<'_>, estimate: Option<Estimate>) -> bool {
    let Some(estimate) = estimate else { return false };
    let tokens = expression.tokens();
    let costly = |name: &str| {
        COSTLY.contains(&name)
            || name.strip_prefix("cofferdam_").is_some_and(|name| SMOOTH.contains(&name))
    };
    // A value of few places is likely to be exact.
    let thousandths = estimate.value * 1e3;
    let plain = (thousandths - thousandths.round()).abs() < 1e-6_f64.max(1e-10 * thousandths.abs());
    tokens.iter().all(|token| token.kind != Kind::Break)
        && tokens.iter().any(|token| token.kind == Kind::Name && costly(token.text))
        && estimate.firm
        && estimate.places() <= MOST_PLACES
        && !plain
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
    use super::super::library;
    use super::*;

    fn serves_for(text: &str) -> bool {
        let text = library::resolved(text).unwrap_or_default();
        let expression = Expression::new(&text);
        serves(&expression, Estimate::of(&expression))
    }

    #[test]
    fn it_serves_where_all_sizes_are_followed() {
        for text in [
            "4*a(1)",
            "4*a(1)+123",
            "e(1)",
            "e(-20)*10^5",
            "pi/3",
            "2*pi*6371",
            "l(2)*s(1)/c(1)",
            "sqrt(2)+e(2)",
            "exp(0.5)^7",
            "-(ln(10))",
        ] {
            assert!(serves_for(text), "{text}");
        }
    }

    #[test]
    fn it_does_not_serve_where_something_may_be_lost_unseen_or_the_value_may_be_exact() {
        for text in [
            "1/3",
            "sqrt(2)",
            "e(-1000)*10^450",
            "e(-60)*10^60",
            "e(1)-e(1)",
            "e(1)+10^-30-e(1)",
            "4*a(1)+(1+e(-130)-1)*10^57",
            "1/(1+e(-130)-1)",
            "4*a(1)+e(-130)/(1+10^-31-1)^2",
            "s(4*a(1))",
            "s(10^30)",
            "l(1)",
            "l(1+10^-40)",
            "e(0)",
            "e(l(2))",
            "a(0)",
            "e(1);1",
            "a(1)==1",
            "a(1)%1",
            "!e(1)",
            "floor(e(1))+e(1)",
            "tan(1)+e(1)",
            "2^e(1)",
            "x+e(1)",
        ] {
            assert!(!serves_for(text), "{text}");
        }
    }

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
