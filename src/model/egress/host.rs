//! Host names in rules: one name, or all names below one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum length of a DNS name (RFC 1035).
const MAX_NAME_BYTES: usize = 253;
/// Maximum length of a label.
const MAX_LABEL_BYTES: usize = 63;

/// A DNS name in lower case, or `*.` before one: all names below it, but not the name itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPattern {
    /// The name; for a wildcard the part after `*.`.
    name: String,
    /// True for `*.name`.
    below: bool,
}

/// Why a host name is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHost {
    #[error("`{0}` would match every name; list the names, or `*.example.org`")]
    Everything(String),
    #[error(
        "`{0}` matches a whole top-level domain; name at least two labels, as in `*.example.org`"
    )]
    TopLevel(String),
    #[error("`{0}` is an address; list it under `nets`")]
    Address(String),
    #[error(
        "`{0}` is not a name of a host; write letters, digits, `-` and dots, a name in another script as `xn--…`"
    )]
    NotAName(String),
    #[error("`{0}` is never reached: {1}")]
    Never(String, &'static str),
}

impl HostPattern {
    /// Returns true if the pattern matches `name`; case and a trailing dot are ignored.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        if !self.below {
            return name.eq_ignore_ascii_case(&self.name);
        }
        let start = name.len().saturating_sub(self.name.len());
        let (Some(before), Some(end)) = (name.get(..start), name.get(start..)) else {
            return false;
        };
        end.eq_ignore_ascii_case(&self.name) && before.len() > 1 && before.ends_with('.')
    }

    /// Returns true if this pattern matches every name that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        match (self.below, other.below) {
            (true, true) => self.name == other.name || self.matches(&other.name),
            (true | false, false) => self.matches(&other.name),
            (false, true) => false,
        }
    }

    /// Returns the name if the pattern is exactly one.
    pub fn exact(&self) -> Option<&str> {
        (!self.below).then_some(self.name.as_str())
    }
}

impl FromStr for HostPattern {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let shown = || text.chars().take(80).flat_map(char::escape_default).collect::<String>();
        let lower = text.to_ascii_lowercase();
        let (name, below) = match lower.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (lower.as_str(), false),
        };
        if lower == "*" || name == "*" || (below && name.is_empty()) {
            return Err(InvalidHost::Everything(shown()));
        }
        if name.parse::<std::net::IpAddr>().is_ok() {
            return Err(InvalidHost::Address(shown()));
        }
        if name.len() > MAX_NAME_BYTES || !name.split('.').all(is_label) {
            return Err(InvalidHost::NotAName(shown()));
        }
        // `inet_aton` parses 0x7f.1 and 2130706433 as addresses; no top-level domain begins with a
        // digit.
        if name
            .rsplit('.')
            .next()
            .is_some_and(|last| last.starts_with(|c: char| c.is_ascii_digit()))
        {
            return Err(InvalidHost::Address(shown()));
        }
        if below && !name.contains('.') {
            return Err(InvalidHost::TopLevel(shown()));
        }
        match super::never::name(name) {
            Some(reason) => Err(InvalidHost::Never(shown(), reason)),
            None => Ok(Self { name: name.to_owned(), below }),
        }
    }
}

/// Returns true for a label of letters, digits, `-` and `_`, which begins names of services.
fn is_label(label: &str) -> bool {
    let all = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    all && (1..=MAX_LABEL_BYTES).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.below { "*." } else { "" }, self.name)
    }
}

impl TryFrom<String> for HostPattern {
    type Error = InvalidHost;

    fn try_from(text: String) -> Result<Self, InvalidHost> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(host: HostPattern) -> Self {
        host.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> HostPattern {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn an_exact_name_matches_itself_and_a_wildcard_all_below_it() {
        let exact = host("PyPI.org");
        assert_eq!(exact.to_string(), "pypi.org");
        for name in ["pypi.org", "PYPI.ORG", "pypi.org."] {
            assert!(exact.matches(name), "{name}");
        }
        for name in ["a.pypi.org", "xpypi.org", "pypi.org.evil.test", "org", "", "."] {
            assert!(!exact.matches(name), "{name}");
        }
        let below = host("*.example.org");
        for name in ["a.example.org", "a.b.EXAMPLE.org", "a.example.org."] {
            assert!(below.matches(name), "{name}");
        }
        for name in ["example.org", ".example.org", "xexample.org", "a.example.org.test", ""] {
            assert!(!below.matches(name), "{name}");
        }
    }

    #[test]
    fn a_pattern_covers_what_it_matches_whole() {
        assert!(host("*.a.b").covers(&host("x.a.b")) && host("*.a.b").covers(&host("*.x.a.b")));
        assert!(host("*.a.b").covers(&host("*.a.b")) && host("a.b").covers(&host("a.b")));
        assert!(!host("x.a.b").covers(&host("*.a.b")) && !host("*.a.b").covers(&host("a.b")));
        assert!(!host("*.x.a.b").covers(&host("*.a.b")));
    }

    #[test]
    fn other_spellings_are_refused_each_with_its_reason() {
        let refusal = |text: &str| text.parse::<HostPattern>().err().map(|error| error.to_string());
        for (text, said) in [
            ("*", "every name"),
            ("*.", "every name"),
            ("*.com", "top-level domain"),
            ("10.0.0.1", "under `nets`"),
            ("::1", "under `nets`"),
            ("0x7f.1", "under `nets`"),
            ("2130706433", "under `nets`"),
            ("", "not a name"),
            ("a..b", "not a name"),
            ("pypi.org.", "not a name"),
            ("a.*.b", "not a name"),
            ("**.a.b", "not a name"),
            ("bücher.example", "xn--"),
            ("https://pypi.org", "not a name"),
            ("pypi.org:443", "not a name"),
            ("-a.b", "not a name"),
            ("a b.c", "not a name"),
            ("localhost", "never reached"),
            ("db.localhost", "never reached"),
            ("printer.local", "never reached"),
            ("*.foo.local", "never reached"),
            ("Metadata.Google.Internal", "never reached"),
        ] {
            assert!(
                refusal(text).is_some_and(|refusal| refusal.contains(said)),
                "{text}: {:?}",
                refusal(text)
            );
        }
        assert!(format!("{}.org", "a".repeat(64)).parse::<HostPattern>().is_err());
        assert!("a.".repeat(130).trim_end_matches('.').parse::<HostPattern>().is_err());
        for text in ["db", "_acme.example.org", "xn--bcher-kva.example", "a1.b2.c3"] {
            assert_eq!(host(text).to_string(), text);
        }
    }
}
