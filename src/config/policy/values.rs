//! Types of the words in flag allow-lists. Each type checks a word and returns the word to pass on.

use core::net::IpAddr;
use std::ops::RangeInclusive;

use super::decimal::Decimal;
use super::pattern::LazyRegex;
use super::reach::{TargetReach, TooLarge};
use model::call::Cwd;
use model::egress::Net;

/// Maximum length of a word in bytes. A type may have a lower one.
pub const WORD_BYTES: usize = 4096;

/// Type of a value, with its constraints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Type {
    pub kind: WordType,
    /// Expression that the whole word must match.
    pub(super) pattern: Option<LazyRegex>,
    pub max_bytes: usize,
    /// Targets that a host, a network or a URL may name.
    pub reach: TargetReach,
}

/// Type of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WordType {
    Text,
    /// Decimal digits, within the range.
    Int(RangeInclusive<u64>),
    /// Decimal digits within the range, optionally with a point and up to six decimals.
    Decimal(RangeInclusive<Decimal>),
    /// A path inside `/workspace`.
    Path,
    /// A host name or an address.
    Host,
    /// An address and a prefix length.
    Cidr,
    /// A host name, an address, or an address and a prefix length.
    Target,
    /// Ports of TCP or UDP and ranges of them, such as `22,80-90`.
    Ports,
    /// http or https, without a user.
    Url,
    /// One of these words.
    Choice(Vec<String>),
}

/// Returns true for a dash other than `-`, and for a character that is invisible or changes the
/// direction of text. A reader of the log would take the word for another, and so might a program
/// that normalises.
fn is_deceptive(c: char) -> bool {
    matches!(c,
        '\u{00ad}' | '\u{058a}' | '\u{05be}' | '\u{1400}' | '\u{1806}' | '\u{2010}'..='\u{2015}'
        | '\u{2043}' | '\u{2053}' | '\u{207b}' | '\u{208b}' | '\u{2212}' | '\u{2e17}' | '\u{2e1a}'
        | '\u{2e3a}' | '\u{2e3b}' | '\u{2e40}' | '\u{2e5d}' | '\u{301c}' | '\u{3030}'
        | '\u{30a0}' | '\u{30fc}' | '\u{fe31}' | '\u{fe32}' | '\u{fe58}' | '\u{fe63}'
        | '\u{ff0d}' | '\u{10ead}'
        | '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Checks the conditions on every word, flag or value.
///
/// # Errors
/// The reason for the refusal, as a phrase that follows the word.
pub(super) fn plain(word: &str) -> Result<(), &'static str> {
    if word.is_empty() {
        return Err("is empty");
    }
    if word.len() > WORD_BYTES {
        return Err("is longer than 4096 bytes");
    }
    if word.chars().any(char::is_control) {
        return Err("has a control character in it");
    }
    match word.chars().any(is_deceptive) {
        true => Err("has a character in it that looks like a dash, or like nothing"),
        false => Ok(()),
    }
}

impl Type {
    /// Returns the word for the program: unchanged, except for a path, which is normalised.
    ///
    /// # Errors
    /// The reason for the refusal, as a phrase that follows the word.
    pub fn check(&self, word: &str) -> Result<String, String> {
        plain(word)?;
        if word.starts_with('-') {
            return Err("begins with a dash".to_owned());
        }
        if word.len() > self.max_bytes {
            return Err(format!("is longer than {} bytes", self.max_bytes));
        }
        let fits = |pattern: &LazyRegex| pattern.regex().is_some_and(|regex| regex.is_match(word));
        if self.pattern.as_ref().is_some_and(|pattern| !fits(pattern)) {
            return Err("does not have the form that is taken here".to_owned());
        }
        let word = self.kind.check(word)?;
        self.within(&word)?;
        Ok(word)
    }

    /// Checks the target that a word names.
    fn within(&self, word: &str) -> Result<(), String> {
        let host = |host: &str| match host.parse::<IpAddr>() {
            Ok(address) => self.reach.within.address(address),
            Err(_) => self.reach.within.name(host),
        };
        match &self.kind {
            WordType::Host => host(word),
            WordType::Url => host(url_host(word)),
            WordType::Cidr | WordType::Target => match net(word) {
                Some(net) => match self.reach.too_large(&net) {
                    Some(TooLarge { size, most, prefix }) => Err(format!(
                        "is a network of {size} addresses, and {most} are taken; use /{prefix} or smaller"
                    )),
                    None => self.reach.within.network(&net),
                },
                None => host(word),
            },
            WordType::Text
            | WordType::Int(_)
            | WordType::Decimal(_)
            | WordType::Path
            | WordType::Ports
            | WordType::Choice(_) => Ok(()),
        }
    }

    /// Returns true for a well-formed target that is refused because of its location.
    pub(super) fn is_elsewhere(&self, word: &str) -> bool {
        self.kind.is_target()
            && plain(word).is_ok()
            && self.kind.check(word).is_ok()
            && self.too_large(word).is_none()
            && self.within(word).is_err()
    }

    /// Returns the size of a network that is refused because of it.
    pub(super) fn too_large(&self, word: &str) -> Option<TooLarge> {
        self.reach.too_large(&net(word).filter(|_| self.kind.is_target())?)
    }
}

impl WordType {
    /// Returns true if the word names a target in a network.
    pub fn is_target(&self) -> bool {
        match self {
            Self::Host | Self::Cidr | Self::Target | Self::Url => true,
            Self::Text
            | Self::Int(_)
            | Self::Decimal(_)
            | Self::Path
            | Self::Ports
            | Self::Choice(_) => false,
        }
    }

    fn check(&self, word: &str) -> Result<String, String> {
        let when = |fits: bool, what: &str| match fits {
            true => Ok(word.to_owned()),
            false => Err(what.to_owned()),
        };
        match self {
            Self::Text => Ok(word.to_owned()),
            Self::Int(range) => int(word, range),
            Self::Decimal(range) => decimal(word, range),
            Self::Path => path(word),
            Self::Host => when(is_host(word), "is no host name or address"),
            Self::Cidr => when(is_cidr(word), "is no network, such as 10.0.0.0/8"),
            Self::Target => {
                when(is_host(word) || is_cidr(word), "is no host name, address or network")
            }
            Self::Ports => ports(word),
            Self::Url => when(is_url(word), "is no http or https URL that is taken"),
            Self::Choice(values) => {
                let what = format!("is not one of {}", values.join(", "));
                when(values.iter().any(|value| value == word), &what)
            }
        }
    }
}

fn int(word: &str, range: &RangeInclusive<u64>) -> Result<String, String> {
    // Digits only: `parse` alone would accept a plus sign.
    let number = Some(word)
        .filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|word| word.parse::<u64>().ok());
    match number.filter(|number| range.contains(number)) {
        // Print the parsed number: some programs read a leading zero as octal.
        Some(number) => Ok(number.to_string()),
        None => Err(format!("is no whole number from {} to {}", range.start(), range.end())),
    }
}

fn decimal(word: &str, range: &RangeInclusive<Decimal>) -> Result<String, String> {
    let number = word.parse::<Decimal>().ok();
    match number.filter(|number| range.contains(number)) {
        Some(number) => Ok(number.to_string()),
        None => Err(format!("is no number from {} to {}", range.start(), range.end())),
    }
}

/// Maximum number of ports and ranges in one word.
const PORTS: usize = 100;

fn ports(word: &str) -> Result<String, String> {
    let port = |text: &str| int(text, &(1..=65_535)).ok().and_then(|text| text.parse::<u16>().ok());
    let range = |text: &str| match text.split_once('-') {
        Some((low, high)) => Some((port(low)?, port(high)?)),
        None => port(text).map(|port| (port, port)),
    };
    let all: Vec<Option<(u16, u16)>> = word.split(',').map(range).collect();
    if all.len() > PORTS {
        return Err(format!("names more than {PORTS} ports and ranges"));
    }
    // Print the parsed ports, as for a number.
    let written = all.iter().map(|range| match range {
        Some((low, high)) if low == high => Some(low.to_string()),
        Some((low, high)) if low < high => Some(format!("{low}-{high}")),
        Some(_) | None => None,
    });
    let written: Option<Vec<String>> = written.collect();
    written
        .map(|all| all.join(","))
        .ok_or_else(|| "is no list of ports from 1 to 65535, such as 22,80-90".to_owned())
}

/// Returns the host of a URL that [`is_url`] accepted, and its ports: the port in the URL, or the
/// default of the scheme. An http URL without a port also gets that of https, because most servers
/// redirect there.
pub(super) fn url_target(word: &str) -> (&str, Vec<u16>) {
    let rest = word.split_once("://").map_or(word, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let port = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    let ports = match port.and_then(|(_, port)| port.parse().ok()) {
        Some(port) => vec![port],
        None if word.starts_with("https:") => vec![443],
        None => vec![80, 443],
    };
    (url_host(word), ports)
}

/// Parses `ADDRESS/PREFIX` as a network, whatever the bits after the prefix are.
pub(super) fn net(word: &str) -> Option<Net> {
    let (address, prefix) = word.split_once('/')?;
    Some(Net::new(address.parse().ok()?, prefix.parse().ok()?))
}

/// Returns the host of a URL that [`is_url`] accepted.
fn url_host(word: &str) -> &str {
    let rest = word.split_once("://").map_or(word, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if let Some(address) = authority.strip_prefix('[') {
        return address.split(']').next().unwrap_or_default();
    }
    authority.split(':').next().unwrap_or_default()
}

fn path(word: &str) -> Result<String, String> {
    let outside = || "is not inside /workspace".to_owned();
    let normal = Cwd::new("path", word).map_err(|_| outside())?;
    let inside = normal.as_str() == "/workspace" || normal.as_str().starts_with("/workspace/");
    if inside { Ok(normal.as_str().to_owned()) } else { Err(outside()) }
}

fn is_host(word: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            // Names of services begin with an underscore: `_sip._tcp`.
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    if word.parse::<IpAddr>().is_ok() {
        return true;
    }
    // A last label of digits alone is an address in a form that only some programs know: `127.1`.
    let last = word.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.to_ascii_lowercase().starts_with("0x");
    word.len() <= 253 && !numeric && word.split('.').all(label)
}

fn is_cidr(word: &str) -> bool {
    let Some((address, prefix)) = word.split_once('/') else { return false };
    let max = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    int(prefix, &(0..=max)).is_ok_and(|written| written == prefix)
}

fn is_url(word: &str) -> bool {
    let Some(rest) = word.strip_prefix("https://").or_else(|| word.strip_prefix("http://")) else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !authority.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<core::net::Ipv6Addr>().is_ok(),
        None => is_host(host) && !host.contains(':'),
    };
    // Backslashes, braces and brackets mean something to some programs: curl globs them.
    let printable = |byte: u8| byte.is_ascii_graphic() && !br#"\{}"<>^`|"#.contains(&byte);
    let globs = rest.get(authority.len()..).unwrap_or_default().contains(['[', ']']);
    host && port.is_none_or(|port| int(port, &(1..=65_535)).is_ok())
        && word.bytes().all(printable)
        && !globs
}

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;
