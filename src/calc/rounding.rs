//! Rounding of the numbers that a script prints.
//!
//! The script runs as it is, which decides what it prints and with how many decimals, and then with
//! guard digits until they agree on those decimals. Each `scale` that the script sets is raised by
//! the guard digits, except 0, which scripts set for whole numbers.

use std::time::Duration;

use super::decimal::Decimal;
use super::evaluate::{Evaluate, Fault, length};
use super::tokens::{Expression, Kind, Token};
use super::{CalcError, MIN_UNUSED_PLACES, library};

/// Guard digits of the runs. Two neighbours have to agree.
const GUARDS: [u32; 5] = [20, 40, 80, 160, 320];
/// Operators that end the value of an assignment, which binds tighter in bc.
const LOOSER: [&str; 9] = ["<", ">", "<=", ">=", "==", "!=", "&&", "||", ","];
/// Operators that change a variable by its value.
const CHANGES: [&str; 8] = ["+=", "-=", "*=", "/=", "%=", "^=", "++", "--"];

/// Warning for a script that prints other lines or words at another scale.
const OTHER_OUTPUT: &str =
    "not rounded: the script prints other lines or words if it calculates with more digits";
/// Warning for numbers on which no two runs agreed.
const UNSURE: &str =
    "the last digit of some numbers may be wrong: more guard digits did not settle it";

/// A script that can be run with guard digits.
#[derive(Debug)]
pub(super) struct GuardedScript {
    text: String,
    /// Definitions of the library that the text uses.
    prelude: String,
}

/// Output with rounded numbers, and a warning about those that could not be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RoundedOutput {
    pub(super) text: String,
    pub(super) warning: Option<&'static str>,
}

impl GuardedScript {
    /// Rewrites a script so that its scale can be raised.
    ///
    /// # Errors
    /// [`CalcError::Invalid`] if the script uses `scale`, `ibase` or `obase` in a way that leaves
    /// guard digits without a meaning.
    pub(super) fn new(script: &str) -> Result<Self, CalcError> {
        Ok(Self { text: raised(script)?, prelude: library::prelude(script) })
    }

    /// Rounds the numbers in `printed`, the output of the script at its own scale, in at most
    /// `left`.
    ///
    /// # Errors
    /// A run that could not be made, or that reached a limit before there was a result.
    pub(super) async fn round(
        &self,
        bc: &impl Evaluate,
        printed: &str,
        precision: u32,
        mut left: Duration,
    ) -> Result<RoundedOutput, CalcError> {
        let printed = Output::new(printed);
        if !printed.has_decimals() {
            return Ok(printed.unchanged(None));
        }
        let mut coarse: Option<(u32, String)> = None;
        for guard in GUARDS {
            let program = self.program(precision, guard);
            let run = match bc.bc("calculate_advanced", program, left).await {
                Ok(run) => run,
                Err(CalcError::Timeout(_) | CalcError::Limit(_)) if coarse.is_some() => break,
                Err(error) => return Err(error),
            };
            left = left.saturating_sub(run.took);
            let fine = Output::new(run.stdout.trim_end());
            let (errors, _) = Fault::parse_all(&run.stderr, 0);
            if !errors.is_empty() || !printed.is_like(&fine) {
                return Ok(printed.unchanged(Some(OTHER_OUTPUT)));
            }
            if let Some((low, coarse)) = &coarse
                && let Some(text) = printed.settled(&Output::new(coarse), &fine, *low)
            {
                return Ok(RoundedOutput { text, warning: None });
            }
            coarse = Some((guard, run.stdout.trim_end().to_owned()));
            if left.is_zero() {
                break;
            }
        }
        let best = coarse.map(|(_, best)| printed.rounded_like(&Output::new(&best)));
        Ok(match best {
            Some(text) => RoundedOutput { text, warning: Some(UNSURE) },
            None => printed.unchanged(Some(UNSURE)),
        })
    }

    /// Returns the program that runs the script with `guard` more digits.
    fn program(&self, precision: u32, guard: u32) -> String {
        let Self { text, prelude } = self;
        format!(
            "{prelude}define cofferdam_raised(x) {{\nif (x > 0) return (x + {guard})\nreturn (x)\n}}\n\
             define cofferdam_lowered(x) {{\nif (x > 0) return (x - {guard})\nreturn (x)\n}}\n\
             cofferdam_raw=1;scale=cofferdam_raised({precision})\n{text}\n"
        )
    }
}

/// Passes each value of `scale` that a script sets through `cofferdam_raised`, and each that it
/// reads through `cofferdam_lowered`.
fn raised(script: &str) -> Result<String, CalcError> {
    let expression = Expression::new(script);
    let tokens = expression.tokens();
    if let Some(base) = tokens.iter().find(|token| matches!(token.text, "ibase" | "obase")) {
        let why = format!("`round` is for decimal numbers, and the script has `{}`", base.text);
        return Err(CalcError::Invalid(why));
    }
    let mut inserted = Vec::new();
    for (index, token) in tokens.iter().enumerate().filter(|(_, token)| token.text == "scale") {
        let before = index.checked_sub(1).and_then(|index| tokens.get(index));
        match tokens.get(index + 1).map(|next| next.text) {
            // The function that returns the decimals of a number.
            Some("(") => {}
            Some("=") if begins_statement(before) => {
                let value = tokens.get(index + 2..).unwrap_or_default();
                let end = end_of_value(value, script.len());
                let begin = tokens.get(index + 1).map_or(script.len(), Token::end);
                inserted.extend([(begin, "cofferdam_raised("), (end, ")")]);
            }
            next if next == Some("=") || next.is_some_and(|next| CHANGES.contains(&next)) => {
                return Err(unclear());
            }
            _ if before.is_some_and(|before| matches!(before.text, "++" | "--")) => {
                return Err(unclear());
            }
            _ => inserted.extend([(token.at, "cofferdam_lowered("), (token.end(), ")")]),
        }
    }
    // Keeps the order of two texts at one place: a value ends after what it ends with.
    inserted.sort_by_key(|(at, _)| *at);
    let mut text = String::with_capacity(script.len());
    let mut done = 0;
    for (at, part) in inserted {
        text.push_str(script.get(done..at).unwrap_or_default());
        text.push_str(part);
        done = at;
    }
    Ok(text + script.get(done..).unwrap_or_default())
}

fn unclear() -> CalcError {
    let hint = "with `round`, set it in a statement of its own: `scale = scale + 2`";
    CalcError::Invalid(format!("`scale` is changed within an expression: {hint}"))
}

/// Returns true if a statement begins behind this token.
fn begins_statement(before: Option<&Token<'_>>) -> bool {
    before.is_none_or(|before| {
        before.kind == Kind::Break || matches!(before.text, "{" | "}" | ")" | "else")
    })
}

/// Returns the place where the value of an assignment ends: before a looser operator, the end of
/// the statement or that of its block.
fn end_of_value(value: &[Token<'_>], end: usize) -> usize {
    let mut depth = 0_usize;
    let mut last = value.first().map_or(end, |first| first.at);
    for token in value {
        let is_loose = LOOSER.contains(&token.text) || token.text == "else";
        match token.text {
            "(" | "[" => depth += 1,
            ")" | "]" | "}" if depth == 0 => return last,
            ")" | "]" => depth -= 1,
            _ if depth == 0 && (token.kind == Kind::Break || is_loose) => return last,
            _ => {}
        }
        last = token.end();
    }
    last
}

/// A part of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part<'t> {
    Text(&'t str),
    Number(&'t str),
}

/// An output, taken apart into numbers and the text between them.
#[derive(Debug)]
struct Output<'t> {
    whole: &'t str,
    parts: Vec<Part<'t>>,
}

impl<'t> Output<'t> {
    fn new(whole: &'t str) -> Self {
        let mut parts = Vec::new();
        let mut rest = whole;
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || "_.".contains(c);
            // A word may begin with a sign, unless it follows another word.
            let sign = usize::from(first == '-' && !ends_in_word(&parts));
            let word = rest.get(sign..).unwrap_or_default();
            let length = word.find(|c: char| !is_word(c)).unwrap_or(word.len());
            let length = if length == 0 { first.len_utf8() } else { sign + length };
            let (part, behind) = rest.split_at(length);
            let number = Decimal::parse(part).map(|_| Part::Number(part));
            parts.push(number.unwrap_or(Part::Text(part)));
            rest = behind;
        }
        Self { whole, parts }
    }

    fn unchanged(&self, warning: Option<&'static str>) -> RoundedOutput {
        RoundedOutput { text: self.whole.to_owned(), warning }
    }

    fn has_decimals(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Number(number) if number.contains('.')))
    }

    /// Returns true if another output has the same text between as many numbers.
    fn is_like(&self, other: &Output<'_>) -> bool {
        let is_like = |(one, other): (&Part<'_>, &Part<'_>)| match (one, other) {
            (Part::Text(one), Part::Text(other)) => one == other,
            (Part::Number(_), Part::Number(_)) => true,
            (Part::Text(_), Part::Number(_)) | (Part::Number(_), Part::Text(_)) => false,
        };
        self.parts.len() == other.parts.len() && self.parts.iter().zip(&other.parts).all(is_like)
    }

    /// Returns this output with the numbers that two runs prove; `coarse` is of the run with `low`
    /// guard digits.
    fn settled(&self, coarse: &Output<'_>, fine: &Output<'_>, low: u32) -> Option<String> {
        let both = coarse.parts.iter().zip(&fine.parts);
        let settled = |(part, (coarse, fine)): (&Part<'_>, (&Part<'_>, &Part<'_>))| {
            let (Part::Number(number), Part::Number(coarse), Part::Number(fine)) =
                (part, coarse, fine)
            else {
                return part.text().to_owned().into();
            };
            let coarse = Decimal::parse(coarse)?;
            let fine = Decimal::parse(fine)?;
            let places = decimals(number);
            let unused = (places + length(low)).saturating_sub(MIN_UNUSED_PLACES);
            if coarse == fine && fine.places() <= unused {
                return Some(fine.rounded(places));
            }
            fine.agreed(&coarse, places)
        };
        self.parts.iter().zip(both).map(settled).collect()
    }

    /// Returns this output with the numbers of `fine`, rounded to the decimals that are here.
    fn rounded_like(&self, fine: &Output<'_>) -> String {
        let rounded = |(part, fine): (&Part<'_>, &Part<'_>)| match (part, fine) {
            // A whole number may be a count, which means nothing at another scale.
            (Part::Number(number), Part::Number(fine)) if number.contains('.') => {
                let fine = Decimal::parse(fine);
                fine.map_or_else(|| (*number).to_owned(), |fine| fine.rounded(decimals(number)))
            }
            (part, _) => part.text().to_owned(),
        };
        self.parts.iter().zip(&fine.parts).map(rounded).collect()
    }
}

impl<'t> Part<'t> {
    fn text(self) -> &'t str {
        match self {
            Self::Text(text) | Self::Number(text) => text,
        }
    }
}

/// Returns true if the last character is one of a word or a closing bracket: a `-` behind it is no
/// sign.
fn ends_in_word(parts: &[Part<'_>]) -> bool {
    let last = parts.last().and_then(|part| part.text().chars().next_back());
    last.is_some_and(|last| last.is_alphanumeric() || "_.)".contains(last))
}

/// Returns the number of decimals that a printed number shows.
fn decimals(number: &str) -> usize {
    number.split_once('.').map_or(0, |(_, decimals)| decimals.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_of_a_script_is_raised_where_it_is_set_and_lowered_where_it_is_read() {
        for (script, expected) in [
            ("scale=5\n4*a(1)", "scale=up(5)\n4*a(1)"),
            ("scale = 2+3; scale", "scale =up( 2+3); down(scale)"),
            ("if (x) scale=1 else scale=2", "if (x) scale=up(1) else scale=up(2)"),
            ("if (x) { scale=f(1,2) }", "if (x) { scale=up(f(1,2)) }"),
            ("s=scale;scale=0;x/1;scale=s", "s=down(scale);scale=up(0);x/1;scale=up(s)"),
            ("scale=scale+2", "scale=up(down(scale)+2)"),
            ("scale(1/3) # scale=5", "scale(1/3) # scale=5"),
            ("print \"scale=5\"; scale=5<6", "print \"scale=5\"; scale=up(5)<6"),
            ("a=b", "a=b"),
        ] {
            let text = raised(script).map_err(|error| error.to_string());
            let expected = expected.replace("up(", "cofferdam_raised(");
            let expected = expected.replace("down(", "cofferdam_lowered(");
            assert_eq!(text, Ok(expected), "{script}");
        }
        for (script, part) in [
            ("obase=2; 1/3", "the script has `obase`"),
            ("ibase=16", "the script has `ibase`"),
            ("scale++", "`scale` is changed within an expression"),
            ("--scale", "`scale` is changed within an expression"),
            ("scale+=2", "`scale` is changed within an expression"),
            ("x=scale=5", "`scale` is changed within an expression"),
            ("for (scale=5; x; x) y", "`scale` is changed within an expression"),
        ] {
            let error = raised(script).map_err(|error| error.to_string()).err().unwrap_or_default();
            assert!(error.starts_with("Invalid expression: ") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn an_output_is_taken_apart_into_numbers_and_text() {
        let numbers = |text| -> Vec<String> {
            let output = Output::new(text);
            assert_eq!(output.parts.iter().map(|part| part.text()).collect::<String>(), text);
            let is_number = |part: &&Part<'_>| matches!(part, Part::Number(_));
            output.parts.iter().filter(is_number).map(|part| part.text().to_owned()).collect()
        };
        for (text, expected) in [
            ("3.14\n-.5\n0", vec!["3.14", "-.5", "0"]),
            ("x2 = .333 (1.5)", vec![".333", "1.5"]),
            ("5-3 = -2", vec!["5", "3", "-2"]),
            ("1.2.3 FF 3rd - . é1", vec![]),
            ("[-1,-2]", vec!["-1", "-2"]),
            ("", vec![]),
        ] {
            assert_eq!(numbers(text), expected, "{text}");
        }
    }
}
