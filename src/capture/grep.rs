//! The lines of a text that a regular expression of a caller's matches, in bounded time.
//!
//! The engine's time is linear in the text but also in the size of the expression, and a caller
//! chooses both. So the expression is small, a line is matched by its beginning, and there is an
//! end to patience.

use std::time::{Duration, Instant};

use regex::{Regex, RegexBuilder};

/// Bytes of a pattern.
const PATTERN_BYTES: usize = 1000;
/// Bytes of a pattern when it is compiled.
const PROGRAM_BYTES: usize = 256 << 10;
/// Bytes of a line that are looked at.
pub const LINE_BYTES: usize = 4096;
/// How long one text may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// An expression that is small enough.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

/// Why there are no lines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoMatch {
    #[error("`grep` must be a regular expression of at most {PATTERN_BYTES} bytes")]
    Long,
    #[error("`grep` is not a regular expression that is taken here: {0}")]
    Syntax(String),
    #[error("`grep` took longer than {} ms\nhint: make it simpler", PATIENCE.as_millis())]
    Slow,
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// When it is none, or too large.
    pub fn new(pattern: &str) -> Result<Self, NoMatch> {
        if pattern.len() > PATTERN_BYTES {
            return Err(NoMatch::Long);
        }
        let built = RegexBuilder::new(pattern).size_limit(PROGRAM_BYTES).build();
        built.map(Self).map_err(|error| {
            // The last line says what; those before it point into the pattern.
            let text = error.to_string();
            let what = text.lines().last().unwrap_or_default();
            NoMatch::Syntax(what.trim_start_matches("error: ").to_owned())
        })
    }

    /// Returns the lines that match within their first [`LINE_BYTES`].
    ///
    /// # Errors
    /// When it takes too long.
    pub fn lines(&self, text: &str) -> Result<String, NoMatch> {
        let end = Instant::now() + PATIENCE;
        let mut found = String::new();
        for line in text.split_inclusive('\n') {
            if Instant::now() > end {
                return Err(NoMatch::Slow);
            }
            let looked_at = line.strip_suffix('\n').unwrap_or(line);
            if self.0.is_match(beginning(looked_at)) {
                found.push_str(line);
            }
        }
        Ok(found)
    }
}

/// Returns at most [`LINE_BYTES`], in whole characters.
fn beginning(line: &str) -> &str {
    let end = (0..=LINE_BYTES.min(line.len())).rev().find(|at| line.is_char_boundary(*at));
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
    fn an_expression_that_is_none_or_too_large_is_refused() {
        assert_eq!(lines("(", "x"), Err(NoMatch::Syntax("unclosed group".to_owned())));
        assert_eq!(lines(&"x".repeat(1001), "x"), Err(NoMatch::Long));
        assert!(matches!(lines(r"\w{100}{100}", "x"), Err(NoMatch::Syntax(_))));
    }

    #[test]
    fn the_worst_expression_over_the_most_text_ends_in_time() {
        let text = format!("{}\n", "a".repeat(LINE_BYTES - 1)).repeat(512);
        // As many states at once as are taken, and none of them ever matches.
        let sizes = (1..=100).rev().map(|size| format!("(?:a?){{{}}}b", size * 50));
        let pattern = sizes.map(|pattern| Pattern::new(&pattern)).find_map(Result::ok);
        let began = Instant::now();
        let slow = pattern.ok_or(NoMatch::Long).and_then(|pattern| pattern.lines(&text));
        assert_eq!(slow, Err(NoMatch::Slow));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}
