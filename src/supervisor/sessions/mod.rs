//! Sessions: cells whose shell runs one call after the other.
//!
//! A `session` has a `shell`, and a `mailbox` by which calls get to it; `loops` has the program that
//! the shell runs between them.

mod cpu_time;
mod loops;
pub(crate) mod mailbox;
pub(crate) mod session;
pub(crate) mod shell;
