//! Evaluates `from_base(FF, 16)`, whose digits bc cannot parse, to a decimal number.

use num_bigint::BigUint;

use super::CalcError;
use super::tokens::Token;

/// Returns the number that the arguments of `from_base` denote, in decimal and in brackets.
///
/// # Errors
/// The arguments are not digits and a base from 2 to 36.
pub(super) fn literal(arguments: &[Token<'_>]) -> Result<String, CalcError> {
    let takes = "from_base(digits, b) takes digits as they stand and a base from 2 to 36";
    let invalid = |reason: String| CalcError::Invalid(format!("{takes}: {reason}"));
    let texts: Vec<&str> = arguments.iter().map(|token| token.text).collect();
    let [digits @ .., ",", base] = texts.as_slice() else {
        return Err(invalid("a comma and a base are missing".to_owned()));
    };
    let base = base.parse::<u32>().ok().filter(|base| (2..=36).contains(base));
    let base = base.ok_or_else(|| invalid("the base is another".to_owned()))?;
    let (sign, digits) = match digits {
        ["-", digits @ ..] => ("-", digits.concat()),
        digits => ("", digits.concat()),
    };
    if let Some(wrong) = digits.chars().find(|digit| !digit.is_digit(base)) {
        return Err(invalid(format!("`{wrong}` is no digit of base {base}")));
    }
    let number = BigUint::parse_bytes(digits.as_bytes(), base);
    let number = number.ok_or_else(|| invalid("there are no digits".to_owned()))?;
    Ok(format!("({sign}{number})"))
}
