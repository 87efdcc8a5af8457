//! One call of a script: the words of the program that stands around it in the cell (`src/helpers/runner/`), and what that
//! program reports at the end.
//!
//! Nothing of the caller is in those words. Arguments travel as values of the environment or as
//! standard input.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::output::{INVALID, ScriptEnd, ScriptError, ScriptOutput};
use crate::roots::{self, ScriptRoot};
use crate::settings::FetchBounds;
use crate::stream::{ScriptStream, StreamLimits};
use crate::token::RemoteToken;
use crate::{Project, ROOT, ScriptTool};

/// Beginning of the paths of a call's files, in the cell's own /tmp.
const FILES: &str = "/tmp/.mcp-";
/// Directory of [`SDK`] in a cell.
const SDK_DIRECTORY: &str = "/etc/cofferdam/sdk";
/// Program that the functions read JSON with, whatever the host has.
const JQ: &str = "/etc/cofferdam/bin/jq";
/// Longest arguments in bytes that are a variable; longer ones are a file.
pub(crate) const ARGUMENT_BYTES: usize = 32 << 10;
/// Variable that lists arguments for `mcp_args_get`.
const FIELDS: &str = "COFFERDAM_ARGS";
/// Longest arguments in bytes that are listed there.
const FIELDS_BYTES: usize = 8 << 10;
/// Longest `_meta` of a request in bytes.
const META_BYTES: usize = 16 << 10;
/// Time limit in seconds of the hook that decides about calls.
const POLICY_SECONDS: u64 = 5;

/// Files of a cell that scripts source, and scripts that the runner calls, below `/etc/cofferdam`.
pub const SDK: &[(&str, &str)] = &[
    ("sdk/tool-sdk.sh", include_str!("sdk/tool-sdk.sh")),
    ("sdk/ui-sdk.sh", include_str!("sdk/ui-sdk.sh")),
    ("sdk/page.html", include_str!("ui/page.html")),
    ("lib/path.sh", include_str!("sdk/path.sh")),
    ("lib/embed.sh", include_str!("sdk/embed.sh")),
    ("lib/policy.sh", include_str!("sdk/policy.sh")),
    ("lib/provider.sh", include_str!("sdk/provider.sh")),
];
/// Reasons why a script cannot write, each with what can be done.
const PROJECT_READ_ONLY: &str = "the project is read-only for its scripts, which can write to /tmp; the operator grants \
                                 it for writing with `--project DIR:rw`";
const TOOL_READ_ONLY: &str = "the tool's metadata asks for reading only (`cofferdam/workspace`), so it can write to /tmp \
                              alone";
const SCRIPTS_READ_ONLY: &str = "scripts, metadata and settings of the project are read-only for scripts (`tools`, \
                                 `server.d`, `config` and others); its other folders and /tmp are not";
/// Output of `lib/policy.sh` for a call that is allowed.
const ALLOWED: &[u8] = b"allow";

/// Words, input and variables of one call of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptLaunch {
    /// Words of the runner; empty for one of our scripts, which has no runner.
    pub words: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub stdin: Vec<u8>,
    /// Time limit in seconds.
    pub seconds: u64,
    /// Name of the profile that the tool's metadata asks for.
    pub profile: Option<String>,
    /// Rules of egress that the tool's metadata leaves it; all of its profile if absent.
    pub egress: Option<Vec<String>>,
    /// True if the tool's metadata asks for nothing to write to.
    pub is_read_only: bool,
    /// Reason why the script cannot write to the project, or to a part of it.
    pub(crate) read_only: &'static str,
    /// Time limit in seconds without progress.
    pub idle: Option<u64>,
    /// True if the user may be asked what the script asks: only by a tool, which the user has had called.
    pub may_ask: bool,
    /// Bounds of what is downloaded for the script; `None` for one that has nothing downloaded.
    pub downloads: Option<FetchBounds>,
    /// Bounds of what is taken of the script's output.
    pub(crate) limits: StreamLimits,
    /// Word that separates the output from the report.
    pub(crate) mark: String,
}

/// Reason why a call is not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unlaunched {
    #[error("`_meta` is longer than 16K")]
    LongMeta,
    #[error("the arguments are longer than 32K")]
    LongArguments,
}

/// Report of the program around a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShellReport<'o> {
    /// Output of the script.
    pub(crate) output: &'o [u8],
    pub(crate) exit_code: i32,
    /// Content of the file for an error.
    pub(crate) error: &'o [u8],
    /// Files with the result.
    pub(crate) embedded: &'o [u8],
}

impl ScriptLaunch {
    /// Prepares a call. `mark` is a word that no output has.
    ///
    /// # Errors
    /// Metadata of the request that is too long.
    pub fn new(
        project: &Project,
        tool: &ScriptTool,
        arguments: &Map<String, Value>,
        meta: &Map<String, Value>,
        mark: String,
    ) -> Result<Self, Unlaunched> {
        let mut meta = meta.clone();
        RemoteToken::strip(&mut meta, project.settings.token.as_ref());
        // A member of the parameters, and not of `_meta`, as the client sent it.
        meta.remove("mcpbash/timeoutSecs");
        let meta = Value::Object(meta).to_string();
        if meta.len() > META_BYTES {
            return Err(Unlaunched::LongMeta);
        }
        let fields = fields(arguments);
        let arguments = Value::Object(arguments.clone()).to_string();
        let max = project.settings.argument_bytes.min(ARGUMENT_BYTES);
        let (variable, stdin) = match arguments.len() > max {
            true => (String::new(), arguments.into_bytes()),
            false => (arguments, Vec::new()),
        };
        let path = format!("{ROOT}/{}/{}", project.layout.tools, tool.path);
        let mut env = variables(project);
        env.extend(named(&[
            ("MCP_TOOL_NAME", &tool.name),
            ("MCP_TOOL_PATH", &path),
            ("MCP_TOOL_ARGS_JSON", &variable),
            ("MCP_TOOL_META_JSON", &meta),
            (FIELDS, &fields),
        ]));
        let words = runner(kind(tool.is_executable), Some(&path));
        let egress = egress(tool);
        // Downloads are a way out as well.
        let has_network = egress.as_ref().is_none_or(|rules| !rules.is_empty());
        let downloads = has_network.then(|| downloads(project, &mut env)).flatten();
        Ok(Self {
            words,
            // A schema can be longer than the environment has room for.
            stdin: input(&mark, &metadata(tool).to_string(), &stdin),
            idle: idle(project, tool),
            profile: profile(tool),
            egress,
            is_read_only: is_read_only(tool),
            read_only: read_only(project, tool),
            may_ask: true,
            downloads,
            ..Self::alone(env, seconds(project, tool), mark, project.settings.stream)
        })
    }

    /// Makes a call without a runner, input, downloads or questions to the user.
    pub(crate) fn alone(
        env: BTreeMap<String, String>,
        seconds: u64,
        mark: String,
        limits: StreamLimits,
    ) -> Self {
        Self {
            words: Vec::new(),
            env,
            stdin: Vec::new(),
            seconds,
            idle: None,
            profile: None,
            egress: None,
            is_read_only: false,
            read_only: PROJECT_READ_ONLY,
            may_ask: false,
            downloads: None,
            limits,
            mark,
        }
    }

    /// Sets the variable that says whether the client shows pages.
    #[must_use]
    pub fn for_pages(mut self, shows: bool) -> Self {
        let word = if shows { "1" } else { "0" };
        self.env.insert("MCPBASH_CLIENT_SUPPORTS_UI".to_owned(), word.to_owned());
        self
    }

    /// Has the script work in these directories, if there are any.
    #[must_use]
    pub fn in_roots(mut self, project: &Project, roots: &[ScriptRoot]) -> Self {
        if !roots.is_empty() {
            self.env.extend(roots::variables(roots, &project.server.name));
        }
        self
    }

    /// Gives the call another time limit in seconds, up to the longest.
    #[must_use]
    pub fn within(mut self, project: &Project, seconds: u64) -> Self {
        let seconds = seconds.clamp(1, project.settings.max_seconds);
        match &mut self.idle {
            // The longest time of such a tool is another.
            Some(idle) => *idle = seconds.min(self.seconds),
            None => self.seconds = seconds,
        }
        self
    }

    /// Prepares the question to the project's hook whether a tool may be called.
    pub fn policy(project: &Project, tool: &ScriptTool, mark: String) -> Self {
        let mut env = variables(project);
        env.extend(named(&[("MCP_TOOL_NAME", &tool.name)]));
        Self {
            words: runner("policy", None),
            stdin: input(&mark, &metadata(tool).to_string(), &[]),
            ..Self::alone(env, POLICY_SECONDS, mark, project.settings.stream)
        }
    }

    /// Sets the token with which the script reports progress of this call to the client.
    #[must_use]
    pub fn with_progress(mut self, token: &str) -> Self {
        // The script puts it in JSON; the client gets its own back in any case.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        let is_word = !token.is_empty() && token.len() <= 128 && token.chars().all(is_plain);
        let token = if is_word { token } else { "1" };
        self.env.insert("MCP_PROGRESS_TOKEN".to_owned(), token.to_owned());
        self
    }

    /// Sets the variable that says that the user can be asked.
    #[must_use]
    pub fn with_questions(mut self) -> Self {
        self.env.insert("MCP_ELICIT_SUPPORTED".to_owned(), "1".to_owned());
        self
    }

    /// Reads the answer of the project's hook. Everything but a clear yes is a no.
    ///
    /// # Errors
    /// The reason of the hook, or how it ended without one.
    pub fn allows(&self, tool: &ScriptTool, output: &ScriptOutput) -> Result<(), ScriptError> {
        let refused = |why: &str| {
            ScriptError::new(INVALID, format!("Tool '{}' blocked by policy: {why}", tool.name))
        };
        let report = match (&output.end, &output.report) {
            (ScriptEnd::Exited, Some(report)) => self.report(report),
            (ScriptEnd::TimedOut | ScriptEnd::Idle, _) => {
                return Err(refused("server.d/policy.sh was not done in its time"));
            }
            (ScriptEnd::Exited | ScriptEnd::Cancelled | ScriptEnd::Stopped(_), _) => None,
        };
        let report = report.ok_or_else(|| refused("server.d/policy.sh did not come to its end"))?;
        if !report.error.is_empty() {
            return Err(
                ScriptError::read(report.error).unwrap_or_else(|| refused("without a reason"))
            );
        }
        match report.exit_code == 0 && report.output == ALLOWED {
            true => Ok(()),
            false => Err(refused("server.d/policy.sh failed")),
        }
    }

    /// Makes the reader of the call's output.
    pub fn stream(&self) -> ScriptStream {
        ScriptStream::new(&self.mark, self.limits)
    }

    /// Takes the report apart; `None` if the cell was ended before it.
    pub(crate) fn report<'o>(&self, report: &'o [u8]) -> Option<ShellReport<'o>> {
        let rest = report.strip_prefix(self.mark.as_bytes())?.strip_prefix(b" ")?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let (code, length) = std::str::from_utf8(rest.get(..end)?).ok()?.split_once(' ')?;
        let exit_code = code.parse().ok()?;
        let length = length.parse().ok()?;
        let (error, rest) = rest.get(end + 1..)?.split_at_checked(length)?;
        let mark = format!("\n{}\n", self.mark);
        let at = rest.windows(mark.len()).position(|window| window == mark.as_bytes())?;
        let embedded = rest.get(..at)?;
        let output = rest.get(at + mark.len()..)?;
        Some(ShellReport { output, exit_code, error, embedded })
    }
}

/// Lists arguments for `mcp_args_get`: all of them as JSON, and a line for each with a plain name. Empty where that
/// would be long.
fn fields(arguments: &Map<String, Value>) -> String {
    let mut text = Value::Object(arguments.clone()).to_string();
    if text.len() > FIELDS_BYTES {
        return String::new();
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (name, value) in arguments.iter().filter(|(name, _)| name.chars().all(is_word)) {
        let printed = match value {
            Value::String(text) => Some(text.replace('\\', r"\\").replace('\n', r"\n")),
            Value::Number(number) if number.is_f64() => None,
            Value::Null | Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
            Value::Array(_) | Value::Object(_) => None,
        };
        let printed = printed.map(|text| format!(" {text}")).unwrap_or_default();
        text.push_str(&format!("\n{name}{printed}"));
    }
    text
}

/// Returns the name of the profile that a tool's metadata asks for.
fn profile(tool: &ScriptTool) -> Option<String> {
    let name = tool.meta.as_ref()?.get("cofferdam/profile")?;
    // Another value is no name, and refused where names are read.
    Some(name.as_str().map_or_else(|| name.to_string(), str::to_owned))
}

/// Returns the rules of egress that a tool's metadata names: with an empty list, or with another value, it has no
/// network.
fn egress(tool: &ScriptTool) -> Option<Vec<String>> {
    let named = tool.meta.as_ref()?.get("cofferdam/egress")?;
    let list = named.as_array().map(Vec::as_slice).unwrap_or_default();
    Some(list.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect())
}

/// Returns true if a tool's metadata asks for its project, and all else that is granted, for reading only.
fn is_read_only(tool: &ScriptTool) -> bool {
    let asked = tool.meta.as_ref().and_then(|meta| meta.get("cofferdam/workspace"));
    asked.is_some_and(|asked| asked.as_str() != Some("rw"))
}

/// Returns the reason why a script cannot write to the project.
fn read_only(project: &Project, tool: &ScriptTool) -> &'static str {
    match (project.is_written, is_read_only(tool)) {
        (false, _) => PROJECT_READ_ONLY,
        (true, true) => TOOL_READ_ONLY,
        (true, false) => SCRIPTS_READ_ONLY,
    }
}

/// Returns the time limit of a tool.
fn seconds(project: &Project, tool: &ScriptTool) -> u64 {
    let max = project.settings.max_seconds;
    match tool.is_extended {
        true => tool.max_timeout.unwrap_or(max).min(max),
        false => tool.timeout.unwrap_or(project.settings.default_seconds).min(max),
    }
}

/// Returns the time that a tool has without progress, if progress renews its time.
fn idle(project: &Project, tool: &ScriptTool) -> Option<u64> {
    tool.is_extended.then(|| tool.timeout.unwrap_or(project.settings.default_seconds))
}

/// Returns the bounds of downloads for a script, and sets the variables by which it can ask for them.
pub(crate) fn downloads(
    project: &Project,
    env: &mut BTreeMap<String, String>,
) -> Option<FetchBounds> {
    env.insert("COFFERDAM_DOWNLOADS".to_owned(), "1".to_owned());
    Some(project.settings.downloads.clone())
}

/// Makes variables of the environment, which takes no NUL, while a name in JSON can have one.
pub(crate) fn named(set: &[(&str, &str)]) -> BTreeMap<String, String> {
    set.iter().map(|(name, value)| ((*name).to_owned(), value.replace('\0', ""))).collect()
}

/// Returns the variables that every script has.
pub(crate) fn variables(project: &Project) -> BTreeMap<String, String> {
    let file = |name: &str| format!("{FILES}{name}");
    let layout = &project.layout;
    let set = [
        ("MCP_SDK", SDK_DIRECTORY.to_owned()),
        ("MCP_TOOL_ERROR_FILE", file("error")),
        ("MCP_TOOL_RESOURCES_FILE", file("resources")),
        ("MCP_PROGRESS_TOKEN", String::new()),
        ("MCP_CANCEL_FILE", file("cancel")),
        ("MCP_ELICIT_SUPPORTED", "0".to_owned()),
        ("MCP_ELICIT_REQUEST_FILE", file("elicit-request")),
        ("MCP_ELICIT_RESPONSE_FILE", file("elicit-response")),
        ("MCPBASH_PROJECT_ROOT", ROOT.to_owned()),
        ("MCPBASH_HOME", "/etc/cofferdam".to_owned()),
        ("MCPBASH_TOOLS_DIR", format!("{ROOT}/{}", layout.tools)),
        ("MCPBASH_RESOURCES_DIR", format!("{ROOT}/{}", layout.resources)),
        ("MCPBASH_PROMPTS_DIR", format!("{ROOT}/{}", layout.prompts)),
        ("MCPBASH_SERVER_DIR", format!("{ROOT}/{}", layout.server)),
        ("MCPBASH_STATE_DIR", "/tmp".to_owned()),
        ("MCPBASH_MODE", "full".to_owned()),
        ("MCPBASH_JSON_TOOL", "jq".to_owned()),
        ("MCPBASH_JSON_TOOL_BIN", JQ.to_owned()),
        ("MCPBASH_DEBUG_LOG", file("debug")),
        ("MCPBASH_MAX_TEXT_BYTES", project.settings.text_bytes.to_string()),
        ("MCPBASH_FRAMEWORK_VERSION", "1.3.0".to_owned()),
        ("MCPBASH_SERVER_NAME", project.server.name.clone()),
        ("MCPBASH_CLIENT_SUPPORTS_UI", "0".to_owned()),
    ];
    let mut env = project.settings.env.clone();
    env.extend(roots::variables(&project.roots, &project.server.name));
    env.extend(named(&set.each_ref().map(|(name, value)| (*name, value.as_str()))));
    env
}

/// Describes a tool to its script.
fn metadata(tool: &ScriptTool) -> Value {
    json!({
        "name": tool.name,
        "path": tool.path,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "timeoutSecs": tool.timeout,
    })
}

/// Returns how the runner starts a script.
pub(crate) fn kind(is_executable: bool) -> &'static str {
    if is_executable { "program" } else { "bash" }
}

/// Returns the runner's words.
pub(crate) fn runner(kind: &str, of: Option<&str>) -> Vec<String> {
    std::iter::once(kind).chain(of).map(str::to_owned).collect()
}

/// Returns the runner's input up to what the server says later.
pub(crate) fn input(mark: &str, metadata: &str, arguments: &[u8]) -> Vec<u8> {
    let head = format!("{mark} {} {}\n", metadata.len(), arguments.len());
    [head.as_bytes(), metadata.as_bytes(), arguments].concat()
}
