//! Decimal numbers as bc prints them: parsing, comparison of two approximations, and rounding half
//! to even.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

/// A number in normal form: no leading zeros, no trailing zeros, no `-0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    /// Empty for numbers below 1.
    whole: String,
    /// Empty for integers.
    fraction: String,
}

impl Decimal {
    /// Parses a number as bc prints it: `-.5`, `3`, `2.50`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.len() + fraction.len() == 0 || !is_number(whole) || !is_number(fraction) {
            return None;
        }
        let whole = whole.trim_start_matches('0').to_owned();
        let fraction = fraction.trim_end_matches('0').to_owned();
        let zero = whole.is_empty() && fraction.is_empty();
        Some(Self { negative: text.starts_with('-') && !zero, whole, fraction })
    }

    /// Returns the decimal places that are needed to write this number exactly.
    pub(super) fn places(&self) -> usize {
        self.fraction.len()
    }

    /// Returns true if the digits after the first `places` begin with `length` zeros or nines.
    pub(super) fn runs(&self, places: usize, length: usize) -> bool {
        let digits = self.fraction.bytes().chain(std::iter::repeat(b'0')).skip(places).take(length);
        let all = |wanted: u8| digits.clone().all(|digit| digit == wanted);
        all(b'0') || all(b'9')
    }

    /// Returns this number times 10^`places`, truncated to an integer.
    fn scaled(&self, places: usize) -> BigInt {
        // A width of `format!` above 65,535 would panic.
        let fraction = self.fraction.chars().chain(std::iter::repeat('0')).take(places);
        let digits: String = self.whole.chars().chain(fraction).collect();
        let magnitude = BigInt::parse_bytes(digits.as_bytes(), 10).unwrap_or_default();
        if self.negative { -magnitude } else { magnitude }
    }

    /// Returns the number of digits before the point.
    pub(super) fn whole_digits(&self) -> usize {
        self.whole.len()
    }

    /// Returns the number of digits before the point of the difference to another number, 0 if the
    /// difference is below 1.
    pub(super) fn digits_apart(&self, other: &Self) -> u32 {
        let common = self.places().max(other.places());
        let apart = (self.scaled(common) - other.scaled(common)).magnitude().to_string();
        u32::try_from(apart.len().saturating_sub(common)).unwrap_or(u32::MAX)
    }

    /// Returns this number rounded half to even to exactly `places` decimal places.
    pub(super) fn rounded(&self, places: usize) -> String {
        let extra = self.places().saturating_sub(places);
        fixed(&half_even(&self.scaled(places + extra), extra), places)
    }

    /// Returns this number rounded to `places` if its error cannot change the rounding. The error
    /// is estimated from `coarser`, the same value at a lower working scale.
    pub(super) fn agreed(&self, coarser: &Self, places: usize) -> Option<String> {
        let common = self.places().max(coarser.places()).max(places + 1);
        let fine = self.scaled(common);
        let coarse = coarser.scaled(common);
        // The finer value is much better, so the true value is well within twice the difference.
        // Both are truncated, which adds a unit.
        let error = BigInt::from((&fine - coarse).magnitude().clone()) * 2 + 1;
        let extra = common - places;
        let low = half_even(&(&fine - &error), extra);
        let high = half_even(&(fine + error), extra);
        (low == high).then(|| fixed(&low, places))
    }
}

/// Writes the number with a digit before the point: `0.5`, not `.5`.
impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        let whole = if self.whole.is_empty() { "0" } else { &self.whole };
        let point = if self.fraction.is_empty() { "" } else { "." };
        write!(f, "{sign}{whole}{point}{}", self.fraction)
    }
}

/// Returns `value` / 10^`digits`, rounded half to even.
fn half_even(value: &BigInt, digits: usize) -> BigInt {
    let unit = BigInt::from(10).pow(u32::try_from(digits).unwrap_or(u32::MAX));
    // Division of BigInt truncates, so divide the magnitude and apply the sign afterwards.
    let sign = value.sign();
    let magnitude = BigInt::from(value.magnitude().clone());
    let quotient = &magnitude / &unit;
    let remainder = &magnitude % &unit;
    let twice: BigInt = remainder * 2;
    let up = match twice.cmp(&unit) {
        Ordering::Less => false,
        Ordering::Greater => true,
        Ordering::Equal => quotient.bit(0),
    };
    let rounded = quotient + BigInt::from(u8::from(up));
    if sign == Sign::Minus { -rounded } else { rounded }
}

/// Returns `value` / 10^`places` with exactly that many decimal places, without `-0`.
fn fixed(value: &BigInt, places: usize) -> String {
    let digits = value.magnitude().to_string();
    let zeros = "0".repeat((places + 1).saturating_sub(digits.len()));
    let digits = zeros + &digits;
    let (whole, fraction) = digits.split_at(digits.len() - places);
    let sign = if value.sign() == Sign::Minus { "-" } else { "" };
    let point = if places == 0 { "" } else { "." };
    format!("{sign}{whole}{point}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Decimal {
        let parsed = Decimal::parse(text);
        assert!(parsed.is_some(), "{text} is a number");
        parsed.unwrap_or(Decimal { negative: false, whole: String::new(), fraction: String::new() })
    }

    #[test]
    fn numbers_have_one_normal_form() {
        let cases = [
            ("0", "0"),
            ("-0", "0"),
            ("-.00", "0"),
            (".5", "0.5"),
            ("-.50", "-0.5"),
            ("007.0", "7"),
            ("2.00000000000000000000", "2"),
            ("100", "100"),
            ("10.010", "10.01"),
        ];
        for (printed, normal) in cases {
            assert_eq!(number(printed).to_string(), normal, "{printed}");
        }
        for text in ["", "-", ".", "FF", "1e5", "1.2.3", "--1", "1 2"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    fn ties_are_rounded_to_the_even_neighbour() {
        let cases = [
            ("0.5", 0, "0"),
            ("1.5", 0, "2"),
            ("2.5", 0, "2"),
            ("-2.5", 0, "-2"),
            ("-3.5", 0, "-4"),
            ("0.125", 2, "0.12"),
            ("0.135", 2, "0.14"),
            ("0.1250001", 2, "0.13"),
            ("-0.4", 0, "0"),
            ("9.995", 2, "10.00"),
            ("1", 3, "1.000"),
            ("-0.001", 2, "0.00"),
        ];
        for (value, places, rounded) in cases {
            assert_eq!(number(value).rounded(places), rounded, "{value} to {places}");
        }
    }

    #[test]
    fn agreement_is_refused_where_the_error_could_change_the_rounding() {
        let agreed =
            |fine: &str, coarse: &str, places| number(fine).agreed(&number(coarse), places);
        assert_eq!(agreed(".33333333", ".3333", 2), Some("0.33".into()));
        assert_eq!(agreed("1.99999999", "1.9999", 2), Some("2.00".into()));
        // The true value may well be the tie 0.5.
        assert_eq!(agreed(".49999999", ".4999", 0), None);
        assert_eq!(agreed("1.50000001", "1.5000", 0), None);
        assert_eq!(agreed("3.1416", "2.7", 1), None);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(16))]
        #[test]
        fn no_number_is_too_long_to_be_written(
            digits in "-?[0-9]{0,40}\\.[0-9]{0,40}",
            zeros in 0_usize..70_000,
            places in 0_usize..70_000,
        ) {
            let long = number(&format!("{digits}{}1", "0".repeat(zeros)));
            let rounded = long.rounded(places);
            proptest::prop_assert_eq!(number(&rounded).rounded(places), rounded.clone());
            let written = rounded.split_once('.').map_or(0, |(_, fraction)| fraction.len());
            proptest::prop_assert_eq!(written, places);
            drop(long.agreed(&number(&rounded), places));
        }
    }
}
