//! From `main` to the loop: ids, control groups, the clone, and the supervisor's own confinement.
//!
//! `start` is main's side. `enter` is the supervisor's way into its namespaces, `bare` that of the tier
//! without any. It names the folders below it: the loop, cells and their roots.

pub mod bare;
mod clocks;
pub mod enter;
pub mod error;
pub mod filter;
pub mod host;
pub mod idmap;
mod inherited;
pub mod requirements;
pub mod scope;
pub mod spec;
pub mod start;
mod streams;
pub mod subordinate;
