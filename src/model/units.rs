//! Times, sizes and processor counts, in one grammar for TOML and the command line: `600s`, `1.5m`,
//! `500ms`, `64M`, `64MiB`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Why a time or a size is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUnit {
    #[error("`{0}` is not a time; write 500ms, 30s, 10m, 1h or bare seconds")]
    Time(String),
    #[error("`{0}` is not a size; write 64M, 1G, 512K or bare bytes")]
    Size(String),
    #[error("`{0}` is not a number of processors; write 2, 1.5 or 0.25")]
    Processors(String),
    #[error("`{0}` is too large")]
    TooLarge(String),
    #[error("`{0}` must be above zero")]
    Zero(String),
}

/// A span of time above zero: a decimal number with `ms`, `s`, `m` or `h`; bare numbers are seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// A number of bytes above zero: a whole number with `K`, `M`, `G` or `T` in either case,
/// optionally followed by `B` or `iB`. Units are binary in every spelling; bare numbers are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// A number of processors in hundredths: a number with at most two decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processors(pub u32);

/// Splits a text into the digits at its start and the rest.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// Parses the number before a unit. Digits that overflow are "too large", not "not a number".
fn number(digits: &str, text: &str, invalid: InvalidUnit) -> Result<u64, InvalidUnit> {
    if digits.is_empty() {
        return Err(invalid);
    }
    match digits.parse() {
        Ok(0) => Err(InvalidUnit::Zero(shown(text))),
        Ok(number) => Ok(number),
        Err(_) => Err(InvalidUnit::TooLarge(shown(text))),
    }
}

/// Makes text of an operator fit for a message.
fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}

impl FromStr for Time {
    type Err = InvalidUnit;

    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        let invalid = || InvalidUnit::Time(shown(text));
        let (whole, rest) = split(text.trim());
        let (part, unit) = match rest.strip_prefix('.') {
            Some(rest) => split(rest),
            None => ("0", rest),
        };
        let nanos: u64 = match unit {
            "ms" => 1_000_000,
            "" | "s" => 1_000_000_000,
            "m" => 60 * 1_000_000_000,
            "h" => 3_600 * 1_000_000_000,
            _ => return Err(invalid()),
        };
        // Nine decimals are as exact as any clock.
        if whole.is_empty() || part.is_empty() || part.len() > 9 {
            return Err(invalid());
        }
        let too_large = || InvalidUnit::TooLarge(shown(text));
        let parse = |digits: &str| digits.parse::<u128>().map_err(|_| too_large());
        let billionths = parse(&format!("{whole}{part:0<9}"))?;
        let time = billionths.checked_mul(nanos.into()).ok_or_else(too_large)? / 1_000_000_000;
        match u64::try_from(time) {
            Ok(0) => Err(InvalidUnit::Zero(shown(text))),
            Ok(nanos) => Ok(Self(Duration::from_nanos(nanos))),
            Err(_) => Err(too_large()),
        }
    }
}

impl FromStr for Size {
    type Err = InvalidUnit;

    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        let invalid = InvalidUnit::Size(shown(text));
        let (digits, unit) = split(text.trim());
        let mut letters = unit.chars();
        let bytes: u64 = match letters.next().map(|letter| letter.to_ascii_uppercase()) {
            None | Some('B') => 1,
            Some('K') => 1 << 10,
            Some('M') => 1 << 20,
            Some('G') => 1 << 30,
            Some('T') => 1 << 40,
            Some(_) => return Err(invalid),
        };
        let suffixes: &[&str] = if bytes == 1 { &[""] } else { &["", "B", "iB"] };
        if !suffixes.contains(&letters.as_str()) {
            return Err(invalid);
        }
        number(digits, text, invalid)?
            .checked_mul(bytes)
            .map(Self)
            .ok_or_else(|| InvalidUnit::TooLarge(shown(text)))
    }
}

impl FromStr for Processors {
    type Err = InvalidUnit;

    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        let invalid = || InvalidUnit::Processors(shown(text));
        let (whole, part) = text.trim().split_once('.').unwrap_or((text.trim(), "0"));
        let digits =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(part) || part.len() > 2 {
            return Err(invalid());
        }
        match number(&format!("{whole}{part:0<2}"), text, invalid())? {
            // The kernel counts in thousandths of a tenth of a second; no machine has more
            // processors.
            hundredths @ 1..=1_000_000 => {
                u32::try_from(hundredths).map(Self).map_err(|_| invalid())
            }
            _ => Err(InvalidUnit::TooLarge(shown(text))),
        }
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 100 {
            0 => write!(f, "{}", self.0 / 100),
            part => write!(f, "{}.{part:02}", self.0 / 100),
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_millis() {
            0 => write!(f, "{}s", self.0.as_secs()),
            _ => write!(f, "{}ms", self.0.as_millis()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
        match units.iter().find(|(bytes, _)| self.0 >= *bytes && self.0.is_multiple_of(*bytes)) {
            Some((bytes, unit)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_take_their_units_and_bare_seconds() {
        let millis = |text: &str| text.parse::<Time>().map(|time| time.0.as_millis());
        assert_eq!(
            ["500ms", "30s", "10m", "1h", "7", "1.5", "0.25m", " 2s "].map(millis),
            [500, 30_000, 600_000, 3_600_000, 7_000, 1_500, 15_000, 2_000].map(Ok)
        );
    }

    #[test]
    fn a_malformed_time_says_how_to_write_one() {
        for text in ["", "s", "-1s", "1.s", ".5s", "1.5.5", "1e3", "10 m", "1d", "٣s"] {
            let shown = text.escape_default().to_string();
            assert_eq!(text.parse::<Time>(), Err(InvalidUnit::Time(shown)), "{text}");
        }
        for zero in ["0s", "0.0000000001ms"] {
            let shown = zero.to_owned();
            let expected = [InvalidUnit::Zero(shown.clone()), InvalidUnit::Time(shown)];
            assert!(expected.map(Err).contains(&zero.parse::<Time>()), "{zero}");
        }
        for long in ["99999999999999999999s", "9999999999999999999999999999999999999999h"] {
            let shown: String = long.chars().take(40).collect();
            assert_eq!(long.parse::<Time>(), Err(InvalidUnit::TooLarge(shown)));
        }
    }

    #[test]
    fn sizes_are_binary() {
        let bytes = |text: &str| text.parse::<Size>().map(|size| size.0);
        assert_eq!(
            ["512K", "64M", "1G", "1T", "12", "12B"].map(bytes),
            [Ok(524_288), Ok(67_108_864), Ok(1_073_741_824), Ok(1_099_511_627_776), Ok(12), Ok(12)]
        );
        assert_eq!(["64MiB", "64MB", "64m", "65536k"].map(bytes), [67_108_864; 4].map(Ok));
        for text in ["", "M", "1.5M", "-1", "64 M", "64Mi", "64P", "64MM", "64iB", "1BB"] {
            assert_eq!(text.parse::<Size>(), Err(InvalidUnit::Size(text.to_owned())), "{text}");
        }
        assert_eq!("0".parse::<Size>(), Err(InvalidUnit::Zero("0".to_owned())));
        assert_eq!("17000000T".parse::<Size>(), Err(InvalidUnit::TooLarge("17000000T".to_owned())));
    }

    #[test]
    fn processors_have_two_decimals_at_most() {
        let hundredths = |text: &str| text.parse::<Processors>().map(|share| share.0);
        assert_eq!(["2", "1.5", "0.25", "0.01"].map(hundredths), [Ok(200), Ok(150), Ok(25), Ok(1)]);
        for text in ["", ".", "1.", "-1", "1.234", "1e3", "2x", "1.5.5"] {
            assert_eq!(hundredths(text), Err(InvalidUnit::Processors(text.to_owned())), "{text}");
        }
        assert_eq!(hundredths("0"), Err(InvalidUnit::Zero("0".to_owned())));
        assert_eq!(hundredths("10001"), Err(InvalidUnit::TooLarge("10001".to_owned())));
    }

    #[test]
    fn printed_values_read_back_as_the_same_value() {
        for text in ["500ms", "30s", "600s"] {
            assert_eq!(text.parse::<Time>().map(|time| time.to_string()), Ok(text.to_owned()));
        }
        for text in ["2", "1.50", "0.25"] {
            let read = text.parse::<Processors>();
            assert_eq!(read.map(|share| share.to_string()), Ok(text.to_owned()));
        }
        for text in ["64M", "1G", "3K", "1023"] {
            assert_eq!(text.parse::<Size>().map(|size| size.to_string()), Ok(text.to_owned()));
        }
    }
}
