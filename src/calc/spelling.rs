//! Translates notations that bc does not have, such as `6.02E23`, and refuses those that bc would
//! silently misread.
//!
//! bc reads `1E5` as 195, `PI` as 99, `5!` not at all, and every unassigned name as 0. Scripts of
//! `calculate_advanced` are passed to bc unchanged.

use super::library::{self, Arguments, Defined};
use super::tokens::{Expression, KEYWORDS, Kind, Token};
use super::{CalcError, validate};
use model::nearest::nearest;

/// Maximum exponent of a number such as `1E300`, whose digits are written out.
const MAX_EXPONENT: usize = 2000;
/// Words of bc that are neither variables nor functions.
const WORDS: [&str; 10] =
    ["scale", "ibase", "obase", "last", "quit", "halt", "break", "continue", "void", "limits"];

/// Translates an expression to bc: its numbers, and the names of the library's functions.
///
/// # Errors
/// The part of the expression that is invalid, and how to write it.
pub(super) fn to_bc(text: &str) -> Result<String, CalcError> {
    validate::expression(text)?;
    let text = write_out_numbers(&text.replace("\r\n", "\n").replace('\r', "\n"))?;
    check_names(&Expression::new(&text))?;
    library::resolved(&text)
}

fn invalid(part: &str, reason: &str, hint: &str) -> CalcError {
    CalcError::Notation { message: format!("`{part}` {reason}"), hint: hint.to_owned() }
}

/// Returns the text with its numbers written out.
fn write_out_numbers(text: &str) -> Result<String, CalcError> {
    let expression = Expression::new(text);
    let tokens = expression.tokens();
    if tokens.iter().any(|token| token.text == "ibase") {
        return Ok(text.to_owned());
    }
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    for (index, token) in tokens.iter().enumerate().filter(|(_, token)| token.text != "\n") {
        if token.at < done {
            continue;
        }
        if token.text == "from_base" {
            // bc cannot parse the digits; copy them unchanged.
            let close = tokens.get(Arguments::after(tokens, index + 1).close);
            let end = close.map_or(text.len(), Token::end);
            out.push_str(text.get(done..end).unwrap_or_default());
            done = end;
        } else if token.text == "!" {
            check_factorial(tokens, index)?;
        } else if token.kind == Kind::Number {
            let rest = text.get(token.at..).unwrap_or_default();
            if let Some((number, length)) = scientific(rest)? {
                out.push_str(text.get(done..token.at).unwrap_or_default());
                out.push_str(&number);
                done = token.at + length;
            } else {
                check_number(word(rest))?;
            }
        }
    }
    out.push_str(text.get(done..).unwrap_or_default());
    Ok(out)
}

/// Returns the letters, digits and points at the beginning of a text.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '_');
    text.get(..end.unwrap_or(text.len())).unwrap_or(text)
}

/// Writes out a number such as `1.5e-3` at the beginning of a text. Returns it with the length of
/// the original, or `None` if the text begins otherwise.
fn scientific(text: &str) -> Result<Option<(String, usize)>, CalcError> {
    let word = word(text);
    let Some((mantissa, digits)) = word.split_once(['e', 'E']) else { return Ok(None) };
    let after = text.get(word.len()..).unwrap_or_default();
    let (sign, digits, length) = match (digits, after.chars().next()) {
        ("", Some(sign @ ('+' | '-'))) => {
            let digits = self::word(after.get(1..).unwrap_or_default());
            (sign, digits, word.len() + 1 + digits.len())
        }
        (digits, _) => ('+', digits, word.len()),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if digits.is_empty() || !is_number(digits) || !is_number(whole) || !is_number(fraction) {
        return Ok(None);
    }
    let exponent = digits.parse::<usize>().ok().filter(|exponent| *exponent <= MAX_EXPONENT);
    let Some(exponent) = exponent else {
        let hint = format!("exponents of numbers go to {MAX_EXPONENT}; write 10^n for more");
        return Err(invalid(text.get(..length).unwrap_or(word), "is out of range", &hint));
    };
    let zeros = "0".repeat(exponent);
    let number = if sign == '-' {
        let digits = format!("{zeros}{whole}");
        let (whole, moved) = digits.split_at(digits.len() - exponent);
        format!("{whole}.{moved}{fraction}")
    } else {
        let digits = format!("{fraction}{zeros}");
        let (moved, fraction) = digits.split_at(exponent);
        format!("{whole}{moved}.{}", fraction.trim_end_matches('0'))
    };
    Ok(Some((number.trim_end_matches('.').to_owned(), length)))
}

/// Checks a word that begins with a digit, a point or a capital letter.
fn check_number(word: &str) -> Result<(), CalcError> {
    let small = word.to_ascii_lowercase();
    for (prefix, base) in [("0x", 16), ("0b", 2), ("0o", 8)] {
        if let Some(digits) = small.strip_prefix(prefix) {
            let hint = format!("write from_base({}, {base})", digits.to_ascii_uppercase());
            return Err(invalid(word, "is not a number of bc's", &hint));
        }
    }
    if word.contains(|c: char| c.is_ascii_uppercase()) {
        let known = library::is_constant(&small)
            || library::functions().any(|function| function.name == small)
            || ["sqrt", "s", "c", "a", "l", "e"].contains(&small.as_str());
        let hint = match known && small.len() > 1 {
            true => format!("names are in small letters: {small}"),
            false => format!(
                "names are in small letters; a number to another base is from_base({word}, 16)"
            ),
        };
        return Err(invalid(word, "is not a number in base 10", &hint));
    }
    let digits = word.trim_end_matches(|c: char| c.is_ascii_lowercase() || c == '_');
    let (number, name) = match word.find(|c: char| c.is_ascii_lowercase() || c == '_') {
        Some(index) => word.split_at(index),
        None => (digits, ""),
    };
    if !name.is_empty() {
        let hint = format!("write a product with `*`: {number}*{name}");
        return Err(invalid(word, "is neither a number nor a name", &hint));
    }
    Ok(())
}

/// Checks the `!` at an index: in bc it is a "not" before a value.
fn check_factorial(tokens: &[Token<'_>], index: usize) -> Result<(), CalcError> {
    let before = index.checked_sub(1).and_then(|index| tokens.get(index));
    let Some(before) = before else { return Ok(()) };
    let value = match before.kind {
        Kind::Number => true,
        Kind::Name => !KEYWORDS.contains(&before.text),
        // `if (a) !b` is not a factorial.
        Kind::Operator => {
            let after = tokens.get(index + 1).map(|token| token.text);
            let ends = after.is_none_or(|text| "+-*/%^<>=),;\n".contains(text));
            matches!(before.text, ")" | "]") && ends
        }
        Kind::Break => false,
    };
    if !value {
        return Ok(());
    }
    let factor = if before.kind == Kind::Operator { "n" } else { before.text };
    Err(invalid(&format!("{}!", before.text), "is not bc", &format!("write fact({factor})")))
}

/// Checks that every name in the expression is assigned, defined or known.
fn check_names(expression: &Expression<'_>) -> Result<(), CalcError> {
    let tokens = expression.tokens();
    let defined = Defined::new(tokens);
    for (index, token) in tokens.iter().enumerate() {
        let name = token.text;
        let called = tokens.get(index + 1).is_some_and(|next| next.text == "(");
        let known = called
            || defined.has(name)
            || defined.defines(name)
            || KEYWORDS.contains(&name)
            || WORDS.contains(&name)
            || library::is_constant(name)
            // Refused elsewhere, with a specific error.
            || name.starts_with("cofferdam_");
        if token.kind != Kind::Name || known || in_from_base(tokens, index) {
            continue;
        }
        let candidates = defined.variables().chain(library::CONSTANTS);
        // A single letter is one typo away from every other one.
        let meant = if name.len() > 1 { nearest(name, candidates) } else { None };
        let hint = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None if library::functions().any(|function| function.name == name) => {
                format!("write its values in brackets: {name}(...)")
            }
            None => format!("assign it first: {name}=1; ..."),
        };
        return Err(invalid(name, "is read and nowhere assigned", &hint));
    }
    Ok(())
}

/// Returns true if a token is among the arguments of `from_base`.
fn in_from_base(tokens: &[Token<'_>], index: usize) -> bool {
    let before = tokens.get(..index).unwrap_or_default();
    let open = before.iter().rposition(|token| token.text == "from_base");
    open.is_some_and(|open| Arguments::after(tokens, open + 1).close > index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str) -> String {
        write_out_numbers(text)
            .and_then(|text| check_names(&Expression::new(&text)).map(|()| text))
            .unwrap_or_else(|error| error.in_full().replace("Invalid expression: ", ""))
    }

    #[test]
    fn numbers_with_an_exponent_are_written_out() {
        let cases = [
            ("1E5", "100000"),
            ("6.02E23*2", "602000000000000000000000*2"),
            ("1.5e-3", "0.0015"),
            ("2e10+1e+2", "20000000000+100"),
            (".5E1", "5"),
            ("12.345E-1", "01.2345"),
            ("1.25e1", "12.5"),
            ("x=3;2*x-1e2", "x=3;2*x-100"),
            ("e(1)+2*e-1", "e(1)+2*e-1"),
            ("ibase=16;1E5", "ibase=16;1E5"),
            ("from_base(1E5, 16)+from_base(zz, 36)", "from_base(1E5, 16)+from_base(zz, 36)"),
        ];
        for (text, expected) in cases {
            assert_eq!(translated(text), expected, "{text}");
        }
    }

    #[test]
    fn misread_notations_are_refused_with_a_hint() {
        let cases = [
            ("PI*2", "`PI` is not a number in base 10\nhint: names are in small letters: pi"),
            ("Sin(1)", "`Sin` is not a number in base 10\nhint: names are in small letters: sin"),
            (
                "FF+1",
                "`FF` is not a number in base 10\nhint: names are in small letters; a number to another base is from_base(FF, 16)",
            ),
            ("0xFF", "`0xFF` is not a number of bc's\nhint: write from_base(FF, 16)"),
            ("0b101", "`0b101` is not a number of bc's\nhint: write from_base(101, 2)"),
            ("5!", "`5!` is not bc\nhint: write fact(5)"),
            (
                "(1+from_base\n)",
                "`from_base` is read and nowhere assigned\nhint: write its values in brackets: from_base(...)",
            ),
            ("(2+3)!*2", "`)!` is not bc\nhint: write fact(n)"),
            ("2pi", "`2pi` is neither a number nor a name\nhint: write a product with `*`: 2*pi"),
            (
                "radius=3;pi*raduis^2",
                "`raduis` is read and nowhere assigned\nhint: did you mean `radius`?",
            ),
            ("qqq+1", "`qqq` is read and nowhere assigned\nhint: assign it first: qqq=1; ..."),
            (
                "1E9999",
                "`1E9999` is out of range\nhint: exponents of numbers go to 2000; write 10^n for more",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(translated(text), expected, "{text}");
        }
        for text in [
            "if(x=1)!x",
            "!0",
            "1!=2",
            "v[0]=1;v[0]",
            "define f(x){auto y;y=x;return(y)}\nf(2)",
            "define f(a[]){return(a[0])}\nv[0]=2;f(v[])",
            "i++;i",
            "last+1",
            "for(i=0;i<3;i++){if(i==1)break;}",
            "2*pi*tau*phi*e",
        ] {
            assert_eq!(translated(text), text);
        }
    }
}
