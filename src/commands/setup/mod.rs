//! `cofferdam setup`: puts the server into a client's configuration, after it has shown the change and asked.

mod clients;
mod edit;
mod place;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};

use clap::Args;
use similar::algorithms::{Capture, Compact, Replace, myers};

use self::clients::{Client, ClientFacts, ConfigFile};
use self::place::{HeldPlace, HeldText};
use super::error::{CliError, print_out};
use super::format::plain;
use super::grants::repository::RepositoryElsewhere;
use super::serve::arguments;
use super::terminal::colour::{Colour, Tone};
use model::accounts;
use model::outcome::in_words;

/// Unchanged lines that are shown around a change.
const CONTEXT_LINES: usize = 2;

/// As typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam setup claude-code\n  \
    cofferdam setup codex --workspace ~/project --print\n  \
    cofferdam setup cursor --cow\n\n\
    The change is shown and written only after a yes; what else is in the file stays as it is.")]
pub struct SetupArguments {
    /// The client
    #[arg(value_name = "CLIENT", value_enum)]
    pub client: Client,
    /// The project's directory, which cells have as /workspace; without it, the one you are in
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub workspace: PathBuf,
    /// Keep changes apart from the directory until you apply them with `cofferdam review`; without it, a terminal asks
    #[arg(long)]
    pub cow: bool,
    /// Show the change and write nothing
    #[arg(long)]
    pub print: bool,
    /// Write the change without a question
    #[arg(long, conflicts_with = "print")]
    pub yes: bool,
}

/// A change of one file.
struct Change {
    client: &'static ClientFacts,
    /// The file itself: links are followed.
    path: PathBuf,
    place: HeldPlace,
    /// The text that is there, none if there is no file.
    old: Option<HeldText>,
    new: String,
    /// Members of the entry that are there already and are not cofferdam's, each with its value.
    others: Vec<(String, String)>,
}

/// Runs the command: 0 if the file has the entry, or was only to be shown.
pub fn main(typed: &SetupArguments) -> Result<u8, CliError> {
    let home = accounts::home();
    let project = project(&typed.workspace, home.as_deref())?;
    for remark in RepositoryElsewhere::remarks_on(Path::new(&project)) {
        print_out(&format!("Note: {remark}\n\n"))?;
    }
    let writes = Writes::choose(typed)?;
    let change = Change::plan(typed.client.facts(), &project, writes, home.as_deref())?;
    if change.old.as_ref().is_some_and(|old| old.text == change.new) {
        print_out(&format!(
            "{} has it already: {}\n",
            change.client.title,
            plain(&change.path.display().to_string())
        ))?;
        print_out(&change.kept())?;
        return Ok(0);
    }
    print_out(&change.shown(Colour::of_output()))?;
    print_out(&change.kept())?;
    if !typed.print {
        change.check_kept(typed.yes)?;
        if !typed.yes && !confirmed()? {
            return Err(CliError::new("setup: nothing was written"));
        }
        let client = change.client;
        change.write()?;
        print_out("Written.\n\n")?;
        print_out(&next(client, writes))?;
        return Ok(0);
    }
    print_out(&next(change.client, writes))?;
    Ok(0)
}

/// Returns the directory of the project, if `serve` would take it.
fn project(typed: &Path, home: Option<&Path>) -> Result<String, CliError> {
    let bad = |why: &str| {
        CliError::new(format!("--workspace: `{}` {why}", plain(&typed.display().to_string())))
    };
    let path = typed
        .canonicalize()
        .map_err(|error| bad(&format!("cannot be used: {}", in_words(&error))))?;
    if !path.is_dir() {
        return Err(bad("is no directory"));
    }
    let path = path.to_str().ok_or_else(|| bad("has a name that is no UTF-8"))?;
    if let Some(access) = [":ro", ":cow"].iter().find(|access| path.ends_with(**access)) {
        return Err(bad(&format!("ends with {access}, which would be taken for an access")));
    }
    arguments::check_workspace(
        path.as_ref(),
        home.and_then(|home| home.canonicalize().ok()).as_deref(),
    )?;
    Ok(path.to_owned())
}

impl Change {
    fn plan(
        client: &'static ClientFacts,
        project: &str,
        writes: Writes,
        home: Option<&Path>,
    ) -> Result<Self, CliError> {
        let user = std::env::var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty());
        let user = user.map(PathBuf::from).or_else(|| home.map(|home| home.join(".config")));
        let path = client.path(Path::new(project), user.as_deref());
        let path = path.ok_or_else(|| CliError::new("setup: no home directory is known"))?;
        let path = followed(&path, client.file, project)?;
        let failed = |why: &str| {
            CliError::new(format!("setup: {}: {why}", plain(&path.display().to_string())))
        };
        let unread =
            |error: std::io::Error| failed(&format!("cannot be read: {}", in_words(&error)));
        let place = HeldPlace::new(&path).map_err(unread)?;
        let old = place.read().map_err(unread)?;
        let before = old.as_ref().map_or("", |old| old.text.as_str());
        let command = std::env::current_exe().map_err(|error| {
            failed(&format!("cofferdam's own path is unknown: {}", in_words(&error)))
        })?;
        let command = command.to_str().ok_or_else(|| failed("cofferdam's own path is no UTF-8"))?;
        let entry = client.entry(command, &format!("{project}{}", writes.access()));
        let new = edit::edited(client, before, &entry).map_err(|why| {
            failed(&why).with_hint("nothing was changed; mend the file, or add the entry by hand")
        })?;
        let others = edit::others(client, &new, &entry);
        Ok(Self { client, path, place, old, new, others })
    }

    /// Formats the members that stay: one of them, a variable, can choose what the client runs.
    fn kept(&self) -> String {
        if self.others.is_empty() {
            return String::new();
        }
        let one = |(name, value): &(String, String)| {
            format!("  {}\n", plain(&format!("{name} = {value}")))
        };
        let all: String = self.others.iter().map(one).collect();
        format!(
            "The entry has these besides, which stay. Keep none that you did not write yourself:\n\n{all}\n"
        )
    }

    /// Checks that members which setup did not write are kept only after a look: the author of the project may have written
    /// them.
    fn check_kept(&self, unasked: bool) -> Result<(), CliError> {
        let is_of_project = matches!(self.client.file, ConfigFile::OfProject(_));
        if !unasked || !is_of_project || self.others.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = self.others.iter().map(|(name, _)| plain(name)).collect();
        let message = format!(
            "setup: the entry in {} has {}, which setup did not write",
            plain(&self.path.display().to_string()),
            names.join(", ")
        );
        Err(CliError::new(message)
            .with_hint("nothing was written; remove them, or leave out --yes and answer"))
    }

    /// Formats the change. The file may hold any bytes, so what a terminal acts on is escaped.
    fn shown(&self, colour: Colour) -> String {
        let verb = if self.old.is_some() { "Change of" } else { "New file" };
        let mut text = format!("{verb} {}:\n\n", plain(&self.path.display().to_string()));
        let old = self.old.as_ref().map_or("", |old| old.text.as_str());
        let before: Vec<&str> = old.split_inclusive('\n').collect();
        let after: Vec<&str> = self.new.split_inclusive('\n').collect();
        let before = before.as_slice();
        let after = after.as_slice();
        let mut changes = Compact::new(Replace::new(Capture::new()), before, after);
        // The function that takes an algorithm's name brings the code of all of them, 0.5 MB.
        let Ok(()) = myers::diff(&mut changes, before, 0..before.len(), after, 0..after.len());
        let groups = changes.into_inner().into_inner().into_grouped_ops(CONTEXT_LINES);
        for change in groups.iter().flatten().flat_map(|group| group.iter_changes(before, after)) {
            let line = plain(change.value().trim_end_matches(['\r', '\n']));
            let line = format!("  {}{line}", change.tag());
            let line = match change.tag() {
                similar::ChangeTag::Equal => line,
                similar::ChangeTag::Insert => colour.paint(Tone::Good, &line),
                similar::ChangeTag::Delete => colour.paint(Tone::Bad, &line),
            };
            text.push_str(&line);
            text.push('\n');
        }
        text.push('\n');
        text
    }

    /// Writes the new text in place of the old one, whole or not at all.
    fn write(self) -> Result<(), CliError> {
        let Self { path, place, old, new, .. } = self;
        let failed = |error: std::io::Error| {
            let path = plain(&path.display().to_string());
            CliError::new(format!("setup: {path} cannot be written: {}", in_words(&error)))
        };
        let now = place.read().map_err(failed)?;
        if now.map(|now| now.text) != old.as_ref().map(|old| old.text.clone()) {
            return Err(CliError::new("setup: the file was changed meanwhile")
                .with_hint("nothing was written; run the command again"));
        }
        place.write(&new, old.as_ref()).map_err(failed)
    }
}

/// How changes of cells reach the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writes {
    Direct,
    /// Kept apart in a layer.
    Apart,
}

/// The question of [`Writes::choose`]: one line for each way.
const WRITES_QUESTION: &str = "How do the agent's changes reach the project?\n
  1  direct: at once, as an editor writes them; names that your programs obey cannot be made
  2  copy-on-write: when you apply them with `cofferdam review`; the agent can make any name

Which? [1] ";

impl Writes {
    /// Takes the option, or asks at a terminal; without one, and with `--yes` or `--print`, changes are direct.
    fn choose(typed: &SetupArguments) -> Result<Self, CliError> {
        if typed.cow {
            return Ok(Self::Apart);
        }
        if typed.yes || typed.print || !std::io::stdin().is_terminal() {
            return Ok(Self::Direct);
        }
        loop {
            if let Some(writes) = Self::from_answer(&answer(WRITES_QUESTION)?) {
                print_out("\n")?;
                return Ok(writes);
            }
        }
    }

    fn from_answer(answer: &str) -> Option<Self> {
        match answer.trim() {
            "" | "1" | "direct" => Some(Self::Direct),
            "2" | "cow" | "copy-on-write" => Some(Self::Apart),
            _ => None,
        }
    }

    /// Returns the end of the argument of `--workspace`.
    fn access(self) -> &'static str {
        match self {
            Self::Direct => "",
            Self::Apart => ":cow",
        }
    }
}

/// Lists further steps for the user.
fn next(client: &ClientFacts, writes: Writes) -> String {
    let mut text = String::new();
    if writes == Writes::Apart {
        text.push_str(
            "cofferdam review shows what the agent has changed, and applies or discards it.\n",
        );
    }
    if let ConfigFile::OfProject(_) = client.file {
        text.push_str("The file names paths of this machine: keep it out of version control.\n");
    }
    for line in client.next {
        let written = writeln!(text, "{line}");
        debug_assert!(written.is_ok(), "a String takes everything");
    }
    text.push_str("cofferdam doctor shows whether this machine can hold the cells.\n");
    text
}

/// Follows the links of a file that need not exist yet. A file of a project must be in the project: its author could
/// have made a link to any file of the user.
fn followed(path: &Path, file: ConfigFile, project: &str) -> Result<PathBuf, CliError> {
    let shown = plain(&path.display().to_string());
    let real = real(path).map_err(|error| {
        CliError::new(format!("setup: {shown} cannot be used: {}", in_words(&error)))
    })?;
    match file {
        ConfigFile::OfProject(_) if !real.starts_with(project) => {
            let real = plain(&real.display().to_string());
            Err(CliError::new(format!(
                "setup: {shown} is a link to {real}, outside of the project"
            ))
            .with_hint(
                "nothing was written; remove the link, or write the entry there by hand (--print)",
            ))
        }
        ConfigFile::OfProject(_) | ConfigFile::OfUser(_) => Ok(real),
    }
}

/// Returns the path without links, of which the last parts need not exist.
fn real(path: &Path) -> std::io::Result<PathBuf> {
    if path.symlink_metadata().is_ok() {
        // A link to nothing is an error here.
        return path.canonicalize();
    }
    let name = path.file_name().unwrap_or(OsStr::new(""));
    match path.parent() {
        Some(parent) => Ok(real(parent)?.join(name)),
        None => Ok(path.to_owned()),
    }
}

/// Asks the person at the terminal.
fn confirmed() -> Result<bool, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::new("setup: no answer can be read: standard input is no terminal")
            .with_hint("add --yes to write the change, or --print only to show it"));
    }
    Ok(matches!(answer("Write it? [y/N] ")?.trim(), "y" | "Y" | "yes"))
}

/// Asks a question and reads a line; it is empty at the end of the input.
fn answer(question: &str) -> Result<String, CliError> {
    print_out(question)?;
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| CliError::new(format!("setup: {}", in_words(&error))))?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_is_the_way_of_a_setup_without_a_question() {
        for (answer, writes) in [
            ("", Some(Writes::Direct)),
            ("\n", Some(Writes::Direct)),
            ("1\n", Some(Writes::Direct)),
            ("2\n", Some(Writes::Apart)),
            ("cow\n", Some(Writes::Apart)),
            ("y\n", None),
        ] {
            assert_eq!(Writes::from_answer(answer), writes, "{answer:?}");
        }
    }
}
