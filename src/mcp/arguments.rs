//! Tool arguments as an agent sends them: parsed, unknown fields refused, every error naming its field.

pub mod calculator;
pub mod jobs;

use std::collections::BTreeMap;
use std::fmt;

use rmcp::model::JsonObject;
use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};

use capture::lines::Wanted;
use model::defaults::INLINE_CHARACTERS;
use service::refused::{Refused, RefusedKind};
use service::request::{BashRequest, Input, Precision, SessionCommand, Shown, Wait};
use service::session::{DEFAULT, Restart};
use service::shell::BashArgs;

/// Arguments that were refused. The agent sees this as a result, never as a protocol error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadArguments {
    pub message: String,
    pub hint: Option<String>,
}

impl From<BadArguments> for Refused {
    fn from(bad: BadArguments) -> Self {
        Self { hint: bad.hint, ..Self::new(RefusedKind::Arguments, bad.message) }
    }
}

/// Name of the tool whose arguments a type holds: that of its row in [`policy::tools`].
pub trait Named {
    const TOOL: &'static str;
}

/// Arguments of one tool. `FIELDS` lists every accepted name, in the order of the schema.
pub trait Arguments: Named + DeserializeOwned {
    const FIELDS: &'static [&'static str];
}

/// Arguments of `bash`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BashArguments {
    /// Text of the command. Absent only when the call asks for nothing but `restart`.
    pub command: Option<String>,
    pub stdin: Option<String>,
    pub cwd: Option<String>,
    pub env: Option<BTreeMap<String, String>>,
    pub timeout: Option<Seconds>,
    pub session: Option<String>,
    #[serde(default)]
    pub restart: bool,
    #[serde(default)]
    pub background: bool,
    /// Standard input stays open for `bash_input`. By default it does for a background command that
    /// has no `stdin`.
    pub input: Option<bool>,
    /// Terminal: the command runs on one of its own.
    #[serde(default)]
    pub tty: bool,
    /// Characters of output in the reply, at most.
    pub max_output: Option<usize>,
    /// First (`head`) and last (`tail`) lines of each stream in the reply.
    pub head: Option<usize>,
    pub tail: Option<usize>,
    /// Note for people who read the transcript; it has no effect.
    pub description: Option<String>,
}

impl Arguments for BashArguments {
    const FIELDS: &'static [&'static str] = &[
        "command",
        "stdin",
        "cwd",
        "env",
        "timeout",
        "session",
        "restart",
        "background",
        "input",
        "tty",
        "max_output",
        "head",
        "tail",
        "description",
    ];
}

impl BashArguments {
    /// Converts them to a request.
    ///
    /// # Errors
    /// No command, although the call does not restart the shell.
    pub fn request(self) -> Result<BashRequest, Refused> {
        let session = self.session.unwrap_or_else(|| DEFAULT.to_owned());
        let Some(command) = self.command else {
            if self.restart {
                return Ok(BashRequest::Restart { session });
            }
            let missing = Refused::new(RefusedKind::Arguments, "bash: missing field `command`");
            return Err(missing.with_hint("only with `restart` can it be left out"));
        };
        let is_open = self.input.unwrap_or(self.background && self.stdin.is_none());
        let timeout = self.timeout.map(|seconds| seconds.0);
        Ok(BashRequest::Run(Box::new(SessionCommand {
            session,
            restart: if self.restart { Restart::Yes } else { Restart::No },
            input: match (self.tty, is_open) {
                (true, _) => Input::Terminal,
                (false, true) => Input::Open,
                (false, false) => Input::Given,
            },
            args: BashArgs { command, stdin: self.stdin, cwd: self.cwd, env: self.env, timeout },
            wait: if self.background { Wait::Background } else { Wait::Foreground },
            shown: Shown {
                characters: self.max_output.unwrap_or(INLINE_CHARACTERS).min(INLINE_CHARACTERS),
                lines: Wanted { head: self.head, tail: self.tail },
            },
        })))
    }
}

/// Arguments of `calculate`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalculateArguments {
    pub expression: String,
    pub precision: Option<Precision>,
    pub timeout: Option<Seconds>,
}

impl Arguments for CalculateArguments {
    const FIELDS: &'static [&'static str] = &["expression", "precision", "timeout"];
}

/// Arguments of `calculate_advanced`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalculateAdvancedArguments {
    pub script: String,
    pub precision: Option<Precision>,
    pub timeout: Option<Seconds>,
}

impl Arguments for CalculateAdvancedArguments {
    const FIELDS: &'static [&'static str] = &["script", "precision", "timeout"];
}

/// Arguments of `set_precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetPrecisionArguments {
    pub precision: Precision,
}

impl Arguments for SetPrecisionArguments {
    const FIELDS: &'static [&'static str] = &["precision"];
}

/// Arguments of tools that take none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxRulesArguments {}

impl Arguments for SandboxRulesArguments {
    const FIELDS: &'static [&'static str] = &[];
}

/// Number of seconds as typed; `call::seconds` checks its range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seconds(pub f64);

struct SecondsVisitor;

impl Visitor<'_> for SecondsVisitor {
    type Value = Seconds;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of seconds above 0")
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Seconds, E> {
        Ok(Seconds(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Seconds, E> {
        // Past 32 bits every value is clamped alike, so exactness is not needed there.
        Ok(Seconds(f64::from(u32::try_from(value).unwrap_or(u32::MAX))))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Seconds, E> {
        Err(E::invalid_value(de::Unexpected::Signed(value), &self))
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_f64(SecondsVisitor)
    }
}

/// Parses the arguments of one call; absent arguments count as an empty object.
pub fn parse<A: Arguments>(given: Option<JsonObject>) -> Result<A, BadArguments> {
    let given = given.unwrap_or_default();
    known_fields(A::TOOL, A::FIELDS, &given)?;
    typed(A::TOOL, given)
}

/// Refuses a field that is not among `fields`.
pub(crate) fn known_fields(
    tool: &str,
    fields: &[&str],
    given: &JsonObject,
) -> Result<(), BadArguments> {
    match given.keys().find(|name| !fields.contains(&name.as_str())) {
        Some(unknown) => Err(unknown_field(tool, fields, unknown)),
        None => Ok(()),
    }
}

/// Deserializes the fields of an object. An error names the field that does not fit.
pub fn typed<T: DeserializeOwned>(tool: &str, given: JsonObject) -> Result<T, BadArguments> {
    serde_path_to_error::deserialize(serde_json::Value::Object(given)).map_err(|error| {
        let path = error.path().to_string();
        let cause = error.inner();
        // A missing field has no path of its own; serde's text names it.
        let message = if path == "." {
            format!("{tool}: {cause}")
        } else {
            format!("{tool}: `{path}`: {cause}")
        };
        BadArguments { message, hint: None }
    })
}

fn unknown_field(tool: &str, fields: &[&str], unknown: &str) -> BadArguments {
    let shown: String = unknown.chars().take(80).flat_map(char::escape_default).collect();
    let takes = if fields.is_empty() {
        "it takes no arguments".to_owned()
    } else {
        format!("it takes {}", fields.join(", "))
    };
    let hint = match nearest(unknown, fields) {
        Some(near) => format!("did you mean `{near}`? {takes}"),
        None => takes,
    };
    BadArguments { message: format!("{tool}: unknown field `{shown}`"), hint: Some(hint) }
}

/// Returns the known name closest to `word`, if it is close enough to be a misspelling.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    // Distances are quadratic in length; no known name is near a word this long.
    if word.len() > 64 {
        return None;
    }
    known
        .iter()
        .map(|name| (strsim::jaro_winkler(word, name), *name))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed parse is a failed test")]
mod tests {
    use super::*;

    fn object(text: &str) -> Option<JsonObject> {
        Some(serde_json::from_str(text).unwrap())
    }

    fn refusal<A: Arguments + fmt::Debug>(text: &str) -> (String, Option<String>) {
        let bad = parse::<A>(object(text)).unwrap_err();
        (bad.message, bad.hint)
    }

    #[test]
    fn every_field_of_bash_arrives() {
        let text = r#"{"command":"cat","stdin":"x","cwd":"src","env":{"A":"1"},"timeout":1.5,
            "session":"s","restart":true,"background":true,"input":true,"tty":true,"max_output":9,"head":1,"tail":2,
            "description":"why"}"#;
        let expected = BashArguments {
            command: Some("cat".to_owned()),
            stdin: Some("x".to_owned()),
            cwd: Some("src".to_owned()),
            env: Some(BTreeMap::from([("A".to_owned(), "1".to_owned())])),
            timeout: Some(Seconds(1.5)),
            session: Some("s".to_owned()),
            restart: true,
            background: true,
            input: Some(true),
            tty: true,
            max_output: Some(9),
            head: Some(1),
            tail: Some(2),
            description: Some("why".to_owned()),
        };
        assert_eq!(parse::<BashArguments>(object(text)), Ok(expected));
    }

    #[test]
    fn an_unknown_field_is_named_with_the_nearest_known_one() {
        assert_eq!(
            refusal::<BashArguments>(r#"{"comand":"ls"}"#),
            (
                "bash: unknown field `comand`".to_owned(),
                Some(
                    "did you mean `command`? it takes command, stdin, cwd, env, timeout, session, \
                     restart, background, input, tty, max_output, head, tail, description"
                        .to_owned()
                )
            )
        );
        assert_eq!(
            refusal::<SandboxRulesArguments>(r#"{"zzz":1}"#),
            (
                "sandbox_rules: unknown field `zzz`".to_owned(),
                Some("it takes no arguments".to_owned())
            )
        );
    }

    #[test]
    fn a_missing_field_is_named() {
        assert_eq!(refusal::<CalculateArguments>("{}").0, "calculate: missing field `expression`");
        assert_eq!(
            parse::<CalculateArguments>(None).unwrap_err().message,
            "calculate: missing field `expression`"
        );
    }

    #[test]
    fn a_wrong_type_names_the_field_and_what_it_takes() {
        assert_eq!(
            refusal::<BashArguments>(r#"{"command":"ls","timeout":"soon"}"#).0,
            "bash: `timeout`: invalid type: string \"soon\", expected a number of seconds above 0"
        );
        assert_eq!(
            refusal::<BashArguments>(r#"{"command":"ls","timeout":-1}"#).0,
            "bash: `timeout`: invalid value: integer `-1`, expected a number of seconds above 0"
        );
        assert_eq!(
            refusal::<BashArguments>(r#"{"command":"ls","env":{"A":5}}"#).0,
            "bash: `env.A`: invalid type: integer `5`, expected a string"
        );
    }

    #[test]
    fn precision_is_a_whole_number_from_0_to_100() {
        for (text, expected) in [("0", 0), ("100", 100), ("20.0", 20)] {
            let given = object(&format!(r#"{{"precision":{text}}}"#));
            assert_eq!(parse::<SetPrecisionArguments>(given).unwrap().precision.places(), expected);
        }
        for text in ["101", "-1", "2.5", "\"20\"", "1e300", "null"] {
            let (message, _) =
                refusal::<SetPrecisionArguments>(&format!(r#"{{"precision":{text}}}"#));
            assert!(
                message.contains("`precision`")
                    && message.ends_with("expected a whole number from 0 to 100"),
                "{message}"
            );
        }
    }
}
