//! Durations and sizes as they are typed: `500ms|30s|10m|1h`, bare numbers seconds; `64M`, binary.

use std::time::Duration;

/// Reads a duration above zero.
///
/// # Errors
/// A text that says what is taken.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || {
        format!(
            "`{text}` is not a time above zero; write 500ms, 30s, 10m or 1h (a bare number is seconds)"
        )
    };
    let (number, unit) = split(text);
    let unit_seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    let count: f64 = number.parse().map_err(|_| bad())?;
    let time = Duration::try_from_secs_f64(count * unit_seconds).map_err(|_| bad())?;
    if time.is_zero() { Err(bad()) } else { Ok(time) }
}

/// Reads a size above zero, in bytes. Units are binary: `K` is 1024 bytes.
///
/// # Errors
/// A text that says what is taken.
pub fn size(text: &str) -> Result<u64, String> {
    let bad = || {
        format!("`{text}` is not a size above zero; write bytes, or a whole number with K, M or G")
    };
    let (number, unit) = split(text);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return Err(bad()),
    };
    let count: u64 = number.parse().map_err(|_| bad())?;
    count.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(bad)
}

/// The number in front, and what follows it.
fn split(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_bare_numbers_are_seconds() {
        let cases = [
            ("500ms", Some(Duration::from_millis(500))),
            ("30s", Some(Duration::from_secs(30))),
            ("1.5", Some(Duration::from_millis(1500))),
            ("10m", Some(Duration::from_secs(600))),
            ("1h", Some(Duration::from_secs(3600))),
            ("0", None),
            ("-1", None),
            ("", None),
            ("s", None),
            ("10 s", None),
            ("1d", None),
            ("9e99", None),
            ("99999999999999999999999h", None),
        ];
        for (text, expected) in cases {
            assert_eq!(duration(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn sizes_are_binary_and_whole() {
        let cases = [
            ("64M", Some(64 << 20)),
            ("64MiB", Some(64 << 20)),
            ("1G", Some(1 << 30)),
            ("2k", Some(2048)),
            ("100", Some(100)),
            ("0", None),
            ("1.5M", None),
            ("-1", None),
            ("M", None),
            ("64T", None),
            ("99999999999G", None),
        ];
        for (text, expected) in cases {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
    }
}
