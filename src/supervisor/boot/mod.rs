//! From `main` to the loop: ids, control groups, the clone, and the supervisor's own confinement.
//!
//! `start` is main's side. `enter` is the supervisor's way into its namespaces, `bare` that of the tier
//! without any. It names the folders below it: the loop, cells and their roots.

pub mod bare;
mod clocks;
pub mod enter;
pub mod filter;
pub mod host;
mod idmap;
pub mod requirements;
pub mod scope;
pub mod start;
pub mod subordinate;
