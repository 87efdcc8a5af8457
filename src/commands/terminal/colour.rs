//! Colour for people: the meanings that have one, and on which streams it is written.

use std::io::{stderr, stdout};
use std::sync::OnceLock;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

/// Meaning of a word that may have a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Caution,
    Bad,
    /// A way out: a remedy or a hint.
    Advice,
}

impl Tone {
    fn style(self) -> Style {
        let colour = match self {
            Self::Good => AnsiColor::Green,
            Self::Caution => AnsiColor::Yellow,
            Self::Bad => AnsiColor::Red,
            Self::Advice => AnsiColor::Cyan,
        };
        Style::new().bold().fg_color(Some(colour.into()))
    }
}

/// Use of colour on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Off,
    On,
}

/// Use of colour on standard output and standard error.
static STREAMS: OnceLock<[Colour; 2]> = OnceLock::new();

impl Colour {
    /// Decides for both streams, once. Must be called at the start of a process: its environment is cleared when it
    /// is confined.
    pub(crate) fn of_streams() -> [Self; 2] {
        let choices = || [AutoStream::choice(&stdout()), AutoStream::choice(&stderr())];
        *STREAMS.get_or_init(|| choices().map(Self::from_choice))
    }

    /// Returns the decision for standard output: terminals have colour, unless NO_COLOR, CLICOLOR or TERM says
    /// otherwise (<https://no-color.org>, <https://bixense.com/clicolors>).
    pub(crate) fn of_output() -> Self {
        let [output, _] = Self::of_streams();
        output
    }

    /// Returns the decision for standard error.
    pub(crate) fn of_errors() -> Self {
        let [_, errors] = Self::of_streams();
        errors
    }

    fn from_choice(choice: ColorChoice) -> Self {
        match choice {
            ColorChoice::Never => Self::Off,
            ColorChoice::Auto | ColorChoice::AlwaysAnsi | ColorChoice::Always => Self::On,
        }
    }

    /// Returns the text as it is written.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        match self {
            Self::Off => text.to_owned(),
            Self::On => {
                let style = tone.style();
                format!("{style}{text}{style:#}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_painted_only_where_colour_is_on() {
        assert_eq!(Colour::Off.paint(Tone::Bad, "no"), "no");
        assert_eq!(Colour::On.paint(Tone::Bad, "no"), "\u{1b}[1m\u{1b}[31mno\u{1b}[0m");
    }
}
