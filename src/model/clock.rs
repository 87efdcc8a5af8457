//! Times in the form of the log and the history: RFC 3339 in UTC with milliseconds, so that text
//! sorts like time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the current time.
pub fn now() -> String {
    text(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Returns the time `before` ago.
pub fn ago(before: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    text(now.saturating_sub(before))
}

/// Returns a time since 1970 as `2026-01-31T23:59:59.999Z`.
pub fn text(since: Duration) -> String {
    let seconds = since.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let hour = seconds / 3600 % 24;
    let minute = seconds / 60 % 60;
    let second = seconds % 60;
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns year, month and day of a day since 1970. Years are counted from March, so that a leap
/// day is the last of its year, in cycles of 400 years (146,097 days).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date_1() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(text(Duration::from_secs(seconds)), expected);
        }
    }
}
