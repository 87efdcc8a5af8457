//! Starts the supervisor while single-threaded, then dispatches the command.

use std::process::ExitCode;

// No async main: a runtime before the supervisor would be a process with threads to clone from.
fn main() -> ExitCode {
    cofferdam::commands::main()
}
