//! `cofferdam policy new-tool`: a tool of the operator's for a program, as a policy file to review.
//!
//! The program is asked for its help in a cell, as any other call. The file grants nothing yet: the
//! reason of the tool is blank, so that no loader accepts the text until a person has completed it.

use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::help_text::{self, HelpFlag};
use crate::commands::error::{CliError, print_out};
use crate::commands::format::plain;
use crate::commands::{launch, run, settings, start};
use config::document::Document;
use config::policy::Policy;
use config::profile::Profiles;
use model::call::{Argv, Asked, Call, Env, Stdin};
use model::job::{ProfileName, Workspace};
use model::outcome::{Failure, Outcome};
use service::link::Link;
use supervisor::ScopeWish;

/// Time in which a program prints its help.
const TIME: Duration = Duration::from_secs(10);
/// Maximum bytes of a help text.
const BYTES: u64 = 256 << 10;
/// Words that make most programs print their help, in the order in which they are tried.
const USUAL: [&str; 2] = ["--help", "-h"];

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam policy new-tool wc > wc.toml\n  \
    cofferdam policy new-tool git log > git-log.toml\n  \
    cofferdam policy new-tool sort --ask '--help'\n\n\
    The program runs in a cell, without a network and without a file of yours. Flags that may write\n\
    files, run commands or reach something, that take paths or free text, or that its help does not\n\
    explain, are comments, each with its reason. The `why` of the tool is blank, and a file with a\n\
    blank `why` is refused: read the flags, then write it.\n\n\
    Exit codes: 0 a file was printed; 125 no flags were found; 127 the program is not in the cell")]
pub struct NewToolArguments {
    /// The program, and words that every call of the tool begins with
    #[arg(value_name = "PROGRAM", required = true)]
    pub words: Vec<String>,
    /// Words that make the program print its help [default: --help, else -h]
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub ask: Option<String>,
    /// Profile of the cell, and of the calls of the tool
    #[arg(long, value_name = "NAME", default_value = "bash")]
    pub profile: String,
}

/// Runs the command.
pub(super) fn main(typed: &NewToolArguments, config: Option<&Path>) -> Result<u8, CliError> {
    let name = ProfileName::new(&typed.profile).ok_or_else(|| {
        CliError::new(format!("--profile: no profile `{}`", plain(&typed.profile)))
    })?;
    let mut settings = settings::load(config)?.scoped(ScopeWish::Never);
    let profile = settings.profile(&name)?.clone();
    settings.add_profiles(&[name]);
    let profiles = settings.loaded.profiles.clone();
    let asked: Vec<Vec<&str>> = match &typed.ask {
        Some(words) => vec![words.split_whitespace().collect()],
        None => USUAL.map(|word| vec![word]).to_vec(),
    };
    let calls = asked.iter().map(|words| call(&typed.words, words));
    let calls = calls.collect::<Result<Vec<_>, CliError>>()?;
    let socket = launch::unrecorded(settings)?;
    start::conducted(socket, async |link| {
        let mut flags = Vec::new();
        for call in calls {
            let grant = Policy::operator(call, &profile, Workspace::Fresh);
            let text = help(&link, grant).await?;
            flags = help_text::flags(&text);
            if !flags.is_empty() {
                break;
            }
        }
        if flags.is_empty() {
            let program = plain(&typed.words.join(" "));
            let error = CliError::new(format!("`{program}` prints no flags that can be read"));
            return Err(error.with_hint("name the words that make it print them with --ask"));
        }
        let usual =
            ToolFile { words: &typed.words, prefix: "", profile: &typed.profile, flags: &flags };
        let file = if usual.check(&profiles).is_ok() {
            usual
        } else {
            // A shipped tool has the usual name.
            ToolFile { prefix: "my_", ..usual }
        };
        file.check(&profiles)?;
        print_out(&file.text(""))?;
        let left = flags.iter().filter(|flag| flag.left_out.is_some()).count();
        eprintln!(
            "cofferdam: {} flags, and {left} more as comments; complete `why`, and put the file under \
             policies/ of the configuration directory",
            flags.len() - left
        );
        Ok(0)
    })
}

fn call(words: &[String], asked: &[&str]) -> Result<Call, CliError> {
    let asked = asked.iter().map(|word| (*word).to_owned());
    let argv = Argv::new(words.iter().cloned().chain(asked).collect());
    Ok(Call {
        tool: "new-tool".into(),
        argv: argv.map_err(|error| CliError::new(error.to_string()))?,
        script: None,
        stdin: Stdin::Empty,
        env: Env::default(),
        cwd: None,
        asked: Asked { wall: Some(TIME), output: Some(BYTES), ..Asked::default() },
        profile: None,
        only: None,
        correlation: None,
    })
}

/// Runs the program and returns all that it printed.
async fn help(link: &Link, grant: config::policy::Grant) -> Result<String, CliError> {
    let running = link.start(grant, None, None).await?;
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let followed =
        run::follow(running, tokio::io::empty(), Some(BYTES), &mut stdout, &mut stderr).await?;
    match followed.0.outcome {
        Outcome::Failed(failure @ Failure::NotFound { .. }) => Err(CliError::from(failure)),
        Outcome::Failed(failure) => Err(failure.into()),
        Outcome::Exited { .. }
        | Outcome::Signaled { .. }
        | Outcome::Timeout
        | Outcome::Limit(_)
        | Outcome::Cancelled => {
            stdout.push(b'\n');
            stdout.extend(stderr);
            Ok(String::from_utf8_lossy(&stdout).into_owned())
        }
    }
}

/// Policy file for one tool.
struct ToolFile<'f> {
    /// The program, and the words that every call begins with.
    words: &'f [String],
    /// What the tool's name has between `cli_` and the words, where they do not give one that can be used.
    prefix: &'static str,
    profile: &'f str,
    flags: &'f [HelpFlag],
}

impl ToolFile<'_> {
    /// Checks that the file is accepted once its reason is written.
    fn check(&self, profiles: &Profiles) -> Result<(), CliError> {
        let document = Document::new("new-tool", &self.text("complete"));
        match Policy::parse(&[document], profiles) {
            Ok(_) => Ok(()),
            Err(mistake) => Err(CliError::new(format!("no file can be made: {mistake}"))),
        }
    }

    /// Returns the file with this reason of the tool.
    fn text(&self, why: &str) -> String {
        let shown = plain(&self.words.join(" "));
        let mut text = format!(
            "# A tool for `{shown}`, made from its own help. Read every line before you use it: remove the\n\
             # flags that callers do not need, judge those in comments, and write the `why` of the tool.\n\
             schema = 1\n\
             extends = \"shipped\"\n\n\
             [[tool]]\n"
        );
        let mut words = self.words.iter();
        let program = words.next().map_or("", String::as_str);
        let always: Vec<String> = words.map(|word| quoted(word)).collect();
        if !always.is_empty() || !self.prefix.is_empty() {
            let name = name(self.prefix, self.words);
            text.push_str(&format!("name = {}\n", quoted(&name)));
        }
        text.push_str(&format!("command = {}\n", quoted(program)));
        if !always.is_empty() {
            text.push_str(&format!("always = [{}]\n", always.join(", ")));
        }
        if self.profile != "bash" {
            text.push_str(&format!("profile = {}\n", quoted(self.profile)));
        }
        let of = "# what callers need it for; a blank reason is refused";
        text.push_str(&format!("why = {}  {of}\n\n[tool.flags]\n", quoted(why)));
        let (taken, left): (Vec<_>, Vec<_>) =
            self.flags.iter().partition(|flag| flag.left_out.is_none());
        for flag in taken {
            text.push_str(&line(flag));
        }
        if !left.is_empty() {
            text.push_str(
                "\n# Not taken. To take one, choose the form of its value and remove the `# `.\n",
            );
        }
        for flag in left {
            let reason = flag.left_out.unwrap_or_default();
            text.push_str(&format!("# {}  # {reason}\n", line(flag).trim_end()));
        }
        text
    }
}

/// Returns a flag as a line of TOML.
fn line(flag: &HelpFlag) -> String {
    let why = if flag.about.is_empty() { "not explained" } else { &flag.about };
    format!("{} = {}\n", quoted(&flag.form), quoted(why))
}

/// Returns the name of a tool that has to be written: `cli_git_log` or `cli_my_curl`.
fn name(prefix: &str, words: &[String]) -> String {
    let letters = words.join("_").to_lowercase();
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("cli_{prefix}{}", letters.chars().map(letter).collect::<String>())
}

/// Quotes a text as a basic string of TOML, which JSON's form is for text without DEL.
fn quoted(text: &str) -> String {
    let shown: String = text.chars().filter(|c| *c != '\u{7f}').collect();
    serde_json::Value::from(shown).to_string()
}
