//! Short form of a declared tool: the parts that follow from `command`, and flags that are written
//! as a caller sees them.

use std::path::Path;

use toml::Spanned;

use super::{NO_FLAG, is_flag};
use crate::document::{Document, Mistake, Reason};
use crate::policy::decimal::Decimal;
use crate::policy::flags::{Flag, Positional, PositionalEgress, Takes};
use crate::policy::reach::TargetReach;
use crate::policy::values::{Type, WORD_BYTES, WordType};

/// Maximum number of paths that a call of a tool without declared fields names.
const MAX_PATHS: usize = 16;

/// Returns the name of the tool for a command: `cli_` and the file name, in characters that a name
/// may have.
pub(super) fn tool_name(command: &str) -> String {
    let file = Path::new(command).file_name().and_then(|name| name.to_str()).unwrap_or(command);
    let letter = |c: char| match c {
        _ if c.is_ascii_alphanumeric() => c.to_ascii_lowercase(),
        _ => '_',
    };
    format!("cli_{}", file.chars().map(letter).collect::<String>())
}

/// Returns the field of a tool without declared fields.
pub(super) fn path() -> Positional {
    Positional {
        name: "path".to_owned(),
        also: None,
        takes: any(WordType::Path),
        min: 0,
        max: MAX_PATHS,
        prefix: String::new(),
        egress: PositionalEgress::Any,
        why: "files or directories to work on".to_owned(),
    }
}

/// Reads a flag: `-l`, `--indent 0..7` or `--indent=0..7`.
pub(super) fn flag(
    document: &Document,
    text: &Spanned<String>,
    why: &Reason,
) -> Result<Flag, Mistake> {
    let mistake = |message: &str| document.mistake(text.span(), message);
    let (name, takes) = match text.get_ref().split_once([' ', '=']) {
        None => (text.get_ref().as_str(), Takes::Nothing),
        Some((name, value)) => {
            let Some(kind) = kind(value) else {
                let message = "the value of a flag is TEXT, PATH, HOST, NETWORK, TARGET, PORTS, \
                               URL, numbers (0..7) or words (json|text)";
                return Err(mistake(message));
            };
            match text.get_ref().as_bytes().get(name.len()) {
                Some(b'=') => (name, Takes::Equals(any(kind))),
                Some(_) | None => (name, Takes::Next(any(kind))),
            }
        }
    };
    match is_flag(name) {
        true => Ok(Flag { name: name.to_owned(), takes, times: 1, why: why.as_str().to_owned() }),
        false => Err(mistake(NO_FLAG)),
    }
}

/// Returns the type that the value of a flag in short form names.
fn kind(value: &str) -> Option<WordType> {
    if let Some((low, high)) = value.split_once("..") {
        let is_decimal = value.replace("..", "").contains('.');
        let low: Decimal = low.parse().ok()?;
        let high: Decimal = high.parse().ok()?;
        return match (low <= high, is_decimal) {
            (false, _) => None,
            (true, true) => Some(WordType::Decimal(low..=high)),
            (true, false) => Some(WordType::Int(low.whole()?..=high.whole()?)),
        };
    }
    if value.contains('|') {
        let words: Vec<String> = value.split('|').map(str::to_owned).collect();
        let is_word = |word: &String| !word.is_empty() && !word.starts_with('-');
        return words.iter().all(is_word).then_some(WordType::Choice(words));
    }
    match value {
        "TEXT" => Some(WordType::Text),
        "PATH" => Some(WordType::Path),
        "HOST" => Some(WordType::Host),
        "NETWORK" => Some(WordType::Cidr),
        "TARGET" => Some(WordType::Target),
        "PORTS" => Some(WordType::Ports),
        "URL" => Some(WordType::Url),
        _ => None,
    }
}

/// Returns a type without further constraints.
fn any(kind: WordType) -> Type {
    Type { kind, pattern: None, max_bytes: WORD_BYTES, reach: TargetReach::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Effect, Policy, Profiles};

    const WC: &str = "[[tool]]\ncommand = \"wc\"\nwhy = \"w\"\n";
    const ALLOW: &str = "[[rule]]\nid = \"mine\"\ntools = [\"cli_wc\"]\naction = \"allow\"\n\
        profile = \"bash\"\nclients = [\"ci\"]\nwhy = \"w\"\nmatches = [{ tool = \"cli_wc\" }]\n";

    fn parsed(text: &str) -> Result<Policy, String> {
        let document = Document::new("a.toml", &format!("schema = 1\n{text}"));
        Policy::parse(&[document], &Profiles::compiled_in()).map_err(|mistake| mistake.message)
    }

    /// Returns the flag of a tool with one flag in short form.
    fn read(form: &str) -> Result<Flag, String> {
        let policy = parsed(&format!("{WC}flags = {{ \"{form}\" = \"w\" }}\n"))?;
        let flags = policy.given_commands().first().map(|command| command.flags.clone());
        flags.unwrap_or_default().pop().ok_or_else(|| "no flag".to_owned())
    }

    #[test]
    fn a_tool_in_short_form_takes_no_shipped_tools_name() {
        let curl = "extends = \"shipped\"\n[[tool]]\ncommand = \"curl\"\nwhy = \"w\"\n";
        assert_eq!(parsed(curl).err().as_deref(), Some("a shipped tool is named `cli_curl`"));
        assert!(parsed(&format!("{curl}name = \"cli_mine\"\n")).is_ok());
    }

    #[test]
    fn a_flag_in_short_form_has_the_type_that_it_shows() {
        let next = |kind| Takes::Next(any(kind));
        let decimal = |text: &str| text.parse::<Decimal>().unwrap_or_else(|e| panic!("{e}"));
        let words = ["json", "text"].map(str::to_owned).to_vec();
        let cases = [
            ("-l", Takes::Nothing),
            ("--indent 0..7", next(WordType::Int(0..=7))),
            ("--indent=0..7", Takes::Equals(any(WordType::Int(0..=7)))),
            ("-i 0.2..60", next(WordType::Decimal(decimal("0.2")..=decimal("60")))),
            ("-f json|text", next(WordType::Choice(words))),
            ("-n TEXT", next(WordType::Text)),
            ("-n PATH", next(WordType::Path)),
            ("-n HOST", next(WordType::Host)),
            ("-n NETWORK", next(WordType::Cidr)),
            ("-n TARGET", next(WordType::Target)),
            ("-n PORTS", next(WordType::Ports)),
            ("+x URL", next(WordType::Url)),
        ];
        for (form, takes) in cases {
            assert_eq!(read(form).map(|flag| flag.takes), Ok(takes), "{form}");
        }
        let value = "the value of a flag is ";
        let mistakes = [
            ("l", NO_FLAG),
            ("---l", NO_FLAG),
            ("", NO_FLAG),
            ("-l FILE", value),
            ("-l ", value),
            ("--l=", value),
            ("-l 7..0", value),
            ("-l 1..x", value),
            ("-l a|", value),
            ("-l a|-b", value),
            ("-l TEXT TEXT", value),
        ];
        for (form, message) in mistakes {
            let mistake = read(form).err().unwrap_or_default();
            assert!(mistake.starts_with(message), "{form}: {mistake}");
        }
        let twice = parsed(&format!("{WC}flags = {{ -l = \"w\", \"-l TEXT\" = \"w\" }}\n"));
        assert_eq!(twice.err().as_deref(), Some("there are two flags `-l`"));
    }

    #[test]
    fn the_name_follows_from_the_command() {
        let names = ["wc", "/opt/Tool-2.sh", "g++"].map(tool_name);
        assert_eq!(names, ["cli_wc", "cli_tool_2_sh", "cli_g__"]);
    }

    #[test]
    fn a_tool_in_short_form_is_allowed_by_one_rule() {
        let rules = |text: &str| {
            let policy = parsed(text).unwrap_or_else(|mistake| panic!("{mistake}"));
            policy.rules().iter().map(|rule| rule.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(rules(WC), ["cli-wc"]);
        // A rule for one client is not widened to all.
        assert_eq!(rules(&format!("{WC}{ALLOW}")), ["mine"]);
        assert_eq!(rules(&format!("{ALLOW}{WC}")), ["mine"]);
        let deny = ALLOW
            .replace("\"allow\"", "\"deny\"")
            .replace("profile = \"bash\"\nclients = [\"ci\"]\n", "");
        assert_eq!(rules(&format!("{WC}{deny}")), ["mine", "cli-wc"]);
        let policy = parsed(&format!("{WC}{deny}")).unwrap_or_else(|mistake| panic!("{mistake}"));
        assert!(policy.terms("cli_wc", &Profiles::compiled_in()).is_err());
        let nested = parsed(&format!("{WC}profile = \"nested\"\n"));
        let profile = nested.ok().and_then(|policy| match &policy.rules().first()?.effect {
            Effect::Allow { profile, .. } => Some(profile.to_string()),
            Effect::Deny => None,
        });
        assert_eq!(profile.as_deref(), Some("nested"));
        // A shipped tool of the name keeps its shipped rule, under its own profile.
        let jq = format!("extends = \"shipped\"\n{}", WC.replace("wc", "jq"));
        let policy = parsed(&jq).unwrap_or_else(|mistake| panic!("{mistake}"));
        let profiles = Profiles::compiled_in();
        let terms = policy.terms("cli_jq", &profiles).map(|terms| terms.profile.name.to_string());
        assert_eq!(terms, Ok("cli-jq".to_owned()));
    }

    #[test]
    fn mistakes_about_the_short_form_are_reported() {
        let other = ALLOW.replace("cli_wc", "cli_other").replace("\"mine\"", "\"cli-wc\"");
        let long = "[[tool]]\nname = \"cli_wc\"\nprogram = \"wc\"\nwhy = \"w\"\n";
        let cases = [
            (WC.replace("command = \"wc\"\n", ""), "missing field `name`"),
            (long.to_owned(), "missing field `accepts`"),
            (format!("{long}accepts = [{{}}]\n"), "missing field `refuses`"),
            (
                format!("{long}profile = \"bash\"\n"),
                "`profile` is for a tool with `command`; a rule names that of this tool",
            ),
            (format!("{WC}profile = \"bsh\"\n"), "there is no profile `bsh` to run under"),
            (WC.replace("\"wc\"", "\"-x\""), "a program is one plain word"),
            (format!("{WC}{WC}"), "there are two tools `cli_wc`"),
            (format!("{WC}{other}"), "rule `cli-wc` does not allow the tool that has its name"),
        ];
        for (text, message) in cases {
            assert_eq!(parsed(&text).err().as_deref(), Some(message), "{text}");
        }
    }
}
