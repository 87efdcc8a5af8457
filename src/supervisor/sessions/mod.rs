//! Sessions: cells whose bash runs one call after the other.
//!
//! A `session` has a `shell`, and a `mailbox` by which calls get to it; `bash_loop` is the program that
//! the shell runs between them.

pub(crate) mod bash_loop;
mod cpu_time;
pub(crate) mod mailbox;
pub(crate) mod session;
pub(crate) mod shell;
mod terminal;
