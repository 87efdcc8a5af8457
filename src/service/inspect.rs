//! Questions about a cell and its programs: each a script for a fresh cell, with a parser of its
//! answer.
//!
//! Names from the client reach a script as lines of its standard input, never as its text.

use std::collections::BTreeMap;

use super::shell::ScriptArgs;
use model::call::InvalidCall;

/// Length of the longest name of a command, page or filter, in bytes.
const WORD_BYTES: usize = 256;
/// Time for a program to print its help, in seconds.
const HELP_SECONDS: f64 = 10.0;

const ENVIRONMENT: &str = "env -0 | od -An -v -tx1 | tr -d ' \\n'";

const SYSTEM: &str = r#"printf '%s\n' "$HOSTNAME" "$(uname -s)" "$(uname -m)" "$(uname -r)" "$BASH" "$(id -un)" "$HOME" "$PATH""#;

const PROCESSES: &str = r#"IFS= read -r format; IFS= read -r filter
set -f
found=$(ps $format) || exit
printf '%s\n' "$found" | {
  IFS= read -r header; printf '%s\n' "$header"
  grep -- "$filter"; [ $? -lt 2 ]
}"#;

const WHICH: &str = r#"IFS= read -r name
type -t -- "$name" || { echo none; exit 0; }
type -aP -- "$name"
exit 0"#;

const HELP: &str = r#"IFS= read -r name; exec </dev/null
case $(type -t -- "$name") in
  builtin|keyword) help -- "$name" ;;
  file) "$name" --help 2>&1 ;;
  *) printf '%s\n' "no command of that name is in this cell" >&2; exit 127 ;;
esac"#;

/// An empty prefix would match every command.
const COMPLETE: &str = r#"IFS= read -r prefix
compgen -c -- "$prefix" | sort -u | head -n 1001
exit 0"#;

/// The first line names the program that made the rest. Manuals are the host's, under /usr; a cell
/// has no configuration of `man`, so it gets an empty one.
const MANUAL: &str = r#"IFS= read -r name; IFS= read -r section
export MANPAGER=cat PAGER=cat MANWIDTH=80 GROFF_NO_SGR=1 MANROFFOPT=-c MAN_DISABLE_SECCOMP=1
shown() { [ -n "$2" ] && printf '%s\n%s\n' "$1" "$2" && exit 0; }
if type -P man >/dev/null; then
  shown man "$(man -C /dev/null ${section:+"$section"} -- "$name" 2>/dev/null)"
fi
for file in /usr/local/share/man/man${section:-[1-8]}*/"$name".* /usr/share/man/man${section:-[1-8]}*/"$name".*; do
  [ -f "$file" ] || continue
  case $file in
    *.gz) read=(gzip -dc) ;; *.bz2) read=(bzip2 -dc) ;; *.xz) read=(xz -dc) ;; *.zst) read=(zstd -dcq) ;;
    *) read=(cat) ;;
  esac
  source=$("${read[@]}" "$file") || continue
  shown mandoc "$(mandoc -T utf8 2>/dev/null <<<"$source" | col -b 2>/dev/null)"
  shown groff "$(groff -t -mandoc -Tutf8 -P-c 2>/dev/null <<<"$source" | col -bx 2>/dev/null)"
  shown source "$(sed -E -e "/^['.]\\\\\"/d" -e 's/\\f[BIRP]//g' -e 's/\\-/-/g' -e 's/^\.S[HS] *//' -e 's/^\.[A-Za-z]{1,2} *//' <<<"$source")"
done
compgen -G '/usr/share/man/man1/*' >/dev/null || { echo "no manual pages are on this machine" >&2; exit 16; }
echo "no manual page of that name is on this machine" >&2; exit 16"#;

/// Exit code of [`manual`] where there is no such page.
pub const NO_PAGE: u8 = 16;

/// Checks a word from the client that a script reads as one line.
///
/// # Errors
/// An empty or too long word, a control character, or a word that would be taken for an option.
pub fn word(field: &'static str, word: String) -> Result<String, InvalidCall> {
    if word.is_empty() {
        return Err(InvalidCall::Empty { field });
    }
    let word = line(field, word)?;
    if word.starts_with('-') {
        let expected = "a name, which begins with no dash";
        return Err(InvalidCall::OutOfRange { field, expected, got: word });
    }
    Ok(word)
}

/// The name of a manual page.
///
/// # Errors
/// The same as of [`word`], and a character that no name has, such as `/`.
pub fn page(field: &'static str, name: String) -> Result<String, InvalidCall> {
    let name = word(field, name)?;
    let plain = |c: char| c.is_alphanumeric() || "._+:@-[".contains(c);
    if !name.chars().all(plain) || name.starts_with("..") {
        let expected = "the name of a page, without a path, a section or an option";
        return Err(InvalidCall::OutOfRange { field, expected, got: name });
    }
    Ok(name)
}

/// Checks text from the client that a script reads as one line.
///
/// # Errors
/// Text that is too long or has control characters.
pub fn line(field: &'static str, text: String) -> Result<String, InvalidCall> {
    if text.len() > WORD_BYTES {
        return Err(InvalidCall::TooLong { field, bytes: text.len(), limit: WORD_BYTES });
    }
    if text.chars().any(char::is_control) {
        let got = text.escape_default().to_string();
        return Err(InvalidCall::OutOfRange { field, expected: "one line of text", got });
    }
    Ok(text)
}

fn question(script: &str, lines: &[&str]) -> ScriptArgs {
    let stdin = if lines.is_empty() { String::new() } else { lines.join("\n") + "\n" };
    let stdin = stdin.into_bytes();
    ScriptArgs { command: script.to_owned(), stdin, ..ScriptArgs::default() }
}

/// Asks for all variables of a command; [`environment_of`] parses the answer.
pub fn environment() -> ScriptArgs {
    question(ENVIRONMENT, &[])
}

/// Asks for a description of the cell's system; [`System::of`] parses the answer.
pub fn system() -> ScriptArgs {
    question(SYSTEM, &[])
}

/// Asks `ps`, with its options and a pattern of `grep`.
pub fn processes(format: &str, filter: &str) -> ScriptArgs {
    question(PROCESSES, &[format, filter])
}

/// Asks for the location of a command; [`Located::of`] parses the answer.
pub fn which(name: &str) -> ScriptArgs {
    question(WHICH, &[name])
}

/// Asks for the commands with a prefix, a line each.
pub fn complete(prefix: &str) -> ScriptArgs {
    question(COMPLETE, &[prefix])
}

/// Asks a command for its help.
pub fn help(name: &str) -> ScriptArgs {
    ScriptArgs { timeout: Some(HELP_SECONDS), ..question(HELP, &[name]) }
}

/// Asks for a manual page; [`manual_of`] parses the answer.
pub fn manual(name: &str, section: &str) -> ScriptArgs {
    question(MANUAL, &[name, section])
}

/// Tests that a directory exists and can be entered.
pub fn directory(path: &str) -> ScriptArgs {
    question("IFS= read -r path; cd -- \"$path\"", &[path])
}

/// Parses variables: the hexadecimal digits of `NAME=VALUE`, each ended by NUL. `None` if the text
/// is different.
pub fn environment_of(text: &str) -> Option<BTreeMap<String, String>> {
    let digits: Vec<u32> =
        text.trim_end().chars().map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let byte = |pair: &[u32]| match pair {
        [high, low] => u8::try_from(high * 16 + low).ok(),
        _ => None,
    };
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect::<Option<_>>()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let variables = text.split_terminator('\0').filter_map(|one| one.split_once('='));
    // `_` names the program that printed the variables.
    let own = variables.filter(|(name, _)| *name != "_");
    Some(own.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// Description of a cell's system.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct System {
    hostname: String,
    os: String,
    architecture: String,
    kernel: String,
    shell: String,
    user: String,
    home: String,
    path: String,
}

impl System {
    /// Parses eight lines; `None` if the text is different.
    pub fn of(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::to_owned);
        Some(Self {
            hostname: lines.next()?,
            os: lines.next()?,
            architecture: lines.next()?,
            kernel: lines.next()?,
            shell: lines.next()?,
            user: lines.next()?,
            home: lines.next()?,
            path: lines.next()?,
        })
    }
}

/// Location of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// `file`, `builtin`, `keyword`, `function`, `alias` or `none`.
    pub kind: String,
    /// Every file of that name on the path, in its order.
    pub paths: Vec<String>,
}

impl Located {
    /// Parses the kind and a line for each file.
    pub fn of(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::to_owned);
        Some(Self { kind: lines.next()?, paths: lines.collect() })
    }
}

/// Splits an answer into the program that made the manual page, and the page's text.
pub fn manual_of(text: &str) -> Option<(&str, &str)> {
    text.split_once('\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_one_line_and_no_option() {
        let took = |text: &str| word("command", text.to_owned()).map_err(|bad| bad.to_string());
        assert_eq!(took("g++-12"), Ok("g++-12".to_owned()));
        assert_eq!(took(""), Err("command is empty".to_owned()));
        assert_eq!(
            took("--help"),
            Err("command must be a name, which begins with no dash, not --help".to_owned())
        );
        assert_eq!(took("ls\nrm"), Err("command must be one line of text, not ls\\nrm".to_owned()));
        assert_eq!(
            took(&"x".repeat(257)),
            Err("command is 257 bytes; at most 256 are taken".to_owned())
        );
    }

    #[test]
    fn variables_are_read_from_their_digits_whatever_is_in_them() {
        let hex: String =
            "A=1\nB=2\0_=/usr/bin/env\0C=\0".bytes().map(|b| format!("{b:02x}")).collect();
        let expected = [("A", "1\nB=2"), ("C", "")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(environment_of(&hex), Some(BTreeMap::from(expected)));
        assert_eq!(environment_of("4"), None);
        assert_eq!(environment_of("zz"), None);
    }

    #[test]
    fn an_answer_that_is_too_short_is_refused() {
        assert_eq!(System::of("a\nb\n"), None);
        assert_eq!(Located::of(""), None);
        let located = Located { kind: "file".to_owned(), paths: vec!["/usr/bin/ls".to_owned()] };
        assert_eq!(Located::of("file\n/usr/bin/ls\n"), Some(located));
    }
}
