//! Tool arguments as an agent sends them: parsed, unknown fields refused, every error naming its field.

use std::fmt;

use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};

use service::refused::{Refused, RefusedKind};

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

/// Name of the tool whose arguments a type holds: that of its row in [`config::policy::tools`].
pub trait Named {
    const TOOL: &'static str;
}

/// Arguments of one tool: a struct whose fields are all that the tool takes.
pub trait Arguments: Named + DeserializeOwned {}

impl<T: Named + DeserializeOwned> Arguments for T {}

/// Returns the names of the fields of a struct, in their order.
pub(crate) fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names = FieldNames(&[]);
    match T::deserialize(&mut names) {
        Ok(_) => &[],
        Err(NamesRead) => names.0,
    }
}

/// A source of no values: it keeps the names of the fields that a struct asks it for.
struct FieldNames(&'static [&'static str]);

/// Ends the deserialization after the names.
#[derive(Debug, thiserror::Error)]
#[error("there are names, and no values")]
struct NamesRead;

impl de::Error for NamesRead {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

impl<'de> Deserializer<'de> for &mut FieldNames {
    type Error = NamesRead;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, NamesRead> {
        self.0 = fields;
        Err(NamesRead)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, NamesRead> {
        Err(NamesRead)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Number of seconds as typed, also as text; `call::seconds` checks its range.
#[derive(Debug, Clone, Copy, PartialEq, JsonSchema)]
#[schemars(description = "")]
pub struct Seconds(#[schemars(extend("exclusiveMinimum" = 0))] pub f64);

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

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Seconds, E> {
        let value = text.trim().parse::<f64>().ok().filter(|value| value.is_finite());
        let wrong = || E::invalid_value(de::Unexpected::Str(text), &self);
        value.map(Seconds).ok_or_else(wrong)
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecondsVisitor)
    }
}

/// Parses the arguments of one call; absent arguments count as an empty object.
pub fn parse<A: Arguments>(given: Option<JsonObject>) -> Result<A, BadArguments> {
    let given = given.unwrap_or_default();
    known_fields(A::TOOL, field_names::<A>(), &given)?;
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
        // A missing field has no path; serde's text names it.
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
    let hint = match meant(unknown, fields).or_else(|| nearest(unknown, fields)) {
        Some(near) => format!("did you mean `{near}`? {takes}"),
        None => takes,
    };
    BadArguments { message: format!("{tool}: unknown field `{shown}`"), hint: Some(hint) }
}

/// Names that other tools give to a field, with ours.
const ELSEWHERE: &[(&str, &str)] = &[
    ("cmd", "command"),
    ("code", "command"),
    ("script", "command"),
    ("shell_command", "command"),
    ("run_in_background", "background"),
    ("detach", "background"),
    ("timeout_seconds", "timeout"),
    ("timeout_secs", "timeout"),
    ("workdir", "cwd"),
    ("working_dir", "cwd"),
    ("working_directory", "cwd"),
    ("directory", "cwd"),
    ("cwd", "working_dir"),
    ("workdir", "working_dir"),
    ("environment", "env"),
    ("session_id", "session"),
    ("shell_id", "session"),
    ("bash_id", "job"),
    ("job_id", "job"),
    ("task_id", "job"),
    ("id", "job"),
    ("input", "stdin"),
    ("file_path", "path"),
    ("filename", "path"),
    ("file", "path"),
    ("text", "content"),
    ("file_text", "content"),
    ("content", "file_text"),
    ("old_string", "old_str"),
    ("new_string", "new_str"),
    ("filter", "grep"),
    ("regex", "grep"),
    ("expr", "expression"),
    ("formula", "expression"),
    ("digits", "precision"),
    ("places", "precision"),
    ("scale", "precision"),
];

/// Returns the field of ours that has another name elsewhere.
fn meant<'a>(word: &str, fields: &[&'a str]) -> Option<&'a str> {
    let ours = ELSEWHERE.iter().filter(|(theirs, _)| *theirs == word).map(|(_, ours)| *ours);
    ours.filter_map(|ours| fields.iter().copied().find(|field| *field == ours)).next()
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::tools::calculator::{CalculateArguments, SetPrecisionArguments};
    use crate::tools::rules::SandboxRulesArguments;
    use crate::tools::shell::BashArguments;
    use model::shells::ShellKind;

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
            "session":"s","shell":"zsh","restart":true,"background":true,"input":true,"tty":true,"max_output":9,"head":1,"tail":2,
            "description":"why"}"#;
        let expected = BashArguments {
            command: Some("cat".to_owned()),
            stdin: Some("x".to_owned()),
            cwd: Some("src".to_owned()),
            env: Some(BTreeMap::from([("A".to_owned(), "1".to_owned())])),
            timeout: Some(Seconds(1.5)),
            session: Some("s".to_owned()),
            shell: Some(ShellKind::Zsh),
            restart: true,
            end: false,
            background: true,
            input: Some(true),
            tty: true,
            max_output: Some(9),
            head: Some(1),
            tail: Some(2),
            detail: false,
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
                     shell, restart, end, background, input, tty, max_output, head, tail, detail, description"
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
    fn a_name_that_other_tools_have_leads_to_ours() {
        for (given, ours) in [("cmd", "command"), ("run_in_background", "background")] {
            let (_, hint) = refusal::<BashArguments>(&format!(r#"{{"{given}":true}}"#));
            let expected = format!("did you mean `{ours}`?");
            assert!(hint.as_ref().is_some_and(|hint| hint.starts_with(&expected)), "{hint:?}");
        }
    }

    #[test]
    fn seconds_may_be_text() {
        for (text, expected) in [("30", 30.0), (" 1.5 ", 1.5)] {
            let given = object(&format!(r#"{{"command":"ls","timeout":"{text}"}}"#));
            assert_eq!(parse::<BashArguments>(given).unwrap().timeout, Some(Seconds(expected)));
        }
        for text in ["soon", "", "inf", "NaN", "30s"] {
            let (message, _) =
                refusal::<BashArguments>(&format!(r#"{{"command":"ls","timeout":"{text}"}}"#));
            assert!(message.ends_with("expected a number of seconds above 0"), "{message}");
        }
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
            "bash: `timeout`: invalid value: string \"soon\", expected a number of seconds above 0"
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
