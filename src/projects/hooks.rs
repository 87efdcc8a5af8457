//! The hooks of a project that are run before it is served: the text that a shell in a cell runs, and what it prints.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::layout::ProjectLayout;
use crate::settings::is_own;

/// Steps around the hooks.
const START: &str = include_str!("sdk/start.sh");

/// Path of the hook that decides about calls.
pub const POLICY: &str = "server.d/policy.sh";
/// Path of the hook that registers entries.
pub const REGISTER: &str = "server.d/register.sh";
/// Path of the hook that sets variables.
pub const ENV: &str = "server.d/env.sh";
/// Path of the hook that looks for what the project needs.
pub const HEALTH: &str = "server.d/health-checks.sh";

/// Results of the hooks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HookResults {
    /// Content for `register.json`, if `register.sh` registered anything.
    pub register: Option<Map<String, Value>>,
    /// Variables for scripts.
    pub env: BTreeMap<String, String>,
    /// Each requirement of the project: true if it is met.
    pub health: Vec<(String, bool)>,
}

/// Hooks that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    #[error("the hooks did not come to their end (exit code {0})")]
    Failed(i32),
    #[error("the hooks printed nothing that is understood")]
    Unread,
    #[error("server.d/register.sh: {0}")]
    Json(String),
}

/// Makes the text for a shell that runs these hooks; `mark` is a random word.
pub fn script(hooks: &[&str], mark: &str, layout: &ProjectLayout) -> String {
    let has = |hook: &str| if hooks.contains(&hook) { "yes" } else { "no" };
    let env = has(ENV);
    let register = has(REGISTER);
    let health = has(HEALTH);
    let ProjectLayout { tools, resources, prompts, server, .. } = layout;
    format!(
        "MARK={mark} ENV_HOOK={env} REGISTER={register} HEALTH={health}\n\
         TOOLS={tools} RESOURCES={resources} PROMPTS={prompts} SERVER={server}\n{START}"
    )
}

/// Reads what the shell printed.
///
/// # Errors
/// Hooks that failed, or that registered something that is no JSON.
pub fn read(printed: &[u8], mark: &str) -> Result<HookResults, HookError> {
    let printed = String::from_utf8_lossy(printed);
    let (_, rest) = printed.split_once(&format!("{mark} ")).ok_or(HookError::Unread)?;
    let (code, records) = rest.split_once('\n').ok_or(HookError::Unread)?;
    let code: i32 = code.parse().map_err(|_| HookError::Unread)?;
    let mut results = HookResults::default();
    let mut is_done = false;
    let mut words = records.split('\0');
    while let (Some(kind), Some(text)) = (words.next(), words.next()) {
        match kind {
            "done" => is_done = true,
            "env" => {
                let (name, value) = text.split_once('=').unwrap_or((text, ""));
                // A function that is exported is for the hooks that come after.
                if !is_own(name) && !name.starts_with("BASH_FUNC_") {
                    results.env.insert(name.to_owned(), value.to_owned());
                }
            }
            "health" => {
                let (found, what) = text.split_once('\t').unwrap_or(("absent", text));
                results.health.push((what.to_owned(), found == "there"));
            }
            "json" => register_all(&mut results, text)?,
            kind => register(&mut results, kind, text)?,
        }
    }
    match is_done && code == 0 {
        true => Ok(results),
        false => Err(HookError::Failed(code)),
    }
}

/// Adds one entry that a function was given.
fn register(results: &mut HookResults, kind: &str, text: &str) -> Result<(), HookError> {
    let key = match kind {
        "tools" => "tools",
        "resources" => "resources",
        "resources_templates" => "resourceTemplates",
        "prompts" => "prompts",
        "completion" => "completions",
        _ => return Err(HookError::Unread),
    };
    let entry = serde_json::from_str(text)
        .map_err(|error| HookError::Json(format!("a registration is no JSON: {error}")))?;
    let lists = results.register.get_or_insert_default();
    let list = lists.entry(key).or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(list) = list {
        list.push(entry);
    }
    Ok(())
}

/// Takes lists that the hook printed; text that is no JSON object is a note of the author's.
fn register_all(results: &mut HookResults, text: &str) -> Result<(), HookError> {
    if !text.trim_start().starts_with('{') {
        return Ok(());
    }
    let lists: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| HookError::Json(format!("its output is no JSON: {error}")))?;
    results.register.get_or_insert_default().extend(lists);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_back(records: &str) -> Result<HookResults, HookError> {
        read(format!("noise\nm 0\n{}", records.replace('|', "\0")).as_bytes(), "m")
    }

    #[test]
    fn registrations_become_the_lists_of_a_register() {
        let results = read_back(
            "completion|{\"name\":\"a\"}|tools|{\"name\":\"b\"}|env|K=v=w|env|MCPBASH_REMOTE_TOKEN=x|done||",
        );
        let results = results.expect("results");
        let lists = json!({"completions": [{"name": "a"}], "tools": [{"name": "b"}]});
        assert_eq!(results.register.map(Value::Object), Some(lists));
        assert_eq!(results.env, BTreeMap::from([("K".to_owned(), "v=w".to_owned())]));
    }

    #[test]
    fn hooks_that_fail_or_say_less_are_an_error() {
        assert_eq!(read_back("env|K=v|"), Err(HookError::Failed(0)));
        assert_eq!(read(b"m 3\ndone\0\0", "m"), Err(HookError::Failed(3)));
        assert_eq!(read(b"done\0\0", "m"), Err(HookError::Unread));
        assert!(matches!(read_back("tools|{|done||"), Err(HookError::Json(_))));
        assert!(matches!(read_back("other|{}|done||"), Err(HookError::Unread)));
    }
}
