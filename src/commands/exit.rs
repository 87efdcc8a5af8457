//! Exit codes of `cofferdam run`, in one place.

use model::outcome::{Failure, Outcome};

/// A limit other than time ended the call.
pub const LIMIT: u8 = 123;
/// The time was used up.
pub const TIMEOUT: u8 = 124;
/// Refused or failed by cofferdam.
pub const REFUSED: u8 = 125;
/// The program cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program is not in the cell.
pub const NOT_FOUND: u8 = 127;

/// Reason why a call was cancelled at the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancellation {
    /// SIGINT: the user pressed Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// The output has no reader any more; without cofferdam in between, the program would have got SIGPIPE.
    OutputClosed,
}

impl Cancellation {
    /// Returns the number of the signal whose exit code is used.
    fn signal(self) -> u8 {
        match self {
            Self::Interrupt => 2,
            Self::Terminate => 15,
            Self::OutputClosed => 13,
        }
    }
}

/// Returns the exit code of an outcome. `cancellation` counts only if the outcome is a cancellation:
/// a program that exited just before has its exit code.
pub fn code(outcome: &Outcome, cancellation: Option<Cancellation>) -> u8 {
    match outcome {
        Outcome::Exited { code } => *code,
        Outcome::Signaled { signal } => signal.saturating_add(128),
        Outcome::Timeout => TIMEOUT,
        Outcome::Limit(_) => LIMIT,
        Outcome::Cancelled => {
            cancellation.unwrap_or(Cancellation::Interrupt).signal().saturating_add(128)
        }
        Outcome::Failed(failure) => failure_code(failure),
    }
}

/// Returns the exit code of a call that produced no outcome of its program.
pub fn failure_code(failure: &Failure) -> u8 {
    if let Failure::NotFound { .. } = failure {
        NOT_FOUND
    } else if let Failure::NotExecutable { .. } = failure {
        NOT_EXECUTABLE
    } else {
        REFUSED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::outcome::LimitKind;

    #[test]
    fn every_outcome_has_its_code() {
        let program = || "x".to_owned();
        let cases = [
            (Outcome::Exited { code: 0 }, 0),
            (Outcome::Exited { code: 255 }, 255),
            (Outcome::Signaled { signal: 9 }, 137),
            (Outcome::Signaled { signal: 64 }, 192),
            (Outcome::Limit(LimitKind::Memory), 123),
            (Outcome::Limit(LimitKind::Output), 123),
            (Outcome::Timeout, 124),
            (Outcome::Cancelled, 130),
            (Outcome::Failed(Failure::Supervisor), 125),
            (Outcome::Failed(Failure::Busy { what: "cells".to_owned() }), 125),
            (Outcome::Failed(Failure::NotExecutable { program: program(), errno: 13 }), 126),
            (Outcome::Failed(Failure::NotFound { program: program() }), 127),
        ];
        for (outcome, expected) in cases {
            assert_eq!(code(&outcome, None), expected, "{outcome:?}");
        }
    }

    #[test]
    fn a_cancelled_call_has_the_code_of_its_signal() {
        let cancelled = |cancellation| code(&Outcome::Cancelled, Some(cancellation));
        assert_eq!(
            [Cancellation::Interrupt, Cancellation::Terminate, Cancellation::OutputClosed]
                .map(cancelled),
            [130, 143, 141]
        );
        let exited = code(&Outcome::Exited { code: 3 }, Some(Cancellation::Interrupt));
        assert_eq!(exited, 3);
    }
}
