//! The process that watches a script project: it reads the project again when a file of its lists changes, and tells the
//! front end.
//!
//! The front end opens no file and parses none: this process does, with the right to read one directory and no other. It
//! holds no secret, no link to the supervisor and no client. A project that took it over could show false lists of itself.

#![deny(unreachable_pub)]

mod confine;
mod content;
mod rounds;
mod start;
mod watches;

pub use confine::{calls, program};
pub use start::{WatcherSpec, start};
