//! Errors for a person at a terminal: the fault, its place, and a hint.

use std::io::Write;

use crate::commands::exit::{self, Cancellation};
use crate::commands::format::plain;
use crate::commands::terminal::colour::{Colour, Tone};
use model::outcome::{Failure, in_words};

/// A command that cofferdam did not carry out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CliError {
    /// Fault and its place, as `what: where`.
    pub message: String,
    pub hint: Option<String>,
    /// Exit code of the process.
    pub code: u8,
}

impl CliError {
    /// Makes an error of cofferdam itself, with exit code 125.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, code: exit::REFUSED }
    }

    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Returns the text for standard error, without a newline at its end.
    ///
    /// A message may quote a file that anyone could write, so only its line breaks are kept.
    pub fn text(&self) -> String {
        self.painted(Colour::Off)
    }

    fn painted(&self, colour: Colour) -> String {
        let lines = |text: &str| text.split('\n').map(plain).collect::<Vec<_>>().join("\n");
        let message = lines(&self.message);
        let text = format!("{} {message}", colour.paint(Tone::Bad, "cofferdam:"));
        match &self.hint {
            Some(hint) => {
                format!("{text}\n{} {}", colour.paint(Tone::Advice, "hint:"), lines(hint))
            }
            None => text,
        }
    }

    pub fn print(&self) {
        // If standard error is closed, there is no other way to report it.
        writeln!(std::io::stderr(), "{}", self.painted(Colour::of_errors())).unwrap_or_default();
    }
}

/// Prints to standard output. `println!` would panic if the reader is gone.
pub fn print_out(text: &str) -> Result<(), CliError> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| {
        let code =
            exit::code(&model::outcome::Outcome::Cancelled, Some(Cancellation::OutputClosed));
        CliError::new(format!("standard output: {}", in_words(&error))).with_code(code)
    })
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        Self {
            message: failure.to_string(),
            hint: failure.hint().map(str::to_owned),
            code: exit::failure_code(&failure),
        }
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        Self::new(format!("no JSON: {error}"))
    }
}
