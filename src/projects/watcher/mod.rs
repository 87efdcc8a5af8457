//! The process that watches a script project: it reads the project again when a listed file
//! changes, and reports the result to the front end.
//!
//! The front end neither opens nor parses files of the project: this process does, with access to
//! one directory. It has no link to the supervisor and no client. Its memory is a copy of main's,
//! including the operator's settings and variables that main had read by then; the link to the
//! front end is its only way out. A project that takes it over could report false lists of itself,
//! with those values in them.

#[cfg(test)]
#[path = "../../../tests/support/child.rs"]
mod child;
mod confine;
mod content;
#[cfg(test)]
#[path = "../../../tests/support/reading_walls.rs"]
mod reading_walls;
pub(crate) mod reports;
mod rounds;
mod start;
mod watches;

pub use confine::{calls, program};
pub use rounds::WatcherSpec;
pub use start::start;
