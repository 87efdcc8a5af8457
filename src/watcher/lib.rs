//! The process that watches a script project: it reads the project again when a file of its lists changes, and tells the
//! front end.
//!
//! The front end opens no file and parses none: this process does, with the right to read one directory and no other. It
//! has no link to the supervisor and no client. Its memory is a copy of main's, with the values of the operator's settings and
//! variables that main has read until then; no way leads out of it but the link to the front end. A project that took it
//! over could show false lists of itself, and put those values in them.

#![deny(unreachable_pub)]

mod confine;
mod content;
mod rounds;
mod start;
mod watches;

pub use confine::{calls, program};
pub use start::{WatcherSpec, start};
