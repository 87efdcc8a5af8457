//! The command line: its arguments, and the order of steps by which a process becomes a front end.
//!
//! Each command has a file or a folder, with a part that runs while the process is small and has one thread
//! (arguments, configuration, settings of the supervisor) and a part that runs on the runtime with
//! the link to the supervisor. [`start`] has the steps between them, [`settings`] the settings of both.

pub mod audit;
pub mod calc;
pub mod check_files;
pub mod config;
pub mod confine;
pub mod doctor;
pub mod error;
pub mod exit;
mod format;
pub mod fuzz;
pub mod grants;
pub mod launch;
mod layer_reader;
mod layers;
mod lazy_arguments;
pub mod learn;
pub mod logging;
pub mod pages;
pub mod policy;
pub mod profile;
pub mod project;
pub mod review;
pub mod run;
pub mod selftest;
pub mod serve;
pub mod settings;
pub mod setup;
pub mod start;
pub mod streams;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use lazy_arguments::LazyArguments;
use terminal::colour::Colour;

use serve::handed_socket;

/// Gives an agent a shell without giving it the machine.
#[derive(Debug, Parser)]
#[command(
    name = "cofferdam",
    version,
    about,
    long_about = "Gives an agent a shell without giving it the machine: every command runs in a \
        cell that the kernel's own mechanisms build for that one call.",
    after_help = "Examples:\n  cofferdam doctor\n  cofferdam run -- ls -la /\n  \
        cofferdam serve --workspace ~/project\n\n\
        Configuration is read from --config DIR, else $COFFERDAM_CONFIG, else\n\
        $XDG_CONFIG_HOME/cofferdam, else /etc/cofferdam, else built in: the first found, whole."
)]
pub struct Cli {
    /// Read configuration from DIR and nowhere else
    #[arg(long, global = true, value_name = "DIR")]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

/// Command to run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program in a fresh cell
    Run(LazyArguments<run::arguments::RunArguments>),
    /// Show the changes that cells made with --cow, and apply or discard them
    Review(LazyArguments<review::ReviewArguments>),
    /// Serve MCP on standard input and output
    Serve(Box<LazyArguments<serve::arguments::ServeArguments>>),
    /// Evaluate an expression with bc, in a cell
    Calc(LazyArguments<calc::CalcArguments>),
    /// Add the server to the configuration of a client, with this project's directory as workspace
    Setup(LazyArguments<setup::SetupArguments>),
    /// Show which protections this machine can hold, and what to do about those it cannot
    Doctor(LazyArguments<doctor::DoctorArguments>),
    /// Attack the sandbox with the escape corpus, on this machine
    Selftest(LazyArguments<selftest::SelftestArguments>),
    /// Make random system calls in the sandbox, on this machine
    Fuzz(LazyArguments<fuzz::FuzzArguments>),
    /// Check policies, show their decision for a tool, or make a tool
    Policy(LazyArguments<policy::PolicyArguments>),
    /// List, show and check profiles, or learn what a command needs beyond one
    Profile(LazyArguments<profile::ProfileArguments>),
    /// Make, check and try a project of script tools
    Project(LazyArguments<project::ProjectArguments>),
    /// Show the configuration in force and where each value comes from
    Config(LazyArguments<config::ConfigArguments>),
    /// Check or show the audit log
    Audit(LazyArguments<audit::AuditArguments>),
    /// Print completions for a shell
    Completions(LazyArguments<pages::CompletionsArguments>),
    /// Print the manual page, or write one for each command
    Man(LazyArguments<pages::ManArguments>),
}

/// Runs the whole program: parses the arguments, runs the command, reports its result.
///
/// Must be called before the process has a second thread.
pub fn main() -> ExitCode {
    let mut words = std::env::args_os();
    // In cells of a script project this program is installed as `jq` too.
    let is_jq = |name| Path::new(&name).file_name().is_some_and(|name| name == "jq");
    if words.next().is_some_and(is_jq) {
        return jq::main(words);
    }
    // This comes first, before anything is opened: descriptors inherited from the caller have no
    // use here, except for a socket that `serve` is to listen on. The supervisor and every cell's
    // init would inherit them otherwise, since neither execs.
    let handed = match handed_socket::take() {
        Ok(handed) => handed,
        Err(errno) => {
            eprintln!("cofferdam: inherited descriptors cannot be closed: {errno}");
            return ExitCode::from(exit::REFUSED);
        }
    };
    // Before this process has a secret in memory, and before it has children.
    if let Err(errno) = cell::limits::no_core_dumps() {
        eprintln!("cofferdam: the limit of core files cannot be set: {errno}");
        return ExitCode::from(exit::REFUSED);
    }
    Colour::of_streams();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return usage_error(&usage),
    };
    let serves = matches!(cli.command, Command::Serve(_));
    // Other commands have no use for it: it is closed here.
    let handed = handed.filter(|_| serves);
    logging::start(if serves { logging::SERVER_LOG } else { logging::COMMAND_LOG });
    let config = cli.config.as_deref();
    let done = match cli.command {
        Command::Run(LazyArguments(arguments)) => run::main(&arguments, config),
        Command::Review(LazyArguments(arguments)) => review::main(&arguments, config),
        Command::Serve(arguments) => serve::main(&arguments.0, config, handed),
        Command::Calc(LazyArguments(arguments)) => calc::main(arguments, config),
        Command::Setup(LazyArguments(arguments)) => setup::main(&arguments),
        Command::Doctor(LazyArguments(arguments)) => doctor::main(&arguments, config),
        Command::Selftest(LazyArguments(arguments)) => selftest::main(&arguments),
        Command::Fuzz(LazyArguments(arguments)) => fuzz::main(&arguments),
        Command::Policy(LazyArguments(arguments)) => policy::main(&arguments, config),
        Command::Profile(LazyArguments(arguments)) => profile::main(&arguments, config),
        Command::Project(LazyArguments(arguments)) => project::main(&arguments, config),
        Command::Config(LazyArguments(arguments)) => config::main(&arguments, config),
        Command::Completions(LazyArguments(arguments)) => pages::completions(arguments),
        Command::Man(LazyArguments(arguments)) => pages::man(&arguments),
        Command::Audit(LazyArguments(arguments)) => audit::main(&arguments, config),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            error.print();
            ExitCode::from(error.code)
        }
    }
}

/// Reports a usage error. Help and version are no errors; anything else is a refusal by cofferdam and
/// has its exit code: 2, the exit code of clap, could come from a program that ran.
fn usage_error(usage: &clap::Error) -> ExitCode {
    if usage.print().is_err() || usage.use_stderr() {
        return ExitCode::from(exit::REFUSED);
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
#[path = "../../tests/support/child.rs"]
mod child;
#[cfg(test)]
#[path = "../../tests/support/reading_walls.rs"]
mod reading_walls;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_description_of_a_command_is_that_of_the_list() {
        let about = |command: &clap::Command| {
            let all = command.get_subcommands().filter(|command| command.get_name() != "help");
            let text = |command: &clap::Command| command.get_about().map(ToString::to_string);
            all.map(text).collect::<Vec<_>>()
        };
        let mut all = Cli::command();
        let listed = about(&all);
        all.build();
        assert_eq!(about(&all), listed);
    }

    #[test]
    fn every_command_and_argument_has_a_help_text() {
        let mut all = Cli::command();
        all.build();
        for command in all.get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                assert!(
                    argument.get_help().is_some(),
                    "{} {}",
                    command.get_name(),
                    argument.get_id()
                );
            }
        }
    }
}
