//! Bounds the number of values in a JSON text: a short text with many values takes much memory once it is parsed.

/// Maximum values of JSON in one message.
pub const MAX_VALUES: usize = 100_000;
/// Memory in bytes that each value takes once it is parsed, in addition to its text.
const VALUE_BYTES: usize = 96;

/// Counts the values in a JSON text before it is parsed. The text may come in pieces. A text that is not JSON is
/// refused by the parser later.
#[derive(Debug, Default)]
pub struct JsonValues {
    counted: usize,
    in_text: bool,
    is_escaped: bool,
}

impl JsonValues {
    /// Counts the values of the next piece.
    pub fn count(&mut self, piece: &[u8]) {
        for byte in piece {
            match (self.in_text, byte) {
                (true, _) if self.is_escaped => self.is_escaped = false,
                (true, b'\\') => self.is_escaped = true,
                (_, b'"') => self.in_text = !self.in_text,
                // Each value but the first follows one of these.
                (false, b',' | b'[' | b'{' | b':') => self.counted += 1,
                (_, _) => {}
            }
        }
    }

    /// Returns true if there are more values than a message may have.
    pub fn are_too_many(&self) -> bool {
        self.counted > MAX_VALUES
    }

    /// Returns the memory in bytes that parsing the values takes.
    pub fn bytes(&self) -> usize {
        self.counted.saturating_mul(VALUE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_across_pieces_and_not_within_texts() {
        let text = br#"{"a": [1, 2, {"b,[": "\\\",,,[[", "c": []}]}"#;
        let whole = |size: usize| {
            let mut values = JsonValues::default();
            text.chunks(size).for_each(|piece| values.count(piece));
            values.counted
        };
        // An object, two lists, another object, three colons, three commas.
        assert_eq!((whole(text.len()), whole(1), whole(3)), (10, 10, 10));
    }

    #[test]
    fn a_message_has_so_many_values_and_no_more() {
        let mut values = JsonValues::default();
        values.count(",".repeat(MAX_VALUES).as_bytes());
        assert!(!values.are_too_many());
        values.count(b"\",\" ,");
        assert!(values.are_too_many());
        assert_eq!(values.bytes(), (MAX_VALUES + 1) * VALUE_BYTES);
    }
}
