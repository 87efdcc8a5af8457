//! Sessions: cells whose bash runs one call after the other.
//!
//! A `session` has a `shell`, and a `mailbox` by which calls get to it; `bash_loop` is the program that
//! the shell runs between them.

pub mod bash_loop;
mod cpu_time;
pub mod mailbox;
pub mod session;
pub mod shell;
mod terminal;
