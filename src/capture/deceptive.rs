//! Characters that hide text or turn it around: a reader sees something else than what is there.
//!
//! They are shown as `<U+202E>`. Marks of direction turn the text behind them around, tags and the
//! selectors of the supplement spell out words that nobody sees, and what has no width hides inside a
//! word or a name. Text of a right-to-left language needs none of them: its letters have a direction.
//!
//! Three kinds are ordinary where they stand directly behind the characters they are made for, and
//! are shown there as they are: joiners between emoji and behind letters of scripts that join, the two
//! selectors of a picture's form, and the selectors of Mongolian letters.

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
        '\u{180b}'..='\u{180f}' => !matches!(before, Some('\u{1820}'..='\u{18aa}')),
        _ => always_deceives(character),
    }
}

const ZERO_WIDTH_NON_JOINER: char = '\u{200c}';
const ZERO_WIDTH_JOINER: char = '\u{200d}';
const TEXT_FORM: char = '\u{fe0e}';
const PICTURE_FORM: char = '\u{fe0f}';
const KEYCAP: char = '\u{20e3}';

/// Returns whether the character deceives wherever it stands.
pub fn always_deceives(character: char) -> bool {
    matches!(
        character,
        // Marks, embeddings, overrides and isolates of direction.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        // Lines that end for one reader and not for another.
        | '\u{2028}' | '\u{2029}'
        // Without width: soft hyphen, grapheme joiner, space, word joiner, operators, byte order mark.
        | '\u{ad}' | '\u{34f}' | '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}'
        | '\u{feff}'
        // Letters that are blank: of Hangul and Khmer.
        | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{17b4}' | '\u{17b5}'
        // Selectors that no picture has, and what is reserved for more without a shape.
        | '\u{fe00}'..='\u{fe0d}' | '\u{fff0}'..='\u{fff8}'
        // Annotations, and the invisible marks of shorthand and music.
        | '\u{fff9}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        // Tags, the selectors of the supplement, and the rest of their plane's first rows.
        | '\u{e0000}'..='\u{e0fff}'
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
    matches!(
        character,
        '\u{a9}' | '\u{ae}' | '\u{203c}' | '\u{2049}' | '\u{2122}' | '\u{2139}'
        | '\u{2190}'..='\u{21ff}' | '\u{2300}'..='\u{23ff}' | '\u{24c2}'
        | '\u{25a0}'..='\u{27bf}' | '\u{2900}'..='\u{297f}' | '\u{2b00}'..='\u{2bff}'
        | '\u{3030}' | '\u{303d}' | '\u{3297}' | '\u{3299}' | '\u{1f000}'..='\u{1faff}'
    )
}

/// Returns the way such a character is shown.
pub fn escaped(character: char) -> String {
    format!("<U+{:04X}>", u32::from(character))
}

/// Returns the text with what deceives shown as an escape.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let (mut before, mut rest) = (None, text.chars());
    while let Some(character) = rest.next() {
        match deceives(character, before, rest.clone().next()) {
            true => shown.push_str(&escaped(character)),
            false => shown.push(character),
        }
        before = Some(character);
    }
    shown
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
}
