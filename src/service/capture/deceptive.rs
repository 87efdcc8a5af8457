//! Finds characters that hide or reorder text, so that a reader sees something other than what is
//! there.
//!
//! They are found by their Unicode properties, and shown as `<U+202E>`. Direction marks reorder the
//! text after them, tags and supplementary selectors spell out invisible words, and characters
//! without width hide inside words. Right-to-left text does not need them: its letters have a
//! direction.
//!
//! Three kinds are shown unchanged directly after the characters that they are made for: joiners
//! between emoji and after letters of joining scripts, the two presentation selectors of pictures,
//! and the selectors of Mongolian letters.

use std::borrow::Cow;

use unicode_properties::{GeneralCategory, UnicodeEmoji as _, UnicodeGeneralCategory as _};

use super::escapes::shown;

/// Returns true if the character deceives between these two neighbours.
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

/// Returns true if the character deceives wherever it stands, by its Unicode properties: it is
/// invisible, reorders text, ends a line for some readers only, or has no agreed meaning.
///
/// Characters that are judged by their neighbours (`deceives`) do not count, nor do visible marks
/// such as the Arabic number sign.
pub fn always_deceives(character: char) -> bool {
    if character < '\u{ad}' || is_ordinary(character) || is_judged_by_neighbours(character) {
        return false;
    }
    let category = character.general_category();
    if category == GeneralCategory::Format {
        return !is_visible_format(character);
    }
    let has_no_reading = matches!(
        category,
        GeneralCategory::PrivateUse
            | GeneralCategory::Unassigned
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
    );
    has_no_reading || is_ignorable(character)
}

/// Returns true for characters of blocks without any that deceive, which need no lookup.
fn is_ordinary(character: char) -> bool {
    matches!(
        character,
        '\u{ae}'..='\u{2ff}' | '\u{400}'..='\u{52f}' | '\u{2010}'..='\u{2027}'
        | '\u{2190}'..='\u{23ff}' | '\u{2500}'..='\u{27bf}' | '\u{3041}'..='\u{3096}'
        | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}'
    )
}

/// Returns true for the visible ones of the format characters (Prepended_Concatenation_Mark).
fn is_visible_format(character: char) -> bool {
    matches!(
        character,
        '\u{600}'..='\u{605}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
        | '\u{110bd}' | '\u{110cd}'
    )
}

/// Returns true for blank letters, variation selectors and the grapheme joiner: what
/// Default_Ignorable_Code_Point has of other categories than those above.
fn is_ignorable(character: char) -> bool {
    matches!(
        character,
        '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180d}'
        | '\u{180f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}'
    )
}

/// Returns true for joiners and selectors, which deceive unless they follow what they are made for.
pub fn is_judged_by_neighbours(character: char) -> bool {
    matches!(
        character,
        ZERO_WIDTH_NON_JOINER | ZERO_WIDTH_JOINER | TEXT_FORM | PICTURE_FORM | '\u{180b}'
            ..='\u{180d}' | '\u{180f}'
    )
}

/// Returns true for letters of joining scripts, after which a zero-width joiner is ordinary. An unassigned character of
/// their blocks is shown as an escape, after which a joiner would be invisible.
fn joins(character: char) -> bool {
    let is_in_block = matches!(
        character,
        '\u{620}'..='\u{8ff}' | '\u{900}'..='\u{dff}' | '\u{1000}'..='\u{109f}'
        | '\u{1780}'..='\u{17b3}' | '\u{17b6}'..='\u{17ff}' | '\u{1820}'..='\u{18aa}'
        | '\u{a840}'..='\u{a87f}' | '\u{fb50}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}'
        | '\u{11000}'..='\u{11fff}'
    );
    is_in_block && !always_deceives(character)
}

/// Returns true if the character can be an emoji of one character, or an emoji modifier.
fn is_picture(character: char) -> bool {
    !character.is_ascii()
        && !matches!(character, '\u{1f1e6}'..='\u{1f1ff}')
        && character.is_emoji_char()
}

/// Returns the escape that shows such a character.
pub fn escaped(character: char) -> String {
    format!("<U+{:04X}>", u32::from(character))
}

/// Returns the text with deceptive characters shown as escapes, and control characters as pictures
/// (`␛`). Line feeds and tabs stay, as does a carriage return before a line feed.
///
/// Every text of a cell in a reply passes this one rule. Applying it again changes nothing.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    if text.bytes().all(is_plain) || first_harm(text).is_none() {
        return Cow::Borrowed(text);
    }
    let mut harmless = String::with_capacity(text.len());
    for (before, character, after) in neighbours(text) {
        match harm(before, character, after) {
            Some(Harm::Deceives) => harmless.push_str(&escaped(character)),
            Some(Harm::Control) => harmless.push(shown(character)),
            None => harmless.push(character),
        }
    }
    Cow::Owned(harmless)
}

/// How a character can do harm.
enum Harm {
    Deceives,
    /// A terminal acts on it.
    Control,
}

fn harm(before: Option<char>, character: char, after: Option<char>) -> Option<Harm> {
    match character {
        '\n' | '\t' => None,
        '\r' if after == Some('\n') => None,
        _ if character.is_control() => Some(Harm::Control),
        _ => deceives(character, before, after).then_some(Harm::Deceives),
    }
}

fn first_harm(text: &str) -> Option<Harm> {
    neighbours(text).find_map(|(before, it, after)| harm(before, it, after))
}

/// Returns each character with its two neighbours.
fn neighbours(text: &str) -> impl Iterator<Item = (Option<char>, char, Option<char>)> + '_ {
    let mut before = None;
    let mut rest = text.chars();
    std::iter::from_fn(move || {
        let character = rest.next()?;
        let after = rest.clone().next();
        Some((before.replace(character), character, after))
    })
}

/// Returns the text with deceptive characters shown as escapes.
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
    fn a_joiner_after_an_unassigned_character_of_a_joining_script_is_shown() {
        assert_eq!(plain("\u{11305}\u{200c}"), "\u{11305}\u{200c}");
        assert_eq!(plain("\u{11345}\u{200c}"), "<U+11345><U+200C>");
        assert_eq!(harmless("\u{11345}\u{200d}"), "<U+11345><U+200D>");
    }

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
    fn characters_that_hide_or_reorder_text_are_escaped() {
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
            '\u{17b4}',
            '\u{ffa0}',
        ] {
            assert!(always_deceives(harmful), "{harmful:?}");
        }
        // Visible marks, letters, signs, spaces with a width, and the replacement character.
        for shown in [
            '\u{600}',
            '\u{6dd}',
            '\u{70f}',
            '\u{891}',
            '\u{8e2}',
            '\u{110bd}',
            '\u{110cd}',
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
    fn blocks_without_a_lookup_have_only_visible_characters() {
        use GeneralCategory::{Format, LineSeparator, ParagraphSeparator, PrivateUse, Unassigned};
        let hidden = [Format, PrivateUse, Unassigned, LineSeparator, ParagraphSeparator];
        let hides = |character: &char| {
            hidden.contains(&character.general_category()) || is_ignorable(*character)
        };
        assert_eq!(('\0'..=char::MAX).filter(|c| is_ordinary(*c)).find(hides), None);
    }

    #[test]
    fn harmless_text_is_unchanged_and_the_rule_is_idempotent() {
        for same in ["", "a\tb\r\nc\n", "é漢\u{1f468}\u{200d}\u{1f469}"] {
            assert!(matches!(harmless(same), Cow::Borrowed(it) if it == same));
        }
        let cases = [
            ("\u{1b}[31mred\u{7}\0\u{7f}", "\u{241b}[31mred\u{2407}\u{2400}\u{2421}"),
            ("done\rfake\u{8}\u{9b}2J", "done\u{240d}fake\u{2408}\u{fffd}2J"),
            ("a\u{202e}b\u{e0041}", "a<U+202E>b<U+E0041>"),
        ];
        for (text, wanted) in cases {
            let shown = harmless(text);
            assert_eq!(shown, wanted);
            assert_eq!(harmless(&shown), wanted);
        }
    }
}
