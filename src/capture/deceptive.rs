//! Characters that hide text or turn it around: a reader sees something else than what is there.
//!
//! They are shown as `<U+202E>`, and found by their properties in Unicode. Marks of direction turn the text behind them around, tags and the
//! selectors of the supplement spell out words that nobody sees, and what has no width hides inside a
//! word or a name. Text of a right-to-left language needs none of them: its letters have a direction.
//!
//! Three kinds are ordinary where they stand directly behind the characters they are made for, and
//! are shown there as they are: joiners between emoji and behind letters of scripts that join, the two
//! selectors of a picture's form, and the selectors of Mongolian letters.

use std::borrow::Cow;

use icu_properties::props::{
    DefaultIgnorableCodePoint, EmojiModifier, ExtendedPictographic, GeneralCategory,
    PrependedConcatenationMark,
};
use icu_properties::{CodePointMapData, CodePointSetData};

use super::escapes::shown;

/// Returns whether the character deceives between these two, where there are any.
pub(crate) fn deceives(character: char, before: Option<char>, after: Option<char>) -> bool {
    match character {
        '\0'..'\u{ad}' => false,
        ZERO_WIDTH_NON_JOINER => !before.is_some_and(joins),
        ZERO_WIDTH_JOINER => {
            let picture = |c: char| is_picture(c) || c == PICTURE_FORM;
            let is_emoji = before.is_some_and(picture) && after.is_some_and(is_picture);
            !(is_emoji || before.is_some_and(joins))
        }
        TEXT_FORM | PICTURE_FORM => {
            let is_keycap = before.is_some_and(|c| c.is_ascii_digit() || c == '#' || c == '*')
                && after == Some(KEYCAP);
            !(is_keycap || before.is_some_and(is_picture))
        }
        '\u{180b}'..='\u{180d}' | '\u{180f}' => !matches!(before, Some('\u{1820}'..='\u{18aa}')),
        _ => always_deceives(character),
    }
}

const ZERO_WIDTH_NON_JOINER: char = '\u{200c}';
const ZERO_WIDTH_JOINER: char = '\u{200d}';
const TEXT_FORM: char = '\u{fe0e}';
const PICTURE_FORM: char = '\u{fe0f}';
const KEYCAP: char = '\u{20e3}';

/// Returns whether the character deceives wherever it stands, by its properties in Unicode: it has no shape, turns
/// text around, ends a line for some readers only, or has no meaning on which readers agree.
///
/// Characters that are judged by their neighbours ([`deceives`]) and marks that have a shape, such as the sign of an
/// Arabic number, are left out.
pub fn always_deceives(character: char) -> bool {
    if character < '\u{ad}' || is_judged_by_neighbours(character) {
        return false;
    }
    let category = CodePointMapData::<GeneralCategory>::new().get(character);
    if category == GeneralCategory::Format {
        return !CodePointSetData::new::<PrependedConcatenationMark>().contains(character);
    }
    let has_no_reading = matches!(
        category,
        GeneralCategory::PrivateUse
            | GeneralCategory::Unassigned
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
    );
    // The latter are blank letters, selectors of shapes, the joiner of graphemes.
    has_no_reading || CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(character)
}

fn is_judged_by_neighbours(character: char) -> bool {
    matches!(
        character,
        ZERO_WIDTH_NON_JOINER | ZERO_WIDTH_JOINER | TEXT_FORM | PICTURE_FORM | '\u{180b}'
            ..='\u{180d}' | '\u{180f}'
    )
}

/// Returns whether a zero-width joiner is ordinary behind this: letters of scripts whose letters join.
fn joins(character: char) -> bool {
    matches!(
        character,
        '\u{620}'..='\u{8ff}' | '\u{900}'..='\u{dff}' | '\u{1000}'..='\u{109f}'
        | '\u{1780}'..='\u{17b3}' | '\u{17b6}'..='\u{17ff}' | '\u{1820}'..='\u{18aa}'
        | '\u{a840}'..='\u{a87f}' | '\u{fb50}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}'
        | '\u{11000}'..='\u{11fff}'
    )
}

/// Returns whether the character can be an emoji, or the colour of one.
fn is_picture(character: char) -> bool {
    CodePointSetData::new::<ExtendedPictographic>().contains(character)
        || CodePointSetData::new::<EmojiModifier>().contains(character)
}

/// Returns the way such a character is shown.
pub fn escaped(character: char) -> String {
    format!("<U+{:04X}>", u32::from(character))
}

/// Returns the text with what deceives shown as an escape, and what a terminal obeys as a picture (`␛`), line feeds and
/// tabs excepted; a carriage return stays where a line feed follows it.
///
/// This is the one rule for text of a cell in a reply. Text that has passed it once comes back as it is.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    if text.bytes().all(is_plain) || first_harm(text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut all = String::with_capacity(text.len());
    for (before, character, after) in neighbours(text) {
        match harm(before, character, after) {
            Some(Harm::Deceives) => all.push_str(&escaped(character)),
            Some(Harm::Obeyed) => all.push(shown(character)),
            None => all.push(character),
        }
    }
    Cow::Owned(all)
}

/// What a character does besides being read.
enum Harm {
    Deceives,
    /// A terminal does something at it.
    Obeyed,
}

fn harm(before: Option<char>, character: char, after: Option<char>) -> Option<Harm> {
    match character {
        '\n' | '\t' => None,
        '\r' if after == Some('\n') => None,
        _ if character.is_control() => Some(Harm::Obeyed),
        _ => deceives(character, before, after).then_some(Harm::Deceives),
    }
}

fn first_harm(text: &str) -> Option<Harm> {
    neighbours(text).find_map(|(before, it, after)| harm(before, it, after))
}

/// Returns each character with those around it.
fn neighbours(text: &str) -> impl Iterator<Item = (Option<char>, char, Option<char>)> + '_ {
    let mut before = None;
    let mut rest = text.chars();
    std::iter::from_fn(move || {
        let character = rest.next()?;
        let after = rest.clone().next();
        Some((before.replace(character), character, after))
    })
}

/// Returns the text with what deceives shown as an escape.
pub fn plain(text: &str) -> String {
    let shown = |(before, character, after)| match deceives(character, before, after) {
        true => escaped(character),
        false => character.to_string(),
    };
    neighbours(text).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_text_of_any_script_stays_as_it_is() {
        let texts = [
            "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}",
            "\u{1f469}\u{1f3fd}\u{200d}\u{2695}\u{fe0f} \u{2764}\u{fe0f}\u{200d}\u{1f525}",
            "1\u{fe0f}\u{20e3} #\u{fe0f}\u{20e3} \u{a9}\u{fe0e} \u{2194}\u{fe0f}",
            "\u{1f1e9}\u{1f1ea} \u{1f44d}\u{1f3fb}",
            "\u{5e9}\u{5b8}\u{5dc}\u{5d5}\u{5b9}\u{5dd} abc \u{645}\u{631}\u{62d}\u{628}\u{627} 12",
            "\u{645}\u{6cc}\u{200c}\u{62e}\u{648}\u{627}\u{647}\u{645} \u{647}\u{200d}.\u{634}",
            "\u{915}\u{94d}\u{200d}\u{937} \u{915}\u{94d}\u{200c}\u{937}",
            "\u{182d}\u{180b}\u{1820} caf\u{e9} e\u{301} a\u{a0}b \u{3000}\u{2026}",
        ];
        for text in texts {
            assert_eq!(plain(text), text);
        }
    }

    #[test]
    fn what_hides_or_turns_text_is_an_escape() {
        let cases = [
            ("user\u{202e}txt.exe", "user<U+202E>txt.exe"),
            (
                "\u{2066}// \u{2069}ok\u{200e}\u{200f}\u{61c}",
                "<U+2066>// <U+2069>ok<U+200E><U+200F><U+061C>",
            ),
            ("\u{1f3f4}\u{e0067}\u{e007f}", "\u{1f3f4}<U+E0067><U+E007F>"),
            (
                "a\u{200b}b\u{200c}c\u{200d}d\u{2060}e\u{feff}",
                "a<U+200B>b<U+200C>c<U+200D>d<U+2060>e<U+FEFF>",
            ),
            ("pass\u{ad}word a\u{fe0f} 1\u{fe0f}", "pass<U+00AD>word a<U+FE0F> 1<U+FE0F>"),
            (
                "\u{1f600}\u{fe0f}\u{fe0f}\u{e0100}\u{e01ef}",
                "\u{1f600}\u{fe0f}<U+FE0F><U+E0100><U+E01EF>",
            ),
            ("\u{1f600}\u{200d}\u{200d}x", "\u{1f600}<U+200D><U+200D>x"),
            ("\u{645}\u{200c}\u{200c}", "\u{645}\u{200c}<U+200C>"),
            (
                "\u{fff9}a\u{fffa}b\u{fffb}\u{2028}\u{2029}",
                "<U+FFF9>a<U+FFFA>b<U+FFFB><U+2028><U+2029>",
            ),
            ("\u{3164}\u{ffa0}\u{180e}", "<U+3164><U+FFA0><U+180E>"),
        ];
        for (text, shown) in cases {
            assert_eq!(plain(text), shown);
        }
    }

    #[test]
    fn classes_are_those_of_unicode() {
        // Format, private use, unassigned and noncharacters, separators, default-ignorable.
        for harmful in [
            '\u{e0001}',
            '\u{180e}',
            '\u{13430}',
            '\u{1bca0}',
            '\u{e000}',
            '\u{f8ff}',
            '\u{100000}',
            '\u{378}',
            '\u{ffff}',
            '\u{1fffe}',
            '\u{2028}',
            '\u{34f}',
            '\u{115f}',
            '\u{3164}',
            '\u{fe00}',
            '\u{e0100}',
            '\u{2065}',
            '\u{fff0}',
        ] {
            assert!(always_deceives(harmful), "{harmful:?}");
        }
        // Marks with a shape, letters, signs, spaces that have a width, a replacement.
        for shown in [
            '\u{600}',
            '\u{6dd}',
            '\u{70f}',
            '\u{110bd}',
            'é',
            '漢',
            '\u{2003}',
            '\u{fffd}',
            '\u{1f600}',
        ] {
            assert!(!always_deceives(shown), "{shown:?}");
        }
    }

    #[test]
    fn harmless_text_is_the_same_and_comes_back_so() {
        for same in ["", "a\tb\r\nc\n", "é漢\u{1f468}\u{200d}\u{1f469}"] {
            assert!(matches!(harmless(same), Cow::Borrowed(it) if it == same));
        }
        let cases = [
            ("\u{1b}[31mred\u{7}\0\u{7f}", "\u{241b}[31mred\u{2407}\u{2400}\u{2421}"),
            ("done\rfake\u{8}\u{9b}2J", "done\u{240d}fake\u{2408}\u{fffd}2J"),
            ("a\u{202e}b\u{e0041}", "a<U+202E>b<U+E0041>"),
        ];
        for (text, wanted) in cases {
            let found = harmless(text);
            assert_eq!(found, wanted);
            assert_eq!(harmless(&found), wanted);
        }
    }
}
