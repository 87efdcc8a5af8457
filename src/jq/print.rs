//! Writes values as strict JSON, in the layout of jq(1): with the writer of jaq, but for numbers and keys.

use std::fmt::{self, Write};

use jaq_json::write::Pp;
use jaq_json::{Num, Val};

/// Writes a value as JSON.
pub(crate) fn json(value: &Val, layout: &Pp) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    write(&mut text, layout, 0, value).unwrap_or_default();
    text
}

/// Writes a value as JSON in one line, as `tojson` does.
pub(crate) fn compact(value: &Val) -> String {
    json(value, &Pp::default())
}

fn write(text: &mut String, layout: &Pp, level: usize, value: &Val) -> fmt::Result {
    match value {
        Val::Num(number) => text.write_str(&self::number(number)),
        Val::BStr(_) => write(text, layout, level, &Val::utf8_str(plain(value))),
        Val::Obj(object) if !object.is_empty() => {
            let mut entries: Vec<(&Val, &Val)> = object.iter().collect();
            if layout.sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            text.push('{');
            jaq_json::write_seq!(text, layout, level, entries, |(key, value): (&Val, &Val)| {
                // A key that is no string is written as one.
                write(text, layout, level, &Val::utf8_str(plain(key)))?;
                text.push_str(if layout.indent.is_some() { ": " } else { ":" });
                write(text, layout, level + 1, value)
            })?;
            text.push('}');
            Ok(())
        }
        value => jaq_json::format_val!(text, layout, level, value, write),
    }
}

/// Escapes the characters beyond ASCII of a text of JSON, as `\u` and their UTF-16 units.
pub(crate) fn ascii(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        if character.is_ascii() {
            text.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            text.push_str(&format!("\\u{unit:04x}"));
        }
    }
    text
}

/// Returns a value as `tostring` does: a string unchanged, any other value as JSON.
pub(crate) fn plain(value: &Val) -> String {
    match value {
        Val::TStr(bytes) | Val::BStr(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        value => compact(value),
    }
}

/// Writes a number: integers without a point, NaN as null.
fn number(number: &Num) -> String {
    let float = match number {
        Num::Int(whole) => return whole.to_string(),
        Num::BigInt(whole) => return whole.to_string(),
        Num::Float(float) => *float,
        Num::Dec(digits) => digits.parse().unwrap_or(f64::NAN),
    };
    if float.is_nan() {
        return "null".to_owned();
    }
    if float.is_infinite() {
        return float_text(f64::MAX.copysign(float));
    }
    float_text(float)
}

/// Writes the shortest digits that parse as the same number, in the layout of jq(1).
fn float_text(float: f64) -> String {
    let exponential = format!("{float:e}");
    let (digits, exponent) = exponential.split_once('e').unwrap_or((&exponential, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits_count = digits.bytes().filter(u8::is_ascii_digit).count();
    let digits_count = i32::try_from(digits_count).unwrap_or(i32::MAX);
    if exponent > -5 && exponent < digits_count.max(17) {
        return format!("{float}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_layout_of_jq() {
        for (float, expected) in [
            (2.0, "2"),
            (-0.0, "-0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e3, "1000"),
            (1e17, "1e+17"),
            (1e100, "1e+100"),
            (1e-5, "1e-05"),
            (f64::INFINITY, "1.7976931348623157e+308"),
            (f64::NAN, "null"),
        ] {
            assert_eq!(number(&Num::Float(float)), expected);
        }
    }

    #[test]
    fn strings_are_escaped_as_in_json() {
        let value = Val::utf8_str("a\"\\\n\u{1}\u{7f}é😀".to_owned());
        assert_eq!(compact(&value), "\"a\\\"\\\\\\n\\u0001\\u007fé😀\"");
        assert_eq!(ascii(&compact(&value)), r#""a\"\\\n\u0001\u007f\u00e9\ud83d\ude00""#);
    }
}
