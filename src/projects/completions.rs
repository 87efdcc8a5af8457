//! Completions of arguments: scripts that suggest values for those of prompts and of resources.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::json::FirstDocument;
use crate::launch::{self, ARGUMENT_BYTES, ScriptLaunch, Unlaunched};
use crate::metadata::COMPLETIONS;
use crate::output::{ScriptEnd, ScriptError, ScriptOutput};
use crate::prompts::ScriptPrompt;
use crate::register::Entry;
use crate::resources::ScriptResource;
use crate::tree::Tree;
use crate::{Project, ProjectMistake, ROOT};

/// Longest list of suggestions (MCP).
pub const SUGGESTIONS: usize = 100;
/// A script that suggests values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptCompletion {
    /// Name of the prompt or the resource.
    pub name: String,
    /// Path in the project.
    pub path: String,
    /// True if the file is run itself; else bash reads it.
    pub is_executable: bool,
    /// Time limit in seconds.
    pub timeout: Option<u64>,
    pub of: CompletionOf,
}

/// Kind of entry that a completion is listed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompletionOf {
    /// Everything of its name: it is in `register.json`.
    Any,
    Prompt,
    Resource,
}

/// Entry whose argument a client asks to have completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AskedCompletion<'a> {
    /// Name of a prompt, or of a completion of `register.json`.
    Prompt(&'a str),
    /// URI of a resource or of a template.
    Resource(&'a str),
}

/// Suggested values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggestions {
    pub values: Vec<String>,
    pub has_more: bool,
    /// Number of suggestions before the next page.
    pub next: usize,
}

/// A request for values.
#[derive(Debug, Clone, Copy)]
pub struct CompletionRequest<'a> {
    pub of: AskedCompletion<'a>,
    /// Name of the argument.
    pub argument: &'a str,
    /// Beginning of its value.
    pub value: &'a str,
    /// Values of the other arguments.
    pub known: &'a Map<String, Value>,
    /// Number of suggestions that are wanted, at most [`SUGGESTIONS`], and of those that the client has already.
    pub limit: usize,
    pub offset: usize,
}

impl CompletionRequest<'_> {
    /// Makes a hash of what is asked, by which the pages of one question belong together.
    pub fn hash(&self) -> String {
        let hash = Sha256::digest(arguments(self).to_string());
        hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Takes the completions that `register.json` lists, and finds those next to prompts and resources. An empty list
/// switches the kind off.
///
/// # Errors
/// An entry without a name, of a name that another has, or whose file cannot be used.
pub(crate) fn read(
    tree: &Tree,
    entries: Option<&[Entry]>,
    prompts: &[ScriptPrompt],
    resources: &[ScriptResource],
    mistakes: &mut Vec<ProjectMistake>,
) -> Result<Vec<ScriptCompletion>, ProjectMistake> {
    let mut found: Vec<ScriptCompletion> = Vec::new();
    for entry in entries.unwrap_or_default() {
        let Some(file) = entry.present(tree, ".", mistakes)? else { continue };
        let mut fields = entry.fields(mistakes);
        let name = fields.text("name").unwrap_or_default();
        if found.iter().any(|one| one.name == name) {
            let why = format!("another completion is named `{}`", name.escape_default());
            return Err(ProjectMistake::new(&entry.place, why));
        }
        let path = file.path.strip_prefix("./").unwrap_or(&file.path).to_owned();
        let is_executable = file.is_executable;
        let timeout = fields.seconds("timeoutSecs");
        let of = CompletionOf::Any;
        found.push(ScriptCompletion { name, path, is_executable, timeout, of });
    }
    if entries.is_some_and(<[Entry]>::is_empty) {
        return Ok(found);
    }
    let prompts = prompts.iter().map(|one| (CompletionOf::Prompt, &one.name, &one.path));
    let resources = resources.iter().map(|one| (CompletionOf::Resource, &one.name, &one.path));
    for (of, name, path) in prompts.chain(resources) {
        match next_to(tree, of, path) {
            Ok(Some((path, is_executable))) => {
                let name = name.clone();
                found.push(ScriptCompletion { name, path, is_executable, timeout: None, of });
            }
            Ok(None) => {}
            Err(mistake) => mistakes.push(mistake),
        }
    }
    Ok(found)
}

/// Finds the script next to a prompt or a resource: its path, and true if it is executed directly.
fn next_to(
    tree: &Tree,
    of: CompletionOf,
    path: &str,
) -> Result<Option<(String, bool)>, ProjectMistake> {
    let layout = &tree.layout;
    let folder = if of == CompletionOf::Prompt { &layout.prompts } else { &layout.resources };
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let slash = if parent.is_empty() { "" } else { "/" };
    for ending in COMPLETIONS {
        if let Some(file) = tree.found(&format!("{folder}/{parent}{slash}{stem}{ending}"))? {
            return Ok(Some((file.path, file.is_executable)));
        }
    }
    Ok(None)
}

impl ScriptLaunch {
    /// Prepares a completion.
    ///
    /// # Errors
    /// Arguments that are too long for a variable.
    pub fn completing(
        project: &Project,
        completion: &ScriptCompletion,
        request: &CompletionRequest<'_>,
        mark: String,
    ) -> Result<Self, Unlaunched> {
        let arguments = arguments(request).to_string();
        if arguments.len() > ARGUMENT_BYTES {
            return Err(Unlaunched::LongArguments);
        }
        let path = format!("{ROOT}/{}", completion.path);
        let mut env = launch::variables(project);
        env.extend(launch::named(&[
            ("MCP_COMPLETION_NAME", &completion.name),
            ("MCP_COMPLETION_ARGS_JSON", &arguments),
            ("MCP_COMPLETION_LIMIT", &request.limit.to_string()),
            ("MCP_COMPLETION_OFFSET", &request.offset.to_string()),
            ("MCP_COMPLETION_ARGS_HASH", &request.hash()),
        ]));
        let seconds = completion.timeout.unwrap_or(project.settings.default_seconds);
        let downloads = launch::downloads(project, &mut env);
        Ok(Self {
            words: launch::runner(launch::kind(completion.is_executable), Some(&path)),
            stdin: launch::input(&mark, "", &[]),
            downloads,
            ..Self::alone(env, seconds, mark, project.settings.stream)
        })
    }

    /// Reads what a completion printed: a list of texts, or an object with `suggestions` and `hasMore`.
    ///
    /// # Errors
    /// Another output, or a script that failed.
    pub fn suggestions(
        &self,
        output: &ScriptOutput,
        asked: &CompletionRequest<'_>,
    ) -> Result<Suggestions, ScriptError> {
        let failed = |message: &str| {
            let said = String::from_utf8_lossy(&output.stderr);
            let data = said.lines().find(|line| !line.trim().is_empty()).map(|line| json!(line));
            ScriptError { data, ..ScriptError::internal(message) }
        };
        let report = match (&output.end, &output.report) {
            (ScriptEnd::Exited, Some(report)) => self.report(report),
            (ScriptEnd::TimedOut | ScriptEnd::Idle, _) => {
                return Err(failed("Completion was not done in its time"));
            }
            (ScriptEnd::Exited | ScriptEnd::Cancelled | ScriptEnd::Stopped(_), _) => None,
        };
        let Some(report) = report.filter(|report| report.exit_code == 0) else {
            return Err(failed("Completion failed"));
        };
        let printed = FirstDocument::of(report.output);
        let printed = printed.alone().ok_or_else(|| failed("Completion printed no JSON"))?;
        suggested(printed, asked).ok_or_else(|| failed("Completion printed no list of strings"))
    }
}

impl Project {
    /// Returns true if the prompt or resource exists, with or without a script.
    pub fn has_arguments(&self, asked: AskedCompletion<'_>) -> bool {
        match asked {
            AskedCompletion::Prompt(name) => {
                self.prompts.iter().any(|one| one.name == name)
                    || self.script_of(name, CompletionOf::Any).is_some()
            }
            AskedCompletion::Resource(uri) => self.name_of(uri).is_some(),
        }
    }

    /// Finds the script for what is asked about.
    pub fn completion(&self, asked: AskedCompletion<'_>) -> Option<&ScriptCompletion> {
        let (name, of) = match asked {
            AskedCompletion::Prompt(name) => (name, CompletionOf::Prompt),
            AskedCompletion::Resource(uri) => (self.name_of(uri)?, CompletionOf::Resource),
        };
        self.script_of(name, CompletionOf::Any).or_else(|| self.script_of(name, of))
    }

    /// Returns the name of the resource or the template of this URI.
    fn name_of(&self, uri: &str) -> Option<&str> {
        let resource = self.resources.iter().find(|one| one.uri == uri);
        let template = || self.templates.iter().find(|one| one.uri_template == uri);
        resource.map(|one| &*one.name).or_else(|| Some(&*template()?.name))
    }

    fn script_of(&self, name: &str, of: CompletionOf) -> Option<&ScriptCompletion> {
        self.completions.iter().find(|one| one.of == of && one.name == name)
    }
}

/// Reads suggestions. A script that heeds the limit prints a page; of another's list the page is cut out.
fn suggested(printed: &Value, asked: &CompletionRequest<'_>) -> Option<Suggestions> {
    let list = printed.as_array().or_else(|| printed.get("suggestions")?.as_array())?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut values = list.iter().map(text).collect::<Option<Vec<String>>>()?;
    let says_more = printed.get("hasMore").and_then(Value::as_bool).unwrap_or(false);
    let is_whole = values.len() > asked.limit;
    if is_whole {
        values = values.split_off(asked.offset.min(values.len()));
    }
    let has_more = says_more || values.len() > asked.limit;
    values.truncate(asked.limit);
    let given =
        printed.get("next").and_then(Value::as_u64).and_then(|next| usize::try_from(next).ok());
    let next = given.filter(|next| *next > asked.offset).unwrap_or(asked.offset + values.len());
    Some(Suggestions { values, has_more, next })
}

/// Describes the request to a script.
fn arguments(request: &CompletionRequest<'_>) -> Value {
    let reference = match request.of {
        AskedCompletion::Prompt(name) => json!({ "type": "ref/prompt", "name": name }),
        AskedCompletion::Resource(uri) => json!({ "type": "ref/resource", "uri": uri }),
    };
    json!({
        "query": request.value,
        "prefix": request.value,
        "argument": { "name": request.argument, "value": request.value },
        "context": { "arguments": request.known },
        "ref": reference,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(known: &Map<String, Value>, limit: usize, offset: usize) -> CompletionRequest<'_> {
        let of = AskedCompletion::Prompt("p");
        CompletionRequest { of, argument: "a", value: "", known, limit, offset }
    }

    #[test]
    fn suggestions_are_a_list_or_an_object_with_one() {
        let known = Map::new();
        let read = |printed: &Value| suggested(printed, &request(&known, SUGGESTIONS, 0));
        let of = |values: &[&str], has_more, next| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            Some(Suggestions { values, has_more, next })
        };
        assert_eq!(read(&json!(["a", "b"])), of(&["a", "b"], false, 2));
        let paged = json!({"suggestions": ["a"], "hasMore": true, "next": 7});
        assert_eq!(read(&paged), of(&["a"], true, 7));
        for bad in [json!([1]), json!("a"), json!({}), json!({"suggestions": "a"})] {
            assert_eq!(read(&bad), None, "{bad}");
        }
        let many = read(&json!(vec!["a"; 101])).expect("a list");
        assert_eq!((many.values.len(), many.has_more, many.next), (100, true, 100));
    }

    #[test]
    fn pages_are_cut_from_the_list_of_a_script_that_knows_no_pages() {
        let known = Map::new();
        let list = json!(["a", "b", "c", "d", "e"]);
        let page = |limit, offset| {
            let page = suggested(&list, &request(&known, limit, offset)).expect("a list");
            (page.values.concat(), page.has_more, page.next)
        };
        assert_eq!(page(2, 0), ("ab".to_owned(), true, 2));
        assert_eq!(page(2, 2), ("cd".to_owned(), true, 4));
        assert_eq!(page(2, 4), ("e".to_owned(), false, 5));
        // A next place that leads back would be asked for ever.
        let back = json!({"suggestions": ["x"], "hasMore": true, "next": 0});
        assert_eq!(suggested(&back, &request(&known, 2, 3)).map(|page| page.next), Some(4));
    }
}
