//! Everything between `main` and the event loop: ids, control groups, the clone, and the
//! supervisor's confinement.
//!
//! `start` is main's side. `enter` takes the supervisor into its namespaces; `bare` does the same
//! for the tier without namespaces. This folder uses those after it: the loop, cells and their
//! roots.

pub(crate) mod bare;
mod clocks;
mod container_group;
mod control_files;
pub(crate) mod enter;
pub(crate) mod error;
pub mod filter;
pub(crate) mod host;
pub(crate) mod idmap;
mod inherited;
mod open_files;
pub(crate) mod outer;
pub(crate) mod requirements;
pub(crate) mod scope;
pub(crate) mod spec;
pub(crate) mod start;
mod streams;
pub(crate) mod subordinate;
