//! Decimal numbers in words and in ranges. They are exact: `0.1` means one tenth, not the nearest
//! binary fraction.

use std::fmt;
use std::str::FromStr;

use crate::document::{Content, Form, Item, Read, ReadError};

/// Maximum number of digits after the point.
const PLACES: usize = 6;
/// Maximum number of digits before the point.
const DIGITS: usize = 12;
/// Millionths in one.
const ONE: u64 = 1_000_000;

/// Nonnegative number with at most six decimals, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decimal(u64);

impl Decimal {
    /// Returns the number if it is whole.
    pub fn whole(self) -> Option<u64> {
        self.0.is_multiple_of(ONE).then_some(self.0 / ONE)
    }
}

/// Error for text that is not a [`Decimal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a number has twelve digits and six decimals at most, and no sign")]
pub struct NoDecimal;

impl FromStr for Decimal {
    type Err = NoDecimal;

    fn from_str(text: &str) -> Result<Self, NoDecimal> {
        let (whole, part) = match text.split_once('.') {
            Some((whole, part)) => (whole, Some(part)),
            None => (text, None),
        };
        // Digits only: some programs give a meaning to a sign, an exponent or `inf`.
        let is_digits = |text: &str, max: usize| {
            (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !is_digits(whole, DIGITS) || !part.is_none_or(|part| is_digits(part, PLACES)) {
            return Err(NoDecimal);
        }
        let millionths = format!("{whole}{:0<PLACES$}", part.unwrap_or_default());
        millionths.parse().map(Self).map_err(|_| NoDecimal)
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(millionths) = self;
        write!(f, "{}", millionths / ONE)?;
        match millionths % ONE {
            0 => Ok(()),
            part => write!(f, ".{}", format!("{part:06}").trim_end_matches('0')),
        }
    }
}

impl Read for Decimal {
    fn read(item: Item<'_>) -> Result<Self, ReadError> {
        let digits = match item.content()? {
            Content::Whole(number) => number.to_string(),
            // The shortest text that reads back as the number is what the operator wrote.
            Content::Fraction(number) => number.to_string(),
            Content::Text(_)
            | Content::Flag(_)
            | Content::Date
            | Content::List(_)
            | Content::Table(_) => return Err(item.unexpected("a number, 0 at least")),
        };
        digits.parse().map_err(|error: NoDecimal| item.error(error.to_string()))
    }

    fn form() -> Form {
        Form::plain("number", r#""type": "number", "minimum": 0"#)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_exact_and_has_one_written_form() {
        for (text, written) in [
            ("0", Some("0")),
            ("007", Some("7")),
            ("0.2", Some("0.2")),
            ("1.50", Some("1.5")),
            ("3600.0", Some("3600")),
            ("0.000001", Some("0.000001")),
            ("999999999999.999999", Some("999999999999.999999")),
            ("0.0000001", None),
            ("1000000000000", None),
            ("", None),
            (".5", None),
            ("5.", None),
            ("1.2.3", None),
            ("+1", None),
            ("-1", None),
            ("1e3", None),
            ("1,5", None),
            ("inf", None),
            ("NaN", None),
            ("0x1", None),
            ("\u{661}", None),
            (" 1", None),
        ] {
            let read = text.parse::<Decimal>().ok().map(|number| number.to_string());
            assert_eq!(read.as_deref(), written, "{text:?}");
        }
        let [high, low] = ["0.2", "0.19"].map(|text| text.parse::<Decimal>().ok());
        assert!(low < high);
        assert_eq!("7".parse::<Decimal>().map(Decimal::whole), Ok(Some(7)));
        assert_eq!("7.5".parse::<Decimal>().map(Decimal::whole), Ok(None));
    }
}
