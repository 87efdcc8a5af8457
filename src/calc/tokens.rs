//! Splits an expression of `calculate` into tokens.

/// Keywords, which are followed by an expression and not by arguments.
pub(super) const KEYWORDS: &[&str] =
    &["if", "while", "for", "return", "print", "else", "define", "auto"];

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    Name,
    Operator,
    Break,
}

/// A word or an operator of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'text> {
    pub(super) kind: Kind,
    pub(super) text: &'text str,
    /// Byte offset in the text.
    pub(super) at: usize,
}

impl Token<'_> {
    pub(super) fn end(&self) -> usize {
        self.at + self.text.len()
    }
}

/// The tokens of an expression, without comments and blanks.
#[derive(Debug)]
pub(super) struct Expression<'text>(Vec<Token<'text>>);

impl<'text> Expression<'text> {
    /// Splits a text into tokens.
    pub(super) fn new(mut text: &'text str) -> Self {
        let mut tokens = Vec::new();
        let mut at = 0;
        while let Some(first) = text.bytes().next() {
            let run = |keep: fn(&u8) -> bool| text.bytes().take_while(keep).count();
            let (kind, length) = match first {
                b'\n' | b'\r' | b';' => (Some(Kind::Break), 1),
                b'0'..=b'9' | b'A'..=b'Z' | b'.' => {
                    (Some(Kind::Number), run(|b| matches!(b, b'0'..=b'9' | b'A'..=b'Z' | b'.')))
                }
                b'a'..=b'z' | b'_' => {
                    (Some(Kind::Name), run(|b| matches!(b, b'0'..=b'9' | b'a'..=b'z' | b'_')))
                }
                // Strings occur only in scripts.
                b'#' => (None, text.find('\n').unwrap_or(text.len())),
                b'"' => {
                    let string = text.get(1..).and_then(|rest| rest.find('"'));
                    (None, string.map_or(text.len(), |end| end + 2))
                }
                b'/' if text.starts_with("/*") => {
                    (None, text.find("*/").map_or(text.len(), |end| end + 2))
                }
                byte if byte.is_ascii_whitespace() => (None, 1),
                _ => (Some(Kind::Operator), operator_length(text)),
            };
            let Some((token, rest)) = text.split_at_checked(length) else { break };
            tokens.extend(kind.map(|kind| Token { kind, text: token, at }));
            (text, at) = (rest, at + length);
        }
        Self(tokens)
    }

    pub(super) fn tokens(&self) -> &[Token<'text>] {
        &self.0
    }

    /// Returns the names in the expression.
    pub(super) fn names(&self) -> impl Iterator<Item = &'text str> {
        self.0.iter().filter(|token| token.kind == Kind::Name).map(|token| token.text)
    }

    /// Returns true if the expression has one of these operators.
    pub(super) fn has(&self, operators: &[&str]) -> bool {
        self.0.iter().any(|token| token.kind == Kind::Operator && operators.contains(&token.text))
    }
}

fn operator_length(text: &str) -> usize {
    const TWO: [&str; 14] =
        ["++", "--", "==", "<=", ">=", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=", "^="];
    if TWO.iter().any(|operator| text.starts_with(operator)) {
        return 2;
    }
    text.chars().next().map_or(1, char::len_utf8)
}
