//! Filters the lines of a text by a caller's regular expression, in bounded time.
//!
//! The engine's time is linear in the text and in the size of the expression, and a caller chooses
//! both. So the expression is limited in size, only the start of a line is matched, and there is a
//! time limit.

use std::time::{Duration, Instant};

use regex::{Regex, RegexBuilder};

/// Maximum size of a pattern in bytes.
const MAX_PATTERN_BYTES: usize = 1000;
/// Maximum size of a compiled pattern in bytes.
const MAX_PROGRAM_BYTES: usize = 256 << 10;
/// Number of bytes of a line that are matched.
pub const MAX_LINE_BYTES: usize = 4096;
/// Time limit for one text.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A regular expression within the size limits.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

/// Why a text could not be filtered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoMatch {
    #[error("`grep` must be a regular expression of at most {MAX_PATTERN_BYTES} bytes")]
    Long,
    #[error("`grep` is not a regular expression that is taken here: {0}")]
    Syntax(String),
    #[error("`grep` took longer than {} ms\nhint: make it simpler", TIMEOUT.as_millis())]
    Slow,
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// If the pattern is not a regular expression, or is too large.
    pub fn new(pattern: &str) -> Result<Self, NoMatch> {
        if pattern.len() > MAX_PATTERN_BYTES {
            return Err(NoMatch::Long);
        }
        let built = RegexBuilder::new(pattern).size_limit(MAX_PROGRAM_BYTES).build();
        built.map(Self).map_err(|error| {
            // The last line states the error; those before it point into the pattern.
            let text = error.to_string();
            let what = text.lines().last().unwrap_or_default();
            NoMatch::Syntax(what.trim_start_matches("error: ").to_owned())
        })
    }

    /// Returns the lines that match within their first [`MAX_LINE_BYTES`].
    ///
    /// # Errors
    /// If it takes too long.
    pub fn lines(&self, text: &str) -> Result<String, NoMatch> {
        let end = Instant::now() + TIMEOUT;
        let mut matching = String::new();
        for line in text.split_inclusive('\n') {
            if Instant::now() > end {
                return Err(NoMatch::Slow);
            }
            let content = line.strip_suffix('\n').unwrap_or(line);
            if self.0.is_match(beginning(content)) {
                matching.push_str(line);
            }
        }
        Ok(matching)
    }
}

/// Returns at most [`MAX_LINE_BYTES`], cut between characters.
fn beginning(line: &str) -> &str {
    let end = (0..=MAX_LINE_BYTES.min(line.len())).rev().find(|at| line.is_char_boundary(*at));
    line.get(..end.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pattern: &str, text: &str) -> Result<String, NoMatch> {
        Pattern::new(pattern)?.lines(text)
    }

    #[test]
    fn only_lines_that_match_are_left() {
        let text = "one\nTWO\nthree\n";
        assert_eq!(lines("^t", text), Ok("three\n".to_owned()));
        assert_eq!(lines("(?i)^t", text), Ok("TWO\nthree\n".to_owned()));
        assert_eq!(lines("e$", text), Ok("one\nthree\n".to_owned()));
        assert_eq!(lines("zzz", text), Ok(String::new()));
    }

    #[test]
    fn an_invalid_or_too_large_expression_is_refused() {
        assert_eq!(lines("(", "x"), Err(NoMatch::Syntax("unclosed group".to_owned())));
        assert_eq!(lines(&"x".repeat(1001), "x"), Err(NoMatch::Long));
        assert!(matches!(lines(r"\w{100}{100}", "x"), Err(NoMatch::Syntax(_))));
    }

    #[test]
    fn the_worst_expression_over_the_most_text_ends_in_time() {
        let text = format!("{}\n", "a".repeat(MAX_LINE_BYTES - 1)).repeat(512);
        // As many states at once as the size limit allows, without any match.
        let sizes = (1..=100).rev().map(|size| format!("(?:a?){{{}}}b", size * 50));
        let pattern = sizes.map(|pattern| Pattern::new(&pattern)).find_map(Result::ok);
        let began = Instant::now();
        let slow = pattern.ok_or(NoMatch::Long).and_then(|pattern| pattern.lines(&text));
        assert_eq!(slow, Err(NoMatch::Slow));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}
