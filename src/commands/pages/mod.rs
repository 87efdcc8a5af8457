//! `cofferdam completions` and `cofferdam man`: the command line described for shells and man(1).

mod man_pages;

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::commands::Cli;
use crate::commands::error::{CliError, print_out};
use crate::commands::lazy_arguments::full_command;
use model::outcome::in_words;

/// Arguments as typed.
#[derive(Debug, Clone, Copy, Args)]
#[command(after_help = "Example:\n  \
    cofferdam completions bash > ~/.local/share/bash-completion/completions/cofferdam")]
pub struct CompletionsArguments {
    /// The shell to complete in
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Arguments as typed.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
    cofferdam man | man -l -\n  \
    cofferdam man --out ~/.local/share/man/man1")]
pub struct ManArguments {
    /// Write a page for each command into DIR, which exists
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Prints the completion script for one shell.
pub fn completions(typed: CompletionsArguments) -> Result<u8, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(typed.shell, &mut full_command::<Cli>(), "cofferdam", &mut script);
    print_out(&String::from_utf8_lossy(&script))?;
    Ok(0)
}

/// Prints the manual page of cofferdam itself, or writes those of all commands.
pub fn man(typed: &ManArguments) -> Result<u8, CliError> {
    let mut command = full_command::<Cli>().disable_help_subcommand(true);
    command.build();
    let Some(directory) = &typed.out else {
        let mut page = Vec::new();
        man_pages::write(&command, &mut page)
            .map_err(|error| CliError::new(format!("man: {}", in_words(&error))))?;
        print_out(&String::from_utf8_lossy(&page))?;
        return Ok(0);
    };
    man_pages::write_all(&command, directory).map_err(|error| {
        CliError::new(format!("man: cannot write in {}: {}", directory.display(), in_words(&error)))
    })?;
    Ok(0)
}
