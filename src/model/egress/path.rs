//! Request paths, and the globs of rules that they are matched against.
//!
//! Servers disagree about the spelling of a path: `%2F` may be a slash or part of a name, `//` one
//! slash or two, `;x` a parameter or text. So a path is read in each of these ways, and a rule must
//! match every reading. Spellings that are used in attacks and that no honest client sends are
//! refused.

/// Maximum length of a request path in bytes.
const MAX_PATH_BYTES: usize = 8 * 1024;
/// Maximum number of segments in a path.
const MAX_SEGMENTS: usize = 256;

/// A glob of a rule: `*` stands for any text within one segment, `**` for any number of segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathPattern {
    segments: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    AnySegments,
    Segment(String),
}

impl PathPattern {
    /// Parses a glob.
    ///
    /// # Errors
    /// Why the text is not a valid glob.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("`{text}` is no path: it begins with `/`"));
        };
        if text.len() > MAX_PATH_BYTES || rest.split('/').count() > MAX_SEGMENTS {
            return Err("a path is longer than 8 KiB or 256 segments".into());
        }
        let mut segments = Vec::new();
        let mut parts = rest.split('/').peekable();
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            segments.push(piece(text, part, is_last)?);
        }
        Ok(Self { segments })
    }

    /// Returns true if the glob matches one reading of a path.
    fn takes(&self, reading: &[String]) -> bool {
        let is_star = |piece: &Piece| *piece == Piece::AnySegments;
        wild(&self.segments, reading, is_star, |piece, segment| match piece {
            Piece::AnySegments => true,
            Piece::Segment(glob) => {
                let is_star = |byte: &u8| *byte == b'*';
                // `*` does not match an empty segment.
                let is_name = !segment.is_empty() || glob.is_empty();
                is_name && wild(glob.as_bytes(), segment.as_bytes(), is_star, |a, b| a == b)
            }
        })
    }
}

/// Parses one segment of the glob `whole`.
fn piece(whole: &str, part: &str, is_last: bool) -> Result<Piece, String> {
    let fault = match part {
        "**" => return Ok(Piece::AnySegments),
        "" if !is_last => "has an empty segment",
        "." | ".." => "has a dot segment",
        _ if part.contains("**") => "has `**` next to other text; it stands for whole segments",
        _ if part.contains(['%', ';', '?', '#', '\\']) => {
            "holds one of `% ; ? # \\`; globs are of decoded paths, without a query"
        }
        _ if part.chars().any(|c| c.is_control() || c == ' ') => "holds a blank",
        _ => return Ok(Piece::Segment(part.to_owned())),
    };
    Err(format!("the path `{whole}` {fault}"))
}

/// Matches `text` against `pattern`, in time bounded by the product of their lengths: only the last
/// star is retried.
fn wild<P, T>(
    pattern: &[P],
    text: &[T],
    is_star: impl Fn(&P) -> bool,
    equal: impl Fn(&P, &T) -> bool,
) -> bool {
    let mut at = 0;
    let mut position = 0;
    let mut last: Option<(usize, usize)> = None;
    while let Some(item) = text.get(position) {
        match pattern.get(at) {
            Some(star) if is_star(star) => {
                last = Some((at, position));
                at += 1;
            }
            Some(wanted) if equal(wanted, item) => {
                at += 1;
                position += 1;
            }
            _ => {
                let Some((star, from)) = last else { return false };
                last = Some((star, from + 1));
                at = star + 1;
                position = from + 1;
            }
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(is_star)
}

/// A request path, in each of the ways in which a server may read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPath {
    readings: Vec<Vec<String>>,
}

impl RequestPath {
    /// Parses the path of a request as it was sent, without its query.
    ///
    /// # Errors
    /// Why servers could read it as another path.
    pub fn parse(raw: &str) -> Result<Self, &'static str> {
        let rest = raw.strip_prefix('/').ok_or("the path does not begin with `/`")?;
        if raw.len() > MAX_PATH_BYTES || rest.split('/').count() > MAX_SEGMENTS {
            return Err("the path is longer than 8 KiB or 256 segments");
        }
        if !raw.bytes().all(is_path_byte) {
            return Err("the path holds bytes that have to be percent-encoded");
        }
        // Two readings: names that may contain a slash, and encoded slashes as separators.
        let names = rest.split('/').map(decoded).collect::<Result<Vec<_>, _>>()?;
        let slashes: Vec<String> = decoded(rest)?.split('/').map(str::to_owned).collect();
        let mut readings = vec![names, slashes];
        for reading in readings.clone() {
            readings.push(reading.iter().map(|it| without_parameters(it)).collect());
        }
        for reading in readings.clone() {
            readings.push(without_empty(&reading));
        }
        readings.dedup();
        match readings.iter().flatten().find_map(|segment| fault(segment)) {
            Some(fault) => Err(fault),
            None => Ok(Self { readings }),
        }
    }

    /// Returns true if every reading matches one of `patterns`.
    pub fn is_taken_by(&self, patterns: &[PathPattern]) -> bool {
        self.readings.iter().all(|reading| patterns.iter().any(|pattern| pattern.takes(reading)))
    }
}

/// Returns true for bytes that RFC 3986 allows in a path.
fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@%".contains(&byte)
}

/// Decodes percent-encoding once. Refuses control characters, invalid UTF-8, and text that is still
/// encoded.
fn decoded(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (byte, after) = encoded_byte(after).ok_or("the path has a `%` that encodes nothing")?;
        bytes.push(byte);
        rest = after;
    }
    let twice = |at: usize| bytes.get(at + 1..).and_then(encoded_byte).is_some();
    if bytes.iter().enumerate().any(|(at, byte)| *byte == b'%' && twice(at)) {
        return Err("the path is percent-encoded twice");
    }
    let decoded = String::from_utf8(bytes).map_err(|_| "the path is no UTF-8 once decoded")?;
    if decoded.chars().any(char::is_control) {
        return Err("the path holds an encoded control character");
    }
    Ok(decoded)
}

/// Parses two hexadecimal digits; returns their byte and the rest.
fn encoded_byte(text: &[u8]) -> Option<(u8, &[u8])> {
    let (digits, rest) = text.split_at_checked(2)?;
    let digits = std::str::from_utf8(digits).ok()?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?;
    Some((byte, rest))
}

/// Removes what some servers take for parameters of a segment.
fn without_parameters(segment: &str) -> String {
    segment.split(';').next().unwrap_or_default().to_owned()
}

/// Merges consecutive slashes; the last segment stays, empty or not.
fn without_empty(reading: &[String]) -> Vec<String> {
    let Some((last, before)) = reading.split_last() else { return Vec::new() };
    let names = before.iter().filter(|segment| !segment.is_empty());
    names.chain([last]).cloned().collect()
}

/// Returns what makes a segment dangerous in some server.
fn fault(segment: &str) -> Option<&'static str> {
    if segment.split('/').any(|name| name == "." || name == "..") {
        return Some("the path has a dot segment");
    }
    // The characters look like slashes, and some servers treat them as such.
    segment
        .contains(['\\', '\u{ff0f}', '\u{2215}'])
        .then_some("the path holds a backslash or a letter like a slash")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{PathPattern, RequestPath};

    /// Returns true if a rule with these globs matches the path.
    fn takes(globs: &[&str], path: &str) -> bool {
        let globs: Vec<_> =
            globs.iter().map(|glob| PathPattern::parse(glob).expect("a glob")).collect();
        RequestPath::parse(path).is_ok_and(|path| path.is_taken_by(&globs))
    }

    #[test]
    fn a_star_is_one_segment_and_two_are_any() {
        for (glob, path, is_taken) in [
            ("/simple/**", "/simple/", true),
            ("/simple/**", "/simple", true),
            ("/simple/**", "/simple/a/b.whl", true),
            ("/simple/**", "/simplest/a", false),
            ("/simple/**", "/SIMPLE/a", false),
            ("/*/*/git-upload-pack", "/o/r/git-upload-pack", true),
            ("/*/*/git-upload-pack", "/o/r/x/git-upload-pack", false),
            ("/*/*/git-upload-pack", "/o/git-upload-pack", false),
            ("/*/*/git-upload-pack", "//r/git-upload-pack", false),
            ("/*/*/git-upload-pack", "/o/r/git-receive-pack", false),
            ("/*/*.git/info/refs", "/o/r.git/info/refs", true),
            ("/*/*.git/info/refs", "/o/r/info/refs", false),
            ("/**/end", "/end", true),
            ("/**/end", "/a/b/end", true),
            ("/**/end", "/a/b/end/", false),
            ("/", "/", true),
            ("/", "/a", false),
            ("/a", "/%61", true),
            ("/é", "/%C3%A9", true),
        ] {
            assert_eq!(takes(&[glob], path), is_taken, "{glob} {path}");
        }
    }

    #[test]
    fn each_reading_of_a_path_must_be_taken() {
        for (glob, path, is_taken) in [
            // npm encodes scopes this way.
            ("/**", "/@types%2fnode", true),
            ("/*", "/@types%2fnode", false),
            ("/*/*", "/@types%2fnode", false),
            ("/public/**", "/public%2fx", false),
            ("/public/**", "/public//x", true),
            ("/public/*", "/public//x", false),
            ("/public/**", "//public/x", false),
            ("/public/**", "/public;v=1/x", false),
            ("/public/**", "/public/x;v=1", true),
            ("/public/*.txt", "/public/secret;.txt", false),
        ] {
            assert_eq!(takes(&[glob], path), is_taken, "{glob} {path}");
        }
        // Each reading may match a different glob.
        assert!(takes(&["/*", "/*/*"], "/@types%2fnode"));
    }

    #[test]
    fn spellings_of_attacks_are_refused_by_every_rule() {
        for path in [
            "/a/../b",
            "/a/./b",
            "/..",
            "/.",
            "/a/%2e%2e/b",
            "/a/.%2E/b",
            "/a%2f..%2fb",
            "/a/..;/b",
            "/a/..;x=1/b",
            "/a/.;/b",
            "/a/%2e%2e;/b",
            "/a%5cb",
            "/a/..%5cb",
            "/a%00b",
            "/a%0d%0ab",
            "/%252e%252e/b",
            "/%25%32%65",
            "/%c0%ae%c0%ae/b",
            "/%ff",
            "/%",
            "/%z1",
            "/%1",
            "/a b",
            "/\u{e9}",
            "/a\\b",
            "/a|b",
            "/%ef%bc%8f",
            "*",
            "",
            "a",
            "/%7f",
            "/%+1",
        ] {
            assert!(RequestPath::parse(path).is_err(), "{path}");
        }
        for path in ["/a..b", "/...", "/.git", "/a.", "/~x", "/a%20b", "/100%25"] {
            assert!(RequestPath::parse(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn a_glob_that_could_not_mean_what_it_says_is_refused() {
        for glob in [
            "", "a", "a/b", "/a//b", "/a/../b", "/a/**b", "/***", "/%61", "/a?b", "/a#b", "/a;b",
            "/a b", "/a\\b",
        ] {
            assert!(PathPattern::parse(glob).is_err(), "{glob}");
        }
        for glob in ["/", "/**", "/a/", "/a/**", "/**/a", "/a*b/*"] {
            assert!(PathPattern::parse(glob).is_ok(), "{glob}");
        }
    }

    #[test]
    fn matching_takes_no_exponential_time() {
        let glob = format!("/{}b", "**/a/".repeat(60));
        let path = format!("/{}", "a/".repeat(120));
        assert!(!takes(&[&glob], &path));
        assert!(!takes(&[&format!("/{}b", "*a".repeat(1000))], &format!("/{}", "a".repeat(4000))));
    }

    /// Resolves a path as a lenient server would: decodes it, merges slashes, follows dots.
    fn resolved(path: &str) -> Vec<String> {
        let mut bytes = Vec::new();
        let mut rest = path.as_bytes();
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            match super::encoded_byte(after).filter(|_| *first == b'%') {
                Some((byte, after)) => (bytes.push(byte), rest = after).0,
                None => bytes.push(*first),
            }
        }
        let mut stack = Vec::new();
        for segment in String::from_utf8_lossy(&bytes).split(['/', '\\']) {
            match segment.split(';').next().unwrap_or_default() {
                "" | "." => {}
                ".." => drop(stack.pop()),
                name => stack.push(name.to_owned()),
            }
        }
        stack
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        /// No spelling reaches files outside the granted directory on a lenient server.
        #[test]
        fn no_spelling_leaves_the_granted_directory(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "/", "/", "ok", "secret", ".", "..", "%2e", "%2E", "%2f", "%2F", "%5c", "%5C", ";", "%3b", "%25",
                    "2e", "2f", "\\", "%c0%af", "%00", "a",
                ]),
                0..10,
            )
        ) {
            let path = format!("/ok/{}", parts.concat());
            if takes(&["/ok/**"], &path) {
                let resolved = resolved(&path);
                prop_assert_eq!(resolved.first().map(String::as_str), Some("ok"), "{}", path);
            }
        }

        /// A plain path has one reading, and matches itself.
        #[test]
        fn a_plain_path_is_taken_by_itself_and_by_no_other(
            first in "(/[a-z0-9]{1,4}){1,5}/?", second in "(/[a-z0-9]{1,4}){1,5}/?"
        ) {
            prop_assert!(takes(&[&first], &first));
            prop_assert_eq!(takes(&[&first], &second), first == second);
        }

        #[test]
        fn no_path_makes_the_parser_panic(path in "\\PC{0,40}", glob in "\\PC{0,40}") {
            let glob = PathPattern::parse(&glob);
            if let (Ok(path), Ok(glob)) = (RequestPath::parse(&path), glob) {
                path.is_taken_by(&[glob]);
            }
        }
    }
}
