//! Scripts of a declared tool's hooks: what they are sent, and what is made of their answers. Pure.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Declared;
use super::advice::{self, ErrorType};
use super::request::{DeclaredRequest, Words};
use super::result::{AboutCall, DeclaredResult, ToolError};
use crate::Report;
use crate::capture::Captured;
use crate::capture::text::render;
use config::policy::hooks::{HookPoint, HookScript};
use model::outcome::Outcome;

/// Maximum characters of a refusal in the reply.
const REASON: usize = 500;
/// Characters of the words that a script gives.
const WORDS: usize = 64 << 10;
/// Characters of the data that a script gives.
const DATA: usize = 256 << 10;
/// Exit code by which a check refuses.
const REFUSED: u8 = 1;
/// Maximum remembered answers.
const REMEMBERED: usize = 1024;

/// Answer of a script that ran before the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Pass,
    /// The call is not made, for this reason.
    Refuse(String),
    /// These words take the place of the caller's.
    Words(Vec<String>),
}

/// Answers of scripts whose hooks say `remember`, by tool, script and input; the oldest is dropped first.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    answers: HashMap<(String, String), Answer>,
    order: VecDeque<(String, String)>,
}

impl Answers {
    pub(crate) fn get(&self, script: &str, input: &str) -> Option<Answer> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.answers.get(&(script.to_owned(), input.to_owned())).cloned()
    }

    pub(crate) fn put(&self, script: &str, input: &str, answer: Answer) {
        let key = (script.to_owned(), input.to_owned());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.answers.insert(key.clone(), answer).is_none() {
            kept.order.push_back(key);
        }
        while kept.order.len() > REMEMBERED {
            if let Some(oldest) = kept.order.pop_front() {
                kept.answers.remove(&oldest);
            }
        }
    }

    pub(crate) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Kept::default();
    }
}

/// Describes a call for a script: what the caller asks for, and in `argv` what the program gets, with the words of
/// templates, defaults and replacements. It has no id, so that equal calls are equal.
pub(crate) fn input(
    declared: &Declared,
    request: &DeclaredRequest,
    words: &[String],
    argv: &[String],
) -> Value {
    let mut fields: Map<String, Value> = Map::new();
    for one in &declared.command.positionals {
        let given = request.given.iter().filter(|(name, _)| *name == one.name);
        let mut given: Vec<&str> = given.map(|(_, word)| word.as_str()).collect();
        let value = match (one.max, given.pop()) {
            (_, None) => continue,
            (1, Some(word)) => json!(word),
            (_, Some(word)) => {
                given.push(word);
                json!(given)
            }
        };
        fields.insert(one.name.clone(), value);
    }
    json!({
        "tool": declared.command.name, "fields": fields, "extra_args": words,
        "template": request.template, "argv": argv,
    })
}

/// Adds the end of the program.
pub(crate) fn with_end(mut input: Value, result: &DeclaredResult) -> Value {
    if let Some(input) = input.as_object_mut() {
        input.insert("returncode".to_owned(), json!(result.returncode));
        let stdout = result.printed.as_ref().unwrap_or(&result.stdout);
        input.insert("stdout".to_owned(), json!(stdout));
        input.insert("stderr".to_owned(), json!(result.stderr));
    }
    input
}

/// Reads the answer of a script before the program. One that fails refuses the call.
///
/// # Errors
/// The script's own failure, which is the operator's to mend.
pub(crate) fn answer(hook: &HookScript, report: &Report) -> Result<Answer, ToolError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Given {
        extra_args: Vec<String>,
    }
    match (&report.ended.outcome, hook.at) {
        (Outcome::Exited { code: 0 }, HookPoint::Check | HookPoint::Reach) => Ok(Answer::Pass),
        (Outcome::Exited { code: 0 }, HookPoint::Transform) => {
            let given = serde_json::from_str(&text(&report.stdout, WORDS));
            given.map(|Given { extra_args }| Answer::Words(extra_args)).map_err(|error| {
                failed(hook, &format!("printed no object with `extra_args`: {error}"))
            })
        }
        (
            Outcome::Exited { code: REFUSED },
            HookPoint::Check | HookPoint::Transform | HookPoint::Reach,
        ) => {
            let reason = text(&report.stdout, REASON);
            Ok(Answer::Refuse(match (reason.trim(), hook.at) {
                ("", HookPoint::Reach) => "the target does not answer".to_owned(),
                ("", _) => "the operator's check refuses this call".to_owned(),
                (reason, _) => reason.to_owned(),
            }))
        }
        (outcome, _) => Err(failed(hook, &ended(outcome))),
    }
}

/// Reads the data of a script after the program.
///
/// # Errors
/// The reason why the report has no data.
pub(crate) fn data(hook: &HookScript, report: &Report) -> Result<Value, String> {
    if report.ended.outcome != (Outcome::Exited { code: 0 }) {
        return Err(format!(
            "the operator's {} hook {}",
            hook.at.name(),
            ended(&report.ended.outcome)
        ));
    }
    serde_json::from_str(&text(&report.stdout, DATA))
        .map_err(|error| format!("the operator's {} hook printed no JSON: {error}", hook.at.name()))
}

/// Makes the error of a call that a hook refuses.
pub(crate) fn refusal(hook: &HookScript, about: AboutCall<'_>, reason: &str) -> ToolError {
    let error = ToolError::new(ErrorType::ValidationError, format!("{}: {reason}", about.tool));
    match hook.at {
        HookPoint::Reach => error.with_suggestion(advice::NETWORK),
        HookPoint::Check | HookPoint::Transform | HookPoint::Output => error,
    }
}

/// Makes the error of a hook that has no answer.
pub(crate) fn failed(hook: &HookScript, how: &str) -> ToolError {
    let message = format!("the operator's {} hook {how}; the call was not made", hook.at.name());
    ToolError::new(ErrorType::ExecutionError, message)
}

fn ended(outcome: &Outcome) -> String {
    if let Outcome::Exited { code } = outcome {
        return format!("ended with exit code {code}");
    }
    format!("ended: {}", outcome.name())
}

fn text(captured: &Captured, max_characters: usize) -> String {
    render(captured, &Captured::of(b""), max_characters).stdout
}

/// Returns a request with other words.
pub(crate) fn with_words(request: &DeclaredRequest, words: Vec<String>) -> DeclaredRequest {
    DeclaredRequest { flags: Words::List(words), ..request.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_kept_up_to_a_number_and_until_they_are_cleared() {
        let answers = Answers::default();
        for number in 0..=REMEMBERED {
            answers.put("s", &number.to_string(), Answer::Pass);
        }
        assert_eq!(answers.get("s", "0"), None, "the oldest went");
        assert_eq!(answers.get("s", "1"), Some(Answer::Pass));
        assert_eq!(answers.get("t", "1"), None, "of another script");
        answers.clear();
        assert_eq!(answers.get("s", "1"), None);
    }
}
