//! Splits terminal output into characters and escape sequences.

/// Returns the first character and its length in bytes; U+FFFD for invalid bytes.
pub(super) fn first_character(bytes: &[u8]) -> (char, usize) {
    let four = bytes.get(..4).unwrap_or(bytes);
    let chunk = four.utf8_chunks().next();
    let valid = chunk.as_ref().and_then(|chunk| chunk.valid().chars().next());
    match valid {
        Some(character) => (character, character.len_utf8()),
        None => ('\u{fffd}', chunk.map_or(1, |chunk| chunk.invalid().len().max(1))),
    }
}

/// Returns the character, or a picture of it if it is a control character other than tab.
pub(super) fn shown(character: char) -> char {
    match character {
        '\t' => character,
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(character)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}' => '\u{fffd}',
        _ => character,
    }
}

/// Returns the length of the escape sequence at the start of `bytes` (ECMA-48), or 0. A malformed
/// or unterminated sequence ends at the first byte that cannot belong to it.
pub(super) fn sequence_length(bytes: &[u8]) -> usize {
    let [0x1b, rest @ ..] = bytes else { return 0 };
    let run = |from: usize, of: std::ops::RangeInclusive<u8>| {
        rest.iter().skip(from).take_while(|byte| of.contains(byte)).count()
    };
    let closed = |length: usize, by: std::ops::RangeInclusive<u8>| {
        length + usize::from(rest.get(length).is_some_and(|byte| by.contains(byte)))
    };
    1 + match rest.first() {
        // CSI: parameters and intermediates, then a final byte.
        Some(b'[') => closed(1 + run(1, 0x20..=0x3f), 0x40..=0x7e),
        // OSC, DCS, SOS, PM, APC: a string up to BEL, or up to the ESC of its terminator.
        Some(b']' | b'P' | b'X' | b'^' | b'_') => {
            let length = rest.iter().take_while(|byte| !matches!(byte, 0x07 | 0x1b)).count();
            closed(length, 0x07..=0x07)
        }
        Some(0x20..=0x7e) => closed(run(0, 0x20..=0x2f), 0x30..=0x7e),
        Some(_) | None => 0,
    }
}
