//! The shells that a cell may have.

use serde::{Deserialize, Serialize};

/// A shell that interprets commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShellKind {
    #[default]
    Bash,
    Sh,
    Zsh,
    Fish,
}

impl ShellKind {
    pub const ALL: [Self; 4] = [Self::Bash, Self::Sh, Self::Zsh, Self::Fish];

    /// Returns its name, which is that of its program.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Sh => "sh",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
        }
    }

    /// Quotes a word for this shell, whatever is in it.
    #[must_use]
    pub fn quoted(self, word: &str) -> String {
        let word = match self {
            // Between its single quotes a backslash quotes itself and the quote.
            Self::Fish => word.replace('\\', r"\\"),
            Self::Bash | Self::Sh | Self::Zsh => word.to_owned(),
        };
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_one_word() {
        assert_eq!(ShellKind::Bash.quoted("a b"), "'a b'");
        assert_eq!(ShellKind::Zsh.quoted("it's; $(x)"), r"'it'\''s; $(x)'");
        assert_eq!(ShellKind::Sh.quoted(r"\\x\"), r"'\\x\'");
        assert_eq!(ShellKind::Fish.quoted(r"\'\x"), r"'\\'\''\\x'");
    }
}
