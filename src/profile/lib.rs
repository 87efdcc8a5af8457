//! Profiles as files have them: their schema in TOML, and what they come to.
//!
//! `schema` is the TOML as written, a `layer` one file of it, and `resolve` makes a [`model::profile::Profile`]
//! of those that extend each other; `set` has all of them, and `shipped` those that are compiled in, each read
//! when it is asked for. `toolchains` is the table of tool chains outside of `/usr`.
//!
//! *Invariant:* nothing here does I/O. Files are read by `config`.

#![deny(unreachable_pub)]

pub mod account;
mod ahead;
pub mod document;
pub mod egress;
mod layer;
mod requests;
mod resolve;
mod schema;
mod set;
mod shipped;
pub mod toolchains;

pub use set::Profiles;
pub use shipped::shipped;

#[cfg(test)]
mod floor_tests;
#[cfg(test)]
mod tier_tests;
