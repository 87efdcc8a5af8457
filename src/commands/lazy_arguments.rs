//! Arguments of a command that are built only if that command was typed.

use std::sync::atomic::{AtomicBool, Ordering};

use clap::builder::Resettable;
use clap::error::Error;
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Id};

/// Arguments of one command. The command line has about a hundred arguments and runs one command;
/// building those of the other commands would take half of the time of parsing.
#[derive(Debug)]
pub struct LazyArguments<T>(pub T);

/// True if no argument is deferred.
static BUILD_ALL: AtomicBool = AtomicBool::new(false);

/// Builds the whole command line with nothing deferred, for pages that describe all of it.
pub(crate) fn full_command<C: CommandFactory>() -> Command {
    BUILD_ALL.store(true, Ordering::Relaxed);
    C::command()
}

/// Adds the arguments of `T`. The description of the command in the list of commands is kept.
fn with<T: Args>(command: Command) -> Command {
    let about = Resettable::from(command.get_about().cloned());
    let long_about = Resettable::from(command.get_long_about().cloned());
    T::augment_args(command).about(about).long_about(long_about)
}

impl<T: Args> Args for LazyArguments<T> {
    fn augment_args(command: Command) -> Command {
        match BUILD_ALL.load(Ordering::Relaxed) {
            true => T::augment_args(command),
            false => command.defer(with::<T>),
        }
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(T::augment_args_for_update)
    }

    fn group_id() -> Option<Id> {
        T::group_id()
    }
}

impl<T: FromArgMatches> FromArgMatches for LazyArguments<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }

    fn update_from_arg_matches_mut(&mut self, matches: &mut ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches_mut(matches)
    }
}
