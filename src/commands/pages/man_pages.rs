//! Manual pages: the sections that clap makes, then further ones of man-pages(7).

use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Exit codes of a command whose help names none.
const EXIT_STATUS: &str =
    "0 done; 125 refused or failed by cofferdam, with the reason on standard error";

/// Commands that read no configuration.
const WITHOUT_CONFIGURATION: &[&str] = &["fuzz", "selftest", "setup", "completions", "man"];

/// Files of the configuration, in whichever directory is in force.
const CONFIGURATION: &[(&str, &str)] = &[
    (
        "$COFFERDAM_CONFIG, $XDG_CONFIG_HOME/cofferdam, /etc/cofferdam",
        "The directory of the configuration: the first that exists is used, and no other. --config DIR overrides them.",
    ),
    (
        "cofferdam.toml",
        "Settings of the server. Absent ones have their default: cofferdam config show lists them.",
    ),
    (
        "policies/*.toml",
        "Rules that say which calls are allowed. If there are rules, the shipped policy holds only if a file has extends = \"shipped\".",
    ),
    ("sandbox-profiles/*.toml", "Your profiles, in addition to the shipped ones."),
];

/// Variables that every command reads.
const ALWAYS: &[(&str, &str)] = &[
    ("NO_COLOR", "Write without colour."),
    (
        "COFFERDAM_LOG",
        "What is logged on standard error: error, warn, info, debug or trace. RUST_LOG where it is unset.",
    ),
    ("COFFERDAM_LOG_FORMAT", "text, or json for one object a line."),
];

/// Variables that the commands with a configuration read.
const OF_CONFIGURATION: &[(&str, &str)] = &[
    ("COFFERDAM_CONFIG", "Directory of the configuration, an absolute path."),
    ("XDG_CONFIG_HOME", "Directory in which that of cofferdam is looked for."),
];

/// Further variables that `serve` reads.
const OF_SERVE: &[(&str, &str)] = &[
    ("BASH_MCP_DEFAULT_TIMEOUT", "As --default-timeout."),
    ("BASH_MCP_MAX_TIMEOUT", "As --max-timeout."),
    ("BASH_MCP_MAX_HISTORY", "As --history-size."),
    ("BASH_MCP_WORKING_DIR", "As --working-dir."),
    (
        "MCP_CONFIG_FILE",
        "File of YAML with settings of command-line tools, as an absolute path; docs/command-tools.md lists its keys, \
         and the variables that override them.",
    ),
    ("LOG_LEVEL", "DEBUG, INFO, WARNING or ERROR, where COFFERDAM_LOG and RUST_LOG are not set."),
];

/// Variables that `run` and `serve` read to find tool chains.
const OF_TOOLCHAINS: &[(&str, &str)] = &[
    ("HOME", "Directory in which tool chains are looked for; ~ is replaced by it."),
    ("PATH", "Its directories in granted tool chains come first in the PATH of the cell."),
];

/// Writes the page of a command.
///
/// # Errors
/// An error of writing.
pub(crate) fn write(command: &Command, to: &mut dyn io::Write) -> io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(to)?;
    man.render_name_section(to)?;
    man.render_synopsis_section(to)?;
    man.render_description_section(to)?;
    man.render_options_section(to)?;
    if command.has_subcommands() {
        man.render_subcommands_section(to)?;
    }
    let mut page = Roff::new();
    let help = HelpText::parse(command);
    section(&mut page, "EXIT STATUS", &help.exit);
    table(&mut page, "FILES", &files(command));
    table(&mut page, "ENVIRONMENT", &variables(command));
    section(&mut page, "NOTES", &help.rest);
    examples(&mut page, &help.examples);
    page.to_writer(to)
}

/// Writes a page for a command and for each command below it into a directory.
///
/// # Errors
/// An error of writing.
pub(crate) fn write_all(command: &Command, directory: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_all(below, directory)?;
    }
    let name = Man::new(command.clone()).get_filename();
    let mut page = Vec::new();
    write(command, &mut page)?;
    std::fs::write(directory.join(name), page)
}

/// The text after the help of a command, by section.
#[derive(Debug, Default, PartialEq, Eq)]
struct HelpText {
    examples: Vec<String>,
    /// Paragraphs.
    exit: Vec<String>,
    rest: Vec<String>,
}

impl HelpText {
    fn parse(command: &Command) -> Self {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let mut help = Self::default();
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
            let (head, body) = paragraph.split_once(':').unwrap_or(("", paragraph));
            match head {
                "Example" | "Examples" => help.examples.extend(body.lines().filter_map(nonempty)),
                "Exit codes" => help.exit.push(joined(body)),
                _ => help.rest.push(joined(paragraph)),
            }
        }
        if help.exit.is_empty() {
            help.exit.push(EXIT_STATUS.to_owned());
        }
        help
    }
}

fn nonempty(line: &str) -> Option<String> {
    Some(line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// Returns a paragraph as one line.
fn joined(paragraph: &str) -> String {
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns true if a command reads a configuration.
fn has_configuration(command: &Command) -> bool {
    !WITHOUT_CONFIGURATION.contains(&command.get_name())
}

fn files(command: &Command) -> Vec<(&'static str, &'static str)> {
    if has_configuration(command) { CONFIGURATION.to_vec() } else { Vec::new() }
}

fn variables(command: &Command) -> Vec<(&'static str, &'static str)> {
    let tables: &[&[(&str, &str)]] = match command.get_name() {
        "serve" => &[OF_CONFIGURATION, OF_SERVE, OF_TOOLCHAINS],
        "run" => &[OF_CONFIGURATION, OF_TOOLCHAINS],
        _ if has_configuration(command) => &[OF_CONFIGURATION],
        _ => &[],
    };
    tables.iter().copied().chain([ALWAYS]).flatten().copied().collect()
}

fn section(page: &mut Roff, title: &str, paragraphs: &[String]) {
    if paragraphs.is_empty() {
        return;
    }
    page.control("SH", [title]);
    for paragraph in paragraphs {
        page.control("PP", []);
        page.text([roman(paragraph.as_str())]);
    }
}

fn table(page: &mut Roff, title: &str, rows: &[(&str, &str)]) {
    if rows.is_empty() {
        return;
    }
    page.control("SH", [title]);
    for (name, meaning) in rows {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text([roman(*meaning)]);
    }
}

fn examples(page: &mut Roff, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    page.control("SH", ["EXAMPLES"]);
    page.control("nf", []);
    for line in lines {
        page.text([roman(line.as_str())]);
    }
    page.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Cli;
    use crate::commands::lazy_arguments::full_command;

    #[test]
    fn every_command_has_a_page_with_its_sections() -> Result<(), io::Error> {
        let directory = tempfile::tempdir()?;
        let mut all = full_command::<Cli>().disable_help_subcommand(true);
        all.build();
        write_all(&all, directory.path())?;
        let page = |name: &str| std::fs::read_to_string(directory.path().join(name));
        let sections = |page: &str| -> Vec<String> {
            let heads = page.lines().filter_map(|line| line.strip_prefix(".SH "));
            heads.map(|head| head.trim_matches('"').to_owned()).collect()
        };
        let head = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"];
        let tail = ["EXIT STATUS", "FILES", "ENVIRONMENT", "EXAMPLES"];
        assert_eq!(sections(&page("cofferdam-run.1")?), [head, tail].concat());
        for command in all.get_subcommands() {
            let page = page(&format!("cofferdam-{}.1", command.get_name()))?;
            let titles = sections(&page);
            for section in ["EXIT STATUS", "ENVIRONMENT"] {
                let name = command.get_name();
                assert!(titles.iter().any(|title| title == section), "{name}: {titles:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_help_text_is_split_at_its_headings() {
        let text = "Examples:\n  a b\n  c\n\nExit codes: 0 well;\n1 not\n\nA remark\nof two lines: no head";
        let help = HelpText::parse(&Command::new("x").after_help(text));
        let lines = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
        let expected = HelpText {
            examples: lines(&["a b", "c"]),
            exit: lines(&["0 well; 1 not"]),
            rest: lines(&["A remark of two lines: no head"]),
        };
        assert_eq!(help, expected);
    }
}
