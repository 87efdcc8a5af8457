//! Regular expressions of an operator's files, compiled on first use.
//!
//! Compiling one takes longer than a start may take, and most sessions never use the dozen that a
//! server has.

use std::sync::OnceLock;

use regex::Regex;
use regex_syntax::hir::{Hir, HirKind};
use serde::{Deserialize, Serialize};

use crate::document::Document;

/// A regular expression. Two are equal if their texts are equal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LazyRegex {
    text: String,
    /// Names of the groups, in order.
    names: Vec<String>,
    /// Empty before the first use. `None` inside if the expression cannot be compiled.
    compiled: OnceLock<Option<Regex>>,
}

impl LazyRegex {
    /// Parses `text`, which is part of `document`.
    ///
    /// The expressions of an operator are compiled at once, so that a mistake is reported when the
    /// file is loaded. A test compiles those of the compiled-in files instead.
    ///
    /// Returns `None` if the text is not a regular expression or the expression is too large.
    pub(super) fn new(document: &Document, text: &str) -> Option<Self> {
        let pattern = Self::parsed(text)?;
        match document.is_shipped() || pattern.regex().is_some() {
            true => Some(pattern),
            false => None,
        }
    }

    /// Parses an expression that must match a whole word.
    pub(super) fn whole_word(document: &Document, text: &str) -> Option<Self> {
        // Parse it alone first: a superfluous parenthesis would end the group that anchors the
        // expression.
        Self::parsed(text)?;
        // `\A` and `\z`, because `$` matches before a final newline in other dialects.
        Self::new(document, &format!(r"\A(?:{text})\z"))
    }

    fn parsed(text: &str) -> Option<Self> {
        let mut names = Vec::new();
        add_names(&regex_syntax::parse(text).ok()?, &mut names);
        Some(Self { text: text.to_owned(), names, compiled: OnceLock::new() })
    }

    /// Returns the compiled expression. A pattern that cannot be compiled matches nothing.
    pub(super) fn regex(&self) -> Option<&Regex> {
        self.compiled.get_or_init(|| Regex::new(&self.text).ok()).as_ref()
    }

    /// Returns the expression as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the names of the groups.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

impl From<LazyRegex> for String {
    fn from(pattern: LazyRegex) -> Self {
        pattern.text
    }
}

impl TryFrom<String> for LazyRegex {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parsed(&text).ok_or("no regular expression")
    }
}

impl PartialEq for LazyRegex {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for LazyRegex {}

/// Adds the names of the groups in `hir`. regex-syntax bounds its depth.
fn add_names(hir: &Hir, names: &mut Vec<String>) {
    match hir.kind() {
        HirKind::Capture(group) => {
            names.extend(group.name.as_deref().map(str::to_owned));
            add_names(&group.sub, names);
        }
        HirKind::Repetition(repeated) => add_names(&repeated.sub, names),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            for part in parts {
                add_names(part, names);
            }
        }
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) | HirKind::Look(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Option<LazyRegex> {
        LazyRegex::whole_word(&Document::new("tools.toml", ""), text)
    }

    #[test]
    fn a_pattern_matches_whole_words_only() {
        let pattern = whole("a|b").unwrap_or_else(|| panic!("it is a regular expression"));
        let matches = |word: &str| pattern.regex().is_some_and(|regex| regex.is_match(word));
        assert!(matches("a") && matches("b"));
        assert!(["ab", "xa", "a\n", ""].iter().all(|word| !matches(word)));
        // After `(?:…)` this would be an alternative without an anchor.
        assert!(whole("a)|(?:b").is_none());
    }

    #[test]
    fn an_operators_pattern_that_is_too_large_is_refused_at_load() {
        assert!(regex_syntax::parse(r"\w{500}{500}").is_ok(), "the control: its syntax is right");
        assert!(whole(r"\w{500}{500}").is_none());
    }

    #[test]
    fn the_names_of_groups_are_known_before_the_first_use() {
        let pattern = whole("(?<a>x)(y(?<b>z)*|(?P<c>w))").map(|pattern| pattern.names);
        assert_eq!(pattern, Some(["a", "b", "c"].map(str::to_owned).to_vec()));
    }
}
