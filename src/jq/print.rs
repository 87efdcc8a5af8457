//! Writes values as strict JSON, in the layout of jq(1).

use std::fmt::Write;

use jaq_json::{Num, Val};

/// Layout of the JSON.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Style {
    pub(crate) indent: Indent,
    /// True if the keys of objects are sorted.
    pub(crate) is_sorted: bool,
    /// True if characters beyond ASCII are escaped.
    pub(crate) is_ascii: bool,
}

/// Indentation of each level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Indent {
    /// Everything in one line.
    None,
    Spaces(usize),
    Tab,
}

impl Default for Indent {
    fn default() -> Self {
        Self::Spaces(2)
    }
}

/// Style of `tojson` and of values that a string includes.
pub(crate) const COMPACT: Style = Style { indent: Indent::None, is_sorted: false, is_ascii: false };

/// Writes a value as JSON.
pub(crate) fn json(value: &Val, style: &Style) -> String {
    let mut text = String::new();
    write(&mut text, value, style, 0);
    text
}

fn write(text: &mut String, value: &Val, style: &Style, level: usize) {
    match value {
        Val::Null => text.push_str("null"),
        Val::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Val::Num(number) => text.push_str(&self::number(number)),
        Val::TStr(bytes) | Val::BStr(bytes) => string(text, &String::from_utf8_lossy(bytes), style),
        Val::Arr(items) => {
            let write = |text: &mut String, item: &Val| write(text, item, style, level + 1);
            list(text, items.iter(), ['[', ']'], style.indent, level, write);
        }
        Val::Obj(object) => {
            let mut entries: Vec<(&Val, &Val)> = object.iter().collect();
            if style.is_sorted {
                entries.sort_by_key(|(key, _)| *key);
            }
            let write = |text: &mut String, (key, value): (&Val, &Val)| {
                string(text, &plain(key), style);
                text.push_str(if style.indent == Indent::None { ":" } else { ": " });
                write(text, value, style, level + 1);
            };
            list(text, entries.into_iter(), ['{', '}'], style.indent, level, write);
        }
    }
}

/// Writes items between brackets.
fn list<T>(
    text: &mut String,
    items: impl ExactSizeIterator<Item = T>,
    [open, close]: [char; 2],
    indent: Indent,
    level: usize,
    write: impl Fn(&mut String, T),
) {
    text.push(open);
    let is_empty = items.len() == 0;
    for (number, item) in items.enumerate() {
        if number > 0 {
            text.push(',');
        }
        line(text, indent, level + 1);
        write(text, item);
    }
    if !is_empty {
        line(text, indent, level);
    }
    text.push(close);
}

/// Begins an indented line, unless everything is in one line.
fn line(text: &mut String, indent: Indent, level: usize) {
    let (unit, count) = match indent {
        Indent::None => return,
        Indent::Spaces(width) => (' ', width * level),
        Indent::Tab => ('\t', level),
    };
    text.push('\n');
    text.extend(std::iter::repeat_n(unit, count));
}

fn string(text: &mut String, value: &str, style: &Style) {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\r' => text.push_str("\\r"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            '\0'..='\u{1f}' | '\u{7f}' => escape(text, character),
            _ if style.is_ascii && !character.is_ascii() => escape(text, character),
            _ => text.push(character),
        }
    }
    text.push('"');
}

/// Writes a character as `\u` escapes of its UTF-16 units.
fn escape(text: &mut String, character: char) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        // Writing to a string cannot fail.
        if write!(text, "\\u{unit:04x}").is_err() {
            return;
        }
    }
}

/// Returns a string with its characters beyond ASCII escaped.
pub(crate) fn ascii(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            escape(&mut text, character);
        }
    }
    text
}

/// Returns a value as `tostring` does: a string unchanged, any other value as JSON.
pub(crate) fn plain(value: &Val) -> String {
    match value {
        Val::TStr(bytes) | Val::BStr(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Val::Null | Val::Bool(_) | Val::Num(_) | Val::Arr(_) | Val::Obj(_) => json(value, &COMPACT),
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
        assert_eq!(json(&value, &COMPACT), "\"a\\\"\\\\\\n\\u0001\\u007fé😀\"");
        let style = Style { is_ascii: true, ..COMPACT };
        assert_eq!(json(&value, &style), r#""a\"\\\n\u0001\u007f\u00e9\ud83d\ude00""#);
    }
}
