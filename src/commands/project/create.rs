//! Makes projects and their entries from templates.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::commands::error::{CliError, print_out};
use model::outcome::in_words;
use model::shells::ShellKind;
use projects::ProjectLayout;

/// Maximum length of the name of an entry.
const MAX_NAME: usize = 64;

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:\n  cofferdam project new ./my-tools")]
pub(super) struct NewArguments {
    /// A directory that is made, or is empty
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  cofferdam project scaffold tool word-count\n  \
    cofferdam project scaffold prompt review --dir ./my-tools")]
pub(super) struct ScaffoldArguments {
    #[arg(value_enum)]
    kind: Kind,
    /// Letters, digits, `-` and `_`
    #[arg(value_name = "NAME")]
    name: String,
    /// The project's directory
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Tool,
    Prompt,
    Resource,
    /// Suggestions for the arguments of a prompt
    Completion,
    /// A page for clients that show pages; if there is a tool of this name, a page of the tool
    Ui,
    /// A script that calls a tool and checks its result
    Test,
}

/// A file of a template: its path, in which `NAME` stands for the entry, and its text.
struct TemplateFile {
    path: &'static str,
    text: &'static str,
    is_program: bool,
}

const fn program(path: &'static str, text: &'static str) -> TemplateFile {
    TemplateFile { path, text, is_program: true }
}

const fn plain(path: &'static str, text: &'static str) -> TemplateFile {
    TemplateFile { path, text, is_program: false }
}

const SERVER: TemplateFile =
    plain("server.d/server.meta.json", include_str!("template/server.meta.json"));
const TOOL: [TemplateFile; 2] = [
    program("tools/NAME/tool.sh", include_str!("template/tool.sh")),
    plain("tools/NAME/tool.meta.json", include_str!("template/tool.meta.json")),
];
const PROMPT: [TemplateFile; 2] = [
    plain("prompts/NAME.txt", include_str!("template/prompt.txt")),
    plain("prompts/NAME.meta.json", include_str!("template/prompt.meta.json")),
];
const RESOURCE: [TemplateFile; 2] = [
    plain("resources/NAME.txt", include_str!("template/resource.txt")),
    plain("resources/NAME.meta.json", include_str!("template/resource.meta.json")),
];
const COMPLETION: [TemplateFile; 1] =
    [program("prompts/NAME.completion.sh", include_str!("template/completion.sh"))];
const UI: [TemplateFile; 2] = [
    plain("ui/NAME/index.html", include_str!("template/ui.html")),
    plain("ui/NAME/ui.meta.json", include_str!("template/ui.meta.json")),
];
const TOOL_UI: [TemplateFile; 2] = [
    plain("tools/NAME/ui/index.html", include_str!("template/ui.html")),
    plain("tools/NAME/ui/ui.meta.json", include_str!("template/ui.meta.json")),
];
const TEST: [TemplateFile; 1] = [program("test/NAME.sh", include_str!("template/test.sh"))];

/// Makes a project with one tool.
pub(super) fn new(typed: &NewArguments) -> Result<(), CliError> {
    let NewArguments { directory } = typed;
    let shown = directory.display();
    let failed = |error: std::io::Error| {
        CliError::new(format!("project new: `{shown}`: {}", in_words(&error)))
    };
    make_directory(directory).map_err(failed)?;
    if std::fs::read_dir(directory).map_err(failed)?.next().is_some() {
        return Err(CliError::new(format!("project new: `{shown}` is not empty"))
            .with_hint("cofferdam project scaffold tool NAME adds to a project"));
    }
    let name = directory.canonicalize().map_err(failed)?;
    let name = name.file_name().map(|name| name.to_string_lossy().into_owned());
    let name: String = name.unwrap_or_default().chars().filter(is_usual).take(MAX_NAME).collect();
    let name = if name.is_empty() { "project" } else { &name };
    let layout = super::layout(directory)?;
    write(directory, &layout, name, &[SERVER])?;
    let made = write(directory, &layout, "hello", &TOOL)?;
    let word = ShellKind::Sh.quoted(&shown.to_string());
    print_out(&format!(
        "made {shown}: {}\nnext:\n  cofferdam project run-tool hello --dir {word} --args '{{\"name\": \"Ada\"}}'\n  \
         cofferdam serve --project {word}\n",
        made.join(", ")
    ))
}

/// Adds an entry to a project.
pub(super) fn scaffold(typed: &ScaffoldArguments) -> Result<(), CliError> {
    let ScaffoldArguments { kind, name, dir } = typed;
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    if !starts_well || name.len() > MAX_NAME || !name.chars().all(|letter| is_usual(&letter)) {
        let message = format!("project scaffold: `{}` is not a name", name.escape_default());
        return Err(
            CliError::new(message).with_hint("use letters, digits, `-` and `_`, at most 64")
        );
    }
    let layout = super::layout(dir)?;
    let ProjectLayout { tools, resources, prompts, server, .. } = &layout;
    if ![server, tools, prompts, resources].iter().any(|part| dir.join(part).is_dir()) {
        let message = format!("project scaffold: `{}` is no project", dir.display());
        return Err(
            CliError::new(message).with_hint("name one with --dir, or: cofferdam project new")
        );
    }
    let files: &[TemplateFile] = match kind {
        Kind::Tool => &TOOL,
        Kind::Prompt => &PROMPT,
        Kind::Resource => &RESOURCE,
        Kind::Completion => &COMPLETION,
        Kind::Ui if dir.join(tools).join(name).is_dir() => &TOOL_UI,
        Kind::Ui => &UI,
        Kind::Test => &TEST,
    };
    let made = write(dir, &layout, name, files)?;
    print_out(&format!("made {}\n", made.join(", ")))
}

fn is_usual(letter: &char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_')
}

fn make_directory(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Writes the files of an entry and returns their paths. Existing files are not changed.
fn write(
    project: &Path,
    layout: &ProjectLayout,
    name: &str,
    files: &[TemplateFile],
) -> Result<Vec<String>, CliError> {
    let place = |file: &TemplateFile| layout.placed(&file.path.replace("NAME", name));
    let paths: Vec<String> = files.iter().map(place).collect();
    if let Some(known) = paths.iter().find(|path| project.join(path).symlink_metadata().is_ok()) {
        return Err(CliError::new(format!("project: `{known}` is there already")));
    }
    // A link in a project of another author may lead to any directory.
    let folders = paths.iter().flat_map(|path| Path::new(path).ancestors());
    let is_link = |path: &&Path| {
        !path.as_os_str().is_empty()
            && project.join(path).symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
    };
    if let Some(link) = folders.into_iter().find(is_link) {
        let link = link.display();
        return Err(CliError::new(format!(
            "project: `{link}` is a symbolic link, and links are not followed"
        )));
    }
    for (file, path) in files.iter().zip(&paths) {
        let target = project.join(path);
        let mode = if file.is_program { 0o755 } else { 0o644 };
        let written = target.parent().map_or(Ok(()), make_directory).and_then(|()| {
            let mut options = OpenOptions::new();
            let mut created = options.write(true).create_new(true).mode(mode).open(&target)?;
            created.write_all(file.text.replace("NAME", name).as_bytes())
        });
        written
            .map_err(|error| CliError::new(format!("project: `{path}`: {}", in_words(&error))))?;
    }
    Ok(paths)
}
