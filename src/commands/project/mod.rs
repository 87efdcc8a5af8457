//! `cofferdam project`: makes, checks and tries projects of script tools.

mod create;
mod doctor;
mod hooks;
mod learn;
mod repair;
mod run_tool;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use create::{NewArguments, ScaffoldArguments};
use learn::LearnToolArguments;
pub(in crate::commands) use learn::LearnedTool;
use run_tool::RunToolArguments;

use crate::commands::error::{CliError, print_out};
use crate::commands::format::{Rows, plain, pretty};
use config::projects::ProjectKeys;
use model::call::Env;
use model::job::Access;
use projects::hooks::{ENV, POLICY, REGISTER};
use projects::{
    CompletionOf, FetchBounds, Project, ProjectDirectory, ProjectError, ProjectLayout,
    ProjectSettings, PromptRole, ScriptCompletion, ScriptPrompt, ScriptResource, ScriptTemplate,
    ScriptTool, StreamLimits,
};

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
pub struct ProjectArguments {
    #[command(subcommand)]
    command: ProjectCommand,
}

/// Subcommand of `project`.
#[derive(Debug, Clone, Subcommand)]
enum ProjectCommand {
    /// Make a project with one tool
    New(NewArguments),
    /// Add a tool, prompt, resource or completion to a project
    Scaffold(ScaffoldArguments),
    /// Call one tool as a client would, and print its result
    RunTool(RunToolArguments),
    /// Call one tool and print its refusals, as a profile to complete
    Learn(LearnToolArguments),
    /// Read a project, list its entries and each mistake with its place
    Validate(ValidateArguments),
    /// Show what a project has, lacks and may do
    Doctor(doctor::DoctorArguments),
    /// Print the lists of a project as a server.d/register.json has them
    Registry(RegistryArguments),
}

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Example:\n  cofferdam project registry ./my-tools > ./my-tools/server.d/register.json"
)]
struct RegistryArguments {
    /// The project's directory
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  cofferdam project validate ./my-tools\n\n\
    Exit codes: 0 the project is valid; 1 with mistakes; 125 it cannot be read")]
struct ValidateArguments {
    /// The project's directory, with tools/ and server.d/ in it
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Count advice as mistakes: missing descriptions, names that some clients refuse
    #[arg(long)]
    strict: bool,
    /// Repair modes first: remove the right of others to write, make scripts executable
    #[arg(long)]
    fix: bool,
}

/// Runs the command.
pub fn main(typed: &ProjectArguments, config: Option<&Path>) -> Result<u8, CliError> {
    match &typed.command {
        ProjectCommand::New(typed) => create::new(typed).map(|()| 0),
        ProjectCommand::Scaffold(typed) => create::scaffold(typed).map(|()| 0),
        ProjectCommand::RunTool(typed) => run_tool::main(typed, config),
        ProjectCommand::Learn(typed) => learn::main(typed, config),
        ProjectCommand::Validate(typed) => validate(typed),
        ProjectCommand::Doctor(typed) => doctor::main(typed, config),
        ProjectCommand::Registry(typed) => {
            let lists = registry(&read(&typed.directory)?);
            print_out(&pretty(&lists)?).map(|()| 0)
        }
    }
}

fn validate(typed: &ValidateArguments) -> Result<u8, CliError> {
    let fixed = if typed.fix {
        repair::fix_modes(&typed.directory, &layout(&typed.directory)?)?
    } else {
        Vec::new()
    };
    let project = read(&typed.directory)?;
    let advice = if typed.strict { repair::advice(&project) } else { Vec::new() };
    let is_valid = project.mistakes.is_empty() && advice.is_empty();
    if typed.json {
        let mut report = listed(&project);
        if let Some(fields) = report.as_object_mut() {
            fields.insert("advice".to_owned(), json!(advice));
            fields.insert("fixed".to_owned(), json!(fixed));
        }
        print_out(&pretty(&report)?)?;
    } else {
        let lines = |list: &[String], prefix: &str| {
            list.iter().map(|line| format!("{prefix}{}\n", plain(line))).collect::<String>()
        };
        print_out(&(lines(&fixed, "fixed ") + &text(&project) + &lines(&advice, "")))?;
    }
    Ok(u8::from(!is_valid))
}

fn tool(tool: &ScriptTool) -> Value {
    json!({
        "name": tool.name, "path": tool.path, "description": tool.description,
        "inputSchema": tool.input_schema, "outputSchema": tool.output_schema,
        "timeoutSecs": tool.timeout, "annotations": tool.annotations, "icons": tool.icons,
    })
}

fn resource(resource: &ScriptResource) -> Value {
    json!({
        "name": resource.name, "path": resource.path, "uri": resource.uri,
        "mimeType": resource.mime_type, "description": resource.description,
        "provider": resource.provider,
    })
}

fn template(template: &ScriptTemplate) -> Value {
    json!({
        "name": template.name, "uriTemplate": template.uri_template,
        "description": template.description,
    })
}

fn prompt(prompt: &ScriptPrompt) -> Value {
    let mut entry = json!({
        "name": prompt.name, "path": prompt.path, "description": prompt.description,
        "arguments": prompt.arguments,
    });
    if prompt.role == PromptRole::Assistant
        && let Some(fields) = entry.as_object_mut()
    {
        fields.insert("role".to_owned(), json!("assistant"));
    }
    entry
}

fn completion(script: &ScriptCompletion) -> Value {
    json!({ "name": script.name, "path": script.path })
}

/// Makes the lists of a project's entries in the form of `register.json`.
fn registry(project: &Project) -> Value {
    let listed = project.resources.iter().filter(|resource| resource.provider != "ui");
    let scripts = project.completions.iter().filter(|script| script.of == CompletionOf::Any);
    let mut lists = json!({
        "version": 1,
        "tools": project.tools.iter().map(tool).collect::<Vec<Value>>(),
        "resources": listed.map(resource).collect::<Vec<Value>>(),
        "resourceTemplates": project.templates.iter().map(template).collect::<Vec<Value>>(),
        "prompts": project.prompts.iter().map(prompt).collect::<Vec<Value>>(),
        "completions": scripts.map(completion).collect::<Vec<Value>>(),
    });
    // In `register.json` an empty list means no entries, and null means that they are looked for in the folders.
    for list in lists.as_object_mut().into_iter().flatten().map(|(_, list)| list) {
        if list.as_array().is_some_and(Vec::is_empty) {
            *list = Value::Null;
        }
        for entry in list.as_array_mut().into_iter().flatten() {
            if let Some(fields) = entry.as_object_mut() {
                fields.retain(|_, value| !value.is_null());
            }
        }
    }
    lists
}

/// Reads a project that the operator named, for `validate` or to be served.
///
/// # Errors
/// The reason why it cannot be used.
pub(in crate::commands) fn read(directory: &Path) -> Result<Project, CliError> {
    read_with(directory, Access::ReadOnly, None)
}

fn read_with(
    directory: &Path,
    access: Access,
    lists: Option<Map<String, Value>>,
) -> Result<Project, CliError> {
    let layout = layout(directory)?;
    let opened = ProjectDirectory::open(directory).map(|opened| match access {
        Access::ReadOnly => opened.laid_out(layout),
        Access::ReadWrite
        | Access::Unguarded
        | Access::Repository
        | Access::Cache
        | Access::Layer => opened.laid_out(layout).written_by_scripts(),
    });
    opened.and_then(|opened| opened.read(lists)).map_err(|error| {
        let refused = CliError::new(format!("project {}: {error}", directory.display()));
        match error {
            ProjectError::WritableByOthers => refused.with_hint("chmod o-w, or copy the project"),
            ProjectError::ForeignOwner => {
                refused.with_hint("copy the project, so that it is yours")
            }
            ProjectError::Open(_) | ProjectError::Mistake(_) => refused,
        }
    })
}

/// A project that is to be served.
#[derive(Debug)]
pub(in crate::commands) struct ServedProject {
    pub(in crate::commands) project: Project,
    /// Lists that its `register.sh` made.
    pub(in crate::commands) lists: Option<Map<String, Value>>,
}

/// Reads a project to be served, with the operator's settings and, if hooks are run, their results.
///
/// # Errors
/// A project or a setting that cannot be used, or a hook that failed.
pub(in crate::commands) fn with_hooks(
    directory: &str,
    access: Access,
    has_hooks: bool,
    config: Option<&Path>,
    keys: &ProjectKeys,
) -> Result<ServedProject, CliError> {
    let mut settings = settings(keys)?;
    settings.has_hooks |= has_hooks;
    let directory = Path::new(directory);
    let mut project = read_with(directory, access, None)?;
    let mut lists = None;
    let at_start = |hook: &&&str| [REGISTER, ENV].contains(hook);
    let to_run: Vec<&str> = project.hooks.iter().filter(at_start).copied().collect();
    if settings.has_hooks && !to_run.is_empty() {
        let results = hooks::run(directory, &to_run, &project.layout, config)?;
        lists = results.register;
        project = read_with(directory, access, lists.clone())?;
        // Variables of the operator override those of the project.
        let by_operator = std::mem::take(&mut settings.env);
        settings.env = results.env;
        settings.env.extend(by_operator);
    } else {
        for hook in to_run {
            tracing::warn!("project: {hook} is not run: hooks are off (serve --project-hooks)");
        }
    }
    if !settings.has_hooks && project.hooks.contains(&POLICY) {
        tracing::warn!(
            "project: every call is refused: {POLICY} decides, and hooks are off (serve --project-hooks)"
        );
    }
    // Some names of variables are refused in cells, so every call would fail.
    Env::new(settings.env.clone()).map_err(|error| {
        CliError::new(format!("project: a variable for scripts: {}", plain(&error.to_string())))
            .with_hint("it comes from server.d/env.sh or MCPBASH_TOOL_ENV_ALLOWLIST")
    })?;
    project.settings = settings;
    let project = match access {
        Access::ReadOnly => project,
        Access::ReadWrite
        | Access::Unguarded
        | Access::Repository
        | Access::Cache
        | Access::Layer => project.written_by_scripts(),
    };
    Ok(ServedProject { project, lists })
}

/// Reads which folders a project has, from the framework's variables.
///
/// # Errors
/// A variable that names a folder outside of the project: the operator means other tools than would be served.
pub(in crate::commands) fn layout(directory: &Path) -> Result<ProjectLayout, CliError> {
    ProjectLayout::from_variables(directory, |name| std::env::var(name).ok()).map_err(|error| {
        CliError::new(plain(&error.to_string())).with_hint(format!("unset {}", error.name))
    })
}

/// Reads the operator's settings of projects: variables of the framework override the server's file.
///
/// # Errors
/// A variable that is not understood, or a malformed host.
fn settings(keys: &ProjectKeys) -> Result<ProjectSettings, CliError> {
    let seconds = |time: Duration| time.as_secs().max(1);
    let bytes = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let stream = StreamLimits {
        output: bytes(keys.output.value),
        stderr: keys.stderr.value,
        stderr_tail: bytes(keys.stderr_tail.value),
        progress: keys.progress.value,
        messages: keys.messages.value,
    };
    let downloads = FetchBounds {
        https_seconds: seconds(keys.https_timeout.value),
        https_bytes: keys.https_bytes.value,
        git_seconds: seconds(keys.git_timeout.value),
        git_bytes: keys.git_bytes.value,
        ..FetchBounds::default()
    };
    let file = ProjectSettings {
        has_hooks: keys.hooks.value,
        workers: keys.workers.value,
        default_seconds: seconds(keys.timeout.value),
        max_seconds: seconds(keys.max_timeout.value),
        text_bytes: keys.text.value,
        resource_bytes: bytes(keys.resource.value),
        hosts: keys.hosts.value.clone(),
        stream,
        downloads,
        ..ProjectSettings::default()
    };
    let settings = file.over(|name| std::env::var(name).ok());
    settings.map_err(|error| CliError::new(plain(&error.to_string())))
}

/// Makes the report of `validate --json`: the entries, with some of their fields, and the mistakes.
fn listed(project: &Project) -> Value {
    let some = |entries: Vec<Value>, fields: &[&str]| {
        let kept = |entry: &Value| -> Map<String, Value> {
            let field = |name: &&str| Some(((*name).to_owned(), entry.get(*name)?.clone()));
            fields.iter().filter_map(field).collect()
        };
        entries.iter().map(kept).collect::<Vec<_>>()
    };
    let tools = project.tools.iter().map(tool).collect();
    let resources = project.resources.iter().map(resource).collect();
    let templates = project.templates.iter().map(template).collect();
    let prompts = project.prompts.iter().map(prompt).collect();
    let mistakes = project.mistakes.iter();
    let mistakes =
        mistakes.map(|mistake| json!({ "place": mistake.file, "message": mistake.message }));
    json!({
        "server": {
            "name": project.server.name,
            "title": project.server.title,
            "version": project.server.version,
        },
        "tools": some(tools, &["name", "path", "description", "inputSchema", "timeoutSecs"]),
        "resources": some(resources, &["name", "uri", "path", "provider"]),
        "resourceTemplates": some(templates, &["name", "uriTemplate"]),
        "prompts": some(prompts, &["name", "path", "arguments"]),
        "completions": project.completions.iter().map(completion).collect::<Vec<Value>>(),
        "hooks": project.hooks,
        "mistakes": mistakes.collect::<Vec<Value>>(),
    })
}

fn text(project: &Project) -> String {
    let mut rows = Rows::default();
    rows.add("server", format!("{} {}", project.server.name, project.server.version));
    for tool in &project.tools {
        rows.add(format!("tool {}", tool.name), &tool.description);
    }
    for resource in &project.resources {
        rows.add(format!("resource {}", resource.name), &resource.uri);
    }
    for template in &project.templates {
        rows.add(format!("template {}", template.name), &template.uri_template);
    }
    for prompt in &project.prompts {
        rows.add(format!("prompt {}", prompt.name), &prompt.description);
    }
    for completion in &project.completions {
        rows.add(format!("completion {}", completion.name), &completion.path);
    }
    for hook in &project.hooks {
        rows.add(format!("hook {hook}"), "run only with serve --project-hooks");
    }
    let mistakes =
        project.mistakes.iter().map(|mistake| format!("{}\n", plain(&mistake.to_string())));
    rows.text() + &mistakes.collect::<String>()
}
